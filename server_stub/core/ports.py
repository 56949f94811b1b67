"""The seams of the core: what it asks of a database. Each method is one transaction of a few set-based statements."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from server_stub.core.changes import Changes
from server_stub.core.model import (
    Call,
    CallKey,
    Execution,
    HistoryEvent,
    JsonText,
    LocalAttributeRead,
    ProcessExecution,
    ProcessKey,
    RequestKey,
    RequestRecord,
    RowKey,
    RowRead,
    StateExecution,
    StateKey,
    Timer,
)
from xdb_sdk.protocol import DatabaseErrorInfo, Json, ListRequest, TableMapping


@dataclass(slots=True)
class Selection:
    """What a transaction concerns: executions by id, and current executions by process id.

    `request_keys` are those of requests, which may have been carried out before. `touches_rows` says that it may write
    rows of the user's tables, or has to find what a locking call was given unchanged; without it a store may do with
    fewer locks.
    """

    execution_ids: set[str] = field(default_factory=set)
    process_keys: set[ProcessKey] = field(default_factory=set)
    request_keys: set[RequestKey] = field(default_factory=set)
    touches_rows: bool = False


@dataclass(slots=True)
class Needs:
    """What the loaded executions show to be needed besides.

    `messages` maps (execution, queue) to how many of its oldest messages to load; `message_ids` are triples
    (execution, queue, message id) to look up; `rows` and `local_attributes` are read sets to be read again.
    `written_rows` are those that may be written, which may be locked along with the rows that are read.
    `histories` names executions whose history is read, with all their state executions.
    `fed_queues` is for the core itself: queues that messages are published to, whose waits may then take some.
    """

    fed_queues: set[tuple[str, str]] = field(default_factory=set)
    messages: dict[tuple[str, str], int] = field(default_factory=dict)
    message_ids: set[tuple[str, str, str]] = field(default_factory=set)
    rows: list[RowRead] = field(default_factory=list)
    written_rows: list[RowKey] = field(default_factory=list)
    local_attributes: list[LocalAttributeRead] = field(default_factory=list)
    histories: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Loaded:
    """What a transaction has loaded.

    `current` maps each asked process key that exists to its execution id; `requests` holds those requests that are
    remembered, also if they have expired; `rows` and `local_attributes` answer the reads of `Needs`, a missing row is
    None; `histories` has the events of executions, and `past_states` their state executions, open or closed, both from
    the first on. `volatile_tables` are those, among the tables of the executions and of the read rows, in which writing
    one row may change a row that is named otherwise: by a trigger, a cascade, or because two keys that differ are equal
    to the database.
    """

    executions: dict[str, Execution] = field(default_factory=dict)
    current: dict[ProcessKey, str] = field(default_factory=dict)
    requests: dict[RequestKey, RequestRecord] = field(default_factory=dict)
    rows: dict[RowRead, Mapping[str, Json] | None] = field(default_factory=dict)
    local_attributes: dict[str, dict[str, JsonText]] = field(default_factory=dict)
    volatile_tables: frozenset[str] = frozenset()
    histories: dict[str, Sequence[HistoryEvent]] = field(default_factory=dict)
    past_states: dict[str, Sequence[StateExecution]] = field(default_factory=dict)


class Work(Protocol):
    """One transaction as its three pure steps; the store calls them in this order, on any thread, one at a time."""

    def selection(self) -> Selection:
        """Say which executions to lock and load."""
        ...

    def needs(self, loaded: Loaded) -> Needs:
        """Say what else to load, having seen the executions and their open states."""
        ...

    def decide(self, loaded: Loaded) -> Changes:
        """Apply the commands and say what to write. Called at most once for each try of the transaction."""
        ...


class ProcessLookup(NamedTuple):
    """Asks for an execution of a process id: the one with an id, or the current one."""

    key: ProcessKey
    process_execution_id: str | None


@dataclass(frozen=True, slots=True)
class CallReads:
    """What one call is given of the persistence; both keyed by execution or row as asked."""

    rows: dict[RowRead, Mapping[str, Json] | None]
    local_attributes: dict[str, dict[str, JsonText]]


class StoreError(Exception):
    """Something between the server and its database. Nothing of the transaction was kept."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, is locked, or asks to try again; repeat the transaction later."""


class StoreBusy(StoreUnavailable):
    """The database is there, but others hold what this transaction needs, or were always faster; repeat it later."""


class CommitOutcomeUnknown(StoreUnavailable):
    """The connection broke while the transaction was being committed: it was kept, or nothing of it was."""


class StoreRetry(StoreError):
    """What the store knew of the database is out of date; nothing was kept; repeat the transaction at once."""


class ConcurrentStart(StoreError):
    """Another transaction has made an execution of the process id current meanwhile; repeat the transaction at once."""


class RowWriteFailed(StoreError):
    """The user's database refused a write (semantics 7.4): the application's error, not the server's."""

    def __init__(self, row: RowKey | None, error: DatabaseErrorInfo) -> None:
        self.row = row
        self.error = error
        super().__init__(f"{error.table_name}: {error.kind}: {error.message}")


class RowReadFailed(StoreError):
    """The user's database refused a read."""

    def __init__(self, row: RowKey | None, error: DatabaseErrorInfo) -> None:
        self.row = row
        self.error = error
        super().__init__(f"{error.table_name}: {error.kind}: {error.message}")


class MappingRefused(StoreError):
    """A mapping does not fit the table it names; whoever asks to start with it is told what is wrong."""


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """What a store has done since it was opened; for benchmarks and metrics. A statement over many rows is one.

    `retries` counts transactions that lost to others and were begun again at once.
    """

    statements: int
    retries: int = 0


class Store(Protocol):
    """A database with the system tables, and the user's tables beside them."""

    @property
    def counters(self) -> StoreCounters:
        """What it has done so far."""
        ...

    async def transact(self, work: Work) -> Changes:
        """Run `work` in one transaction under the locks of its executions, and return what was committed.

        Raises:
            RowWriteFailed: A write to a user's table was refused; nothing was kept.
            RowReadFailed: A read set could not be read again.
            ConcurrentStart: The unique index over current executions refused the commit; repeat.
            StoreUnavailable: The database cannot be reached or is busy; nothing was kept.
            CommitOutcomeUnknown: It is the one StoreUnavailable after which all may have been kept.
        """
        ...

    async def read_for_calls(
        self, rows: Sequence[RowRead], local_attributes: Sequence[LocalAttributeRead]
    ) -> CallReads:
        """Read rows and process-local attributes of many calls at once, without locks.

        Raises:
            RowReadFailed: One of the reads was refused; read one by one to find which.
        """
        ...

    async def find_due_calls(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: tuple[int, CallKey] | None
    ) -> list[Call]:
        """Give calls of some shards with `due_at_ms` before the instant, earliest first, from a place in that order on.

        A claim has no part in the order.
        """
        ...

    async def find_unclaimed_calls(self, shard_ids: Collection[int], before_ms: int, *, limit: int) -> list[Call]:
        """Give the first calls of some shards that nobody has claimed, `due_at_ms` before the instant, in any order."""
        ...

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: Timer | None
    ) -> list[Timer]:
        """Give timers of some shards that fire before the instant, earliest first, from a place in that order on."""
        ...

    async def find_processes(self, lookups: Sequence[ProcessLookup]) -> list[ProcessExecution | None]:
        """Give an execution for each lookup, None where there is none under that process id."""
        ...

    async def find_requests(self, keys: Collection[RequestKey]) -> dict[RequestKey, RequestRecord]:
        """Give those requests that are remembered, also if they have expired."""
        ...

    async def delete_expired_requests(self, before_ms: int, *, limit: int) -> int:
        """Forget requests that expired before the instant, some at a time, and say how many.

        Rows that a transaction is at are left for another time.
        """
        ...

    async def replicate_requests(self, records: Sequence[RequestRecord]) -> None:
        """Take over what another cluster remembers: of two records of one request the one of the larger version stays.

        Of the same version, the one that is there stays. Never fails for what is there (mode Replicated,
        idempotency-and-shards D.11).
        """
        ...

    async def find_due_keys(self, states: Collection[StateKey]) -> set[CallKey]:
        """Give the calls that state executions are due for, now or later."""
        ...

    async def find_closed(self, process_execution_ids: Collection[str]) -> list[ProcessExecution]:
        """Give those executions among some that have closed."""
        ...

    async def find_states(self, process_execution_id: str, *, latest: int) -> list[StateExecution]:
        """Give the open state executions and, open or closed, the `latest` ones, all in order of creation."""
        ...

    async def find_state(
        self, process_execution_id: str, state_id: str, *, number: int | None, wait_for_key: str | None
    ) -> StateExecution | None:
        """Give a state execution by number, or the first with the key."""
        ...

    async def find_history(self, process_execution_id: str, *, after: int, limit: int) -> list[HistoryEvent]:
        """Give up to `limit` events of an execution's history, in order, with larger ids than `after`."""
        ...

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        """Count unclaimed messages by queue."""
        ...

    async def list_processes(self, request: ListRequest, after: tuple[int, str] | None) -> list[ProcessExecution]:
        """Give up to `page_size + 1` executions, newest (start, id) first, from below `after` on (semantics 6.6)."""
        ...

    async def canonical_mapping(self, mapping: TableMapping) -> TableMapping:
        """Check a mapping, and give it with each key value in the one form that the value has (semantics 7.1).

        Executions that are mapped to one row so name it by one key, whatever form their callers wrote it in. The
        table is reflected at its first use and again when the schema has changed; a change of the last moment may be
        missed, and is then found by the write.

        Raises:
            MappingRefused: There is no such table or column, the columns of the key are others, or a value of the key
                is null or does not fit its column.
        """
        ...

    async def close(self) -> None:
        """Finish the transaction in progress and release the database."""


Clock = Callable[[], int]
"""Gives the time in milliseconds since the epoch."""


class Ownership(Protocol):
    """Which shards are this server's at this moment (idempotency-and-shards D.7)."""

    @property
    def num_shards(self) -> int:
        """How many shards there are; fixed when the system tables are made."""
        ...

    @property
    def shard_ids(self) -> Collection[int]:
        """The shards that are this server's."""
        ...

    def range_of(self, shard_id: int) -> int:
        """Give the range id under which the shard is this server's; 0 when it is not.

        A range id grows with each change of the owner, so that of two claims the larger one is the newer.
        """
        ...

    def is_handed_over(self, shard_id: int, claim_range: int, due_at_ms: int) -> bool:
        """Say whether a claim of the shard's former owner stands still: that server is finishing its calls.

        A call that was not due yet when the shard changed hands cannot be among them.
        """
        ...


@dataclass(frozen=True, slots=True)
class SoleOwnership:
    """The ownership of a server that has its database to itself: every shard, for ever."""

    num_shards: int = 1

    @property
    def shard_ids(self) -> Collection[int]:
        """All shards."""
        return range(self.num_shards)

    def range_of(self, shard_id: int) -> int:
        """Give the only range id there is."""
        return 1

    def is_handed_over(self, shard_id: int, claim_range: int, due_at_ms: int) -> bool:
        """There is no other server."""
        return False
