"""Values of every column family: what is written comes back, what does not fit is refused (semantics 7.2)."""

from typing import Any

import pytest

from server_stub.core.model import RowRead
from server_stub.core.ports import RowWriteFailed, Store
from tests.contract.store.databases import Database
from tests.contract.store.works import row_key, write_row
from xdb_sdk.protocol import Json

ROW = row_key("t", 1)


async def with_column(database: Database, declared_type: str) -> Store:
    """Give a store beside a table with a column `v` of the type."""
    await database.run(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared_type})")
    return database.store


async def read_value(store: Store) -> Any:
    """Give the value of `v`."""
    read = RowRead(ROW, ("v",))
    row = (await store.read_for_calls([read], [])).rows[read]
    assert row is not None
    return row["v"]


UNCHANGED: list[tuple[str, Json]] = [
    ("TEXT", "text"),
    ("VARCHAR(3)", "漢字é"),
    ("CHAR(36)", "0190e4b2-7c1a-7000-8000-000000000001"),
    ("INTEGER", 2**63 - 1),
    ("BIGINT", -(2**63)),
    ("BIGINT", 2**53 + 1),
    ("BOOLEAN", True),
    ("BOOLEAN", False),
    ("TINYINT(1)", True),
    ("FLOAT", 0.1),
    ("DOUBLE PRECISION", -1.5e300),
    ("REAL", 3.0),
    ("NUMERIC(10,2)", "12345678.90"),
    ("DECIMAL(6, 3)", "-0.125"),
    ("NUMERIC", "7"),
    ("NUMERIC", "0.1"),
    ("BLOB", {"$bytes": "AP8B"}),
    ("VARBINARY(3)", {"$bytes": "AP8B"}),
    ("DATETIME", "2026-02-28T23:59:59.000001"),
    ("DATETIME", "2026-02-28T00:00:00"),
    ("TIMESTAMP", "0001-01-01T00:00:00"),
    ("DATE", "2024-02-29"),
    ("TIME", "23:59:59.999999"),
    ("TIME", "00:00:00"),
    ("UUID", "0190e4b2-7c1a-7000-8000-000000000001"),
    ("BINARY(16)", "0190e4b2-7c1a-7000-8000-000000000001"),
    ("JSON", {"$json": {"a": [1, 2.5, None, True, "x"], "big": 2**100}}),
    ("JSON", {"$json": []}),
    ("JSON", {"$json": "text"}),
    ("JSON", {"$json": "123"}),
    ("JSON", {"$json": 123}),
    ("JSON", {"$json": 0.1}),
    ("JSON", {"$json": True}),
    ("JSON", {"$json": None}),
]


@pytest.mark.parametrize(("declared_type", "value"), UNCHANGED, ids=str)
async def test_a_value_comes_back_as_it_was_written(database: Database, declared_type: str, value: Json) -> None:
    store = await with_column(database, declared_type)

    await write_row(store, ROW, v=value)

    found = await read_value(store)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("declared_type", sorted({declared_type for declared_type, _ in UNCHANGED}))
async def test_every_family_has_null(database: Database, declared_type: str) -> None:
    store = await with_column(database, declared_type)

    await write_row(store, ROW, v=None)

    assert await database.run("SELECT v IS NULL FROM t") == [(1,)]
    assert await read_value(store) is None


@pytest.mark.parametrize(
    ("declared_type", "written", "found"),
    [
        ("TEXT", {"$json": {"a": 2**70}}, '{"a":1180591620717411303424}'),
        ("BLOB", {"$json": [1]}, {"$bytes": "WzFd"}),
        ("JSON", "plain", {"$json": "plain"}),
        ("JSON", 5, {"$json": 5}),
        ("INTEGER", True, 1),
        ("BIGINT", "P1DT0.000001S", 86_400_000_001),
        ("FLOAT", 3, 3.0),
        ("FLOAT", "0.25", 0.25),
        ("NUMERIC(10,2)", 5, "5.00"),
        ("NUMERIC", 0.5, "0.5"),
        ("DATETIME", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00"),
        ("UUID", "0190E4B27C1A70008000000000000001", "0190e4b2-7c1a-7000-8000-000000000001"),
        ("CHAR(32)", "0190e4b2-7c1a-7000-8000-000000000001", "0190e4b27c1a70008000000000000001"),
    ],
    ids=str,
)
async def test_a_value_of_a_neighbouring_form_comes_back_in_that_of_the_column(
    database: Database, declared_type: str, written: Json, found: Json
) -> None:
    store = await with_column(database, declared_type)

    await write_row(store, ROW, v=written)

    assert await read_value(store) == found


@pytest.mark.parametrize(
    ("declared_type", "value", "kind"),
    [
        ("VARCHAR(3)", "four", "TOO_LONG"),
        ("CHAR(32)", "x" * 36, "TOO_LONG"),
        ("VARBINARY(2)", {"$bytes": "AP8B"}, "TOO_LONG"),
        ("VARCHAR(3)", {"$json": [1, 2]}, "TOO_LONG"),
        ("TEXT", 1, "TYPE"),
        ("TEXT", True, "TYPE"),
        ("TEXT", {"$bytes": "AP8B"}, "TYPE"),
        ("TEXT", {"untagged": 1}, "TYPE"),
        ("TEXT", [1], "TYPE"),
        ("INTEGER", 2**63, "TYPE"),
        ("INTEGER", -(2**63) - 1, "TYPE"),
        ("INTEGER", 1.5, "TYPE"),
        ("INTEGER", "1", "TYPE"),
        ("INTEGER", "Pxx", "TYPE"),
        ("BOOLEAN", 1, "TYPE"),
        ("BOOLEAN", "true", "TYPE"),
        ("FLOAT", 2**53 + 1, "TYPE"),
        ("FLOAT", 10**400, "TYPE"),
        ("FLOAT", float("inf"), "TYPE"),
        ("FLOAT", float("nan"), "TYPE"),
        ("FLOAT", True, "TYPE"),
        ("NUMERIC", "NaN", "TYPE"),
        ("NUMERIC", "Infinity", "TYPE"),
        ("NUMERIC", "twelve", "TYPE"),
        ("BLOB", "text", "TYPE"),
        ("BLOB", {"$bytes": "not base64!"}, "TYPE"),
        ("BLOB", {"$bytes": "ääää"}, "TYPE"),
        ("DATETIME", "yesterday", "TYPE"),
        ("DATETIME", 1_700_000_000, "TYPE"),
        ("DATE", "2023-02-29", "TYPE"),
        ("DATE", 5, "TYPE"),
        ("TIME", "25:00:00", "TYPE"),
        ("TIME", 5, "TYPE"),
        ("UUID", "not-a-uuid", "TYPE"),
        ("UUID", {"$bytes": "AP8B"}, "TYPE"),
        ("UUID", 5, "TYPE"),
        ("JSON", {"$bytes": "AP8B"}, "TYPE"),
        ("JSON", {"untagged": 1}, "TYPE"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_a_value_that_does_not_fit_is_refused_by_table_and_column(
    database: Database, declared_type: str, value: Json, kind: str
) -> None:
    store = await with_column(database, declared_type)

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(store, ROW, v=value)

    error = failure.value.error
    assert (error.kind, error.table_name) == (kind, "t")
    assert "'v'" in error.message
    assert await database.run("SELECT count(*) FROM t") == [(0,)]
