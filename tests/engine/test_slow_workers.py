"""Workers that answer late, never, or only in part, and processes that close meanwhile (semantics 2.6, 5.5)."""

import asyncio
from typing import Literal

import pytest
from starlette.types import Receive, Scope, Send

from tests.support.system import WORKER_URL, System
from tests.support.virtual_time import VirtualTimeLoop
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    ErrorSubType,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessContext,
    ProcessStartOptions,
    ProcessStatus,
    RetryPolicy,
    RpcExecutionError,
    StateApi,
    StateDecision,
    StateStatus,
    Worker,
    data_attribute,
    process,
    rpc,
    state,
)
from xdb_sdk.protocol import EXECUTE_PATH, RPC_PATH, WORKER_BATCH_PATH


def now_s() -> float:
    return asyncio.get_running_loop().time()


# Attempts that take too long


class SlowExecuteState(AsyncState[None]):
    """Takes 100 s at its first attempt."""

    async def execute(self, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        if ctx.attempt == 1:
            await asyncio.sleep(100)
        persistence.set_data_attribute("applied_attempt", ctx.attempt)
        return StateDecision.dead_end()


class SlowWaitState(AsyncState[None]):
    """Takes 100 s at the first attempt of wait_until."""

    async def wait_until(self, ctx: ProcessContext, persistence: Persistence) -> CommandRequest:
        if ctx.attempt == 1:
            await asyncio.sleep(100)
        persistence.set_data_attribute("applied_attempt", ctx.attempt)
        return CommandRequest.empty()

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class SlowExecute(ObjectProcess):
    applied_attempt = data_attribute(int)
    starting_state = SlowExecuteState


class SlowWait(ObjectProcess):
    applied_attempt = data_attribute(int)
    starting_state = SlowWaitState


FIVE_SECONDS = AsyncStateOptions(wait_until_api_timeout_seconds=5, execute_api_timeout_seconds=5)


@pytest.mark.parametrize(
    ("process_class", "operation", "api"),
    [(SlowExecute, "execute", StateApi.EXECUTE), (SlowWait, "wait-until", StateApi.WAIT_UNTIL)],
    ids=["execute", "wait_until"],
)
async def test_attempt_that_outlasts_its_timeout_has_failed_and_its_late_answer_is_ignored(
    system: System, process_class: type[ObjectProcess], operation: str, api: StateApi
) -> None:
    system.serve(process_class)

    await system.client.start_process(
        "p", process_class, None, ProcessStartOptions(starting_state_options_override=FIVE_SECONDS)
    )
    await asyncio.sleep(5.5)
    [slow] = (await system.client.describe_process("p")).states
    await asyncio.sleep(150)
    values = await system.client.get_data_attributes("p", process_class)
    states = (await system.client.describe_process("p", include={"closed_states"})).states

    failure = slow.last_failure
    assert failure is not None
    assert (failure.api, failure.http_status, failure.error_type) == (api, 0, "WORKER_TIMEOUT")
    assert failure.details == "no answer within the timeout of 5 s"
    assert system.worker.attempts(f"{process_class.__name__}State", operation) == [(1, 0), (2, 6)]
    assert values == {"applied_attempt": 2}
    assert [each.status for each in states] == [StateStatus.COMPLETED]


# Workers that take a call and never answer it, or never to the end


Stall = Literal["silent", "trickling"]


class StallingWorker:
    """Never answers the first call of one path, and works otherwise; knows no batches."""

    def __init__(self, worker: Worker, path: str, stall: Stall) -> None:
        self._worker = worker
        self._stalling = [path]
        self._stall = stall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == WORKER_BATCH_PATH:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        elif scope["path"] not in self._stalling:
            await self._worker(scope, receive, send)
        else:
            self._stalling.clear()
            await (_stay_silent() if self._stall == "silent" else _trickle(send))


async def _stay_silent() -> None:
    await asyncio.Event().wait()


async def _trickle(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await asyncio.sleep(5)
        await send({"type": "http.response.body", "body": b" ", "more_body": True})


LOCKED = PersistenceLoadingPolicy.all().locking(["total"])


@state(execute_api_timeout_seconds=10, data_attributes_loading_policy=LOCKED)
class AddState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Adder.total, (persistence.get_data_attribute(Adder.total) or 0) + 1)
        return StateDecision.dead_end()


@process(table_name="totals", primary_key="id", primary_key_type=str)
class Adder(ObjectProcess):
    total = data_attribute(int)
    starting_state = AddState

    @rpc(data_attribute_loading_policy=LOCKED, timeout_seconds=10)
    def add(self, input: int, persistence: Persistence) -> int:
        total = (persistence.get_data_attribute(Adder.total) or 0) + input
        persistence.set_data_attribute(Adder.total, total)
        return total

    @rpc(read_only=True)
    def look(self, persistence: Persistence) -> int | None:
        return persistence.get_data_attribute(Adder.total)


async def start_adder(system: System, path: str, stall: Stall) -> None:
    system.sql("CREATE TABLE totals (id VARCHAR(255) PRIMARY KEY, total INTEGER)")
    system.serve(Adder)
    system.route(WORKER_URL, StallingWorker(Worker(system.registry), path, stall))
    await system.client.start_object_process("p", Adder, "row")


@pytest.mark.parametrize("stall", ["silent", "trickling"])
async def test_state_call_that_is_never_answered_ends_at_its_timeout_and_holds_no_lock_after_it(
    system: System, stall: Stall
) -> None:
    await start_adder(system, EXECUTE_PATH, stall)
    await asyncio.sleep(1)
    began_s = now_s()

    seen = await system.client.invoke_rpc("p", Adder.look)
    looked_after_s = now_s() - began_s
    total = await system.client.invoke_rpc("p", Adder.add, 10)
    added_after_s = now_s() - began_s
    await system.client.wait_for_state_completion("p", AddState)

    assert seen is None
    assert looked_after_s == pytest.approx(0, abs=0.01)
    assert total == 10
    assert added_after_s == pytest.approx(9, abs=0.01)
    assert dict(system.worker.attempts("AddState")) == {1: 0, 2: 11}
    assert system.sql("SELECT total FROM totals") == [(11,)]


@pytest.mark.parametrize("stall", ["silent", "trickling"])
async def test_rpc_that_is_never_answered_ends_at_its_timeout_and_holds_no_lock_after_it(
    system: System, stall: Stall
) -> None:
    await start_adder(system, RPC_PATH, stall)
    await system.client.wait_for_state_completion("p", AddState)
    began_s = now_s()

    stalled = asyncio.create_task(system.client.invoke_rpc("p", Adder.add, 10))
    await asyncio.sleep(1)
    seen = await system.client.invoke_rpc("p", Adder.look)
    looked_after_s = now_s() - began_s
    with pytest.raises(RpcExecutionError) as failed:
        await stalled
    failed_after_s = now_s() - began_s
    total = await system.client.invoke_rpc("p", Adder.add, 100)

    assert seen == 1
    assert looked_after_s == pytest.approx(1, abs=0.01)
    assert (failed.value.status, failed.value.error_sub_type) == (424, ErrorSubType.WORKER_TIMEOUT)
    assert failed_after_s == pytest.approx(10, abs=0.01)
    assert total == 101
    assert now_s() - began_s == pytest.approx(10, abs=0.01)


# Processes that close while a call runs


noticed_after_s: list[float] = []


class LongState(AsyncState[None]):
    """Notices every second whether it is still wanted, and goes on all the same for 20 s."""

    async def execute(self, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        for second in range(20):
            if ctx.is_stopped():
                noticed_after_s.append(second)
            await asyncio.sleep(1)
        persistence.set_data_attribute(Long.total, 1)
        return StateDecision.single_next_state(NeverState)


class NeverState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


@process(table_name="totals", primary_key="id", primary_key_type=str)
class Long(ObjectProcess):
    total = data_attribute(int)
    starting_state = LongState
    states = (NeverState,)


async def test_state_learns_that_its_process_was_stopped_and_its_late_answer_changes_nothing(system: System) -> None:
    system.sql("CREATE TABLE totals (id VARCHAR(255) PRIMARY KEY, total INTEGER)")
    system.serve(Long)
    noticed_after_s.clear()

    await system.client.start_object_process("p", Long, "row")
    await asyncio.sleep(4.5)
    await system.client.stop_process("p")
    await asyncio.sleep(60)
    info = await system.client.describe_process("p", include={"closed_states"})

    assert noticed_after_s == list(range(5, 20))
    assert info.status is ProcessStatus.TERMINATED
    assert [(each.state_id, each.status) for each in info.states] == [("LongState", StateStatus.ABORTED)]
    assert system.worker.count("NeverState") == 0
    assert system.sql("SELECT * FROM totals") == []


# User code that blocks the event loop of its worker


class BlockingState(AsyncState[None]):
    """Blocks for 20 s at its first attempt."""

    async def execute(self, ctx: ProcessContext) -> StateDecision:
        if ctx.attempt == 1:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            loop.block(20)
        return StateDecision.graceful_complete_process(ctx.attempt)


class ShortState(AsyncState[None]):
    async def execute(self, ctx: ProcessContext) -> StateDecision:
        await asyncio.sleep(5)
        return StateDecision.graceful_complete_process(ctx.attempt)


class Blocking(ObjectProcess):
    starting_state = BlockingState


class Short(ObjectProcess):
    starting_state = ShortState


@pytest.mark.parametrize(
    ("timeout_s", "attempts"), [(60, [1]), (10, [1, 2])], ids=["within the timeout", "beyond the timeout"]
)
async def test_blocking_method_makes_others_wait_or_time_out_and_is_warned_of(
    system: System, caplog: pytest.LogCaptureFixture, timeout_s: float, attempts: list[int]
) -> None:
    system.serve(Blocking, Short)
    override = AsyncStateOptions(
        execute_api_timeout_seconds=timeout_s, execute_api_retry_policy=RetryPolicy(initial_interval_seconds=1)
    )
    options = ProcessStartOptions(starting_state_options_override=override)
    process_ids = [f"short-{number}" for number in range(10)]
    for process_id in process_ids:
        await system.client.start_process(process_id, Short, None, options)

    await system.client.start_process("blocking", Blocking, None, options)
    results = [
        await system.client.wait_for_process_completion(process_id, int) for process_id in ("blocking", *process_ids)
    ]

    assert now_s() >= 20
    assert results == [attempts[-1]] * 11
    assert [attempt for attempt, _ in system.worker.attempts("BlockingState")] == attempts
    assert system.worker.count("ShortState") == 10 * len(attempts)
    [warning] = [each.getMessage() for each in caplog.records if "blocked the event loop" in each.getMessage()]
    assert warning.startswith("execute of state 'BlockingState' of Blocking blocked the event loop for 20.0 s")
