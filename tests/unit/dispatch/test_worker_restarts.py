"""A worker that is being restarted costs its calls some time, and no attempt."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from server_stub.core.outcomes import CallFailure, FailureKind, RpcAnswered, StateAnswered, Verdict
from server_stub.core.ports import Store
from server_stub.dispatch.dispatcher import Dispatcher
from server_stub.dispatch.jobs import RpcInvocation
from server_stub.dispatch.options import DispatchOptions
from server_stub.dispatch.transport import WorkerConnectionError, WorkerResponse
from tests.support.asgi import AsgiTransport
from tests.support.dispatching import (
    WORKER_URL,
    RecordingSink,
    RowsStore,
    ScriptedWorker,
    answer_done,
    make_call,
    make_process,
)
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND, VirtualClock
from xdb_sdk.protocol import ReadRequest

PATIENCE_S = DispatchOptions().restart_patience.total_seconds()


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND


@dataclass
class RestartingWorker:
    """A worker that refuses connections between two instants of the loop's clock, and can cut off what it has."""

    inner: AsgiTransport
    away_from_s: float = float("inf")
    back_at_s: float = float("inf")
    cut_offs: int = 0
    """How many of the next requests break after they have arrived."""
    requests: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[WorkerResponse]:
        now_s = asyncio.get_running_loop().time()
        if self.away_from_s <= now_s < self.back_at_s:
            raise WorkerConnectionError("refused", was_sent=False)
        self.requests.append(now_s)
        if self.cut_offs:
            self.cut_offs -= 1
            raise WorkerConnectionError("reset", was_sent=True)
        async with self.inner.post(url, body, headers, timeout_s) as response:
            yield response


@dataclass
class World:
    worker: RestartingWorker
    dispatcher: Dispatcher
    sink: RecordingSink


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Give a dispatcher whose worker has answered a call just now."""
    sink = RecordingSink()
    async with AsgiTransport({WORKER_URL: ScriptedWorker(answer_done)}) as transport:
        worker = RestartingWorker(transport)
        dispatcher = Dispatcher(worker, cast(Store, RowsStore()), sink, DispatchOptions(), VirtualClock())
        dispatcher.dispatch([make_call(1)])
        await sink.wait_for(1)
        yield World(worker, dispatcher, sink)
        await dispatcher.close(0)


async def test_call_waits_for_a_worker_that_restarts_and_uses_no_attempt(world: World) -> None:
    world.worker.away_from_s, world.worker.back_at_s = 0, 0.75

    world.dispatcher.dispatch([make_call(2)])
    outcomes = await world.sink.wait_for(2)

    assert isinstance(outcomes[1], StateAnswered)
    assert 0.75 <= asyncio.get_running_loop().time() < 0.9


async def test_call_fails_when_patience_is_over(world: World) -> None:
    world.worker.away_from_s = 0

    world.dispatcher.dispatch([make_call(2)])
    outcomes = await world.sink.wait_for(2)

    assert isinstance(outcomes[1], CallFailure)
    assert outcomes[1].kind is FailureKind.UNREACHABLE
    assert PATIENCE_S <= asyncio.get_running_loop().time() < PATIENCE_S + 0.2


async def test_worker_that_stays_away_is_waited_for_once(world: World) -> None:
    world.worker.away_from_s = 0
    world.dispatcher.dispatch([make_call(2)])
    await world.sink.wait_for(2)
    failed_at_s = asyncio.get_running_loop().time()

    world.dispatcher.dispatch([make_call(3)])
    outcomes = await world.sink.wait_for(3)

    assert isinstance(outcomes[2], CallFailure)
    assert asyncio.get_running_loop().time() - failed_at_s < 0.2


async def test_worker_that_never_answered_is_not_waited_for() -> None:
    sink = RecordingSink()
    async with AsgiTransport({}) as nobody:
        dispatcher = Dispatcher(nobody, cast(Store, RowsStore()), sink, DispatchOptions(), VirtualClock())

        dispatcher.dispatch([make_call(1)])
        [outcome] = await sink.wait_for(1)
        await dispatcher.close(0)

    assert isinstance(outcome, CallFailure)
    assert asyncio.get_running_loop().time() < 0.1


async def test_worker_that_was_quiet_for_long_is_not_waited_for(world: World) -> None:
    await asyncio.sleep(120)
    world.worker.away_from_s = 0

    world.dispatcher.dispatch([make_call(2)])
    outcomes = await world.sink.wait_for(2)

    assert isinstance(outcomes[1], CallFailure)
    assert asyncio.get_running_loop().time() < 120.1


async def test_call_that_was_at_the_worker_when_it_went_is_sent_again_once(world: World) -> None:
    world.worker.cut_offs = 1

    world.dispatcher.dispatch([make_call(2)])
    outcomes = await world.sink.wait_for(2)

    assert isinstance(outcomes[1], StateAnswered)
    assert len(world.worker.requests) == 3


async def test_call_that_brings_the_worker_down_again_has_failed(world: World) -> None:
    world.worker.cut_offs = 2

    world.dispatcher.dispatch([make_call(2)])
    outcomes = await world.sink.wait_for(2)

    assert isinstance(outcomes[1], CallFailure)
    assert outcomes[1].kind is FailureKind.UNREACHABLE
    assert len(world.worker.requests) == 3


async def commit(answered: RpcAnswered) -> Verdict:
    return Verdict.APPLIED


def an_rpc() -> RpcInvocation:
    return RpcInvocation(make_process(), "verify", None, timeout_ms=5_000, read=ReadRequest())


async def test_rpc_waits_for_a_worker_that_restarts(world: World) -> None:
    world.worker.away_from_s, world.worker.back_at_s = 0, 0.75

    outcome = await world.dispatcher.rpc(an_rpc(), commit)

    assert isinstance(outcome, RpcAnswered)


async def test_rpc_that_was_at_the_worker_when_it_went_is_not_repeated(world: World) -> None:
    world.worker.cut_offs = 1

    outcome = await world.dispatcher.rpc(an_rpc(), commit)

    assert isinstance(outcome, CallFailure)
    assert len(world.worker.requests) == 2
