"""What the contract suite runs over: each database with its store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from server_stub.core.ports import Store
from server_stub.storage.sqlite import MEMORY, SqliteStore
from tests.services.shared import DatabaseKind
from tests.support import databases
from tests.support.databases import Databases, Kind

NewDatabase: TypeAlias = Callable[[DatabaseKind], str]
"""Gives the URL of a new, empty database."""

DATABASES: Final[Mapping[str, Kind]] = {
    "sqlite-file": "sqlite",
    "sqlite-memory": "sqlite",
    "postgresql": "postgresql",
    "mariadb": "mariadb",
}
"""All that each test runs over, and whose SQL the application writes there."""

SERVERS: Final = tuple(name for name, kind in DATABASES.items() if kind != "sqlite")


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

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL as the application does, in a transaction of its own."""
        ...


class StoredDatabase:
    """A database that the application reaches on a connection of its own."""

    def __init__(self, database: databases.Database, store: Store) -> None:
        self.kind: Kind = database.kind
        self.store = store
        self._database = database

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL as the application does. The store goes on meanwhile, since it may hold what is waited for."""
        return await asyncio.to_thread(self._database.sql, statement)


class MemoryDatabase:
    """A SQLite database in memory, which nobody but its store can reach."""

    kind: Kind = "sqlite"

    def __init__(self) -> None:
        self.store = SqliteStore.open(MEMORY)

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL as the application does."""
        return await self.store.run_sql(statement, ())


@asynccontextmanager
async def open_database(name: str, databases: Databases, directory: Path) -> AsyncIterator[Database]:
    """Open the store of an empty database of `DATABASES`, and close it."""
    opened: Database
    if name == "sqlite-memory":
        opened = MemoryDatabase()
    else:
        database = databases.empty(DATABASES[name], directory)
        opened = StoredDatabase(database, await database.open_store())
    try:
        yield opened
    finally:
        await opened.store.close()
