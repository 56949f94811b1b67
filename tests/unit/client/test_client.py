"""What the typed client sends, what it refuses to send, and what it makes of answers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.client.doubles import SERVER_LOST, Outcome, error, good
from tests.unit.client.processes import Bare, Form, Kit, SignUp, SubmitState, WaitState
from xdb_sdk import _errors as errors
from xdb_sdk._options import AsyncStateOptions, ProcessStartOptions
from xdb_sdk.client import ClientClosedError, ProcessInfo, QueueMessage
from xdb_sdk.protocol import (
    ConflictMode,
    DescribeAnswer,
    DoneAnswer,
    GetAttributesAnswer,
    IdReusePolicy,
    ListAnswer,
    LoadedData,
    LoadedTable,
    ProcessStatus,
    ProcessStopType,
    ProcessSummary,
    PublishAnswer,
    RpcServiceAnswer,
    StartAnswer,
    StateOutput,
    StateStatus,
    StopAnswer,
    WaitForCompletionAnswer,
    WaitForStateAnswer,
)

STARTED = good(StartAnswer(process_execution_id="e-1"))
DONE = good(DoneAnswer(process_execution_id="e-1"))
FORM = Form("a@b.c", 7)


# start


def test_a_start_sends_type_input_state_options_and_the_mapped_row() -> None:
    kit = Kit(STARTED)
    options = ProcessStartOptions(
        id_reuse_policy=IdReusePolicy.DISALLOW_REUSE,
        timeout=timedelta(seconds=3),
        start_delay=timedelta(milliseconds=1.5),
        ignore_already_started=True,
        initial_upsert_data_attributes={SignUp.form: FORM, "status": "waiting"},
        conflict_mode=ConflictMode.IGNORE_CONFLICT,
        namespace="other",
    )

    execution_id = kit.client.start_object_process("p", SignUp, 42, 5, options)

    assert execution_id == "e-1"
    body = kit.body
    state_options = body.pop("startStateOptions")
    assert body == {
        "namespace": "other",
        "processId": "p",
        "processType": "SignUp",
        "workerUrl": "http://worker",
        "objectId": 42,
        "startStateId": "submit",
        "startStateInput": 5,
        "idReusePolicy": "DISALLOW_REUSE",
        "timeoutMs": 3000,
        "startDelayMs": 2,
        "ignoreAlreadyStarted": True,
        "tables": [
            {
                "tableName": "sign_up",
                "primaryKey": {"user_id": 42},
                "initialWrite": {"form_json": {"$json": {"email": "a@b.c", "age": 7}}, "status": "waiting"},
                "conflictMode": "IGNORE_CONFLICT",
            }
        ],
    }
    assert state_options["skipWaitUntil"] is True
    assert state_options["executeApiTimeoutMs"] == 7000
    assert state_options["executeApiRetryPolicy"]["maximumAttempts"] == 3


def test_an_override_of_the_starting_states_options_is_merged_field_by_field() -> None:
    kit = Kit(STARTED)
    override = AsyncStateOptions(execute_api_timeout_seconds=9)

    kit.client.start_object_process("p", SignUp, 42, 5, ProcessStartOptions(starting_state_options_override=override))

    sent = kit.body["startStateOptions"]
    assert sent["executeApiTimeoutMs"] == 9000
    assert sent["executeApiRetryPolicy"]["maximumAttempts"] == 3


def test_a_start_without_a_table_writes_process_local_attributes() -> None:
    kit = Kit(STARTED)

    kit.client.start_process(
        "p", Bare, options=ProcessStartOptions(initial_upsert_data_attributes={Bare.note: "n", "score_anna": 3})
    )

    assert kit.body == {
        "processId": "p",
        "processType": "Bare",
        "workerUrl": "http://worker",
        "localAttributes": {"note": "n", "score_anna": 3},
    }


def test_a_refused_start_names_the_execution_that_has_the_process_id() -> None:
    kit = Kit(error(409, "PROCESS_ALREADY_STARTED", processExecutionId="e-0"))

    with pytest.raises(errors.ProcessAlreadyStartedError) as refusal:
        kit.client.start_process("p", Bare)

    assert refusal.value.process_execution_id == "e-0"


# RPC and queues


def test_an_rpc_sends_its_read_set_and_decodes_its_result() -> None:
    kit = Kit(good(RpcServiceAnswer(process_execution_id="e-1", output={"email": "x", "age": 3})))

    result = kit.client.invoke_rpc("p", SignUp.verify, "email")

    assert result == Form("x", 3)
    ((operation, body, timeout_s),) = kit.transport.requests
    assert (operation, body["rpcName"], body["input"], body["timeoutMs"]) == ("rpc", "verify", "email", 5000)
    assert body["read"]["tables"][0]["tableName"] == "sign_up"
    assert timeout_s > 5


def test_an_rpc_without_persistence_asks_for_no_data() -> None:
    kit = Kit(good(RpcServiceAnswer(process_execution_id="e-1", output="pong")))

    assert kit.client.invoke_rpc("p", SignUp.ping) == "pong"

    assert "read" not in kit.body
    assert kit.body["readOnly"] is True


@pytest.mark.parametrize(
    ("method", "output", "needs_queue_sizes"),
    [(SignUp.ping, "pong", False), (SignUp.backlog, 3, True)],
    ids=["without communication", "with communication"],
)
def test_queues_are_counted_only_for_an_rpc_that_can_ask_for_their_sizes(
    method: Any, output: Any, needs_queue_sizes: bool
) -> None:
    kit = Kit(good(RpcServiceAnswer(process_execution_id="e-1", output=output)))

    kit.client.invoke_rpc("p", method)

    assert kit.body.get("needsQueueSizes", True) is needs_queue_sizes


def test_a_result_of_another_type_than_declared_is_an_error() -> None:
    kit = Kit(good(RpcServiceAnswer(process_execution_id="e-1", output=7)))

    with pytest.raises(errors.DecodeError, match="output of RPC 'ping' of SignUp"):
        kit.client.invoke_rpc("p", SignUp.ping)


def test_a_read_only_rpc_whose_answer_is_lost_is_sent_again() -> None:
    kit = Kit(SERVER_LOST, good(RpcServiceAnswer(process_execution_id="e-1", output="pong")))

    assert kit.client.invoke_rpc("p", SignUp.ping) == "pong"

    assert kit.transport.operations == ["rpc", "rpc"]


def test_messages_of_one_call_travel_together_in_order() -> None:
    kit = Kit(good(PublishAnswer(process_execution_id="e-1", published=2)))
    messages = [QueueMessage(queue=SignUp.numbers, value=1), QueueMessage(queue="verify", dedup_id="d")]

    assert kit.client.publish_messages("p", SignUp, messages) == 2

    assert kit.body["messages"] == [
        {"queueName": "numbers", "payload": 1},
        {"queueName": "verify", "messageId": "d"},
    ]


@pytest.mark.parametrize(("published", "is_new"), [(1, True), (0, False)])
def test_publishing_says_whether_the_message_was_new(published: int, is_new: bool) -> None:
    kit = Kit(good(PublishAnswer(process_execution_id="e-1", published=published)))

    assert kit.client.publish_to_internal_queue("p", SignUp, SignUp.numbers, 1, "d") is is_new


# waiting


def closed(status: ProcessStatus = ProcessStatus.COMPLETED, *outputs: Any, **fields: Any) -> Outcome:
    return good(
        WaitForCompletionAnswer(
            process_execution_id="e-1",
            status=status,
            outputs=tuple(
                StateOutput(state_id="submit", state_execution_id=f"submit-{n}", output=output)
                for n, output in enumerate(outputs, 1)
            ),
            **fields,
        )
    )


RUNNING = closed(ProcessStatus.RUNNING, timeout=True)


def test_the_only_output_is_decoded_to_the_type_hint() -> None:
    output = {"email": "x", "age": 3}

    assert Kit(closed(ProcessStatus.COMPLETED, output)).client.wait_for_process_completion("p", Form) == Form("x", 3)
    assert Kit(closed(ProcessStatus.COMPLETED, output)).client.wait_for_process_completion("p") == output


def test_having_no_output_counts_as_null() -> None:
    assert Kit(closed()).client.wait_for_process_completion("p") is None
    assert Kit(closed()).client.wait_for_process_completion("p", str | None) is None
    with pytest.raises(errors.DecodeError, match="output of process 'p'"):
        Kit(closed()).client.wait_for_process_completion("p", str)


def test_several_outputs_are_read_with_get_process_results() -> None:
    answer = closed(ProcessStatus.COMPLETED, 1, 2)

    results = Kit(answer).client.get_process_results("p", int)

    assert [(result.state_execution_id, result.output) for result in results] == [("submit-1", 1), ("submit-2", 2)]
    with pytest.raises(errors.InvalidArgumentError, match="get_process_results"):
        Kit(answer).client.wait_for_process_completion("p", int)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ProcessStatus.FAILED, errors.ProcessFailed),
        (ProcessStatus.TIMEOUT, errors.ProcessTimeout),
        (ProcessStatus.TERMINATED, errors.ProcessTerminated),
        (ProcessStatus.CANCELED, errors.ProcessCanceled),
    ],
)
def test_each_abnormal_end_has_its_exception(
    status: ProcessStatus, expected: type[errors.ProcessAbnormalExitError]
) -> None:
    kit = Kit(closed(status, 1, error={"error_type": "STATE_API", "message": "card declined"}))

    with pytest.raises(expected, match="card declined") as raised:
        kit.client.wait_for_process_completion("p")

    assert (raised.value.process_execution_id, raised.value.status) == ("e-1", status)
    assert raised.value.error_type == "STATE_API"
    assert [result.output for result in raised.value.results] == [1]


def test_the_reason_of_a_stop_is_the_message_when_there_is_no_error() -> None:
    with pytest.raises(errors.ProcessTerminated, match="no longer needed"):
        Kit(closed(ProcessStatus.TERMINATED, reason="no longer needed")).client.wait_for_process_completion("p")


def test_a_wait_without_deadline_polls_until_the_process_closes() -> None:
    kit = Kit(*[RUNNING] * 50, closed(ProcessStatus.COMPLETED, 7))

    assert kit.client.wait_for_process_completion("p", int) == 7

    assert len(kit.transport.requests) == 51
    assert kit.clock.sleeps == []


def test_a_wait_goes_on_with_the_execution_that_it_began_with() -> None:
    kit = Kit(RUNNING, closed())

    kit.client.wait_for_process_completion("p")

    assert [body.get("processExecutionId") for body in kit.transport.bodies] == [None, "e-1"]


def test_each_poll_is_short_and_its_http_timeout_is_longer() -> None:
    kit = Kit(RUNNING, closed(), long_poll_api_max_wait_time=timedelta(seconds=12))

    kit.client.wait_for_process_completion("p")

    for _, body, timeout_s in kit.transport.requests:
        assert body["timeoutMs"] == 12_000
        assert timeout_s > 12


def test_a_poll_is_never_longer_than_the_server_allows() -> None:
    kit = Kit(closed(), long_poll_api_max_wait_time=timedelta(hours=1))

    kit.client.wait_for_process_completion("p")

    assert kit.body.get("timeoutMs", 30_000) == 30_000
    assert kit.transport.requests[0][2] < 60


def test_a_wait_ends_at_its_deadline_with_its_own_error() -> None:
    kit = Kit(long_poll_api_max_wait_time=timedelta(seconds=20))

    def after(delay_s: float) -> Callable[[], Outcome]:
        def answer() -> Outcome:
            kit.clock.pass_by(delay_s)
            return RUNNING

        return answer

    kit.transport.answer_next(after(20), after(5))

    with pytest.raises(errors.ProcessStillRunningError) as raised:
        kit.client.wait_for_process_completion("p", timeout=timedelta(seconds=25))

    assert (raised.value.process_id, raised.value.process_execution_id) == ("p", "e-1")
    assert [body["timeoutMs"] for body in kit.transport.bodies] == [20_000, 5_000]


def test_each_attempt_of_a_wait_asks_for_the_time_that_is_left_then() -> None:
    kit = Kit()

    def lost_after_4_s() -> Outcome:
        kit.clock.pass_by(4)
        return SERVER_LOST

    kit.transport.answer_next(lost_after_4_s, lost_after_4_s, closed(ProcessStatus.COMPLETED, 1))

    assert kit.client.wait_for_process_completion("p", timeout=timedelta(seconds=20)) == 1

    first_pause_s, second_pause_s = kit.clock.sleeps
    assert [body["timeoutMs"] for body in kit.transport.bodies] == [
        20_000,
        pytest.approx(16_000 - 1000 * first_pause_s, abs=1),
        pytest.approx(12_000 - 1000 * (first_pause_s + second_pause_s), abs=1),
    ]


def test_a_wait_of_no_time_asks_once() -> None:
    kit = Kit(RUNNING)

    with pytest.raises(errors.ProcessStillRunningError):
        kit.client.wait_for_process_completion("p", timeout=timedelta(0))

    assert kit.body["timeoutMs"] == 0


def test_a_wait_survives_a_server_that_stops_and_comes_back() -> None:
    stopping = closed(ProcessStatus.RUNNING, server_stopping=True)
    kit = Kit(stopping, SERVER_LOST, error(503, "UNAVAILABLE"), closed(ProcessStatus.COMPLETED, 1))

    assert kit.client.wait_for_process_completion("p") == 1

    assert len(kit.clock.sleeps) == 3
    assert all(delay_s > 0 for delay_s in kit.clock.sleeps)


def test_waiting_for_a_state_names_it_by_its_id_and_decodes_its_output() -> None:
    answer = WaitForStateAnswer(
        process_execution_id="e-1",
        process_status=ProcessStatus.RUNNING,
        state_execution_id="submit-2",
        state_status=StateStatus.COMPLETED,
        output=5,
    )
    kit = Kit(good(answer))

    completion = kit.client.wait_for_state_completion("p", SubmitState, 2, type_hint=int)

    assert (kit.body["stateId"], kit.body["number"]) == ("submit", 2)
    assert (completion.state_status, completion.output) == (StateStatus.COMPLETED, 5)


def test_waiting_for_a_state_by_key_that_never_ran_tells_how_the_process_closed() -> None:
    answer = WaitForStateAnswer(process_execution_id="e-1", process_status=ProcessStatus.FAILED)
    kit = Kit(good(answer))

    completion = kit.client.wait_for_state_completion("p", "submit", key="k", type_hint=int)

    assert kit.body["waitForKey"] == "k"
    assert (completion.process_status, completion.state_status, completion.output) == ("FAILED", None, None)


# data


def test_attributes_are_read_by_column_and_decoded() -> None:
    loaded = LoadedData(
        tables=(LoadedTable(table_name="sign_up", columns={"form_json": {"$json": {"email": "x", "age": 1}}}),)
    )
    kit = Kit(good(GetAttributesAnswer(process_execution_id="e-1", loaded=loaded)))

    assert kit.client.get_data_attributes("p", SignUp, [SignUp.form]) == {"form": Form("x", 1)}

    assert kit.body["read"] == {"tables": [{"tableName": "sign_up", "columns": ["form_json"]}]}


def test_reading_everything_asks_for_all_that_is_declared() -> None:
    loaded = LoadedData(local_attributes={"note": "n", "score_anna": 3})
    kit = Kit(good(GetAttributesAnswer(process_execution_id="e-1", loaded=loaded)))

    assert kit.client.get_data_attributes("p", Bare) == {"note": "n", "score_anna": 3}

    assert kit.body["read"] == {"localAttributes": ["note"], "localAttributePrefixes": ["score_"]}


def test_reading_nothing_asks_nobody() -> None:
    assert Kit().client.get_data_attributes("p", Bare, []) == {}


def test_attributes_are_written_where_they_live() -> None:
    mapped, bare = Kit(DONE), Kit(DONE)

    mapped.client.set_data_attributes("p", SignUp, {SignUp.form: FORM, "status": "verified"})
    bare.client.set_data_attributes("p", Bare, {Bare.scores.named("anna"): 3})

    assert mapped.body["writeTables"] == [
        {
            "tableName": "sign_up",
            "columns": {"form_json": {"$json": {"email": "a@b.c", "age": 7}}, "status": "verified"},
        }
    ]
    assert bare.body["writeLocalAttributes"] == {"score_anna": 3}


# the rest


def test_a_stop_is_repeated_after_a_lost_answer() -> None:
    answer = good(StopAnswer(process_execution_id="e-1", status=ProcessStatus.CANCELED, changed=False))
    kit = Kit(SERVER_LOST, answer)

    result = kit.client.stop_process("p", ProcessStopType.CANCEL, "over")

    assert (result.status, result.changed, result.duplicate) == (ProcessStatus.CANCELED, False, False)
    assert kit.transport.bodies == [{"processId": "p", "stopType": "CANCEL", "reason": "over"}] * 2


def test_describe_tells_instants_as_aware_datetimes() -> None:
    kit = Kit(
        good(
            DescribeAnswer.model_validate(
                {
                    **SUMMARY,
                    "workerUrl": "http://w",
                    "timeoutAtMs": 1_000_001,
                    "error": {"errorType": "STATE_API", "message": "m"},
                    "outputs": [{"output": 1}],
                    "states": [
                        {
                            "stateId": "WaitState",
                            "number": 1,
                            "status": "RUNNING",
                            "waitUntilStatus": "WAITING_COMMANDS_COMPLETED",
                            "executeStatus": "NOT_STARTED",
                            "attempt": 2,
                            "createdAtMs": 0,
                            "lastFailure": {
                                "api": "WAIT_UNTIL",
                                "httpStatus": 500,
                                "errorType": "E",
                                "details": "d",
                                "attempt": 1,
                                "atMs": 5,
                            },
                            "timers": [{"commandId": "t", "fireAtMs": 1000, "status": "SCHEDULED"}],
                            "queueCommands": [{"queueName": "q", "status": "WAITING", "received": 1}],
                        }
                    ],
                    "queueSizes": {"q": 3},
                }
            )
        )
    )

    info = kit.client.describe_process("p", include={"queues"})

    assert kit.body == {"processId": "p", "include": ["queues"]}
    assert isinstance(info, ProcessInfo)
    assert info.started_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert info.timeout_at == datetime(1970, 1, 1, 0, 16, 40, 1000, tzinfo=UTC)
    assert info.error is not None
    assert (info.error.error_message, info.error.details) == ("m", "m")
    (state,) = info.states
    assert state.timers[0].fire_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert state.queue_commands[0].received_count == 1
    assert state.retry_policy is None
    assert state.last_failure is not None
    assert state.last_failure.http_status == 500
    assert info.queue_sizes == {"q": 3}


SUMMARY = {
    "namespace": "default",
    "processId": "p",
    "processExecutionId": "e-1",
    "processType": "Bare",
    "status": "RUNNING",
    "isCurrent": True,
    "startedAtMs": 1000,
}


def page(*execution_ids: str, token: str | None = None) -> Outcome:
    processes = [
        ProcessSummary.model_validate({**SUMMARY, "processExecutionId": execution_id}) for execution_id in execution_ids
    ]
    return good(ListAnswer(processes=tuple(processes), next_page_token=token))


def test_a_list_reads_page_after_page_as_it_is_iterated() -> None:
    kit = Kit(page("e-3", "e-2", token="t"), page(token="u"), page("e-1"))
    processes = kit.client.list_processes(
        process_type="Bare",
        statuses=[ProcessStatus.RUNNING],
        started_from=datetime(1970, 1, 2, tzinfo=UTC),
        page_size=2,
    )
    assert kit.transport.requests == []

    first = next(processes)
    assert len(kit.transport.requests) == 1
    rest = list(processes)

    assert [process.process_execution_id for process in (first, *rest)] == ["e-3", "e-2", "e-1"]
    filters = {"processType": "Bare", "statuses": ["RUNNING"], "startedFromMs": 86_400_000, "pageSize": 2}
    assert kit.transport.bodies == [filters, {**filters, "nextPageToken": "t"}, {**filters, "nextPageToken": "u"}]


def test_a_timer_is_skipped_by_the_id_of_its_command_or_by_its_place() -> None:
    kit = Kit(DONE, DONE)

    kit.client.skip_timer("p", WaitState, command_id="t")
    kit.client.skip_timer("p", "WaitState", 2, index=0, remember=True)

    assert kit.transport.bodies == [
        {"processId": "p", "stateId": "WaitState", "commandId": "t"},
        {"processId": "p", "stateId": "WaitState", "number": 2, "index": 0, "remember": True},
    ]


def test_the_config_of_an_execution_is_updated_in_part() -> None:
    kit = Kit(DONE, DONE)

    kit.client.update_process_config("p", worker_url="http://New:1/", process_execution_id="e-1")
    kit.client.update_process_config("p", timeout=timedelta(0))

    assert kit.transport.bodies == [
        {"processId": "p", "processExecutionId": "e-1", "workerUrl": "http://new:1"},
        {"processId": "p", "timeoutMs": 0},
    ]


def test_the_namespace_of_the_client_goes_with_every_call() -> None:
    kit = Kit(STARTED, closed(), namespace="tenant-7")

    kit.client.start_process("p", Bare)
    kit.client.wait_for_process_completion("p")

    assert [body["namespace"] for body in kit.transport.bodies] == ["tenant-7"] * 2


def test_a_closed_client_says_so() -> None:
    kit = Kit()

    with kit.client as client:
        client.close()

    assert kit.transport.is_closed
    with pytest.raises(ClientClosedError):
        client.describe_process("p")


def test_a_client_closed_during_a_wait_ends_the_wait() -> None:
    kit = Kit()

    def close_meanwhile() -> Outcome:
        kit.client.close()
        return RUNNING

    kit.transport.answer_next(close_meanwhile)

    with pytest.raises(ClientClosedError):
        kit.client.wait_for_process_completion("p")


def test_closing_waits_with_the_connections_until_no_thread_reads_from_them() -> None:
    kit = Kit()
    was_closed_meanwhile: list[bool] = []

    def close_meanwhile() -> Outcome:
        kit.client.close()
        was_closed_meanwhile.append(kit.transport.is_closed)
        return STARTED

    kit.transport.answer_next(close_meanwhile)

    assert kit.client.start_process("p", Bare) == "e-1"

    assert was_closed_meanwhile == [False]
    assert kit.transport.is_closed


def test_threads_share_a_client() -> None:
    kit = Kit(*[STARTED] * 400)

    with ThreadPoolExecutor(8) as pool:
        execution_ids = list(pool.map(lambda n: kit.client.start_process(f"p{n}", Bare), range(400)))

    assert execution_ids == ["e-1"] * 400
    assert {body["processId"] for body in kit.transport.bodies} == {f"p{n}" for n in range(400)}
