"""What an error of MySQL or MariaDB means: what of it is the server's, and what the application's fault."""

from typing import Final, Literal

from asyncmy.errors import MySQLError

from xdb_sdk.protocol import DatabaseErrorInfo

_INCORRECT_STRING: Final = "Incorrect string value"
"""The beginning of the message of an error over text that the character set of its column cannot hold."""
_ILLEGAL_MIX: Final = 1267
"""Of collations: the same, where the text is compared."""
_LOCK_TIMEOUT: Final = 1205
DUPLICATE: Final = 1062
LOST: Final = frozenset({1020, 1213})
"""A row that has changed since it was read, and a deadlock."""
BUSY: Final = frozenset({_LOCK_TIMEOUT, 1206, 1317, 1969, 3024})
"""A lock that was not to be had, no room for locks, and statements that were stopped: by an operator, or for the time
they took."""
UNAVAILABLE: Final = frozenset(
    {
        *(1040, 1203, 1226),  # too many connections
        *(1044, 1045, 1049, 1129, 1130, 1698, 3118),  # who may connect to what
        *(1021, 1030, 1037, 1038, 1041, 1114, 1135),  # resources, and the storage engine
        *(1053, 1047, 1927, 3169),  # the server stops, or stopped this connection
        *(1152, 1158, 1159, 1160, 1161, 1184),  # the network, as the server sees it
        *(1180, 1290, 1792, 1836, 3100, 3101),  # a server that is only to be read from, or cannot commit
    }
)
"""The database, or this connection to it, cannot serve at all now."""
CLIENT_ERRORS: Final = range(2000, 3000)
_KINDS: Final = {
    **dict.fromkeys((1022, 1062, 1169, 1586), "UNIQUE"),
    **dict.fromkeys((1048, 1263, 1364), "NOT_NULL"),
    **dict.fromkeys((3819, 4025), "CHECK"),
    **dict.fromkeys((1216, 1217, 1451, 1452), "FOREIGN_KEY"),
    **dict.fromkeys((1153, 1406), "TOO_LONG"),  # for a packet, and for the column
    # Out of range, truncated, not of the type, not in the character set, no document.
    **dict.fromkeys((1264, 1265, 1267, 1292, 1366, 1367, 1411, 1525, 1690, 3140, 3141, 4038), "TYPE"),
    1146: "UNKNOWN_TABLE",
    1054: "UNKNOWN_COLUMN",
    _LOCK_TIMEOUT: "LOCK_TIMEOUT",
}


def code_of(error: MySQLError) -> int:
    """Give the server's number of an error, 0 for one of the driver."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else 0


def is_of_row(error: MySQLError) -> bool:
    """Say whether an error is about the rows of a statement, and not about the server or other transactions."""
    code = code_of(error)
    is_of_server = code in LOST | BUSY | UNAVAILABLE or code in CLIENT_ERRORS
    # A lock that was not to be had is that of a row, whoever holds it.
    return code == _LOCK_TIMEOUT or (code != 0 and not is_of_server)


def is_of_character_set(error: MySQLError) -> bool:
    """Say whether text was refused because the character set of its column does not hold it."""
    return code_of(error) == _ILLEGAL_MIX or str(error.args[-1]).startswith(_INCORRECT_STRING)


def is_duplicate_key(error: MySQLError) -> bool:
    """Say whether a row could not be inserted because another has its key, primary or not."""
    return code_of(error) == DUPLICATE


def database_error(error: MySQLError, operation: Literal["READ", "WRITE"], table_name: str | None) -> DatabaseErrorInfo:
    """Classify an error of a statement over a user's table (semantics 7.4)."""
    code = code_of(error)
    return DatabaseErrorInfo(
        operation=operation,
        kind=_KINDS.get(code, "OTHER"),
        code=str(code),
        message=str(error.args[-1]),
        table_name=table_name,
    )
