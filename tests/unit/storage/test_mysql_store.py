"""What the MySQL and MariaDB store makes of a database that is busy, read-only or gone."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import LocalAttributeWrite, ProcessKey, RowWrite
from server_stub.core.ports import (
    CommitOutcomeUnknown,
    Loaded,
    RowWriteFailed,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from server_stub.storage.codec import process_changing, process_fixed
from server_stub.storage.mysql import MysqlStore
from server_stub.storage.mysql_connection import MysqlConnection
from server_stub.storage.mysql_statements import WRITES
from server_stub.storage.server_store import ServerStoreOptions
from tests.contract.store.works import Deciding, load, load_one, process, row_key, write
from tests.services import mariadb
from tests.services.shared import DatabaseKind

OPTIONS = ServerStoreOptions(max_connections=2, connect_timeout=timedelta(seconds=10), num_shards=1)


@pytest.fixture
def url(new_database: Callable[[DatabaseKind], str]) -> str:
    return new_database("mariadb")


@pytest.fixture
async def store(url: str) -> AsyncIterator[MysqlStore]:
    opened = await MysqlStore.open(url, OPTIONS)
    yield opened
    await opened.close()


@asynccontextmanager
async def lent_connection(store: MysqlStore) -> AsyncIterator[MysqlConnection]:
    connection = await store.connect()
    try:
        yield connection
    finally:
        await connection.close()


def started(*execution_ids: str) -> Changes:
    changes = Changes()
    changes.new_processes = {id_: process(id_, process_id=f"of-{id_}") for id_ in execution_ids}
    return changes


def writing(execution_id: str, name: str, value: str) -> Changes:
    changes = Changes()
    changes.local_attribute_writes.append(LocalAttributeWrite(execution_id, name, value))
    return changes


async def value_of(store: MysqlStore, name: str) -> list[tuple[Any, ...]]:
    async with lent_connection(store) as connection:
        return await connection.fetch("SELECT value FROM xdb_sys_local_attribute WHERE name = %s", [name])


async def transactions(connection: MysqlConnection) -> list[tuple[Any, ...]]:
    """Give the states of the transactions that are open in the database."""
    return await connection.fetch(
        """SELECT t.trx_state FROM information_schema.innodb_trx t
        JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id AND p.db = DATABASE()"""
    )


async def waits(connection: MysqlConnection) -> bool:
    return ("LOCK WAIT",) in await transactions(connection)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_so():  # noqa: ASYNC110  # the server does not tell
            await asyncio.sleep(0.15)  # what it says of transactions is not renewed for those who ask more often


async def nothing_is_open(connection: MysqlConnection) -> bool:
    return await transactions(connection) == []


async def test_a_lock_that_is_not_to_be_had_leaves_nothing_of_the_transaction(url: str) -> None:
    store = await MysqlStore.open(url, replace(OPTIONS, lock_timeout=timedelta(seconds=1)))
    await write(store, started("e-1"))
    async with lent_connection(store) as other:
        await other.execute("START TRANSACTION")
        await other.execute("UPDATE xdb_sys_process_execution SET version = version + 1")

        changes = writing("e-1", "a", "1")
        changes.changed_processes = {"e-1": process("e-1", process_id="of-e-1")}
        with pytest.raises(StoreBusy, match="Lock wait timeout"):
            await write(store, changes)

        await other.execute("ROLLBACK")
        assert await value_of(store, "a") == []
        assert await nothing_is_open(other)
    await store.close()


async def test_the_victim_of_a_deadlock_is_tried_again(store: MysqlStore) -> None:
    await write(store, started("e-1"))
    await write(store, writing("e-1", "a", "0"))
    versions = []

    def decide(loaded: Loaded) -> Changes:
        versions.append(loaded.executions["e-1"].process.version)
        return writing("e-1", "a", "1")

    async with lent_connection(store) as other:
        await other.execute("START TRANSACTION")
        # InnoDB ends the transaction that has written less.
        await other.execute_many("INSERT INTO xdb_sys_cluster VALUES (%s, '')", [(f"test {n}",) for n in range(50)])
        await other.execute("UPDATE xdb_sys_local_attribute SET value = '2'")
        waiting = asyncio.create_task(store.transact(Deciding(decide, execution_ids=["e-1"])))
        await until(lambda: waits(other))
        await other.execute("UPDATE xdb_sys_process_execution SET version = 7 WHERE process_execution_id = 'e-1'")
        await other.execute("COMMIT")

        await waiting

    assert versions == [1, 7]
    assert await value_of(store, "a") == [("1",)]


async def test_an_execution_that_was_replaced_while_its_lock_was_waited_for_gives_its_successor(
    store: MysqlStore,
) -> None:
    await write(store, started("e-1"))
    key, successor = ProcessKey("default", "of-e-1"), process("e-2", process_id="of-e-1")
    async with lent_connection(store) as other:
        await other.execute("START TRANSACTION")
        await other.execute("UPDATE xdb_sys_process_execution SET is_current = NULL")
        waiting = asyncio.create_task(load(store, process_keys=[key]))
        await until(lambda: waits(other))
        row = process_fixed(successor) + process_changing(successor)
        await other.execute_all(WRITES.insert_processes.texts(other, [row]))
        await other.execute("COMMIT")

        loaded = await waiting

    assert loaded.current == {key: "e-2"}
    assert set(loaded.executions) == {"e-1", "e-2"}


async def test_a_statement_that_takes_too_long_is_stopped_and_the_connection_serves_on(url: str) -> None:
    store = await MysqlStore.open(url, ServerStoreOptions(statement_timeout=timedelta(milliseconds=300), num_shards=1))

    async def sleep(session: Any) -> object:
        return await session.connection.fetch("SELECT SLEEP(20)")

    with pytest.raises(StoreBusy):
        await store._read(sleep)

    await write(store, started("e-1"))
    assert (await load_one(store)).process.is_running
    await store.close()


async def test_a_cancelled_transaction_leaves_nothing_and_holds_nothing(store: MysqlStore) -> None:
    await write(store, started("e-1"))
    async with lent_connection(store) as other:
        await other.execute("START TRANSACTION")
        await other.execute("UPDATE xdb_sys_process_execution SET version = version + 1")
        waiting = asyncio.create_task(load(store, "e-1"))
        await until(lambda: waits(other))

        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        await other.execute("ROLLBACK")
    await write(store, writing("e-1", "a", "1"))
    assert await value_of(store, "a") == [("1",)]


async def test_connections_that_the_server_closed_while_they_were_idle_are_replaced_unnoticed(
    store: MysqlStore,
) -> None:
    await write(store, started("e-1"))
    async with lent_connection(store) as other:
        await kill_others(other)
        await until(lambda: is_alone(other))

    await write(store, writing("e-1", "a", "1"))

    assert await value_of(store, "a") == [("1",)]


async def kill_others(connection: MysqlConnection) -> None:
    for (number,) in await connection.fetch(
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    ):
        await connection.execute(f"KILL {number}")


async def is_alone(connection: MysqlConnection) -> bool:
    [(count,)] = await connection.fetch("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()")
    return int(count) == 1


async def test_a_connection_that_breaks_in_the_midst_of_a_transaction_says_that_nothing_was_kept(
    store: MysqlStore,
) -> None:
    await write(store, started("e-1"))
    async with lent_connection(store) as other:
        await other.execute("START TRANSACTION")
        await other.execute("UPDATE xdb_sys_process_execution SET version = version + 1")
        waiting = asyncio.create_task(load(store, "e-1"))
        await until(lambda: waits(other))

        await kill_others(other)

        with pytest.raises(StoreUnavailable) as error:
            await waiting
        assert not isinstance(error.value, CommitOutcomeUnknown)


async def test_a_connection_that_breaks_during_the_commit_leaves_the_outcome_open(store: MysqlStore) -> None:
    await write(store, started("e-1"))
    async with lent_connection(store) as other:
        reached = asyncio.Event()

        def decide(loaded: Loaded) -> Changes:
            reached.set()
            return writing("e-1", "a", "1")

        await other.execute("BACKUP STAGE START")
        await other.execute("BACKUP STAGE BLOCK_COMMIT")
        waiting = asyncio.create_task(store.transact(Deciding(decide, execution_ids=["e-1"])))
        await reached.wait()
        await until(lambda: is_committing(other))

        await kill_others(other)

        with pytest.raises(CommitOutcomeUnknown):
            await waiting


async def is_committing(connection: MysqlConnection) -> bool:
    return bool(
        await connection.fetch("SELECT 1 FROM information_schema.processlist WHERE info = 'COMMIT' AND db = DATABASE()")
    )


async def test_a_database_that_goes_and_comes_is_served_again_without_a_restart(tmp_path: Path) -> None:
    with mariadb.start(tmp_path / "server") as server:
        store = await MysqlStore.open(server.create_database("xdb"), OPTIONS)
        await write(store, started("e-1"))

        server.stop()
        with pytest.raises(StoreUnavailable):
            await load_one(store)
        with pytest.raises(StoreUnavailable):
            await store.find_closed(["e-1"])
        server.restart()

        assert (await load_one(store)).process.is_running
        await store.close()


async def test_a_frozen_database_is_given_up(tmp_path: Path) -> None:
    with mariadb.start(tmp_path / "server") as server:
        options = ServerStoreOptions(
            connect_timeout=timedelta(seconds=1), statement_timeout=timedelta(seconds=1), num_shards=1
        )
        store = await MysqlStore.open(server.create_database("xdb"), options)
        await write(store, started("e-1"))

        server.freeze()
        for _ in range(2):  # with a connection, and without
            with pytest.raises(StoreUnavailable):
                await load_one(store)
        server.thaw()

        assert (await load_one(store)).process.is_running
        await store.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [(1206, StoreBusy), (1030, StoreUnavailable), (1180, StoreUnavailable), (1153, RowWriteFailed)],
    ids=["lock-table-full", "engine", "error-during-commit", "packet-too-large"],
)
async def test_an_error_at_a_row_is_of_the_server_or_of_the_row(
    store: MysqlStore, code: int, expected: type[StoreError]
) -> None:
    async with lent_connection(store) as connection:
        await connection.execute("CREATE TABLE t (id VARCHAR(9) PRIMARY KEY, v INTEGER)")
        await connection.execute(
            "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW "
            f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'so it is'"
        )

    with pytest.raises(expected, match="so it is"):
        await write(store, Changes(row_writes=[RowWrite(row_key("t", "k"), {"v": 1})]))


async def test_a_server_that_is_only_to_be_read_from_is_none(tmp_path: Path) -> None:
    with mariadb.start(tmp_path / "server") as server:
        root_url = server.create_database("xdb")
        root = await MysqlStore.open(root_url, OPTIONS)
        async with lent_connection(root) as connection:
            await connection.execute("CREATE USER app@'127.0.0.1'")
            await connection.execute("GRANT ALL ON xdb.* TO app@'127.0.0.1'")
            store = await MysqlStore.open(root_url.replace("root@", "app@"), OPTIONS)
            await connection.execute("SET GLOBAL read_only = 1")

            with pytest.raises(StoreUnavailable, match="read-only"):
                await write(store, started("e-1"))

            await connection.execute("SET GLOBAL read_only = 0")
        await write(store, started("e-1"))
        await store.close()
        await root.close()


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        ("/xdb_test", "/no_such_database_", "Unknown database"),
        ("//.*@", "//root:wrong@", "Access denied"),
        (r":\d+/", ":1/", "Can't connect"),
    ],
    ids=["no database", "wrong password", "no server"],
)
async def test_a_database_that_cannot_be_opened_is_unavailable(
    url: str, pattern: str, replacement: str, message: str
) -> None:
    with pytest.raises(StoreUnavailable, match=message):
        await MysqlStore.open(re.sub(pattern, replacement, url), OPTIONS)


async def test_a_row_that_is_too_large_for_the_server_is_refused_and_no_reason_to_try_again(store: MysqlStore) -> None:
    await write(store, started("e-1"))

    with pytest.raises(StoreError, match="max_allowed_packet") as error:
        await write(store, writing("e-1", "a", "x" * 20_000_000))

    assert not isinstance(error.value, StoreUnavailable)
    assert (await load_one(store)).process.is_running


async def test_a_pool_of_two_serves_many(store: MysqlStore) -> None:
    await write(store, started(*(f"e-{n}" for n in range(50))))

    await asyncio.gather(*(write(store, writing(f"e-{n}", "a", "1")) for n in range(50)))

    assert len(await value_of(store, "a")) == 50
