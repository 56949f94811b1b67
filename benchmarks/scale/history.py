"""Whether throughput depends on what the tables hold: much history, or many executions that wait for timers."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.databases import Databases
from benchmarks.processes import ChainProcess, SleepProcess, registry
from benchmarks.report import aligned, number
from benchmarks.scale.cluster import ChainLoad, Party, running_cluster
from benchmarks.scale.copies import copy_execution, size_bytes
from benchmarks.workloads import CHAIN_STEPS
from benchmarks.xdb_engine import POLL_INTERVAL_S, is_waiting, running_server, running_worker
from xdb_sdk import AsyncClient, ClientOptions

NOTHING = "nothing"
ORIGINAL_ID = "original"
WAITING_WITHIN_S = 60.0
SLEEP_S = 30 * 24 * 3600.0
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FilledDatabase:
    """A database, and how large it was when it had been filled."""

    url: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """The loads of all rounds on one database."""

    size_bytes: int
    loads: Sequence[ChainLoad]

    @property
    def executions_per_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(load.executions_per_s for load in self.loads)

    @property
    def p50_ms(self) -> float:
        """The same of the median times."""
        return statistics.median(load.p50_ms for load in self.loads)

    def cpu_ms_per_step(self, party: Party | None = None) -> float | None:
        """Give the median CPU time of a step: of one party, which may not be known, or of all together."""
        known = [cost for load in self.loads if (cost := load.cpu_ms_per_step(party)) is not None]
        return statistics.median(known) if known else None


async def measure_history(
    databases: Databases, directory: Path, *, closed: int, waiting: int, executions: int, concurrency: int, rounds: int
) -> Mapping[str, HistoryResult]:
    """Run the chain on an empty database, on one with history, and on one where many executions sleep, in turns.

    Args:
        databases: Gives the databases.
        directory: Where logs go.
        closed: How many executions the history has.
        waiting: How many executions sleep.
        executions: Executions that are run on each database in each round.
        concurrency: How many of them at a time.
        rounds: How often each database has its turn.

    Returns:
        The results, by what the database holds; `NOTHING` is the empty one.
    """
    with ExitStack() as opened:
        urls = [opened.enter_context(databases.new()) for _ in range(3)]
        contents = {
            NOTHING: await _filled(urls[0], directory, _run_chain, 0),
            f"{closed} closed": await _filled(urls[1], directory, _run_chain, closed),
            f"{waiting} waiting": await _filled(urls[2], directory, _begin_sleep, waiting),
        }
        loads: dict[str, list[ChainLoad]] = {name: [] for name in contents}
        for _ in range(rounds):
            for name, database in contents.items():
                async with running_cluster(database.url, directory, databases.cpu_s) as cluster:
                    loads[name].append(await cluster.run_chains(executions, concurrency))
        return {name: HistoryResult(database.size_bytes, loads[name]) for name, database in contents.items()}


async def _filled(
    url: str, directory: Path, original: Callable[[AsyncClient], Awaitable[None]], copies: int
) -> FilledDatabase:
    """Let a server write one execution, and copy it."""
    async with (
        running_server(url, directory / "fill-server.log") as server,
        running_worker(directory / "fill-worker.log") as worker,
        AsyncClient(registry, ClientOptions(server_url=server.url, worker_url=worker.url)) as client,
    ):
        await original(client)
    await copy_execution(url, ORIGINAL_ID, copies)
    return FilledDatabase(url, await size_bytes(url))


async def _run_chain(client: AsyncClient) -> None:
    await client.start_process(ORIGINAL_ID, ChainProcess, CHAIN_STEPS)
    await client.wait_for_process_completion(ORIGINAL_ID)


async def _begin_sleep(client: AsyncClient) -> None:
    await client.start_process(ORIGINAL_ID, SleepProcess, time.time() + SLEEP_S)
    async with asyncio.timeout(WAITING_WITHIN_S):
        while not await is_waiting(client, ORIGINAL_ID):  # noqa: ASYNC110  # the API does not tell when a wait begins
            await asyncio.sleep(POLL_INTERVAL_S)


def history_table(results: Mapping[str, HistoryResult]) -> str:
    """Write one line for each database; the ratio is that of executions per second to the empty one."""
    empty = results[NOTHING]
    header = ("database holds", "MiB", "executions/s", "to nothing", "p50 ms", "CPU ms/step", "database")
    lines = [
        (
            name,
            number(result.size_bytes / MIB),
            number(result.executions_per_s),
            f"{result.executions_per_s / empty.executions_per_s:.2f}x",
            number(result.p50_ms),
            number(result.cpu_ms_per_step()),
            number(result.cpu_ms_per_step(Party.DATABASE)),
        )
        for name, result in results.items()
    ]
    return aligned([header, *lines], words=1)
