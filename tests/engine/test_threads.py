"""`def` states in real threads, on real time: what virtual time cannot show because it has no threads."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server_stub.app import Server
from server_stub.config import ServerSettings
from server_stub.core.ports import Store
from server_stub.dispatch.transport import WorkerTransport
from tests.support.databases import NUM_SHARDS, Database
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    ObjectProcess,
    Persistence,
    ProcessContext,
    ProcessStatus,
    StateDecision,
    data_attribute,
    process,
)

PATIENCE_S = 30

has_begun = threading.Event()
has_noticed = threading.Event()


class RealTimeSystem(System):
    """Its server has the clock of the machine."""

    async def open_store(self) -> Store:
        """See `System.open_store`."""
        return await self.database.open_store()

    async def open_server(self, store: Store, transport: WorkerTransport) -> Server:
        """See `System.open_server`."""
        return await Server.open(self.settings, store=store, transport=transport)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("asyncio", {})


@pytest.fixture
async def system(database: Database) -> AsyncIterator[System]:
    async with RealTimeSystem(database, ServerSettings(num_shards=NUM_SHARDS)) as system:
        yield system


class BusyState(AsyncState[None]):
    """Holds its thread until it is told to stop, and answers all the same."""

    def execute(self, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        has_begun.set()
        pause = threading.Event()
        while not ctx.is_stopped() and ctx.deadline.total_seconds() > 0:
            pause.wait(0.001)
        if ctx.is_stopped():
            has_noticed.set()
        persistence.set_data_attribute(Busy.total, 1)
        return StateDecision.single_next_state(NeverState)


class NeverState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


@process(table_name="totals", primary_key="id", primary_key_type=str)
class Busy(ObjectProcess):
    total = data_attribute(int)
    starting_state = BusyState
    states = (NeverState,)


async def test_thread_learns_that_its_process_was_stopped_and_its_late_answer_changes_nothing(system: System) -> None:
    system.sql("CREATE TABLE totals (id VARCHAR(255) PRIMARY KEY, total INTEGER)")
    system.serve(Busy)
    has_begun.clear()
    has_noticed.clear()

    await system.client.start_object_process("p", Busy, "row")
    assert await asyncio.to_thread(has_begun.wait, PATIENCE_S)
    await system.client.stop_process("p")
    assert await asyncio.to_thread(has_noticed.wait, PATIENCE_S)
    await system.restart_server()  # which waits for the answer
    info = await system.client.describe_process("p")

    assert info.status is ProcessStatus.TERMINATED
    assert system.worker.count("NeverState") == 0
    assert system.sql("SELECT * FROM totals") == []
