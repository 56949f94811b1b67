"""The system tables on PostgreSQL: in the first schema of the search path, changed in one transaction under a lock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import asyncpg

from server_stub.storage import schema
from server_stub.storage.schema_change import CLUSTER_TABLE, SchemaChange, SchemaDialect

Connection: TypeAlias = "asyncpg.Connection[Any]"

_LOCK_KEY: Final = 0x7864_6273_6368_656D
"""Of the advisory lock: "xdbschem" as a number, so that applications that lock by small numbers do not meet it."""
_PATIENCE_S: Final = 600
"""How long a statement may take, be it for another server that is at it."""
_REFUSALS: Final = (asyncpg.exceptions.SyntaxOrAccessError, asyncpg.exceptions.InvalidSchemaNameError)

# Each schema of the search path counts: the statements over the tables name none.
_FIND_TABLES: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ANY(current_schemas(false)) AND c.relkind IN ('r', 'p') AND starts_with(c.relname, $1)"""
_FIND_FACTS: Final = "SELECT name, value FROM xdb_sys_cluster"


async def prepare(connection: Connection, *, install: bool, num_shards: int) -> None:
    """Check the system tables; create them when there are none and `install` says so.

    Any number of servers may do so at once. Tables of an older version are never upgraded.

    Args:
        connection: Outside a transaction, as for each function here.
        install: Whether to create missing tables.
        num_shards: How many shards there have to be.

    Raises:
        SchemaError: The tables do not fit this server, or the database refuses to create them.
    """
    try:
        await check(connection, num_shards=num_shards)
        return
    except schema.SchemaMissing:
        if not install:
            raise
    async with _exclusively(connection):
        found = await _find(connection)
        try:
            schema.check(*found, num_shards=num_shards)
        except schema.SchemaMissing:
            await _apply(connection, schema.installation(SchemaDialect.POSTGRESQL, num_shards=num_shards))


async def install(connection: Connection, num_shards: int) -> None:
    """Create the system tables if there are none. See `prepare`."""
    await prepare(connection, install=True, num_shards=num_shards)


async def upgrade(connection: Connection) -> int:
    """Bring the system tables to the version of this server, all at once or not at all.

    Servers of the former version must not run meanwhile.

    Returns:
        The version they had.

    Raises:
        SchemaError: There are none, they cannot be upgraded, or the database refuses to alter them.
    """
    await _check_encoding(connection)
    async with _exclusively(connection):
        found = await _find(connection)
        version = schema.installed_version(*found)
        for change in schema.upgrades(SchemaDialect.POSTGRESQL, *found):
            await _apply(connection, change)
        schema.check(*await _find(connection))
        return version


async def check(connection: Connection, *, num_shards: int | None = None) -> None:
    """Check the system tables; nothing is changed.

    Raises:
        SchemaError: They are missing, or not as this server needs them.
    """
    await _check_encoding(connection)
    schema.check(*await _find(connection), num_shards=num_shards)


async def _check_encoding(connection: Connection) -> None:
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise schema.LossyCharset(
            f"the database has the encoding {encoding}, a lossy character set; create one with ENCODING 'UTF8'"
        )


async def _find(connection: Connection) -> tuple[list[str], dict[str, str]]:
    """Give the names of the system tables, and the rows of xdb_sys_cluster."""
    names = [name for (name,) in await connection.fetch(_FIND_TABLES, schema.SYSTEM_PREFIX)]
    facts = await connection.fetch(_FIND_FACTS) if CLUSTER_TABLE in names else []
    return names, dict(facts)


@asynccontextmanager
async def _exclusively(connection: Connection) -> AsyncIterator[None]:
    """Make a transaction in which no other server changes the tables, and which sees what others have done."""
    async with connection.transaction(isolation="read_committed"):
        await connection.execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})", timeout=_PATIENCE_S)
        yield


async def _apply(connection: Connection, change: SchemaChange) -> None:
    try:
        await connection.execute(";\n".join(change.statements), timeout=_PATIENCE_S)
    except _REFUSALS as error:
        raise schema.SchemaChangeRefused(str(error)) from error
