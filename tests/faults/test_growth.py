"""What a server costs that has done much, or finds much."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.processes import ChainProcess, SignalProcess, SleepProcess, registry
from tests.faults.installation import Installation
from xdb_sdk import AsyncClient

EXECUTIONS = 20_000
SAMPLES = 8
AT_ONCE = 250
GROWTH_LIMIT_BYTES = 48 * 1024 * 1024

CLOSED = 50_000
WAITING = 2_500
OVERDUE = 2_500
QUICK_S = 10.0
DEADLINE_S = 60.0

COUNT_RUNNING = "SELECT count(*) FROM xdb_sys_process_execution WHERE status = 'RUNNING'"
COUNT_WAITING = (
    "SELECT count(*) FROM xdb_sys_async_state_execution WHERE wait_until_status = 'WAITING_COMMANDS_COMPLETED'"
)

_IDS = ("process_execution_id", "process_id")


@pytest.mark.timeout(300)
async def test_memory_of_a_server_does_not_grow_with_what_it_has_done(tmp_path: Path) -> None:
    with Installation(tmp_path, worker_app="benchmarks.worker:app") as installation:
        server = psutil.Process(installation.server.pid)
        async with AsyncClient(registry, installation.client_options) as client:
            sizes_bytes = []
            for sample in range(SAMPLES):
                await complete(client, f"sample-{sample}", EXECUTIONS // SAMPLES)
                sizes_bytes.append(server.memory_info().rss)

    assert sizes_bytes[-1] - sizes_bytes[1] < GROWTH_LIMIT_BYTES


async def complete(client: AsyncClient, name: str, count: int) -> None:
    """Run executions of one step, many at a time."""
    for first in range(0, count, AT_ONCE):
        process_ids = [f"{name}-{number}" for number in range(first, min(first + AT_ONCE, count))]
        await asyncio.gather(*(client.start_process(process_id, ChainProcess, 1) for process_id in process_ids))
        await asyncio.gather(*(client.wait_for_process_completion(process_id) for process_id in process_ids))


async def test_server_starts_quickly_on_a_long_history_and_does_what_is_overdue(tmp_path: Path) -> None:
    with Installation(tmp_path, worker_app="benchmarks.worker:app") as installation:
        async with AsyncClient(registry, installation.client_options) as client:
            await client.start_process("sleeper", SleepProcess, time.time() + 3_600)
            await client.start_process("receiver", SignalProcess)
            await complete(client, "closed", 1)
            await until(lambda: installation.sql(COUNT_WAITING) == [(2,)])
        await asyncio.to_thread(installation.server.stop)
        for process_id, copies in (("closed-0", CLOSED), ("sleeper", OVERDUE), ("receiver", WAITING)):
            multiply(installation, process_id, copies)
        make_copies_overdue(installation)

        began_s = time.monotonic()
        installation.start_server()
        await asyncio.to_thread(lambda: installation.server.url)
        ready_after_s = time.monotonic() - began_s
        async with AsyncClient(registry, installation.client_options) as client:
            await complete(client, "new", 1)
            done_after_s = time.monotonic() - began_s
            await client.publish_to_internal_queue(f"receiver-copy-{WAITING}", SignalProcess, SignalProcess.go, None)
            await client.wait_for_process_completion(f"receiver-copy-{WAITING}")
            await until(lambda: count_running(installation) == WAITING + 1)

    assert ready_after_s < QUICK_S
    assert done_after_s < 2 * QUICK_S


def multiply(installation: Installation, process_id: str, copies: int) -> None:
    """Copy an execution with all that belongs to it, as often as asked; the copies have ids of their own."""
    [(execution_id,)] = installation.sql(
        "SELECT process_execution_id FROM xdb_sys_process_execution WHERE process_id = ?", process_id
    )
    for table in ("xdb_sys_process_execution", "xdb_sys_async_state_execution", "xdb_sys_timer_tasks"):
        columns = [name for _, name, *_ in installation.sql(f"PRAGMA table_info({table})") if name != "row_id"]
        values = [f"{name} || '-copy-' || copy" if name in _IDS else name for name in columns]
        installation.sql(
            "WITH RECURSIVE copies(copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < ?) "
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {table}, copies "
            "WHERE process_execution_id = ?",
            copies,
            execution_id,
        )


def make_copies_overdue(installation: Installation) -> None:
    """Let the timers of the copies have been due for a long time, in their own rows and in those of their states."""
    [(fire_at_ms,)] = installation.sql("SELECT DISTINCT fire_at_ms FROM xdb_sys_timer_tasks")
    are_copies = "WHERE process_execution_id LIKE '%-copy-%'"
    installation.sql(f"UPDATE xdb_sys_timer_tasks SET fire_at_ms = 0 {are_copies}")
    installation.sql(
        f"UPDATE xdb_sys_async_state_execution SET wait_state = replace(wait_state, ?, '0') {are_copies}", fire_at_ms
    )


def count_running(installation: Installation) -> int:
    """Count the executions that have not closed."""
    [(count,)] = installation.sql(COUNT_RUNNING)
    return int(count)


async def until(is_so: Callable[[], bool]) -> None:
    """Poll until something is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110  # the database does not tell
            await asyncio.sleep(0.05)
