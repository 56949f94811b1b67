"""What an error of MySQL or MariaDB over a user's table means: what of it is the application's fault."""

from typing import Final, Literal

from asyncmy.errors import MySQLError

from xdb_sdk.protocol import DatabaseErrorInfo

_INCORRECT_STRING: Final = "Incorrect string value"
"""The beginning of the message of an error over text that the character set of its column cannot hold."""
_ILLEGAL_MIX: Final = 1267
"""Of collations: the same, where the text is compared."""
_DUPLICATE: Final = 1062
_KINDS: Final = {
    **dict.fromkeys((1022, 1062, 1169, 1586), "UNIQUE"),
    **dict.fromkeys((1048, 1263, 1364), "NOT_NULL"),
    **dict.fromkeys((3819, 4025), "CHECK"),
    **dict.fromkeys((1216, 1217, 1451, 1452), "FOREIGN_KEY"),
    1406: "TOO_LONG",
    # Out of range, truncated, not of the type, not in the character set, no document.
    **dict.fromkeys((1264, 1265, 1267, 1292, 1366, 1367, 1411, 1525, 1690, 3140, 3141, 4038), "TYPE"),
    1146: "UNKNOWN_TABLE",
    1054: "UNKNOWN_COLUMN",
    1205: "LOCK_TIMEOUT",
}
_OF_SERVER: Final = frozenset(
    {
        *(1020, 1213),  # lost to others
        *(1317, 1969, 3024),  # stopped
        *(1021, 1030, 1037, 1038, 1041, 1114, 1135, 1206),  # resources
        *(1040, 1044, 1045, 1047, 1049, 1053, 1129, 1130, 1203, 1226, 1698, 1927, 3118, 3169),  # the connection
        *(1152, 1153, 1158, 1159, 1160, 1161, 1184),  # the network
        *(1290, 1792, 1836, 3100, 3101),  # a server that is only to be read from, or cannot commit
    }
)
_CLIENT_ERRORS: Final = range(2000, 3000)


def code_of(error: MySQLError) -> int:
    """Give the server's number of an error, 0 for one of the driver."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else 0


def is_of_row(error: MySQLError) -> bool:
    """Say whether an error is about the rows of a statement, and not about the server or other transactions."""
    code = code_of(error)
    return code != 0 and code not in _OF_SERVER and code not in _CLIENT_ERRORS


def is_of_character_set(error: MySQLError) -> bool:
    """Say whether text was refused because the character set of its column does not hold it."""
    return code_of(error) == _ILLEGAL_MIX or str(error.args[-1]).startswith(_INCORRECT_STRING)


def is_duplicate_key(error: MySQLError) -> bool:
    """Say whether a row could not be inserted because another has its key, primary or not."""
    return code_of(error) == _DUPLICATE


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
