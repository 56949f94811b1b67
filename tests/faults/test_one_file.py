"""One SQLite file: a single server has it, and the application reads and writes beside it (C-010, C-051)."""

import itertools
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.faults.installation import Installation
from tests.faults.processes import CREATE_LEDGERS, Ledger, registry
from tests.simulation.processes import Sleeper
from tests.support.real_processes import RunningCommand
from xdb_sdk import (
    Client,
    ClientOptions,
    ClientRetryPolicy,
    ProcessNotRunningError,
    ProcessStatus,
    RpcLockNotAcquiredError,
)

CLIENT_THREADS = 50
SLEEPERS = 200
LOAD_S = 8.0
READ_S = 3.0
READY_WITHIN_S = 20.0


def test_second_server_is_refused_and_starts_once_the_first_was_killed(tmp_path: Path) -> None:
    database = ("--database-url", f"sqlite:///{tmp_path}/xdb.db")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    with RunningCommand("server", "--port", "0", *database, directory=tmp_path) as first:
        second = RunningCommand("server", "--port", "0", *database, directory=elsewhere)
        status = second.wait()
        first.stop(signal.SIGKILL)
    began_s = time.monotonic()
    with RunningCommand("server", "--port", "0", *database, directory=tmp_path):
        ready_after_s = time.monotonic() - began_s

    assert status == 1
    [message] = second.log_file.read_text().splitlines()
    assert message.startswith(f"Error: another xdb server uses the database file {tmp_path}/xdb.db; stop it first")
    assert ready_after_s < READY_WITHIN_S


def test_many_clients_and_the_application_share_the_file_without_an_error(tmp_path: Path) -> None:
    with Installation(tmp_path) as installation:
        installation.sql(CREATE_LEDGERS)
        installation.sql("CREATE TABLE journal (id INTEGER PRIMARY KEY, at_s REAL)")
        options = ClientOptions(
            server_url=installation.server_url, worker_url=installation.worker_url, retry=ClientRetryPolicy.none()
        )
        with (
            Client(registry, options) as client,
            in_background(lambda is_over: read_long(installation.database, is_over)),
            in_background(lambda is_over: write_often(installation.database, is_over)),
            ThreadPoolExecutor(CLIENT_THREADS + 1) as threads,
        ):
            users = [threads.submit(use, client, user) for user in range(CLIENT_THREADS)]
            sleeping = threads.submit(sleep_all, client)
            calls = sum(user.result() for user in users)
            sleeping.result()
        [(written,)] = installation.sql("SELECT count(*) FROM journal")

    assert calls > CLIENT_THREADS * 4
    assert written > LOAD_S
    installation.check_nothing_is_left()
    installation.check_logs()


def use(client: Client, user: int) -> int:
    """Start, call, list and wait until the time is over; give how many calls that were."""
    ends_at_s, rng = time.monotonic() + LOAD_S, random.Random(user)
    for number in itertools.count():
        if time.monotonic() > ends_at_s:
            return number * 4
        process_id = f"ledger-{user}-{number}"
        client.start_object_process(process_id, Ledger, process_id, 1)
        with suppress(ProcessNotRunningError, RpcLockNotAcquiredError):
            client.invoke_rpc(process_id, Ledger.deposit, "deposit")
        list(itertools.islice(client.list_processes(statuses=[ProcessStatus.COMPLETED], page_size=10), 10))
        client.wait_for_process_completion(process_id, int)
        time.sleep(rng.random() / 10)  # a user who thinks
    raise AssertionError("unreachable")


def sleep_all(client: Client) -> None:
    """Let many processes sleep while the others work, and wait for all of them."""
    for number in range(SLEEPERS):
        client.start_process(f"sleeper-{number}", Sleeper, LOAD_S * number / SLEEPERS)
    for number in range(SLEEPERS):
        assert client.wait_for_process_completion(f"sleeper-{number}", str) == "awake"


def read_long(database: Path, is_over: threading.Event) -> None:
    """Hold one read transaction after another open."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        while not is_over.is_set():
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM xdb_sys_process_execution").fetchone()
            is_over.wait(READ_S)
            connection.execute("COMMIT")


def write_often(database: Path, is_over: threading.Event) -> None:
    """Make short transactions of the application's own."""
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        while not is_over.wait(0.02):
            with connection:
                connection.execute("INSERT INTO journal (at_s) VALUES (?)", (time.time(),))


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run on a thread until the block is left, and raise what it raised."""
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work, is_over)
        try:
            yield
        finally:
            is_over.set()
        working.result()
