"""What an error of PostgreSQL over a user's table means: what of it is the application's fault (semantics 7.4)."""

from typing import Final, Literal

import asyncpg

from xdb_sdk.protocol import DatabaseErrorInfo

_SERVER_CLASSES: Final = ("08", "25", "28", "3D", "40", "53", "57", "58", "F0", "XX")
"""Connection, transaction state, logins, lost to others, resources, operators, the system, and errors inside."""

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
