"""The databases that the contract suite runs over. A new store adds a class here, not tests."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from server_stub.core.ports import Store
from server_stub.storage.mysql import MysqlStore
from server_stub.storage.postgres import PostgresStore
from server_stub.storage.server_store import ServerStoreOptions
from server_stub.storage.sqlite import MEMORY, SqliteOptions, SqliteStore, Synchronous
from tests.services.shared import DatabaseKind

Kind: TypeAlias = Literal["sqlite", "postgresql", "mariadb"]
NewDatabase: TypeAlias = Callable[[DatabaseKind], str]
"""Gives the URL of a new, empty database."""


class Database(Protocol):
    """A database with the system tables installed, as the server and as the application see it."""

    @property
    def kind(self) -> Kind:
        """Whose SQL the application writes."""
        ...

    @property
    def store(self) -> Store:
        """The store under test."""
        ...

    async def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL as the application does, in a transaction of its own."""
        ...

    async def close(self) -> None:
        """Close the store."""


class SqliteDatabase:
    """A SQLite database: a file of its own, or memory. Values of the application's SQL are marked by `?`."""

    kind: Kind = "sqlite"

    def __init__(self, location: str) -> None:
        # Waiting for the disk changes nothing that a test can see.
        self.store = SqliteStore.open(location, SqliteOptions(synchronous=Synchronous.OFF))

    async def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL as the application does."""
        return await self.store.run_sql(statement, values)

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()


class PostgresDatabase:
    """A PostgreSQL database. Values of the application's SQL are marked by `?` as for the others."""

    kind: Kind = "postgresql"

    def __init__(self, store: PostgresStore) -> None:
        self.store = store

    @classmethod
    async def open(cls, url: str) -> "PostgresDatabase":
        """Open an empty database."""
        return cls(await PostgresStore.open(url, ServerStoreOptions(num_shards=1)))

    async def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL as the application does."""
        numbers = count(1)
        marked = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
        connection = await self.store.connect()
        try:
            return [tuple(row) for row in await connection.fetch(marked, *values)]
        finally:
            await connection.close()

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()


class MysqlDatabase:
    """A MariaDB database. Its application has names in double quotes, as the others, and values marked by `?`."""

    kind: Kind = "mariadb"

    def __init__(self, store: MysqlStore) -> None:
        self.store = store

    @classmethod
    async def open(cls, url: str) -> "MysqlDatabase":
        """Open an empty database."""
        return cls(await MysqlStore.open(url, ServerStoreOptions(num_shards=1)))

    async def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL as the application does."""
        connection = await self.store.connect()
        try:
            await connection.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES,PIPES_AS_CONCAT')")
            return await connection.fetch(statement.replace("?", "%s"), values)
        finally:
            await connection.close()

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()


DATABASES = ("sqlite-file", "sqlite-memory", "postgresql", "mariadb")


@asynccontextmanager
async def open_database(name: str, directory: Path, new_database: NewDatabase) -> AsyncIterator[Database]:
    """Open an empty database of a kind, and close it."""
    match name:
        case "sqlite-file":
            opened: Database = SqliteDatabase(str(directory / "xdb.db"))
        case "sqlite-memory":
            opened = SqliteDatabase(MEMORY)
        case "postgresql":
            opened = await PostgresDatabase.open(new_database("postgresql"))
        case "mariadb":
            opened = await MysqlDatabase.open(new_database("mariadb"))
        case _:
            raise ValueError(name)
    try:
        yield opened
    finally:
        await opened.close()
