"""What the user's tables have in common on every database: the reflected table, what a row is asked, what is refused.

Tables are reflected, never created or altered. A database's module reflects them, quotes names, says what is bound
for a wire value, and what an error of its driver means.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from server_stub.core.model import RowKey, RowWrite
from server_stub.core.ports import MappingRefused, RowReadFailed, RowWriteFailed
from server_stub.storage.columns import ColumnFamily, ColumnValueRefused, UserColumn
from server_stub.storage.schema import SYSTEM_PREFIX
from xdb_sdk.protocol import ColumnValue, DatabaseErrorInfo, TableMapping

Operation: TypeAlias = Literal["READ", "WRITE"]
ColumnT = TypeVar("ColumnT", bound=UserColumn)
_ColumnT_co = TypeVar("_ColumnT_co", bound=UserColumn, covariant=True)
ValueT = TypeVar("ValueT")

_MAX_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class UserTable(Generic[_ColumnT_co]):
    """A reflected table, or a view of the user that takes writes."""

    name: str
    is_view: bool
    columns: Mapping[str, _ColumnT_co]
    primary_key: tuple[str, ...]
    is_volatile: bool
    """Whether writing one of its rows may change one that is named otherwise, in this table or another."""


class RowRefused(Exception):
    """What is asked of a row cannot be done; becomes the error of the row. `kind` is that of `DatabaseErrorInfo`."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def is_system_name(table_name: str) -> bool:
    """Say whether a name, in whatever case, is kept for the tables of the server."""
    return table_name.lower().startswith(SYSTEM_PREFIX)


def unknown_table(table_name: str) -> RowRefused:
    """Say that there is no table of exactly this name."""
    return RowRefused("UNKNOWN_TABLE", f"the database has no table {table_name!r}")


def find_column(table: UserTable[ColumnT], name: str) -> ColumnT:
    """Give a column.

    Raises:
        RowRefused: There is none of exactly this name.
    """
    column = table.columns.get(name)
    if column is None:
        raise RowRefused("UNKNOWN_COLUMN", f"table {table.name!r} has no column {name!r}; names match exactly")
    return column


def bind_key(
    table: UserTable[ColumnT], row: RowKey, to_database: Callable[[ColumnT, ColumnValue], ValueT]
) -> list[tuple[ColumnT, ValueT]]:
    """Give the columns that name a row, and what is bound for each.

    Raises:
        RowRefused: There are none, or not all are columns.
        ColumnValueRefused: A value does not fit.
    """
    if not row.primary_key:
        raise RowRefused("OTHER", "the row is named by no key column")
    columns = [(find_column(table, name), value) for name, value in row.primary_key]
    return [(column, to_database(column, value)) for column, value in columns]


def bind_columns(
    table: UserTable[ColumnT], write: RowWrite, to_database: Callable[[ColumnT, ColumnValue], ValueT]
) -> list[tuple[ColumnT, ValueT]]:
    """Give the columns to write, and what is bound for each.

    Raises:
        RowRefused: One is no column, or a column of the key, which is never written (semantics 7.1).
        ColumnValueRefused: A value does not fit.
    """
    key_names = {name for name, _ in write.row.primary_key}
    bound = []
    for name, value in write.columns.items():
        column = find_column(table, name)
        if name in key_names or name in table.primary_key:
            raise RowRefused("OTHER", f"column {name!r} is the primary key, which is never written")
        bound.append((column, to_database(column, value)))
    return bound


def ambiguous_key(table: UserTable[ColumnT], count: int) -> RowRefused:
    """Say that a key names more than one row."""
    return RowRefused("OTHER", f"the key names {count} rows of {table.name!r}; it must be unique")


@contextmanager
def refusals(operation: Operation, row: RowKey) -> Iterator[None]:
    """Turn a refusal into the error of the row, with its table named."""
    try:
        yield
    except (RowRefused, ColumnValueRefused) as error:
        raise refused_row(operation, row, error) from error


def refused_row(
    operation: Operation, row: RowKey, error: RowRefused | ColumnValueRefused
) -> RowReadFailed | RowWriteFailed:
    """Give the port's error for a refusal."""
    info = DatabaseErrorInfo(operation=operation, kind=error.kind, message=str(error), table_name=row.table_name)
    return row_error(row, info)


def row_error(row: RowKey | None, info: DatabaseErrorInfo) -> RowReadFailed | RowWriteFailed:
    """Give the port's error for what the database said."""
    return RowReadFailed(row, info) if info.operation == "READ" else RowWriteFailed(row, info)


def volatile_names(tables: Iterable[UserTable[UserColumn]]) -> frozenset[str]:
    """Give the names of those tables in which writing one row may change a row that is named otherwise.

    A view shows rows of tables, and writes to them: which ones only the database can say.
    """
    among = list(tables)
    has_view = any(table.is_view for table in among)
    return frozenset(table.name for table in among if has_view or table.is_volatile)


def canonical_mapping(
    table: UserTable[ColumnT], mapping: TableMapping, canonical: Callable[[ColumnT, ColumnValue], ColumnValue]
) -> TableMapping:
    """Check a mapping against its table; see `Store.canonical_mapping`.

    Args:
        table: The table that the mapping names.
        mapping: What to check.
        canonical: Gives a key value in the form in which a read gives it, or raises `ColumnValueRefused`.

    Raises:
        MappingRefused: It does not fit.
    """
    unknown = sorted({*mapping.primary_key, *mapping.initial_write} - table.columns.keys())
    if unknown:
        raise MappingRefused(f"table {table.name!r} has no column {unknown[0]!r}; it has {sorted(table.columns)}")
    if table.primary_key and set(mapping.primary_key) != set(table.primary_key):
        raise MappingRefused(
            f"the primary key of table {table.name!r} is {list(table.primary_key)}, not {list(mapping.primary_key)}"
        )
    written_key = sorted(mapping.initial_write.keys() & mapping.primary_key.keys())
    if written_key:
        raise MappingRefused(
            f"column {written_key[0]!r} is the primary key of table {table.name!r}; "
            "it is written from the object id, not from the initial attributes"
        )
    key = {
        name: _canonical_key(table, table.columns[name], value, canonical)
        for name, value in mapping.primary_key.items()
    }
    return mapping.model_copy(update={"primary_key": key})


def _canonical_key(
    table: UserTable[ColumnT],
    column: ColumnT,
    value: ColumnValue,
    canonical: Callable[[ColumnT, ColumnValue], ColumnValue],
) -> ColumnValue:
    problem = None
    if value is None:
        problem = f"column {column.name!r} is part of the key of a row and cannot be null"
    elif column.family is ColumnFamily.JSON:
        problem = f"column {column.name!r} is {column.declared_type}; a document names no row"
    else:
        try:
            return canonical(column, value)
        except ColumnValueRefused as refused:
            problem = str(refused)
    shown = repr(value)
    shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "..."
    raise MappingRefused(f"primary key of table {table.name!r}: {problem}; the value is {shown}")
