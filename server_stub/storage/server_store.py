"""What the stores on database servers have in common: connections, transactions that are tried again, and reads.

A database adds its statements, a `ServerSession` on one connection, and a `Connections` that hands connections out.
"""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Protocol, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.cluster import ClusterView, Hints, Member, Shard
from server_stub.core.model import (
    Call,
    CallKey,
    HistoryEvent,
    LocalAttributeRead,
    ProcessExecution,
    ProcessKey,
    RequestKey,
    RequestRecord,
    RowRead,
    StateExecution,
    StateKey,
    Timer,
    TimerKey,
    call_of,
)
from server_stub.core.ports import CallReads, ProcessLookup, StoreBusy, StoreCounters, StoreError, StoreRetry, Work
from server_stub.storage.codec import (
    STATE_COLUMNS,
    Row,
    UnreadableRow,
    call_key_of,
    event_of,
    process_of,
    request_of,
    state_of,
)
from server_stub.storage.session import Session, do_work, found_by, read_local_attributes
from xdb_sdk.protocol import Json, ListRequest, TableMapping

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

TRIES: Final = 5
"""How often a transaction is tried that loses to others (idempotency-and-shards D.12)."""
_FIRST_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStoreOptions:
    """How a database server is used.

    Attributes:
        max_connections: The most connections that are open at a time for transactions and reads. Besides, one keeps the
            server's place among the others, whatever the rest is busy with, and one listens for hints.
        max_transactions: How many of them are left for transactions: `transact` is not called more often at a time.
        connect_timeout: How long making a connection may take, and waiting for one that is in use.
        lock_timeout: How long a statement waits for a lock that another transaction holds.
        statement_timeout: How long a statement may take; a connection without an answer is then given up.
        install_schema: Creates the system tables in a database that has none.
        num_shards: How many shards a new database gets, and an existing one must have.
    """

    max_connections: int = 10
    max_transactions: int = 4
    connect_timeout: timedelta = timedelta(seconds=5)
    lock_timeout: timedelta = timedelta(seconds=5)
    statement_timeout: timedelta = timedelta(seconds=30)
    install_schema: bool = True
    num_shards: int = 16


class LostToOthers(StoreError):
    """A deadlock, or another failure that the next try of the same transaction may not meet. Nothing was kept."""


class ServerSession(Session, Protocol):
    """A `Session` that can also answer what delivery and the service API ask, outside of a transaction."""

    async def read_rows(self, reads: Sequence[RowRead]) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read rows of the user's tables, without locks."""
        ...

    async def delete_expired_requests(self, before_ms: int, limit: int) -> int:
        """Delete requests that expired, those first that did so first, and say how many."""
        ...

    async def replicate_requests(self, records: Sequence[RequestRecord]) -> None:
        """Insert requests, or replace those of a smaller version."""
        ...

    async def find_due_calls(
        self, shard_ids: Collection[int], before_ms: int, limit: int, after: tuple[int, str, str, int] | None
    ) -> Sequence[Row]:
        """Give states and, behind their columns, their executions, in the order of being due."""
        ...

    async def find_unclaimed_calls(self, shard_ids: Collection[int], before_ms: int, limit: int) -> Sequence[Row]:
        """Give states and executions as above, in any order."""
        ...

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, limit: int, after: tuple[int, str, str, int, int] | None
    ) -> Sequence[Row]:
        """Give the columns of `TimerKey`, the instant and the shard, in the order of being due."""
        ...

    async def find_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Give executions by id, and current ones by process id."""
        ...

    async def find_due_keys(self, states: Collection[StateKey]) -> Sequence[Row]:
        """Give the values of `CALL_KEY_COLUMNS` of those states that are due for a call."""
        ...

    async def find_closed(self, process_execution_ids: Collection[str]) -> Sequence[Row]:
        """Give those executions that have closed."""
        ...

    async def find_state(
        self, process_execution_id: str, state_id: str, number: int | None, wait_for_key: str | None
    ) -> Row | None:
        """Give a state by number, or the first with the key."""
        ...

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        """Count unclaimed messages by queue."""
        ...

    async def list_processes(self, request: ListRequest, after: tuple[int, str] | None) -> Sequence[Row]:
        """Give a page and one more, newest first."""
        ...

    async def canonical_mapping(self, mapping: TableMapping) -> TableMapping:
        """See `Store.canonical_mapping`."""
        ...

    async def beat(self, member: Member, lease_ms: int | None, member_timeout_ms: int) -> ClusterView:
        """See `Coordinator.beat`."""
        ...

    async def acquire(
        self, member_id: str, seen: Sequence[Shard], lease_ms: int, *, is_forced: bool
    ) -> Mapping[int, int]:
        """See `Coordinator.acquire`."""
        ...

    async def release(self, member_id: str, shard_ids: Collection[int], handover_ms: int) -> None:
        """See `Coordinator.release`."""
        ...

    async def end_handover(self, ranges: Mapping[int, int]) -> None:
        """See `Coordinator.end_handover`."""
        ...

    async def leave(self, member_id: str) -> None:
        """See `Coordinator.leave`."""
        ...


class ServerStore(ABC):
    """A `Store` and a `Coordinator` on a database server. Every error of the driver is turned into one of the port."""

    def __init__(self, options: ServerStoreOptions) -> None:
        self._options = options
        self._unreadable: set[object] = set()
        self._retries = 0
        max_reads = max(options.max_connections - options.max_transactions, 1)
        self._reads = asyncio.Semaphore(max_reads)
        self._lists = asyncio.Semaphore(max(max_reads // 3, 1))
        """A list may search for long: a few of them are not to keep all others from reading."""

    @property
    @abstractmethod
    def counters(self) -> StoreCounters:
        """What it has done so far."""

    def hints(self) -> Hints | None:
        """Give what carries hints between the servers of the database, not started yet; None where nothing does."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """Finish what is in progress and release the database. Calling it twice is harmless."""

    @abstractmethod
    def _transaction(self) -> AbstractAsyncContextManager[ServerSession]:
        """Give a session in a transaction, which is committed at the end and rolled back on an error."""

    @abstractmethod
    def _session(self) -> AbstractAsyncContextManager[ServerSession]:
        """Give a session, each of whose statements is a transaction of its own."""

    # --- transactions ---

    async def transact(self, work: Work) -> Changes:
        """Run `work` in one transaction; see `Store.transact`."""
        return await self._repeat(lambda session: do_work(session, work))

    async def _repeat(self, function: Callable[[ServerSession], Awaitable[_T]]) -> _T:
        """Run `function` in a transaction, again if it loses to others or knows what is out of date."""
        for attempt in range(1, TRIES + 1):
            try:
                async with self._transaction() as session:
                    return await function(session)
            except (LostToOthers, StoreRetry) as error:
                if attempt == TRIES:
                    raise StoreBusy(f"a transaction was tried {TRIES} times: {error}") from error
                self._retries += 1
                logger.debug("transaction tried again", extra={"attempt": attempt, "error": str(error)})
            # Not all at the same time: what has met once would meet again.
            await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1) * random.random())  # noqa: S311  # no secret
        raise AssertionError

    # --- reads ---

    async def _read(self, function: Callable[[ServerSession], Awaitable[_T]]) -> _T:
        async with self._turn(self._reads):
            return await self._read_now(function)

    @asynccontextmanager
    async def _turn(self, semaphore: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait for a turn, as long as for a connection."""
        if semaphore.locked():
            timeout_s = self._options.connect_timeout.total_seconds()
            try:
                async with asyncio.timeout(timeout_s):
                    await semaphore.acquire()
            except TimeoutError as error:
                raise StoreBusy(f"others read from the database for {timeout_s:g} s; allow more connections") from error
        else:
            await semaphore.acquire()
        try:
            yield
        finally:
            semaphore.release()

    async def _read_now(self, function: Callable[[ServerSession], Awaitable[_T]]) -> _T:
        for attempt in range(1, TRIES + 1):
            try:
                async with self._session() as session:
                    return await function(session)
            except (LostToOthers, StoreRetry) as error:
                if attempt == TRIES:
                    raise StoreBusy(f"a read was tried {TRIES} times: {error}") from error
        raise AssertionError

    async def read_for_calls(
        self, rows: Sequence[RowRead], local_attributes: Sequence[LocalAttributeRead]
    ) -> CallReads:
        """Read for many calls; see `Store.read_for_calls`."""

        async def read(session: ServerSession) -> CallReads:
            return CallReads(
                rows=await session.read_rows(rows) if rows else {},
                local_attributes=await read_local_attributes(session, local_attributes),
            )

        return await self._read(read)

    async def find_due_calls(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: tuple[int, CallKey] | None
    ) -> list[Call]:
        """Give due calls; see `Store.find_due_calls`. A row that cannot be read is skipped, and logged once."""
        place = None
        if after is not None:
            process_execution_id, state_id, number = after[1].state
            place = after[0], process_execution_id, state_id, number
        calls: list[Call] = []
        while True:
            rows = await self._read(partial(_find_due_calls, shard_ids, before_ms, limit, place))
            calls += self._readable(_call_of, rows)
            # A page that is not full is the last one, so what was skipped is made up for.
            if len(rows) < limit or len(calls) >= limit:
                return calls[:limit]
            place = _place_of(rows[-1])

    async def find_unclaimed_calls(self, shard_ids: Collection[int], before_ms: int, *, limit: int) -> list[Call]:
        """Give calls that nobody has claimed; see `Store.find_unclaimed_calls`."""
        rows = await self._read(lambda session: session.find_unclaimed_calls(shard_ids, before_ms, limit))
        return self._readable(_call_of, rows)

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: Timer | None
    ) -> list[Timer]:
        """Give due timers; see `Store.find_due_timers`."""
        place = None
        if after is not None:
            process_execution_id, state_id, number, command_index = after.key
            place = after.fire_at_ms, process_execution_id, state_id, number, command_index
        rows = await self._read(lambda session: session.find_due_timers(shard_ids, before_ms, limit, place))
        return [Timer(TimerKey(*key), fire_at_ms, shard_id) for *key, fire_at_ms, shard_id in rows]

    async def find_processes(self, lookups: Sequence[ProcessLookup]) -> list[ProcessExecution | None]:
        """Give executions; see `Store.find_processes`."""
        execution_ids = list({lookup.process_execution_id for lookup in lookups if lookup.process_execution_id})
        keys = list({lookup.key for lookup in lookups if not lookup.process_execution_id})
        rows = await self._read(lambda session: session.find_executions(execution_ids, keys))
        return found_by(lookups, map(process_of, rows))

    async def find_requests(self, keys: Collection[RequestKey]) -> dict[RequestKey, RequestRecord]:
        """Give those that are remembered; see `Store.find_requests`."""
        rows = await self._read(lambda session: session.find_requests(sorted(keys)))
        return {record.key: record for record in map(request_of, rows)}

    async def delete_expired_requests(self, before_ms: int, *, limit: int) -> int:
        """Forget some; see `Store.delete_expired_requests`."""
        return await self._repeat(lambda session: session.delete_expired_requests(before_ms, limit))

    async def replicate_requests(self, records: Sequence[RequestRecord]) -> None:
        """Take over what another cluster remembers; see `Store.replicate_requests`."""
        # A statement cannot write a row twice.
        newest = {record.key: record for record in sorted(records, key=lambda record: record.version)}
        ordered = [record for _, record in sorted(newest.items())]
        await self._repeat(lambda session: session.replicate_requests(ordered))

    async def find_due_keys(self, states: Collection[StateKey]) -> set[CallKey]:
        """Give the calls that states are due for; see `Store.find_due_keys`."""
        return set(map(call_key_of, await self._read(lambda session: session.find_due_keys(states))))

    async def find_closed(self, process_execution_ids: Collection[str]) -> list[ProcessExecution]:
        """Give those that have closed; see `Store.find_closed`."""
        rows = await self._read(lambda session: session.find_closed(process_execution_ids))
        return self._readable(process_of, rows)

    async def find_states(self, process_execution_id: str, *, latest: int) -> list[StateExecution]:
        """Give state executions; see `Store.find_states`."""
        return [state_of(row) for row in await self._read(lambda s: s.find_states(process_execution_id, latest))]

    async def find_state(
        self, process_execution_id: str, state_id: str, *, number: int | None, wait_for_key: str | None
    ) -> StateExecution | None:
        """Give a state execution; see `Store.find_state`."""
        row = await self._read(lambda s: s.find_state(process_execution_id, state_id, number, wait_for_key))
        return None if row is None else state_of(row)

    async def find_history(self, process_execution_id: str, *, after: int, limit: int) -> list[HistoryEvent]:
        """Give events of a history; see `Store.find_history`."""
        return [event_of(row) for row in await self._read(lambda s: s.find_history(process_execution_id, after, limit))]

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        """Count unclaimed messages by queue; see `Store.count_messages`."""
        return await self._read(lambda session: session.count_messages(process_execution_id))

    async def list_processes(self, request: ListRequest, after: tuple[int, str] | None) -> list[ProcessExecution]:
        """Give a page and one more; see `Store.list_processes`. An unreadable row is skipped, and logged once."""
        async with self._turn(self._lists):
            rows = await self._read(lambda session: session.list_processes(request, after))
        return self._readable(process_of, rows)

    async def canonical_mapping(self, mapping: TableMapping) -> TableMapping:
        """Check a mapping; see `Store.canonical_mapping`."""
        return await self._read(lambda session: session.canonical_mapping(mapping))

    def _readable(self, decode: Callable[[Row], _T | None], rows: Sequence[Row]) -> list[_T]:
        """Decode the rows of a scan; one that cannot be read is left out, and has one log line."""
        found: list[_T] = []
        for row in rows:
            try:
                item = decode(row)
            except UnreadableRow as error:
                if error.key not in self._unreadable:
                    self._unreadable.add(error.key)
                    logger.exception("unreadable row skipped", extra={"table": error.table_name, "key": error.key})
                continue
            if item is not None:
                found.append(item)
        return found

    # --- several servers ---

    async def beat(self, member: Member, *, lease_ms: int | None, member_timeout_ms: int) -> ClusterView:
        """Say that a member is alive; see `Coordinator.beat`."""
        # One round trip, without a transaction around it: an idle server does little else. Its parts depend on nothing.
        return await self._read_now(lambda session: session.beat(member, lease_ms, member_timeout_ms))

    async def acquire(
        self, member_id: str, seen: Sequence[Shard], *, lease_ms: int, is_forced: bool = False
    ) -> Mapping[int, int]:
        """Take shards; see `Coordinator.acquire`."""
        return await self._repeat(lambda session: session.acquire(member_id, seen, lease_ms, is_forced=is_forced))

    async def release(self, member_id: str, shard_ids: Collection[int], *, handover_ms: int) -> None:
        """Give up shards; see `Coordinator.release`."""
        await self._repeat(lambda session: session.release(member_id, shard_ids, handover_ms))

    async def end_handover(self, ranges: Mapping[int, int]) -> None:
        """Say that claimed calls are finished; see `Coordinator.end_handover`."""
        await self._repeat(lambda session: session.end_handover(ranges))

    async def leave(self, member_id: str) -> None:
        """Remove a member; see `Coordinator.leave`."""
        await self._repeat(lambda session: session.leave(member_id))


async def _find_due_calls(
    shard_ids: Collection[int],
    before_ms: int,
    limit: int,
    after: tuple[int, str, str, int] | None,
    session: ServerSession,
) -> Sequence[Row]:
    return await session.find_due_calls(shard_ids, before_ms, limit, after)


def _call_of(row: Row) -> Call | None:
    state = state_of(row[: len(STATE_COLUMNS)])
    process = process_of(row[len(STATE_COLUMNS) :])
    return call_of(process, state)


_PLACE: Final = tuple(map(STATE_COLUMNS.index, ("due_at_ms", "process_execution_id", "state_id", "number")))


def _place_of(row: Row) -> tuple[int, str, str, int]:
    due_at_ms, process_execution_id, state_id, number = (row[index] for index in _PLACE)
    return due_at_ms, process_execution_id, state_id, number
