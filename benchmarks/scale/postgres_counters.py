"""What a PostgreSQL server counts by itself, whoever asks it: statements, transactions and write-ahead log."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncpg

STATISTICS_SETTINGS = {"shared_preload_libraries": "pg_stat_statements"}
"""With these a server counts statements."""

_TOTALS = """
    SELECT xact_commit + xact_rollback AS transactions, pg_current_wal_insert_lsn() - '0/0' AS wal_bytes
    FROM pg_stat_database WHERE datname = $1"""
_STATEMENTS = """
    SELECT COALESCE(sum(s.calls), 0)::bigint FROM pg_stat_statements s
    JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1"""
_HEAVIEST = """
    SELECT s.query, s.calls, s.rows, s.total_exec_time AS total_ms FROM pg_stat_statements s
    JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1 ORDER BY s.total_exec_time DESC LIMIT $2"""


@dataclass(frozen=True, slots=True)
class PostgresCounts:
    """Totals of a database since some moment; those of a span of time are the difference of two.

    Attributes:
        transactions: Those that ended; a session tells of its own up to a second later, or ten when it is idle.
        wal_bytes: Write-ahead log of the whole server.
        statements: Those that were run, `BEGIN` and `COMMIT` included; None if the server does not count them.
    """

    transactions: int
    wal_bytes: int
    statements: int | None

    def since(self, before: "PostgresCounts") -> "PostgresCounts":
        """Give what came after `before`."""
        both = None not in (self.statements, before.statements)
        return PostgresCounts(
            self.transactions - before.transactions,
            self.wal_bytes - before.wal_bytes,
            (self.statements or 0) - (before.statements or 0) if both else None,
        )


@dataclass(frozen=True, slots=True)
class StatementCost:
    """What all runs of a statement have cost the database."""

    text: str
    calls: int
    rows: int
    total_ms: float


class PostgresCounters:
    """Reads the counters of one database from another one, where its own questions do not count."""

    def __init__(self, connection: "asyncpg.Connection[Any]", database: str, *, counts_statements: bool) -> None:
        self._connection = connection
        self._database = database
        self._counts_statements = counts_statements

    async def read(self) -> PostgresCounts:
        """Read the totals so far."""
        row = await self._connection.fetchrow(_TOTALS, self._database)
        assert row is not None
        statements = await self._connection.fetchval(_STATEMENTS, self._database) if self._counts_statements else None
        return PostgresCounts(row["transactions"], int(row["wal_bytes"]), statements)

    async def forget_statements(self) -> None:
        """Count statements from nothing again."""
        if self._counts_statements:
            await self._connection.execute("SELECT pg_stat_statements_reset()")

    async def heaviest(self, limit: int) -> Sequence[StatementCost]:
        """Give the statements that took the database longest; none if it does not count them."""
        if not self._counts_statements:
            return []
        rows = await self._connection.fetch(_HEAVIEST, self._database, limit)
        return [StatementCost(" ".join(text.split()), calls, found, total) for text, calls, found, total in rows]


@asynccontextmanager
async def watched(server_url: str, database_url: str) -> AsyncIterator[PostgresCounters]:
    """Watch the database of `database_url` from that of `server_url`, in which `pg_stat_statements` is installed."""
    connection = await asyncpg.connect(server_url)
    try:
        counts_statements = await _counts_statements(connection)
        yield PostgresCounters(connection, urlsplit(database_url).path[1:], counts_statements=counts_statements)
    finally:
        await connection.close()


async def _counts_statements(connection: "asyncpg.Connection[Any]") -> bool:
    """Install `pg_stat_statements` if that is possible, and say whether it counts."""
    with suppress(asyncpg.PostgresError):  # it is not there, not loaded with the server, or not for this user
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        await connection.execute("SELECT FROM pg_stat_statements LIMIT 1")
        return True
    return False
