"""What an error of SQLite means to the server: who is at fault, and what of."""

import sqlite3
from typing import Final, Literal

from xdb_sdk.protocol import DatabaseErrorInfo

_PRIMARY_MASK: Final = 0xFF
_UNAVAILABLE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    }
)
_KINDS: Final = {
    "SQLITE_CONSTRAINT_UNIQUE": "UNIQUE",
    "SQLITE_CONSTRAINT_PRIMARYKEY": "UNIQUE",
    "SQLITE_CONSTRAINT_ROWID": "UNIQUE",
    "SQLITE_CONSTRAINT_NOTNULL": "NOT_NULL",
    "SQLITE_CONSTRAINT_CHECK": "CHECK",
    "SQLITE_CONSTRAINT_FOREIGNKEY": "FOREIGN_KEY",
    "SQLITE_CONSTRAINT_DATATYPE": "TYPE",
    "SQLITE_MISMATCH": "TYPE",
    "SQLITE_TOOBIG": "TOO_LONG",
}


def is_unavailable(error: sqlite3.Error) -> bool:
    """Say whether the database cannot serve at all now, whatever the statement."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error)
    return code & _PRIMARY_MASK in _UNAVAILABLE


def database_error(
    error: sqlite3.Error, operation: Literal["READ", "WRITE"], table_name: str | None
) -> DatabaseErrorInfo:
    """Classify an error of a statement over a user's table (semantics 7.4)."""
    name: str | None = getattr(error, "sqlite_errorname", None)
    kind = _KINDS.get(name or "", "OTHER")
    return DatabaseErrorInfo(operation=operation, kind=kind, code=name, message=str(error), table_name=table_name)
