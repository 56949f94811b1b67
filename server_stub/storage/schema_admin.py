"""What an operator does with the system tables of a database that a URL names: create, upgrade and check them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from server_stub.core.ports import StoreUnavailable
from server_stub.storage import sqlite_schema
from server_stub.storage.opening import DatabaseKind, database_kind
from server_stub.storage.server_store import ServerStoreOptions
from server_stub.storage.sqlite import SqliteStore, database_path

_PATIENT: Final = ServerStoreOptions(lock_timeout=timedelta(minutes=1), statement_timeout=timedelta(hours=12))
"""A table with millions of rows may have to be copied."""


class SchemaAdmin(Protocol):
    """The system tables of one database. Each call has a connection of its own."""

    async def install(self, num_shards: int) -> None:
        """Create them if there are none, for `num_shards` shards.

        Raises:
            SchemaError: The ones that are there do not fit this server, or the database refuses to create them.
            StoreUnavailable: The database cannot be reached.
        """
        ...

    async def upgrade(self) -> int:
        """Bring them to the version of this server, and give the one they had.

        Raises:
            SchemaError: There are none, they cannot be upgraded, or the database refuses to alter them.
            DatabaseInUse: A server has the SQLite file open.
            StoreUnavailable: The database cannot be reached.
        """
        ...

    async def check(self) -> None:
        """Check them; nothing is changed.

        Raises:
            SchemaError: They are missing, or not as this server needs them.
            StoreUnavailable: The database cannot be reached.
        """
        ...


def schema_admin(url: str) -> SchemaAdmin:
    """Give the administration of a database.

    Args:
        url: See `database_kind`.

    Raises:
        DriverMissing: The message says how to install it.
        ValueError: It is no such URL.
        OSError: A file that it names cannot be read.
    """
    match database_kind(url):
        case DatabaseKind.SQLITE:
            return _SqliteAdmin(database_path(url))
        case DatabaseKind.POSTGRESQL:
            return _postgres_admin(url)
        case DatabaseKind.MYSQL:
            return _mysql_admin(url)


class _SqliteAdmin:
    def __init__(self, path: str) -> None:
        self._path = path

    async def install(self, num_shards: int) -> None:
        await SqliteStore.open(self._path).close()

    async def upgrade(self) -> int:
        self._require_file()
        return sqlite_schema.upgrade(self._path)

    async def check(self) -> None:
        self._require_file()
        sqlite_schema.check(self._path)

    def _require_file(self) -> None:
        if not Path(self._path).exists():
            raise StoreUnavailable(f"there is no database file {self._path}; create it with `xdb schema install`")


class _SchemaModule(Protocol):
    async def install(self, connection: Any, num_shards: int) -> None: ...

    async def upgrade(self, connection: Any) -> int: ...

    async def check(self, connection: Any) -> None: ...


class _ServerAdmin:
    def __init__(self, functions: _SchemaModule, connect: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._functions = functions
        self._connect = connect

    async def install(self, num_shards: int) -> None:
        async with self._connect() as connection:
            await self._functions.install(connection, num_shards)

    async def upgrade(self) -> int:
        async with self._connect() as connection:
            return await self._functions.upgrade(connection)

    async def check(self) -> None:
        async with self._connect() as connection:
            await self._functions.check(connection)


def _postgres_admin(url: str) -> SchemaAdmin:
    import asyncpg

    from server_stub.storage import postgres_schema
    from server_stub.storage.postgres import PostgresStore

    store = PostgresStore(url, _PATIENT)

    @asynccontextmanager
    async def connect() -> AsyncIterator["asyncpg.Connection[Any]"]:
        connection = await store.connect()
        try:
            yield connection
            await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"PostgreSQL failed: {error}") from error
        finally:
            connection.terminate()

    return _ServerAdmin(postgres_schema, connect)


def _mysql_admin(url: str) -> SchemaAdmin:
    import asyncmy
    from asyncmy.errors import MySQLError

    from server_stub.storage import mysql_schema
    from server_stub.storage.mysql import MysqlStore

    store = MysqlStore(url, _PATIENT)

    @asynccontextmanager
    async def connect() -> AsyncIterator[asyncmy.Connection]:
        connection = await store.connect()
        try:
            yield connection.raw
            await connection.close()
        except (MySQLError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"MySQL failed: {error}") from error
        finally:
            connection.terminate()

    return _ServerAdmin(mysql_schema, connect)
