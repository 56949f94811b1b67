"""What user tables cost a database server, how long is believed what is known of them, and who waits for whom."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeAlias

import asyncpg
import pytest

from server_stub.core.model import RowRead, RowWrite, RowWriteMode
from server_stub.core.ports import MappingRefused, RowWriteFailed, StoreRetry
from server_stub.storage.mysql_connection import MysqlAddress, MysqlConnection
from server_stub.storage.mysql_user_tables import MysqlUserTables
from server_stub.storage.postgres_user_tables import PostgresUserTables
from server_stub.storage.server_user_tables import ServerUserTables
from tests.contract.store.works import row_key
from tests.services.shared import DatabaseKind
from xdb_sdk.protocol import TableMapping

A_MINUTE = timedelta(minutes=1)
BATCH = 100


class Client(ABC):
    """A connection, and the user's tables as a store has them."""

    connection: Any
    tables: ServerUserTables[Any, Any]

    @property
    @abstractmethod
    def round_trips(self) -> int:
        """How often the database has been asked."""

    @abstractmethod
    async def run(self, statement: str) -> None:
        """Run a statement."""


class PostgresClient(Client):
    """A client of PostgreSQL."""

    def __init__(self, connection: "asyncpg.Connection[Any]", max_age: timedelta) -> None:
        self.connection = connection
        self.tables = PostgresUserTables(max_age=max_age)
        self._round_trips = 0
        connection.add_query_logger(self._count)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, max_age: timedelta) -> AsyncIterator["PostgresClient"]:
        """Connect."""
        connection = await asyncpg.connect(url, server_settings={"lock_timeout": "100ms"})
        try:
            yield cls(connection, max_age)
        finally:
            await connection.close()

    @property
    def round_trips(self) -> int:
        """How many queries have been answered, a pipelined one once."""
        return self._round_trips

    async def run(self, statement: str) -> None:
        """Run a statement."""
        await self.connection.execute(statement)

    async def _count(self, _: object) -> None:
        self._round_trips += 1


class MysqlClient(Client):
    """A client of MariaDB."""

    def __init__(self, connection: MysqlConnection, max_age: timedelta) -> None:
        self.connection = connection
        self.tables = MysqlUserTables(max_age=max_age)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, max_age: timedelta) -> AsyncIterator["MysqlClient"]:
        """Connect."""
        connection = await MysqlConnection.open(
            MysqlAddress.of(url),
            connect_timeout=A_MINUTE,
            lock_timeout=timedelta(seconds=1),
            statement_timeout=A_MINUTE,
        )
        try:
            yield cls(connection, max_age)
        finally:
            await connection.close()

    @property
    def round_trips(self) -> int:
        """How many texts have been sent."""
        statements: int = self.connection.statements
        return statements

    async def run(self, statement: str) -> None:
        """Run a statement."""
        await self.connection.execute(statement)


Opens: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]
"""Opens a client of one database; `max_age` is that of what it knows of tables."""


@pytest.fixture(params=["postgresql", "mariadb"])
async def opens(request: pytest.FixtureRequest, new_database: Callable[[DatabaseKind], str]) -> Opens:
    """Give a function that opens clients of a new database with a table of notes."""
    url = new_database(request.param)

    @asynccontextmanager
    async def open_client(max_age: timedelta = A_MINUTE) -> AsyncIterator[Client]:
        client_class = PostgresClient if request.param == "postgresql" else MysqlClient
        async with client_class.open(url, max_age) as client:
            yield client

    async with open_client() as client:
        await client.run("CREATE TABLE notes (id INTEGER PRIMARY KEY, v INTEGER, w VARCHAR(9))")
    return open_client


def writes(mode: RowWriteMode = RowWriteMode.UPDATE_OR_INSERT) -> list[RowWrite]:
    """Give writes to many rows."""
    return [RowWrite(row_key("notes", number), {"v": number}, mode) for number in range(BATCH)]


@pytest.mark.parametrize(
    ("mode", "when_absent", "when_there"),
    [(RowWriteMode.UPDATE_OR_INSERT, 2, 1), (RowWriteMode.INSERT_IF_ABSENT, 2, 1)],
    ids=str,
)
async def test_many_rows_of_one_shape_cost_as_many_round_trips_as_one(
    opens: Opens, mode: RowWriteMode, when_absent: int, when_there: int
) -> None:
    async with opens() as client:
        await client.tables.find(client.connection, "notes")
        counts = [client.round_trips]

        for _ in range(2):
            await client.tables.write_rows(client.connection, writes(mode))
            counts.append(client.round_trips)
        reads = [RowRead(write.row, ("v",)) for write in writes()]
        found = await client.tables.read_rows(client.connection, reads)
        counts.append(client.round_trips)

    costs = [after - before for before, after in pairwise(counts)]
    assert costs == [when_absent, when_there, 1]
    assert [found[read] for read in reads] == [{"v": number} for number in range(BATCH)]


def changed(table_name: str, number: int, column: str = "v") -> RowWrite:
    """Give a write of one column of a row."""
    return RowWrite(row_key(table_name, number), {column: 1 if column == "v" else "1"})


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([changed("notes", 1)], 1),
        ([changed("notes", 1), changed("notes", 2)], 1),
        ([changed("notes", 1), changed("notes", 1, "w")], 2),
        ([changed("notes", 1), changed("tags", 1)], 2),
        ([changed("tags", 1), changed("notes", 1)], 3),
        ([changed("notes", 2), changed("notes", 1, "w")], 3),
        ([changed("tags", 2), changed("tags", 1, "w"), changed("notes", 1)], 5),
    ],
    ids=[
        "one-row",
        "rows-of-one-shape",
        "one-row-twice",
        "tables-in-order",
        "tables-out-of-order",
        "two-shapes",
        "two-shapes-and-tables-out-of-order",
    ],
)
async def test_locking_rows_first_costs_a_round_trip_for_each_table_that_is_written_out_of_order(
    opens: Opens, writes: list[RowWrite], expected: int
) -> None:
    async with opens() as client:
        await client.run("CREATE TABLE tags (id INTEGER PRIMARY KEY, v INTEGER, w VARCHAR(9))")
        for table_name in ("notes", "tags"):
            await client.run(f"INSERT INTO {table_name} VALUES (1, 0, 0), (2, 0, 0)")
            await client.tables.find(client.connection, table_name)
        before = client.round_trips

        await client.tables.write_rows(client.connection, writes)

        assert client.round_trips - before == expected


@pytest.mark.parametrize(
    ("read", "written", "expected"),
    [(1, 1, 2), (1, 2, 2), (2, 1, 3)],
    ids=["the-same-row", "a-later-row", "an-earlier-row"],
)
async def test_a_row_that_is_read_and_written_is_locked_once(
    opens: Opens, read: int, written: int, expected: int
) -> None:
    write = changed("notes", written)
    async with opens() as client:
        await client.run("INSERT INTO notes VALUES (1, 0, 0), (2, 0, 0)")
        await client.tables.find(client.connection, "notes")
        before = client.round_trips

        reads = [RowRead(row_key("notes", read), ("v",))]
        found = await client.tables.lock_rows(client.connection, reads, written=[write.row])
        await client.tables.write_rows(client.connection, [write], locked={read.row for read in found})

        assert client.round_trips - before == expected


async def test_a_table_is_reflected_anew_once_it_has_become_old(opens: Opens) -> None:
    async with opens(max_age=timedelta(milliseconds=50)) as client, asyncio.timeout(30):
        before = await client.tables.find(client.connection, "notes")
        await client.run("ALTER TABLE notes ADD COLUMN more INTEGER")

        after = before
        while after is before:
            await asyncio.sleep(0.01)
            after = await client.tables.find(client.connection, "notes")

    assert before is not None
    assert after is not None
    assert [set(table.columns) for table in (before, after)] == [{"id", "v", "w"}, {"id", "v", "w", "more"}]


async def test_a_table_is_believed_until_it_has_become_old(opens: Opens) -> None:
    async with opens() as client:
        before = await client.tables.find(client.connection, "notes")
        await client.run("ALTER TABLE notes ADD COLUMN more INTEGER")

        assert await client.tables.find(client.connection, "notes") is before


async def test_a_refusal_is_doubted_once_and_so_is_the_next(opens: Opens) -> None:
    write = RowWrite(row_key("notes", 1), {"w": "much too long"})
    outcomes: list[type[Exception]] = []

    async with opens() as client:
        for _ in range(4):
            with pytest.raises((RowWriteFailed, StoreRetry)) as refusal:
                await client.tables.write_rows(client.connection, [write])
            outcomes.append(refusal.type)

    assert outcomes == [StoreRetry, RowWriteFailed] * 2


async def test_a_refusal_is_final_for_all_who_hold_the_table_that_was_confirmed(opens: Opens) -> None:
    mapping = TableMapping(table_name="notes", primary_key={"id": 1}, initial_write={"gone": 1})
    outcomes: list[list[type[Exception]]] = []

    async with opens() as client:
        for _ in range(2):
            table = await client.tables.find(client.connection, "notes")
            outcomes.append([])
            for _ in range(3):
                with pytest.raises((MappingRefused, StoreRetry)) as refusal:
                    client.tables.canonical_mapping(table, mapping)
                outcomes[-1].append(refusal.type)

    assert outcomes == [[StoreRetry] * 3, [MappingRefused] * 3]


async def test_a_row_that_another_transaction_holds_is_waited_for_and_then_refused(opens: Opens) -> None:
    write = writes()[0]
    async with opens() as holder, opens() as other:
        await holder.tables.write_rows(holder.connection, [write])
        await holder.run("BEGIN")
        await holder.tables.write_rows(holder.connection, [write])

        with pytest.raises(RowWriteFailed) as refusal:
            await other.tables.write_rows(other.connection, [write])

        await holder.run("ROLLBACK")

    assert refusal.value.error.kind == "LOCK_TIMEOUT"
    assert refusal.value.row == write.row


@pytest.fixture
async def postgres(new_database: Callable[[DatabaseKind], str]) -> AsyncIterator[PostgresClient]:
    """Give a client of PostgreSQL."""
    async with PostgresClient.open(new_database("postgresql"), A_MINUTE) as client:
        yield client


async def test_types_of_the_user_are_written_and_read_as_text(postgres: PostgresClient) -> None:
    await postgres.run("CREATE SCHEMA own; CREATE TYPE own.\"Mood\" AS ENUM ('sad', 'it''s')")
    await postgres.run("CREATE DOMAIN own.code AS VARCHAR(3) CHECK (value <> 'bad')")
    await postgres.run("CREATE DOMAIN own.short_code AS own.code NOT NULL")
    await postgres.run('CREATE TABLE t (id own."Mood" PRIMARY KEY, code own.short_code, moods own."Mood"[])')
    row = row_key("t", "it's")
    values = {"code": "abc", "moods": "{sad,it's}"}

    await postgres.tables.write_rows(postgres.connection, [RowWrite(row, values)])

    read = RowRead(row, ("id", "code", "moods"))
    assert await postgres.tables.read_rows(postgres.connection, [read]) == {read: {"id": "it's", **values}}
    table = await postgres.tables.find(postgres.connection, "t")
    assert table is not None
    assert not table.is_volatile


@pytest.mark.parametrize(("code", "kind"), [("bad", "CHECK"), ("long", "TOO_LONG"), (None, "NOT_NULL")], ids=str)
async def test_bounds_of_a_domain_hold(postgres: PostgresClient, code: str | None, kind: str) -> None:
    await postgres.run("CREATE DOMAIN code AS VARCHAR(3) NOT NULL CHECK (value <> 'bad')")
    await postgres.run("CREATE TABLE t (id INTEGER PRIMARY KEY, code code)")
    await postgres.tables.find(postgres.connection, "t")
    postgres.tables.forget()

    with pytest.raises((RowWriteFailed, StoreRetry)):
        await postgres.tables.write_rows(postgres.connection, [RowWrite(row_key("t", 1), {"code": code})])
    with pytest.raises(RowWriteFailed) as refusal:
        await postgres.tables.write_rows(postgres.connection, [RowWrite(row_key("t", 1), {"code": code})])

    assert refusal.value.error.kind == kind


async def test_a_row_that_a_trigger_leaves_out_is_left_out(postgres: PostgresClient) -> None:
    await postgres.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)")
    await postgres.run(
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.v < 0 THEN RETURN NULL; END IF; RETURN new; END $$"
    )
    await postgres.run("CREATE TRIGGER tr BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()")
    rows = [row_key("t", number) for number in (1, 2)]

    await postgres.tables.write_rows(postgres.connection, [RowWrite(rows[0], {"v": -1}), RowWrite(rows[1], {"v": 1})])

    reads = [RowRead(row, ("v",)) for row in rows]
    found = await postgres.tables.read_rows(postgres.connection, reads)
    assert [found[read] for read in reads] == [None, {"v": 1}]


async def test_a_row_that_a_policy_hides_is_refused(postgres: PostgresClient) -> None:
    role = f"xdb_test_{secrets.token_hex(8)}"
    await postgres.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER); INSERT INTO t VALUES (1, 1)")
    await postgres.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (false) WITH CHECK (true)")
    await postgres.run(f"CREATE ROLE {role}; GRANT ALL ON t TO {role}; SET ROLE {role}")

    with pytest.raises(RowWriteFailed, match="row-level security") as refusal:
        await postgres.tables.write_rows(postgres.connection, [RowWrite(row_key("t", 1), {"v": 2})])
    await postgres.run(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")

    assert (refusal.value.error.kind, refusal.value.error.code) == ("OTHER", "42501")


@pytest.mark.parametrize("settings", ["datestyle = 'SQL, DMY'", "timezone = 'Asia/Kolkata'", "extra_float_digits = -5"])
async def test_settings_of_the_session_change_no_value(postgres: PostgresClient, settings: str) -> None:
    await postgres.run("CREATE TABLE t (id TIMESTAMPTZ PRIMARY KEY, d DATE, f REAL, g DOUBLE PRECISION, i INTERVAL)")
    row = row_key("t", "2026-02-03T04:05:06.000007+00:00")
    values = {"d": "2026-02-03", "f": 0.1, "g": 0.1234567890123456, "i": "P1DT1S"}
    await postgres.run(f"SET {settings}")

    await postgres.tables.write_rows(postgres.connection, [RowWrite(row, values)])

    read = RowRead(row, ("id", *values))
    found = await postgres.tables.read_rows(postgres.connection, [read])
    assert found == {read: {"id": row.primary_key[0][1], **values}}
