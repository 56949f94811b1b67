"""Rows of the user's tables where the database is a server: schemas, batches, and transactions that meet."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import RowKey, RowRead, RowWrite, RowWriteMode
from server_stub.core.ports import Loaded, MappingRefused, Needs, RowReadFailed, RowWriteFailed, Store
from tests.contract.store.column_types import key_type, on_each_database
from tests.contract.store.databases import SERVERS, Database, open_database
from tests.contract.store.works import Deciding, load, row_key, write, write_row
from tests.support.databases import Databases, Kind
from xdb_sdk.protocol import TableMapping


@pytest.fixture(params=SERVERS)
async def database(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Database]:
    """Give an empty database on a server."""
    async with open_database(request.param, databases, tmp_path) as opened:
        yield opened


async def read(store: Store, row: RowKey, *columns: str) -> Any:
    """Read a row as a call does."""
    asked = RowRead(row, columns)
    return (await store.read_for_calls([asked], [])).rows[asked]


async def make_schema(database: Database, name: str) -> str:
    """Make a schema and give its name; to MariaDB it is another database of the server, and dropped by nobody else."""
    if database.kind == "postgresql":
        await database.run(f"CREATE SCHEMA {name}")
        return name
    [(current,)] = await database.run("SELECT database()")
    schema = f"{current}_{name}"
    await database.run(f"CREATE DATABASE {schema}")
    return schema


async def drop_schema(database: Database, name: str) -> None:
    """Drop what `make_schema` made."""
    await database.run(f"DROP SCHEMA {name} CASCADE" if database.kind == "postgresql" else f"DROP DATABASE {name}")


async def current_schema(database: Database) -> str:
    """Name the schema of tables that are named without."""
    function = "current_schema()" if database.kind == "postgresql" else "database()"
    [(name,)] = await database.run(f"SELECT {function}")
    return str(name)


async def test_a_table_of_another_schema_is_named_with_it(database: Database) -> None:
    schema = await make_schema(database, "sales")
    try:
        for place in ("", f"{schema}."):
            await database.run(f'CREATE TABLE {place}"Orders" (id INTEGER PRIMARY KEY, v INTEGER)')
        here, there = row_key("Orders", 1), row_key(f"{schema}.Orders", 1)

        await write_row(database.store, here, v=1)
        await write_row(database.store, there, v=2)

        assert await read(database.store, here, "v") == {"v": 1}
        assert await read(database.store, there, "v") == {"v": 2}
        assert await database.run(f'SELECT v FROM {schema}."Orders"') == [(2,)]
        mapping = TableMapping(table_name=there.table_name, primary_key={"id": 1})
        assert await database.store.canonical_mapping(mapping) == mapping
    finally:
        await drop_schema(database, schema)


async def test_a_table_with_a_dot_in_its_name_comes_before_one_of_a_schema(database: Database) -> None:
    schema = await make_schema(database, "sales")
    try:
        await database.run(f"CREATE TABLE {schema}.orders (id INTEGER PRIMARY KEY, v INTEGER)")
        await database.run(f'CREATE TABLE "{schema}.orders" (id INTEGER PRIMARY KEY, v INTEGER)')

        await write_row(database.store, row_key(f"{schema}.orders", 1), v=1)

        assert await database.run(f'SELECT v FROM "{schema}.orders"') == [(1,)]
        assert await database.run(f"SELECT count(*) FROM {schema}.orders") == [(0,)]
    finally:
        await drop_schema(database, schema)


async def test_a_table_that_is_named_with_a_schema_it_could_do_without_is_volatile(database: Database) -> None:
    await database.run(f"CREATE TABLE t (id {key_type(database.kind, 'TEXT')} PRIMARY KEY)")
    full_name = f"{await current_schema(database)}.t"
    reads = [RowRead(row_key(name, "k"), ()) for name in ("t", full_name)]

    loaded = await load(database.store, needs=Needs(rows=reads))

    assert loaded.volatile_tables == {full_name}


@pytest.mark.parametrize("table_name", ["", ".", ".t", "t.", "a.b.c", "x" * 100, "a\0b", "xdb_sys_timer", "T"])
async def test_a_name_of_no_table_of_the_user_is_refused(database: Database, table_name: str) -> None:
    await database.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")

    with pytest.raises(RowReadFailed) as failure:
        await read(database.store, row_key(table_name, 1), "id")

    assert failure.value.error.kind == "UNKNOWN_TABLE"


@pytest.mark.parametrize("name", ["xdb_sys_timer", "XDB_SYS_timer"])
async def test_a_table_of_the_system_is_nobodys_with_its_schema_either(database: Database, name: str) -> None:
    table_name = f"{await current_schema(database)}.{name}"

    with pytest.raises(MappingRefused, match="no table"):
        await database.store.canonical_mapping(TableMapping(table_name=table_name, primary_key={"shard_id": 1}))


@pytest.mark.parametrize("table_name", ["pg_class", "pg_catalog.pg_class", "information_schema.tables", "mysql.user"])
async def test_a_table_of_the_database_itself_is_nobodys(database: Database, table_name: str) -> None:
    with pytest.raises(RowReadFailed) as failure:
        await read(database.store, row_key(table_name, 1), "id")

    assert failure.value.error.kind == "UNKNOWN_TABLE"


@pytest.fixture
async def people(database: Database) -> Store:
    """Give a store whose user has a table with a column that must be given, one of its own, and a pair of uniques."""
    key = key_type(database.kind, "TEXT")
    await database.run(
        f"CREATE TABLE people (id {key} PRIMARY KEY, name VARCHAR(20) NOT NULL, team VARCHAR(9) DEFAULT 'red', "
        "seat INTEGER, twice INTEGER GENERATED ALWAYS AS (seat * 2) STORED, UNIQUE (team, seat))"
    )
    return database.store


def person(number: int) -> RowKey:
    """Name a person."""
    return row_key("people", f"p-{number}")


async def test_many_rows_of_several_kinds_are_written_in_one_transaction(database: Database, people: Store) -> None:
    await write_row(people, person(1), name="one")
    writes = [RowWrite(person(number), {"name": f"n{number}", "seat": number}) for number in range(200)]
    writes += [RowWrite(person(number), {"team": None}) for number in range(0, 200, 2)]
    writes += [RowWrite(person(number), {"name": "late"}, RowWriteMode.INSERT_IF_ABSENT) for number in range(199, 202)]
    writes += [RowWrite(person(202), {"name": "new"}, RowWriteMode.INSERT)]

    await write(people, Changes(row_writes=writes))

    rows = await database.run("SELECT id, name, team, seat, twice FROM people")
    expected: set[tuple[Any, ...]] = {(f"p-{n}", f"n{n}", None if n % 2 == 0 else "red", n, 2 * n) for n in range(200)}
    expected |= {("p-200", "late", "red", None, None), ("p-201", "late", "red", None, None)}
    expected |= {("p-202", "new", "red", None, None)}
    assert set(rows) == expected
    assert len(rows) == 203


async def test_many_rows_are_read_at_once_and_missing_ones_are_none(people: Store) -> None:
    writes = [RowWrite(person(number), {"name": f"n{number}"}) for number in range(0, 100, 2)]
    await write(people, Changes(row_writes=writes))
    reads = [RowRead(person(number), ("name", "id")) for number in range(100)]
    reads += [RowRead(person(number), ("team",)) for number in range(10)]
    reads += [RowRead(person(0), ())]

    found = (await people.read_for_calls(reads, [])).rows

    assert [found[read] for read in reads[:100]] == [
        {"name": f"n{n}", "id": f"p-{n}"} if n % 2 == 0 else None for n in range(100)
    ]
    assert [found[read] for read in reads[100:110]] == [{"team": "red"} if n % 2 == 0 else None for n in range(10)]
    assert found[reads[-1]] == {}


async def test_writes_to_one_row_are_done_in_the_order_given(people: Store) -> None:
    writes = [
        RowWrite(person(1), {"name": "first"}, RowWriteMode.INSERT_IF_ABSENT),
        RowWrite(person(1), {"name": "second", "seat": 2}),
        RowWrite(person(2), {"name": "other"}),
        RowWrite(person(1), {"name": "third"}),
        RowWrite(person(1), {"name": "no more"}, RowWriteMode.INSERT_IF_ABSENT),
    ]

    await write(people, Changes(row_writes=writes))

    assert await read(people, person(1), "name", "seat") == {"name": "third", "seat": 2}


TWO_NAMES = (["ann", "ANN", "ann", "Ann", "bob"], [("ann", 3), ("bob", 4)])
TWO_ACCENTS = (["ánn", "ann", "ánn", "bob"], [("bob", 3), ("ánn", 2)])


@pytest.mark.parametrize(
    ("database", "names", "expected"),
    on_each_database([], {"postgresql": [TWO_NAMES], "mariadb": [TWO_NAMES, TWO_ACCENTS]}),
    indirect=["database"],
)
async def test_two_names_of_one_row_are_written_in_the_order_given(
    database: Database, names: list[str], expected: list[tuple[str, int]]
) -> None:
    if database.kind == "postgresql":
        await database.run("CREATE EXTENSION citext")
    key = "CITEXT" if database.kind == "postgresql" else "VARCHAR(20)"
    await database.run(f"CREATE TABLE loose (id {key} PRIMARY KEY, v INTEGER)")
    writes = [RowWrite(row_key("loose", name), {"v": number}) for number, name in enumerate(names)]

    await write(database.store, Changes(row_writes=writes))

    assert sorted(await database.run("SELECT id, v FROM loose")) == expected


async def test_a_key_of_zero_names_its_row_where_the_database_counts_keys_up(database: Database) -> None:
    counted = "INTEGER GENERATED BY DEFAULT AS IDENTITY" if database.kind == "postgresql" else "INTEGER AUTO_INCREMENT"
    await database.run(f"CREATE TABLE t (id {counted} PRIMARY KEY, v INTEGER)")

    await write_row(database.store, row_key("t", 0), v=5)

    assert await database.run("SELECT id, v FROM t") == [(0, 5)]


async def test_insert_if_absent_needs_no_required_columns_of_a_row_that_is_there(people: Store) -> None:
    await write_row(people, person(1), name="one")

    await write_row(people, person(1), RowWriteMode.INSERT_IF_ABSENT, seat=5)

    assert await read(people, person(1), "name", "seat") == {"name": "one", "seat": None}


@pytest.mark.parametrize("mode", RowWriteMode, ids=str)
async def test_a_row_that_is_in_the_way_by_another_unique_constraint_is_an_error(
    people: Store, mode: RowWriteMode
) -> None:
    await write_row(people, person(1), name="one", team="red", seat=1)

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(people, person(2), mode, name="two", team="red", seat=1)

    assert (failure.value.error.kind, failure.value.row) == ("UNIQUE", person(2))
    assert await read(people, person(2), "name") is None


CODES: dict[Kind, dict[str, str]] = {
    "postgresql": {"NOT_NULL": "23502", "UNIQUE": "23505"},
    "mariadb": {"NOT_NULL": "1364", "UNIQUE": "1062"},
}


@pytest.mark.parametrize(
    ("kind", "columns"), [("NOT_NULL", {"seat": 3}), ("UNIQUE", {"name": "two", "seat": 1})], ids=str
)
async def test_an_error_has_the_code_of_the_database(
    database: Database, people: Store, kind: str, columns: dict[str, Any]
) -> None:
    await write_row(people, person(1), name="one", seat=1)

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(people, person(2), **columns)

    error = failure.value.error
    assert (error.kind, error.code, error.table_name) == (kind, CODES[database.kind][kind], "people")


async def test_one_of_many_rows_that_is_refused_refuses_all_and_names_none(people: Store) -> None:
    writes = [RowWrite(person(number), {"name": "n", "seat": number % 9}) for number in range(10)]

    with pytest.raises(RowWriteFailed) as failure:
        await write(people, Changes(row_writes=writes))

    assert (failure.value.error.kind, failure.value.row) == ("UNIQUE", None)
    assert await read(people, person(0), "name") is None


async def test_a_value_that_does_not_fit_names_its_row_among_many(people: Store) -> None:
    writes = [RowWrite(person(number), {"name": "n" * number}) for number in range(15, 25)]

    with pytest.raises(RowWriteFailed) as failure:
        await write(people, Changes(row_writes=writes))

    assert (failure.value.error.kind, failure.value.row) == ("TOO_LONG", person(21))


async def test_a_generated_column_is_read_and_not_written(people: Store) -> None:
    await write_row(people, person(1), name="one", seat=4)

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(people, person(1), twice=5)

    assert failure.value.error.kind == "OTHER"
    assert await read(people, person(1), "twice") == {"twice": 8}


@pytest.mark.parametrize("mode", [RowWriteMode.UPDATE_OR_INSERT, RowWriteMode.INSERT_IF_ABSENT], ids=str)
async def test_transactions_that_insert_one_row_at_once_lose_nothing(people: Store, mode: RowWriteMode) -> None:
    columns: list[dict[str, Any]] = [{"seat": 7}, {"team": "blue"}] * 4

    await asyncio.gather(*(write_row(people, person(1), mode, name=f"n{n}", **c) for n, c in enumerate(columns)))

    found = await read(people, person(1), "team", "seat")
    if mode is RowWriteMode.UPDATE_OR_INSERT:
        assert found == {"team": "blue", "seat": 7}
    else:
        assert found in ({"team": "red", "seat": 7}, {"team": "blue", "seat": None})


@pytest.mark.parametrize("is_exact", [True, False], ids=["exact-keys", "loose-keys"])
@pytest.mark.parametrize("is_there", [True, False], ids=["there", "absent"])
async def test_transactions_that_count_up_in_one_row_at_once_lose_no_count(
    database: Database, is_there: bool, is_exact: bool
) -> None:
    if database.kind == "postgresql":
        await database.run("CREATE EXTENSION citext")
    loose = "CITEXT" if database.kind == "postgresql" else "VARCHAR(20)"
    key = key_type(database.kind, "TEXT") if is_exact else loose
    await database.run(f"CREATE TABLE counts (id {key} PRIMARY KEY, count INTEGER)")
    row = row_key("counts", "k")
    if is_there:
        await write_row(database.store, row, count=0)
    asked = RowRead(row, ("count",))

    def count_up(loaded: Loaded) -> Changes:
        count = (loaded.rows[asked] or {"count": 0})["count"]
        assert isinstance(count, int)
        return Changes(row_writes=[RowWrite(row, {"count": count + 1})])

    await asyncio.gather(*(database.store.transact(Deciding(count_up, needs=Needs(rows=[asked]))) for _ in range(10)))

    assert await read(database.store, row, "count") == {"count": 10}


async def test_transactions_that_lock_the_same_rows_in_other_orders_all_succeed(people: Store) -> None:
    numbers = range(20)
    await write(people, Changes(row_writes=[RowWrite(person(n), {"name": "n"}) for n in numbers]))
    orders = [list(numbers), list(reversed(numbers))] * 4

    await asyncio.gather(
        *(load(people, needs=Needs(rows=[RowRead(person(n), ("name",)) for n in order])) for order in orders)
    )

    assert people.counters.retries == 0


async def test_transactions_that_write_the_same_rows_in_other_orders_all_succeed(people: Store) -> None:
    numbers = range(20)
    await write(people, Changes(row_writes=[RowWrite(person(n), {"name": "n"}) for n in numbers]))
    orders = [list(numbers), list(reversed(numbers))] * 4

    await asyncio.gather(
        *(
            write(people, Changes(row_writes=[RowWrite(person(n), {"name": f"by {by}"}) for n in order]))
            for by, order in enumerate(orders)
        )
    )

    found = {(await read(people, person(n), "name"))["name"] for n in numbers}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("INTEGER", "VARCHAR(9)", "text"),
        ("VARCHAR(3)", "VARCHAR(9)", "longer"),
        ("NUMERIC(4,1)", "NUMERIC(9,3)", "1.125"),
        ("BOOLEAN", "INTEGER", 7),
    ],
    ids=str,
)
async def test_a_column_whose_type_has_changed_takes_the_values_of_the_new_one(
    database: Database, before: str, after: str, value: Any
) -> None:
    await database.run(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {before})")
    await write_row(database.store, row_key("t", 1), v=None)
    await read(database.store, row_key("t", 1), "v")
    await database.run("ALTER TABLE t DROP COLUMN v")
    await database.run(f"ALTER TABLE t ADD COLUMN v {after}")

    await write_row(database.store, row_key("t", 1), v=value)

    assert await read(database.store, row_key("t", 1), "v") == {"v": value}


async def test_a_column_that_was_dropped_is_refused_by_the_next_read_and_write(
    people: Store, database: Database
) -> None:
    await write_row(people, person(1), name="one", team="blue")
    await read(people, person(1), "team")
    await database.run(
        "ALTER TABLE people DROP CONSTRAINT people_team_seat_key"
        if database.kind == "postgresql"
        else "ALTER TABLE people DROP INDEX team"
    )
    await database.run("ALTER TABLE people DROP COLUMN team")

    with pytest.raises(RowReadFailed) as read_failure:
        await read(people, person(1), "team")
    with pytest.raises(RowWriteFailed) as write_failure:
        await write_row(people, person(1), team="red")

    assert read_failure.value.error.kind == write_failure.value.error.kind == "UNKNOWN_COLUMN"
    assert await read(people, person(1), "name") == {"name": "one"}


async def test_a_table_that_was_dropped_is_refused_by_the_next_read(people: Store, database: Database) -> None:
    await write_row(people, person(1), name="one")
    await database.run("DROP TABLE people")

    with pytest.raises(RowReadFailed) as failure:
        await read(people, person(1), "name")

    assert failure.value.error.kind == "UNKNOWN_TABLE"


async def test_a_refusal_from_within_a_trigger_is_told_though_it_looks_like_a_change_of_the_table(
    database: Database, people: Store
) -> None:
    if database.kind == "postgresql":
        await database.run(
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO gone VALUES (1); END $$"
        )
        await database.run("CREATE TRIGGER tr BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()")
    else:
        await database.run("CREATE TRIGGER tr BEFORE INSERT ON people FOR EACH ROW INSERT INTO gone VALUES (1)")

    for _ in range(2):
        with pytest.raises(RowWriteFailed) as failure:
            await write_row(people, person(1), name="one")

        assert failure.value.error.kind == "UNKNOWN_TABLE"
        assert "gone" in failure.value.error.message


async def test_a_view_takes_writes_where_the_database_does(database: Database, people: Store) -> None:
    await database.run("CREATE VIEW shown AS SELECT id AS person, name, seat FROM people")
    row = row_key("shown", "p-1", "person")

    await write_row(people, row, name="one")
    await write_row(people, row, seat=3)
    await write_row(people, row, RowWriteMode.INSERT_IF_ABSENT, name="two")

    assert await read(people, person(1), "name", "seat") == {"name": "one", "seat": 3}
    assert await read(people, row, "name", "seat") == {"name": "one", "seat": 3}


STORED_OTHERWISE: dict[Kind, list[tuple[str, str, Any]]] = {
    "postgresql": [
        ("DATE", "infinity", "infinity"),
        ("TIMESTAMPTZ", "-infinity", "-infinity"),
        ("TIMESTAMP", "0044-03-15 12:00:00 BC", "0044-03-15T12:00:00 BC"),
        ("TIME", "24:00:00", "24:00:00"),
        ("NUMERIC", "NaN", "NaN"),
        ("DOUBLE PRECISION", "-Infinity", "-inf"),
        ("REAL", "NaN", "nan"),
        ("INTERVAL", "1 month", "P30D"),
        ("CHAR(5)", "a", "a"),
    ],
    "mariadb": [
        ("TIME", "-838:59:59", "-838:59:59"),
        ("TIME(6)", "25:00:00.5", "25:00:00.500000"),
        ("TINYINT(1)", "2", 2),
        ("FLOAT", "16777216", 16777216.0),
        ("CHAR(5)", "a", "a"),
    ],
}


@pytest.mark.parametrize(
    ("database", "declared_type", "stored", "found"),
    on_each_database([], STORED_OTHERWISE),
    indirect=["database"],
    ids=str,
)
async def test_what_the_application_has_stored_otherwise_is_read_as_it_is(
    database: Database, declared_type: str, stored: str, found: Any
) -> None:
    await database.run(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared_type})")
    await database.run(f"INSERT INTO t VALUES (1, '{stored}')")

    assert await read(database.store, row_key("t", 1), "v") == {"v": found}
