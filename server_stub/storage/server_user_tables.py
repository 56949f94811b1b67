"""The user's tables on a database server: reflected once and kept for a while, rows read and written in groups.

A server has no counter of changes of the schema that costs nothing to look at. So a table is reflected anew when what
is known of it has become old, and when something is refused that may fit the table as it is now: the transaction is
then tried again.

So that no two transactions wait for each other, each locks its rows in one order: by table, then by key. A write locks
what it writes, in the order of the writes, which is the user's: a row may refer to one that is written before. Where
that is another order the rows are locked first.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Generic, TypeAlias, TypeVar

from server_stub.core.model import RowKey, RowRead, RowWrite, RowWriteMode
from server_stub.core.ports import MappingRefused, RowReadFailed, RowWriteFailed, StoreRetry
from server_stub.storage import user_tables
from server_stub.storage.columns import ColumnValueRefused, UserColumn
from server_stub.storage.server_values import canonical_number
from server_stub.storage.user_tables import (
    Operation,
    RowRefused,
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
Place: TypeAlias = tuple[str, tuple[str, ...]]
"""A table and the names of its key: where the rows of a group stand in the order of locks."""

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
    def place(self) -> Place:
        """Where its rows stand in the order of locks."""
        return self.table.name, self.key_names

    @property
    def sole_row(self) -> RowKey | None:
        """The row an error is of; None when it may be of any of several."""
        return self.rows[0].row if len(self.rows) == 1 else None

    def without(self, rows: Collection[RowKey]) -> "RowGroup[_TableT]":
        """Give the group without some rows."""
        return replace(self, rows=[bound for bound in self.rows if bound.row not in rows])


def place_of(row: RowKey) -> tuple[str, tuple[str, ...], str, str]:
    """Give what rows are sorted by to be locked: two names of one row that differ by case alone stand together."""
    key = repr(row.primary_key)
    return row.table_name, tuple(name for name, _ in row.primary_key), key.casefold(), key


def rows_to_lock_first(groups: Sequence[RowGroup[_TableT]]) -> list[RowGroup[_TableT]]:
    """Give the rows to lock, in order, before the statements over some groups, each of which locks its own rows.

    They are none when the statements lock all rows in order by themselves, as one over a single group does. The last
    of the order are left to their statement, which comes after.
    """
    rows: defaultdict[Place, dict[RowKey, BoundRow]] = defaultdict(dict)
    positions: defaultdict[Place, list[int]] = defaultdict(list)
    for position, group in enumerate(groups):
        new = {bound.row: bound for bound in group.rows if bound.row not in rows[group.place]}
        if new:
            rows[group.place].update(new)
            positions[group.place].append(position)
    places = sorted(positions)
    following = len(groups)
    while places and len(positions[places[-1]]) == 1 and positions[places[-1]][0] < following:
        [following] = positions[places.pop()]
    tables = {group.place: group.table for group in groups}
    return [
        RowGroup(tables[place], place[1], (), sorted(rows[place].values(), key=lambda bound: place_of(bound.row)))
        for place in places
    ]


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

    def _canonical(self, column: Any, value: ColumnValue) -> ColumnValue:
        """Give a key value in the one form that it has, or raise `ColumnValueRefused`."""
        bound = self._to_database(column, value)
        if isinstance(bound, Decimal):
            bound = canonical_number(column, bound)
        return self._to_wire(column, bound)

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
        used: dict[str, _TableT] = {}
        with self._doubting(used):
            return await self._read(connection, await self._bind_reads(connection, reads, used), self._select)

    async def lock_rows(
        self, connection: _ConnectionT, reads: Sequence[RowRead], *, written: Collection[RowKey] = ()
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read rows and lock them until the transaction ends; see `read_rows`. A row that is missing cannot be locked:
        `write_rows` notices when another transaction has inserted it meanwhile.

        Args:
            connection: In the transaction.
            reads: What to read.
            written: Rows that the transaction may write, locked as well where they come before rows that are read.
        """
        used: dict[str, _TableT] = {}
        with self._doubting(used):
            in_order = sorted(reads, key=lambda read: place_of(read.row))
            bound = await self._bind_reads(connection, in_order, used)
            before = {row for row in written if in_order and place_of(row) < place_of(in_order[-1].row)}
            to_write = await self._bind_written(connection, before.difference(read.row for read in reads), used)
            await self._lock_first(connection, "READ", [*(group for group, _ in bound), *to_write])
            return await self._read(connection, bound, self._lock)

    async def _bind_written(
        self, connection: _ConnectionT, rows: Collection[RowKey], used: dict[str, _TableT]
    ) -> list[RowGroup[_TableT]]:
        """Give groups of rows that are to be written later on. What cannot be written is refused then, not here."""
        groups: dict[object, RowGroup[_TableT]] = {}
        for row in sorted(rows, key=place_of):
            try:
                table = await self._used(connection, row.table_name, used)
                key = bind_key(table, row, self._to_database)
            except (RowRefused, ColumnValueRefused):
                continue
            group = RowGroup(table, tuple(column.name for column, _ in key), ())
            group = groups.setdefault(group.place, group)
            group.rows.append(BoundRow(row, tuple(value for _, value in key)))
        return list(groups.values())

    async def _lock_first(
        self, connection: _ConnectionT, operation: Operation, groups: Sequence[RowGroup[_TableT]]
    ) -> None:
        """Lock rows that the statements over the groups, one after the other, would lock out of order."""
        # What a view shows of its tables is not for all views to be locked.
        for group in rows_to_lock_first([group for group in groups if not group.table.is_view]):
            with self._driver_errors(operation, group):
                await self._lock(connection, group)

    async def _read(
        self,
        connection: _ConnectionT,
        bound: Sequence[tuple[RowGroup[_TableT], Sequence[RowRead]]],
        select: Callable[[_ConnectionT, RowGroup[_TableT]], Awaitable[Sequence[Sequence[Any]]]],
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        found: dict[RowRead, Mapping[str, Json] | None] = {read: None for _, reads in bound for read in reads}
        for group, reads in bound:
            columns = [find_column(group.table, name) for name in group.names]
            with self._driver_errors("READ", group):
                rows = await select(connection, group)
            for ordinal, *values in rows:
                found[reads[ordinal]] = {
                    column.name: self._to_wire(column, value) for column, value in zip(columns, values, strict=True)
                }
        return found

    async def _bind_reads(
        self, connection: _ConnectionT, reads: Sequence[RowRead], used: dict[str, _TableT]
    ) -> list[tuple[RowGroup[_TableT], list[RowRead]]]:
        groups: dict[object, tuple[RowGroup[_TableT], list[RowRead]]] = {}
        for read in dict.fromkeys(reads):
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
        self,
        connection: _ConnectionT,
        writes: Sequence[RowWrite],
        *,
        locked: Collection[RowKey] = (),
        seen_absent: Collection[RowKey] = (),
    ) -> None:
        """Write columns of rows, several writes to one row in the order given (semantics 1.5, 7.3).

        Rows are locked until the transaction ends. A write without columns is none.

        Args:
            connection: In the transaction.
            writes: What to write.
            locked: Rows that the transaction has locked, if they were there.
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
            updates = [group.without(locked) for group, mode in groups if mode is RowWriteMode.UPDATE_OR_INSERT]
            await self._lock_first(connection, "WRITE", updates)
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
            group.rows.sort(key=lambda bound: place_of(bound.row))
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
