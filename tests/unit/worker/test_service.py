"""Calls of user code and what is answered, without HTTP."""

import asyncio
import contextvars
import json
import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.worker.processes import (
    FRAGILE,
    Workshop,
    context,
    execute_call,
    registry_of,
    rpc_call,
    wait_until_call,
)
from xdb_sdk import NonRetryableError, ProcessContext
from xdb_sdk.protocol import (
    CloseType,
    CommandRequestBody,
    CommandResultsBody,
    ExecuteAnswer,
    ExecuteCall,
    InternalQueueCommandRequest,
    InternalQueueResult,
    LoadedData,
    LoadedTable,
    Message,
    MovementBody,
    QueueCommandStatus,
    ReceivedMessage,
    RecordedEvent,
    ReviseAnswer,
    RpcAnswer,
    RpcCall,
    StateDecisionBody,
    StateOptionsConfig,
    TableWrite,
    WaitingType,
    WaitUntilAnswer,
    WorkerErrorBody,
)
from xdb_sdk.worker import WorkerCallError, WorkerOptions, WorkerService

visitor = contextvars.ContextVar("visitor", default="nobody")


def service_of(workshop: Workshop | None = None, **options: Any) -> WorkerService:
    return WorkerService(registry_of(workshop or Workshop()), WorkerOptions(**options))


def acting(action: Callable[[ProcessContext], Any]) -> Workshop:
    workshop = Workshop()
    workshop.action = action
    return workshop


async def failure_of(service: WorkerService, call: ExecuteCall | RpcCall) -> tuple[int, WorkerErrorBody]:
    response = await service.respond(type(call), call.to_json())
    return response.status, WorkerErrorBody.model_validate_json(response.body)


def loaded_shelf(**columns: Any) -> LoadedData:
    return LoadedData(tables=(LoadedTable(table_name="shelf", columns=columns),))


class OutOfStock(Exception):
    def __init__(self, *, article: str) -> None:
        super().__init__(f"no {article} left")


USER_ERRORS: list[BaseException] = [
    ValueError("bad"),
    sqlite3.OperationalError("server closed the connection"),
    ConnectionError("refused"),
    TimeoutError("too slow"),
    asyncio.CancelledError(),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration("end"),
    StopAsyncIteration("end"),
    MemoryError(),
    ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    BaseExceptionGroup("two", [SystemExit(), KeyboardInterrupt()]),
    OutOfStock(article="apples"),
]


# What methods are given, and what is made of what they do


async def test_wait_until_answers_with_its_commands_and_its_effects() -> None:
    answer = await service_of().handle_wait_until(wait_until_call("Trade", "apple"))

    assert answer == WaitUntilAnswer(
        command_request=CommandRequestBody(
            waiting_type=WaitingType.ANY,
            internal_queue_commands=(InternalQueueCommandRequest(queue_name="orders"),),
        ),
        state_locals={"asked": "apple"},
        publish=(Message(queue_name="orders", payload="for apple"),),
    )


async def test_execute_is_given_everything_it_declares_and_answers_with_all_it_did() -> None:
    call = execute_call(
        "Trade",
        "apple",
        context=context(attempt=3),
        state_locals={"asked": "apple"},
        command_results=CommandResultsBody(
            internal_queue_results=(
                InternalQueueResult(
                    queue_name="orders",
                    status=QueueCommandStatus.RECEIVED,
                    messages=(ReceivedMessage(payload="two"),),
                ),
            )
        ),
    )

    answer = await service_of().handle_execute(call)

    assert answer == ExecuteAnswer(
        state_decision=StateDecisionBody(
            next_states=(
                MovementBody(state_id="Echo", input="apple", options=StateOptionsConfig(skip_wait_until=True)),
            )
        ),
        publish=(Message(queue_name="orders", payload="again"),),
        write_local_attributes={"note": "apple, two, attempt 3"},
        recorded_events=(RecordedEvent(name="exchanged", data=("apple",)),),
    )


async def test_state_without_wait_until_waits_for_nothing() -> None:
    answer = await service_of().handle_wait_until(wait_until_call("Echo", "hi"))

    assert answer == WaitUntilAnswer(command_request=CommandRequestBody(waiting_type=WaitingType.EMPTY))


async def test_rpc_reads_attributes_and_returns_its_value() -> None:
    call = rpc_call("read_note", loaded=FRAGILE)

    assert await service_of().handle_rpc(call) == RpcAnswer(output="fragile")


async def test_rpc_is_told_the_sizes_of_queues() -> None:
    answer = await service_of().handle_rpc(rpc_call("count_orders", queue_sizes={"orders": 4}))

    assert answer.output == 4


async def test_rpc_triggers_a_state() -> None:
    answer = await service_of().handle_rpc(rpc_call("begin", "hi"))

    assert answer.output == "HI"
    assert [(m.state_id, m.input) for m in answer.state_decision.next_states] == [("Echo", "hi")]


async def test_column_is_read_and_written() -> None:
    call = execute_call("Restock", 2, process_type="Shelf", loaded=loaded_shelf(books=40))

    answer = await service_of().handle_execute(call)

    assert answer.write_tables == (TableWrite(table_name="shelf", columns={"books": 42}),)


async def test_call_whose_columns_were_not_loaded_asks_to_be_read_for_again() -> None:
    call = execute_call("Restock", 2, process_type="Shelf", loaded=loaded_shelf())

    response = await service_of().respond(ExecuteCall, call.to_json())

    assert response.status == 406
    read = ReviseAnswer.model_validate_json(response.body).read_request
    assert [(table.table_name, table.columns) for table in read.tables] == [("shelf", ("books",))]


async def test_answer_leaves_out_what_has_its_default() -> None:
    response = await service_of().respond(ExecuteCall, execute_call("Echo", "hi").to_json())

    assert json.loads(response.body) == {
        "stateDecision": {
            "threadCloseDecision": {"closeType": CloseType.GRACEFUL_COMPLETE_PROCESS, "closeOutput": "hi"}
        }
    }


# What cannot be called


@pytest.mark.parametrize(
    ("call", "error_type", "named"),
    [
        (execute_call("Echo", process_type="Workshp"), "ProcessTypeNotFound", "Workshop"),
        (execute_call("Ecko"), "StateNotFound", "Echo"),
        (rpc_call("read_notes"), "RpcNotFound", "read_note"),
    ],
    ids=["process type", "state", "RPC"],
)
async def test_what_is_not_registered_is_404_with_the_nearest_name(
    call: ExecuteCall | RpcCall, error_type: str, named: str
) -> None:
    status, error = await failure_of(service_of(), call)

    assert (status, error.error_type, error.retryable) == (404, error_type, True)
    assert f"{named!r}" in error.detail


@pytest.mark.parametrize(
    "call",
    [
        execute_call("Echo", 7),
        execute_call("Echo"),
        rpc_call("begin", ["hi"]),
        execute_call("Act", "", context=context(process_started_at_ms=10**30)),
    ],
    ids=["wrong type", "no input", "rpc", "no such date"],
)
async def test_call_that_does_not_fit_the_definition_is_400(call: ExecuteCall | RpcCall) -> None:
    status, error = await failure_of(service_of(), call)

    assert status == 400
    assert error.detail
    assert "Traceback" not in error.detail


# What fails


@pytest.mark.parametrize("state_id", ["Act", "ActInThread"], ids=["async def", "def"])
@pytest.mark.parametrize("error", USER_ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_user_code_raises_is_one_failed_attempt(state_id: str, error: BaseException) -> None:
    def act(ctx: ProcessContext) -> None:
        raise error

    service = service_of(acting(act))

    status, body = await failure_of(service, execute_call(state_id, ""))

    assert (status, body.error_type, body.retryable) == (424, type(error).__name__, True)
    assert "in act" in body.detail
    assert (await service.respond(ExecuteCall, execute_call("Echo", "hi").to_json())).status == 200


async def test_method_that_cancels_its_own_task_is_one_failed_attempt() -> None:
    async def cancel_self() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    status, error = await failure_of(service_of(acting(lambda ctx: cancel_self())), execute_call("Act", ""))

    assert (status, error.error_type) == (424, "CancelledError")


async def test_timeout_inside_a_method_is_its_own_affair() -> None:
    async def wait_in_vain() -> None:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return

    response = await service_of(acting(lambda ctx: wait_in_vain())).respond(
        ExecuteCall, execute_call("Act", "").to_json()
    )

    assert response.status == 200


async def test_non_retryable_error_says_so() -> None:
    def act(ctx: ProcessContext) -> None:
        raise NonRetryableError("card expired")

    status, error = await failure_of(service_of(acting(act)), execute_call("ActInThread", ""))

    assert (status, error.error_type, error.retryable) == (424, "NonRetryableError", False)


async def test_missing_decision_is_a_failed_attempt() -> None:
    status, error = await failure_of(service_of(), execute_call("Undecided"))

    assert status == 424
    assert "decision must not be empty" in error.detail


async def test_write_in_a_read_only_rpc_is_refused() -> None:
    status, error = await failure_of(service_of(), rpc_call("peek", process_type="Shelf", loaded=loaded_shelf(books=1)))

    assert status == 424
    assert "read_only" in error.detail


async def test_handle_methods_raise_what_is_to_be_answered() -> None:
    with pytest.raises(WorkerCallError) as raised:
        await service_of().handle_execute(execute_call("Ecko"))

    assert (raised.value.status, raised.value.error_type) == (404, "StateNotFound")


async def test_failed_attempt_is_logged_once_with_ids_and_what_was_raised(caplog: pytest.LogCaptureFixture) -> None:
    def act(ctx: ProcessContext) -> None:
        raise ValueError("the gateway said 402")

    await failure_of(service_of(acting(act)), execute_call("Act", "secret input", context=context(attempt=2)))

    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert vars(record).items() >= {
        ("operation", "execute of Act"),
        ("error_type", "ValueError"),
        ("error_message", "the gateway said 402"),
        ("status", 424),
        ("process_id", "w-1"),
        ("state_execution_id", "Echo-1"),
        ("attempt", 2),
    }
    assert "secret" not in str(vars(record))


async def test_traceback_in_the_log_begins_with_the_users_method(caplog: pytest.LogCaptureFixture) -> None:
    def act(ctx: ProcessContext) -> None:
        raise ValueError("the gateway said 402")

    await failure_of(service_of(acting(act)), execute_call("Act", "go"))

    logged = logging.Formatter().format(caplog.records[0])
    assert 'raise ValueError("the gateway said 402")' in logged
    assert "xdb_sdk/worker" not in logged


async def test_endless_recursion_is_logged_by_its_innermost_frames(caplog: pytest.LogCaptureFixture) -> None:
    def act(ctx: ProcessContext) -> None:
        act(ctx)

    await failure_of(service_of(acting(act)), execute_call("Act", "go"))

    logged = caplog.records[0].getMessage()
    assert "maximum recursion depth exceeded" in logged
    assert len(logged) < 5_000


async def test_refusal_is_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    await failure_of(service_of(), execute_call("Ecko"))

    [record] = caplog.records
    assert record.getMessage().startswith("call failed: Workshop has no state 'Ecko'")
    assert "Traceback" not in record.getMessage()


async def test_text_that_no_log_can_hold_is_replaced_in_it(caplog: pytest.LogCaptureFixture) -> None:
    def act(ctx: ProcessContext) -> None:
        raise ValueError("half a \ud83d and a \0")

    await failure_of(service_of(acting(act)), execute_call("Act", "go"))

    caplog.records[0].getMessage().encode()
    assert "\0" not in caplog.records[0].getMessage()


async def test_refusals_that_use_up_no_attempt_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    service = service_of()
    await service.stop()

    status, _ = await failure_of(service, execute_call("Echo", "hi"))

    assert status == 503
    assert not caplog.records


# Sizes


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (execute_call("Echo", "x" * 100), "stateDecision.threadCloseDecision.closeOutput is 102 bytes"),
        (rpc_call("begin", "x" * 100), "output is 102 bytes"),
        (execute_call("Trade", "x" * 70, state_locals={"asked": "x" * 100}), "note is "),
    ],
    ids=["output", "rpc output", "attribute"],
)
async def test_value_over_the_limit_is_refused_by_name(call: ExecuteCall | RpcCall, named: str) -> None:
    if isinstance(call, ExecuteCall) and call.state_id == "Trade":
        result = InternalQueueResult(queue_name="orders", status=QueueCommandStatus.WAITING)
        call = call.model_copy(update={"command_results": CommandResultsBody(internal_queue_results=(result,))})

    status, error = await failure_of(service_of(max_value_bytes=99), call)

    assert (status, error.error_type) == (424, "AnswerTooLarge")
    assert named in error.detail
    assert "max_value_bytes" in error.detail


async def test_state_local_and_message_over_the_limit_are_refused() -> None:
    call = wait_until_call("Trade", "x" * 100)

    response = await service_of(max_value_bytes=103).respond(type(call), call.to_json())

    assert response.status == 424
    assert b"publish.0.payload is 106 bytes" in response.body


async def test_next_state_input_over_the_limit_is_refused() -> None:
    call = rpc_call("begin", "x" * 100)

    status, error = await failure_of(service_of(max_value_bytes=101), call)

    assert status == 424
    assert "102 bytes" in error.detail


async def test_large_answer_of_small_values_is_allowed_up_to_its_own_limit() -> None:
    call = rpc_call("begin", "x" * 90)
    size_bytes = len((await service_of().respond(RpcCall, call.to_json())).body)

    allowed = await service_of(max_value_bytes=92, max_answer_bytes=size_bytes).respond(RpcCall, call.to_json())
    refused = await service_of(max_value_bytes=92, max_answer_bytes=size_bytes - 1).respond(RpcCall, call.to_json())

    assert allowed.status == 200
    assert refused.status == 424
    assert b"max_answer_bytes" in refused.body


# Threads and the event loop


async def test_def_runs_in_a_thread_of_the_worker_with_the_context_of_the_call() -> None:
    seen: list[str] = []
    service = service_of(acting(lambda ctx: seen.extend([threading.current_thread().name, visitor.get()])))
    visitor.set("anna")

    await service.respond(ExecuteCall, execute_call("ActInThread", "").to_json())
    await service.stop()

    assert seen[0].startswith("xdb-worker")
    assert seen[1] == "anna"


async def test_blocking_def_holds_up_no_other_call() -> None:
    release = threading.Event()
    service = service_of(acting(lambda ctx: release.wait(10)))
    blocked = asyncio.ensure_future(service.respond(ExecuteCall, execute_call("ActInThread", "").to_json()))

    other = await service.respond(ExecuteCall, execute_call("Echo", "hi").to_json())
    release.set()

    assert other.status == 200
    assert (await blocked).status == 200
    await service.stop()


async def test_calls_beyond_threads_and_waiting_places_are_refused() -> None:
    release = threading.Event()
    service = service_of(acting(lambda ctx: release.wait(10)), max_threads=1, max_calls_waiting_for_thread=1)
    body = execute_call("ActInThread", "").to_json()
    calls = [asyncio.ensure_future(service.respond(ExecuteCall, body)) for _ in range(3)]

    refused = await calls[2]
    on_the_loop = await service.respond(ExecuteCall, execute_call("Echo", "hi").to_json())
    release.set()

    assert (refused.status, refused.retry_after_s) == (429, 1.0)
    assert on_the_loop.status == 200
    assert [(await call).status for call in calls[:2]] == [200, 200]
    await service.stop()


async def test_call_that_gets_no_thread_before_its_deadline_is_not_run() -> None:
    calls: list[int | None] = []
    release = threading.Event()

    def act(ctx: ProcessContext) -> None:
        calls.append(ctx.attempt)
        release.wait(10)

    service = service_of(acting(act), max_threads=1)
    first = execute_call("ActInThread", "", context=context(attempt=1))
    late = execute_call("ActInThread", "", context=context(attempt=2, timeout_ms=0))
    first_answer = asyncio.ensure_future(service.respond(ExecuteCall, first.to_json()))
    late_answer = asyncio.ensure_future(failure_of(service, late))
    await asyncio.sleep(0)

    release.set()

    assert (await first_answer).status == 200
    status, error = await late_answer
    assert (status, error.error_type, calls) == (503, "CallExpired", [1])
    await service.stop()


async def test_method_that_blocks_the_event_loop_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    service = service_of(blocked_loop_warning=WorkerOptions().retry_after * 0)
    body = execute_call("Echo", "hi").to_json()

    await service.respond(ExecuteCall, body)
    await service.respond(ExecuteCall, body)

    assert ["execute of state 'Echo' of Workshop blocked the event loop" in r.getMessage() for r in caplog.records] == [
        True
    ]


async def test_method_that_only_waits_is_not_said_to_block(caplog: pytest.LogCaptureFixture) -> None:
    service = service_of(acting(lambda ctx: asyncio.sleep(0.01)))

    await service.respond(ExecuteCall, execute_call("Act", "").to_json())

    assert not caplog.records
