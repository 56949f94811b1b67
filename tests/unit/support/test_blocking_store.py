"""A store on a loop of its own is to a loop on virtual time what it is to the server, and takes no time there."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from server_stub.core.ports import Store
from tests.support.blocking_store import BlockingStore, LoopThread
from tests.support.virtual_time import EPOCH_MS, VIRTUAL_TIME_BACKEND, VirtualClock


@pytest.fixture
def anyio_backend() -> object:
    return VIRTUAL_TIME_BACKEND


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


class SlowStore:
    """Counts nothing, after a moment of real time, and reads the clock meanwhile."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.read_ms: list[int] = []

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        await asyncio.sleep(0.01)
        self.read_ms.append(self._clock())
        return {}

    async def beat(self) -> None:
        """What only servers ask that share a database."""


async def test_virtual_loop_stands_still_while_the_store_works(thread: LoopThread) -> None:
    clock = VirtualClock()
    slow = SlowStore(clock)
    store = cast(Store, BlockingStore(cast(Store, slow), thread))
    order: list[str] = []
    await asyncio.sleep(5)
    asyncio.get_running_loop().call_soon(order.append, "another task")

    await store.count_messages("e-1")
    order.append("answer")
    await asyncio.sleep(0)

    assert order == ["answer", "another task"]
    assert slow.read_ms == [EPOCH_MS + 5_000]
    assert clock() == EPOCH_MS + 5_000


async def test_error_of_the_store_reaches_its_caller(thread: LoopThread) -> None:
    class FailingStore(SlowStore):
        async def count_messages(self, process_execution_id: str) -> dict[str, int]:
            raise ConnectionError("gone")

    store = cast(Store, BlockingStore(cast(Store, FailingStore(VirtualClock())), thread))

    with pytest.raises(ConnectionError, match="gone"):
        await store.count_messages("e-1")


async def test_store_is_none_that_servers_share(thread: LoopThread) -> None:
    store = BlockingStore(cast(Store, SlowStore(VirtualClock())), thread)

    assert not hasattr(store, "beat")
