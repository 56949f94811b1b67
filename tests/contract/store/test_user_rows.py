"""Rows of the user's tables: written column by column, read as they are, errors named by kind (semantics 7.3, 7.4)."""

from typing import Any

import pytest

from server_stub.core.model import RowKey, RowRead, RowWriteMode
from server_stub.core.ports import MappingRefused, Needs, RowReadFailed, RowWriteFailed, Store
from tests.contract.store.column_types import column_type, key_type, on_each_database
from tests.contract.store.databases import Database
from tests.contract.store.works import load, row_key, write_row
from tests.support.databases import Kind
from xdb_sdk.protocol import Json, TableMapping

ADA = row_key("users", 1)


@pytest.fixture
async def users(database: Database) -> Store:
    """Give a store whose user has a table of users."""
    await database.run(
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, email VARCHAR(50) UNIQUE, "
        "age INTEGER CHECK (age >= 0), joined VARCHAR(10) DEFAULT 'today')"
    )
    return database.store


async def read(store: Store, row: RowKey, *columns: str) -> Any:
    """Read a row as a call does, and check that a transaction reads the same."""
    asked = RowRead(row, columns)
    outside = (await store.read_for_calls([asked], [])).rows[asked]
    inside = (await load(store, needs=Needs(rows=[asked]))).rows[asked]
    assert outside == inside
    return outside


async def test_a_row_that_is_missing_reads_as_none(users: Store) -> None:
    assert await read(users, ADA, "name") is None


async def test_the_first_write_inserts_the_row_and_leaves_defaults_to_the_database(users: Store) -> None:
    await write_row(users, ADA, name="Ada")

    assert await read(users, ADA, "id", "name", "email", "joined") == {
        "id": 1,
        "name": "Ada",
        "email": None,
        "joined": "today",
    }


async def test_a_later_write_touches_only_its_columns(database: Database, users: Store) -> None:
    await database.run("INSERT INTO users (id, name, email, joined) VALUES (1, 'Ada', 'a@x', 'before')")

    await write_row(users, ADA, email="b@x")

    assert await database.run("SELECT id, name, email, joined FROM users") == [(1, "Ada", "b@x", "before")]


async def test_a_write_needs_no_value_for_required_columns_of_a_row_that_exists(database: Database) -> None:
    await database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, secret INTEGER NOT NULL)")
    await database.run("INSERT INTO t VALUES (1, 1, 1)")

    await write_row(database.store, row_key("t", 1), a=2)

    assert await database.run("SELECT * FROM t") == [(1, 2, 1)]


async def test_none_is_written_as_null_and_read_as_none(database: Database, users: Store) -> None:
    await write_row(users, ADA, name="Ada", email="a@x")

    await write_row(users, ADA, email=None)

    assert await database.run("SELECT email IS NULL FROM users") == [(1,)]
    assert await read(users, ADA, "email") == {"email": None}


async def test_insert_if_absent_inserts(users: Store) -> None:
    await write_row(users, ADA, RowWriteMode.INSERT_IF_ABSENT, name="Ada")

    assert await read(users, ADA, "name") == {"name": "Ada"}


async def test_insert_if_absent_leaves_a_row_untouched(users: Store) -> None:
    await write_row(users, ADA, name="Ada")

    await write_row(users, ADA, RowWriteMode.INSERT_IF_ABSENT, name="Bob", email="b@x")

    assert await read(users, ADA, "name", "email") == {"name": "Ada", "email": None}


async def test_insert_of_a_row_that_exists_is_refused(users: Store) -> None:
    await write_row(users, ADA, RowWriteMode.INSERT, name="Ada")

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(users, ADA, RowWriteMode.INSERT, name="Bob")

    assert failure.value.error.kind == "UNIQUE"
    assert await read(users, ADA, "name") == {"name": "Ada"}


async def test_writing_no_columns_writes_nothing(users: Store) -> None:
    for mode in RowWriteMode:
        await write_row(users, ADA, mode)

    assert await read(users, ADA, "id") is None


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"name": None}, "NOT_NULL"),
        ({"name": "Eve", "email": "taken@x"}, "UNIQUE"),
        ({"name": "Eve", "age": -1}, "CHECK"),
        ({"name": "x" * 21}, "TOO_LONG"),
        ({"name": 5}, "TYPE"),
        ({"age": "five"}, "TYPE"),
        ({"age": 2**63}, "TYPE"),
        ({"nickname": "Eve"}, "UNKNOWN_COLUMN"),
        ({"Name": "Eve"}, "UNKNOWN_COLUMN"),
        ({"id": 7}, "OTHER"),
    ],
    ids=str,
)
async def test_a_refused_write_says_what_of_and_names_the_table(
    database: Database, users: Store, columns: dict[str, Json], kind: str
) -> None:
    await database.run("INSERT INTO users (id, name, email) VALUES (2, 'Taken', 'taken@x')")

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(users, ADA, **columns)

    error = failure.value.error
    assert (error.operation, error.kind, error.table_name) == ("WRITE", kind, "users")
    assert failure.value.row == ADA
    assert await database.run("SELECT id FROM users") == [(2,)]


DEFERRED = [("DEFERRABLE INITIALLY DEFERRED",)]


@pytest.mark.parametrize(
    ("database", "deferred"),
    on_each_database([("",)], {"sqlite": DEFERRED, "postgresql": DEFERRED}),
    indirect=["database"],
)
async def test_a_row_that_refers_to_none_is_refused_also_when_the_check_is_at_commit(
    database: Database, deferred: str
) -> None:
    await database.run("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    await database.run(
        "CREATE TABLE children (id INTEGER PRIMARY KEY, parent_id INTEGER, "
        f"FOREIGN KEY (parent_id) REFERENCES parents (id) {deferred})"
    )

    with pytest.raises(RowWriteFailed) as failure:
        await write_row(database.store, row_key("children", 1), parent_id=9)

    assert failure.value.error.kind == "FOREIGN_KEY"
    assert await database.run("SELECT count(*) FROM children") == [(0,)]


@pytest.mark.parametrize("table_name", ["nobody", "Users", "users; DROP TABLE users", "xdb_sys_process_execution"])
async def test_a_table_the_user_does_not_have_is_refused(users: Store, table_name: str) -> None:
    row = row_key(table_name, 1)

    with pytest.raises(RowWriteFailed) as write_failure:
        await write_row(users, row, name="x")
    with pytest.raises(RowReadFailed) as read_failure:
        await read(users, row, "name")
    with pytest.raises(MappingRefused):
        await users.canonical_mapping(TableMapping(table_name=table_name, primary_key={"id": 1}))

    assert write_failure.value.error.kind == read_failure.value.error.kind == "UNKNOWN_TABLE"
    assert read_failure.value.error.operation == "READ"


async def test_reading_an_unknown_column_is_refused(users: Store) -> None:
    with pytest.raises(RowReadFailed) as failure:
        await read(users, ADA, "name", "nickname")

    assert failure.value.error.kind == "UNKNOWN_COLUMN"
    assert "nickname" in failure.value.error.message


async def test_a_key_of_another_type_is_refused(users: Store) -> None:
    with pytest.raises(RowReadFailed) as failure:
        await read(users, row_key("users", "one"), "name")

    assert failure.value.error.kind == "TYPE"


async def test_a_column_added_by_the_user_is_found_at_once(database: Database, users: Store) -> None:
    await write_row(users, ADA, name="Ada")
    await database.run("ALTER TABLE users ADD COLUMN nickname VARCHAR(20)")

    await write_row(users, ADA, nickname="Countess")

    assert await read(users, ADA, "nickname") == {"nickname": "Countess"}


async def test_a_table_made_anew_with_other_types_is_seen_as_it_is(database: Database, users: Store) -> None:
    await write_row(users, ADA, name="Ada")
    await database.run("DROP TABLE users")
    await database.run("CREATE TABLE users (id INTEGER PRIMARY KEY, name INTEGER)")

    await write_row(users, ADA, name=5)

    assert await read(users, ADA, "name") == {"name": 5}


async def test_names_may_hold_anything_that_quotes_allow(database: Database) -> None:
    await database.run(
        'CREATE TABLE "My ""odd"" Täble" ("Key Column" INTEGER PRIMARY KEY, "select" TEXT, "a;b\'" TEXT)'
    )
    row = row_key('My "odd" Täble', 1, "Key Column")

    columns: dict[str, Any] = {"select": "s", "a;b'": "t"}

    await write_row(database.store, row, **columns)

    assert await read(database.store, row, "a;b'", "select", "Key Column") == {
        "a;b'": "t",
        "select": "s",
        "Key Column": 1,
    }


@pytest.mark.parametrize(
    "text", ["'; DROP TABLE users; --", '"', "\\", "%s ? :x $1", "漢字 🦉 é", "a\nb\tc", "", " padded "], ids=ascii
)
async def test_any_text_comes_back_as_it_was_written(database: Database, text: str) -> None:
    key, note = key_type(database.kind, "TEXT"), column_type(database.kind, "TEXT")
    await database.run(f"CREATE TABLE notes (id {key} PRIMARY KEY, note {note})")
    row = row_key("notes", text)

    await write_row(database.store, row, note=text)

    assert await read(database.store, row, "id", "note") == {"id": text, "note": text}


async def test_five_texts_of_a_megabyte_come_back_whole(database: Database) -> None:
    text = column_type(database.kind, "LONG TEXT")
    await database.run(
        f"CREATE TABLE notes (id INTEGER PRIMARY KEY, {', '.join(f'{name} {text}' for name in 'abcde')})"
    )
    columns: dict[str, Any] = {name: name * 1_000_000 for name in "abcde"}

    await write_row(database.store, row_key("notes", 1), **columns)

    assert await read(database.store, row_key("notes", 1), *columns) == columns


async def test_rows_with_several_key_columns_are_named_by_all_of_them(database: Database) -> None:
    await database.run("CREATE TABLE seats (hall INTEGER, seat INTEGER, taken INTEGER, PRIMARY KEY (hall, seat))")
    first, second = (RowKey("seats", (("hall", 1), ("seat", number))) for number in (1, 2))

    await write_row(database.store, first, taken=1)
    await write_row(database.store, second, taken=0)

    assert await read(database.store, first, "taken") == {"taken": 1}


LOGGING_TRIGGERS: dict[Kind, list[str]] = {
    "sqlite": [
        (
            "CREATE TRIGGER logs AFTER INSERT ON users BEGIN INSERT INTO log VALUES (new.name); "
            "SELECT raise(ABORT, 'no Mallory here') WHERE new.name = 'Mallory'; END"
        )
    ],
    "postgresql": [
        (
            "CREATE FUNCTION log_user() RETURNS trigger LANGUAGE plpgsql AS $$ "
            "BEGIN INSERT INTO log VALUES (new.name); "
            "IF new.name = 'Mallory' THEN RAISE 'no Mallory here'; END IF; RETURN NULL; END $$"
        ),
        "CREATE TRIGGER logs AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION log_user()",
    ],
    "mariadb": [
        (
            "CREATE TRIGGER logs AFTER INSERT ON users FOR EACH ROW BEGIN INSERT INTO log VALUES (new.name); "
            "IF new.name = 'Mallory' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no Mallory here'; END IF; END"
        )
    ],
}


async def test_triggers_of_the_user_act_and_refuse_in_the_same_transaction(database: Database, users: Store) -> None:
    await database.run("CREATE TABLE log (name VARCHAR(20))")
    for statement in LOGGING_TRIGGERS[database.kind]:
        await database.run(statement)
    await write_row(users, ADA, name="Ada")

    with pytest.raises(RowWriteFailed, match="no Mallory here"):
        await write_row(users, row_key("users", 2), name="Mallory")

    assert await database.run("SELECT name FROM log") == [("Ada",)]


async def test_plain_sql_of_the_application_is_seen_by_the_next_read(database: Database, users: Store) -> None:
    await write_row(users, ADA, name="Ada")

    await database.run("UPDATE users SET name = 'Countess'")

    assert await read(users, ADA, "name") == {"name": "Countess"}


async def test_a_deleted_row_is_inserted_by_the_next_write(database: Database, users: Store) -> None:
    await write_row(users, ADA, name="Ada")
    await database.run("DELETE FROM users")

    await write_row(users, ADA, name="Ada again")

    assert await read(users, ADA, "name") == {"name": "Ada again"}


async def test_a_key_that_names_several_rows_is_refused(database: Database) -> None:
    await database.run("CREATE TABLE loose (id INTEGER, name TEXT)")
    await database.run("INSERT INTO loose VALUES (1, 'a'), (1, 'b')")

    with pytest.raises(RowWriteFailed, match="names 2 rows of 'loose'"):
        await write_row(database.store, row_key("loose", 1), name="c")

    assert await database.run("SELECT name FROM loose ORDER BY name") == [("a",), ("b",)]


async def test_binary_keys_name_rows(database: Database) -> None:
    await database.run(f"CREATE TABLE blobs (id {key_type(database.kind, 'VARBINARY(8)')} PRIMARY KEY, name TEXT)")
    row = row_key("blobs", {"$bytes": "AAH/"})

    await write_row(database.store, row, name="binary")

    assert await read(database.store, row, "id", "name") == {"id": {"$bytes": "AAH/"}, "name": "binary"}
