"""Whatever is written into whatever column of a database server is either refused or comes back the same."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta, timezone
from decimal import Decimal
from typing import Any, TypeAlias

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from server_stub.core.model import RowRead, RowWrite
from server_stub.core.ports import RowWriteFailed, StoreRetry
from server_stub.storage.columns import JsonText, from_wire
from server_stub.storage.mysql_connection import MysqlAddress, MysqlConnection
from server_stub.storage.mysql_user_tables import MysqlUserTables
from server_stub.storage.postgres_user_tables import PostgresUserTables
from tests.contract.store.works import row_key
from tests.services.shared import database
from tests.unit.storage.test_value_properties import WIRE
from xdb_sdk.protocol import Json

Write: TypeAlias = Callable[[int, Json], tuple[Any, Json]]
"""Writes a value into the column `v` of a table, and gives the column and what is then read."""

POSTGRES_TYPES = (
    *("TEXT", "VARCHAR(5)", "CHAR(5)", "CHAR(32)", "SMALLINT", "INTEGER", "BIGINT", "BOOLEAN", "REAL"),
    *("DOUBLE PRECISION", "NUMERIC", "NUMERIC(10,2)", "NUMERIC(4,-1)", "BYTEA", "TIMESTAMP", "TIMESTAMPTZ"),
    *("TIMESTAMP(3)", "DATE", "TIME", "TIMETZ", "TIME(0)", "INTERVAL", "UUID", "JSON", "JSONB"),
)
MARIADB_TYPES = (
    *("LONGTEXT CHARACTER SET utf8mb4", "VARCHAR(5) CHARACTER SET utf8mb4", "CHAR(5) CHARACTER SET utf8mb4"),
    *("VARCHAR(9) CHARACTER SET latin1", "CHAR(32)", "TINYINT", "SMALLINT UNSIGNED", "INTEGER", "BIGINT"),
    *("BIGINT UNSIGNED", "BOOLEAN", "BIT(9)", "YEAR", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(65,30)"),
    *("LONGBLOB", "VARBINARY(5)", "BINARY(3)", "BINARY(16)", "DATETIME(6)", "DATETIME", "TIMESTAMP(6) NULL"),
    *("DATE", "TIME(6)", "TIME", "UUID", "JSON", "ENUM('a', 'B', '1')", "SET('a', 'b')"),
)
ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
AWARE = st.one_of(st.datetimes(timezones=ZONES), st.times(timezones=ZONES)).map(lambda value: value.isoformat())
DURATIONS = st.timedeltas().map(lambda value: f"PT{value // timedelta(microseconds=1) / 1_000_000:.6f}S")
VALUES = st.one_of(WIRE, AWARE, DURATIONS, st.sampled_from(["a", "B", "1", "a,b", "b,a", "", "é", "a "]))


def create_tables(types: tuple[str, ...]) -> list[str]:
    """Give the statements that make a table with a column of each type."""
    return [f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, v {name})" for number, name in enumerate(types)]


async def write_and_read(
    tables: PostgresUserTables | MysqlUserTables, connection: Any, number: int, value: Json
) -> tuple[Any, Json]:
    """Write into a table, read it again, and give the column and what it holds."""
    row = row_key(f"t{number}", 1)
    await tables.write_rows(connection, [RowWrite(row, {"v": value})])
    read = RowRead(row, ("v",))
    found = (await tables.read_rows(connection, [read]))[read]
    table = await tables.find(connection, f"t{number}")
    assert found is not None
    assert table is not None
    return table.columns["v"], found["v"]


async def again(write: Callable[[], Awaitable[tuple[Any, Json]]]) -> tuple[Any, Json]:
    """Write, and again where the table may have changed, as a store does."""
    for _ in range(3):
        try:
            return await write()
        except StoreRetry:
            pass
    raise AssertionError("it is doubted for ever")


@pytest.fixture(scope="module")
def write_to_postgres(postgresql_server_url: str) -> Iterator[Write]:
    """Give a function that writes and reads in PostgreSQL."""
    with asyncio.Runner() as runner, database("postgresql", postgresql_server_url) as url:
        tables = PostgresUserTables()
        connection = runner.run(asyncpg.connect(url))
        runner.run(connection.execute(";".join(create_tables(POSTGRES_TYPES))))

        async def write(number: int, value: Json) -> tuple[Any, Json]:
            async with connection.transaction():
                return await write_and_read(tables, connection, number, value)

        yield lambda number, value: runner.run(again(lambda: write(number, value)))
        runner.run(connection.close())


@pytest.fixture(scope="module")
def write_to_mariadb(mariadb_server_url: str) -> Iterator[Write]:
    """Give a function that writes and reads in MariaDB."""
    a_minute = timedelta(minutes=1)
    with asyncio.Runner() as runner, database("mariadb", mariadb_server_url) as url:
        tables = MysqlUserTables()
        opening = MysqlConnection.open(
            MysqlAddress.of(url), connect_timeout=a_minute, lock_timeout=a_minute, statement_timeout=a_minute
        )
        connection = runner.run(opening)
        for statement in create_tables(MARIADB_TYPES):
            runner.run(connection.execute(statement))

        yield lambda number, value: runner.run(again(lambda: write_and_read(tables, connection, number, value)))
        runner.run(connection.close())


@given(st.integers(0, len(POSTGRES_TYPES) - 1), VALUES)
def test_a_value_is_refused_or_comes_back_the_same_from_postgresql(
    write_to_postgres: Write, number: int, value: Any
) -> None:
    check(write_to_postgres, number, value)


@given(st.integers(0, len(MARIADB_TYPES) - 1), VALUES)
def test_a_value_is_refused_or_comes_back_the_same_from_mariadb(
    write_to_mariadb: Write, number: int, value: Any
) -> None:
    check(write_to_mariadb, number, value)


def check(write: Write, number: int, value: Any) -> None:
    """Check that a value is refused for what it is, or comes back."""
    try:
        column, found = write(number, value)
    except RowWriteFailed as failure:
        assert failure.error.kind in ("TYPE", "TOO_LONG")  # noqa: PT017  # a refusal is one of the two outcomes
        return

    assert meaning(column, found) == meaning(column, value)


def meaning(column: Any, value: Any) -> Any:
    """Give what a wire value says in a column, whichever of its forms it has."""
    said = from_wire(column, value)
    return in_digits(from_json(said.text)) if isinstance(said, JsonText) else said


def in_digits(document: Any) -> Any:
    """Give a document with numbers by their digits, as JSON has them."""
    match document:
        case float():
            return Decimal(repr(document))
        case list():
            return [in_digits(item) for item in document]
        case dict():
            return {name: in_digits(item) for name, item in document.items()}
    return document
