"""The floor under the chain workload: the rows that the server writes, written by bare sqlite3 in batches as large.

Statements, rows and the order of transactions are the server's own. Left out is everything else: HTTP, JSON, decisions,
threads, and the making of the rows.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement, percentile
from benchmarks.processes import ChainProcess, LinkState, registry
from benchmarks.workloads import CHAIN_STEPS, Workload
from server_stub.app import system_clock
from server_stub.core.model import ProcessExecution, StateExecution, json_text
from server_stub.engine.ids import Uuid7Source
from server_stub.storage import sqlite_statements as sql
from server_stub.storage.codec import process_changing, process_fixed, state_changing, state_fixed
from server_stub.storage.sqlite import SqliteStore
from xdb_sdk.protocol import DEFAULT_NAMESPACE, ExecuteStatus, ProcessStatus, StateStatus, WaitUntilStatus

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Transaction:
    """What one transaction asks and writes, in the order of the fields."""

    process_keys: Rows
    execution_ids: list[str]
    changed_processes: Rows
    new_processes: Rows
    new_states: Rows
    changed_states: Rows
    closed_executions: Rows


def measure_floor(directory: Path, executions: int, batch_size: int) -> Measurement:
    """Write the rows of that many executions, `batch_size` executions in a transaction, into a fresh database."""
    path = directory / "floor.db"
    asyncio.run(_install_schema(path))
    processes = _processes(executions)
    batches = [processes[begin : begin + batch_size] for begin in range(0, executions, batch_size)]
    transactions = [transaction for batch in batches for transaction in _transactions(batch)]
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=512)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        times_ms = [_run(connection, transaction) for transaction in transactions]
        elapsed_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return Measurement(
        engine="bare sqlite3",
        workload=Workload.CHAIN,
        executions=executions,
        steps=executions * CHAIN_STEPS,
        elapsed_s=elapsed_s,
        cpu_s=cpu_s,
        p50_ms=percentile(times_ms, 50),
        p95_ms=percentile(times_ms, 95),
        p99_ms=percentile(times_ms, 99),
        counts={"transactions": len(transactions), "events": executions * (CHAIN_STEPS + 1)},
    )


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


def _transactions(processes: list[ProcessExecution]) -> Iterator[_Transaction]:
    """Give the start of a batch of executions, then each of their steps."""
    yield _Transaction(
        process_keys=[process.key for process in processes],
        execution_ids=[],
        changed_processes=[],
        new_processes=[process_fixed(process) + process_changing(process) for process in processes],
        new_states=[_new_state(process, 1) for process in processes],
        changed_states=[],
        closed_executions=[],
    )
    for number in range(1, CHAIN_STEPS + 1):
        is_last = number == CHAIN_STEPS
        yield _Transaction(
            process_keys=[],
            execution_ids=[process.process_execution_id for process in processes],
            changed_processes=[_changed_process(process, number, is_last=is_last) for process in processes],
            new_processes=[],
            new_states=[] if is_last else [_new_state(process, number + 1) for process in processes],
            changed_states=[_completed_state(process, number) for process in processes],
            closed_executions=[(process.process_execution_id,) for process in processes] if is_last else [],
        )


def _changed_process(process: ProcessExecution, number: int, *, is_last: bool) -> tuple[Any, ...]:
    changed = replace(
        process,
        status=ProcessStatus.COMPLETED if is_last else ProcessStatus.RUNNING,
        closed_at_ms=system_clock() if is_last else None,
        state_counters={LinkState.__name__: min(number + 1, CHAIN_STEPS)},
        version=number + 1,
    )
    return (*process_changing(changed), process.process_execution_id)


def _state(process: ProcessExecution, number: int) -> StateExecution:
    definition = registry.process_of(ChainProcess).state_of(LinkState)
    return StateExecution(
        process_execution_id=process.process_execution_id,
        state_id=definition.state_id,
        number=number,
        created_at_ms=process.started_at_ms,
        input=json_text(CHAIN_STEPS + 1 - number),
        options=definition.wire_options,
        wait_until_status=WaitUntilStatus.SKIPPED,
        execute_status=ExecuteStatus.RUNNING,
        first_attempt_at_ms=process.started_at_ms,
        due_at_ms=process.started_at_ms,
    )


def _new_state(process: ProcessExecution, number: int) -> tuple[Any, ...]:
    state = _state(process, number)
    return state_fixed(state) + state_changing(state)


def _completed_state(process: ProcessExecution, number: int) -> tuple[Any, ...]:
    state = replace(
        _state(process, number),
        status=StateStatus.COMPLETED,
        execute_status=ExecuteStatus.COMPLETED,
        due_at_ms=None,
        closed_at_ms=system_clock(),
        version=2,
    )
    return (*state_changing(state), *state.key)


def _run(connection: sqlite3.Connection, transaction: _Transaction) -> float:
    """Run a transaction and say how many milliseconds it took."""
    began_s = time.perf_counter()
    execute, many = connection.execute, connection.executemany
    execute("BEGIN IMMEDIATE")
    for key in transaction.process_keys:
        execute(sql.FIND_CURRENT, key).fetchone()
    for ids in sql.in_lists(transaction.execution_ids):
        execute(sql.FIND_EXECUTIONS[len(ids)], ids).fetchall()
        execute(sql.FIND_OPEN_STATES[len(ids)], ids).fetchall()
    many(sql.CHANGE_PROCESS, transaction.changed_processes)
    many(sql.INSERT_PROCESS, transaction.new_processes)
    many(sql.INSERT_STATE, transaction.new_states)
    many(sql.CHANGE_STATE, transaction.changed_states)
    many(sql.DELETE_MESSAGES_OF_PROCESS, transaction.closed_executions)
    many(sql.DELETE_TIMERS_OF_PROCESS, transaction.closed_executions)
    execute("COMMIT")
    return (time.perf_counter() - began_s) * 1000
