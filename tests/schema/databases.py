"""Each kind of database as the tests of the schema see it: without system tables at first, every call on its own."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncmy
import asyncpg

from server_stub.storage import mysql_schema, postgres_schema, sqlite_schema
from server_stub.storage.schema_change import SchemaDialect
from server_stub.storage.sqlite import SqliteOptions
from server_stub.storage.sqlite_connection import connect

Rows = list[tuple[Any, ...]]


class SchemaDatabase(Protocol):
    """A database. `num_shards` is what the tests install it with."""

    dialect: SchemaDialect
    num_shards: int
    url: str

    async def run(self, statements: Iterable[str]) -> Rows:
        """Run statements one after the other, each committed, and give the rows of the last one."""
        ...

    async def prepare(self, *, install: bool = True, num_shards: int | None = None) -> None:
        """Do what a server does when it starts."""
        ...

    async def upgrade(self) -> int:
        """Do what `xdb schema upgrade` does."""
        ...

    async def describe(self) -> set[tuple[Any, ...]]:
        """Describe each column and each index of the system tables."""
        ...


class SqliteDatabase:
    """A SQLite file."""

    dialect = SchemaDialect.SQLITE
    num_shards = 1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    async def run(self, statements: Iterable[str]) -> Rows:
        rows: Rows = []
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    async def prepare(self, *, install: bool = True, num_shards: int | None = None) -> None:
        await asyncio.to_thread(self._prepare, install)

    def _prepare(self, install: bool) -> None:
        with closing(connect(str(self.path), SqliteOptions())) as connection:
            sqlite_schema.prepare(connection, install=install)

    async def upgrade(self) -> int:
        return sqlite_schema.upgrade(str(self.path))

    async def describe(self) -> set[tuple[Any, ...]]:
        objects = await self.run(
            ["SELECT type, name, sql FROM sqlite_master WHERE name LIKE 'xdb\\_sys\\_%' ESCAPE '\\'"]
        )
        found: set[tuple[Any, ...]] = {(name, _one_line(sql)) for kind, name, sql in objects if kind == "index"}
        for name in (name for kind, name, _ in objects if kind == "table"):
            found |= {(name, *column) for column in await self.run([f"PRAGMA table_info({name})"])}
        return found


class PostgresDatabase:
    """A PostgreSQL database."""

    dialect = SchemaDialect.POSTGRESQL
    num_shards = 16

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["asyncpg.Connection[Any]"]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    async def run(self, statements: Iterable[str]) -> Rows:
        rows: Rows = []
        async with self.connection() as connection:
            for statement in statements:
                rows = [tuple(row) for row in await connection.fetch(statement)]
        return rows

    async def prepare(self, *, install: bool = True, num_shards: int | None = None) -> None:
        async with self.connection() as connection:
            await postgres_schema.prepare(connection, install=install, num_shards=num_shards or self.num_shards)

    async def upgrade(self) -> int:
        async with self.connection() as connection:
            return await postgres_schema.upgrade(connection)

    async def describe(self) -> set[tuple[Any, ...]]:
        columns = """SELECT table_name, column_name, data_type, character_maximum_length, collation_name, is_nullable,
            column_default, ordinal_position FROM information_schema.columns WHERE table_schema = current_schema()"""
        indexes = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
        return {*await self.run([columns]), *await self.run([indexes])}


class MariadbDatabase:
    """A MariaDB database."""

    dialect = SchemaDialect.MARIADB
    num_shards = 16

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def connection(self, **options: Any) -> AsyncIterator[asyncmy.Connection]:
        server = urlsplit(self.url)
        connection = await asyncmy.connect(
            **{
                "host": server.hostname,
                "port": server.port,
                "user": server.username,
                "password": server.password or "",
                "database": server.path[1:],
                "charset": "utf8mb4",
                # A backslash means itself, as in the SQL of other databases.
                "sql_mode": "'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES'",
                **options,
            }
        )
        try:
            yield connection
        finally:
            await connection.ensure_closed()

    async def run(self, statements: Iterable[str]) -> Rows:
        rows: Rows = []
        async with self.connection(autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                await cursor.execute(statement)
                rows = list(await cursor.fetchall())
        return rows

    async def prepare(self, *, install: bool = True, num_shards: int | None = None) -> None:
        async with self.connection() as connection:
            await mysql_schema.prepare(connection, install=install, num_shards=num_shards or self.num_shards)

    async def upgrade(self) -> int:
        async with self.connection() as connection:
            return await mysql_schema.upgrade(connection)

    async def describe(self) -> set[tuple[Any, ...]]:
        columns = """SELECT table_name, column_name, column_type, character_set_name, collation_name, is_nullable,
            column_default, extra, ordinal_position
            FROM information_schema.columns WHERE table_schema = DATABASE()"""
        indexes = """SELECT table_name, index_name, seq_in_index, column_name, sub_part, non_unique
            FROM information_schema.statistics WHERE table_schema = DATABASE()"""
        tables = """SELECT table_name, engine, row_format, table_collation
            FROM information_schema.tables WHERE table_schema = DATABASE()"""
        return {*await self.run([columns]), *await self.run([indexes]), *await self.run([tables])}


def _one_line(sql: str) -> str:
    return re.sub(r"\s+", " ", sql)
