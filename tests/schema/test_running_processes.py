"""What was running when version 1 was upgraded goes on to its end, on each database."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from server_stub.app import Server
from server_stub.config import ServerSettings
from tests.schema.databases import SchemaDatabase
from tests.schema.order import OrderProcess
from tests.schema.version_1 import install_version_1
from tests.support.asgi import AsgiTransport
from tests.support.system import SERVER_URL, WORKER_URL, InMemoryClientTransport, RecordingTransport
from xdb_sdk import AsyncClient, ClientOptions, ProcessStatus, Registry, Worker

TWO_HOURS_MS = 2 * 60 * 60 * 1_000
"""How long the servers are away for the upgrade: what they wait for is due meanwhile, but not their timeouts."""
DEADLINE = timedelta(seconds=60)


@pytest.fixture
async def upgraded(database: SchemaDatabase) -> SchemaDatabase:
    """Give a database that version 1 has written two hours ago, after its upgrade."""
    await install_version_1(database, written_at_ms=time.time_ns() // 1_000_000 - TWO_HOURS_MS)
    await database.upgrade()
    return database


@asynccontextmanager
async def serve(database: SchemaDatabase) -> AsyncIterator[tuple[AsyncClient, RecordingTransport]]:
    """Run a server and a worker on a database, and give a client and the calls that the worker gets."""
    registry = Registry()
    registry.add_process(OrderProcess)
    settings = ServerSettings(database_url=database.url, install_schema=False)
    async with AsgiTransport({WORKER_URL: Worker(registry)}) as workers:
        calls = RecordingTransport(workers)
        async with (
            await Server.open(settings, transport=calls) as server,
            AsgiTransport({SERVER_URL: server.api}) as servers,
            AsyncClient(
                registry,
                ClientOptions(server_url=SERVER_URL, worker_url=WORKER_URL),
                transport=InMemoryClientTransport(servers),
            ) as client,
        ):
            yield client, calls


async def test_running_process_takes_its_message_its_retry_and_its_timer_and_ends(upgraded: SchemaDatabase) -> None:
    async with serve(upgraded) as (client, calls):
        before = await client.describe_process("order")
        was_new = [
            await client.publish_to_internal_queue("order", OrderProcess, queue, value, dedup_id=dedup_id)
            for queue, value, dedup_id in (("paid", "sent twice", "m-1"), ("confirmed", True, "m-3"))
        ]
        results = await client.get_process_results("order", timeout=DEADLINE)

    assert before.status is ProcessStatus.RUNNING
    assert was_new == [False, True]
    assert {each.state_id: each.output for each in results} == {
        "SettleState": ["in two parts", "by post", {"euro": 12, "by": "O'Hara"}, True, {"euro": 8, "by": '😀 \\ "x"'}],
        "ShipState": "shipped 3",
        "RemindState": "Straße 12",
    }
    assert [attempt for attempt, _ in calls.attempts("ShipState")] == [2]


async def test_closed_process_can_still_be_read_and_started_anew(upgraded: SchemaDatabase) -> None:
    async with serve(upgraded) as (client, _):
        closed = await client.describe_process("closed")
        await client.start_process("closed", OrderProcess, "13")
        again = await client.describe_process("closed")

    assert (closed.status, again.status) == (ProcessStatus.TERMINATED, ProcessStatus.RUNNING)
    assert closed.process_execution_id != again.process_execution_id
