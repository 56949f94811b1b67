"""Which tables a transaction is told to distrust: a write to one of their rows may change a row of another name."""

import pytest

from server_stub.core.model import RowRead
from server_stub.core.ports import Needs, Store
from tests.contract.store.databases import Database
from tests.contract.store.works import created, load, process, row_key, write
from xdb_sdk.protocol import TableMapping


async def volatile(store: Store, *table_names: str) -> set[str]:
    """Give the volatile ones among tables that a transaction reads rows of."""
    reads = [RowRead(row_key(name, "k"), ()) for name in table_names]
    return set((await load(store, needs=Needs(rows=reads))).volatile_tables)


async def make(database: Database, *statements: str) -> Store:
    """Give a store whose user has a plain table `notes`, and whatever the statements make."""
    for statement in ("CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT)", *statements):
        await database.run(statement)
    return database.store


async def test_rows_of_plain_tables_are_what_their_keys_say(database: Database) -> None:
    store = await make(
        database,
        "CREATE TABLE users (id TEXT NOT NULL, email TEXT COLLATE NOCASE UNIQUE, PRIMARY KEY (id)) WITHOUT ROWID",
    )

    assert await volatile(store, "notes", "users") == set()


@pytest.mark.parametrize(
    "table",
    [
        pytest.param("id TEXT COLLATE NOCASE PRIMARY KEY", id="key without regard to case"),
        pytest.param("id TEXT COLLATE RTRIM, PRIMARY KEY (id)", id="key without regard to spaces"),
        pytest.param("id TEXT", id="no key"),
        pytest.param("id TEXT PRIMARY KEY, n TEXT UNIQUE ON CONFLICT REPLACE", id="a write may delete another row"),
    ],
)
async def test_a_table_whose_rows_have_several_names_is_volatile(database: Database, table: str) -> None:
    store = await make(database, f"CREATE TABLE t ({table})")

    assert await volatile(store, "notes", "t") == {"t"}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("ON UPDATE CASCADE", {"parents", "children"}),
        ("ON DELETE SET NULL", {"parents", "children"}),
        ("ON UPDATE RESTRICT ON DELETE NO ACTION", set()),
        ("", set()),
    ],
    ids=["update cascades", "delete sets null", "nothing is done", "no action named"],
)
async def test_both_ends_of_a_foreign_key_that_acts_are_volatile(
    database: Database, action: str, expected: set[str]
) -> None:
    store = await make(
        database,
        "CREATE TABLE parents (id TEXT PRIMARY KEY, code TEXT UNIQUE)",
        f"CREATE TABLE children (id TEXT PRIMARY KEY, code TEXT REFERENCES Parents (code) {action})",
    )

    assert await volatile(store, "notes", "parents", "children") == expected


async def test_every_table_is_volatile_while_there_is_a_trigger(database: Database) -> None:
    store = await make(database, "CREATE TABLE users (id TEXT PRIMARY KEY)")
    before = await volatile(store, "notes", "users")
    await database.run("CREATE TRIGGER t AFTER UPDATE ON users BEGIN UPDATE notes SET text = 'x'; END")
    during = await volatile(store, "notes", "users")
    await database.run("DROP TRIGGER t")

    after = await volatile(store, "notes", "users")

    assert (before, during, after) == (set(), {"notes", "users"}, set())


async def test_a_view_makes_all_tables_volatile_that_it_is_loaded_with(database: Database) -> None:
    store = await make(database, "CREATE VIEW shown AS SELECT id, text FROM notes")

    assert await volatile(store, "notes", "shown") == {"notes", "shown"}
    assert await volatile(store, "notes") == set()


async def test_tables_that_loaded_executions_are_mapped_to_are_looked_at_too(database: Database) -> None:
    store = await make(database, "CREATE TABLE loose (id TEXT)")
    mappings = tuple(TableMapping(table_name=name, primary_key={"id": "k"}) for name in ("loose", "notes", "gone"))
    await write(store, created(process(tables=mappings)))

    assert (await load(store, "e-1")).volatile_tables == {"loose"}
