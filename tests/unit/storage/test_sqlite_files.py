"""SQLite as a file: one server at a time, the application beside it, and what happens when the file is in trouble."""

import asyncio
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import ProcessKey, RowRead
from server_stub.core.ports import Needs, StoreUnavailable
from server_stub.storage.codec import UnreadableRow
from server_stub.storage.sqlite import MEMORY, DatabaseInUse, SqliteOptions, SqliteStore, Synchronous, database_path
from tests.contract.store.works import (
    NAMESPACE,
    created,
    find_process,
    load,
    load_one,
    message,
    process,
    row_key,
    state,
    timer,
    write,
)
from xdb_sdk.protocol import ListRequest

IMPATIENT = SqliteOptions(busy_timeout=timedelta(milliseconds=50))

HOLD = """
import sys
from server_stub.storage.sqlite import SqliteStore
store = SqliteStore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the path of a database that does not exist yet."""
    return tmp_path / "xdb.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """Give an impatient store on a file."""
    opened = SqliteStore.open(path, IMPATIENT)
    yield opened
    await opened.close()


@pytest.fixture
def application(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """Give the application's own connection to the file."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        yield connection


@pytest.mark.parametrize(
    ("location", "path_"),
    [
        (":memory:", MEMORY),
        ("sqlite://", MEMORY),
        ("sqlite:///:memory:", MEMORY),
        ("sqlite:////var/lib/x.db", "/var/lib/x.db"),
        ("/var/lib/../lib/x.db", "/var/lib/x.db"),
        (Path("/var/lib/x.db"), "/var/lib/x.db"),
        ("sqlite:///relative.db", str(Path.cwd() / "relative.db")),
    ],
    ids=str,
)
def test_a_location_is_a_path_or_a_url(location: str | Path, path_: str) -> None:
    assert database_path(location) == path_


def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(ValueError, match="postgresql:// is not a SQLite URL"):
        database_path("postgresql://localhost/x")


async def test_the_file_is_written_ahead_and_durably(path: Path) -> None:
    store = SqliteStore.open(path)

    [(journal_mode,)] = await store.run_sql("PRAGMA journal_mode")
    [(synchronous,)] = await store.run_sql("PRAGMA synchronous")
    await store.close()

    assert (journal_mode, synchronous) == ("wal", 2)


async def test_durability_is_a_setting(path: Path) -> None:
    store = SqliteStore.open(path, SqliteOptions(synchronous=Synchronous.NORMAL))

    [(synchronous,)] = await store.run_sql("PRAGMA synchronous")
    await store.close()

    assert synchronous == 1


async def test_a_second_store_on_the_file_is_refused(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)

    for location in (path, link, f"sqlite:///{path}"):
        with pytest.raises(DatabaseInUse, match="another xdb server uses the database file"):
            SqliteStore.open(location)


async def test_the_file_is_free_after_close(path: Path) -> None:
    await SqliteStore.open(path).close()

    await SqliteStore.open(path).close()


def test_a_refused_open_leaves_the_file_free(path: Path) -> None:
    path.write_text("this is no database, whatever its name says" * 100)
    with pytest.raises(StoreUnavailable, match=r"xdb\.db is not available: file is not a database"):
        SqliteStore.open(path)
    path.unlink()

    store = SqliteStore.open(path)

    asyncio.run(store.close())


def test_another_process_is_refused_until_the_first_is_killed(path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(DatabaseInUse):
            SqliteStore.open(path)

        holder.send_signal(signal.SIGKILL)
        holder.wait()

    asyncio.run(SqliteStore.open(path).close())


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere/xdb\.db is not available: unable to open database file"):
        SqliteStore.open(tmp_path / "nowhere" / "xdb.db")


async def test_a_lock_of_the_application_is_waited_for(store: SqliteStore, application: sqlite3.Connection) -> None:
    await store.run_sql("PRAGMA busy_timeout = 10000")
    application.execute("BEGIN IMMEDIATE")

    writing = asyncio.ensure_future(write(store, created(process())))
    await store.list_processes(ListRequest(), None)
    application.execute("COMMIT")
    await writing

    assert (await load_one(store)).process == process()


async def test_a_lock_held_too_long_is_unavailable_and_keeps_nothing(
    store: SqliteStore, application: sqlite3.Connection
) -> None:
    application.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="database is locked"):
        await write(store, created(process()))
    application.execute("COMMIT")

    assert (await load(store, "e-1")).executions == {}


async def test_reads_go_on_while_the_application_writes(store: SqliteStore, application: sqlite3.Connection) -> None:
    await write(store, created(process(process_id="p")))
    application.execute("BEGIN IMMEDIATE")

    found = await find_process(store, ProcessKey(NAMESPACE, "p"), None)
    application.execute("COMMIT")

    assert found is not None


async def test_a_read_transaction_of_the_application_hinders_no_commit(
    store: SqliteStore, application: sqlite3.Connection
) -> None:
    application.execute("BEGIN")
    application.execute("SELECT count(*) FROM xdb_sys_process_execution").fetchone()

    await write(store, created(process()))

    assert application.execute("SELECT count(*) FROM xdb_sys_process_execution").fetchone() == (0,)
    application.execute("COMMIT")


async def test_a_slow_list_delays_no_other_read_and_no_commit(store: SqliteStore) -> None:
    is_over = threading.Event()
    slow = asyncio.ensure_future(store._lister.run("BEGIN", lambda _: is_over.wait(60)))
    listing = asyncio.ensure_future(store.list_processes(ListRequest(), None))

    await write(store, created(process(process_id="p")))
    found = await find_process(store, ProcessKey(NAMESPACE, "p"), None)
    was_listed = listing.done()
    is_over.set()

    assert found == process(process_id="p")
    assert not was_listed
    assert await listing == [found]
    assert await slow


async def test_a_full_disk_is_unavailable_and_the_store_recovers(store: SqliteStore) -> None:
    [(pages,)] = await store.run_sql("PRAGMA page_count")
    await store.run_sql(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await write(store, created(process(), state(input='"' + "x" * 100_000 + '"')))
    await store.run_sql("PRAGMA max_page_count = 1000000")

    await write(store, created(process()))

    assert (await load_one(store)).states == {}


async def test_a_closed_store_is_unavailable_and_closes_twice(path: Path) -> None:
    store = SqliteStore.open(path)
    await store.close()
    await store.close()

    with pytest.raises(StoreUnavailable):
        await write(store, Changes())
    with pytest.raises(StoreUnavailable):
        await store.count_messages("e-1")


async def test_foreign_keys_may_be_left_unchecked(path: Path) -> None:
    store = SqliteStore.open(path, SqliteOptions(foreign_keys=False))
    await store.run_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, other INTEGER REFERENCES nowhere (id))")

    await store.run_sql("INSERT INTO t VALUES (1, 1)")

    assert await store.run_sql("SELECT * FROM t") == [(1, 1)]
    await store.close()


# --- rows that no server wrote ---


@pytest.mark.parametrize(
    "poison",
    [
        "UPDATE xdb_sys_async_state_execution SET options = '{' WHERE process_execution_id = 'e-2'",
        "UPDATE xdb_sys_async_state_execution SET state_locals = 'x' WHERE process_execution_id = 'e-2'",
        "UPDATE xdb_sys_async_state_execution SET execute_status = 'LOST' WHERE process_execution_id = 'e-2'",
        "UPDATE xdb_sys_process_execution SET object_id = '{' WHERE process_execution_id = 'e-2'",
    ],
    ids=["options", "locals", "status", "process"],
)
async def test_an_unreadable_row_wedges_no_scan_and_is_logged_once(
    store: SqliteStore, poison: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = ("e-1", "e-2", "e-3")
    await write(store, created(*[process(id_) for id_ in ids], *[state(id_, due_at_ms=1) for id_ in ids]))
    await store.run_sql(poison)

    with caplog.at_level(logging.ERROR):
        scans = [await store.find_due_calls([0], 10, limit=2, after=None) for _ in range(3)]

    assert [[call.key.state.process_execution_id for call in scan] for scan in scans] == [["e-1", "e-3"]] * 3
    assert [record.message for record in caplog.records] == ["unreadable row skipped"]


async def test_an_unreadable_row_stops_its_own_execution_only(store: SqliteStore) -> None:
    await write(store, created(process("e-1"), process("e-2"), message(1, message_id="m")))
    await store.run_sql("UPDATE xdb_sys_process_execution SET state_counters = '?' WHERE process_execution_id = 'e-2'")
    await store.run_sql("UPDATE xdb_sys_internal_queue SET payload = '?'")

    with pytest.raises(UnreadableRow, match="row e-2 of xdb_sys_process_execution cannot be read"):
        await load(store, "e-1", "e-2")
    with pytest.raises(UnreadableRow, match=r"row \('e-1', 1\) of xdb_sys_internal_queue"):
        await load(store, "e-1", needs=Needs(messages={("e-1", "q"): 1}))

    assert list((await load(store, "e-1")).executions) == ["e-1"]


async def test_an_unreadable_process_is_left_out_of_a_list(store: SqliteStore) -> None:
    await write(store, created(process("e-1"), process("e-2"), process("e-3")))
    await store.run_sql("UPDATE xdb_sys_process_execution SET outputs = '[' WHERE process_execution_id = 'e-2'")

    listed = await store.list_processes(ListRequest(page_size=2), None)

    assert [p.process_execution_id for p in listed] == ["e-3", "e-1"]


# --- what the application stores in its own way ---


@pytest.mark.parametrize(
    ("declared_type", "stored", "wire"),
    [
        ("BOOLEAN", "7", 7),
        ("BOOLEAN", "'yes'", "yes"),
        ("DATETIME", "'2026-01-02 03:04:05'", "2026-01-02T03:04:05"),
        ("DATETIME", "'2026-01-02 03:04:05.250000+02:00'", "2026-01-02T03:04:05.250000+02:00"),
        ("DATETIME", "1700000000", 1_700_000_000),
        ("DATE", "'soon'", "soon"),
        ("NUMERIC(5,2)", "1.005", "1.005"),
        ("NUMERIC(5,2)", "9e999", float("inf")),
        ("JSON", "'{broken'", "{broken"),
        ("JSON", "X'00'", {"$bytes": "AA=="}),
        ("UUID", "X'0190e4b27c1a70008000000000000001'", "0190e4b2-7c1a-7000-8000-000000000001"),
        ("INTEGER", "'text'", "text"),
        ("INTEGER", "X'01'", {"$bytes": "AQ=="}),
        ("", "1.5", 1.5),
    ],
)
async def test_what_has_not_the_form_of_its_column_is_read_as_it_is_stored(
    store: SqliteStore, declared_type: str, stored: str, wire: object
) -> None:
    await store.run_sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared_type})")
    await store.run_sql(f"INSERT INTO t VALUES (1, {stored})")
    read = RowRead(row_key("t", 1), ("v",))

    assert (await store.read_for_calls([read], [])).rows == {read: {"v": wire}}


async def test_timers_of_a_file_are_there_after_reopening(path: Path) -> None:
    store = SqliteStore.open(path)
    await write(store, created(timer(1_000)))
    await store.close()

    store = SqliteStore.open(path)
    due = await store.find_due_timers([0], 2_000, limit=10, after=None)
    await store.close()

    assert due == [timer(1_000)]
