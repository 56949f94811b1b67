"""The databases that the contract suite runs over. A new store adds a class here, not tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from server_stub.core.ports import Store
from server_stub.storage.sqlite import MEMORY, SqliteOptions, SqliteStore, Synchronous


class Database(Protocol):
    """A database with the system tables installed, as the server and as the application see it."""

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

    def __init__(self, location: str) -> None:
        # Waiting for the disk changes nothing that a test can see.
        self.store = SqliteStore.open(location, SqliteOptions(synchronous=Synchronous.OFF))

    async def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL as the application does."""
        return await self.store.run_sql(statement, values)

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()


DATABASES = ("sqlite-file", "sqlite-memory")


def open_database(name: str, directory: Path) -> Database:
    """Open an empty database of a kind."""
    match name:
        case "sqlite-file":
            return SqliteDatabase(str(directory / "xdb.db"))
        case "sqlite-memory":
            return SqliteDatabase(MEMORY)
        case _:
            raise ValueError(name)
