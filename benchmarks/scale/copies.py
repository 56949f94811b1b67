"""Many executions at once: one that the server wrote, copied by set-based SQL, so that its rows are as the server's."""

import asyncpg
from sqlalchemy import Column, Table

from server_stub.storage.system_tables import metadata

MS_BETWEEN_COPIES = 10

# Older than the original, and in the order of the ids, which are of version 7 as the server's own: ids that are new
# belong at the end of an index.
_MS_BEFORE = f"(($2::bigint + 1 - n) * {MS_BETWEEN_COPIES})"
_STARTED = f"lpad(to_hex($3::bigint - {_MS_BEFORE}), 12, '0')"
_NEW_ID = (
    f"left({_STARTED}, 8) || '-' || right({_STARTED}, 4) || '-7' || substr(md5(n::text), 1, 3)"
    " || '-8' || substr(md5(n::text), 4, 3) || '-' || substr(md5(n::text), 7, 12)"
)
_ORIGINAL = "SELECT process_execution_id AS id, started_at_ms FROM xdb_sys_process_execution WHERE process_id = $1"
_SHARD = "(n % (SELECT count(*) FROM xdb_sys_shard WHERE kind = 'work'))"


async def copy_execution(database_url: str, process_id: str, copies: int) -> None:
    """Copy all rows of the only execution of a process, and let PostgreSQL look at the tables anew.

    Each copy has a process id of its own, and instants that are a little earlier than those of the next one. A million
    copies of a small execution take minutes.

    Args:
        database_url: A database on which no server works at the time.
        process_id: Whose execution is copied.
        copies: How many copies.
    """
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("SET synchronous_commit = off; SET work_mem = '256MB'")
        original = await connection.fetchrow(_ORIGINAL, process_id)
        assert original is not None
        for table in metadata.sorted_tables:
            if "process_execution_id" in table.columns:
                await connection.execute(_copy_statement(table), original["id"], copies, original["started_at_ms"])
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


async def size_bytes(database_url: str) -> int:
    """Say how large a database is."""
    connection = await asyncpg.connect(database_url)
    try:
        size: int = await connection.fetchval("SELECT pg_database_size(current_database())")
        return size
    finally:
        await connection.close()


def _copy_statement(table: Table) -> str:
    columns = [column for column in table.columns if column.name != "row_id"]
    names = ", ".join(column.name for column in columns)
    values = ", ".join(_value(column) for column in columns)
    # The casts give parameters a type also in the statement of a table that needs none of them.
    return f"""
        INSERT INTO {table.name} ({names}) SELECT {values}
        FROM {table.name} t CROSS JOIN generate_series(1, $2::bigint) n
        WHERE t.process_execution_id = $1 AND $3::bigint > 0 ORDER BY n"""


def _value(column: "Column[object]") -> str:
    if column.name == "process_execution_id":
        return _NEW_ID
    if column.name == "process_id":
        return f"t.{column.name} || '-' || n"
    if column.name == "shard_id":
        return _SHARD
    if column.name.endswith("_at_ms"):
        return f"t.{column.name} - {_MS_BEFORE}"
    return f"t.{column.name}"
