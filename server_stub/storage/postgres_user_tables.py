"""The user's tables in a PostgreSQL database, over asyncpg.

Every value is bound with a cast to the type of its column, so that statements mean the same whatever the server would
infer. Types that asyncpg has no exact Python value for travel as text: enums, dates, which it confuses with infinity,
and whatever an extension adds.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeAlias

import asyncpg

from server_stub.core.ports import StoreRetry
from server_stub.storage.columns import (
    ColumnFamily,
    ColumnValueRefused,
    JsonText,
    UserColumn,
    converted,
    from_wire,
)
from server_stub.storage.postgres_errors import database_error, is_of_row
from server_stub.storage.server_user_tables import Ordinal, RowGroup, ServerTable, ServerUserTables, Values
from server_stub.storage.server_values import to_wire
from server_stub.storage.user_tables import Operation, is_system_name, row_error
from xdb_sdk.protocol import ColumnValue

# ruff: noqa: S608  # identifiers are reflected and quoted, values are bound

Connection: TypeAlias = "asyncpg.Connection[Any]"


def quote(identifier: str) -> str:
    """Quote a name of a schema, table or column."""
    return '"' + identifier.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class PostgresColumn(UserColumn):
    """A reflected column."""

    cast: str = ""
    """What follows the mark of a parameter."""
    selection: str = ""
    """What is selected to read it."""


@dataclass(frozen=True, slots=True)
class PostgresTable(ServerTable[PostgresColumn]):
    """A reflected table or view."""

    unique_keys: frozenset[frozenset[str]] = frozenset()
    """The columns of each index by which the table itself finds a row that is in the way of an insert."""


class PostgresUserTables(ServerUserTables[Connection, PostgresTable]):
    """The user's tables of one store. Each statement is pipelined over its rows, which costs one round trip."""

    async def _reflect(self, connection: Connection, table_name: str) -> PostgresTable | None:
        return await reflect(connection, table_name)

    def _to_database(self, column: PostgresColumn, value: ColumnValue) -> Any:
        return to_database(column, value)

    def _to_wire(self, column: PostgresColumn, value: Any) -> ColumnValue:
        return to_wire(column, value)

    async def _select(self, connection: Connection, group: RowGroup[PostgresTable]) -> Sequence[Sequence[Any]]:
        return await self._selected(connection, group, "")

    async def _lock(self, connection: Connection, group: RowGroup[PostgresTable]) -> Sequence[Sequence[Any]]:
        # As an update locks them that leaves the key alone: rows that refer to these may be inserted.
        return await self._selected(connection, group, " FOR NO KEY UPDATE")

    async def _selected(
        self, connection: Connection, group: RowGroup[PostgresTable], locking: str
    ) -> Sequence[Sequence[Any]]:
        # The key's index.
        table = group.table
        selected = "".join(f", {table.columns[name].selection}" for name in group.names)
        ordinal = len(group.key_names) + 1
        statement = f"SELECT ${ordinal}::int4{selected} FROM {table.quoted_name} WHERE {_condition(group, 1)}{locking}"
        return await connection.fetchmany(statement, [(*row.key, n) for n, row in enumerate(group.rows)])

    async def _update(
        self, connection: Connection, group: RowGroup[PostgresTable], ordinals: Sequence[Ordinal]
    ) -> Sequence[Ordinal]:
        # The key's index.
        table = group.table
        assigned = ", ".join(
            f"{quote(name)} = {_parameter(table, name, position)}" for position, name in enumerate(group.names, 1)
        )
        width = len(group.names)
        ordinal = width + len(group.key_names) + 1
        statement = (
            f"UPDATE {table.quoted_name} SET {assigned} WHERE {_condition(group, width + 1)} RETURNING ${ordinal}::int4"
        )
        return await _ordinals(
            connection, statement, [(*group.rows[n].values, *group.rows[n].key, n) for n in ordinals]
        )

    async def _insert(
        self, connection: Connection, group: RowGroup[PostgresTable], ordinals: Sequence[Ordinal]
    ) -> None:
        await _insert(connection, group, ordinals, "")

    async def _insert_absent(
        self, connection: Connection, group: RowGroup[PostgresTable], ordinals: Sequence[Ordinal]
    ) -> Collection[Ordinal]:
        if frozenset(group.key_names) not in group.table.unique_keys:
            await _insert(connection, group, ordinals, "")
            return ordinals
        key = ", ".join(quote(name) for name in group.key_names)
        return frozenset(await _insert(connection, group, ordinals, f"ON CONFLICT ({key}) DO NOTHING"))

    @contextmanager
    def _driver_errors(self, operation: Operation, group: RowGroup[PostgresTable]) -> Iterator[None]:
        try:
            yield
        except (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError) as error:
            self.forget()
            raise StoreRetry(f"table {group.table.name!r} has changed") from error
        except asyncpg.PostgresError as error:
            if not is_of_row(error):
                raise
            raise row_error(group.sole_row, database_error(error, operation, group.table.name)) from error


async def _insert(
    connection: Connection, group: RowGroup[PostgresTable], ordinals: Sequence[Ordinal], on_conflict: str
) -> Sequence[Ordinal]:
    """Insert some rows of a group, and give the ordinals of those that were."""
    table = group.table
    written = (*group.key_names, *group.names)
    names = ", ".join(quote(name) for name in written)
    marks = ", ".join(_parameter(table, name, position) for position, name in enumerate(written, 1))
    statement = (
        f"INSERT INTO {table.quoted_name} ({names}) VALUES ({marks}) {on_conflict} RETURNING ${len(written) + 1}::int4"
    )
    return await _ordinals(connection, statement, [(*group.rows[n].key, *group.rows[n].values, n) for n in ordinals])


async def _ordinals(connection: Connection, statement: str, rows: Sequence[Values]) -> Sequence[Ordinal]:
    return [ordinal for (ordinal,) in await connection.fetchmany(statement, rows)]


def _condition(group: RowGroup[PostgresTable], first: int) -> str:
    """Give the condition that finds a row, whose parameters are counted from `first`."""
    return " AND ".join(
        f"{quote(name)} = {_parameter(group.table, name, position)}"
        for position, name in enumerate(group.key_names, first)
    )


def _parameter(table: PostgresTable, name: str, position: int) -> str:
    return f"${position}{table.columns[name].cast}"


# --- values ---


def to_database(column: UserColumn, value: ColumnValue) -> Any:
    """Give what asyncpg binds for a wire value.

    Raises:
        ColumnValueRefused: It does not fit, or PostgreSQL would not give it back as it is.
    """
    return converted(column, value, _bound)


def _bound(column: UserColumn, value: ColumnValue) -> Any:
    python_value = from_wire(column, value)
    match python_value:
        case str():
            return _text(column, python_value)
        case JsonText():
            return _text(column, python_value.text)
        case datetime() if python_value.tzinfo is not None:
            return python_value.astimezone(UTC).isoformat()
        case datetime() | date() | time():
            return python_value.isoformat()
        case Decimal():
            return _number(column, python_value)
    return python_value


def _text(column: UserColumn, value: str) -> str:
    if "\0" in value:
        raise ColumnValueRefused(
            "TYPE", f"column {column.name!r} is {column.declared_type}, and PostgreSQL keeps no NUL character in text"
        )
    value.encode()  # a lone surrogate is no text
    return value


_NUMERIC_DIGITS: Final = range(-16_383, 131_072)


def _number(column: UserColumn, value: Decimal) -> Decimal:
    """Check that a number without bounds of its own is within those of PostgreSQL."""
    exponent = value.as_tuple().exponent
    if value and (exponent not in _NUMERIC_DIGITS or value.adjusted() not in _NUMERIC_DIGITS):
        raise ColumnValueRefused(
            "TYPE", f"column {column.name!r} is {column.declared_type}, the number is out of range"
        )
    return value


# --- reflection ---


async def reflect(connection: Connection, table_name: str) -> PostgresTable | None:
    """Read a table's columns, None when there is no table of exactly this name, or one of the system."""
    for schema, name in _readings(table_name):
        quoted_name = quote(name) if schema is None else f"{quote(schema)}.{quote(name)}"
        found = await connection.fetchrow(_FIND_TABLE, quoted_name, name, schema)
        if found is not None:
            return await _reflect_found(connection, table_name, quoted_name, found)
    return None


def _readings(table_name: str) -> Iterator[tuple[str | None, str]]:
    """Give what a name may mean, as schema and table: a table with a dot in its name comes first."""
    schema, _, name = table_name.partition(".")
    if _may_be_name(table_name) and not is_system_name(table_name):
        yield None, table_name
    if _may_be_name(schema) and _may_be_name(name) and not is_system_name(name):
        yield schema, name


_MAX_NAME_BYTES: Final = 63


def _may_be_name(text: str) -> bool:
    """Say whether the server looks for a name without an error."""
    return "\0" not in text and 0 < len(text.encode(errors="replace")) <= _MAX_NAME_BYTES


async def _reflect_found(
    connection: Connection, table_name: str, quoted_name: str, found: Mapping[str, Any]
) -> PostgresTable:
    rows = await connection.fetch(_FIND_COLUMNS, found["oid"])
    primary_key: tuple[str, ...] = ()
    unique_keys = set()
    for is_primary, finds_rows, names in await connection.fetch(_FIND_UNIQUE_INDEXES, found["oid"]):
        if is_primary:
            primary_key = tuple(names)
        if finds_rows:
            unique_keys.add(frozenset(names))
    exact = {row["name"] for row in rows if row["is_deterministic"] and row["type_name"] in _EXACT_TYPES}
    is_key_exact = bool(primary_key) and exact.issuperset(primary_key)
    return PostgresTable(
        name=table_name,
        is_view=found["is_view"],
        columns={row["name"]: column_of(row) for row in rows},
        primary_key=primary_key,
        is_volatile=found["is_linked"] or not is_key_exact,
        quoted_name=quoted_name,
        is_key_exact=is_key_exact,
        has_triggers=found["has_triggers"],
        unique_keys=frozenset(unique_keys),
    )


_FAMILIES: Final = {
    "text": ColumnFamily.TEXT,
    "varchar": ColumnFamily.TEXT,
    "bpchar": ColumnFamily.TEXT,
    "enum": ColumnFamily.TEXT,
    "int2": ColumnFamily.INTEGER,
    "int4": ColumnFamily.INTEGER,
    "int8": ColumnFamily.INTEGER,
    "bool": ColumnFamily.BOOLEAN,
    "float4": ColumnFamily.FLOAT,
    "float8": ColumnFamily.FLOAT,
    "numeric": ColumnFamily.NUMERIC,
    "bytea": ColumnFamily.BLOB,
    "timestamp": ColumnFamily.DATETIME,
    "timestamptz": ColumnFamily.DATETIME,
    "date": ColumnFamily.DATE,
    "time": ColumnFamily.TIME,
    "timetz": ColumnFamily.TIME,
    "interval": ColumnFamily.INTERVAL,
    "uuid": ColumnFamily.UUID,
    "json": ColumnFamily.JSON,
    "jsonb": ColumnFamily.JSON,
}
_EXACT_TYPES: Final = _FAMILIES.keys()
"""Of which two values that differ on the wire differ in the database."""
_TIMES: Final = frozenset({ColumnFamily.DATETIME, ColumnFamily.DATE, ColumnFamily.TIME})
_INT_BITS: Final = {"int2": 16, "int4": 32, "int8": 64}
_NO_FRACTION_GIVEN: Final = 0xFFFF


def column_of(row: Mapping[str, Any]) -> PostgresColumn:
    """Give a column from a row of `_FIND_COLUMNS`. A type without a family is text, as PostgreSQL writes its values."""
    type_name, base_type, modifier = row["type_name"], row["base_type"], row["modifier"]
    family = _FAMILIES.get(type_name)
    selected = quote(row["name"])
    cast = f"::{base_type}"
    if family is None or type_name == "enum":
        cast, selected = f"::text::{base_type}", f"{selected}::text"
    elif family in _TIMES:
        # JSON has one form of dates, whatever the session's; asyncpg takes the last day there is for infinity.
        cast, selected = f"::text::{base_type}", f"to_json({selected}) #>> '{{}}'"
    bits = _INT_BITS.get(type_name, 64)
    return PostgresColumn(
        name=row["name"],
        family=family or ColumnFamily.TEXT,
        declared_type=row["declared_type"],
        integers=range(-(2 ** (bits - 1)), 2 ** (bits - 1)),
        is_zoned=type_name in ("timestamptz", "timetz") if family in _TIMES else None,
        is_single=type_name == "float4",
        is_padded=type_name == "bpchar",
        cast=cast,
        selection=selected,
        **_bounds(type_name, modifier),
    )


def _bounds(type_name: str, modifier: int) -> dict[str, int]:
    """Read the modifier of a type, in which PostgreSQL keeps what stands in parentheses behind its name."""
    if modifier < 0:
        return {}
    match type_name:
        case "varchar" | "bpchar":
            return {"max_length": modifier - 4}
        case "numeric":
            bounds = modifier - 4
            return {"precision": bounds >> 16, "scale": ((bounds & 0x7FF) ^ 0x400) - 0x400}
        case "timestamp" | "timestamptz" | "time" | "timetz":
            return {"fraction_digits": modifier}
        case "interval" if modifier & 0xFFFF != _NO_FRACTION_GIVEN:
            return {"fraction_digits": modifier & 0xFFFF}
    return {}


# Run once for each table and half a minute, over the indexes of the catalogue. It has none for what a foreign key
# refers to, so that pg_constraint is scanned.

_FIND_TABLE: Final = """
    SELECT c.oid,
        c.relkind IN ('v', 'm') AS is_view,
        c.relkind = 'v' OR c.relhasrules OR EXISTS (
            SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal) AS has_triggers,
        c.relkind NOT IN ('r') OR c.relhasrules OR c.relispartition
        -- Named with its schema, though it has another name without.
        OR ($3::text IS NOT NULL AND pg_table_is_visible(c.oid))
        OR EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
        OR EXISTS (SELECT 1 FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent))
        OR EXISTS (
            SELECT 1 FROM pg_constraint k
            WHERE k.contype = 'f' AND c.oid IN (k.conrelid, k.confrelid)
            AND (k.confupdtype NOT IN ('a', 'r') OR k.confdeltype NOT IN ('a', 'r'))) AS is_linked
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass($1) AND c.relname = $2 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""

_FIND_UNIQUE_INDEXES: Final = """
    SELECT i.indisprimary,
        i.indimmediate AND i.indisvalid AND i.indpred IS NULL,
        array_agg(a.attname::text ORDER BY k.position)
    FROM pg_index i
    JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, position) ON k.position <= i.indnkeyatts
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = $1 AND i.indisunique AND i.indexprs IS NULL
    GROUP BY i.indexrelid, i.indisprimary, i.indimmediate, i.indisvalid, i.indpred"""

_FIND_COLUMNS: Final = """
    WITH RECURSIVE based AS (
        SELECT attnum, attname, atttypid AS type_id, atttypmod AS modifier, attcollation,
            format_type(atttypid, atttypmod) AS declared_type
        FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT attnum, attname, t.typbasetype,
            CASE WHEN t.typtypmod = -1 THEN modifier ELSE t.typtypmod END, attcollation, declared_type
        FROM based JOIN pg_type t ON t.oid = type_id WHERE t.typtype = 'd')
    SELECT attname::text AS name, declared_type, modifier, format_type(type_id, -1) AS base_type,
        coalesce(c.collisdeterministic, true) AS is_deterministic,
        CASE WHEN t.typtype = 'e' THEN 'enum'
            WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname::text ELSE '' END AS type_name
    FROM based JOIN pg_type t ON t.oid = type_id LEFT JOIN pg_collation c ON c.oid = attcollation
    WHERE t.typtype <> 'd' ORDER BY attnum"""
