"""What a server says of the system tables it finds, and what installing them gives."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from server_stub.storage.schema import (
    INSTALLING,
    SCHEMA_VERSION,
    TABLE_NAMES,
    SchemaDamaged,
    SchemaError,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    SchemaUnfinished,
    ShardCountMismatch,
    check,
    installation,
)
from server_stub.storage.schema_change import SchemaDialect
from server_stub.storage.sqlite import SqliteOptions, SqliteStore
from server_stub.storage.system_tables import metadata

EVERY_TABLE = list(TABLE_NAMES)
OPTIONS = SqliteOptions(install_schema=False)


def facts(version: str | None) -> dict[str, str]:
    return {"num_shards": "16"} | ({} if version is None else {"schema_version": version})


def test_tables_of_this_version_pass() -> None:
    check([*EVERY_TABLE, "a_table_of_the_user"], facts(str(SCHEMA_VERSION)), num_shards=16)


@pytest.mark.parametrize(
    ("tables", "version", "error", "message"),
    [
        ([], None, SchemaMissing, "no xdb tables; create them with `xdb schema install`"),
        (["a_table_of_the_user"], None, SchemaMissing, "no xdb tables"),
        (EVERY_TABLE, str(SCHEMA_VERSION - 1), SchemaOutdated, "`xdb schema upgrade`"),
        (EVERY_TABLE, str(SCHEMA_VERSION + 1), SchemaTooNew, "run the newer server"),
        ([*EVERY_TABLE, "xdb_sys_of_the_future"], "99", SchemaTooNew, "version 99, newer than"),
        (EVERY_TABLE, None, SchemaDamaged, "has no row 'schema_version'"),
        (EVERY_TABLE, "", SchemaDamaged, "not a number"),
        (EVERY_TABLE, "²", SchemaDamaged, "not a number"),
        (EVERY_TABLE, INSTALLING, SchemaUnfinished, "finish what was begun with `xdb schema install`"),
        (["xdb_sys_timer_tasks"], None, SchemaDamaged, "xdb_sys_cluster, which tells their version, does not exist"),
        (["xdb_sys_cluster", "xdb_sys_timer_tasks"], str(SCHEMA_VERSION), SchemaDamaged, "xdb_sys_shard missing"),
    ],
)
def test_anything_else_is_refused_with_a_message_of_its_own(
    tables: list[str], version: str | None, error: type[SchemaError], message: str
) -> None:
    with pytest.raises(error) as refusal:
        check(tables, facts(version))

    assert message in str(refusal.value)


def test_a_damaged_schema_names_every_table_that_is_missing() -> None:
    with pytest.raises(SchemaDamaged, match=r"xdb_sys_history, xdb_sys_internal_queue missing"):
        check(set(EVERY_TABLE) - {"xdb_sys_internal_queue", "xdb_sys_history"}, facts(str(SCHEMA_VERSION)))


def test_a_first_table_without_rows_is_an_install_that_has_just_begun() -> None:
    with pytest.raises(SchemaUnfinished):
        check(["xdb_sys_cluster", "a_table_of_the_user"], {})


def test_another_number_of_shards_than_the_tables_have_is_refused_with_both() -> None:
    with pytest.raises(ShardCountMismatch, match="installed with num_shards=16, this server is set to 8") as refusal:
        check(EVERY_TABLE, facts(str(SCHEMA_VERSION)), num_shards=8)

    assert (refusal.value.installed, refusal.value.asked) == (16, 8)


@pytest.mark.parametrize("dialect", SchemaDialect, ids=str)
def test_the_tables_are_written_for_each_database_with_the_version_last(dialect: SchemaDialect) -> None:
    statements = installation(dialect, num_shards=16).statements

    created = {statement.split()[2] for statement in statements if statement.startswith("CREATE TABLE")}
    assert created == set(EVERY_TABLE)
    assert "INSERT INTO xdb_sys_cluster (name, value) VALUES ('num_shards', '16')" in statements
    assert statements[-1] == f"INSERT INTO xdb_sys_cluster (name, value) VALUES ('schema_version', '{SCHEMA_VERSION}')"


async def test_opening_an_empty_database_installs_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "new.db"

    await SqliteStore.open(path).close()

    assert {name for (name,) in _run(path, "SELECT name FROM sqlite_master WHERE type = 'table'")} == set(EVERY_TABLE)


async def test_opening_again_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    await SqliteStore.open(path).close()
    _run(path, "INSERT INTO xdb_sys_local_attribute VALUES ('e-1', 'a', '1')")

    await SqliteStore.open(path).close()

    assert _run(path, "SELECT name FROM xdb_sys_local_attribute") == [("a",)]


async def test_tables_are_installed_beside_those_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "user.db"
    _run(path, "CREATE TABLE users (id INTEGER)")

    await SqliteStore.open(path).close()

    assert _run(path, "SELECT count(*) FROM users") == [(0,)]


def test_a_database_without_tables_is_refused_when_they_are_not_to_be_installed(tmp_path: Path) -> None:
    with pytest.raises(SchemaMissing):
        SqliteStore.open(tmp_path / "new.db", OPTIONS)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("UPDATE xdb_sys_cluster SET value = '99' WHERE name = 'schema_version'", SchemaTooNew),
        ("UPDATE xdb_sys_cluster SET value = '0' WHERE name = 'schema_version'", SchemaOutdated),
        ("DELETE FROM xdb_sys_cluster", SchemaDamaged),
        ("DROP TABLE xdb_sys_cluster", SchemaDamaged),
        ("DROP TABLE xdb_sys_timer_tasks", SchemaDamaged),
    ],
)
async def test_a_schema_that_does_not_fit_is_refused_and_left_as_it_is(
    tmp_path: Path, damage: str, error: type[SchemaError]
) -> None:
    path = tmp_path / "old.db"
    await SqliteStore.open(path).close()
    _run(path, damage)
    before = _run(path, "SELECT sql FROM sqlite_master ORDER BY name")

    with pytest.raises(error):
        SqliteStore.open(path)

    assert _run(path, "SELECT sql FROM sqlite_master ORDER BY name") == before


def _run(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_tables_that_a_server_looks_for_are_those_that_it_creates() -> None:
    assert set(TABLE_NAMES) == metadata.tables.keys()


def test_starting_a_server_on_tables_that_are_there_imports_no_sqlalchemy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'xdb.db'}"
    program = (
        "import asyncio, sys\n"
        "from server_stub.app import Server\n"
        "from server_stub.config import ServerSettings\n"
        "async def main():\n"
        f"    async with await Server.open(ServerSettings(database_url={url!r})): pass\n"
        "asyncio.run(main())\n"
        "print('sqlalchemy' in sys.modules)\n"
    )

    imported = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True).stdout
        for _ in range(2)
    ]

    assert imported == ["True\n", "False\n"]
