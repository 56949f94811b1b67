"""The floors write what the server writes: executions that have completed, with all their steps."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.floor import measure_sqlite_floor
from benchmarks.postgres_floor import install_schema, measure_postgres_floor
from tests.services import shared
from tests.services.server import run_blocking

EXECUTIONS, BATCH_SIZE = 5, 2
TRANSACTIONS = 3 * 4
"""Of three batches the start and three steps."""

COMPLETED_EXECUTIONS = "SELECT count(*) FROM xdb_sys_process_execution WHERE status = 'COMPLETED'"
COMPLETED_STATES = "SELECT count(*) FROM xdb_sys_async_state_execution WHERE status = 'COMPLETED'"


def test_sqlite_floor_leaves_completed_executions(tmp_path: Path) -> None:
    measured = measure_sqlite_floor(tmp_path, EXECUTIONS, BATCH_SIZE)

    with closing(sqlite3.connect(tmp_path / "floor.db")) as connection:
        found = [connection.execute(query).fetchone()[0] for query in (COMPLETED_EXECUTIONS, COMPLETED_STATES)]
    assert found == [EXECUTIONS, 3 * EXECUTIONS]
    assert measured.counts["transactions"] == TRANSACTIONS


def test_postgres_floor_leaves_completed_executions(postgresql_server_url: str) -> None:
    with shared.database("postgresql", postgresql_server_url) as url:
        run_blocking(install_schema(url))
        measured = measure_postgres_floor(url, EXECUTIONS, BATCH_SIZE, database_cpu_s=None)

        with psycopg.connect(url) as connection:
            found = [rows_of(connection, query) for query in (COMPLETED_EXECUTIONS, COMPLETED_STATES)]
    assert found == [[(EXECUTIONS,)], [(3 * EXECUTIONS,)]]
    assert measured.counts["transactions"] == TRANSACTIONS
    assert measured.counts["statements"] == 4 * 3 + 5 * (TRANSACTIONS - 3)


def rows_of(connection: psycopg.Connection[Any], query: str) -> list[Any]:
    return connection.execute(query.encode()).fetchall()
