"""The database servers of tests do to each other and to their clients what the tests rely on."""

import asyncio
import errno
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import psutil
import pytest
from asyncmy.errors import OperationalError

from tests.services import mariadb, postgres, shared
from tests.services.server import DatabaseServer, MissingDatabase, ServerFailed
from tests.services.shared import DatabaseKind

KINDS: dict[DatabaseKind, ModuleType] = {"postgresql": postgres, "mariadb": mariadb}
DEADLINE_S = 30


Execute = Callable[[str], Awaitable[Sequence[Iterable[object]]]]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseServer]:
    with KINDS[request.param].start(tmp_path / "server", is_durable=True) as server:
        yield server


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Execute]:
    """Give a function that runs a statement on one connection and returns the rows."""
    where = urlsplit(url)
    if where.scheme == "postgresql":
        postgresql = await asyncpg.connect(url, timeout=DEADLINE_S)
        try:
            yield lambda statement: postgresql.fetch(statement)
        finally:
            await postgresql.close()
        return
    mysql = await asyncmy.connect(
        host=where.hostname, port=where.port or 0, user=where.username, database=where.path[1:] or None, autocommit=True
    )

    async def fetch(statement: str) -> list[tuple[object, ...]]:
        async with mysql.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())

    try:
        yield fetch
    finally:
        await mysql.ensure_closed()


async def query(url: str, statement: str) -> list[tuple[object, ...]]:
    """Run one statement on a connection of its own, and return its rows."""
    async with connected(url) as execute:
        return [tuple(row) for row in await execute(statement)]


def has_ended(url: str) -> bool:
    """Say whether nobody listens any more where a server was."""
    where = urlsplit(url)
    assert where.hostname is not None
    assert where.port is not None
    with socket.socket() as client:
        client.settimeout(DEADLINE_S)
        return client.connect_ex((where.hostname, where.port)) == errno.ECONNREFUSED


def assert_ends(url: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not has_ended(url):
        assert time.monotonic() < deadline_s, f"{url} still answers after {DEADLINE_S} s"
        time.sleep(0.02)


@pytest.mark.parametrize("ending", ["restart", "kill"])
async def test_committed_row_survives_the_end_of_a_durable_server(server: DatabaseServer, ending: str) -> None:
    url = server.create_database("kept")
    await query(url, "CREATE TABLE notes (id INTEGER PRIMARY KEY)")
    await query(url, "INSERT INTO notes VALUES (7)")

    if ending == "kill":
        server.kill()
    server.restart()

    assert await query(url, "SELECT id FROM notes") == [(7,)]


def test_killed_server_leaves_no_process_behind(server: DatabaseServer) -> None:
    main = psutil.Process(server.pid)
    processes = [main, *main.children(recursive=True)]

    server.kill()

    assert not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert has_ended(server.url)


async def test_frozen_server_answers_only_once_it_is_thawed(server: DatabaseServer) -> None:
    server.freeze()
    answer = asyncio.create_task(query(server.url, "SELECT 1"))
    done, _ = await asyncio.wait([answer], timeout=0.3)
    assert not done

    server.thaw()

    assert await answer == [(1,)]


async def test_frozen_server_can_be_killed_and_started_again(server: DatabaseServer) -> None:
    server.freeze()

    server.kill()
    server.restart()

    assert await query(server.url, "SELECT 1") == [(1,)]


def test_closed_server_leaves_nothing_behind(server: DatabaseServer) -> None:
    pid = server.pid

    server.close()

    assert not psutil.pid_exists(pid)
    assert not server.directory.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_setting_is_reported_with_the_log_of_the_server(kind: DatabaseKind, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"no.such.setting"):
        KINDS[kind].start(tmp_path / "server", settings={"no-such-setting": "1"})


@pytest.mark.parametrize("kind", KINDS)
def test_server_ends_when_its_starter_is_killed(kind: DatabaseKind, tmp_path: Path) -> None:
    KINDS[kind].find_binaries()
    code = f"""
import pathlib, sys
import {KINDS[kind].__name__} as service
print(service.start(pathlib.Path({str(tmp_path / "server")!r})).url, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        url = starter.stdout.readline().strip()
        assert not has_ended(url)

        starter.kill()

    assert_ends(url)


@pytest.mark.parametrize("kind", KINDS)
def test_shared_server_is_one_for_all_and_ends_with_the_run(
    kind: DatabaseKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDB_TEST_POSTGRES_URL", raising=False)
    monkeypatch.delenv("XDB_TEST_MARIADB_URL", raising=False)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as run:
        urls = [shared.server_url(kind, tmp_path, run.pid) for _ in range(2)]
        assert urls[0] == urls[1]
        assert not has_ended(urls[0])

        run.kill()

    assert_ends(urls[0])


@pytest.mark.parametrize("kind", KINDS)
async def test_new_databases_are_apart(kind: DatabaseKind, new_database: Callable[[DatabaseKind], str]) -> None:
    first, second = new_database(kind), new_database(kind)

    await query(first, "CREATE TABLE notes (id INTEGER PRIMARY KEY)")
    await query(second, "CREATE TABLE notes (id INTEGER PRIMARY KEY)")
    await query(first, "INSERT INTO notes VALUES (7)")

    assert await query(second, "SELECT id FROM notes") == []


async def test_database_is_dropped_while_a_transaction_uses_it(server: DatabaseServer) -> None:
    url = server.create_database("held")
    async with connected(url) as execute:
        await execute("CREATE TABLE notes (id INTEGER PRIMARY KEY)")
        await execute("BEGIN")
        await execute("SELECT id FROM notes")

        server.drop_database("held")

    with pytest.raises((asyncpg.InvalidCatalogNameError, OperationalError), match="held"):
        await query(url, "SELECT 1")


def test_choice_of_binaries_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(postgres.BINARIES_VARIABLE, "/nowhere/bin")

    with pytest.raises(MissingDatabase, match="/nowhere/bin"):
        postgres.find_binaries()
