"""A mapping is checked against the table, and its key gets the one form that a row has (semantics 1.7, 7.1)."""

from typing import Any

import pytest

from server_stub.core.model import RowKey, RowRead
from server_stub.core.ports import MappingRefused, Store
from tests.contract.store.column_types import forget_tables, key_type, on_each_database
from tests.contract.store.databases import Database
from tests.contract.store.works import write_row
from xdb_sdk.protocol import Json, TableMapping

UUID_TEXT = "0190e4b2-7c1a-7000-8000-00000000abcd"


def mapping(key: Json, column: str = "id", **initial_write: Json) -> TableMapping:
    """Map to the row of table `t` with the key."""
    return TableMapping(table_name="t", primary_key={column: key}, initial_write=initial_write)


async def with_key(database: Database, declared_type: str) -> Store:
    """Give a store beside a table with a key column `id` of the type."""
    key = "" if declared_type == "JSON" and database.kind != "sqlite" else "PRIMARY KEY"
    await database.run(f"CREATE TABLE t (id {key_type(database.kind, declared_type)} {key}, n INTEGER)")
    return database.store


async def canonical(store: Store, key: Json) -> Any:
    """Give the form of a key value."""
    return (await store.canonical_mapping(mapping(key))).primary_key["id"]


@pytest.mark.parametrize(
    ("database", "declared_type", "key", "expected"),
    on_each_database(
        [
            ("TEXT", "Ab 1", "Ab 1"),
            ("INTEGER", 1, 1),
            ("INTEGER", True, 1),
            ("BIGINT", "PT1S", 1_000_000),
            ("BOOLEAN", True, True),
            ("FLOAT", 1, 1.0),
            ("FLOAT", "0.50", 0.5),
            ("FLOAT", 0.1, 0.1),
            ("NUMERIC", "1.0", "1"),
            ("NUMERIC", 1, "1"),
            ("NUMERIC", "0.0", "0"),
            ("NUMERIC", "1E2", "100"),
            ("NUMERIC(10,2)", "1.5", "1.50"),
            ("UUID", UUID_TEXT.upper(), UUID_TEXT),
            ("UUID", UUID_TEXT.replace("-", ""), UUID_TEXT),
            ("BINARY(16)", {"$bytes": "AZDksnwacACAAAAAAACrzQ=="}, UUID_TEXT),
            ("CHAR(32)", UUID_TEXT.upper(), UUID_TEXT.replace("-", "")),
            ("CHAR(9)", "short", "short"),
            ("VARBINARY(8)", {"$bytes": "AB=="}, {"$bytes": "AA=="}),
            ("INSTANT", "2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00+00:00"),
            ("DATETIME", "20260101T010000", "2026-01-01T01:00:00"),
            ("DATE", "20260101", "2026-01-01"),
            ("TIME", "010203", "01:02:03"),
        ],
        {
            "sqlite": [("", "free", "free")],
            "postgresql": [
                ("REAL", 0.1, 0.1),
                ("TIMETZ", "12:00:00Z", "12:00:00+00:00"),
                ("INTERVAL", "PT24H", "P1D"),
                ("INET", "10.0.0.1/32", "10.0.0.1/32"),
            ],
            "mariadb": [("ENUM('a', 'b')", "b", "b"), ("BIT(1)", True, True), ("DOUBLE", 0.1, 0.1)],
        },
    ),
    indirect=["database"],
    ids=str,
)
async def test_a_key_value_gets_the_form_in_which_it_is_read(
    database: Database, declared_type: str, key: Json, expected: Json
) -> None:
    store = await with_key(database, declared_type)

    found = await canonical(store, key)

    row = RowKey("t", (("id", found),))
    await write_row(store, row, n=1)
    read = RowRead(row, ("id",))
    assert (found, type(found)) == (expected, type(expected))
    assert (await store.read_for_calls([read], [])).rows[read] == {"id": expected}
    assert await canonical(store, found) == found


@pytest.mark.parametrize(
    ("declared_type", "key"),
    [
        ("TEXT", None),
        ("TEXT", ["a"]),
        ("TEXT", {"a": 1}),
        ("TEXT", 1),
        ("VARCHAR(3)", "four"),
        ("INTEGER", "1"),
        ("INTEGER", 1.0),
        ("INTEGER", 2**63),
        ("NUMERIC", "one"),
        ("UUID", "nobody"),
        ("VARBINARY(8)", {"$bytes": "ääää"}),
        ("JSON", {"$json": [1]}),
        ("JSON", ["a"]),
    ],
    ids=str,
)
async def test_a_key_value_that_names_no_row_is_refused_with_its_column(
    database: Database, declared_type: str, key: Json
) -> None:
    store = await with_key(database, declared_type)

    with pytest.raises(MappingRefused) as refusal:
        await store.canonical_mapping(mapping(key))

    assert "'id'" in str(refusal.value)
    assert repr(key) in str(refusal.value)


async def test_a_long_key_value_is_shown_in_part(database: Database) -> None:
    store = await with_key(database, "VARCHAR(3)")

    with pytest.raises(MappingRefused) as refusal:
        await store.canonical_mapping(mapping("x" * 10_000))

    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (mapping(1, "key"), "no column 'key'"),
        (mapping(1, nickname="x"), "no column 'nickname'"),
        (mapping(1, "n"), "primary key of table 't' is ['id'], not ['n']"),
        (mapping(1, id=2), "column 'id' is the primary key of table 't'"),
        (TableMapping(table_name="T", primary_key={"id": 1}), "no table 'T'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_mapping_that_does_not_fit_the_table_is_refused(
    database: Database, refused: TableMapping, message: str
) -> None:
    store = await with_key(database, "INTEGER")

    with pytest.raises(MappingRefused) as refusal:
        await store.canonical_mapping(refused)

    assert message in str(refusal.value)


async def test_rows_with_several_key_columns_are_mapped_by_all_of_them(database: Database) -> None:
    await database.run("CREATE TABLE t (hall INTEGER, seat INTEGER, taken INTEGER, PRIMARY KEY (hall, seat))")
    whole = TableMapping(table_name="t", primary_key={"seat": 2, "hall": 1}, initial_write={"taken": 1})

    assert await database.store.canonical_mapping(whole) == whole
    with pytest.raises(MappingRefused, match="hall"):
        await database.store.canonical_mapping(mapping(2, "seat"))


async def test_a_table_without_a_primary_key_is_mapped_by_any_of_its_columns(database: Database) -> None:
    await database.run("CREATE TABLE t (id UUID, n INTEGER)")

    assert await canonical(database.store, UUID_TEXT.upper()) == UUID_TEXT


async def test_a_mapping_that_fits_is_checked_without_a_statement_the_next_time(database: Database) -> None:
    store = await with_key(database, "INTEGER")
    await store.canonical_mapping(mapping(1))
    await write_row(store, RowKey("t", (("id", 1),)), n=1)
    before = store.counters

    await store.canonical_mapping(mapping(2))

    assert store.counters == before


@pytest.mark.parametrize("wrote_between", [False, True])
async def test_what_the_user_changed_of_a_table_is_seen(database: Database, wrote_between: bool) -> None:
    with pytest.raises(MappingRefused):
        await database.store.canonical_mapping(mapping(1))
    store = await with_key(database, "INTEGER")
    await store.canonical_mapping(mapping(1))
    await write_row(store, RowKey("t", (("id", 1),)), n=1)
    await database.run("ALTER TABLE t ADD COLUMN nickname TEXT")
    if wrote_between:
        await write_row(store, RowKey("t", (("id", 1),)), n=2)

    assert await store.canonical_mapping(mapping(1, nickname="x")) == mapping(1, nickname="x")
    await database.run("ALTER TABLE t DROP COLUMN nickname")
    await write_row(store, RowKey("t", (("id", 1),)), n=3)
    forget_tables(database)
    with pytest.raises(MappingRefused, match="nickname"):
        await store.canonical_mapping(mapping(1, nickname="x"))
