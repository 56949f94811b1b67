"""What the calls of operators send, and what they return."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.client.doubles import SERVER_LOST, HandClock, ScriptedTransport, error, good
from tests.unit.client.processes import Kit, SignUp, WaitState
from xdb_sdk import (
    BulkResult,
    ClientOptions,
    ClientSideError,
    CompleteStateResult,
    ErrorSubType,
    InvalidArgumentError,
    PauseResult,
    ProcessStopType,
    StateDecision,
    UnregisteredClient,
)
from xdb_sdk.protocol import (
    BulkAnswer,
    CloseType,
    CompleteStateAnswer,
    DoneAnswer,
    PauseAnswer,
    ProcessStatus,
    ProcessSummary,
    StateDecisionBody,
    ThreadCloseDecision,
)

DONE = good(DoneAnswer(process_execution_id="e-1"))
FOUND = ProcessSummary(
    namespace="default",
    process_id="p",
    process_execution_id="e-1",
    process_type="SignUp",
    status=ProcessStatus.RUNNING,
    is_current=True,
    started_at_ms=0,
)


def test_an_execution_is_paused_and_resumed_with_a_reason() -> None:
    kit = Kit(
        good(PauseAnswer(process_execution_id="e-1")), good(PauseAnswer(process_execution_id="e-1", changed=False))
    )

    paused = kit.client.pause_process("p", reason="a look")
    resumed = kit.client.resume_process("p", process_execution_id="e-1")

    of = {"process_execution_id": "e-1", "duplicate": False, "mismatch": False}
    assert (paused, resumed) == (PauseResult(changed=True, **of), PauseResult(changed=False, **of))  # type: ignore[arg-type]  # one dict of both types
    assert kit.transport.operations == ["pause", "resume"]
    assert kit.transport.bodies == [
        {"processId": "p", "reason": "a look"},
        {"processId": "p", "processExecutionId": "e-1"},
    ]


def test_a_state_is_retried_by_class_or_id() -> None:
    kit = Kit(DONE, DONE)

    kit.client.retry_state("p", WaitState)
    kit.client.retry_state("p", "WaitState", 2, reset_attempts=True, reason="mended")

    assert kit.transport.operations == ["retry-state", "retry-state"]
    assert kit.transport.bodies == [
        {"processId": "p", "stateId": "WaitState"},
        {"processId": "p", "stateId": "WaitState", "number": 2, "resetAttempts": True, "reason": "mended"},
    ]


def test_a_state_is_completed_by_a_decision_as_its_worker_would_encode_it() -> None:
    kit = Kit(good(CompleteStateAnswer(process_execution_id="e-1", status=ProcessStatus.COMPLETED)))

    result = kit.client.complete_state(
        "p", SignUp, WaitState, StateDecision.force_complete_process(7), reason="by hand"
    )

    assert isinstance(result, CompleteStateResult)
    assert result.status is ProcessStatus.COMPLETED
    [body] = kit.transport.bodies
    assert body == {
        "processId": "p",
        "stateId": "WaitState",
        "reason": "by hand",
        "decision": {"threadCloseDecision": {"closeType": "FORCE_COMPLETE_PROCESS", "closeOutput": 7}},
    }


def test_a_decision_that_does_not_fit_the_class_is_not_sent() -> None:
    kit = Kit()

    with pytest.raises(InvalidArgumentError):
        kit.client.complete_state("p", SignUp, WaitState, StateDecision.single_next_state("NoState"))

    assert kit.transport.requests == []


def test_a_client_without_classes_names_states_by_their_ids() -> None:
    decision = StateDecisionBody(thread_close_decision=ThreadCloseDecision(close_type=CloseType.DEAD_END))
    answer = CompleteStateAnswer(process_execution_id="e-1", status=ProcessStatus.RUNNING)
    transport = ScriptedTransport(DONE, good(answer))
    client = UnregisteredClient(ClientOptions(), transport=transport, clock=HandClock())

    client.retry_state("p", "S")
    client.complete_state("p", "S", decision)
    with pytest.raises(InvalidArgumentError, match="by its id"):
        client.retry_state("p", WaitState)

    assert transport.bodies == [
        {"processId": "p", "stateId": "S"},
        {"processId": "p", "stateId": "S", "decision": {"threadCloseDecision": {"closeType": "DEAD_END"}}},
    ]


def test_many_are_stopped_page_by_page_under_one_request_id_and_the_caller_is_told_of_each() -> None:
    kit = Kit(
        good(BulkAnswer(examined=2, matched=2, changed=1, next_page_token="t")),
        good(BulkAnswer(examined=1, matched=1, changed=1)),
    )
    told: list[BulkResult] = []

    result = kit.client.stop_processes(
        ProcessStopType.CANCEL,
        "cleared",
        process_type="SignUp",
        process_id_prefix="test-",
        started_from=datetime(1970, 1, 2, tzinfo=UTC),
        started_before=datetime(1970, 1, 3, tzinfo=UTC),
        page_size=2,
        on_page=told.append,
    )

    assert result == BulkResult(examined=3, matched=3, changed=2, processes=())
    assert told == [BulkResult(examined=2, matched=2, changed=1, processes=()), result]
    filters = {
        "processType": "SignUp",
        "processIdPrefix": "test-",
        "startedFromMs": 86_400_000,
        "startedBeforeMs": 2 * 86_400_000,
        "reason": "cleared",
        "pageSize": 2,
        "stopType": "CANCEL",
    }
    assert kit.transport.operations == ["stop-processes"] * 2
    assert kit.transport.bodies == [filters, {**filters, "nextPageToken": "t"}]
    assert len(set(kit.transport.request_ids)) == 1


def test_a_dry_run_gives_what_would_be_changed() -> None:
    kit = Kit(good(BulkAnswer(examined=5, matched=1, changed=0, processes=(FOUND,))))

    result = kit.client.replace_worker_url("http://New/", "http://old", dry_run=True)

    assert [process.process_execution_id for process in result.processes] == ["e-1"]
    assert (result.examined, result.matched, result.changed) == (5, 1, 0)
    assert kit.transport.operations == ["replace-worker-url"]
    assert kit.transport.bodies == [{"newWorkerUrl": "http://new", "oldWorkerUrl": "http://old", "dryRun": True}]


def test_a_page_whose_answer_is_lost_is_asked_for_again() -> None:
    kit = Kit()
    kit.transport.answer_next(SERVER_LOST, good(BulkAnswer(examined=1, matched=1, changed=0)))

    result = kit.client.stop_processes()

    assert result.matched == 1
    assert len(kit.transport.requests) == 2


def test_a_state_that_cannot_be_retried_is_refused_with_its_code() -> None:
    kit = Kit()
    kit.transport.answer_next(error(409, "STATE_NOT_BACKING_OFF", details="it waits"))

    with pytest.raises(ClientSideError) as refused:
        kit.client.retry_state("p", WaitState)

    assert refused.value.error_sub_type is ErrorSubType.STATE_NOT_BACKING_OFF


@pytest.mark.parametrize("page_size", [0, 1_001])
def test_pages_have_bounds(page_size: int) -> None:
    kit = Kit()

    with pytest.raises(InvalidArgumentError, match="page_size"):
        kit.client.stop_processes(page_size=page_size)

    assert kit.transport.requests == []


def test_a_reason_goes_with_skipped_timers_and_with_changes_of_the_config() -> None:
    kit = Kit(DONE, DONE)

    kit.client.skip_timer("p", WaitState, index=0, reason="urgent")
    kit.client.update_process_config("p", timeout=timedelta(seconds=1), reason="slow")
    with pytest.raises(InvalidArgumentError, match="reason"):
        kit.client.update_process_config("p", timeout=timedelta(seconds=1), reason="x" * 1_001)

    assert [body["reason"] for body in kit.transport.bodies] == ["urgent", "slow"]
