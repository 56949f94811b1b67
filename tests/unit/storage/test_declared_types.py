"""The families of SQLite's declared types, and that what is stored is what other libraries of the user read."""

from collections.abc import AsyncIterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Float,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Time,
    Uuid,
    create_engine,
    insert,
    select,
)

from server_stub.core.model import RowRead
from server_stub.core.ports import RowWriteFailed
from server_stub.storage.columns import ColumnFamily
from server_stub.storage.sqlite import MEMORY, SqliteStore
from server_stub.storage.sqlite_user_tables import column_of
from tests.contract.store.works import row_key, write_row


@pytest.mark.parametrize(
    ("declared_type", "family", "max_length", "scale"),
    [
        ("", ColumnFamily.ANY, None, None),
        ("varchar(20)", ColumnFamily.TEXT, 20, None),
        ("  NVARCHAR ( 20 )  ", ColumnFamily.TEXT, 20, None),
        ("CHARACTER VARYING(20)", ColumnFamily.TEXT, 20, None),
        ("VARCHAR(20) COLLATE NOCASE", ColumnFamily.TEXT, 20, None),
        ("text", ColumnFamily.TEXT, None, None),
        ("CLOB", ColumnFamily.TEXT, None, None),
        ("int", ColumnFamily.INTEGER, None, None),
        ("UNSIGNED BIG INT", ColumnFamily.INTEGER, None, None),
        ("TINYINT(1)", ColumnFamily.BOOLEAN, None, None),
        ("TINYINT(4)", ColumnFamily.INTEGER, None, None),
        ("bool", ColumnFamily.BOOLEAN, None, None),
        ("DOUBLE PRECISION", ColumnFamily.FLOAT, None, None),
        ("float(24)", ColumnFamily.FLOAT, None, None),
        ("DECIMAL(10,5)", ColumnFamily.NUMERIC, None, 5),
        ("numeric(10)", ColumnFamily.NUMERIC, None, None),
        ("BLOB", ColumnFamily.BLOB, None, None),
        ("VARBINARY(16)", ColumnFamily.BLOB, 16, None),
        ("BINARY(16)", ColumnFamily.UUID, None, None),
        ("uuid", ColumnFamily.UUID, None, None),
        ("DATETIME", ColumnFamily.DATETIME, None, None),
        ("TIMESTAMP WITH TIME ZONE", ColumnFamily.DATETIME, None, None),
        ("date", ColumnFamily.DATE, None, None),
        ("TIME(6)", ColumnFamily.TIME, None, None),
        ("jsonb", ColumnFamily.JSON, None, None),
        ("ENUM('a','b')", ColumnFamily.ANY, None, None),
        ("MONEY", ColumnFamily.ANY, None, None),
    ],
)
def test_a_declared_type_has_a_family(
    declared_type: str, family: ColumnFamily, max_length: int | None, scale: int | None
) -> None:
    column = column_of("v", declared_type)

    assert (column.family, column.max_length, column.scale) == (family, max_length, scale)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """Give a store on a file."""
    opened = SqliteStore.open(tmp_path / "xdb.db")
    yield opened
    await opened.close()


ROW = row_key("t", 1)
SHARED = [
    (String(20), "text", "text"),
    (Boolean(), True, True),
    (Float(), 0.5, 0.5),
    (Numeric(10, 2), "12.50", Decimal("12.50")),
    (LargeBinary(), {"$bytes": "AP8B"}, b"\x00\xff\x01"),
    (DateTime(), "2026-02-28T23:59:59.000001", datetime(2026, 2, 28, 23, 59, 59, 1)),  # noqa: DTZ001
    (DateTime(), "2026-02-28T00:00:00", datetime(2026, 2, 28)),  # noqa: DTZ001
    (Date(), "2026-02-28", date(2026, 2, 28)),
    (Time(), "12:30:00", time(12, 30)),
    (Uuid(), "0190e4b27c1a70008000000000000001", UUID("0190e4b2-7c1a-7000-8000-000000000001")),
    (JSON(), {"$json": {"a": [1, None]}}, {"a": [1, None]}),
]


@pytest.mark.filterwarnings("ignore:Dialect sqlite.*does .not. support Decimal objects natively")
@pytest.mark.parametrize(("column_type", "wire", "python"), SHARED, ids=lambda value: str(value)[:28])
async def test_sqlalchemy_reads_what_is_written_and_writes_what_is_read(
    store: SqliteStore, column_type: Any, wire: Any, python: Any
) -> None:
    engine = create_engine(f"sqlite:///{store.path}")
    table = Table("t", MetaData(), Column("id", String(9), primary_key=True), Column("v", column_type))
    table.metadata.create_all(engine)
    ours, theirs = row_key("t", "ours"), row_key("t", "theirs")

    await write_row(store, ours, v=wire)
    with engine.begin() as connection:
        connection.execute(insert(table).values(id="theirs", v=python))
        found = connection.execute(select(table.c.v).where(table.c.id == "ours")).scalar_one()
    engine.dispose()
    read = RowRead(theirs, ("v",))

    assert found == python
    assert (await store.read_for_calls([read], [])).rows == {read: {"v": wire}}


async def test_instants_are_stored_as_utc_so_that_text_sorts_as_time(store: SqliteStore) -> None:
    await store.run_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TIMESTAMP)")

    await write_row(store, ROW, v="2026-01-01T00:30:00+05:30")
    await write_row(store, row_key("t", 2), v="0001-01-01T00:00:00+05:30")

    assert await store.run_sql("SELECT v FROM t ORDER BY v") == [
        ("0001-01-01 00:00:00.000000+05:30",),
        ("2025-12-31 19:00:00.000000+00:00",),
    ]


@pytest.mark.parametrize(
    ("declared_type", "value"),
    [
        ("NUMERIC(30,20)", "1234567890.12345678901234567890"),
        ("NUMERIC", "99999999999999999999"),
        ("NUMERIC", "1e999"),
        ("JSON", {"$json": 2**64}),
        ("STRING", "007"),
        ("MONEY", "1e5"),
        ("", 2**64),
        ("", float("inf")),
        ("", [1]),
    ],
)
async def test_a_value_that_sqlite_would_change_is_refused(declared_type: str, value: Any) -> None:
    store = SqliteStore.open(MEMORY)
    await store.run_sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared_type})")

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(store, ROW, v=value)
    await store.close()

    assert failure.value.error.kind == "TYPE"
    assert "'v'" in failure.value.error.message


@pytest.mark.parametrize(
    ("declared_type", "value", "problem"),
    [
        ("JSON", {"city": "Bonn"}, """does not take a bare object: write a document as {"$json": ...}"""),
        ("TEXT", ["Bonn"], """does not take a bare list: write a document as {"$json": ...}"""),
        ("JSON", {"$bytes": "AA=="}, "does not take binary data of that form"),
    ],
    ids=str,
)
async def test_refused_object_or_list_says_what_is_taken(declared_type: str, value: Any, problem: str) -> None:
    store = SqliteStore.open(MEMORY)
    await store.run_sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared_type})")

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(store, ROW, v=value)
    await store.close()

    assert problem in failure.value.error.message
    assert "Bonn" not in failure.value.error.message


@pytest.mark.parametrize(
    ("value", "found"),
    [("007", "007"), (7, 7), (0.5, 0.5), (True, 1), ({"$bytes": "AA=="}, {"$bytes": "AA=="}), ({"$json": [1]}, "[1]")],
    ids=str,
)
async def test_a_column_without_a_type_keeps_values_as_they_are(value: Any, found: Any) -> None:
    store = SqliteStore.open(MEMORY)
    await store.run_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v)")
    read = RowRead(ROW, ("v",))

    await write_row(store, ROW, v=value)
    rows = (await store.read_for_calls([read], [])).rows
    await store.close()

    assert rows == {read: {"v": found}}


async def test_a_view_takes_writes_by_its_triggers(store: SqliteStore) -> None:
    await store.run_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    await store.run_sql("CREATE VIEW shown AS SELECT id, v FROM t")
    await store.run_sql(
        "CREATE TRIGGER adds INSTEAD OF INSERT ON shown BEGIN INSERT INTO t VALUES (new.id, new.v); END"
    )
    await store.run_sql(
        "CREATE TRIGGER changes INSTEAD OF UPDATE ON shown BEGIN UPDATE t SET v = new.v WHERE id = new.id; END"
    )
    row = row_key("shown", 1)

    await write_row(store, row, v="first")
    await write_row(store, row, v="second")

    assert await store.run_sql("SELECT * FROM t") == [(1, "second")]


async def test_a_generated_column_is_read_and_not_written(store: SqliteStore) -> None:
    await store.run_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, twice INTEGER AS (v * 2))")
    await write_row(store, ROW, v=2)
    read = RowRead(ROW, ("twice",))

    with pytest.raises(RowWriteFailed, match="generated column"):
        await write_row(store, ROW, twice=5)

    assert (await store.read_for_calls([read], [])).rows == {read: {"twice": 4}}
