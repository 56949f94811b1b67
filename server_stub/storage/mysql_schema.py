"""The system tables on MySQL and MariaDB, where each statement that defines something commits by itself.

A change that was cut short goes on where it ended: what is there already is left out, and the version is written last.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from asyncmy import Connection
from asyncmy.errors import MySQLError

from server_stub.core.ports import StoreUnavailable
from server_stub.storage import schema
from server_stub.storage.schema_change import CLUSTER_TABLE, COLLATIONS, SchemaChange, SchemaDialect, version_statements

# ruff: noqa: S608  # the texts are put together from constants

_PATIENCE_S: Final = 600
"""How long to wait for another server that is at it."""
_WAIT_S: Final = 1
"""How long one statement waits; a longer one might be taken for a server that is gone."""
_FIRST_SERVER_ERROR: Final = 1000
_CLIENT_ERRORS: Final = range(2000, 3000)
_PASSING: Final = frozenset({1040, 1053, 1205, 1213, 1290, 1317, 1836, 1927})
"""Errors of a server that is full, stopping, busy, or only read from at present."""

# A lock belongs to the whole server, the tables to a database.
_LOCK_NAME: Final = "CONCAT('xdb_schema_', MD5(DATABASE()))"
_OF_SYSTEM: Final = "WHERE table_schema = DATABASE() AND LEFT(table_name, 8) = 'xdb_sys_'"
_FIND_TABLES: Final = f"SELECT table_name FROM information_schema.tables {_OF_SYSTEM}"
_FIND_COLUMNS: Final = f"SELECT table_name, column_name FROM information_schema.columns {_OF_SYSTEM}"
_FIND_INDEXES: Final = f"SELECT DISTINCT table_name, index_name FROM information_schema.statistics {_OF_SYSTEM}"
_FIND_COLLATIONS: Final = f"""
    SELECT table_name, column_name, collation_name FROM information_schema.columns
    {_OF_SYSTEM} AND collation_name IS NOT NULL ORDER BY table_name, ordinal_position"""
_FIND_FACTS: Final = "SELECT name, value FROM xdb_sys_cluster"


async def prepare(connection: Connection, *, install: bool, num_shards: int) -> None:
    """Check the system tables; create them when there are none and `install` says so.

    Any number of servers may do so at once. Tables of an older version are never upgraded.

    Args:
        connection: Outside a transaction, as for each function here; whether it commits by itself does not matter.
        install: Whether to create missing tables, or the rest of those that another server began to create.
        num_shards: How many shards there have to be.

    Raises:
        SchemaError: The tables do not fit this server, or the database refuses to create them.
        StoreUnavailable: Another server has been changing them for too long.
    """
    try:
        await check(connection, num_shards=num_shards)
        return
    except (schema.SchemaMissing, schema.SchemaUnfinished):
        if not install:
            raise
    async with _exclusively(connection):
        try:
            await check(connection, num_shards=num_shards)
        except (schema.SchemaMissing, schema.SchemaUnfinished):
            await _install(connection, num_shards)


async def install(connection: Connection, num_shards: int) -> None:
    """Create the system tables if there are none. See `prepare`."""
    await prepare(connection, install=True, num_shards=num_shards)


async def upgrade(connection: Connection) -> int:
    """Bring the system tables to the version of this server. What was cut short is taken up by another call.

    Servers of the former version must not run meanwhile.

    Returns:
        The version they had.

    Raises:
        SchemaError: There are none, they cannot be upgraded, or the database refuses to alter them.
        StoreUnavailable: Another server has been changing them for too long.
    """
    await _check_connection(connection)
    async with _exclusively(connection):
        found = await _find(connection)
        version = schema.installed_version(*found)
        for change in schema.upgrades(_dialect(connection), *found):
            await _apply(connection, change)
        await check(connection)
        return version


async def check(connection: Connection, *, num_shards: int | None = None) -> None:
    """Check the system tables and what texts the connection can carry; nothing is changed.

    Raises:
        SchemaError: They are missing, or not as this server needs them.
    """
    await _check_connection(connection)
    schema.check(*await _find(connection), num_shards=num_shards)
    await _check_collations(connection)


async def _check_connection(connection: Connection) -> None:
    names = ("character_set_client", "character_set_connection", "character_set_results")
    [values] = await _fetch(connection, f"SELECT {', '.join(f'@@{name}' for name in names)}")
    for name, value in zip(names, values, strict=True):
        if value != "utf8mb4":
            raise schema.LossyCharset(f"{name} is {value}, a lossy character set; connect with charset=utf8mb4")


async def _check_collations(connection: Connection) -> None:
    needed = COLLATIONS[_dialect(connection)]
    for table, column, collation in await _fetch(connection, _FIND_COLLATIONS):
        if collation != needed:
            what = "cannot tell all ids apart" if collation.startswith("utf8mb4_") else "is of a lossy character set"
            raise schema.LossyCharset(
                f"column {column} of table {table} has the collation {collation}, which {what}; "
                f"alter it: ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {needed}"
            )


async def _find(connection: Connection) -> tuple[list[str], dict[str, str]]:
    """Give the names of the system tables, and the rows of xdb_sys_cluster."""
    names = [name for (name,) in await _fetch(connection, _FIND_TABLES)]
    facts = await _fetch(connection, _FIND_FACTS) if CLUSTER_TABLE in names else []
    return names, dict(facts)


def _dialect(connection: Connection) -> SchemaDialect:
    return SchemaDialect.MARIADB if "MariaDB" in connection.get_server_info() else SchemaDialect.MYSQL


@asynccontextmanager
async def _exclusively(connection: Connection) -> AsyncIterator[None]:
    """Keep other servers from changing the tables."""
    for _ in range(_PATIENCE_S // _WAIT_S):
        [(is_locked,)] = await _fetch(connection, f"SELECT GET_LOCK({_LOCK_NAME}, {_WAIT_S})")
        if is_locked:
            break
    else:
        raise StoreUnavailable(f"another server has been changing the xdb tables for {_PATIENCE_S} s; try again")
    try:
        yield
    finally:
        with suppress(MySQLError):  # without the connection, the lock is gone too
            await _fetch(connection, f"SELECT RELEASE_LOCK({_LOCK_NAME})")


async def _install(connection: Connection, num_shards: int) -> None:
    change = schema.installation(_dialect(connection), num_shards=num_shards)
    first, *_ = change.definitions
    if CLUSTER_TABLE not in await _objects(connection):
        await _execute(connection, [first.sql])
    await _execute(connection, version_statements(schema.INSTALLING))
    await _apply(connection, change)


async def _apply(connection: Connection, change: SchemaChange) -> None:
    there = await _objects(connection)
    await _execute(connection, [each.sql for each in change.definitions if each.creates not in there])
    await _execute(connection, [*change.row_statements, *change.drops])


async def _objects(connection: Connection) -> set[str]:
    """Give what there is of the system tables, named as `Definition.creates`."""
    queries = (_FIND_TABLES, _FIND_COLUMNS, _FIND_INDEXES)
    return {".".join(names) for query in queries for names in await _fetch(connection, query)}


async def _execute(connection: Connection, statements: list[str]) -> None:
    """Run statements in one transaction, as far as they do not end it themselves.

    Raises:
        SchemaChangeRefused: The server does not let them pass, now or later.
    """
    try:
        await connection.begin()
        async with connection.cursor() as cursor:
            for statement in statements:
                await cursor.execute(statement)
        await connection.commit()
    except MySQLError as error:
        with suppress(MySQLError):  # without the connection, the transaction is gone too
            await connection.rollback()
        if _is_refusal(error):
            raise schema.SchemaChangeRefused(error.args[1]) from error
        raise


def _is_refusal(error: MySQLError) -> bool:
    code = error.args[0] if error.args else None
    if not isinstance(code, int) or code < _FIRST_SERVER_ERROR:
        return False  # the driver itself
    return code not in _CLIENT_ERRORS and code not in _PASSING


async def _fetch(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    """Run a query in a transaction of its own, which sees what others have committed until now."""
    async with connection.cursor() as cursor:
        await cursor.execute(statement)
        rows = list(await cursor.fetchall())
    await connection.rollback()
    return rows
