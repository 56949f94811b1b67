"""A database that is emptied has nothing of the test before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import KINDS, Databases, Kind

TABLES = [
    'CREATE TABLE "Parents" (id INTEGER PRIMARY KEY)',
    'CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER, FOREIGN KEY (parent) REFERENCES "Parents" (id))',
    "CREATE VIEW shown AS SELECT id FROM children",
]
OWN: dict[Kind, list[str]] = {
    "sqlite": [],
    "postgresql": [
        "CREATE EXTENSION citext",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id INTEGER)",
        "CREATE COLLATION loose (provider = libc, locale = 'C')",
        "CREATE DOMAIN loose_name AS TEXT COLLATE loose",
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE SEQUENCE numbers",
        "CREATE TABLE moods (id SERIAL PRIMARY KEY, number INTEGER GENERATED ALWAYS AS IDENTITY, mood mood)",
        "CREATE TABLE parted (id TEXT PRIMARY KEY) PARTITION BY HASH (id)",
        "CREATE TABLE part PARTITION OF parted FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER refusing BEFORE INSERT ON children FOR EACH ROW EXECUTE FUNCTION refuse()",
        "CREATE PROCEDURE nothing(a INTEGER) LANGUAGE sql AS $$ SELECT 1 $$",
    ],
    "mariadb": ['CREATE TRIGGER refusing BEFORE INSERT ON children FOR EACH ROW INSERT INTO "Parents" VALUES (1)'],
}


@pytest.fixture
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    databases = Databases(lambda kind: request.getfixturevalue(f"{kind}_server_url"))
    yield databases
    databases.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_one_test_has_made_the_next_can_make_again(databases: Databases, kind: Kind, tmp_path: Path) -> None:
    for _ in range(2):
        database = databases.empty(kind, tmp_path)
        store = await database.open_store()
        await store.close()

        for statement in (*TABLES, *OWN[kind]):
            database.sql(statement)


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_are_those_of_a_new_database(databases: Databases, kind: Kind, tmp_path: Path) -> None:
    database = databases.empty(kind, tmp_path)
    await (await database.open_store()).close()
    new = database.everything()
    database.sql("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
    columns = "process_execution_id, event_id, at_ms, event_type"
    database.sql(f"INSERT INTO xdb_sys_history ({columns}) VALUES ('e', 1, 1, 't')")

    database = databases.empty(kind, tmp_path)
    await (await database.open_store()).close()

    assert database.everything() == new
