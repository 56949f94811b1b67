"""The floor under the chain workload on PostgreSQL: the server's own rows by psycopg, in pipelines.

A pipeline sends all statements of a transaction at once and waits once. The server, which decides what to write by what
it reads, cannot do that.
"""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from benchmarks.floor import FloorTransaction, measure_floor
from benchmarks.measurement import Measurement
from server_stub.storage import postgres_statements as sql
from server_stub.storage.postgres import PostgresStore
from server_stub.storage.writes import rows_to_write

ENGINE = "bare psycopg"


def measure_postgres_floor(
    url: str, executions: int, batch_size: int, database_cpu_s: Callable[[], float] | None
) -> Measurement:
    """Write the rows of that many executions, `batch_size` executions in a transaction.

    Args:
        url: A database with the system tables, which are empty.
        executions: How many executions.
        batch_size: How many of them share a transaction.
        database_cpu_s: Tells the CPU time of the database so far; None if its processes are elsewhere.
    """
    with psycopg.connect(url, autocommit=True, prepare_threshold=0, cursor_factory=psycopg.RawCursor) as connection:
        pipelines = _Pipelines(connection)
        return measure_floor(
            ENGINE,
            executions,
            batch_size,
            pipelines.run,
            statements=lambda: pipelines.statements,
            database_cpu_s=database_cpu_s,
        )


async def install_schema(url: str) -> None:
    """Make the system tables in an empty database."""
    store = await PostgresStore.open(url)
    await store.close()


class _Pipelines:
    """Runs each transaction in one pipeline, and counts its statements, `BEGIN` and `COMMIT` included."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.statements = 0

    def run(self, transaction: FloorTransaction) -> None:
        changes = transaction.changes
        with self._connection.pipeline():
            self._send("BEGIN")
            read = self._read(transaction)
            self._send(*_written(rows_to_write(changes, list(changes.changed_processes.values()), sql.WRITES)))
            self._send("COMMIT")
        for cursor in read:
            cursor.fetchall()

    def _read(self, transaction: FloorTransaction) -> list[psycopg.Cursor[Any]]:
        if transaction.new_keys:
            namespaces, process_ids = zip(*transaction.new_keys, strict=True)
            return [self._send(sql.LOCK_EXECUTIONS_AND_CURRENT, [], list(namespaces), list(process_ids))]
        execution_ids = list(transaction.execution_ids)
        return [self._send(statement, execution_ids) for statement in (sql.LOCK_EXECUTIONS, sql.FIND_OPEN_STATES)]

    def _send(self, statement: str, *values: list[Any]) -> psycopg.Cursor[Any]:
        self.statements += 1
        return self._connection.execute(statement.encode(), values)


def _written(parts: Sequence[tuple[sql.Part, Sequence[Sequence[Any]]]]) -> tuple[Any, ...]:
    """Give one statement that writes all the parts, and its values, an array for each column."""
    texts: list[str] = []
    values: list[list[Any]] = []
    for part, rows in parts:
        if rows:
            texts.append(part.text(len(values) + 1))
            values += [list(column) for column in zip(*rows, strict=True)]
    named = ", ".join(f"w{number} AS ({text})" for number, text in enumerate(texts))
    return (f"WITH {named} SELECT", *values)
