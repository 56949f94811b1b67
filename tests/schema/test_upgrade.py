"""Databases that a server with version 1 has written, and what upgrading makes of them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from server_stub.storage.schema import SCHEMA_VERSION, SchemaError, SchemaOutdated, upgrades
from server_stub.storage.sqlite import DatabaseInUse, SqliteStore
from tests.schema.conftest import NewDatabase
from tests.schema.databases import MariadbDatabase, SchemaDatabase, SqliteDatabase
from tests.schema.version_1 import install_version_1, statements_of

TABLES = {
    "xdb_sys_process_execution": "process_execution_id",
    "xdb_sys_async_state_execution": "row_id",
    "xdb_sys_timer_tasks": "fire_at_ms",
    "xdb_sys_internal_queue": "sequence_id",
    "xdb_sys_local_attribute": "process_execution_id",
}


async def rows_of(database: SchemaDatabase) -> dict[str, Sequence[tuple[Any, ...]]]:
    """Give all rows, by columns of version 1."""
    found: dict[str, Sequence[tuple[Any, ...]]] = {}
    inserts = "\n".join(statements_of("rows.sql"))
    for table, key in TABLES.items():
        columns = re.findall(rf"INSERT INTO {table} \((.+)\)", inserts)[0]
        found[table] = await database.run([f"SELECT {columns} FROM {table} ORDER BY {key}"])
    return found


async def test_an_upgraded_database_is_like_a_new_one(new: NewDatabase) -> None:
    upgraded, installed = new(), new()
    await install_version_1(upgraded)
    await installed.prepare()

    version = await upgraded.upgrade()

    assert version == 1
    assert await upgraded.describe() == await installed.describe()
    for table in ("xdb_sys_cluster", "xdb_sys_shard", "xdb_sys_member"):
        rows = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert await upgraded.run([rows]) == await installed.run([rows])


async def test_an_upgrade_keeps_every_value_of_every_row(database: SchemaDatabase) -> None:
    await install_version_1(database)
    before = await rows_of(database)

    await database.upgrade()

    assert await rows_of(database) == before
    claims = "SELECT DISTINCT claim_range FROM xdb_sys_async_state_execution"
    assert await database.run([claims]) == [(0,)]


async def test_an_upgrade_makes_what_user_code_recorded_events_of_the_histories(database: SchemaDatabase) -> None:
    await install_version_1(database)
    event = "INSERT INTO xdb_sys_user_event (row_id, process_execution_id, at_ms, name, data) VALUES "
    await database.run([event + """(3, 'former-000002', 1767225602000, 'said "so" – \\', '[1,{"a":2}]')"""])

    await database.upgrade()

    history = (
        "SELECT event_id, at_ms, event_type, data FROM xdb_sys_history WHERE process_execution_id = 'former-000002'"
    )
    counts = "SELECT next_event_id, history_bytes FROM xdb_sys_process_execution ORDER BY process_execution_id"
    first, second = await database.run([f"{history} ORDER BY event_id"])
    assert first[:3] == (1, 1_767_225_601_000, "USER_EVENT")
    assert second[:3] == (2, 1_767_225_602_000, "USER_EVENT")
    assert json.loads(first[3]) == {"name": "placed", "values": ["12"]}
    assert json.loads(second[3]) == {"name": 'said "so" – \\', "values": [1, {"a": 2}]}
    assert [next_event_id for next_event_id, _ in await database.run([counts])] == [2, 3]
    assert (await database.run([counts]))[1][1] == sum(len(data.encode()) for *_, data in (first, second))


async def test_a_server_upgrades_nothing_by_itself(database: SchemaDatabase) -> None:
    await install_version_1(database)
    before = await database.describe()

    with pytest.raises(SchemaOutdated, match="`xdb schema upgrade`"):
        await database.prepare()

    assert await database.describe() == before


async def test_a_second_upgrade_finds_nothing_to_do(database: SchemaDatabase) -> None:
    await install_version_1(database)
    await database.upgrade()
    before = await database.describe()

    version = await database.upgrade()

    assert version == SCHEMA_VERSION
    assert await database.describe() == before


@pytest.mark.parametrize("done", [1, -4, -1, None], ids=["1", "all but 4", "all but 1", "all"])
async def test_an_upgrade_that_was_cut_short_is_finished_by_the_next_one(
    mariadb: MariadbDatabase, another_mariadb: MariadbDatabase, done: int | None
) -> None:
    await another_mariadb.prepare()
    await install_version_1(mariadb)
    facts = {"schema_version": "1", "num_shards": "16"}
    change, *_ = upgrades(mariadb.dialect, TABLES | {"xdb_sys_cluster": "name"}, facts)
    await mariadb.run([definition.sql for definition in change.definitions[:done]])

    await mariadb.upgrade()

    assert await mariadb.describe() == await another_mariadb.describe()


async def test_an_upgrade_that_fails_leaves_the_version_as_it_was(database: SchemaDatabase) -> None:
    await install_version_1(database)
    await database.run(["DROP TABLE xdb_sys_local_attribute"])
    before = await database.describe()

    with pytest.raises(SchemaError, match="xdb_sys_local_attribute"):
        await database.upgrade()

    if database.dialect.has_transactional_ddl:
        assert await database.describe() == before
    with pytest.raises(SchemaOutdated):
        await database.prepare()


async def test_a_file_is_not_upgraded_while_a_server_uses_it(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "xdb.db")
    store = SqliteStore.open(database.path)

    with pytest.raises(DatabaseInUse):
        await database.upgrade()

    await store.close()
