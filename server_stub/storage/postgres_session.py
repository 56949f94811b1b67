"""A connection to PostgreSQL as the steps of a transaction see it: each step one statement over many rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
from pydantic_core import from_json

from server_stub.core.changes import Changes
from server_stub.core.cluster import ClusterView, Member, Shard
from server_stub.core.model import (
    LocalAttributeRead,
    ProcessKey,
    RequestKey,
    RequestRecord,
    RowKey,
    RowRead,
    StateKey,
)
from server_stub.core.ports import MappingRefused
from server_stub.storage import postgres_statements as sql
from server_stub.storage.cluster_codec import view_of
from server_stub.storage.codec import PROCESS_COLUMNS, REQUEST_COLUMNS, REQUEST_KEY, Row, only_row, request_row
from server_stub.storage.postgres_errors import committing
from server_stub.storage.postgres_user_tables import PostgresUserTables
from server_stub.storage.session import MessageIdKey, Overtaken
from server_stub.storage.writes import dropped, ended, rows_to_write
from xdb_sdk.protocol import Json, ListRequest, TableMapping


class PostgresSession:
    """A `Session` on a connection."""

    def __init__(self, connection: "asyncpg.Connection[Any]", tables: PostgresUserTables) -> None:
        self.connection = connection
        self._tables = tables
        self.statements = 0
        self._locked_rows: set[RowKey] = set()
        self._absent_rows: set[RowKey] = set()

    async def fetch(self, statement: str, *values: Any) -> Sequence[Row]:
        """Run a statement and give its rows."""
        self.statements += 1
        return await self.connection.fetch(statement, *values)

    # --- what a transaction loads ---

    async def lock_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Lock and give executions; see `Session.lock_executions`."""
        if not keys:
            return await self.fetch(sql.LOCK_EXECUTIONS, execution_ids)
        return await self.fetch(sql.LOCK_EXECUTIONS_AND_CURRENT, execution_ids, *_arrays(keys))

    async def read_executions(
        self, execution_ids: Sequence[str], keys: Sequence[ProcessKey], request_keys: Sequence[RequestKey]
    ) -> tuple[Sequence[Row], Sequence[Row], Sequence[Row]]:
        """Give executions, open states and requests; see `UnlockedSession.read_executions`."""
        if request_keys:
            values = (execution_ids, *_arrays(keys, 2), *_arrays(request_keys))
            rows = await self.fetch(sql.READ_EXECUTIONS_CURRENT_AND_REQUESTS, *values)
        elif keys:
            rows = await self.fetch(sql.READ_EXECUTIONS_AND_CURRENT, execution_ids, *_arrays(keys))
        else:
            rows = await self.fetch(sql.READ_EXECUTIONS, execution_ids)
        processes = [row[2 : 2 + len(PROCESS_COLUMNS)] for row in rows if row[0] == 0]
        states = [row[2 + len(PROCESS_COLUMNS) :] for row in rows if row[0] == 1]
        return processes, states, [from_json(row[2]) for row in rows if row[0] == 2]

    async def find_requests(self, keys: Sequence[RequestKey]) -> Sequence[Row]:
        """Give those that are remembered; see `Session.find_requests`."""
        return await self.fetch(sql.FIND_REQUESTS, *_arrays(keys, len(REQUEST_KEY)))

    async def find_open_states(self, execution_ids: Sequence[str]) -> Sequence[Row]:
        """Give open states; see `Session.find_open_states`."""
        return await self.fetch(sql.FIND_OPEN_STATES, execution_ids)

    async def find_messages(self, limits: Mapping[tuple[str, str], int]) -> Sequence[Row]:
        """Give the oldest messages; see `Session.find_messages`."""
        return await self.fetch(sql.FIND_MESSAGES, *_arrays((*key, most) for key, most in limits.items()))

    async def find_message_ids(self, keys: Collection[MessageIdKey]) -> Collection[MessageIdKey]:
        """Give those that are known; see `Session.find_message_ids`."""
        return [tuple(row) for row in await self.fetch(sql.FIND_MESSAGE_IDS, *_arrays(keys))]

    async def find_local_attributes(self, reads: Sequence[LocalAttributeRead]) -> Sequence[tuple[str, str, str]]:
        """Give attributes; see `Session.find_local_attributes`."""
        whole = [read.process_execution_id for read in reads if read.read_all]
        names = [(read.process_execution_id, name) for read in reads for name in read.names]
        prefixes = [(read.process_execution_id, prefix) for read in reads for prefix in read.prefixes]
        values = (whole, *_arrays(names, 2), *_arrays(prefixes, 2))
        return [tuple(row) for row in await self.fetch(sql.FIND_LOCAL_ATTRIBUTES, *values)]

    async def read_rows(self, reads: Sequence[RowRead]) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read rows of the user's tables; see `ServerSession.read_rows`."""
        return await self._tables.read_rows(self.connection, reads)

    async def lock_rows(
        self, reads: Sequence[RowRead], written: Collection[RowKey]
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read and lock rows of the user's tables; see `Session.lock_rows`."""
        found = await self._tables.lock_rows(self.connection, reads, written=written)
        self._locked_rows = {read.row for read in found}
        self._absent_rows = {read.row for read, columns in found.items() if columns is None}
        return found

    async def volatile_among(self, table_names: Collection[str]) -> frozenset[str]:
        """See `Loaded.volatile_tables`."""
        return await self._tables.volatile_among(self.connection, table_names)

    # --- what a transaction writes ---

    async def write(self, changes: Changes) -> None:
        """Write the rows of the system tables by one statement, then those of the user's tables; see `Session.write`.

        What makes room in a unique index comes before what takes its place, which one statement cannot promise: an
        execution that is current no more, and a request that has expired.
        """
        changed = list(changes.changed_processes.values())
        making_room = [(sql.WRITES.delete_requests, dropped(changes))]
        if changes.new_processes:
            replaced = [process for process in changed if not process.is_current]
            making_room.append((sql.WRITES.end_processes, [ended(process) for process in replaced]))
            changed = [process for process in changed if process.is_current]
        await self._write_parts(making_room)
        await self._write_parts(rows_to_write(replace(changes, dropped_requests={}), changed, sql.WRITES))
        if changes.row_writes:
            await self._tables.write_rows(
                self.connection, changes.row_writes, locked=self._locked_rows, seen_absent=self._absent_rows
            )

    async def write_if_unchanged(self, changes: Changes, versions: Mapping[str, int]) -> None:
        """Write all by one statement, which is the whole transaction; see `UnlockedSession.write_if_unchanged`."""
        parts = rows_to_write(changes, list(changes.changed_processes.values()), sql.WRITES)
        texts, values = [], _arrays(versions.items())
        for part, rows in parts:
            if rows:
                texts.append(part.text(len(values) + 1))
                values += _arrays(rows)
        if not texts:
            return
        named = [f"w{number} AS ({text})" for number, text in enumerate(texts)]
        statement = f"WITH {', '.join([sql.GUARD, *named])} {sql.GUARDED}" if versions else _together(texts)
        self.statements += 1
        with committing(self.connection):
            try:
                await self.connection.execute(statement, *values)
            except asyncpg.DivisionByZeroError as error:
                raise Overtaken("an execution was changed since it was read") from error

    async def _write_parts(self, parts: Iterable[tuple[sql.Part, Sequence[Row]]]) -> None:
        texts: list[str] = []
        values: list[Sequence[Any]] = []
        for part, rows in parts:
            if rows:
                texts.append(part.text(len(values) + 1))
                values += _arrays(rows)
        if not texts:
            return
        self.statements += 1
        await self.connection.execute(_together(texts), *values)

    # --- requests that were carried out ---

    async def delete_expired_requests(self, before_ms: int, limit: int) -> int:
        """Delete some; see `ServerSession.delete_expired_requests`."""
        [(count,)] = await self.fetch(sql.DELETE_EXPIRED_REQUESTS, before_ms, limit)
        return int(count)

    async def replicate_requests(self, records: Sequence[RequestRecord]) -> None:
        """Take rows over; see `ServerSession.replicate_requests`."""
        await self.fetch(sql.REPLICATE_REQUESTS, *_arrays(map(request_row, records), len(REQUEST_COLUMNS)))

    # --- what delivery scans ---

    async def find_due_calls(
        self, shard_ids: Collection[int], before_ms: int, limit: int, after: tuple[int, str, str, int] | None
    ) -> Sequence[Row]:
        """Give due calls; see `ServerSession.find_due_calls`."""
        statement = sql.DUE_CALLS if after is None else sql.DUE_CALLS_AFTER
        return await self.fetch(statement, list(shard_ids), before_ms, limit, *(after or ()))

    async def find_unclaimed_calls(self, shard_ids: Collection[int], before_ms: int, limit: int) -> Sequence[Row]:
        """Give unclaimed calls; see `ServerSession.find_unclaimed_calls`."""
        return await self.fetch(sql.UNCLAIMED_CALLS, list(shard_ids), before_ms, limit)

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, limit: int, after: tuple[int, str, str, int, int] | None
    ) -> Sequence[Row]:
        """Give due timers; see `ServerSession.find_due_timers`."""
        statement = sql.DUE_TIMERS if after is None else sql.DUE_TIMERS_AFTER
        return await self.fetch(statement, list(shard_ids), before_ms, limit, *(after or ()))

    # --- what the service API asks ---

    async def find_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Give executions; see `ServerSession.find_executions`."""
        if not keys:
            return await self.fetch(sql.FIND_EXECUTIONS, execution_ids)
        if not execution_ids:
            return await self.fetch(sql.FIND_CURRENT, *_arrays(keys))
        return await self.fetch(sql.FIND_EXECUTIONS_AND_CURRENT, execution_ids, *_arrays(keys))

    async def find_due_keys(self, states: Collection[StateKey]) -> Sequence[Row]:
        """Give keys of due calls; see `ServerSession.find_due_keys`."""
        columns = [list(column) for column in zip(*states, strict=True)] or [[], [], []]
        return await self.fetch(sql.FIND_DUE_KEYS, *columns)

    async def find_closed(self, process_execution_ids: Collection[str]) -> Sequence[Row]:
        """Give closed executions; see `ServerSession.find_closed`."""
        return await self.fetch(sql.FIND_CLOSED, list(process_execution_ids))

    async def find_states(self, process_execution_id: str, latest: int) -> Sequence[Row]:
        """Give states; see `Session.find_states`."""
        if not latest:
            return await self.fetch(sql.FIND_OPEN_STATES, [process_execution_id])
        return await self.fetch(sql.FIND_STATES, process_execution_id, latest)

    async def find_history(self, process_execution_id: str, after: int, limit: int) -> Sequence[Row]:
        """Give events; see `Session.find_history`."""
        return await self.fetch(sql.FIND_HISTORY, process_execution_id, after, limit)

    async def find_state(
        self, process_execution_id: str, state_id: str, number: int | None, wait_for_key: str | None
    ) -> Row | None:
        """Give a state; see `ServerSession.find_state`."""
        if wait_for_key is None:
            return only_row(await self.fetch(sql.FIND_STATE, process_execution_id, state_id, number))
        return only_row(await self.fetch(sql.FIND_STATE_BY_KEY, process_execution_id, state_id, wait_for_key))

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        """Count messages; see `ServerSession.count_messages`."""
        return {name: count for name, count in await self.fetch(sql.COUNT_MESSAGES, process_execution_id)}  # noqa: C416  # typed

    async def list_processes(self, request: ListRequest, after: tuple[int, str] | None) -> Sequence[Row]:
        """Give a page and one more; see `ServerSession.list_processes`."""
        statement, values = sql.list_statement(request, after)
        return await self.fetch(statement, *values)

    async def canonical_mapping(self, mapping: TableMapping) -> TableMapping:
        """See `Store.canonical_mapping`."""
        table = await self._tables.find(self.connection, mapping.table_name)
        if table is None:
            raise MappingRefused(f"the database has no table {mapping.table_name!r}")
        return self._tables.canonical_mapping(table, mapping)

    # --- several servers ---

    async def beat(self, member: Member, lease_ms: int | None, member_timeout_ms: int) -> ClusterView:
        """See `Coordinator.beat`."""
        roles = ",".join(sorted(member.roles))
        draining = 1 if member.is_draining else 0
        values = (member.member_id, member.address, roles, draining, member_timeout_ms, lease_ms)
        return view_of(await self.fetch(sql.BEAT, *values), member)

    async def acquire(
        self, member_id: str, seen: Sequence[Shard], lease_ms: int, *, is_forced: bool
    ) -> Mapping[int, int]:
        """See `Coordinator.acquire`."""
        ranges = _arrays(((shard.shard_id, shard.range_id) for shard in seen), 2)
        rows = await self.fetch(sql.ACQUIRE, member_id, lease_ms, *ranges, is_forced)
        return {shard_id: range_id for shard_id, range_id in rows}  # noqa: C416  # typed

    async def release(self, member_id: str, shard_ids: Collection[int], handover_ms: int) -> None:
        """See `Coordinator.release`."""
        await self.fetch(sql.RELEASE, member_id, list(shard_ids), handover_ms)

    async def end_handover(self, ranges: Mapping[int, int]) -> None:
        """See `Coordinator.end_handover`."""
        await self.fetch(sql.END_HANDOVER, *_arrays(ranges.items(), 2))

    async def leave(self, member_id: str) -> None:
        """See `Coordinator.leave`."""
        await self.fetch(sql.LEAVE, member_id)


def _together(texts: Sequence[str]) -> str:
    """Give one statement that runs all."""
    if len(texts) == 1:
        return texts[0]
    named = ", ".join(f"w{number} AS ({text})" for number, text in enumerate(texts))
    return f"WITH {named} SELECT"


def _arrays(rows: Iterable[Sequence[Any]], width: int = 0) -> list[Sequence[Any]]:
    """Give the columns of rows; `width` is their number where there may be no row."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    return columns or [()] * width
