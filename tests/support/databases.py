"""The databases that whole systems run on in tests, each as a server opens it and as the application sees it.

The application's SQL is written once for all of them, in what they have in common: types with a length where MariaDB
needs one for a key (`VARCHAR(255) PRIMARY KEY`), `||` between texts, double quotes around names, and `?` for a value.
Where they differ a test asks for the `kind`.
"""

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import asyncmy
import asyncpg

from server_stub.core.ports import Store
from server_stub.storage.mysql import MysqlStore
from server_stub.storage.postgres import PostgresStore
from server_stub.storage.server_store import ServerStoreOptions
from server_stub.storage.sqlite import SqliteOptions, SqliteStore, Synchronous
from server_stub.storage.user_tables import is_system_name
from tests.services import shared
from tests.support.blocking_store import BlockingStore, LoopThread

Kind: TypeAlias = Literal["sqlite", "postgresql", "mariadb"]
KINDS: Final[tuple[Kind, ...]] = ("sqlite", "postgresql", "mariadb")

BINARY_TYPE: Final[Mapping[Kind, str]] = {"sqlite": "BLOB", "postgresql": "BYTEA", "mariadb": "BLOB"}
"""The type of binary data without a bound."""

NUM_SHARDS: Final = 1
_OPTIONS: Final = ServerStoreOptions(num_shards=NUM_SHARDS)
_KEPT_TABLES: Final = ("xdb_sys_cluster", "xdb_sys_shard")
"""Have the rows of a new database."""

# Whatever is in the schema, of every kind, but what goes with its extension, or with its column as a sequence.
_DROPS_ON_POSTGRES: Final = r"""
SELECT format('DROP EXTENSION %I CASCADE', extname) FROM pg_extension WHERE extname <> 'plpgsql'
UNION ALL
SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
WHERE nspname NOT IN (current_schema(), 'information_schema') AND nspname NOT LIKE 'pg\_%'
UNION ALL
SELECT format('DROP %s IF EXISTS %s CASCADE', made.type, made.identity)
FROM pg_depend AS placed, pg_identify_object(placed.classid, placed.objid, 0) AS made
WHERE placed.refclassid = 'pg_namespace'::regclass AND placed.refobjid = current_schema()::regnamespace
AND starts_with(made.name, 'xdb_sys_') IS NOT TRUE AND NOT EXISTS (
    SELECT FROM pg_depend AS owned
    WHERE (owned.classid, owned.objid) = (placed.classid, placed.objid) AND owned.deptype IN ('e', 'i')
    AND owned.refobjid <> owned.objid  -- a table is partitioned by a column of its own
)
"""
_DROPS_ON_MARIADB: Final = r"""
SELECT concat('DROP ', if(table_type = 'VIEW', 'VIEW', 'TABLE'), ' `', replace(table_name, '`', '``'), '`')
FROM information_schema.tables WHERE table_schema = database() AND table_name NOT LIKE 'xdb\_sys\_%'
"""


class Database(ABC):
    """An empty database of one test."""

    kind: Kind

    @abstractmethod
    async def open_store(self) -> Store:
        """Open the store for the running loop, which has threads and sockets."""

    @abstractmethod
    async def open_virtual_store(self) -> Store:
        """Open the store for the running loop, which is on virtual time."""

    @abstractmethod
    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run SQL of the application's own, in a transaction of its own, and give its rows."""

    @abstractmethod
    def table_names(self) -> list[str]:
        """Name all tables in order, those of the server too."""

    def some_of(self, number: int) -> int:
        """Say how many of very many a test does: a fifth where each transaction costs round trips."""
        return number if self.kind == "sqlite" else number // 5

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Give all rows of all tables."""
        return {name: self.sql(f"SELECT * FROM {_quoted(name)}") for name in self.table_names()}


class SqliteDatabase(Database):
    """A file. Its store does nothing but by `run_in_executor`, so that it serves loops of both kinds."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path

    async def open_store(self) -> Store:
        # Waiting for the disk changes nothing that a test can see.
        return SqliteStore.open(self.path, SqliteOptions(synchronous=Synchronous.OFF))

    async def open_virtual_store(self) -> Store:
        return await self.open_store()

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def table_names(self) -> list[str]:
        return [name for (name,) in self.sql("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


class ServerDatabase(Database):
    """A database on a server, which one test after the other is given."""

    def __init__(self, url: str, thread: LoopThread) -> None:
        self.url = url
        self._thread = thread

    async def open_virtual_store(self) -> Store:
        return cast(Store, BlockingStore(self._thread.run(self.open_store()), self._thread))

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._thread.run(self._execute(statement, values))

    def table_names(self) -> list[str]:
        return self._thread.run(self._find_tables())

    def clear(self) -> None:
        """Drop all that the application has made, and delete the rows of the server's tables."""
        self._thread.run(self._clear())

    def close(self) -> None:
        """Close the application's connection."""
        self._thread.run(self._disconnect())

    @abstractmethod
    async def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    async def _find_tables(self) -> list[str]: ...

    @abstractmethod
    async def _clear(self) -> None: ...

    @abstractmethod
    async def _disconnect(self) -> None: ...


class PostgresDatabase(ServerDatabase):
    """A database on a PostgreSQL server."""

    kind = "postgresql"

    def __init__(self, url: str, thread: LoopThread) -> None:
        super().__init__(url, thread)
        # No prepared statements: the application changes its tables as well.
        self._connection = thread.run(asyncpg.connect(url, statement_cache_size=0))

    async def open_store(self) -> Store:
        return await PostgresStore.open(self.url, _OPTIONS)

    async def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        numbers = count(1)
        numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
        return [tuple(row) for row in await self._connection.fetch(numbered, *values)]

    async def _find_tables(self) -> list[str]:
        found = await self._execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1")
        return [name for (name,) in found]

    async def _clear(self) -> None:
        statements = [statement for (statement,) in await self._execute(_DROPS_ON_POSTGRES)]
        statements += map(_emptying, filter(_is_emptied, await self._find_tables()))
        await self._connection.execute(";".join(statements))

    async def _disconnect(self) -> None:
        await self._connection.close()


class MariadbDatabase(ServerDatabase):
    """A database on a MariaDB server. The application writes its SQL as the others understand it."""

    kind = "mariadb"

    def __init__(self, url: str, thread: LoopThread) -> None:
        super().__init__(url, thread)
        self._connection = thread.run(self._connect())

    async def open_store(self) -> Store:
        return await MysqlStore.open(self.url, _OPTIONS)

    async def _connect(self) -> Any:
        where = urlsplit(self.url)
        return await asyncmy.connect(
            host=where.hostname,
            port=where.port or 3306,
            user=unquote(where.username or "root"),
            password=unquote(where.password or ""),
            database=where.path[1:],
            autocommit=True,
            charset="utf8mb4",
            init_command="SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES,PIPES_AS_CONCAT')",
        )

    async def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        async with self._connection.cursor() as cursor:
            if values:
                await cursor.execute(statement.replace("%", "%%").replace("?", "%s"), values)
            else:
                await cursor.execute(statement)
            return list(await cursor.fetchall()) if cursor.description else []

    async def _find_tables(self) -> list[str]:
        found = await self._execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = database() ORDER BY 1"
        )
        return [name for (name,) in found]

    async def _clear(self) -> None:
        drops = [statement for (statement,) in await self._execute(_DROPS_ON_MARIADB)]
        if drops:
            drops = ["SET foreign_key_checks = 0", *drops, "SET foreign_key_checks = 1"]
        for statement in (*drops, *map(_emptying, filter(_is_emptied, await self._find_tables()))):
            await self._execute(statement)

    async def _disconnect(self) -> None:
        await self._connection.ensure_closed()


def _is_emptied(name: str) -> bool:
    return is_system_name(name) and name not in _KEPT_TABLES


def _emptying(name: str) -> str:
    return f"DELETE FROM {name}"  # a few rows are deleted sooner than a table is truncated


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_SERVER_DATABASES: Final = {"postgresql": PostgresDatabase, "mariadb": MariadbDatabase}


class Databases:
    """The databases of a test session: a file for each test, and one on each server for all, emptied in between.

    Args:
        server_url: Gives the URL of the server of a kind; its error is passed on.
        mariadb_character_set: That of text where the application names none; None leaves it to the server.
    """

    def __init__(
        self, server_url: Callable[[shared.DatabaseKind], str], *, mariadb_character_set: str | None = "utf8mb4"
    ) -> None:
        self._server_url = server_url
        self._mariadb_character_set = mariadb_character_set
        self._opened = ExitStack()
        self._on_servers: dict[Kind, ServerDatabase] = {}
        self._thread: LoopThread | None = None

    def empty(self, kind: Kind, directory: Path) -> Database:
        """Give an empty database; it is in use until the next one of its kind is asked for.

        Args:
            kind: What to give.
            directory: Where to put what is a file.
        """
        if kind == "sqlite":
            for file in directory.glob("xdb.db*"):
                file.unlink()
            return SqliteDatabase(directory / "xdb.db")
        database = self._on_servers.get(kind)
        if database is None:
            database = self._on_servers[kind] = self._create(kind)
        else:
            database.clear()
        return database

    def _create(self, kind: shared.DatabaseKind) -> ServerDatabase:
        server_url = self._server_url(kind)
        if self._thread is None:
            self._thread = LoopThread()
            self._opened.callback(self._thread.close)
        url = self._opened.enter_context(shared.database(kind, server_url))
        database = _SERVER_DATABASES[kind](url, self._thread)
        self._opened.callback(database.close)
        if kind == "mariadb" and self._mariadb_character_set:
            database.sql(f"ALTER DATABASE CHARACTER SET {self._mariadb_character_set}")
        return database

    def close(self) -> None:
        """Drop what is on servers."""
        self._opened.close()
