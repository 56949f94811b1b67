"""The user's tables in a MySQL or MariaDB database.

A text of several statements, one for each row, costs one round trip. The session is strict and its time zone is UTC
(see `MysqlConnection`), so that the server refuses what it would otherwise cut; what it converts even so is refused
here.
"""

import re
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final
from uuid import UUID

from asyncmy.errors import MySQLError
from pydantic_core import from_json

from server_stub.core.model import RowKey
from server_stub.core.ports import StoreRetry
from server_stub.storage.columns import (
    ColumnFamily,
    ColumnValueRefused,
    JsonText,
    UserColumn,
    converted,
    from_wire,
)
from server_stub.storage.mysql_connection import MysqlConnection, joined
from server_stub.storage.mysql_errors import (
    code_of,
    database_error,
    is_duplicate_key,
    is_of_character_set,
    is_of_row,
)
from server_stub.storage.server_user_tables import Ordinal, RowGroup, ServerTable, ServerUserTables
from server_stub.storage.server_values import to_wire
from server_stub.storage.user_tables import Operation, is_system_name, row_error
from xdb_sdk.protocol import ColumnValue

# ruff: noqa: S608  # identifiers are reflected and quoted, values are bound

_CHANGED_SINCE_SNAPSHOT: Final = 1412
_WHOLE_UNICODE: Final = "utf8mb4"
_SYSTEM_DATABASES: Final = frozenset({"information_schema", "mysql", "performance_schema", "sys"})


def quote(identifier: str) -> str:
    """Quote a name of a database, table or column, for a statement with values."""
    return "`" + identifier.replace("`", "``").replace("%", "%%") + "`"


@dataclass(frozen=True, slots=True)
class MysqlColumn(UserColumn):
    """A reflected column."""

    selection: str = ""
    """What is selected to read it."""
    character_set: str | None = None
    is_exact: bool = True
    """Whether two values that differ on the wire differ in the database."""
    is_ascii_plain: bool = False
    """Whether texts of ASCII that differ by more than case, and blanks at the end, differ in the database."""
    is_fixed: bool = False
    """Whether binary data has exactly `max_length` bytes."""
    members: tuple[str, ...] | None = None
    """What an ENUM or SET may hold, in this order."""


@dataclass(frozen=True, slots=True)
class MysqlTable(ServerTable[MysqlColumn]):
    """A reflected table or view."""


class MysqlUserTables(ServerUserTables[MysqlConnection, MysqlTable]):
    """The user's tables of one store."""

    async def _reflect(self, connection: MysqlConnection, table_name: str) -> MysqlTable | None:
        return await reflect(connection, table_name)

    def _to_database(self, column: MysqlColumn, value: ColumnValue) -> Any:
        return to_database(column, value)

    def _to_wire(self, column: MysqlColumn, value: Any) -> ColumnValue:
        return _to_wire(column, value)

    def _identity(self, table: MysqlTable, row: RowKey) -> object | None:
        """Tell keys of ASCII apart where the collation finds no more in them than the case, and blanks at the end."""
        if not table.primary_key:
            return None
        parts = []
        for name, value in row.primary_key:
            column = table.columns[name]
            if not column.is_exact:
                is_text = isinstance(value, str) and value.isascii() and value.isprintable()
                if not column.is_ascii_plain or not is_text:
                    return None
                value = value.lower().rstrip(" ")
            parts.append((name, repr(value)))
        return tuple(parts), table.name

    async def _select(self, connection: MysqlConnection, group: RowGroup[MysqlTable]) -> Sequence[Sequence[Any]]:
        return await self._selected(connection, group, "")

    async def _lock(self, connection: MysqlConnection, group: RowGroup[MysqlTable]) -> Sequence[Sequence[Any]]:
        return await self._selected(connection, group, " FOR UPDATE")

    async def _selected(
        self, connection: MysqlConnection, group: RowGroup[MysqlTable], locking: str
    ) -> Sequence[Sequence[Any]]:
        # The key's index.
        table = group.table
        selected = "".join(f", {table.columns[name].selection}" for name in group.names)
        statement = f"SELECT %s{selected} FROM {table.quoted_name} WHERE {_condition(group)}{locking}"
        return await _fetch_each(connection, statement, [(n, *row.key) for n, row in enumerate(group.rows)])

    async def _update(
        self, connection: MysqlConnection, group: RowGroup[MysqlTable], ordinals: Sequence[Ordinal]
    ) -> Sequence[Ordinal]:
        # The key's index. The session counts the rows that were found, not only those that were changed.
        assigned = ", ".join(f"{quote(name)} = %s" for name in group.names)
        statement = f"UPDATE {group.table.quoted_name} SET {assigned} WHERE {_condition(group)}; SELECT %s, ROW_COUNT()"
        rows = [(*group.rows[n].values, *group.rows[n].key, n) for n in ordinals]
        counts = await _fetch_each(connection, statement, rows)
        return [ordinal for ordinal, count in counts for _ in range(count)]

    async def _insert(
        self, connection: MysqlConnection, group: RowGroup[MysqlTable], ordinals: Sequence[Ordinal]
    ) -> None:
        written = (*group.key_names, *group.names)
        names = ", ".join(quote(name) for name in written)
        beginning = f"INSERT INTO {group.table.quoted_name} ({names}) VALUES "
        marks = f"({', '.join(['%s'] * len(written))})"
        rows = (connection.text(marks, (*group.rows[n].key, *group.rows[n].values)) for n in ordinals)
        for text in joined(rows, ", "):
            await connection.execute(beginning.replace("%%", "%") + text)

    async def _insert_absent(
        self, connection: MysqlConnection, group: RowGroup[MysqlTable], ordinals: Sequence[Ordinal]
    ) -> Collection[Ordinal]:
        try:
            await self._insert(connection, group, ordinals)
        except MySQLError as error:
            # The transaction goes on after an error. A row that is in the way by another key is one of the user's.
            absent = RowGroup(group.table, group.key_names, (), [group.rows[n] for n in ordinals])
            if is_duplicate_key(error) and await self._select(connection, absent):
                raise StoreRetry(f"a row of {group.table.name!r} was inserted by another meanwhile") from error
            raise
        return ordinals

    @contextmanager
    def _driver_errors(self, operation: Operation, group: RowGroup[MysqlTable]) -> Iterator[None]:
        try:
            yield
        except MySQLError as error:
            if code_of(error) == _CHANGED_SINCE_SNAPSHOT:
                self.forget()
                raise StoreRetry(f"table {group.table.name!r} has changed") from error
            if not is_of_row(error):
                raise
            info = database_error(error, operation, group.table.name)
            if is_of_character_set(error):
                info = info.model_copy(update={"message": f"{info.message}{_character_sets(group)}"})
            raise row_error(group.sole_row, info) from error


async def _fetch_each(
    connection: MysqlConnection, statement: str, rows: Sequence[Sequence[Any]]
) -> list[tuple[Any, ...]]:
    """Run a statement once for each row of values, and give the rows of all."""
    found = []
    for text in joined((connection.text(statement, row) for row in rows), ";"):
        found += await connection.fetch(text)
    return found


def _condition(group: RowGroup[MysqlTable]) -> str:
    return " AND ".join(f"{quote(name)} = %s" for name in group.key_names)


def _character_sets(group: RowGroup[MysqlTable]) -> str:
    """Name the columns of a group whose character set does not hold all text."""
    columns = [group.table.columns[name] for name in (*group.key_names, *group.names)]
    lossy = [column for column in columns if column.character_set not in (None, _WHOLE_UNICODE)]
    return "".join(
        f"; column {column.name!r} has the character set {column.character_set}, "
        f"which does not hold all text: convert it to {_WHOLE_UNICODE}"
        for column in lossy
    )


# --- values ---


def to_database(column: MysqlColumn, value: ColumnValue) -> Any:
    """Give what asyncmy binds for a wire value.

    Raises:
        ColumnValueRefused: It does not fit, or the database would not give it back as it is.
    """
    return converted(column, value, _bound)


def _bound(column: UserColumn, value: ColumnValue) -> Any:
    assert isinstance(column, MysqlColumn)
    python_value = from_wire(column, value)
    match python_value:
        case str():
            return _text(column, python_value)
        case bytes():
            return _bytes(column, python_value)
        case JsonText():
            return _document(column, python_value.text)
        case UUID():
            return python_value.bytes if column.is_fixed else str(python_value)
        case float() if column.is_single:
            # As the server compares it, which makes 64 bits of both sides.
            return struct.unpack("<f", struct.pack("<f", python_value))[0]
        case datetime() if python_value.tzinfo is not None:
            return python_value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
        case datetime():
            return python_value.isoformat(" ")
        case date() | time():
            return python_value.isoformat()
    return python_value


def _text(column: MysqlColumn, value: str) -> str:
    value.encode()  # a lone surrogate is no text
    if column.members is None:
        return value
    is_set = column.declared_type.startswith("set")
    chosen = [member for member in value.split(",") if member] if is_set else [value]
    if chosen != [member for member in column.members if member in chosen]:
        form = "members of it in its order, with commas between" if is_set else "its members, written as there"
        raise ColumnValueRefused("TYPE", f"column {column.name!r} is {column.declared_type} and takes only {form}")
    return value


def _bytes(column: MysqlColumn, value: bytes) -> bytes:
    if column.is_fixed and len(value) != column.max_length:
        raise ColumnValueRefused(
            "TYPE", f"column {column.name!r} is {column.declared_type}, which fills shorter data up with zeros"
        )
    return value


_LONG_DIGITS: Final = re.compile(r"\d{19}")
_NO_NUMBER: Final = re.compile("Infinity|NaN")
_JSON_INTEGERS: Final = range(-(2**63), 2**64)


def _document(column: MysqlColumn, text: str) -> str:
    """Check that the server keeps a document: MariaDB as text, MySQL in a form of its own."""
    if _NO_NUMBER.search(text):
        from_json(text, allow_inf_nan=False)
    if column.character_set is None and _LONG_DIGITS.search(text) and not _has_short_integers(from_json(text)):
        raise ColumnValueRefused("TYPE", f"column {column.name!r} is json, which takes integers of 64 bit")
    return text


def _has_short_integers(document: Any) -> bool:
    match document:
        case int():
            return document in _JSON_INTEGERS
        case list():
            return all(map(_has_short_integers, document))
        case dict():
            return all(map(_has_short_integers, document.values()))
    return True


def _to_wire(column: MysqlColumn, value: Any) -> ColumnValue:
    if column.family is ColumnFamily.BOOLEAN and value in (0, 1):
        return bool(value)
    if column.family is ColumnFamily.UUID and isinstance(value, bytes):
        return str(UUID(bytes=value))
    return to_wire(column, value)


# --- reflection ---


async def reflect(connection: MysqlConnection, table_name: str) -> MysqlTable | None:
    """Read a table's columns, None when there is no table of exactly this name, or one of the system."""
    [(current,)] = await connection.fetch("SELECT DATABASE()")
    database, _, name = table_name.partition(".")
    readings = [(current, table_name), *([(database, name)] if database and name else [])]
    for database, name in readings:
        if is_system_name(name) or database.lower() in _SYSTEM_DATABASES:
            continue
        for found_database, found_name, table_type in await connection.fetch(_FIND_TABLE, (database, name)):
            if (found_database, found_name) == (database, name):
                is_other_name = name != table_name and database == current
                return await _reflect_found(connection, table_name, database, name, table_type, is_other_name)
    return None


async def _reflect_found(
    connection: MysqlConnection, table_name: str, database: str, name: str, table_type: str, is_other_name: bool
) -> MysqlTable:
    place = (database, name)
    documents: set[str] = set()
    if connection.is_mariadb:
        documents = {clause for (clause,) in await connection.fetch(_FIND_CHECKS, place)}
    columns = [column_of(row, documents) for row in await connection.fetch(_FIND_COLUMNS, place)]
    primary_key = tuple(key_name for (key_name,) in await connection.fetch(_FIND_PRIMARY_KEY, place))
    [(has_triggers,)] = await connection.fetch(_HAS_TRIGGERS, place)
    [(is_linked,)] = await connection.fetch(_IS_LINKED, (database, name, database, name))
    is_view = "VIEW" in table_type
    exact = {column.name for column in columns if column.is_exact}
    is_key_exact = bool(primary_key) and exact.issuperset(primary_key)
    return MysqlTable(
        name=table_name,
        is_view=is_view,
        columns={column.name: column for column in columns},
        primary_key=primary_key,
        is_volatile=bool(is_view or is_other_name or has_triggers or is_linked or not is_key_exact),
        quoted_name=f"{quote(database)}.{quote(name)}" if name != table_name else quote(name),
        is_key_exact=is_key_exact,
        has_triggers=bool(has_triggers),
    )


# Run once for each table and half a minute. The server looks the names up without regard to case where its file system
# does; where it does not, the comparison of what it found still may.

_FIND_TABLE: Final = """
    SELECT table_schema, table_name, table_type FROM information_schema.tables
    WHERE table_schema = %s AND table_name = %s"""

_FIND_COLUMNS: Final = """
    SELECT column_name, data_type, column_type, character_maximum_length, numeric_precision, numeric_scale,
        datetime_precision, character_set_name, collation_name
    FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""

_FIND_PRIMARY_KEY: Final = """
    SELECT column_name FROM information_schema.statistics
    WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index"""

_FIND_CHECKS: Final = """
    SELECT check_clause FROM information_schema.check_constraints
    WHERE constraint_schema = %s AND table_name = %s"""

_HAS_TRIGGERS: Final = """
    SELECT EXISTS (
        SELECT 1 FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table = %s)"""

_IS_LINKED: Final = """
    SELECT EXISTS (
        SELECT 1 FROM information_schema.referential_constraints
        WHERE ((constraint_schema = %s AND table_name = %s)
            OR (unique_constraint_schema = %s AND referenced_table_name = %s))
        AND (update_rule NOT IN ('NO ACTION', 'RESTRICT') OR delete_rule NOT IN ('NO ACTION', 'RESTRICT')))"""

_FAMILIES: Final = {
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), ColumnFamily.TEXT),
    **dict.fromkeys(("enum", "set"), ColumnFamily.TEXT),
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year"), ColumnFamily.INTEGER),
    **dict.fromkeys(("float", "double"), ColumnFamily.FLOAT),
    "decimal": ColumnFamily.NUMERIC,
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ColumnFamily.BLOB),
    **dict.fromkeys(("datetime", "timestamp"), ColumnFamily.DATETIME),
    "date": ColumnFamily.DATE,
    "time": ColumnFamily.TIME,
    "uuid": ColumnFamily.UUID,
    "json": ColumnFamily.JSON,
}
_INT_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_YEARS: Final = range(1901, 2156)
_TIMES: Final = frozenset({ColumnFamily.DATETIME, ColumnFamily.DATE, ColumnFamily.TIME})
_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'")


def column_of(row: Sequence[Any], checks: Collection[str]) -> MysqlColumn:
    """Give a column from a row of `_FIND_COLUMNS`. A type without a family is text, as the server converts it.

    Args:
        row: The row.
        checks: The clauses of the table's checks; to MariaDB a document is text with a check.
    """
    name, data_type, declared_type, max_length, precision, scale, fraction_digits, character_set, collation = row
    family = _family(name, data_type, declared_type, max_length, checks)
    return MysqlColumn(
        name=name,
        family=family,
        declared_type=declared_type,
        max_length=max_length if data_type in ("char", "varchar", "binary", "varbinary") else None,
        precision=precision if family is ColumnFamily.NUMERIC else None,
        scale=scale if family is ColumnFamily.NUMERIC else None,
        integers=_integers(data_type, declared_type, precision),
        fraction_digits=fraction_digits,
        is_zoned=data_type == "timestamp" if family in _TIMES else None,
        is_single=data_type == "float",
        is_padded=data_type == "char",
        selection=_selection(name, data_type, family),
        character_set=character_set,
        is_exact=family is not ColumnFamily.TEXT or _is_exact(collation),
        is_ascii_plain=collation is not None and _ASCII_PLAIN.fullmatch(collation) is not None,
        is_fixed=data_type == "binary",
        members=_members(declared_type) if data_type in ("enum", "set") else None,
    )


def _family(
    name: str, data_type: str, declared_type: str, max_length: int | None, checks: Collection[str]
) -> ColumnFamily:
    if declared_type.startswith("tinyint(1)") or declared_type == "bit(1)":
        return ColumnFamily.BOOLEAN
    if (data_type, max_length) == ("binary", 16):
        return ColumnFamily.UUID
    if data_type == "longtext" and f"json_valid({_as_in_check(name)})" in checks:
        return ColumnFamily.JSON
    return _FAMILIES.get(data_type, ColumnFamily.TEXT)


def _as_in_check(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _integers(data_type: str, declared_type: str, precision: int | None) -> range:
    if data_type == "year":
        return _YEARS
    if data_type == "bit":
        return range(2 ** (precision or 1))
    bits = _INT_BITS.get(data_type, 64)
    if "unsigned" in declared_type:
        return range(2**bits)
    return range(-(2 ** (bits - 1)), 2 ** (bits - 1))


def _selection(name: str, data_type: str, family: ColumnFamily) -> str:
    column = quote(name)
    if data_type == "bit":
        return f"{column} + 0"
    if data_type == "float":
        return f"{column} + 0e0"  # by itself it is written with 6 digits
    if family in _TIMES:
        return f"CAST({column} AS CHAR)"  # also what Python has no date or time for
    return column


# Not those of languages: to some "y" is "i", or "w" is "v".
_ASCII_PLAIN: Final = re.compile(
    "(utf8mb4|utf8mb3|utf8|latin1|ascii)_((general|swedish|unicode|unicode_520|0900|uca1400)_)?"
    "(nopad_)?((ai|as)_)?(ci|cs|bin)"
)


def _is_exact(collation: str | None) -> bool:
    """Say whether text that differs is different to a collation: also by case, accents, and blanks at the end."""
    return collation is not None and collation.endswith(("_nopad_bin", "_0900_bin"))


def _members(declared_type: str) -> tuple[str, ...]:
    return tuple(member.replace("''", "'") for member in _MEMBER.findall(declared_type))
