"""A SQLite connection as the steps of a transaction see it.

Its methods are coroutines as those of the other databases are, but none ever waits: `run_now` runs them on the
thread of the connection.
"""

import sqlite3
from collections.abc import Collection, Coroutine, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.model import LocalAttributeRead, ProcessKey, RequestKey, RowKey, RowRead
from server_stub.core.ports import ConcurrentStart
from server_stub.storage import sqlite_statements as sql
from server_stub.storage.codec import Row
from server_stub.storage.session import MessageIdKey
from server_stub.storage.sqlite_user_tables import UserTables
from server_stub.storage.writes import rows_to_write
from xdb_sdk.protocol import Json

_T = TypeVar("_T")


def run_now(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("a step of a SQLite transaction waited for something")


class SqliteSession:
    """A `Session` on a connection."""

    def __init__(self, connection: sqlite3.Connection, tables: UserTables) -> None:
        self._connection = connection
        self._tables = tables

    # --- what a transaction loads ---

    async def lock_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Give executions, which the transaction's own lock guards; see `Session.lock_executions`."""
        execute = self._connection.execute
        found = {row[0]: row for key in keys if (row := execute(sql.FIND_CURRENT, key).fetchone()) is not None}
        others = [execution_id for execution_id in execution_ids if execution_id not in found]
        for ids in sql.in_lists(others):
            found.update((row[0], row) for row in execute(sql.FIND_EXECUTIONS[len(ids)], ids))
        return list(found.values())

    async def find_requests(self, keys: Sequence[RequestKey]) -> Sequence[Row]:
        """Give those that are remembered; see `Session.find_requests`."""
        execute = self._connection.execute
        return [row for key in keys if (row := execute(sql.FIND_REQUEST, key).fetchone()) is not None]

    async def find_open_states(self, execution_ids: Sequence[str]) -> Sequence[Row]:
        """Give open states; see `Session.find_open_states`."""
        execute = self._connection.execute
        lists = sql.in_lists(execution_ids)
        return list(chain.from_iterable(execute(sql.FIND_OPEN_STATES[len(ids)], ids) for ids in lists))

    async def find_messages(self, limits: Mapping[tuple[str, str], int]) -> Sequence[Row]:
        """Give the oldest messages; see `Session.find_messages`."""
        execute = self._connection.execute
        found = (execute(sql.FIND_MESSAGES, (*key, limit)) for key, limit in limits.items())
        return list(chain.from_iterable(found))

    async def find_message_ids(self, keys: Collection[MessageIdKey]) -> Collection[MessageIdKey]:
        """Give those that are known; see `Session.find_message_ids`."""
        return [key for key in keys if self._connection.execute(sql.KNOWS_MESSAGE_ID, key).fetchone() is not None]

    async def find_local_attributes(self, reads: Sequence[LocalAttributeRead]) -> Sequence[tuple[str, str, str]]:
        """Give attributes; see `Session.find_local_attributes`."""
        return [(read.process_execution_id, *pair) for read in reads for pair in self._attributes(read)]

    def _attributes(self, read: LocalAttributeRead) -> list[tuple[str, str]]:
        execute = self._connection.execute
        execution_id = read.process_execution_id
        if read.read_all:
            return execute(sql.FIND_LOCAL_ATTRIBUTES, (execution_id,)).fetchall()
        found: list[tuple[str, str]] = []
        for name in read.names:
            found += execute(sql.FIND_LOCAL_ATTRIBUTE, (execution_id, name))
        for prefix in read.prefixes:
            for name, value in execute(sql.FIND_LOCAL_ATTRIBUTES_FROM, (execution_id, prefix)):
                if not name.startswith(prefix):
                    break
                found.append((name, value))
        return found

    async def find_history(self, process_execution_id: str, after: int, limit: int) -> Sequence[Row]:
        """Give events; see `Session.find_history`."""
        return self._connection.execute(sql.FIND_HISTORY, (process_execution_id, after, limit)).fetchall()

    async def find_states(self, process_execution_id: str, latest: int) -> Sequence[Row]:
        """Give states; see `Session.find_states`."""
        values = (process_execution_id, latest, process_execution_id)
        return self._connection.execute(sql.FIND_STATES, values).fetchall()

    async def lock_rows(
        self, reads: Sequence[RowRead], written: Collection[RowKey]
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read rows of the user's tables; the transaction has the lock of the whole file."""
        return {read: self._tables.read(read) for read in reads}

    async def volatile_among(self, table_names: Collection[str]) -> frozenset[str]:
        """See `Loaded.volatile_tables`."""
        return self._tables.volatile_among(table_names)

    # --- what a transaction writes ---

    async def write(self, changes: Changes) -> None:
        """Write rows; see `Session.write`."""
        for statement, rows in rows_to_write(changes, list(changes.changed_processes.values()), sql.WRITES):
            if rows:
                self._execute_many(statement, rows)
        for row_write in changes.row_writes:
            self._tables.write(row_write)

    def _execute_many(self, statement: str, rows: Sequence[Row]) -> None:
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.IntegrityError as error:
            if statement == sql.INSERT_PROCESS and "is_current" in str(error):
                raise ConcurrentStart(str(error)) from error
            raise
