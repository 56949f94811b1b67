"""The databases that engines keep their data in: a new one for each run, on one server for all of them."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import psutil

from benchmarks.commands import cpu_s
from tests.services import postgres

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


class DatabaseKind(StrEnum):
    """Which database."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True)
class Databases:
    """Where the runs get their databases.

    Attributes:
        kind: Which database.
        new: Gives the URL of a new, empty database, which is removed at the end.
        server_process_id: The main process of the server, whose CPU time is counted; None if there is none here.
        server_url: Another database on the server, from which it can be watched; None if there is no server.
    """

    kind: DatabaseKind
    new: Callable[[], AbstractContextManager[str]]
    server_process_id: int | None
    server_url: str | None = None

    @property
    def cpu_s(self) -> Callable[[], float] | None:
        """Tells the CPU time of the server so far; None if there is none here."""
        if self.server_process_id is None:
            return None
        return partial(cpu_s, psutil.Process(self.server_process_id))


def kind_of(url: str) -> DatabaseKind:
    """Say which database a URL names.

    Raises:
        ValueError: Its scheme is not one of those that are measured.
    """
    return DatabaseKind(urlsplit(url).scheme)


@contextmanager
def sqlite_databases() -> Iterator[Databases]:
    """Give SQLite files, each in a directory of its own."""
    yield Databases(DatabaseKind.SQLITE, _new_sqlite_file, server_process_id=None)


@contextmanager
def _new_sqlite_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bench-sqlite-", ignore_cleanup_errors=True) as directory:
        yield f"sqlite:///{Path(directory) / 'bench.db'}"


@contextmanager
def own_postgres(settings: Mapping[str, str] | None = None) -> Iterator[Databases]:
    """Start a PostgreSQL server with default durability, and give databases on it.

    Args:
        settings: More server settings, named as in `postgresql.conf`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bench-postgres-", ignore_cleanup_errors=True) as directory,
        postgres.start(Path(directory) / "server", is_durable=True, settings=settings) as server,
    ):
        yield _postgres_databases(server.url, server.pid)


@contextmanager
def postgres_beside(url: str) -> Iterator[Databases]:
    """Give databases on the server that a URL names, beside that of the URL."""
    yield _postgres_databases(url, _postmaster(url))


def _postgres_databases(server_url: str, process_id: int | None) -> Databases:
    @contextmanager
    def new() -> Iterator[str]:
        name = f"bench_{uuid4().hex[:12]}"
        url = postgres.create_database(server_url, name)
        try:
            yield url
        finally:
            postgres.drop_database(server_url, name)

    return Databases(DatabaseKind.POSTGRESQL, new, process_id, server_url)


def _postmaster(url: str) -> int | None:
    """Find the main process of the PostgreSQL server of a URL; None if it runs elsewhere or belongs to someone else."""
    address = urlsplit(url)
    if address.hostname not in LOOPBACK_HOSTS:
        return None
    port = address.port or 5432
    for connection in psutil.net_connections("tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr or connection.laddr.port != port:
            continue
        if connection.pid and psutil.Process(connection.pid).name().startswith("postgres"):
            return connection.pid
    return None
