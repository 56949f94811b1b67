"""Opening a SQLite file: alone, and in transactions that end one way or the other."""

import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from server_stub.core.ports import StoreError, StoreUnavailable
from server_stub.storage.sqlite_errors import is_unavailable

logger = logging.getLogger(__name__)

MEMORY: Final = ":memory:"
_SQLITE_URL: Final = re.compile(r"sqlite(?:\+\w+)?://(?:/(?P<path>[^?]*))?(?:\?.*)?")
_LOCK_SUFFIX: Final = ".xdb-lock"
_CACHE_KIB: Final = 32 * 1024
"""Pages kept by each connection. With SQLite's 2 MiB, 60,000 open executions cost a quarter more time a step."""


class Synchronous(StrEnum):
    """When SQLite waits for the disk. NORMAL may lose the last commits when the machine, not the server, goes down."""

    FULL = "FULL"
    NORMAL = "NORMAL"
    OFF = "OFF"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """How a database file is opened.

    `busy_timeout` is how long a transaction waits for a lock that the application holds before it is refused as
    unavailable. `install_schema` creates the system tables in a database that has none.
    """

    synchronous: Synchronous = Synchronous.FULL
    busy_timeout: timedelta = timedelta(seconds=5)
    foreign_keys: bool = True
    install_schema: bool = True


class DatabaseInUse(StoreError):
    """Another server has the file open."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"another xdb server uses the database file {path}; stop it first, or give this one its own file"
        )


def database_path(location: str | Path) -> str:
    """Give the absolute path, or `MEMORY`, that a path or a `sqlite:` URL names.

    Raises:
        ValueError: The URL names another kind of database.
    """
    name = str(location)
    if url := _SQLITE_URL.fullmatch(name):
        name = unquote(url["path"] or "") or MEMORY
    elif "://" in name:
        raise ValueError(f"{name.partition('://')[0]}:// is not a SQLite URL; use a path or sqlite:///path")
    return name if name == MEMORY else str(Path(name).expanduser().resolve())


def take_file(path: str) -> sqlite3.Connection:
    """Make the database file this server's own, until the connection is closed or the process ends."""
    lock = sqlite3.connect(path + _LOCK_SUFFIX, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise DatabaseInUse(path) from error
        raise
    return lock


class Connection(sqlite3.Connection):
    """A connection that counts its statements."""

    statements = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.statements += 1
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        self.statements += 1
        return super().executemany(*arguments)


def connect(path: str, options: SqliteOptions) -> Connection:
    """Open a connection that takes no transaction by itself, with the write-ahead log on."""
    connection = sqlite3.connect(
        path,
        factory=Connection,
        timeout=options.busy_timeout.total_seconds(),
        isolation_level=None,
        check_same_thread=False,  # used on one executor thread, opened and closed on others
        cached_statements=512,
    )
    try:
        (journal_mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if journal_mode not in ("wal", "memory"):
            logger.warning("no write-ahead log on this file system", extra={"path": path, "mode": journal_mode})
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA synchronous = {options.synchronous}")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if options.foreign_keys else 'OFF'}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def translated_errors(what: str = "the SQLite database") -> Iterator[None]:
    """Turn what says that the database cannot serve now into `StoreUnavailable`."""
    try:
        yield
    except sqlite3.Error as error:
        if is_unavailable(error):
            raise StoreUnavailable(f"{what} is not available: {error}") from error
        raise


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commit at the end; on any exception, of the commit too, keep nothing."""
    with translated_errors():
        connection.execute(begin)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise


def _roll_back(connection: sqlite3.Connection) -> None:
    """Undo the transaction, unless the error has done so already; the error itself is what the caller hears."""
    if not connection.in_transaction:
        return
    try:
        connection.execute("ROLLBACK")
    except sqlite3.Error:
        logger.exception("rollback failed")
