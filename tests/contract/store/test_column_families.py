"""Values of every column family: what is written comes back, what does not fit is refused (semantics 7.2)."""

import re
from typing import Any

import pytest

from server_stub.core.model import RowRead
from server_stub.core.ports import RowWriteFailed, Store
from tests.contract.store.column_types import column_type, on_each_database
from tests.contract.store.databases import Database
from tests.contract.store.works import row_key, write_row
from tests.support.databases import Kind
from xdb_sdk.protocol import Json

ROW = row_key("t", 1)


async def with_column(database: Database, declared_type: str) -> Store:
    """Give a store beside a table with a column `v` of the type."""
    await database.run(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {column_type(database.kind, declared_type)})")
    return database.store


async def read_value(store: Store) -> Any:
    """Give the value of `v`."""
    read = RowRead(ROW, ("v",))
    row = (await store.read_for_calls([read], [])).rows[read]
    assert row is not None
    return row["v"]


UUID_TEXT = "0190e4b2-7c1a-7000-8000-000000000001"
UNCHANGED: list[tuple[str, Json]] = [
    ("TEXT", "text"),
    ("VARCHAR(3)", "漢字é"),
    ("VARCHAR(3)", "a  "),
    ("CHAR(36)", UUID_TEXT),
    ("CHAR(36)", "short"),
    ("INTEGER", 2**31 - 1),
    ("BIGINT", 2**63 - 1),
    ("BIGINT", -(2**63)),
    ("BIGINT", 2**53 + 1),
    ("BOOLEAN", True),
    ("BOOLEAN", False),
    ("TINYINT(1)", True),
    ("FLOAT", 0.1),
    ("FLOAT", 16777216.0),
    ("DOUBLE PRECISION", -1.5e300),
    ("DOUBLE PRECISION", 0.1234567890123456),
    ("REAL", 3.0),
    ("NUMERIC(10,2)", "12345678.90"),
    ("DECIMAL(6, 3)", "-0.125"),
    ("BLOB", {"$bytes": "AP8B"}),
    ("BLOB", {"$bytes": "J1wiAAoN"}),
    ("VARBINARY(3)", {"$bytes": "AP8B"}),
    ("DATETIME", "2026-02-28T23:59:59.000001"),
    ("DATETIME", "2026-02-28T00:00:00"),
    ("DATETIME", "9999-12-31T23:59:59.999999"),
    ("INSTANT", "2026-02-28T23:59:59.000001+00:00"),
    ("DATE", "2024-02-29"),
    ("DATE", "9999-12-31"),
    ("TIME", "23:59:59.999999"),
    ("TIME", "00:00:00"),
    ("UUID", UUID_TEXT),
    ("BINARY(16)", UUID_TEXT),
    ("JSON", {"$json": {"a": [1, 2.5, None, True, "x'\\"], "big": 2**100}}),
    ("JSON", {"$json": []}),
    ("JSON", {"$json": "text"}),
    ("JSON", {"$json": "123"}),
    ("JSON", {"$json": 123}),
    ("JSON", {"$json": 0.1}),
    ("JSON", {"$json": True}),
    ("JSON", {"$json": None}),
]
OWN_UNCHANGED: dict[Kind, list[tuple[str, Json]]] = {
    "sqlite": [
        ("INTEGER", 2**63 - 1),
        ("NUMERIC", "7"),
        ("NUMERIC", "0.1"),
        ("TIMESTAMP", "0001-01-01T00:00:00"),
    ],
    "postgresql": [
        ("SMALLINT", -(2**15)),
        ("NUMERIC", "7"),
        ("NUMERIC", "1.50"),
        ("NUMERIC", f"{'9' * 100}.{'1' * 100}"),
        ("NUMERIC(2, 4)", "0.0012"),
        ("REAL", 0.1),
        ("REAL", 3.4028235e38),
        ("TIMESTAMP", "0001-01-01T00:00:00"),
        ("TIMESTAMPTZ", "9999-12-31T23:59:59.999999+00:00"),
        ("TIMESTAMP(3)", "2026-02-28T23:59:59.123000"),
        ("DATE", "0001-01-01"),
        ("TIMETZ", "12:30:00.000001+05:30"),
        ("INTERVAL", "P1DT0.000001S"),
        ("INTERVAL", "-P1DT1H"),
        ("JSONB", {"$json": {"a": [1, 2.5, None, True, "é"], "big": 2**100}}),
        ("JSONB", {"$json": None}),
        ("INET", "10.0.0.0/8"),
        ("INTEGER[]", "{1,2,NULL}"),
        ("BIT(3)", "101"),
        ("POINT", "(1,2)"),
        ('"char"', "x"),
        ("TSVECTOR", "'fat' 'rat'"),
    ],
    "mariadb": [
        ("TINYINT", -128),
        ("TINYINT UNSIGNED", 255),
        ("MEDIUMINT", 2**23 - 1),
        ("BIGINT UNSIGNED", 2**64 - 1),
        ("YEAR", 2026),
        ("BIT(1)", True),
        ("BIT(9)", 511),
        ("DOUBLE", 5e-324),
        ("DECIMAL(65,30)", f"{'9' * 35}.{'1' * 30}"),
        ("FLOAT", 0.123457),
        ("DATETIME(6)", "0001-01-01T00:00:00"),
        ("DATETIME(3)", "2026-02-28T23:59:59.123000"),
        ("TIMESTAMP(6) NULL", "2038-01-19T03:14:07.999999+00:00"),
        ("TINYTEXT", "x" * 255),
        ("LONGTEXT CHARACTER SET utf8mb4", "🙂" * 70_000),
        ("BINARY(3)", {"$bytes": "AP8B"}),
        ("MEDIUMBLOB", {"$bytes": "AAAA" * 50_000}),
        ("ENUM('red', 'it''s')", "it's"),
        ("SET('a', 'b', 'c')", "a,c"),
        ("SET('a', 'b', 'c')", ""),
        ("INET6", "::1"),
        ("VARCHAR(9) CHARACTER SET latin1", "Köln"),
    ],
}


@pytest.mark.parametrize(
    ("database", "declared_type", "value"),
    on_each_database(UNCHANGED, OWN_UNCHANGED),
    indirect=["database"],
    ids=lambda value: str(value)[:60],
)
async def test_a_value_comes_back_as_it_was_written(database: Database, declared_type: str, value: Json) -> None:
    store = await with_column(database, declared_type)

    await write_row(store, ROW, v=value)

    found = await read_value(store)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("database", "declared_type"),
    sorted({case[:2] for case in on_each_database(UNCHANGED, OWN_UNCHANGED)}),
    indirect=["database"],
)
async def test_every_family_has_null(database: Database, declared_type: str) -> None:
    store = await with_column(database, declared_type)

    await write_row(store, ROW, v=None)

    assert await database.run("SELECT count(*) FROM t WHERE v IS NULL") == [(1,)]
    assert await read_value(store) is None


@pytest.mark.parametrize(
    ("database", "declared_type", "written", "found"),
    on_each_database(
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
            ("NUMERIC(10,2)", 0.5, "0.50"),
            ("INSTANT", "2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00+00:00"),
            ("UUID", "0190E4B27C1A70008000000000000001", UUID_TEXT),
            ("BINARY(16)", {"$bytes": "AZDksnwacACAAAAAAAAAAQ=="}, UUID_TEXT),
            ("CHAR(32)", UUID_TEXT, "0190e4b27c1a70008000000000000001"),
        ],
        {
            "sqlite": [
                ("NUMERIC", 0.5, "0.5"),
                ("DATETIME", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00"),
            ],
            "postgresql": [
                ("NUMERIC", 0.5, "0.5"),
                ("NUMERIC", "1E+2", "100"),
                ("INTERVAL", "PT24H", "P1D"),
                ("JSONB", {"$json": {"b": 1, "a": 1.0}}, {"$json": {"a": 1.0, "b": 1}}),
                ("INET", "10.0.0.1", "10.0.0.1/32"),
            ],
            "mariadb": [("TINYINT", True, 1), ("YEAR", 1901, 1901)],
        },
    ),
    indirect=["database"],
    ids=lambda value: str(value)[:60],
)
async def test_a_value_of_a_neighbouring_form_comes_back_in_that_of_the_column(
    database: Database, declared_type: str, written: Json, found: Json
) -> None:
    store = await with_column(database, declared_type)

    await write_row(store, ROW, v=written)

    assert await read_value(store) == found


REFUSED: list[tuple[str, Json, str]] = [
    ("VARCHAR(3)", "four", "TOO_LONG"),
    ("VARCHAR(3)", "a   ", "TOO_LONG"),
    ("CHAR(32)", "x" * 36, "TOO_LONG"),
    ("VARCHAR(3)", {"$json": [1, 2]}, "TOO_LONG"),
    ("TEXT", 1, "TYPE"),
    ("TEXT", True, "TYPE"),
    ("TEXT", {"$bytes": "AP8B"}, "TYPE"),
    ("TEXT", {"untagged": 1}, "TYPE"),
    ("TEXT", [1], "TYPE"),
    ("BIGINT", 2**63, "TYPE"),
    ("BIGINT", -(2**63) - 1, "TYPE"),
    ("INTEGER", 1.5, "TYPE"),
    ("INTEGER", "1", "TYPE"),
    ("INTEGER", "Pxx", "TYPE"),
    ("BOOLEAN", 1, "TYPE"),
    ("BOOLEAN", "true", "TYPE"),
    ("DOUBLE PRECISION", 2**53 + 1, "TYPE"),
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
]
REFUSED_BY_SERVERS: list[tuple[str, Json, str]] = [
    ("INTEGER", 2**31, "TYPE"),
    ("SMALLINT", -(2**15) - 1, "TYPE"),
    ("NUMERIC(10,2)", "0.125", "TYPE"),
    ("NUMERIC(10,2)", "123456789", "TYPE"),
    ("CHAR(3)", "a ", "TYPE"),
    ("DATETIME", "2026-01-01T00:00:00+00:00", "TYPE"),
    ("INSTANT", "2026-01-01T00:00:00", "TYPE"),
    ("TIME", "12:00:00+01:00", "TYPE"),
    ("TEXT", "\ud800", "TYPE"),
]
OWN_REFUSED: dict[Kind, list[tuple[str, Json, str]]] = {
    "sqlite": [("VARBINARY(2)", {"$bytes": "AP8B"}, "TOO_LONG"), ("INTEGER", 2**63, "TYPE")],
    "postgresql": [
        *REFUSED_BY_SERVERS,
        ("REAL", 0.123456789, "TYPE"),
        ("REAL", 1e39, "TYPE"),
        ("NUMERIC", "1e131072", "TYPE"),
        ("NUMERIC", "1e999999999", "TYPE"),
        ("NUMERIC", "1e-16384", "TYPE"),
        ("NUMERIC(3,-2)", "12345", "TYPE"),
        ("TIMESTAMP(3)", "2026-01-01T00:00:00.000001", "TYPE"),
        ("TIMESTAMPTZ", "0001-01-01T00:00:00+05:30", "TYPE"),
        ("TIMETZ", "12:00:00", "TYPE"),
        ("INTERVAL", "one day", "TYPE"),
        ("INTERVAL(0)", "PT0.5S", "TYPE"),
        ("TEXT", "a\0b", "TYPE"),
        ("JSON", "a\ud800", "TYPE"),
    ],
    "mariadb": [
        *REFUSED_BY_SERVERS,
        ("VARBINARY(2)", {"$bytes": "AP8B"}, "TOO_LONG"),
        ("TINYTEXT", "x" * 256, "TOO_LONG"),
        ("TINYBLOB", {"$bytes": "AAAA" * 100}, "TOO_LONG"),
        ("BINARY(4)", {"$bytes": "AP8B"}, "TYPE"),
        ("TINYINT UNSIGNED", 256, "TYPE"),
        ("INT UNSIGNED", -1, "TYPE"),
        ("BIGINT UNSIGNED", 2**64, "TYPE"),
        ("BIT(9)", 512, "TYPE"),
        ("YEAR", 26, "TYPE"),
        ("FLOAT", 0.123456789, "TYPE"),
        ("FLOAT", 1e39, "TYPE"),
        ("DATETIME(0)", "2026-01-01T00:00:00.5", "TYPE"),
        ("TIMESTAMP(6) NULL", "2300-01-01T00:00:00+00:00", "TYPE"),
        ("ENUM('red', 'blue')", "RED", "TYPE"),
        ("ENUM('red', 'blue')", "green", "TYPE"),
        ("SET('a', 'b', 'c')", "c,a", "TYPE"),
        ("VARCHAR(9) CHARACTER SET latin1", "漢字", "TYPE"),
        ("VARCHAR(9) CHARACTER SET utf8mb3", "🙂", "TYPE"),
        ("INET6", "nobody", "TYPE"),
    ],
}


@pytest.mark.parametrize(
    ("database", "declared_type", "value", "kind"),
    on_each_database(REFUSED, OWN_REFUSED),
    indirect=["database"],
    ids=lambda value: ascii(value)[:40],
)
async def test_a_value_that_does_not_fit_is_refused_by_table_and_column(
    database: Database, declared_type: str, value: Json, kind: str
) -> None:
    store = await with_column(database, declared_type)

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(store, ROW, v=value)

    error = failure.value.error
    assert (error.kind, error.table_name) == (kind, "t")
    assert re.search("['`]v['`]", error.message)
    assert await database.run("SELECT count(*) FROM t") == [(0,)]
