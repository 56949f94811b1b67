"""What counts as a failed attempt, and what clients learn of it (semantics 2.5, 4.1, 8)."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    ObjectProcess,
    ProcessContext,
    ProcessErrorType,
    ProcessFailed,
    ProcessStartOptions,
    ProcessStatus,
    RetryPolicy,
    StateDecision,
    Worker,
    state,
)
from xdb_sdk.protocol import EXECUTE_PATH, WORKER_BATCH_PATH

ONCE = ProcessStartOptions(
    starting_state_options_override=AsyncStateOptions(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
)


class OutOfStock(Exception):
    """Cannot be made of its own text."""

    def __init__(self, *, article: str, left: int) -> None:
        super().__init__(f"only {left} of {article} left")


class Mute(Exception):
    """Has a text that cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Size(BaseModel):
    width: int


def raise_validation_error() -> None:
    Size.model_validate({"width": "wide"})


def raiser(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


ACCIDENTS: dict[str, Callable[[], None]] = {
    "OperationalError": raiser(sqlite3.OperationalError("database is locked")),
    "sqlalchemy OperationalError": raiser(
        OperationalError("SELECT 1", {}, Exception("server closed the connection unexpectedly"))
    ),
    "ConnectError": raiser(httpx.ConnectError("refused")),
    "TimeoutError": raiser(TimeoutError()),
    "CancelledError": raiser(asyncio.CancelledError()),
    "SystemExit": raiser(SystemExit(1)),
    "KeyboardInterrupt": raiser(KeyboardInterrupt()),
    "GeneratorExit": raiser(GeneratorExit()),
    "StopIteration": raiser(StopIteration("end")),
    "StopAsyncIteration": raiser(StopAsyncIteration()),
    "MemoryError": raiser(MemoryError()),
    "ExceptionGroup": raiser(ExceptionGroup("two", [ValueError("a"), KeyError("b")])),
    "BaseExceptionGroup": raiser(BaseExceptionGroup("two", [SystemExit(), ValueError("a")])),
    "HTTPException": raiser(HTTPException(418, "I am a teapot")),
    "ValidationError": raise_validation_error,
    "OutOfStock": raiser(OutOfStock(article="apples", left=2)),
    "Mute": raiser(Mute()),
}


class AccidentState(AsyncState[str]):
    """Has an accident at its first attempt."""

    def execute(self, ctx: ProcessContext, input: str) -> StateDecision:
        if ctx.attempt == 1:
            ACCIDENTS[input]()
        return StateDecision.graceful_complete_process("recovered")


class AsyncAccidentState(AccidentState):
    """Has it on the event loop."""

    async def execute(self, ctx: ProcessContext, input: str) -> StateDecision:  # type: ignore[override]  # now async
        await asyncio.sleep(0)
        if ctx.attempt == 1:
            ACCIDENTS[input]()
        return StateDecision.graceful_complete_process("recovered")


class Accident(ObjectProcess):
    starting_state = AccidentState


class AsyncAccident(ObjectProcess):
    starting_state = AsyncAccidentState


# What user code raises


@pytest.mark.parametrize("process_class", [Accident, AsyncAccident], ids=["def", "async def"])
@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_whatever_a_state_raises_is_one_failed_attempt_that_is_repeated(
    system: System, accident: str, process_class: type[ObjectProcess]
) -> None:
    system.serve(process_class)

    await system.client.start_process("p", process_class, accident)
    await asyncio.sleep(0.5)
    [failing] = (await system.client.describe_process("p")).states
    result = await system.client.wait_for_process_completion("p", str)

    assert failing.last_failure is not None
    assert (failing.last_failure.http_status, failing.attempt) == (424, 2)
    assert failing.last_failure.error_type == accident.split()[-1]
    assert result == "recovered"
    assert system.worker.attempts(f"{process_class.__name__}State") == [(1, 0), (2, 1)]


@pytest.mark.parametrize("accident", ["OutOfStock", "HTTPException", "ValidationError", "Mute"])
async def test_client_learns_type_text_and_trace_of_an_exception_that_it_could_not_make(
    system: System, accident: str
) -> None:
    system.serve(Accident)

    await system.client.start_process("p", Accident, accident, ONCE)
    with pytest.raises(ProcessFailed) as failed:
        await system.client.wait_for_process_completion("p")
    info = await system.client.describe_process("p")
    listed = [each async for each in system.client.list_processes(statuses=[ProcessStatus.FAILED])]

    texts = {
        "OutOfStock": "only 2 of apples left",
        "HTTPException": "418: I am a teapot",
        "ValidationError": "width\n  Input should be a valid integer",
        "Mute": "Mute (its __str__ raised)",
    }
    assert failed.value.error_type is ProcessErrorType.STATE_API
    assert f"status 424, {accident}: " in failed.value.error_message
    assert texts[accident] in failed.value.error_message
    assert "Traceback" not in str(failed.value)
    assert "in execute" in failed.value.details
    assert info.error is not None
    assert (info.error.error_message, info.error.details) == (failed.value.error_message, failed.value.details)
    assert info.error.worker_error_type == accident
    assert [each.process_id for each in listed] == ["p"]


# What user code returns


class UndecidedState(AsyncState[str]):
    """Returns what is no decision, of the kind that its input names."""

    def execute(self, input: str) -> StateDecision:
        if input == "none":
            return None  # type: ignore[return-value]  # as users do
        if input == "empty":
            return StateDecision()
        return StateDecision.single_next_state("SubmitStat")


@state(state_id="SubmitState")
class NextState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class Undecided(ObjectProcess):
    starting_state = UndecidedState
    states = (NextState,)


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ("none", "decision must not be empty"),
        ("empty", "decision must not be empty"),
        ("unknown state", "'SubmitStat'"),
    ],
)
async def test_decision_that_says_nothing_or_names_no_state_is_a_failed_attempt(
    system: System, decision: str, told: str
) -> None:
    system.serve(Undecided)
    policy = RetryPolicy(initial_interval_seconds=1, maximum_attempts=2)
    override = AsyncStateOptions(execute_api_retry_policy=policy)

    await system.client.start_process(
        "p", Undecided, decision, ProcessStartOptions(starting_state_options_override=override)
    )
    with pytest.raises(ProcessFailed) as failed:
        await system.client.wait_for_process_completion("p")

    assert told in failed.value.error_message
    assert system.worker.attempts("UndecidedState") == [(1, 0), (2, 1)]


# What a worker of another make answers


class SpoiltWorker:
    """Gives one answer that is none, and works afterwards."""

    def __init__(self, worker: Worker, body: bytes) -> None:
        self._worker = worker
        self._bodies = [body]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == WORKER_BATCH_PATH:
            await _answer(send, 404, b"")
        elif scope["path"] == EXECUTE_PATH and self._bodies:
            await _answer(send, 200, self._bodies.pop())
        else:
            await self._worker(scope, receive, send)


async def _answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def decision(**parts: Any) -> bytes:
    return json.dumps({"stateDecision": parts}).encode()


DEAD_END = {"closeType": "DEAD_END"}
MOVEMENT = {"stateId": "SubmitState"}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (decision(nextStates=[MOVEMENT], threadCloseDecision=DEAD_END), "nextStates', 'threadCloseDecision"),
        (decision(), "the decision must not be empty"),
        (decision(nextStates=[]), "the decision must not be empty"),
        (decision(threadCloseDecision={"closeType": "GIVE_UP"}), "closeType"),
        (b"{}", "stateDecision"),
        (b"null", "invalid ExecuteAnswer"),
        (b"[]", "invalid ExecuteAnswer"),
        (b"", "no JSON"),
        (b'{"stateDecision": {"nextStates"', "no JSON"),
        (b"<html>Bad gateway</html>", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
    ],
    ids=[
        "next states and close",
        "no decision",
        "no next states",
        "unknown close",
        "empty object",
        "null",
        "list",
        "empty body",
        "cut off",
        "html",
        "bytes",
    ],
)
async def test_answer_that_is_none_is_a_failed_attempt_that_is_repeated(system: System, body: bytes, told: str) -> None:
    system.serve(Accident)
    system.route(WORKER_URL, SpoiltWorker(Worker(system.registry), body))

    await system.client.start_process("p", Accident, "MemoryError")
    await asyncio.sleep(0.5)
    [failing] = (await system.client.describe_process("p")).states
    result = await system.client.wait_for_process_completion("p", str)

    failure = failing.last_failure
    assert failure is not None
    assert (failure.http_status, failure.error_type, failing.attempt) == (200, "INVALID_WORKER_RESPONSE", 2)
    assert told in failure.details
    assert result == "recovered"
    assert [attempt for attempt, _ in system.worker.attempts("AccidentState")][-1] == 2
