"""The user's tables on a database server: reflected once and kept for a while, rows read and written in groups.

A server has no counter of changes of the schema that costs nothing to look at. So a table is reflected anew when what
is known of it has become old, and when something is refused that may fit the table as it is now: the transaction is
then tried again.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar

from server_stub.core.model import RowKey, RowRead, RowWrite, RowWriteMode
from server_stub.core.ports import MappingRefused, RowReadFailed, RowWriteFailed, StoreRetry
from server_stub.storage import user_tables
from server_stub.storage.columns import UserColumn
from server_stub.storage.user_tables import (
    Operation,
    UserTable,
    ambiguous_key,
    bind_columns,
    bind_key,
    find_column,
    refusals,
    refused_row,
    unknown_table,
    volatile_names,
)
from xdb_sdk.protocol import ColumnValue, Json, TableMapping

_ConnectionT = TypeVar("_ConnectionT")
_ColumnT = TypeVar("_ColumnT", bound=UserColumn)
_TableT = TypeVar("_TableT", bound="ServerTable[Any]")

Values: TypeAlias = tuple[Any, ...]
"""What is bound for some columns of a row."""
Ordinal: TypeAlias = int
"""The place of a row in its group, by which a statement over many rows says which of them it speaks of."""

_MAY_BE_OUT_OF_DATE: Final = frozenset({"TYPE", "TOO_LONG", "UNKNOWN_TABLE", "UNKNOWN_COLUMN"})


@dataclass(frozen=True, slots=True)
class ServerTable(UserTable[_ColumnT]):
    """A table as it was reflected."""

    quoted_name: str
    """As it stands in a statement, with its schema where it was named with one."""
    is_key_exact: bool
    """Whether two keys that differ name two rows."""
    has_triggers: bool
    """Whether code of the user's runs at a write, which may do something else than it is told."""
    is_confirmed: bool = field(default=False, compare=False)
    """Whether it was doubted and found to be as it was known: what it refuses is refused."""


@dataclass(frozen=True, slots=True)
class BoundRow:
    """A row with what is bound for its key and, in a write, for the columns to write."""

    row: RowKey
    key: Values
    values: Values = ()


@dataclass(slots=True)
class RowGroup(Generic[_TableT]):
    """Rows for one statement: of one table, named by the same columns, with the same columns to read or write."""

    table: _TableT
    key_names: tuple[str, ...]
    names: tuple[str, ...]
    rows: list[BoundRow] = field(default_factory=list)

    @property
    def sole_row(self) -> RowKey | None:
        """The row an error is of; None when it may be of any of several."""
        return self.rows[0].row if len(self.rows) == 1 else None


class ServerUserTables(ABC, Generic[_ConnectionT, _TableT]):
    """The user's tables of one store. Each method runs in the transaction its connection is in, if it is in one.

    Args:
        max_age: For how long what is known of a table is taken for true, unless it refuses something.
    """

    def __init__(self, *, max_age: timedelta = timedelta(seconds=30)) -> None:
        self._max_age_s = max_age.total_seconds()
        self._reflected: dict[str, tuple[_TableT, float]] = {}
        """Tables by name, and when each was reflected, by the clock of the event loop."""
        self._doubted: dict[str, _TableT] = {}

    # --- what a database adds ---

    @abstractmethod
    async def _reflect(self, connection: _ConnectionT, table_name: str) -> _TableT | None:
        """Reflect a table, None when there is none of exactly this name, or one of the system."""

    @abstractmethod
    def _to_database(self, column: Any, value: ColumnValue) -> Any:
        """Give what is bound for a wire value, or raise `ColumnValueRefused`."""

    @abstractmethod
    def _to_wire(self, column: Any, value: Any) -> ColumnValue:
        """Give the wire value of what was read."""

    @abstractmethod
    def _canonical(self, column: Any, value: ColumnValue) -> ColumnValue:
        """Give a key value in the one form that it has, or raise `ColumnValueRefused`."""

    @abstractmethod
    async def _select(self, connection: _ConnectionT, group: RowGroup[_TableT]) -> Sequence[Sequence[Any]]:
        """Give, for each row that there is, its ordinal and the columns."""

    @abstractmethod
    async def _lock(self, connection: _ConnectionT, group: RowGroup[_TableT]) -> Sequence[Sequence[Any]]:
        """Lock each row that there is, in order, and give its ordinal and the columns."""

    @abstractmethod
    async def _update(
        self, connection: _ConnectionT, group: RowGroup[_TableT], ordinals: Sequence[Ordinal]
    ) -> Sequence[Ordinal]:
        """Update some rows of a group and lock them; give the ordinal of each row that there is."""

    @abstractmethod
    async def _insert(self, connection: _ConnectionT, group: RowGroup[_TableT], ordinals: Sequence[Ordinal]) -> None:
        """Insert some rows of a group."""

    @abstractmethod
    async def _insert_absent(
        self, connection: _ConnectionT, group: RowGroup[_TableT], ordinals: Sequence[Ordinal]
    ) -> Collection[Ordinal]:
        """Insert those of some rows that nobody else has inserted meanwhile, and give their ordinals."""

    @abstractmethod
    def _driver_errors(self, operation: Operation, group: RowGroup[_TableT]) -> AbstractContextManager[None]:
        """Give a context in which errors of the driver that concern the rows of a group become errors of the port."""

    def _identity(self, table: _TableT, row: RowKey) -> object | None:
        """Give the same for all keys that may name one row; None when each key of the table may name it."""
        return row if table.is_key_exact else None

    # --- tables ---

    async def find(self, connection: _ConnectionT, table_name: str) -> _TableT | None:
        """Give a table as it was not long ago, None when there is none."""
        now_s = asyncio.get_running_loop().time()
        if table_name in self._reflected:
            known, at_s = self._reflected[table_name]
            if now_s - at_s < self._max_age_s:
                return known
        table = await self._reflect(connection, table_name)
        if table is None:
            self._reflected.pop(table_name, None)
            return None
        if self._doubted.pop(table_name, None) == table:
            table = replace(table, is_confirmed=True)
        self._reflected[table_name] = (table, now_s)
        return table

    def forget(self) -> None:
        """Reflect every table anew at its next use."""
        self._reflected.clear()

    async def volatile_among(self, connection: _ConnectionT, table_names: Collection[str]) -> frozenset[str]:
        """Give those tables in which writing one row may change a row that is named otherwise."""
        tables = [await self.find(connection, name) for name in sorted(table_names)]
        return volatile_names(table for table in tables if table is not None)

    def canonical_mapping(self, table: _TableT, mapping: TableMapping) -> TableMapping:
        """Check a mapping; see `Store.canonical_mapping`.

        Raises:
            MappingRefused: It does not fit the table.
            StoreRetry: It does not, but the table may have been changed since it was reflected.
        """
        try:
            return user_tables.canonical_mapping(table, mapping, self._canonical)
        except MappingRefused as refused:
            if self._doubt(table):
                raise StoreRetry(str(refused)) from refused
            raise

    def _doubt(self, table: _TableT) -> bool:
        """Have a table that refused something reflected anew, and say whether it may then be another."""
        known, _ = self._reflected.get(table.name, (None, 0))
        if known is table:
            del self._reflected[table.name]
            # Confirmed for this refusal alone: before the next one the table may change.
            if not table.is_confirmed:
                self._doubted[table.name] = table
        return not table.is_confirmed

    @contextmanager
    def _doubting(self, used: Mapping[str, _TableT]) -> Iterator[None]:
        """Ask for another try instead of a refusal that may be due to what is known of a table being out of date."""
        try:
            yield
        except (RowReadFailed, RowWriteFailed) as failure:
            table = used.get(failure.error.table_name or "")
            if table is not None and failure.error.kind in _MAY_BE_OUT_OF_DATE and self._doubt(table):
                raise StoreRetry(str(failure)) from failure
            raise

    async def _used(self, connection: _ConnectionT, table_name: str, used: dict[str, _TableT]) -> _TableT:
        """Give a table, the same one throughout a call, whatever others find out meanwhile."""
        table = used.get(table_name) or await self.find(connection, table_name)
        if table is None:
            raise unknown_table(table_name)
        used[table_name] = table
        return table

    # --- reading ---

    async def read_rows(
        self, connection: _ConnectionT, reads: Sequence[RowRead]
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read columns of rows as wire values; a row that is missing is None. One round trip for each kind of read.

        Raises:
            RowReadFailed: Unknown table or column, a key of the wrong type, or whatever the database says.
            StoreRetry: A table has changed; repeat the transaction.
        """
        return await self._read(connection, reads, self._select)

    async def lock_rows(
        self, connection: _ConnectionT, reads: Sequence[RowRead]
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read rows and lock them until the transaction ends; see `read_rows`. A row that is missing cannot be locked:
        `write_rows` notices when another transaction has inserted it meanwhile.
        """
        # So that two transactions with the same rows wait for each other's locks in one order.
        in_order = sorted(reads, key=lambda read: (read.row.table_name, repr(read.row.primary_key)))
        return await self._read(connection, in_order, self._lock)

    async def _read(
        self,
        connection: _ConnectionT,
        reads: Sequence[RowRead],
        select: Callable[[_ConnectionT, RowGroup[_TableT]], Awaitable[Sequence[Sequence[Any]]]],
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        found: dict[RowRead, Mapping[str, Json] | None] = dict.fromkeys(reads)
        used: dict[str, _TableT] = {}
        with self._doubting(used):
            for group, of_group in await self._bind_reads(connection, list(found), used):
                columns = [find_column(group.table, name) for name in group.names]
                with self._driver_errors("READ", group):
                    rows = await select(connection, group)
                for ordinal, *values in rows:
                    found[of_group[ordinal]] = {
                        column.name: self._to_wire(column, value) for column, value in zip(columns, values, strict=True)
                    }
        return found

    async def _bind_reads(
        self, connection: _ConnectionT, reads: Sequence[RowRead], used: dict[str, _TableT]
    ) -> list[tuple[RowGroup[_TableT], list[RowRead]]]:
        groups: dict[object, tuple[RowGroup[_TableT], list[RowRead]]] = {}
        for read in reads:
            with refusals("READ", read.row):
                table = await self._used(connection, read.row.table_name, used)
                for name in read.columns:
                    find_column(table, name)
                key = bind_key(table, read.row, self._to_database)
            key_names = tuple(column.name for column, _ in key)
            shape = (table.name, key_names, read.columns)
            group, of_group = groups.setdefault(shape, (RowGroup(table, key_names, read.columns), []))
            group.rows.append(BoundRow(read.row, tuple(value for _, value in key)))
            of_group.append(read)
        return list(groups.values())

    # --- writing ---

    async def write_rows(
        self, connection: _ConnectionT, writes: Sequence[RowWrite], *, seen_absent: Collection[RowKey] = ()
    ) -> None:
        """Write columns of rows, several writes to one row in the order given (semantics 1.5, 7.3).

        Rows are locked until the transaction ends. A write without columns is none.

        Args:
            connection: In the transaction.
            writes: What to write.
            seen_absent: Rows that the transaction could not lock because there were none. Where code of the user's
                runs at a write, it is not told from another transaction, and they may be there now.

        Raises:
            RowWriteFailed: Unknown table or column, a value that does not fit, or whatever the database says. The row
                is None when it may be any of several; the transaction cannot go on.
            StoreRetry: A table has changed, or another transaction came between; repeat the transaction.
        """
        used: dict[str, _TableT] = {}
        with self._doubting(used):
            groups = await self._bind_writes(connection, writes, used)
            has_user_code = any(table.has_triggers or table.is_view for table in used.values())
            unexpected = set() if has_user_code else set(seen_absent)
            for group, mode in groups:
                with self._driver_errors("WRITE", group):
                    await self._write(connection, group, mode, unexpected)
                unexpected.difference_update(bound.row for bound in group.rows)

    async def _bind_writes(
        self, connection: _ConnectionT, writes: Sequence[RowWrite], used: dict[str, _TableT]
    ) -> list[tuple[RowGroup[_TableT], RowWriteMode]]:
        """Give groups in the order in which to write them: each writes a row once, by whichever of its names."""
        bound = [await self._bind_write(connection, write, used) for write in writes if write.columns]
        one_by_one = {table.name for table, _, write in bound if self._identity(table, write.row) is None}
        turns: defaultdict[object, int] = defaultdict(int)
        groups: dict[tuple[int, object], tuple[RowGroup[_TableT], RowWriteMode]] = {}
        for table, row, write in bound:
            identity = table.name if table.name in one_by_one else self._identity(table, write.row)
            turn = turns[identity]
            turns[identity] += 1
            key_names = tuple(name for name, _ in write.row.primary_key)
            names = tuple(write.columns)
            shape = (table.name, key_names, names, write.mode)
            group, _ = groups.setdefault((turn, shape), (RowGroup(table, key_names, names), write.mode))
            group.rows.append(row)
        for group, _ in groups.values():
            # So that two transactions with the same rows wait for each other's locks in one order.
            group.rows.sort(key=lambda bound: repr(bound.row.primary_key))
        return [groups[place] for place in sorted(groups, key=lambda place: place[0])]

    async def _bind_write(
        self, connection: _ConnectionT, write: RowWrite, used: dict[str, _TableT]
    ) -> tuple[_TableT, BoundRow, RowWrite]:
        with refusals("WRITE", write.row):
            table = await self._used(connection, write.row.table_name, used)
            columns = bind_columns(table, write, self._to_database)
            key = bind_key(table, write.row, self._to_database)
        return table, BoundRow(write.row, *(tuple(value for _, value in bound) for bound in (key, columns))), write

    async def _write(
        self, connection: _ConnectionT, group: RowGroup[_TableT], mode: RowWriteMode, unexpected: set[RowKey]
    ) -> None:
        everyone = range(len(group.rows))
        match mode:
            case RowWriteMode.INSERT:
                await self._insert(connection, group, everyone)
            case RowWriteMode.INSERT_IF_ABSENT:
                # Looked for first: a row that is there needs no values for the columns that an insert would need.
                known = RowGroup(group.table, group.key_names, (), group.rows)
                there = {ordinal for ordinal, *_ in await self._select(connection, known)}
                absent = [ordinal for ordinal in everyone if ordinal not in there]
                if absent:
                    await self._insert_absent(connection, group, absent)
            case RowWriteMode.UPDATE_OR_INSERT:
                await self._update_or_insert(connection, group, unexpected)

    async def _update_or_insert(
        self, connection: _ConnectionT, group: RowGroup[_TableT], unexpected: set[RowKey]
    ) -> None:
        absent = await self._update_those_there(connection, group, range(len(group.rows)), unexpected)
        if not absent:
            return
        inserted = await self._insert_absent(connection, group, absent)
        late = [ordinal for ordinal in absent if ordinal not in inserted]
        if not late:
            return
        if await self._update_those_there(connection, group, late, unexpected) and not group.table.has_triggers:
            raise StoreRetry(f"rows of {group.table.name!r} were inserted and deleted by others meanwhile")

    async def _update_those_there(
        self,
        connection: _ConnectionT,
        group: RowGroup[_TableT],
        ordinals: Sequence[Ordinal],
        unexpected: set[RowKey],
    ) -> list[Ordinal]:
        """Update some rows of a group and give the ordinals of the others, which are absent."""
        counts = Counter(await self._update(connection, group, ordinals))
        if any(group.rows[ordinal].row in unexpected for ordinal in counts):
            raise StoreRetry(f"rows of {group.table.name!r} were inserted by others meanwhile")
        for ordinal, count in counts.items():
            if count > 1:
                error = ambiguous_key(group.table, count)
                raise refused_row("WRITE", group.rows[ordinal].row, error) from error
        return [ordinal for ordinal in ordinals if ordinal not in counts]
