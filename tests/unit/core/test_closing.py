"""Decisions and every way to close (semantics 4, 6.1, 1.6)."""

import pytest

from server_stub.core.call_events import RpcReturned
from server_stub.core.client_events import StopProcess
from server_stub.core.operator_events import UpdateConfig
from server_stub.core.outcomes import Verdict
from server_stub.core.refusals import Refused
from tests.support.core_bench import CoreBench
from tests.unit.core.drive import (
    COMPLETE,
    DEAD_END,
    FORCE_COMPLETE,
    FORCE_FAIL,
    WAITS,
    all_of,
    any_of,
    ending,
    execute,
    executed,
    failed,
    fire_due_timers,
    next_states,
    publish,
    queue,
    started,
    timer,
    wait,
    waiting_state,
)
from xdb_sdk.protocol import (
    CloseType,
    ConditionalClose,
    ErrorSubType,
    Message,
    MovementBody,
    ProcessErrorType,
    ProcessStatus,
    ProcessStopType,
    RetryPolicyConfig,
    RpcAnswer,
    StateDecisionBody,
    StateOptionsConfig,
    StateStatus,
    StopRequest,
    ThreadCloseDecision,
    UpdateConfigRequest,
)

ONE_ATTEMPT = StateOptionsConfig(skip_wait_until=True, execute_api_retry_policy=RetryPolicyConfig(maximum_attempts=1))


@pytest.fixture
def bench() -> CoreBench:
    return CoreBench()


def status(bench: CoreBench) -> ProcessStatus:
    return bench.current("p").status


def two_states(bench: CoreBench, options: StateOptionsConfig = ONE_ATTEMPT) -> None:
    """Let A-1 and B-1 be the pending set."""
    started(bench)
    execute(bench, "S-1", next_states("A", "B", options=options))


def test_graceful_complete_alone_completes(bench: CoreBench) -> None:
    started(bench)

    execute(bench, "S-1", COMPLETE)

    assert status(bench) is ProcessStatus.COMPLETED


def test_graceful_complete_waits_for_other_states_and_keeps_both_outputs(bench: CoreBench) -> None:
    two_states(bench)

    execute(bench, "A-1", ending(CloseType.GRACEFUL_COMPLETE_PROCESS, "a"))
    assert status(bench) is ProcessStatus.RUNNING
    execute(bench, "B-1", ending(CloseType.GRACEFUL_COMPLETE_PROCESS, "b"))

    assert status(bench) is ProcessStatus.COMPLETED
    assert [(o.state_execution_id, o.output) for o in bench.current("p").outputs] == [("A-1", "a"), ("B-1", "b")]


def test_graceful_complete_lets_the_others_go_to_further_states(bench: CoreBench) -> None:
    two_states(bench)
    execute(bench, "A-1", COMPLETE)

    execute(bench, "B-1", next_states("C"))
    assert status(bench) is ProcessStatus.RUNNING
    execute(bench, "C-1", DEAD_END)

    assert status(bench) is ProcessStatus.COMPLETED


def test_force_fail_after_a_graceful_request_fails(bench: CoreBench) -> None:
    two_states(bench)
    execute(bench, "A-1", COMPLETE)

    execute(bench, "B-1", FORCE_FAIL)

    assert status(bench) is ProcessStatus.FAILED


def test_exhausted_state_after_a_graceful_request_fails(bench: CoreBench) -> None:
    two_states(bench)
    execute(bench, "A-1", COMPLETE)

    bench.commit_one(failed(bench, "B-1"))

    assert status(bench) is ProcessStatus.FAILED


@pytest.mark.parametrize(
    ("decision", "expected"),
    [(FORCE_COMPLETE, ProcessStatus.COMPLETED), (FORCE_FAIL, ProcessStatus.FAILED)],
    ids=["complete", "fail"],
)
def test_forced_close_aborts_states_that_run_wait_or_back_off(
    bench: CoreBench, decision: StateDecisionBody, expected: ProcessStatus
) -> None:
    started(bench)
    execute(bench, "S-1", next_states("Run", "Wait", "Fail", "End", options=WAITS))
    wait(bench, "Wait-1", all_of(queue("q"), timers=(timer(5_000),)))
    bench.commit_one(failed(bench, "Fail-1"))
    wait(bench, "End-1", any_of())

    execute(bench, "End-1", decision)

    assert status(bench) is expected
    assert {bench.state(s).status for s in ("Run-1", "Wait-1", "Fail-1")} == {StateStatus.ABORTED}
    assert bench.state("End-1").status is StateStatus.COMPLETED


def test_force_fail_tells_why_and_keeps_outputs(bench: CoreBench) -> None:
    started(bench)

    execute(bench, "S-1", ending(CloseType.FORCE_FAIL_PROCESS, {"why": 1}))

    process = bench.current("p")
    assert process.error is not None
    assert process.error.error_type is ProcessErrorType.STATE_DECISION
    assert process.error.state_execution_id == "S-1"
    assert process.outputs[0].output == {"why": 1}


def test_dead_end_alone_leaves_the_process_running(bench: CoreBench) -> None:
    started(bench)

    execute(bench, "S-1", DEAD_END)

    assert status(bench) is ProcessStatus.RUNNING
    assert bench.due_calls() == []


def test_null_output_is_no_output(bench: CoreBench) -> None:
    started(bench)

    execute(bench, "S-1", ending(CloseType.GRACEFUL_COMPLETE_PROCESS, None))

    assert bench.current("p").outputs == ()


@pytest.mark.parametrize("output", [0, False, "", []], ids=repr)
def test_falsy_output_is_an_output(bench: CoreBench, output: object) -> None:
    started(bench)

    execute(bench, "S-1", ending(CloseType.GRACEFUL_COMPLETE_PROCESS, output))

    assert [entry.output for entry in bench.current("p").outputs] == [output]


BOTH = StateDecisionBody(
    next_states=(MovementBody(state_id="A"),),
    thread_close_decision=ThreadCloseDecision(close_type=CloseType.DEAD_END),
)


@pytest.mark.parametrize(
    ("decision", "expected"),
    [(StateDecisionBody(), "must not be empty"), (BOTH, "not ['nextStates', 'threadCloseDecision']")],
    ids=["empty", "mixed"],
)
def test_invalid_decision_is_a_failed_attempt_that_is_retried(
    bench: CoreBench, decision: StateDecisionBody, expected: str
) -> None:
    started(bench)

    execute(bench, "S-1", decision)

    state = bench.state("S-1")
    assert state.last_failure is not None
    assert expected in state.last_failure.details
    assert state.attempt == 2
    assert state.is_open


def conditional(*queues: str, graceful: bool = False) -> StateDecisionBody:
    return StateDecisionBody(
        conditional_close=ConditionalClose(
            queue_names=queues,
            close_type=(CloseType.GRACEFUL_COMPLETE_PROCESS if graceful else CloseType.FORCE_COMPLETE_PROCESS),
            close_output="done",
            next_states=(MovementBody(state_id="Again", options=ONE_ATTEMPT),),
        )
    )


def test_conditional_close_of_an_empty_queue_completes_with_the_output(bench: CoreBench) -> None:
    started(bench)

    execute(bench, "S-1", conditional("q"))

    assert status(bench) is ProcessStatus.COMPLETED
    assert bench.current("p").outputs[0].output == "done"


def test_conditional_close_goes_on_when_a_message_came_during_execute(bench: CoreBench) -> None:
    started(bench)
    publish(bench, ("q", 1))

    execute(bench, "S-1", conditional("q"))

    assert status(bench) is ProcessStatus.RUNNING
    assert bench.state("Again-1").is_open
    assert bench.queue("p", "q") == [1]


def test_conditional_close_sees_the_messages_of_its_own_answer(bench: CoreBench) -> None:
    started(bench)

    execute(bench, "S-1", conditional("q"), publish=(Message(queue_name="q"),))

    assert bench.state("Again-1").is_open


def test_conditional_close_needs_all_its_queues_empty(bench: CoreBench) -> None:
    started(bench)
    publish(bench, ("second", 1))

    execute(bench, "S-1", conditional("first", "second"))

    assert bench.state("Again-1").is_open


def test_conditional_close_counts_messages_held_by_a_wait_that_goes_on(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states("W", "C", options=WAITS))
    wait(bench, "W-1", all_of(queue("q"), queue("other")))
    publish(bench, ("q", 1))
    wait(bench, "C-1", any_of())

    execute(bench, "C-1", conditional("q"))

    assert bench.state("Again-1").is_open


def test_graceful_conditional_close_lets_a_running_execute_finish(bench: CoreBench) -> None:
    two_states(bench)

    execute(bench, "A-1", conditional("q", graceful=True))
    assert status(bench) is ProcessStatus.RUNNING
    execute(bench, "B-1", DEAD_END)

    assert status(bench) is ProcessStatus.COMPLETED


def test_writes_of_the_closing_answer_are_kept_and_its_messages_dropped(bench: CoreBench) -> None:
    process_execution_id = started(bench)

    execute(bench, "S-1", FORCE_FAIL, write_local_attributes={"a": 1}, publish=(Message(queue_name="q", payload=1),))

    assert bench.local_attributes[process_execution_id] == {"a": "1"}
    assert bench.messages == {}


def test_first_of_two_closing_decisions_wins_and_the_second_is_dropped(bench: CoreBench) -> None:
    two_states(bench)
    events = (executed(bench, "A-1", FORCE_COMPLETE), executed(bench, "B-1", FORCE_FAIL))

    results = bench.commit(*events)

    assert results == [Verdict.APPLIED, Verdict.OBSOLETE]
    assert status(bench) is ProcessStatus.COMPLETED


@pytest.mark.parametrize(
    ("stop_type", "expected"),
    [
        (ProcessStopType.TERMINATE, ProcessStatus.TERMINATED),
        (ProcessStopType.FAIL, ProcessStatus.FAILED),
        (ProcessStopType.CANCEL, ProcessStatus.CANCELED),
    ],
)
def test_stop_closes_with_its_status_and_reason(
    bench: CoreBench, stop_type: ProcessStopType, expected: ProcessStatus
) -> None:
    two_states(bench)

    bench.commit_one(StopProcess(StopRequest(process_id="p", stop_type=stop_type, reason="enough")))

    process = bench.current("p")
    assert (process.status, process.reason) == (expected, "enough")
    assert process.error is not None
    assert process.error.error_type is ProcessErrorType.CLIENT_STOP
    assert {bench.state(s).status for s in ("A-1", "B-1")} == {StateStatus.ABORTED}


def test_second_stop_changes_nothing(bench: CoreBench) -> None:
    started(bench)
    bench.commit_one(StopProcess(StopRequest(process_id="p")))

    answer = bench.commit_one(StopProcess(StopRequest(process_id="p", stop_type=ProcessStopType.FAIL)))

    assert (answer.status, answer.changed) == (ProcessStatus.TERMINATED, False)


def test_stop_of_an_unknown_process_is_not_found(bench: CoreBench) -> None:
    with pytest.raises(Refused) as caught:
        bench.commit_one(StopProcess(StopRequest(process_id="nobody")))

    assert caught.value.sub_type is ErrorSubType.PROCESS_NOT_FOUND


def test_publish_to_a_closed_process_is_refused(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", COMPLETE)

    with pytest.raises(Refused) as caught:
        publish(bench, ("q", 1))

    assert caught.value.sub_type is ErrorSubType.PROCESS_NOT_RUNNING


@pytest.mark.parametrize("pending", ["waiting", "backing off", "running", "no state"])
def test_timeout_closes_whatever_the_states_do(bench: CoreBench, pending: str) -> None:
    started(bench, timeout_ms=1_000, start_state_id=None if pending == "no state" else "S")
    if pending == "waiting":
        execute(bench, "S-1", next_states("W", options=WAITS))
        wait(bench, "W-1", any_of(queue("q"), timers=(timer(60_000),)))
    elif pending == "backing off":
        bench.commit_one(failed(bench, "S-1"))

    bench.now_ms += 1_000
    fire_due_timers(bench)

    process = bench.current("p")
    assert process.status is ProcessStatus.TIMEOUT
    assert process.error is not None
    assert process.error.error_type is ProcessErrorType.TIMEOUT


def test_completion_before_the_timeout_removes_its_timer(bench: CoreBench) -> None:
    started(bench, timeout_ms=1_000)

    execute(bench, "S-1", COMPLETE)

    assert bench.timers == {}


def test_timeout_can_be_moved_and_removed(bench: CoreBench) -> None:
    started(bench, timeout_ms=1_000)

    bench.commit_one(UpdateConfig(UpdateConfigRequest(process_id="p", timeout_ms=5_000)))
    bench.now_ms += 1_000
    fire_due_timers(bench)
    assert status(bench) is ProcessStatus.RUNNING
    bench.commit_one(UpdateConfig(UpdateConfigRequest(process_id="p", timeout_ms=0)))

    assert bench.timers == {}
    assert bench.current("p").worker_url == "http://worker"


def rpc(bench: CoreBench, **answer: object) -> Verdict:
    event = RpcReturned(bench.current("p").process_execution_id, RpcAnswer.model_validate(answer))
    verdict: Verdict = bench.commit_one(event)
    return verdict


def test_rpc_with_nothing_pending_completes_gracefully(bench: CoreBench) -> None:
    started(bench, start_state_id=None)

    rpc(bench, state_decision=COMPLETE)

    assert status(bench) is ProcessStatus.COMPLETED


def test_states_of_an_rpc_after_a_graceful_request_are_waited_for(bench: CoreBench) -> None:
    two_states(bench)
    execute(bench, "A-1", COMPLETE)

    rpc(bench, state_decision=next_states("C"))
    execute(bench, "B-1", DEAD_END)
    assert status(bench) is ProcessStatus.RUNNING
    execute(bench, "C-1", DEAD_END)

    assert status(bench) is ProcessStatus.COMPLETED


def test_rpc_publishes_to_a_waiting_state(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("q")))

    rpc(bench, publish=(Message(queue_name="q", payload="x"),))

    assert bench.state(state).command_results is not None


def test_mutating_rpc_on_a_closed_process_is_refused(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", COMPLETE)

    with pytest.raises(Refused) as caught:
        rpc(bench, write_local_attributes={"a": 1})

    assert caught.value.sub_type is ErrorSubType.PROCESS_NOT_RUNNING
    assert bench.local_attributes == {}
