"""What is sent to several servers, or by several threads, at the same time is carried out once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.services.shared import DatabaseKind
from tests.support.servers import Servers
from tests.support.serving import serving
from tests.support.system import WORKER_URL
from xdb_sdk import (
    AsyncState,
    Client,
    ClientOptions,
    CommandRequest,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessStatus,
    StateDecision,
    data_attribute,
    internal_queue,
    rpc,
)

THREADS = 8
TIMES = 4

charged: Counter[str] = Counter()


class WaitState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(AccountProcess.closed))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class AccountProcess(ObjectProcess):
    """Is charged until it is closed."""

    closed = internal_queue(None)
    notes = internal_queue(int)
    total = data_attribute(int)
    starting_state = WaitState

    @rpc
    async def charge(self, persistence: Persistence, amount: int) -> int:
        return await self._charge("charge", persistence, amount)

    @rpc(exclusive=True)
    async def charge_alone(self, persistence: Persistence, amount: int) -> int:
        return await self._charge("charge_alone", persistence, amount)

    async def _charge(self, name: str, persistence: Persistence, amount: int) -> int:
        charged[name] += 1
        await asyncio.sleep(0.2)
        total = (persistence.get_data_attribute(AccountProcess.total) or 0) + amount
        persistence.set_data_attribute(AccountProcess.total, total)
        return total


@pytest.fixture
async def accounts(
    request: pytest.FixtureRequest, new_database: Callable[[DatabaseKind], str], tmp_path: Path
) -> AsyncIterator[Servers]:
    """Give an empty database for servers to be started on; SQLite, of which one has it, only if asked for."""
    kind: DatabaseKind | str = request.param
    url = f"sqlite:///{tmp_path}/xdb.db" if kind == "sqlite" else new_database(request.param)
    charged.clear()
    async with Servers(url, AccountProcess) as servers:
        yield servers


shared = pytest.mark.parametrize("accounts", ["postgresql", "mariadb"], indirect=True)


@pytest.mark.parametrize("accounts", ["sqlite", "postgresql", "mariadb"], indirect=True)
async def test_start_of_eight_threads_at_once_is_one_execution_and_eight_equal_answers(accounts: Servers) -> None:
    is_shared = not accounts.url.startswith("sqlite")
    nodes = [await accounts.start() for _ in range(2 if is_shared else 1)]

    def start(url: str, process_id: str) -> str:
        with Client(accounts.registry, ClientOptions(server_url=url, worker_url=WORKER_URL)) as client:
            return client.start_process(process_id, AccountProcess, request_id="X")

    async with serving(nodes[0].server.api) as first, serving(nodes[-1].server.api) as last:
        told = [
            await asyncio.gather(
                *(asyncio.to_thread(start, (first, last)[number % 2], f"p-{time}") for number in range(THREADS))
            )
            for time in range(TIMES)
        ]

    found = [process async for process in nodes[0].client.list_processes()]
    assert [len(set(ids)) for ids in told] == [1] * TIMES
    assert {ids[0] for ids in told} == {process.process_execution_id for process in found}
    assert len(found) == TIMES


@shared
async def test_requests_of_two_servers_that_commit_many_together_are_carried_out_once(accounts: Servers) -> None:
    first, second = await accounts.start(), await accounts.start()
    process_ids = [f"p-{number}" for number in range(40)]

    async def live(process_id: str, number: int) -> tuple[str, int, bool]:
        client = (first, second)[number % 2].client
        execution_id = await client.start_process(process_id, AccountProcess, request_id="X")
        for note in range(3):
            await client.publish_to_internal_queue(
                process_id, AccountProcess, AccountProcess.notes, note, request_id=f"note-{note}"
            )
        sizes = (await client.describe_process(process_id, include={"queues"})).queue_sizes or {}
        stopped = await client.stop_process(process_id, request_id="X")
        return execution_id, sizes.get("notes", 0), stopped.changed

    lives = await asyncio.gather(*(live(process_id, number) for number in range(THREADS) for process_id in process_ids))
    found = [process async for process in first.client.list_processes()]

    told = {execution_id for execution_id, _, _ in lives}
    assert told == {process.process_execution_id for process in found}
    assert len(told) == len(found) == len(process_ids)
    assert all(changed for _, _, changed in lives)
    assert max(notes for _, notes, _ in lives) <= 3
    assert {process.status for process in found} == {ProcessStatus.TERMINATED}


@shared
async def test_rpc_of_two_servers_at_once_is_applied_once_and_answered_alike(accounts: Servers) -> None:
    first, second = await accounts.start(), await accounts.start()
    await first.client.start_process("p", AccountProcess)

    totals = await asyncio.gather(
        *(node.client.invoke_rpc("p", AccountProcess.charge, 5, request_id="X") for node in (first, second))
    )

    assert totals == [5, 5]
    assert charged["charge"] <= 2
    assert await second.client.get_data_attributes("p", AccountProcess) == {"total": 5}


@shared
async def test_exclusive_rpc_of_two_servers_at_once_is_called_once_and_answered_alike(accounts: Servers) -> None:
    first, second = await accounts.start(), await accounts.start()
    await first.client.start_process("p", AccountProcess)

    totals = await asyncio.gather(
        *(node.client.invoke_rpc("p", AccountProcess.charge_alone, 5, request_id="X") for node in (first, second) * 2)
    )

    assert totals == [5] * 4
    assert charged["charge_alone"] == 1
