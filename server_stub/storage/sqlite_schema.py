"""The system tables in a SQLite file, changed in one transaction that holds the write lock."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from server_stub.storage import schema
from server_stub.storage.schema_change import CLUSTER_TABLE, SchemaChange, SchemaDialect
from server_stub.storage.sqlite_connection import SqliteOptions, connect, take_file, transaction, translated_errors

NUM_SHARDS: Final = 1
"""The file is one server's alone, which has nobody to share with."""


def prepare(connection: sqlite3.Connection, *, install: bool) -> None:
    """Check the system tables; create them when there are none and `install` says so.

    Tables of an older version are never upgraded.

    Raises:
        SchemaError: They do not fit this server; nothing was changed.
    """
    with transaction(connection, "BEGIN IMMEDIATE"):
        try:
            _check(connection)
        except schema.SchemaMissing:
            if not install:
                raise
            _apply(connection, schema.installation(SchemaDialect.SQLITE, num_shards=NUM_SHARDS))


def upgrade(path: str) -> int:
    """Bring the system tables of a file to the version of this server, all at once or not at all.

    Returns:
        The version they had.

    Raises:
        DatabaseInUse: A server has the file open.
        SchemaError: There are no tables, or they cannot be upgraded; nothing was changed.
        StoreUnavailable: The file cannot be opened, or is no database.
    """
    with (
        translated_errors(path),
        closing(take_file(path)),
        closing(connect(path, SqliteOptions())) as connection,
        transaction(connection, "BEGIN IMMEDIATE"),
    ):
        found = _find(connection)
        version = schema.installed_version(*found)
        for change in schema.upgrades(SchemaDialect.SQLITE, *found):
            _apply(connection, change)
        _check(connection)
        return version


def check(path: str) -> None:
    """Check the system tables of a file, which a server may have open; nothing is changed.

    Raises:
        SchemaError: They are missing, or not of the version that this server needs.
        StoreUnavailable: The file cannot be opened, or is no database.
    """
    with translated_errors(path), closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as connection:
        _check(connection)


def _check(connection: sqlite3.Connection) -> None:
    schema.check(*_find(connection), num_shards=NUM_SHARDS)


def _find(connection: sqlite3.Connection) -> tuple[list[str], dict[str, str]]:
    """Give the names of all tables, and the rows of xdb_sys_cluster."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    facts = connection.execute("SELECT name, value FROM xdb_sys_cluster") if CLUSTER_TABLE in names else ()
    return names, dict(facts)


def _apply(connection: sqlite3.Connection, change: SchemaChange) -> None:
    for statement in change.statements:
        connection.execute(statement)
