"""The user's tables in a SQLite database: reflected, never created or altered, read and written one row at a time.

SQLite enforces neither declared types nor lengths, so they are enforced here: a value that the column could not give
back as it was is refused. Reading is lenient: what the application stored in another form is given as it is stored.
"""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

from pydantic_core import from_json

from server_stub.core.model import RowKey, RowRead, RowWrite, RowWriteMode
from server_stub.storage import user_tables
from server_stub.storage.columns import (
    JSON_TAG,
    ColumnFamily,
    ColumnValueRefused,
    JsonText,
    UserColumn,
    bytes_to_wire,
    converted,
    from_wire,
)
from server_stub.storage.sqlite_errors import database_error, is_unavailable
from server_stub.storage.user_tables import (
    Operation,
    UserTable,
    ambiguous_key,
    bind_columns,
    bind_key,
    find_column,
    is_system_name,
    refusals,
    row_error,
    unknown_table,
    volatile_names,
)
from xdb_sdk.protocol import ColumnValue, Json, TableMapping

# ruff: noqa: S608  # identifiers are reflected and quoted, values are bound

SqliteValue: TypeAlias = int | float | str | bytes | None


def quote(identifier: str) -> str:
    """Quote a name of a table or column."""
    return '"' + identifier.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class SqliteTable(UserTable[UserColumn]):
    """A reflected table, or a view that takes writes by a trigger."""

    schema_version: int
    """When it was reflected: SQLite's counter of changes of the schema."""


class UserTables:
    """The user's tables as one connection sees them. Used on the connection's thread, inside its transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._tables: dict[str, SqliteTable] = {}
        self._is_checked = False
        self.schema_version = 0
        """The counter of changes of the schema as it was at the last look."""

    def begin(self) -> None:
        """Note that a transaction has begun: within one, the schema stays as it is at the first look."""
        self._is_checked = False

    def find(self, table_name: str) -> SqliteTable | None:
        """Give a table as it is now: any change of the schema, by whomever, forgets what was reflected."""
        if not self._is_checked:
            (version,) = self._connection.execute("PRAGMA schema_version").fetchone()
            if version != self.schema_version:
                self._tables.clear()
                self.schema_version = version
            self._is_checked = True
        table = self._tables.get(table_name)
        if table is None:
            table = _reflect(self._connection, table_name, self.schema_version)
            if table is not None:
                self._tables[table_name] = table
        return table

    def volatile_among(self, table_names: Collection[str]) -> frozenset[str]:
        """Give those tables in which writing one row may change a row that is named otherwise."""
        return volatile_names(table for name in table_names if (table := self.find(name)) is not None)

    def read(self, read: RowRead) -> Mapping[str, Json] | None:
        """Read columns of one row as wire values; None when there is no such row.

        Raises:
            RowReadFailed: Unknown table or column, a key of the wrong type, or whatever the database says.
        """
        with _row_errors("READ", read.row):
            table = self._table(read.row.table_name)
            columns = [find_column(table, name) for name in read.columns]
            condition, key = self._key(table, read.row)
            names = ", ".join(quote(column.name) for column in columns) or "1"
            row = self._connection.execute(f"SELECT {names} FROM {quote(table.name)} WHERE {condition}", key).fetchone()
        if row is None:
            return None
        return {column.name: to_wire(column, value) for column, value in zip(columns, row, strict=False)}

    def write(self, write: RowWrite) -> None:
        """Write the given columns of one row; no columns, no write (semantics 1.5, 7.3).

        Raises:
            RowWriteFailed: Unknown table or column, a value that does not fit, or whatever the database says.
        """
        if not write.columns:
            return
        with _row_errors("WRITE", write.row):
            table = self._table(write.row.table_name)
            bound = bind_columns(table, write, to_database)
            names, values = [column.name for column, _ in bound], [value for _, value in bound]
            condition, key = self._key(table, write.row)
            match write.mode:
                case RowWriteMode.UPDATE_OR_INSERT:
                    if self._update(table, names, values, condition, key):
                        return
                case RowWriteMode.INSERT_IF_ABSENT:
                    if self._exists(table, condition, key):
                        return
                case RowWriteMode.INSERT:
                    pass
            key_names = [name for name, _ in write.row.primary_key]
            written = (*key_names, *names)
            columns = ", ".join(quote(name) for name in written)
            marks = ", ".join("?" * len(written))
            statement = f"INSERT INTO {quote(table.name)} ({columns}) VALUES ({marks})"
            self._connection.execute(statement, (*key, *values))

    def _update(
        self,
        table: SqliteTable,
        names: Sequence[str],
        values: Sequence[SqliteValue],
        condition: str,
        key: Sequence[SqliteValue],
    ) -> bool:
        """Update the row and say whether there is one. What a trigger of a view changes is not counted."""
        assignments = ", ".join(f"{quote(name)} = ?" for name in names)
        statement = f"UPDATE {quote(table.name)} SET {assignments} WHERE {condition}"
        changed = self._connection.execute(statement, (*values, *key)).rowcount
        if changed > 1:
            raise ambiguous_key(table, changed)
        return changed > 0 or (table.is_view and self._exists(table, condition, key))

    def _exists(self, table: SqliteTable, condition: str, key: Sequence[SqliteValue]) -> bool:
        return (
            self._connection.execute(f"SELECT 1 FROM {quote(table.name)} WHERE {condition}", key).fetchone() is not None
        )

    def _key(self, table: SqliteTable, row: RowKey) -> tuple[str, list[SqliteValue]]:
        """Give the condition that finds the row, and what it binds."""
        bound = bind_key(table, row, to_database)
        return " AND ".join(f"{quote(column.name)} = ?" for column, _ in bound), [value for _, value in bound]

    # --- reflection ---

    def _table(self, table_name: str) -> SqliteTable:
        table = self.find(table_name)
        if table is None:
            raise unknown_table(table_name)
        return table


@contextmanager
def _row_errors(operation: Operation, row: RowKey) -> Iterator[None]:
    """Turn what a row's statement raises into the error of the port, with the table named."""
    try:
        with refusals(operation, row):
            yield
    except sqlite3.Error as error:
        if is_unavailable(error):
            raise
        raise row_error(row, database_error(error, operation, row.table_name)) from error


def _reflect(connection: sqlite3.Connection, table_name: str, schema_version: int) -> SqliteTable | None:
    """Read a table's columns, None when there is no table of exactly this name. System tables are nobody's."""
    if is_system_name(table_name) or table_name.lower().startswith("sqlite_"):
        return None
    # The schema table is scanned: once for each table and change of the schema.
    found = connection.execute(
        "SELECT type, sql FROM sqlite_master WHERE name = ? AND type IN ('table', 'view')", (table_name,)
    ).fetchone()
    if found is None:
        return None
    columns = {}
    key: list[tuple[int, str]] = []
    for _, name, declared_type, _, _, key_position, _ in connection.execute(f"PRAGMA table_xinfo({quote(table_name)})"):
        columns[name] = column_of(name, declared_type)
        if key_position:
            key.append((key_position, name))
    return SqliteTable(
        name=table_name,
        is_view=found[0] == "view",
        columns=columns,
        primary_key=tuple(name for _, name in sorted(key)),
        is_volatile=not key or _may_replace(found[1]) or _is_linked(connection, table_name),
        schema_version=schema_version,
    )


def _may_replace(create_statement: str) -> bool:
    """Say whether a constraint of the table deletes the rows that are in the way of a new one."""
    return re.search(r"ON\s+CONFLICT\s+REPLACE", create_statement, re.IGNORECASE) is not None


def _is_linked(connection: sqlite3.Connection, table_name: str) -> bool:
    """Say whether keys that differ may be equal to SQLite, or writes to the table have effects in other rows.

    What a trigger does is not looked into: while there is one, wherever it stands, every table is linked.
    """
    (is_linked,) = connection.execute(_IS_LINKED, {"table": table_name}).fetchone()
    return bool(is_linked)


_IS_LINKED: Final = """
    SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger')
    OR EXISTS (
        SELECT 1 FROM pragma_index_list(:table) i JOIN pragma_index_xinfo(i.name) c
        WHERE i.origin = 'pk' AND c.key AND c.coll <> 'BINARY')
    OR EXISTS (
        SELECT 1 FROM sqlite_master t JOIN pragma_foreign_key_list(t.name) f
        WHERE t.type = 'table' AND lower(:table) IN (lower(t.name), lower(f."table"))
        AND (f.on_update NOT IN ('NO ACTION', 'RESTRICT') OR f.on_delete NOT IN ('NO ACTION', 'RESTRICT')))"""
# Scans the schema, once for each table and change of it.


# --- mappings ---


def canonical_mapping(table: SqliteTable, mapping: TableMapping) -> TableMapping:
    """Check a mapping against its table; see `Store.canonical_mapping`."""
    return user_tables.canonical_mapping(
        table, mapping, lambda column, value: to_wire(column, to_database(column, value))
    )


# --- column types ---

_DECLARED: Final = re.compile(r"\s*([^(]*?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\).*|\(.*)?", re.DOTALL)
_FAMILIES: Final = (
    (re.compile(r"^$"), ColumnFamily.ANY),
    (re.compile("BOOL"), ColumnFamily.BOOLEAN),
    (re.compile("DATETIME|TIMESTAMP"), ColumnFamily.DATETIME),
    (re.compile("^DATE$"), ColumnFamily.DATE),
    (re.compile("^TIME"), ColumnFamily.TIME),
    (re.compile("JSON"), ColumnFamily.JSON),
    (re.compile("UUID|UNIQUEIDENTIFIER"), ColumnFamily.UUID),
    (re.compile("NUMERIC|DECIMAL|^NUMBER"), ColumnFamily.NUMERIC),
    (re.compile("INT"), ColumnFamily.INTEGER),
    (re.compile("CHAR|CLOB|TEXT"), ColumnFamily.TEXT),
    (re.compile("BLOB|BINARY|BYTEA"), ColumnFamily.BLOB),
    (re.compile("REAL|FLOA|DOUB"), ColumnFamily.FLOAT),
)


def column_of(name: str, declared_type: str) -> UserColumn:
    """Find the family of a column by its declared type, as SQLite finds the affinity."""
    match = _DECLARED.fullmatch(declared_type)
    assert match is not None
    type_name, length, scale = match[1].upper(), match[2], match[3]
    if (type_name, length) == ("TINYINT", "1"):
        return UserColumn(name, ColumnFamily.BOOLEAN, declared_type)
    if (type_name, length) == ("BINARY", "16"):
        return UserColumn(name, ColumnFamily.UUID, declared_type)
    family = next((family for pattern, family in _FAMILIES if pattern.search(type_name)), ColumnFamily.ANY)
    if family is ColumnFamily.NUMERIC:
        return UserColumn(name, family, declared_type, scale=None if scale is None else int(scale))
    if family in (ColumnFamily.TEXT, ColumnFamily.BLOB):
        return UserColumn(name, family, declared_type, max_length=None if length is None else int(length))
    return UserColumn(name, family, declared_type)


# --- values ---


def to_database(column: UserColumn, value: ColumnValue) -> SqliteValue:
    """Give what is bound for a wire value.

    Raises:
        ColumnValueRefused: It does not fit, or SQLite would not give it back as it is.
    """
    return converted(column, value, _bound)


def _bound(column: UserColumn, value: ColumnValue) -> SqliteValue:
    python_value = from_wire(column, value)
    if isinstance(python_value, Decimal):
        return _number(column, python_value)
    if isinstance(python_value, JsonText):
        return _document(column, python_value)
    if isinstance(python_value, UUID):
        return python_value.bytes if column.declared_type.upper().startswith("BINARY") else str(python_value)
    if isinstance(python_value, datetime | date | time):
        return _instant(python_value)
    if isinstance(python_value, str) and column.family is ColumnFamily.ANY and column.declared_type:
        return _unconverted(column, python_value)
    assert not isinstance(python_value, timedelta), "SQLite has no type for intervals"
    return python_value


def _instant(value: datetime | date | time) -> str:
    """Give a date or time in the form of SQLAlchemy; aware ones as UTC, so that the order of text is that of time."""
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            with suppress(OverflowError):  # within a day of the first or last instant there is
                value = value.astimezone(UTC)
        return value.isoformat(" ", "microseconds")
    if isinstance(value, time):
        return value.isoformat("microseconds")
    return value.isoformat()


def _unconverted(column: UserColumn, value: str) -> str:
    """Give text for a column whose type SQLite does not know: there, text that looks like a number becomes one."""
    try:
        float(value)
    except ValueError:
        return value
    raise ColumnValueRefused(
        "TYPE",
        f"column {column.name!r} is {column.declared_type}, where SQLite makes a number of text; declare it TEXT",
    )


def _number(column: UserColumn, value: Decimal) -> int | float:
    """Give a number that a NUMERIC column keeps exactly: an integer of 64 bit or a float with these very digits."""
    if value == value.to_integral_value() and -(2**63) <= value < 2**63:
        return int(value)
    number = float(value)
    if Decimal(repr(number)) != value:
        raise ColumnValueRefused(
            "TYPE",
            f"column {column.name!r} is {column.declared_type}, of which SQLite keeps 15 digits; the value has more: "
            "declare the column TEXT",
        )
    return number


def _document(column: UserColumn, document: JsonText) -> int | float | str:
    """Give a document as text; a bare number, which the column's affinity would convert and maybe cut, as a number."""
    value = from_json(document.text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return document.text
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ColumnValueRefused("TYPE", f"column {column.name!r} takes a bare integer of 64 bit, the value is longer")
    return value


def to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    """Give the wire value of what is stored; what has not the form of the column's family, as it is stored."""
    if value is None:
        return None
    convert = _TO_WIRE.get(column.family)
    if convert is not None:
        with suppress(ValueError, TypeError, ArithmeticError):
            return convert(column, value)
    return bytes_to_wire(value) if isinstance(value, bytes) else value


def _boolean_to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    if value not in (0, 1):
        raise ValueError
    return bool(value)


def _numeric_to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    """Write the digits, with as many after the point as the column declares when that cuts nothing."""
    if not isinstance(value, int | float):
        raise TypeError
    number = Decimal(repr(value))
    if column.scale is not None:
        quantized = number.quantize(Decimal(1).scaleb(-column.scale))
        number = quantized if quantized == number else number
    return f"{number:f}"


def _datetime_to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    return datetime.fromisoformat(_as_text(value)).isoformat()


def _date_to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    return date.fromisoformat(_as_text(value)).isoformat()


def _time_to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    return time.fromisoformat(_as_text(value)).isoformat()


def _uuid_to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    return str(UUID(bytes=value) if isinstance(value, bytes) else UUID(_as_text(value)))


def _json_to_wire(column: UserColumn, value: SqliteValue) -> ColumnValue:
    if isinstance(value, int | float):
        return {JSON_TAG: value}
    return {JSON_TAG: from_json(_as_text(value))}


def _as_text(value: SqliteValue) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_TO_WIRE: Final[Mapping[ColumnFamily, Callable[[UserColumn, SqliteValue], ColumnValue]]] = {
    ColumnFamily.BOOLEAN: _boolean_to_wire,
    ColumnFamily.NUMERIC: _numeric_to_wire,
    ColumnFamily.DATETIME: _datetime_to_wire,
    ColumnFamily.DATE: _date_to_wire,
    ColumnFamily.TIME: _time_to_wire,
    ColumnFamily.UUID: _uuid_to_wire,
    ColumnFamily.JSON: _json_to_wire,
}
