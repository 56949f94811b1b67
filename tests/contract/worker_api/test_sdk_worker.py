"""The dispatcher and the worker of the SDK understand each other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from server_stub.core.model import Call, CallKey, StateKey
from server_stub.core.outcomes import CallFailure, FailureKind, RpcAnswered, StateAnswered, Verdict
from server_stub.dispatch.jobs import RpcInvocation
from tests.support.dispatching import World, dispatching, make_call, make_process
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    ObjectProcess,
    ProcessContext,
    Registry,
    StateDecision,
    StateSchema,
    Worker,
    rpc,
)
from xdb_sdk.protocol import ReadRequest, StateApi, WaitingType, WaitUntilAnswer
from xdb_sdk.worker import WorkerOptions

seen_stopped: list[bool] = []


@pytest.fixture
def anyio_backend() -> object:
    return VIRTUAL_TIME_BACKEND


class Nap(AsyncState[float]):
    """Sleeps as long as its input says."""

    def wait_until(self, input: float) -> CommandRequest:
        return CommandRequest.empty()

    async def execute(self, ctx: ProcessContext, input: float) -> StateDecision:
        await asyncio.sleep(input)
        seen_stopped.append(ctx.is_stopped())
        return StateDecision.graceful_complete_process("rested")


class Sleeper(ObjectProcess):
    """Has one state and one RPC."""

    def get_async_states(self) -> StateSchema:
        return StateSchema.with_starting_state(Nap())

    @rpc
    def echo(self, input: str) -> str:
        if input == "fail":
            raise LookupError("there is no echo")
        return input


def nap(number: int, seconds: float = 0, *, state_id: str = "Nap", api: StateApi = StateApi.EXECUTE) -> Call:
    key = CallKey(StateKey(f"e-{number}", state_id, 1), api, 1)
    return make_call(number, key=key, process_type="Sleeper", input=str(seconds))


@asynccontextmanager
async def sdk_worker(options: WorkerOptions | None = None) -> AsyncIterator[World]:
    registry = Registry()
    registry.add_processes(Sleeper)
    worker = Worker(registry, options or WorkerOptions())
    async with dispatching(app=worker) as world:
        yield world
        await worker.service.stop()


async def invoke(world: World, rpc_name: str, input: str) -> RpcAnswered | CallFailure:
    async def commit(answered: RpcAnswered) -> Verdict:
        return Verdict.APPLIED

    process = make_process(1, process_type="Sleeper")
    return await world.dispatcher.rpc(RpcInvocation(process, rpc_name, input, 10_000, ReadRequest()), commit)


async def test_states_and_rpcs_are_answered_over_one_batch() -> None:
    async with sdk_worker() as world:
        world.dispatcher.dispatch([nap(1), nap(2, api=StateApi.WAIT_UNTIL)])
        answered = await invoke(world, "echo", "hello")
        first, second = await world.sink.wait_for(2)

    assert isinstance(answered, RpcAnswered)
    assert answered.answer.output == "hello"
    answers = [outcome.answer for outcome in (first, second) if isinstance(outcome, StateAnswered)]
    [waiting] = [answer for answer in answers if isinstance(answer, WaitUntilAnswer)]
    assert len(answers) == 2
    assert waiting.command_request.waiting_type is WaitingType.EMPTY
    assert world.dispatcher.counters.batches == 1


async def test_error_of_a_handler_arrives_with_its_type_and_text() -> None:
    async with sdk_worker() as world:
        failure = await invoke(world, "echo", "fail")

    assert isinstance(failure, CallFailure)
    assert (failure.kind, failure.error_type, failure.http_status) == (FailureKind.WORKER_ERROR, "LookupError", 424)
    assert "there is no echo" in failure.details


async def test_what_the_worker_does_not_know_is_named() -> None:
    async with sdk_worker() as world:
        unknown_rpc = await invoke(world, "ecko", "hello")
        world.dispatcher.dispatch([nap(1, state_id="Knap")])
        [unknown_state] = await world.sink.wait_for(1)

    assert isinstance(unknown_rpc, CallFailure)
    assert isinstance(unknown_state, CallFailure)
    assert (unknown_rpc.error_type, unknown_rpc.http_status) == ("RpcNotFound", 404)
    assert unknown_state.http_status == 404
    assert "Knap" in unknown_state.details


async def test_slow_state_delays_no_other() -> None:
    async with sdk_worker() as world:
        world.dispatcher.dispatch([nap(1, 20), nap(2), nap(3, 5)])
        await world.sink.wait_for(3)

    assert world.sink.states_at() == {"e-2": 0, "e-3": 5, "e-1": 20}


async def test_running_call_learns_that_its_execution_has_closed() -> None:
    seen_stopped.clear()

    async with sdk_worker() as world:
        world.dispatcher.dispatch([nap(1, 20), nap(2, 20)])
        await asyncio.sleep(1)
        world.dispatcher.process_closed(["e-1"])
        await world.sink.wait_for(2)

    assert sorted(seen_stopped) == [False, True]


async def test_worker_that_takes_two_calls_at_a_time_gets_through_all() -> None:
    async with sdk_worker(WorkerOptions(max_concurrent_calls=2)) as world:
        world.dispatcher.dispatch(nap(number, 1) for number in range(10))
        outcomes = await world.sink.wait_for(10)

    assert all(isinstance(outcome, StateAnswered) for outcome in outcomes)
    assert 5 <= world.sink.at_s[-1] < 7
