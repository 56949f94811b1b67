"""Which tables a transaction is told to distrust: a write to one of their rows may change a row of another name."""

import pytest

from server_stub.core.model import RowRead
from server_stub.core.ports import Needs, Store
from tests.contract.store.column_types import forget_tables, key_type, on_each_database
from tests.contract.store.databases import Database
from tests.contract.store.works import created, load, process, row_key, write
from tests.support.databases import Kind
from xdb_sdk.protocol import TableMapping


async def volatile(store: Store, *table_names: str) -> set[str]:
    """Give the volatile ones among tables that a transaction reads rows of."""
    reads = [RowRead(row_key(name, "k"), ()) for name in table_names]
    return set((await load(store, needs=Needs(rows=reads))).volatile_tables)


async def make(database: Database, *statements: str) -> Store:
    """Give a store whose user has a table `notes`, and what the statements make; KEY_TYPE stands for a type of keys."""
    for statement in ("CREATE TABLE notes (id KEY_TYPE PRIMARY KEY, text VARCHAR(50))", *statements):
        await database.run(statement.replace("KEY_TYPE", key_type(database.kind, "TEXT")))
    return database.store


LOOSE_COLLATION = (
    "CREATE COLLATION loose (provider = libc, locale = 'C')",
    # Only ICU has such collations, and not every server is built with it.
    "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'",
)
USERS: dict[Kind, list[str]] = {
    "sqlite": [
        "CREATE TABLE users (id TEXT NOT NULL, email TEXT COLLATE NOCASE UNIQUE, PRIMARY KEY (id)) WITHOUT ROWID"
    ],
    "postgresql": [
        *LOOSE_COLLATION,
        (
            "CREATE TABLE users (id TEXT PRIMARY KEY, email TEXT COLLATE loose UNIQUE, "
            "twice TEXT GENERATED ALWAYS AS (id || id) STORED, age INTEGER DEFAULT 1 CHECK (age > 0))"
        ),
    ],
    "mariadb": [
        (
            "CREATE TABLE users (id KEY_TYPE PRIMARY KEY, email VARCHAR(50) COLLATE latin1_general_ci UNIQUE, "
            "twice VARCHAR(99) AS (concat(email, email)) STORED, age INTEGER DEFAULT 1 CHECK (age > 0))"
        )
    ],
}


async def test_rows_of_plain_tables_are_what_their_keys_say(database: Database) -> None:
    store = await make(database, *USERS[database.kind])

    assert await volatile(store, "notes", "users") == set()


SEVERAL_NAMES: dict[Kind, dict[str, list[str]]] = {
    "sqlite": {
        "key without regard to case": ["CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY)"],
        "key without regard to spaces": ["CREATE TABLE t (id TEXT COLLATE RTRIM, PRIMARY KEY (id))"],
        "no key": ["CREATE TABLE t (id TEXT)"],
        "a write may delete another row": ["CREATE TABLE t (id TEXT PRIMARY KEY, n TEXT UNIQUE ON CONFLICT REPLACE)"],
    },
    "postgresql": {
        "key without regard to case": [*LOOSE_COLLATION, "CREATE TABLE t (id TEXT COLLATE loose PRIMARY KEY)"],
        "key of a domain without regard to case": [
            *LOOSE_COLLATION,
            "CREATE DOMAIN loose_name AS TEXT COLLATE loose",
            "CREATE TABLE t (id loose_name PRIMARY KEY)",
        ],
        "key of a type that has several texts for a value": ["CREATE TABLE t (id NAME PRIMARY KEY)"],
        "no key": ["CREATE TABLE t (id TEXT)"],
        "rows of another table": ["CREATE TABLE t (id TEXT PRIMARY KEY)", "CREATE TABLE more () INHERITS (t)"],
        "rows in partitions": [
            "CREATE TABLE t (id TEXT PRIMARY KEY) PARTITION BY HASH (id)",
            "CREATE TABLE part PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        ],
        "a rule": [
            "CREATE TABLE t (id TEXT PRIMARY KEY)",
            "CREATE RULE also AS ON INSERT TO t DO ALSO DELETE FROM notes",
        ],
    },
    "mariadb": {
        "key without regard to case": ["CREATE TABLE t (id VARCHAR(50) PRIMARY KEY)"],
        "key without regard to spaces": ["CREATE TABLE t (id VARCHAR(50) COLLATE latin1_bin PRIMARY KEY)"],
        "key with one more column": ["CREATE TABLE t (id KEY_TYPE, n VARCHAR(5), PRIMARY KEY (id, n))"],
        "key of a type that has several texts for a value": ["CREATE TABLE t (id INET6 PRIMARY KEY)"],
        "no key": ["CREATE TABLE t (id KEY_TYPE)"],
    },
}


@pytest.mark.parametrize(
    ("database", "case"),
    on_each_database([], {kind: [(case,) for case in cases] for kind, cases in SEVERAL_NAMES.items()}),
    indirect=["database"],
)
async def test_a_table_whose_rows_have_several_names_is_volatile(database: Database, case: str) -> None:
    store = await make(database, *SEVERAL_NAMES[database.kind][case])

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
    parents = "Parents" if database.kind == "sqlite" else "parents"  # which looks names up without regard to case
    store = await make(
        database,
        "CREATE TABLE parents (id KEY_TYPE PRIMARY KEY, code VARCHAR(9) UNIQUE)",
        "CREATE TABLE children (id KEY_TYPE PRIMARY KEY, code VARCHAR(9), "
        f"FOREIGN KEY (code) REFERENCES {parents} (code) {action})",
    )

    assert await volatile(store, "notes", "parents", "children") == expected


TRIGGER: dict[Kind, list[str]] = {
    "sqlite": ["CREATE TRIGGER t AFTER UPDATE ON users BEGIN UPDATE notes SET text = 'x'; END"],
    "postgresql": [
        (
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN UPDATE notes SET text = 'x'; RETURN NULL; END $$"
        ),
        "CREATE TRIGGER t AFTER UPDATE ON users EXECUTE FUNCTION f()",
    ],
    "mariadb": ["CREATE TRIGGER t AFTER UPDATE ON users FOR EACH ROW UPDATE notes SET text = 'x'"],
}


async def test_a_table_is_volatile_while_it_has_a_trigger(database: Database) -> None:
    store = await make(database, "CREATE TABLE users (id KEY_TYPE PRIMARY KEY)")
    before = await volatile(store, "notes", "users")
    for statement in TRIGGER[database.kind]:
        await database.run(statement)
    forget_tables(database)
    during = await volatile(store, "notes", "users")
    await database.run("DROP TRIGGER t ON users" if database.kind == "postgresql" else "DROP TRIGGER t")
    forget_tables(database)

    after = await volatile(store, "notes", "users")

    # With SQLite no trigger is looked into: while there is one, every table is volatile.
    expected = {"notes", "users"} if database.kind == "sqlite" else {"users"}
    assert (before, during, after) == (set(), expected, set())


async def test_a_view_makes_all_tables_volatile_that_it_is_loaded_with(database: Database) -> None:
    store = await make(database, "CREATE VIEW shown AS SELECT id, text FROM notes")

    assert await volatile(store, "notes", "shown") == {"notes", "shown"}
    assert await volatile(store, "notes") == set()


async def test_tables_that_loaded_executions_are_mapped_to_are_looked_at_too(database: Database) -> None:
    store = await make(database, "CREATE TABLE loose (id KEY_TYPE)")
    mappings = tuple(TableMapping(table_name=name, primary_key={"id": "k"}) for name in ("loose", "notes", "gone"))
    await write(store, created(process(tables=mappings)))

    assert (await load(store, "e-1", touches_rows=True)).volatile_tables == {"loose"}
