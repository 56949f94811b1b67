"""The names of column types: the tests use one name for what each database calls its own way."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.contract.store.databases import DATABASES, Database
from tests.support.databases import Kind

_NAMES: Final[Mapping[Kind, Mapping[str, str]]] = {
    "sqlite": {"INSTANT": "TIMESTAMP", "LONG TEXT": "TEXT"},
    "postgresql": {
        "TINYINT(1)": "BOOLEAN",
        "BLOB": "BYTEA",
        "VARBINARY(3)": "BYTEA",
        "VARBINARY(8)": "BYTEA",
        "BINARY(16)": "UUID",
        "DATETIME": "TIMESTAMP",
        "INSTANT": "TIMESTAMPTZ",
        "LONG TEXT": "TEXT",
    },
    "mariadb": {
        "TEXT": "TEXT CHARACTER SET utf8mb4",  # the server's own default is another
        "VARCHAR(3)": "VARCHAR(3) CHARACTER SET utf8mb4",
        "LONG TEXT": "LONGTEXT CHARACTER SET utf8mb4",
        "DATETIME": "DATETIME(6)",
        "INSTANT": "TIMESTAMP(6) NULL",
        "TIME": "TIME(6)",
    },
}
_KEY_NAMES: Final[Mapping[Kind, Mapping[str, str]]] = {
    "sqlite": {},
    "postgresql": {},
    # Text without a bound cannot be indexed, and most collations take keys that differ for one.
    "mariadb": {
        "TEXT": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
        "BLOB": "VARBINARY(255)",
        "INSTANT": "TIMESTAMP(6)",
    },
}


def column_type(kind: Kind, name: str) -> str:
    """Give the name that a type has in a database."""
    return _NAMES[kind].get(name, name)


def key_type(kind: Kind, name: str) -> str:
    """Give the name that a type has in a database where it is that of a key."""
    return _KEY_NAMES[kind].get(name, column_type(kind, name))


def forget_tables(database: Database) -> None:
    """Let the store reflect the user's tables anew, as it does by itself once half a minute has passed."""
    tables = getattr(database.store, "_tables", None)
    if tables is not None:
        tables.forget()


def on_each_database(
    common: Iterable[tuple[Any, ...]], own: Mapping[Kind, Iterable[tuple[Any, ...]]] | None = None
) -> list[tuple[Any, ...]]:
    """Give table cases, the name of the database in front: the common ones for each, and those of its kind."""
    return [(name, *case) for name, kind in DATABASES.items() for case in (*common, *(own or {}).get(kind, ()))]
