"""Which kind of database a URL names, and the store on it. A driver is imported when it is first needed."""

from enum import StrEnum
from importlib.util import find_spec
from typing import Final

from server_stub.core.ports import Store, StoreError
from server_stub.storage.server_store import ServerStoreOptions
from server_stub.storage.sqlite import SqliteOptions, SqliteStore


class DatabaseKind(StrEnum):
    """The databases there are stores for."""

    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"
    MYSQL = "MySQL and MariaDB"


_KINDS: Final = {
    "sqlite": DatabaseKind.SQLITE,
    "postgresql": DatabaseKind.POSTGRESQL,
    "postgres": DatabaseKind.POSTGRESQL,
    "mysql": DatabaseKind.MYSQL,
    "mariadb": DatabaseKind.MYSQL,
}
_DRIVERS: Final = {DatabaseKind.POSTGRESQL: ("asyncpg", "postgres"), DatabaseKind.MYSQL: ("asyncmy", "mysql")}
"""The module of a driver, and the extra that installs it."""


class DriverMissing(StoreError):
    """The driver of the database is not installed."""

    def __init__(self, kind: DatabaseKind, extra: str) -> None:
        self.extra = extra
        super().__init__(f"the driver for {kind} is not installed; install it: pip install 'xdb-sdk[{extra}]'")


def database_kind(url: str) -> DatabaseKind:
    """Give the kind of database that a URL names: `sqlite:///path`, `postgresql://...`, `mysql://...`, `mariadb://...`.

    Raises:
        DriverMissing: Its driver is not installed; the message says how to.
        ValueError: It names none.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    kind = _KINDS.get(scheme)
    if kind is None:
        raise ValueError(
            f"{scheme!r} is no kind of database that xdb knows; "
            "write sqlite:///path, postgresql://user@host/name or mysql://user@host/name"
        )
    if kind in _DRIVERS:
        module, extra = _DRIVERS[kind]
        if find_spec(module) is None:
            raise DriverMissing(kind, extra)
    return kind


async def open_store(url: str, sqlite: SqliteOptions, server: ServerStoreOptions) -> Store:
    """Open a database, and create its system tables when it has none.

    Args:
        url: See `database_kind`.
        sqlite: How a file is opened.
        server: How a database server is used; its store is a `Coordinator` too.

    Raises:
        DriverMissing: The driver is not installed.
        DatabaseInUse: Another server has the database file open.
        SchemaError: The system tables do not fit this server.
        StoreUnavailable: The database cannot be opened.
        ValueError: The URL names no database.
    """
    match database_kind(url):
        case DatabaseKind.SQLITE:
            return SqliteStore.open(url, sqlite)
        case DatabaseKind.POSTGRESQL:
            from server_stub.storage.postgres import PostgresStore

            return await PostgresStore.open(url, server)
        case DatabaseKind.MYSQL:
            from server_stub.storage.mysql import MysqlStore

            return await MysqlStore.open(url, server)
