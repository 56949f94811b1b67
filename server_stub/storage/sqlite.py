"""The store on SQLite: one file, the standard driver, a thread that writes and two that read, one hop a batch.

Transactions take the write lock when they begin and are thus serial. The file is one server's alone: it holds a lock on
a side file, which the operating system releases however the server ends. The application's own SQL is welcome beside.
"""

import asyncio
import heapq
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.model import (
    Call,
    CallKey,
    HistoryEvent,
    LocalAttributeRead,
    ProcessExecution,
    RequestKey,
    RequestRecord,
    RowRead,
    StateExecution,
    StateKey,
    Timer,
    TimerKey,
    call_of,
)
from server_stub.core.ports import (
    CallReads,
    MappingRefused,
    ProcessLookup,
    RowWriteFailed,
    StoreCounters,
    StoreUnavailable,
    Work,
)
from server_stub.storage import sqlite_schema
from server_stub.storage import sqlite_statements as sql
from server_stub.storage.codec import (
    PROCESS_COLUMNS,
    STATE_COLUMNS,
    Row,
    UnreadableRow,
    call_key_of,
    event_of,
    process_of,
    request_of,
    request_row,
    state_of,
)
from server_stub.storage.session import do_work, found_by, read_local_attributes
from server_stub.storage.sqlite_connection import (
    MEMORY,
    Connection,
    DatabaseInUse,
    SqliteOptions,
    Synchronous,
    connect,
    database_path,
    take_file,
    transaction,
    translated_errors,
)
from server_stub.storage.sqlite_errors import database_error
from server_stub.storage.sqlite_session import SqliteSession, run_now
from server_stub.storage.sqlite_user_tables import SqliteTable, UserTables, canonical_mapping
from xdb_sdk.protocol import ListRequest, ProcessStatus, TableMapping

logger = logging.getLogger(__name__)

__all__ = ["MEMORY", "DatabaseInUse", "SqliteOptions", "SqliteStore", "Synchronous", "database_path"]

_T = TypeVar("_T")
_DUE_ORDER: Final = itemgetter(*map(STATE_COLUMNS.index, ("due_at_ms", "process_execution_id", "state_id", "number")))
_TIMER_ORDER: Final = itemgetter(4, 0, 1, 2, 3)
_LIST_ORDER: Final = itemgetter(*map(PROCESS_COLUMNS.index, ("started_at_ms", "process_execution_id")))


class _Lane:
    """A connection, the one thread that uses it, and the user's tables as it sees them."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.tables = UserTables(connection)
        self.session = SqliteSession(connection, self.tables)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"xdb-sqlite-{name}")

    async def run(self, begin: str, function: Callable[["_Lane"], _T]) -> _T:
        """Run `function` on the thread, in one transaction."""

        def in_transaction() -> _T:
            with transaction(self.connection, begin):
                self.tables.begin()
                return function(self)

        return await asyncio.get_running_loop().run_in_executor(self._thread, in_transaction)

    async def close(self) -> None:
        """Close the connection when the thread has done what it was given."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.connection.close)
        self._thread.shutdown()


class SqliteStore:
    """A `Store` on one SQLite file, or in memory for tests.

    Lists have a connection of their own: one that filters through a long history delays no step.
    """

    def __init__(self, path: str, options: SqliteOptions) -> None:
        self.path = path
        with ExitStack() as opened:
            self._lock = None if path == MEMORY else opened.enter_context(closing(take_file(path)))
            connections = [opened.enter_context(closing(connect(path, options)))]
            sqlite_schema.prepare(connections[0], install=options.install_schema)
            if path != MEMORY:
                connections += [opened.enter_context(closing(connect(path, options))) for _ in range(2)]
            opened.pop_all()
        self._lanes = [_Lane(*named) for named in zip(connections, ("writer", "reader", "lister"), strict=False)]
        # Another connection would open another memory.
        self._writer, self._reader, self._lister = self._lanes * 3 if path == MEMORY else self._lanes
        self._unreadable: set[object] = set()
        self._mapped_tables: dict[str, SqliteTable] = {}
        self._is_closed = False

    @classmethod
    def open(cls, location: str | Path, options: SqliteOptions | None = None) -> "SqliteStore":
        """Open a database, and create its system tables when it has none.

        Args:
            location: A path, a URL `sqlite:///path`, or ":memory:".
            options: See `SqliteOptions`.

        Raises:
            DatabaseInUse: Another server has the file open.
            SchemaError: The system tables do not fit this server.
            StoreUnavailable: The file cannot be opened, or is no database.
        """
        with translated_errors(str(location)):
            return cls(database_path(location), options or SqliteOptions())

    @property
    def counters(self) -> StoreCounters:
        """What it has done so far."""
        return StoreCounters(sum(lane.connection.statements for lane in self._lanes))

    async def close(self) -> None:
        """Finish the transaction in progress and release the database. Calling it twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        for lane in reversed(self._lanes):
            await lane.close()
        if self._lock is not None:
            self._lock.close()

    async def run_sql(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement of the application's own; for a database in memory, which nobody else can open.

        Returns:
            The rows, none for a statement that gives none.
        """

        return await self._run(
            self._writer, "BEGIN IMMEDIATE", lambda lane: lane.connection.execute(statement, values).fetchall()
        )

    async def _run(self, lane: _Lane, begin: str, function: Callable[[_Lane], _T]) -> _T:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        return await lane.run(begin, function)

    # --- transactions ---

    async def transact(self, work: Work) -> Changes:
        """Run `work` in one transaction; see `Store.transact`."""
        try:
            return await self._run(self._writer, "BEGIN IMMEDIATE", lambda lane: run_now(do_work(lane.session, work)))
        except sqlite3.IntegrityError as error:
            # The commit itself: a deferred constraint of the user's, which does not say of which row.
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
                raise RowWriteFailed(None, database_error(error, "WRITE", None)) from error
            raise

    # --- reads ---

    async def _read(self, function: Callable[[Connection], _T]) -> _T:
        """Run `function` on the reader's thread, in one snapshot."""
        return await self._run(self._reader, "BEGIN", lambda lane: function(lane.connection))

    async def read_for_calls(
        self, rows: Sequence[RowRead], local_attributes: Sequence[LocalAttributeRead]
    ) -> CallReads:
        """Read for many calls in one snapshot; see `Store.read_for_calls`."""

        def read(lane: _Lane) -> CallReads:
            return CallReads(
                rows={row: lane.tables.read(row) for row in rows},
                local_attributes=run_now(read_local_attributes(lane.session, local_attributes)),
            )

        return await self._run(self._reader, "BEGIN", read)

    async def find_due_calls(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: tuple[int, CallKey] | None
    ) -> list[Call]:
        """Give due calls; see `Store.find_due_calls`. A row that cannot be read is skipped, and logged once."""
        statement = sql.DUE_CALLS if after is None else sql.DUE_CALLS_AFTER
        place = () if after is None else (after[0], *after[1].state)

        def find(connection: Connection) -> list[Call]:
            by_shard = [connection.execute(statement, (shard_id, before_ms, *place)) for shard_id in shard_ids]
            with closing(heapq.merge(*by_shard, key=_DUE_ORDER)) as rows:
                return _first(limit, (self._readable(_call_of, row) for row in rows))

        return await self._read(find)

    async def find_unclaimed_calls(self, shard_ids: Collection[int], before_ms: int, *, limit: int) -> list[Call]:
        """Give calls that nobody has claimed; see `Store.find_unclaimed_calls`."""

        def find(connection: Connection) -> list[Call]:
            by_shard = [connection.execute(sql.UNCLAIMED_CALLS, (shard_id, before_ms)) for shard_id in shard_ids]
            return _first(limit, (self._readable(_call_of, row) for row in chain.from_iterable(by_shard)))

        return await self._read(find)

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: Timer | None
    ) -> list[Timer]:
        """Give due timers; see `Store.find_due_timers`."""
        statement, place = (
            (sql.DUE_TIMERS, ()) if after is None else (sql.DUE_TIMERS_AFTER, (after.fire_at_ms, *after.key))
        )

        def find(connection: Connection) -> list[Timer]:
            by_shard = [connection.execute(statement, (shard_id, before_ms, *place, limit)) for shard_id in shard_ids]
            rows = islice(heapq.merge(*by_shard, key=_TIMER_ORDER), limit)
            return [Timer(TimerKey(*key), fire_at_ms, shard_id) for *key, fire_at_ms, shard_id in rows]

        return await self._read(find)

    async def find_processes(self, lookups: Sequence[ProcessLookup]) -> list[ProcessExecution | None]:
        """Give executions; see `Store.find_processes`."""

        def find(connection: Connection) -> list[Row]:
            execute = connection.execute
            keys = {lookup.key for lookup in lookups if lookup.process_execution_id is None}
            ids = sorted({lookup.process_execution_id for lookup in lookups if lookup.process_execution_id is not None})
            rows = [row for key in keys if (row := execute(sql.FIND_CURRENT, key).fetchone()) is not None]
            for some in sql.in_lists(ids):
                rows += execute(sql.FIND_EXECUTIONS[len(some)], some)
            return rows

        return found_by(lookups, map(process_of, await self._read(find)))

    async def find_requests(self, keys: Collection[RequestKey]) -> dict[RequestKey, RequestRecord]:
        """Give those that are remembered; see `Store.find_requests`."""

        def find(lane: _Lane) -> dict[RequestKey, RequestRecord]:
            rows = run_now(lane.session.find_requests(sorted(keys)))
            return {record.key: record for record in map(request_of, rows)}

        return await self._run(self._reader, "BEGIN", find)

    async def delete_expired_requests(self, before_ms: int, *, limit: int) -> int:
        """Forget some; see `Store.delete_expired_requests`."""

        def delete(lane: _Lane) -> int:
            return lane.connection.execute(sql.DELETE_EXPIRED_REQUESTS, (before_ms, limit)).rowcount

        return await self._run(self._writer, "BEGIN IMMEDIATE", delete)

    async def replicate_requests(self, records: Sequence[RequestRecord]) -> None:
        """Take over what another cluster remembers; see `Store.replicate_requests`."""
        rows = [request_row(record) for record in records]
        await self._run(
            self._writer, "BEGIN IMMEDIATE", lambda lane: lane.connection.executemany(sql.REPLICATE_REQUEST, rows)
        )

    async def find_due_keys(self, states: Collection[StateKey]) -> set[CallKey]:
        """Give the calls that states are due for; see `Store.find_due_keys`."""

        def find(connection: Connection) -> set[CallKey]:
            rows = chain.from_iterable(connection.execute(sql.FIND_DUE_KEY, key) for key in states)
            return set(map(call_key_of, rows))

        return await self._read(find)

    async def find_closed(self, process_execution_ids: Collection[str]) -> list[ProcessExecution]:
        """Give those that have closed; see `Store.find_closed`."""

        def find(connection: Connection) -> list[ProcessExecution]:
            lists = sql.in_lists(sorted(process_execution_ids))
            rows = chain.from_iterable(connection.execute(sql.FIND_EXECUTIONS[len(ids)], ids) for ids in lists)
            return [process for process in map(process_of, rows) if not process.is_running]

        return await self._read(find)

    async def find_states(self, process_execution_id: str, *, latest: int) -> list[StateExecution]:
        """Give state executions; see `Store.find_states`."""

        def find(lane: _Lane) -> list[StateExecution]:
            return [state_of(row) for row in run_now(lane.session.find_states(process_execution_id, latest))]

        return await self._run(self._reader, "BEGIN", find)

    async def find_history(self, process_execution_id: str, *, after: int, limit: int) -> list[HistoryEvent]:
        """Give events of a history; see `Store.find_history`."""

        def find(lane: _Lane) -> list[HistoryEvent]:
            return [event_of(row) for row in run_now(lane.session.find_history(process_execution_id, after, limit))]

        return await self._run(self._reader, "BEGIN", find)

    async def find_state(
        self, process_execution_id: str, state_id: str, *, number: int | None, wait_for_key: str | None
    ) -> StateExecution | None:
        """Give a state execution; see `Store.find_state`."""
        statement = sql.FIND_STATE if wait_for_key is None else sql.FIND_STATE_BY_KEY
        which = number if wait_for_key is None else wait_for_key

        def find(connection: Connection) -> StateExecution | None:
            row = connection.execute(statement, (process_execution_id, state_id, which)).fetchone()
            return None if row is None else state_of(row)

        return await self._read(find)

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        """Count unclaimed messages by queue; see `Store.count_messages`."""

        def count(connection: Connection) -> dict[str, int]:
            return dict(connection.execute(sql.COUNT_MESSAGES, (process_execution_id,)).fetchall())

        return await self._read(count)

    async def list_processes(self, request: ListRequest, after: tuple[int, str] | None) -> list[ProcessExecution]:
        """Give a page and one more; see `Store.list_processes`. An unreadable row is skipped, and logged once."""
        statement, values = sql.list_statement(request, after)
        statuses = dict.fromkeys(request.statuses or ProcessStatus)

        def find(lane: _Lane) -> list[ProcessExecution]:
            by_status = [lane.connection.execute(statement, (*values, status.value)) for status in statuses]
            rows = heapq.merge(*by_status, key=_LIST_ORDER, reverse=True)
            return _first(request.page_size + 1, (self._readable(process_of, row) for row in rows))

        return await self._run(self._lister, "BEGIN", find)

    async def canonical_mapping(self, mapping: TableMapping) -> TableMapping:
        """Check a mapping; see `Store.canonical_mapping`. Costs a hop only after a change of the schema."""
        table = self._mapped_tables.get(mapping.table_name)
        if table is not None and table.schema_version == self._writer.tables.schema_version:
            with suppress(MappingRefused):  # the table may fit by now
                return canonical_mapping(table, mapping)
        table = await self._run(self._reader, "BEGIN", lambda lane: lane.tables.find(mapping.table_name))
        if table is None:
            raise MappingRefused(f"the database has no table {mapping.table_name!r}")
        self._mapped_tables[table.name] = table
        return canonical_mapping(table, mapping)

    def _readable(self, decode: Callable[[Row], _T], row: Row) -> _T | None:
        """Decode a row of a scan; None, and one log line for each such row, when that is impossible."""
        try:
            return decode(row)
        except UnreadableRow as error:
            if error.key not in self._unreadable:
                self._unreadable.add(error.key)
                logger.exception("unreadable row skipped", extra={"table": error.table_name, "key": error.key})
            return None


def _call_of(row: Row) -> Call | None:
    """Read a call from a row of `DUE_CALLS`."""
    state = state_of(row[: len(STATE_COLUMNS)])
    process = process_of(row[len(STATE_COLUMNS) :])
    return call_of(process, state)


def _first(limit: int, items: Iterator[_T | None]) -> list[_T]:
    """Take up to `limit` items that are there; rows beyond are not fetched."""
    found: list[_T] = []
    for item in items:
        if item is not None:
            found.append(item)
        if len(found) == limit:
            break
    return found
