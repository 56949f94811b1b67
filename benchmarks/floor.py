"""The floor under the chain workload: the rows that the server writes, written by a bare driver in batches as large.

Statements, rows and the order of transactions are the server's own. Left out is everything else: HTTP, JSON, decisions,
threads, and the making of the rows.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measurement import Measurement, percentile
from benchmarks.processes import ChainProcess, LinkState, registry
from benchmarks.workloads import CHAIN_STEPS, Workload
from server_stub.app import system_clock
from server_stub.core.changes import Changes
from server_stub.core.model import ProcessExecution, ProcessKey, StateExecution, json_text
from server_stub.engine.ids import Uuid7Source
from server_stub.storage import sqlite_statements as sql
from server_stub.storage.sqlite import SqliteStore
from server_stub.storage.writes import rows_to_write
from xdb_sdk.protocol import (
    DEFAULT_NAMESPACE,
    ExecuteStatus,
    ProcessStatus,
    StateOptionsConfig,
    StateStatus,
    WaitUntilStatus,
)

CLAIM_RANGE = 1
"""A server claims the calls of its shards as it makes them due, so that they are in no index of unclaimed ones."""


@dataclass(frozen=True, slots=True)
class FloorTransaction:
    """What one transaction reads and writes.

    Attributes:
        new_keys: Process ids that are looked up because they are about to be started.
        execution_ids: Executions that are read, with their open states, because they are about to go on.
        changes: What is written.
    """

    new_keys: Sequence[ProcessKey]
    execution_ids: Sequence[str]
    changes: Changes


def measure_sqlite_floor(directory: Path, executions: int, batch_size: int) -> Measurement:
    """Write the rows of that many executions, `batch_size` executions in a transaction, into a fresh database."""
    path = directory / "floor.db"
    asyncio.run(_install_schema(path))
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=512)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        return measure_floor("bare sqlite3", executions, batch_size, lambda transaction: _run(connection, transaction))


def measure_floor(
    engine: str,
    executions: int,
    batch_size: int,
    run: Callable[[FloorTransaction], None],
    *,
    statements: Callable[[], int] | None = None,
    database_cpu_s: Callable[[], float] | None = None,
) -> Measurement:
    """Run the transactions of that many executions one after the other; the rows are made before.

    Args:
        engine: What the floor is called.
        executions: How many executions.
        batch_size: How many of them share a transaction.
        run: Runs a transaction.
        statements: Tells how many statements `run` has sent so far, if they are counted.
        database_cpu_s: Tells the CPU time of the database so far, if it has processes of its own.
    """
    transactions = floor_transactions(executions, batch_size)
    database_before_s = database_cpu_s() if database_cpu_s else 0.0
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    times_ms = [_timed_ms(run, transaction) for transaction in transactions]
    elapsed_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    counts: Mapping[str, int] = {"transactions": len(transactions), "events": executions * (CHAIN_STEPS + 1)}
    return Measurement(
        engine=engine,
        workload=Workload.CHAIN,
        executions=executions,
        steps=executions * CHAIN_STEPS,
        elapsed_s=elapsed_s,
        cpu_s=cpu_s,
        p50_ms=percentile(times_ms, 50),
        p95_ms=percentile(times_ms, 95),
        p99_ms=percentile(times_ms, 99),
        counts={**counts, "statements": statements()} if statements else counts,
        database_cpu_s=database_cpu_s() - database_before_s if database_cpu_s else None,
    )


def floor_transactions(executions: int, batch_size: int) -> list[FloorTransaction]:
    """Make the transactions of that many executions of the chain, `batch_size` executions in each."""
    processes = _processes(executions)
    batches = [processes[begin : begin + batch_size] for begin in range(0, executions, batch_size)]
    return [transaction for batch in batches for transaction in _transactions(batch)]


def _timed_ms(run: Callable[[FloorTransaction], None], transaction: FloorTransaction) -> float:
    began_s = time.perf_counter()
    run(transaction)
    return (time.perf_counter() - began_s) * 1000


async def _install_schema(path: Path) -> None:
    await SqliteStore.open(path).close()


def _processes(count: int) -> list[ProcessExecution]:
    new_id = Uuid7Source(system_clock, os.urandom)
    return [
        ProcessExecution(
            process_execution_id=new_id(),
            namespace=DEFAULT_NAMESPACE,
            process_id=f"bench-floor-{number}",
            process_type=registry.process_of(ChainProcess).process_type,
            worker_url="http://127.0.0.1:8802",
            started_at_ms=system_clock(),
            state_counters={LinkState.__name__: 1},
        )
        for number in range(count)
    ]


def _transactions(processes: list[ProcessExecution]) -> Iterator[FloorTransaction]:
    """Give the start of a batch of executions, then each of their steps."""
    first_states = [_state(process, 1) for process in processes]
    yield FloorTransaction(
        new_keys=[process.key for process in processes],
        execution_ids=[],
        changes=Changes(
            new_processes={process.process_execution_id: process for process in processes},
            new_states={state.key: state for state in first_states},
        ),
    )
    for number in range(1, CHAIN_STEPS + 1):
        is_last = number == CHAIN_STEPS
        changed = {
            process.process_execution_id: _changed_process(process, number, is_last=is_last) for process in processes
        }
        done = [_completed_state(process, number) for process in processes]
        following = [] if is_last else [_state(process, number + 1) for process in processes]
        yield FloorTransaction(
            new_keys=[],
            execution_ids=list(changed),
            changes=Changes(
                changed_processes=changed,
                new_states={state.key: state for state in following},
                changed_states={state.key: state for state in done},
                closed_processes=changed if is_last else {},
            ),
        )


def _changed_process(process: ProcessExecution, number: int, *, is_last: bool) -> ProcessExecution:
    return replace(
        process,
        status=ProcessStatus.COMPLETED if is_last else ProcessStatus.RUNNING,
        closed_at_ms=system_clock() if is_last else None,
        graceful_complete_requested=is_last,
        state_counters={LinkState.__name__: min(number + 1, CHAIN_STEPS)},
        version=number + 1,
    )


def _state(process: ProcessExecution, number: int) -> StateExecution:
    definition = registry.process_of(ChainProcess).state_of(LinkState)
    return StateExecution(
        process_execution_id=process.process_execution_id,
        state_id=definition.state_id,
        number=number,
        created_at_ms=process.started_at_ms,
        input=json_text(CHAIN_STEPS + 1 - number),
        options=StateOptionsConfig(skip_wait_until=True),  # as a worker sends them: without what is the default
        wait_until_status=WaitUntilStatus.SKIPPED,
        execute_status=ExecuteStatus.RUNNING,
        due_at_ms=process.started_at_ms,
        claim_range=CLAIM_RANGE,
    )


def _completed_state(process: ProcessExecution, number: int) -> StateExecution:
    return replace(
        _state(process, number),
        status=StateStatus.COMPLETED,
        execute_status=ExecuteStatus.COMPLETED,
        due_at_ms=None,
        closed_at_ms=system_clock(),
        version=2,
    )


def _run(connection: sqlite3.Connection, transaction: FloorTransaction) -> None:
    execute, many = connection.execute, connection.executemany
    changes = transaction.changes
    execute("BEGIN IMMEDIATE")
    for key in transaction.new_keys:
        execute(sql.FIND_CURRENT, key).fetchone()
    for ids in sql.in_lists(transaction.execution_ids):
        execute(sql.FIND_EXECUTIONS[len(ids)], ids).fetchall()
        execute(sql.FIND_OPEN_STATES[len(ids)], ids).fetchall()
    for statement, rows in rows_to_write(changes, list(changes.changed_processes.values()), sql.WRITES):
        if rows:
            many(statement, rows)
    execute("COMMIT")
