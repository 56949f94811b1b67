"""System tables that are created in empty databases, by one server or by many, and what is refused."""

import asyncio
from urllib.parse import urlsplit

import pytest

from server_stub.storage import mysql_schema
from server_stub.storage.schema import (
    INSTALLING,
    SCHEMA_VERSION,
    LossyCharset,
    SchemaChangeRefused,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    SchemaUnfinished,
    ShardCountMismatch,
    installation,
)
from server_stub.storage.schema_change import version_statements
from server_stub.storage.system_tables import metadata
from tests.schema.databases import MariadbDatabase, PostgresDatabase, SchemaDatabase

FACTS = "SELECT name, value FROM xdb_sys_cluster ORDER BY name"
SHARDS = "SELECT shard_id FROM xdb_sys_shard ORDER BY shard_id"


async def test_ten_servers_that_start_at_once_on_an_empty_database_all_succeed(database: SchemaDatabase) -> None:
    await asyncio.gather(*(database.prepare() for _ in range(10)))

    assert await database.run([FACTS]) == [
        ("num_shards", str(database.num_shards)),
        ("schema_version", str(SCHEMA_VERSION)),
    ]
    assert await database.run([SHARDS]) == [(shard_id,) for shard_id in range(database.num_shards)]
    assert {name for name, *_ in await database.describe()} >= metadata.tables.keys()


async def test_tables_are_not_created_unless_asked_for(database: SchemaDatabase) -> None:
    await database.run(["CREATE TABLE mine (id INTEGER PRIMARY KEY)"])

    with pytest.raises(SchemaMissing):
        await database.prepare(install=False)

    assert await database.run(["SELECT * FROM mine"]) == []
    with pytest.raises(SchemaMissing):
        await database.upgrade()


async def test_tables_that_are_there_stay_as_they_are(database: SchemaDatabase) -> None:
    await database.prepare()
    await database.run(["INSERT INTO xdb_sys_local_attribute VALUES ('e-1', 'a', '1')"])

    await database.prepare()
    upgraded_from = await database.upgrade()

    assert upgraded_from == SCHEMA_VERSION
    assert await database.run(["SELECT name FROM xdb_sys_local_attribute"]) == [("a",)]


@pytest.mark.parametrize(("version", "error"), [("99", SchemaTooNew), ("1", SchemaOutdated)], ids=["newer", "older"])
async def test_a_server_refuses_tables_of_another_version_and_leaves_them(
    database: SchemaDatabase, version: str, error: type[Exception]
) -> None:
    await database.prepare()
    await database.run(version_statements(version))
    before = await database.describe()

    with pytest.raises(error):
        await database.prepare()

    assert await database.describe() == before
    assert ("schema_version", version) in await database.run([FACTS])


async def test_newer_tables_are_not_upgraded(database: SchemaDatabase) -> None:
    await database.prepare()
    await database.run(version_statements("99"))

    with pytest.raises(SchemaTooNew, match="version 99"):
        await database.upgrade()


async def test_a_server_set_to_another_number_of_shards_is_refused(postgres: PostgresDatabase) -> None:
    await postgres.prepare(num_shards=4)

    with pytest.raises(ShardCountMismatch, match="installed with num_shards=4"):
        await postgres.prepare(num_shards=16)


async def test_ids_are_told_apart_byte_by_byte(database: SchemaDatabase) -> None:
    await database.prepare()
    ids = ["a", "a ", "A", "á", "a\u0301", "ａ", "ß", "ss", "😀", "😁", ""]

    await database.run(
        [
            f"INSERT INTO xdb_sys_local_attribute (process_execution_id, name, value) VALUES ('e', '{id_}', '1')"
            for id_ in ids
        ]
    )

    for id_ in ids:
        assert await database.run([f"SELECT name FROM xdb_sys_local_attribute WHERE name = '{id_}'"]) == [(id_,)]
    ordered = await database.run(["SELECT name FROM xdb_sys_local_attribute ORDER BY name"])
    assert [id_ for (id_,) in ordered] == sorted(ids)


# --- MySQL and MariaDB, where definitions commit by themselves ---


@pytest.mark.parametrize("done", [1, 8, None], ids=["the first table", "some of them", "all of them"])
async def test_an_install_that_was_cut_short_is_finished_by_the_next_server(
    mariadb: MariadbDatabase, another_mariadb: MariadbDatabase, done: int | None
) -> None:
    definitions = [definition.sql for definition in installation(mariadb.dialect, num_shards=16).definitions]
    await mariadb.run([definitions[0], *version_statements(INSTALLING), *definitions[1:done]])
    await another_mariadb.prepare()
    with pytest.raises(SchemaUnfinished):
        await mariadb.prepare(install=False)

    await mariadb.prepare()

    assert await mariadb.describe() == await another_mariadb.describe()
    assert await mariadb.run([FACTS]) == await another_mariadb.run([FACTS])
    assert await mariadb.run([SHARDS]) == await another_mariadb.run([SHARDS])


async def test_an_install_goes_on_after_its_very_first_statement(mariadb: MariadbDatabase) -> None:
    await mariadb.run([installation(mariadb.dialect, num_shards=16).definitions[0].sql])

    await mariadb.prepare()

    await mariadb.prepare(install=False)


async def test_a_server_waits_while_another_one_changes_the_tables(mariadb: MariadbDatabase) -> None:
    lock = "CONCAT('xdb_schema_', MD5(DATABASE()))"
    async with mariadb.connection() as other, other.cursor() as cursor:
        await cursor.execute(f"SELECT GET_LOCK({lock}, 0)")
        preparing = asyncio.create_task(mariadb.prepare())
        done, _ = await asyncio.wait([preparing], timeout=1.5)
        assert not done

        await cursor.execute(f"SELECT RELEASE_LOCK({lock})")

        await preparing


# --- character sets ---


@pytest.mark.parametrize(
    ("charset", "collation", "message"),
    [
        ("latin1", "latin1_swedish_ci", "is of a lossy character set"),
        ("utf8mb3", "utf8mb3_bin", "is of a lossy character set"),
        ("utf8mb4", "utf8mb4_general_ci", "cannot tell all ids apart"),
        ("utf8mb4", "utf8mb4_bin", "cannot tell all ids apart"),
    ],
)
async def test_a_table_that_was_converted_is_refused_by_name_until_it_is_converted_back(
    mariadb: MariadbDatabase, charset: str, collation: str, message: str
) -> None:
    await mariadb.prepare()
    convert = "ALTER TABLE xdb_sys_history CONVERT TO CHARACTER SET"
    await mariadb.run([f"{convert} {charset} COLLATE {collation}"])

    with pytest.raises(LossyCharset, match=f"has the collation {collation}, which {message}") as refusal:
        await mariadb.prepare()

    assert "column process_execution_id of table xdb_sys_history" in str(refusal.value)
    await mariadb.run([str(refusal.value).partition("alter it: ")[2]])
    await mariadb.prepare()


async def test_a_connection_of_a_lossy_character_set_is_refused_before_anything_is_created(
    mariadb: MariadbDatabase,
) -> None:
    async with mariadb.connection(charset="latin1") as connection:
        with pytest.raises(LossyCharset, match="character_set_client is latin1, a lossy character set"):
            await mysql_schema.prepare(connection, install=True, num_shards=16)

    assert await mariadb.describe() == set()


async def test_the_character_set_of_the_database_does_not_matter(mariadb: MariadbDatabase) -> None:
    name = urlsplit(mariadb.url).path[1:]
    await mariadb.run([f"ALTER DATABASE `{name}` CHARACTER SET latin1 COLLATE latin1_swedish_ci"])

    await mariadb.prepare()

    await mariadb.run(["INSERT INTO xdb_sys_local_attribute VALUES ('e', '😀', '\"😀\"')"])
    assert await mariadb.run(["SELECT name FROM xdb_sys_local_attribute"]) == [("😀",)]


async def test_a_postgresql_database_of_a_lossy_encoding_is_refused_by_name(postgres: PostgresDatabase) -> None:
    name = f"{urlsplit(postgres.url).path[1:]}_latin1"
    await postgres.run([f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'"])
    lossy = PostgresDatabase(postgres.url + "_latin1")

    with pytest.raises(LossyCharset, match="encoding LATIN1, a lossy character set") as refusal:
        await lossy.prepare()

    await postgres.run([f"DROP DATABASE {name}"])
    assert "ENCODING 'UTF8'" in str(refusal.value)


# --- what the database forbids ---


async def test_a_user_who_may_not_create_tables_is_told_so_by_postgresql(postgres: PostgresDatabase) -> None:
    role = urlsplit(postgres.url).path[1:] + "_role"
    await postgres.run([f"CREATE ROLE {role} LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC"])
    restricted = PostgresDatabase(postgres.url.replace("//postgres", f"//{role}"))

    with pytest.raises(SchemaChangeRefused, match="permission denied for schema public"):
        await restricted.prepare()

    await postgres.run([f"DROP ROLE {role}"])


async def test_a_user_who_may_not_create_tables_is_told_so_by_mariadb(mariadb: MariadbDatabase) -> None:
    database = urlsplit(mariadb.url).path[1:]
    user = f"u_{database[-16:]}"
    await mariadb.run([f"CREATE USER {user}", f"GRANT SELECT ON `{database}`.* TO {user}"])
    restricted = MariadbDatabase(mariadb.url.replace("//root", f"//{user}"))

    with pytest.raises(SchemaChangeRefused, match="CREATE command denied"):
        await restricted.prepare()

    await mariadb.run([f"DROP USER {user}"])


async def test_a_user_who_may_only_use_the_tables_can_check_them_on_postgresql(postgres: PostgresDatabase) -> None:
    await postgres.prepare()
    role = urlsplit(postgres.url).path[1:] + "_role"
    may_use = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    await postgres.run([f"CREATE ROLE {role} LOGIN", may_use])
    restricted = PostgresDatabase(postgres.url.replace("//postgres", f"//{role}"))

    await restricted.prepare(install=False)

    await postgres.run([f"DROP OWNED BY {role}", f"DROP ROLE {role}"])


async def test_a_user_who_may_only_use_the_tables_can_check_them_on_mariadb(mariadb: MariadbDatabase) -> None:
    await mariadb.prepare()
    database = urlsplit(mariadb.url).path[1:]
    user = f"u_{database[-16:]}"
    may_use = f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO {user}"
    await mariadb.run([f"CREATE USER {user}", may_use])
    restricted = MariadbDatabase(mariadb.url.replace("//root", f"//{user}"))

    await restricted.prepare(install=False)

    await mariadb.run([f"DROP USER {user}"])


async def test_tables_go_to_the_first_schema_of_the_search_path_and_are_found_there(
    postgres: PostgresDatabase,
) -> None:
    name = urlsplit(postgres.url).path[1:]
    await postgres.run(["CREATE SCHEMA ours", f"ALTER DATABASE {name} SET search_path = ours, public"])

    await postgres.prepare()

    await postgres.prepare(install=False)
    assert await postgres.run(["SELECT count(*) FROM ours.xdb_sys_cluster"]) == [(2,)]
