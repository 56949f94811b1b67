"""The database servers that all tests of a run share, and a new database on them for each test.

A server belongs to the run, not to the worker that was the first to need it: a process of its own keeps it until the
run ends, however that ends. `XDB_TEST_POSTGRES_URL` and `XDB_TEST_MARIADB_URL` name servers to use instead.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from tests.services import mariadb, postgres
from tests.services.server import DatabaseServer, ServerFailed

DatabaseKind = Literal["postgresql", "mariadb"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class _Service:
    url_variable: str
    find_binaries: Callable[[], object]
    start: Callable[[Path], DatabaseServer]
    create_database: Callable[[str, str], str]
    drop_database: Callable[[str, str], None]


_SERVICES: dict[DatabaseKind, _Service] = {
    "postgresql": _Service(
        url_variable="XDB_TEST_POSTGRES_URL",
        find_binaries=postgres.find_binaries,
        start=postgres.start,
        create_database=postgres.create_database,
        drop_database=postgres.drop_database,
    ),
    "mariadb": _Service(
        url_variable="XDB_TEST_MARIADB_URL",
        find_binaries=mariadb.find_binaries,
        start=mariadb.start,
        create_database=mariadb.create_database,
        drop_database=mariadb.drop_database,
    ),
}


@contextmanager
def database(kind: DatabaseKind, server_url: str) -> Iterator[str]:
    """Give the URL of a new, empty database on the server at `server_url`, and drop it afterwards."""
    service = _SERVICES[kind]
    name = f"xdb_test_{secrets.token_hex(8)}"
    url = service.create_database(server_url, name)
    try:
        yield url
    finally:
        service.drop_database(server_url, name)


def server_url(kind: DatabaseKind, run_directory: Path, run_pid: int) -> str:
    """Give the URL of the run's server; the first to ask waits about a second until it has started.

    Args:
        kind: What to give.
        run_directory: A directory of this run alone, the same in all of its processes.
        run_pid: The process with which the run ends.

    Raises:
        MissingDatabase: It is not installed, and no URL is set.
        ServerFailed: It did not start.
    """
    service = _SERVICES[kind]
    if given := os.environ.get(service.url_variable):
        return given
    service.find_binaries()
    with _locked(run_directory / f"{kind}.lock"):
        url_file = run_directory / f"{kind}.url"
        if not url_file.exists():
            url_file.write_text(_start_keeper(kind, run_directory, run_pid))
        return url_file.read_text()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # Windows has none, and runs the tests that need no server

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_keepers: list[subprocess.Popen[str]] = []  # a process that nobody refers to any more is warned about


def _start_keeper(kind: DatabaseKind, run_directory: Path, run_pid: int) -> str:
    command = [sys.executable, "-m", "tests.services.shared", kind, str(run_directory / kind), str(run_pid)]
    log = run_directory / f"{kind}.log"
    with log.open("w") as errors:
        keeper = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
        )
    _keepers.append(keeper)
    assert keeper.stdout is not None
    with keeper.stdout as output:
        url = output.readline().strip()
    if not url:
        raise ServerFailed(f"{' '.join(command)} gave no URL:\n{log.read_text()}")
    return url


def _keep(name: str, directory: str, run_pid: str) -> None:
    """Run a server until the process `run_pid` has ended. Its URL is the one line that is printed."""
    [service] = [service for kind, service in _SERVICES.items() if kind == name]
    with service.start(Path(directory)) as server:
        print(server.url, flush=True)
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(run_pid)).wait()


if __name__ == "__main__":
    _keep(*sys.argv[1:])
