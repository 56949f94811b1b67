"""Where the time of the chain goes: statements, transactions, bytes and CPU of a step, beside the floor."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.databases import Databases
from benchmarks.measurement import Measurement
from benchmarks.postgres_floor import install_schema, measure_postgres_floor
from benchmarks.report import aligned, number
from benchmarks.scale.cluster import ChainLoad, Cluster, Party, running_cluster
from benchmarks.scale.postgres_counters import PostgresCounters, PostgresCounts, StatementCost, watched
from benchmarks.scale.sampling import FunctionShare, sampled
from benchmarks.xdb_engine import Service

FEWEST_EXECUTIONS = 300
EXECUTIONS_PER_PLACE = 20
HEAVIEST_STATEMENTS = 12
STATEMENT_CHARACTERS = 60

_WRITTEN = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM) xdb_sys_(\w+)")
_READ = re.compile(r"\b(?:FROM|JOIN) xdb_sys_(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The chain at some concurrency.

    Attributes:
        concurrency: Executions at a time.
        load: What the clients, and the servers' own counters, have shown.
        postgres: What PostgreSQL has counted.
        server_bytes: What the servers have read and written, to clients, workers, database and log; None where the
            system does not count it.
        floor: The rows of as many executions in transactions as large, by a bare driver.
        floor_wal_bytes: What these have added to the write-ahead log.
        statements: The statements that cost PostgreSQL most, the costliest first.
    """

    concurrency: int
    load: ChainLoad
    postgres: PostgresCounts
    server_bytes: int | None
    floor: Measurement
    floor_wal_bytes: int
    statements: Sequence[StatementCost]


async def measure_profiles(
    databases: Databases, directory: Path, *, concurrencies: Sequence[int], executions: int, servers: int
) -> Sequence[Profile]:
    """Run the chain at each concurrency, all on one database.

    Args:
        databases: Gives the databases.
        directory: Where logs go.
        concurrencies: Executions at a time, all servers together.
        executions: The most executions at each; fewer where concurrency is low, since they take their time.
        servers: How many servers share the load.
    """
    assert databases.server_url is not None
    profiles = []
    with databases.new() as url:
        async with (
            running_cluster(url, directory, databases.cpu_s, number=servers) as cluster,
            watched(databases.server_url, url) as counters,
        ):
            for concurrency in concurrencies:
                count = min(max(FEWEST_EXECUTIONS, EXECUTIONS_PER_PLACE * concurrency), executions)
                profiles.append(await _profile(databases, cluster, counters, count, concurrency))
    return profiles


async def sample_server(
    databases: Databases, directory: Path, *, concurrency: int, executions: int
) -> Sequence[FunctionShare]:
    """Say in which functions a server spends its CPU time while it runs the chain; nothing without py-spy."""
    with databases.new() as url:
        async with running_cluster(url, directory, databases.cpu_s) as cluster:
            [server] = cluster.servers
            async with sampled(server.command.process.pid, directory / "samples") as samples:
                await cluster.run_chains(executions, concurrency)
            return samples()


def profile_table(profiles: Sequence[Profile]) -> str:
    """Write one column for each concurrency, and one for its floor."""
    header = ["of a step, at a concurrency of"]
    for profile in profiles:
        header += [str(profile.concurrency), "floor"]
    lines = [
        [each.what, *(number(value) for profile in profiles for value in (each.ours(profile), each.floor(profile)))]
        for each in _NUMBERS
    ]
    return aligned([header, *lines], words=1)


def statements_table(profile: Profile) -> str:
    """Write one line for each of the costliest statements."""
    steps = profile.load.steps
    header = ("statement", "calls", "rows/call", "ms/call", "ms/1000 steps")
    lines = [
        (
            statement_label(each.text),
            str(each.calls),
            number(each.rows / each.calls),
            number(each.total_ms / each.calls),
            number(each.total_ms / steps * 1000),
        )
        for each in profile.statements
    ]
    return aligned([header, *lines], words=1)


def statement_label(text: str) -> str:
    """Say what a statement does: which tables it writes, else which it reads; else how it begins."""
    written = dict.fromkeys(f"{verb.split()[0]} {table}" for verb, table in _WRITTEN.findall(text))
    if written:
        return ", ".join(written)
    read = dict.fromkeys(_READ.findall(text))
    return f"SELECT {', '.join(read)}" if read else text[:STATEMENT_CHARACTERS]


def functions_table(functions: Sequence[FunctionShare]) -> str:
    """Write one line for each function."""
    header = ("function", "own %", "with callees %")
    lines = [(each.name, number(each.own * 100), number(each.with_callees * 100)) for each in functions]
    return aligned([header, *lines], words=1)


@dataclass(frozen=True, slots=True)
class _Number:
    """A line of the table: what it is, of the chain, and of its floor."""

    what: str
    ours: Callable[[Profile], float | None]
    floor: Callable[[Profile], float | None]


def _uncounted(_: Profile) -> float | None:
    return None


_NUMBERS = (
    _Number("executions/s", lambda p: p.load.executions_per_s, lambda p: p.floor.executions_per_s),
    _Number("p50 ms of an execution", lambda p: p.load.p50_ms, _uncounted),
    _Number("events/transaction", lambda p: _ratio(p.load.counts["events"], p.load.counts["transactions"]), _uncounted),
    _Number(
        "transactions that write",
        lambda p: p.load.counts["transactions"] / p.load.steps,
        lambda p: p.floor.per_step("transactions"),
    ),
    _Number(
        "statements of servers",
        lambda p: p.load.counts["statements"] / p.load.steps,
        lambda p: p.floor.per_step("statements"),
    ),
    _Number("statements in PostgreSQL", lambda p: _ratio(p.postgres.statements, p.load.steps), _uncounted),
    _Number(
        "round trips to PostgreSQL",  # the driver of the server waits for each statement, a pipeline for all
        lambda p: p.load.counts["statements"] / p.load.steps,
        lambda p: p.floor.per_step("transactions"),
    ),
    _Number("requests to workers", lambda p: p.load.counts["batches"] / p.load.steps, _uncounted),
    _Number(
        "bytes of write-ahead log",
        lambda p: p.postgres.wal_bytes / p.load.steps,
        lambda p: p.floor_wal_bytes / p.load.steps,
    ),
    _Number("bytes in and out of servers", lambda p: _ratio(p.server_bytes, p.load.steps), _uncounted),
    _Number("CPU ms", lambda p: p.load.cpu_ms_per_step(), lambda p: p.floor.all_cpu_s_per_1000_steps),
    _Number("  clients", lambda p: p.load.cpu_ms_per_step(Party.CLIENTS), lambda p: p.floor.cpu_s_per_1000_steps),
    _Number("  servers", lambda p: p.load.cpu_ms_per_step(Party.SERVERS), _uncounted),
    _Number("  workers", lambda p: p.load.cpu_ms_per_step(Party.WORKERS), _uncounted),
    _Number(
        "  PostgreSQL",
        lambda p: p.load.cpu_ms_per_step(Party.DATABASE),
        lambda p: p.floor.database_cpu_s_per_1000_steps,
    ),
)


async def _profile(
    databases: Databases, cluster: Cluster, counters: PostgresCounters, executions: int, concurrency: int
) -> Profile:
    await counters.forget_statements()
    before, bytes_before = await counters.read(), _bytes(cluster.servers)
    load = await cluster.run_chains(executions, concurrency)
    after, bytes_after = await counters.read(), _bytes(cluster.servers)
    statements = await counters.heaviest(HEAVIEST_STATEMENTS)
    batch_size = round(load.counts["events"] / load.counts["transactions"])
    with databases.new() as url:
        await install_schema(url)
        wal_before_bytes = (await counters.read()).wal_bytes
        floor = await asyncio.to_thread(measure_postgres_floor, url, load.executions, batch_size, databases.cpu_s)
        floor_wal_bytes = (await counters.read()).wal_bytes - wal_before_bytes
    return Profile(
        concurrency=concurrency,
        load=load,
        postgres=after.since(before),
        server_bytes=None if bytes_after is None or bytes_before is None else bytes_after - bytes_before,
        floor=floor,
        floor_wal_bytes=floor_wal_bytes,
        statements=statements,
    )


def _bytes(servers: Sequence[Service]) -> int | None:
    if not psutil.LINUX:
        return None
    counters = [server.command.process.io_counters() for server in servers]
    return sum(each.read_chars + each.write_chars for each in counters)


def _ratio(value: int | None, of: int) -> float | None:
    return None if value is None else value / of
