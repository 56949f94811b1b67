"""The store on SQLite: one file, the standard driver, one writer thread and one reader thread, one hop a batch.

Transactions take the write lock when they begin and are thus serial. The file is one server's alone: it holds a lock on
a side file, which the operating system releases however the server ends. The application's own SQL is welcome beside.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.model import (
    Call,
    CallKey,
    Execution,
    LocalAttributeRead,
    ProcessExecution,
    ProcessKey,
    QueuedMessage,
    RowRead,
    StateExecution,
    Timer,
    TimerKey,
    call_of,
)
from server_stub.core.ports import (
    CallReads,
    ConcurrentStart,
    Loaded,
    Needs,
    RowWriteFailed,
    Selection,
    StoreCounters,
    StoreUnavailable,
    TableColumns,
    Work,
)
from server_stub.storage import sqlite_statements as sql
from server_stub.storage.codec import (
    STATE_COLUMNS,
    Row,
    UnreadableRow,
    message_of,
    message_row,
    process_changing,
    process_fixed,
    process_of,
    state_changing,
    state_fixed,
    state_of,
)
from server_stub.storage.sqlite_connection import (
    MEMORY,
    DatabaseInUse,
    SqliteOptions,
    Synchronous,
    connect,
    database_path,
    prepare_schema,
    take_file,
    transaction,
    translated_errors,
)
from server_stub.storage.sqlite_errors import database_error
from server_stub.storage.sqlite_user_tables import UserTables
from xdb_sdk.protocol import ListRequest

logger = logging.getLogger(__name__)

__all__ = ["MEMORY", "DatabaseInUse", "SqliteOptions", "SqliteStore", "Synchronous", "database_path"]

_T = TypeVar("_T")


class SqliteStore:
    """A `Store` on one SQLite file, or in memory for tests."""

    def __init__(self, path: str, options: SqliteOptions) -> None:
        self.path = path
        with ExitStack() as opened:
            if path != MEMORY:
                opened.enter_context(closing(take_file(path)))
            self._writer = opened.enter_context(closing(connect(path, options)))
            prepare_schema(self._writer, install=options.install_schema)
            self._reader = self._writer if path == MEMORY else opened.enter_context(closing(connect(path, options)))
            self._opened = opened.pop_all()
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="xdb-sqlite-writer")
        self._reader_thread = (
            self._writer_thread if path == MEMORY else ThreadPoolExecutor(1, thread_name_prefix="xdb-sqlite-reader")
        )
        self._written_tables = UserTables(self._writer)
        self._read_tables = self._written_tables if path == MEMORY else UserTables(self._reader)
        self._unreadable: set[object] = set()
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
        return StoreCounters(sum(connection.statements for connection in {self._writer, self._reader}))

    async def close(self) -> None:
        """Finish the transaction in progress and release the database. Calling it twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        loop = asyncio.get_running_loop()
        # What either thread still has to do comes first.
        await loop.run_in_executor(self._reader_thread, lambda: None)
        await loop.run_in_executor(self._writer_thread, self._opened.close)
        self._reader_thread.shutdown()
        self._writer_thread.shutdown()

    async def run_sql(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement of the application's own; for a database in memory, which nobody else can open.

        Returns:
            The rows, none for a statement that gives none.
        """

        def run() -> list[tuple[Any, ...]]:
            with transaction(self._writer, "BEGIN IMMEDIATE"):
                return self._writer.execute(statement, values).fetchall()

        return await self._run(self._writer_thread, run)

    # --- transactions ---

    async def transact(self, work: Work) -> Changes:
        """Run `work` in one transaction; see `Store.transact`."""
        return await self._run(self._writer_thread, partial(self._transact, work))

    async def _run(self, thread: ThreadPoolExecutor, function: Callable[[], _T]) -> _T:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(thread, function)

    def _transact(self, work: Work) -> Changes:
        try:
            with transaction(self._writer, "BEGIN IMMEDIATE"):
                self._written_tables.begin()
                loaded = self._load(work.selection())
                self._load_needs(loaded, work.needs(loaded))
                changes = work.decide(loaded)
                self._write(changes)
        except sqlite3.IntegrityError as error:
            # The commit itself: a deferred constraint of the user's, which does not say of which row.
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
                raise RowWriteFailed(None, database_error(error, "WRITE", None)) from error
            raise
        return changes

    def _load(self, selection: Selection) -> Loaded:
        execute = self._writer.execute
        loaded = Loaded()
        rows = []
        for key in selection.process_keys:
            row = execute(sql.FIND_CURRENT, key).fetchone()
            if row is not None:
                rows.append(row)
                loaded.current[key] = row[0]
        others = sorted(selection.execution_ids.difference(loaded.current.values()))
        for ids in sql.in_lists(others):
            rows += execute(sql.FIND_EXECUTIONS[len(ids)], ids)
        for row in rows:
            process = process_of(row)
            loaded.executions[process.process_execution_id] = Execution(process, {})
        running = [id_ for id_, execution in loaded.executions.items() if execution.process.is_running]
        for ids in sql.in_lists(running):
            for row in execute(sql.FIND_OPEN_STATES[len(ids)], ids):
                state = state_of(row)
                loaded.executions[state.process_execution_id].states[state.key] = state
        return loaded

    def _load_needs(self, loaded: Loaded, needs: Needs) -> None:
        execute = self._writer.execute
        for (execution_id, queue_name), limit in needs.messages.items():
            rows = execute(sql.FIND_MESSAGES, (execution_id, queue_name, limit))
            loaded.executions[execution_id].queues[queue_name] = [message_of(row) for row in rows]
        for key in needs.message_ids:
            if execute(sql.KNOWS_MESSAGE_ID, key).fetchone() is not None:
                execution_id, queue_name, message_id = key
                loaded.executions[execution_id].known_message_ids.add((queue_name, message_id))
        for read in needs.rows:
            loaded.rows[read] = self._written_tables.read(read)
        loaded.local_attributes = _read_local_attributes(self._writer, needs.local_attributes)

    def _write(self, changes: Changes) -> None:
        """Write rows in the order of the fields of `Changes`."""
        many = self._execute_many
        for row_write in changes.row_writes:
            self._written_tables.write(row_write)
        attributes = [(w.process_execution_id, w.name, w.value) for w in changes.local_attribute_writes]
        many(sql.WRITE_LOCAL_ATTRIBUTE, attributes)
        changed = changes.changed_processes.values()
        many(sql.CHANGE_PROCESS, [(*process_changing(p), p.process_execution_id) for p in changed])
        many(sql.RETIRE_PROCESS, [(p.process_execution_id,) for p in changed if not p.is_current])
        self._insert_processes(list(changes.new_processes.values()))
        many(sql.INSERT_STATE, [state_fixed(s) + state_changing(s) for s in changes.new_states.values()])
        many(sql.CHANGE_STATE, [(*state_changing(s), *key) for key, s in changes.changed_states.items()])
        self._write_messages(changes)
        many(sql.SET_TIMER, [(*key, t.shard_id, t.fire_at_ms) for key, t in changes.new_timers.items()])
        many(sql.DELETE_TIMER, list(changes.deleted_timers))
        closed = [(execution_id,) for execution_id in changes.closed_processes]
        many(sql.DELETE_MESSAGES_OF_PROCESS, closed)
        many(sql.DELETE_TIMERS_OF_PROCESS, closed)
        many(sql.INSERT_USER_EVENT, [(e.process_execution_id, e.at_ms, e.name, e.data) for e in changes.user_events])

    def _execute_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._writer.executemany(statement, rows)

    def _insert_processes(self, processes: Sequence[ProcessExecution]) -> None:
        try:
            self._execute_many(sql.INSERT_PROCESS, [process_fixed(p) + process_changing(p) for p in processes])
        except sqlite3.IntegrityError as error:
            if "is_current" in str(error):
                raise ConcurrentStart(str(error)) from error
            raise

    def _write_messages(self, changes: Changes) -> None:
        many = self._execute_many
        claimed = changes.claimed_messages.values()
        many(sql.INSERT_MESSAGE, [message_row(m) for m in changes.new_messages.values()])
        many(sql.DELETE_MESSAGE, [(m.process_execution_id, m.sequence_id) for m in claimed if m.message_id is None])
        many(sql.REMEMBER_MESSAGE_ID, [_message_identity(m) for m in claimed if m.message_id is not None])

    # --- reads ---

    async def _read(self, function: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `function` on the reader thread, in one snapshot."""

        def read() -> _T:
            with transaction(self._reader, "BEGIN"):
                self._read_tables.begin()
                return function(self._reader)

        return await self._run(self._reader_thread, read)

    async def read_for_calls(
        self, rows: Sequence[RowRead], local_attributes: Sequence[LocalAttributeRead]
    ) -> CallReads:
        """Read for many calls in one snapshot; see `Store.read_for_calls`."""

        def read(connection: sqlite3.Connection) -> CallReads:
            return CallReads(
                rows={row: self._read_tables.read(row) for row in rows},
                local_attributes=_read_local_attributes(connection, local_attributes),
            )

        return await self._read(read)

    async def find_due_calls(self, before_ms: int, *, limit: int, after: tuple[int, CallKey] | None) -> list[Call]:
        """Give due calls; see `Store.find_due_calls`. A row that cannot be read is skipped, and logged once."""

        def find(connection: sqlite3.Connection) -> list[Call]:
            if after is None:
                rows = connection.execute(sql.DUE_CALLS, (before_ms,))
            else:
                rows = connection.execute(sql.DUE_CALLS_AFTER, (before_ms, after[0], *after[1].state))
            return _first(limit, (self._readable(_call_of, row) for row in rows))

        return await self._read(find)

    async def find_due_timers(self, before_ms: int, *, limit: int, after: Timer | None) -> list[Timer]:
        """Give due timers; see `Store.find_due_timers`."""

        def find(connection: sqlite3.Connection) -> list[Timer]:
            if after is None:
                rows = connection.execute(sql.DUE_TIMERS, (before_ms, limit))
            else:
                rows = connection.execute(sql.DUE_TIMERS_AFTER, (before_ms, after.fire_at_ms, *after.key, limit))
            return [Timer(TimerKey(*key), fire_at_ms, shard_id) for *key, fire_at_ms, shard_id in rows]

        return await self._read(find)

    async def find_process(self, key: ProcessKey, process_execution_id: str | None) -> ProcessExecution | None:
        """Give an execution; see `Store.find_process`."""

        def find(connection: sqlite3.Connection) -> ProcessExecution | None:
            if process_execution_id is None:
                row = connection.execute(sql.FIND_CURRENT, key).fetchone()
            else:
                row = connection.execute(sql.FIND_EXECUTION_OF_PROCESS_ID, (process_execution_id, *key)).fetchone()
            return None if row is None else process_of(row)

        return await self._read(find)

    async def find_states(self, process_execution_id: str, *, include_closed: bool) -> list[StateExecution]:
        """Give state executions; see `Store.find_states`."""
        statement = sql.FIND_STATES if include_closed else sql.FIND_OPEN_STATES[1]

        def find(connection: sqlite3.Connection) -> list[StateExecution]:
            return [state_of(row) for row in connection.execute(statement, (process_execution_id,))]

        return await self._read(find)

    async def find_state(
        self, process_execution_id: str, state_id: str, *, number: int | None, wait_for_key: str | None
    ) -> StateExecution | None:
        """Give a state execution; see `Store.find_state`."""
        statement = sql.FIND_STATE if wait_for_key is None else sql.FIND_STATE_BY_KEY
        which = number if wait_for_key is None else wait_for_key

        def find(connection: sqlite3.Connection) -> StateExecution | None:
            row = connection.execute(statement, (process_execution_id, state_id, which)).fetchone()
            return None if row is None else state_of(row)

        return await self._read(find)

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        """Count unclaimed messages by queue; see `Store.count_messages`."""

        def count(connection: sqlite3.Connection) -> dict[str, int]:
            return dict(connection.execute(sql.COUNT_MESSAGES, (process_execution_id,)).fetchall())

        return await self._read(count)

    async def list_processes(self, request: ListRequest, after: tuple[int, str] | None) -> list[ProcessExecution]:
        """Give a page and one more; see `Store.list_processes`. An unreadable row is skipped, and logged once."""
        conditions, values = _list_conditions(request, after)
        statement = sql.LIST_PROCESSES if request.process_id is None else sql.LIST_PROCESSES_OF_ID
        statement = statement.format(conditions=" AND ".join(conditions))

        def find(connection: sqlite3.Connection) -> list[ProcessExecution]:
            processes = (self._readable(process_of, row) for row in connection.execute(statement, values))
            return _first(request.page_size + 1, processes)

        return await self._read(find)

    async def table_columns(self, table_name: str) -> TableColumns:
        """Reflect a user's table; see `Store.table_columns`."""
        return await self._read(lambda _: self._read_tables.columns_of(table_name))

    def _readable(self, decode: Callable[[Row], _T], row: Row) -> _T | None:
        """Decode a row of a scan; None, and one log line for each such row, when that is impossible."""
        try:
            return decode(row)
        except UnreadableRow as error:
            if error.key not in self._unreadable:
                self._unreadable.add(error.key)
                logger.exception("unreadable row skipped", extra={"table": error.table_name, "key": error.key})
            return None


# --- rows ---


def _read_local_attributes(
    connection: sqlite3.Connection, reads: Sequence[LocalAttributeRead]
) -> dict[str, dict[str, str]]:
    """Read process-local attributes; several reads of one execution are united."""
    found: dict[str, dict[str, str]] = {}
    for read in reads:
        execution_id = read.process_execution_id
        values = found.setdefault(execution_id, {})
        if read.read_all:
            values.update(connection.execute(sql.FIND_LOCAL_ATTRIBUTES, (execution_id,)).fetchall())
            continue
        for name in read.names:
            values.update(connection.execute(sql.FIND_LOCAL_ATTRIBUTE, (execution_id, name)).fetchall())
        for prefix in read.prefixes:
            for name, value in connection.execute(sql.FIND_LOCAL_ATTRIBUTES_FROM, (execution_id, prefix)):
                if not name.startswith(prefix):
                    break
                values[name] = value
    return found


def _message_identity(message: QueuedMessage) -> tuple[str, str, int, str | None]:
    return message.process_execution_id, message.queue_name, message.sequence_id, message.message_id


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


def _list_conditions(request: ListRequest, after: tuple[int, str] | None) -> tuple[list[str], list[str | int]]:
    """Give the conditions of `LIST_PROCESSES` for the filters that are set, and the values they bind."""
    filters: list[tuple[str, Sequence[str | int | None]]] = [
        ("p.namespace = ?", [request.namespace]),
        ("p.process_id = ?", [request.process_id]),
        ("p.process_type = ?", [request.process_type]),
        ("p.started_at_ms >= ?", [request.started_from_ms]),
        ("p.started_at_ms < ?", [request.started_before_ms]),
        ("p.closed_at_ms >= ?", [request.closed_from_ms]),
        ("p.closed_at_ms < ?", [request.closed_before_ms]),
        ("(p.started_at_ms, p.process_execution_id) < (?, ?)", after or [None]),
    ]
    if request.statuses:
        marks = ", ".join("?" * len(request.statuses))
        filters.append((f"p.status IN ({marks})", [status.value for status in request.statuses]))
    conditions: list[str] = []
    values: list[str | int] = []
    for condition, bound in filters:
        present = [value for value in bound if value is not None]
        if present:
            conditions.append(condition)
            values += present
    return conditions, values
