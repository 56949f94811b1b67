"""A connection to MySQL or MariaDB as the steps of a transaction see it: each step one text of statements."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

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
from server_stub.storage import mysql_statements as sql
from server_stub.storage.cluster_codec import view_of
from server_stub.storage.codec import Row, only_row, request_row
from server_stub.storage.mysql_connection import MysqlConnection
from server_stub.storage.mysql_user_tables import MysqlUserTables
from server_stub.storage.session import MessageIdKey
from server_stub.storage.writes import request_key, rows_to_write
from xdb_sdk.protocol import Json, ListRequest, TableMapping

_MEMBER_ID, _ROLES = 7, 9
"""Where they are in a row of the view."""


class MysqlSession:
    """A `Session` on a connection."""

    def __init__(self, connection: MysqlConnection, tables: MysqlUserTables) -> None:
        self.connection = connection
        self._tables = tables
        self._locked_rows: set[RowKey] = set()
        self._absent_rows: set[RowKey] = set()

    # --- what a transaction loads ---

    async def lock_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Lock and give executions; see `Session.lock_executions`."""
        wanted = set(execution_ids)
        if keys:
            current = [tuple((*key, 1) for key in keys)]
            wanted.update(id_ for (id_,) in await self.connection.fetch(sql.FIND_CURRENT_IDS, current))
        if not wanted:
            return []
        return await self.connection.fetch(sql.LOCK_EXECUTIONS, [tuple(sorted(wanted))])

    async def find_requests(self, keys: Sequence[RequestKey]) -> Sequence[Row]:
        """Give those that are remembered; see `Session.find_requests`."""
        if not keys:
            return []
        return await self.connection.fetch(sql.FIND_REQUESTS, [tuple(map(request_key, keys))])

    async def find_open_states(self, execution_ids: Sequence[str]) -> Sequence[Row]:
        """Give open states; see `Session.find_open_states`."""
        return await self.connection.fetch(sql.FIND_OPEN_STATES, [tuple(execution_ids)])

    async def find_messages(self, limits: Mapping[tuple[str, str], int]) -> Sequence[Row]:
        """Give the oldest messages; see `Session.find_messages`."""
        keys = [(*key, most) for key, most in limits.items()]
        return await self.connection.fetch_all(sql.FIND_MESSAGES.texts(self.connection, keys))

    async def find_message_ids(self, keys: Collection[MessageIdKey]) -> Collection[MessageIdKey]:
        """Give those that are known; see `Session.find_message_ids`."""
        rows = await self.connection.fetch(sql.FIND_MESSAGE_IDS, [tuple(keys)])
        return [(execution_id, queue_name, message_id) for execution_id, queue_name, message_id in rows]

    async def find_local_attributes(self, reads: Sequence[LocalAttributeRead]) -> Sequence[tuple[str, str, str]]:
        """Give attributes; see `Session.find_local_attributes`."""
        whole = tuple(read.process_execution_id for read in reads if read.read_all)
        names = tuple((read.process_execution_id, name) for read in reads for name in read.names)
        patterns = [(read.process_execution_id, sql.pattern_of(prefix)) for read in reads for prefix in read.prefixes]
        lists = ((sql.FIND_ALL_LOCAL_ATTRIBUTES, whole), (sql.FIND_LOCAL_ATTRIBUTES, names))
        likes = sql.FIND_LOCAL_ATTRIBUTES_LIKE.texts(self.connection, patterns)
        rows = await self.connection.fetch_all(chain(self._list_texts(lists), likes))
        return [(execution_id, name, value) for execution_id, name, value in rows]

    def _list_texts(self, statements: Iterable[tuple[str, tuple[object, ...]]]) -> Iterator[str]:
        """Give the statements over a list that has something in it."""
        return (self.connection.text(statement, [values]) for statement, values in statements if values)

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
        """Write the rows of the system tables by one text, then those of the user's tables; see `Session.write`."""
        parts = rows_to_write(changes, list(changes.changed_processes.values()), sql.WRITES)
        texts = (part.texts(self.connection, rows) for part, rows in parts if rows)
        await self.connection.execute_all(chain.from_iterable(texts))
        if changes.row_writes:
            await self._tables.write_rows(
                self.connection, changes.row_writes, locked=self._locked_rows, seen_absent=self._absent_rows
            )

    # --- requests that were carried out ---

    async def delete_expired_requests(self, before_ms: int, limit: int) -> int:
        """Delete some; see `ServerSession.delete_expired_requests`."""
        keys = await self.connection.fetch(sql.FIND_EXPIRED_REQUESTS, [before_ms, limit])
        await self.connection.execute_all(sql.WRITES.delete_requests.texts(self.connection, sorted(keys)))
        return len(keys)

    async def replicate_requests(self, records: Sequence[RequestRecord]) -> None:
        """Take rows over; see `ServerSession.replicate_requests`."""
        rows = ([request_row(record)] for record in records)
        await self.connection.execute_all(sql.REPLICATE_REQUEST.texts(self.connection, rows))

    # --- what delivery scans ---

    async def find_due_calls(
        self, shard_ids: Collection[int], before_ms: int, limit: int, after: tuple[int, str, str, int] | None
    ) -> Sequence[Row]:
        """Give due calls; see `ServerSession.find_due_calls`."""
        if not shard_ids:
            return []
        return await self.connection.fetch(*sql.due_calls(list(shard_ids), before_ms, limit, after))

    async def find_unclaimed_calls(self, shard_ids: Collection[int], before_ms: int, limit: int) -> Sequence[Row]:
        """Give unclaimed calls; see `ServerSession.find_unclaimed_calls`."""
        if not shard_ids:
            return []
        return await self.connection.fetch(sql.UNCLAIMED_CALLS, [tuple(shard_ids), before_ms, limit])

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, limit: int, after: tuple[int, str, str, int, int] | None
    ) -> Sequence[Row]:
        """Give due timers; see `ServerSession.find_due_timers`."""
        if not shard_ids:
            return []
        return await self.connection.fetch(*sql.due_timers(list(shard_ids), before_ms, limit, after))

    # --- what the service API asks ---

    async def find_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Give executions; see `ServerSession.find_executions`."""
        lists = (
            (sql.FIND_EXECUTIONS, tuple(execution_ids)),
            (sql.FIND_CURRENT, tuple((*key, 1) for key in keys)),
        )
        return await self.connection.fetch_all(self._list_texts(lists))

    async def find_due_keys(self, states: Collection[StateKey]) -> Sequence[Row]:
        """Give keys of due calls; see `ServerSession.find_due_keys`."""
        if not states:
            return []
        return await self.connection.fetch(sql.FIND_DUE_KEYS, [tuple(map(tuple, states))])

    async def find_closed(self, process_execution_ids: Collection[str]) -> Sequence[Row]:
        """Give closed executions; see `ServerSession.find_closed`."""
        if not process_execution_ids:
            return []
        return await self.connection.fetch(sql.FIND_CLOSED, [tuple(process_execution_ids)])

    async def find_states(self, process_execution_id: str, latest: int) -> Sequence[Row]:
        """Give states; see `Session.find_states`."""
        if not latest:
            return await self.find_open_states([process_execution_id])
        return await self.connection.fetch(sql.FIND_STATES, [process_execution_id, latest, process_execution_id])

    async def find_history(self, process_execution_id: str, after: int, limit: int) -> Sequence[Row]:
        """Give events; see `Session.find_history`."""
        return await self.connection.fetch(sql.FIND_HISTORY, [process_execution_id, after, limit])

    async def find_state(
        self, process_execution_id: str, state_id: str, number: int | None, wait_for_key: str | None
    ) -> Row | None:
        """Give a state; see `ServerSession.find_state`."""
        if wait_for_key is None:
            return only_row(await self.connection.fetch(sql.FIND_STATE, [process_execution_id, state_id, number]))
        return only_row(
            await self.connection.fetch(sql.FIND_STATE_BY_KEY, [process_execution_id, state_id, wait_for_key])
        )

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        """Count messages; see `ServerSession.count_messages`."""
        return dict(await self.connection.fetch(sql.COUNT_MESSAGES, [process_execution_id]))

    async def list_processes(self, request: ListRequest, after: tuple[int, str] | None) -> Sequence[Row]:
        """Give a page and one more; see `ServerSession.list_processes`."""
        return await self.connection.fetch(*sql.list_statement(request, after))

    async def canonical_mapping(self, mapping: TableMapping) -> TableMapping:
        """See `Store.canonical_mapping`."""
        table = await self._tables.find(self.connection, mapping.table_name)
        if table is None:
            raise MappingRefused(f"the database has no table {mapping.table_name!r}")
        return self._tables.canonical_mapping(table, mapping)

    # --- several servers ---

    async def beat(self, member: Member, lease_ms: int | None, member_timeout_ms: int) -> ClusterView:
        """See `Coordinator.beat`. Others are looked at without a lock, so that no server waits for another's beat."""
        roles = ",".join(sorted(member.roles))
        draining = 1 if member.is_draining else 0
        others = (member_timeout_ms, member.member_id)
        heartbeat = (member.member_id, member.address, roles, draining, draining)
        texts = [self.connection.text(sql.HEARTBEAT, heartbeat)]
        if lease_ms is not None:
            texts.append(self.connection.text(sql.RENEW, (lease_ms, member.member_id)))
        rows = await self.connection.fetch_all([*texts, self.connection.text(sql.VIEW, others * 2)])
        gone = tuple(row[_MEMBER_ID] for row in rows if row[_MEMBER_ID] is not None and row[_ROLES] is None)
        if gone:
            await self.connection.execute(sql.REMOVE_GONE, (gone, member_timeout_ms))
        return view_of([row for row in rows if row[_MEMBER_ID] not in gone], member)

    async def acquire(
        self, member_id: str, seen: Sequence[Shard], lease_ms: int, *, is_forced: bool
    ) -> Mapping[int, int]:
        """See `Coordinator.acquire`."""
        if not seen:
            return {}
        ranges = tuple((shard.shard_id, shard.range_id) for shard in seen)
        shard_ids = tuple(shard.shard_id for shard in seen)
        found = await self.connection.fetch(sql.FIND_ACQUIRABLE, (shard_ids, ranges, is_forced, member_id))
        acquired = {shard_id: range_id + 1 for shard_id, range_id in found}
        if acquired:
            await self.connection.execute(sql.ACQUIRE, (member_id, lease_ms, tuple(acquired)))
        return acquired

    async def release(self, member_id: str, shard_ids: Collection[int], handover_ms: int) -> None:
        """See `Coordinator.release`."""
        if shard_ids:
            values = (handover_ms, handover_ms, handover_ms, tuple(shard_ids), member_id)
            await self.connection.execute(sql.RELEASE, values)

    async def end_handover(self, ranges: Mapping[int, int]) -> None:
        """See `Coordinator.end_handover`."""
        await self.connection.execute_all(sql.END_HANDOVER.texts(self.connection, sorted(ranges.items())))

    async def leave(self, member_id: str) -> None:
        """See `Coordinator.leave`."""
        await self.connection.execute(sql.RELEASE_ALL, [member_id])
        await self.connection.execute(sql.LEAVE, [member_id])
