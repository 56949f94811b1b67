"""What an error of PostgreSQL means: whether it can serve, and what is the application's fault (semantics 7.4)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import asyncpg

from server_stub.core.ports import CommitOutcomeUnknown
from xdb_sdk.protocol import DatabaseErrorInfo

_SERVER_CLASSES: Final = ("08", "25", "28", "3D", "40", "53", "57", "58", "F0", "XX")
"""Connection, transaction state, logins, lost to others, resources, operators, the system, and errors inside."""

_UNAVAILABLE_CLASSES: Final = ("08", "28", "3D", "53", "57", "58", "XX")
"""Connection, who may connect to what, resources, operator intervention, system and internal errors."""
_BROKEN: Final = ("08", "57P01", "57P02")
"""The connection, or the whole server, went down: before the commit or after."""
CANCELED: Final = "57014"
_READ_ONLY: Final = "25006"

_KINDS: Final = {
    "23505": "UNIQUE",
    "23P01": "UNIQUE",  # an exclusion constraint, of which uniqueness is one
    "23502": "NOT_NULL",
    "23514": "CHECK",
    "44000": "CHECK",  # of a view
    "23503": "FOREIGN_KEY",
    "23001": "FOREIGN_KEY",
    "22001": "TOO_LONG",
    "42P01": "UNKNOWN_TABLE",
    "42703": "UNKNOWN_COLUMN",
    "42804": "TYPE",
    "42846": "TYPE",
    "42883": "TYPE",  # no such operator: the column has another type now, or one that cannot be compared
    "55P03": "LOCK_TIMEOUT",
}
_DATA_CLASS: Final = "22"
_DIVISION_BY_ZERO: Final = "22012"


def is_of_row(error: asyncpg.PostgresError) -> bool:
    """Say whether an error is about the rows of a statement, and not about the server or other transactions."""
    return not (error.sqlstate or "XX").startswith(_SERVER_CLASSES)


def database_error(
    error: asyncpg.PostgresError, operation: Literal["READ", "WRITE"], table_name: str | None
) -> DatabaseErrorInfo:
    """Classify an error of a statement over a user's table (semantics 7.4)."""
    code = error.sqlstate or ""
    kind = _KINDS.get(code)
    if kind is None:
        kind = "TYPE" if code.startswith(_DATA_CLASS) and code != _DIVISION_BY_ZERO else "OTHER"
    return DatabaseErrorInfo(
        operation=operation, kind=kind, code=code, message=str(error.args[0]), table_name=table_name
    )


DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a server that is only to be read from, or a connection that has lost the thread
    OSError,
    TimeoutError,
)
"""What a connection attempt or a statement may raise."""


def is_unavailable(error: Exception) -> bool:
    """Say whether the database, or this connection to it, cannot serve at all now, whatever the statement."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        return code == _READ_ONLY or (code[:2] in _UNAVAILABLE_CLASSES and code != CANCELED)
    return not isinstance(error, asyncpg.DataError)


def reason_of(error: Exception) -> str:
    """Say what went wrong, also for an error without a text."""
    return str(error) or type(error).__name__


def address_of(url: str) -> str:
    """Give the hosts and ports that a URL names, without the user and the password; empty if it names none."""
    return urlsplit(url).netloc.rpartition("@")[2]


@contextmanager
def committing(connection: "asyncpg.Connection[Any]") -> Iterator[None]:
    """Say that a statement's outcome is unknown when its connection breaks; the connection is then given up.

    What the database itself refuses, such as a write to a disk that is full, was certainly not kept.
    """
    try:
        yield
    except DRIVER_ERRORS as error:
        is_refusal = isinstance(error, asyncpg.PostgresError) and not (error.sqlstate or "").startswith(_BROKEN)
        if is_refusal or not is_unavailable(error):
            raise
        connection.terminate()
        raise CommitOutcomeUnknown(f"the connection broke during a commit: {reason_of(error)}") from error
    except asyncio.CancelledError:
        connection.terminate()
        raise
