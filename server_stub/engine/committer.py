"""Group commit: many events, one transaction (architecture.md, "One transaction for many executions")."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from server_stub.core.changes import Changes
from server_stub.core.events import Event, add_wait_needs
from server_stub.core.model import call_of
from server_stub.core.ports import (
    Clock,
    ConcurrentStart,
    Loaded,
    Needs,
    Ownership,
    RowReadFailed,
    RowWriteFailed,
    Selection,
    Store,
    StoreUnavailable,
)
from server_stub.core.refusals import Refused

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 2.0
CONCURRENT_START_TRIES = 5


class CommitterFull(Exception):
    """Too many events wait already; this one was not taken."""


@dataclass(slots=True, eq=False)
class _Pending:
    event: Event[Any]
    future: "asyncio.Future[Any]"
    is_patient: bool
    tries: int = 0


_MUST_WAIT = object()
"""The result of an event that is put off to the next transaction."""


class _Batch:
    """The work of one transaction. It is decided anew on each try, from freshly loaded rows."""

    def __init__(self, pending: Sequence[_Pending], clock: Clock, ownership: Ownership) -> None:
        self._pending = pending
        self._clock = clock
        self._ownership = ownership
        self.results: list[Any] = []

    def selection(self) -> Selection:
        selection = Selection()
        for pending in self._pending:
            pending.event.select(selection)
        return selection

    def needs(self, loaded: Loaded) -> Needs:
        needs = Needs()
        for pending in self._pending:
            pending.event.add_needs(loaded, needs)
        add_wait_needs(loaded, needs)
        return needs

    def decide(self, loaded: Loaded) -> Changes:
        changes = Changes()
        now_ms = self._clock()
        self.results = [_apply(pending.event, loaded, changes, now_ms) for pending in self._pending]
        _collect_due_calls(loaded, changes, self._ownership)
        return changes


def _apply(event: Event[Any], loaded: Loaded, changes: Changes, now_ms: int) -> Any:
    try:
        if event.must_wait(loaded, changes):
            return _MUST_WAIT
        return event.apply(loaded, changes, now_ms)
    except Refused as refusal:
        return refusal


def _collect_due_calls(loaded: Loaded, changes: Changes, ownership: Ownership) -> None:
    """Claim the calls of this server's shards, and note the shards whose owners have something new to do."""
    for states in (changes.new_states, changes.changed_states):
        for state in states.values():
            if state.due_at_ms is None:
                continue
            range_id = ownership.range_of(state.shard_id)
            if range_id and not ownership.is_handed_over(state.shard_id, state.claim_range, state.due_at_ms):
                state.claim_range = range_id
            call = call_of(loaded.executions[state.process_execution_id].process, state)
            if call is None:
                continue
            if state.claim_range == range_id != 0:
                changes.due_calls.append(call)
            else:
                changes.foreign_shards.add(state.shard_id)
    for timer in changes.new_timers.values():
        if not ownership.range_of(timer.shard_id):
            changes.foreign_shards.add(timer.shard_id)


@dataclass(slots=True)
class CommitCounters:
    """Totals since the start of the server, for benchmarks and metrics."""

    transactions: int = 0
    events: int = 0
    largest_batch: int = 0


class Committer:
    """Gather events and commit them together, one transaction at a time.

    Events are committed in the order of their arrival, but for those that have to wait for what others write, and those
    that an unavailable database or a failing neighbour has delayed.

    While a transaction runs, the events that arrive wait for the next one: under load a transaction holds many, idle
    it holds one and latency is that of one transaction. Callers are answered, and `on_commit` is told, only after the
    commit.

    Args:
        store: Runs the transactions.
        clock: The time of every transition.
        on_commit: Called in the event loop with what each transaction has changed, before callers are answered.
        ownership: Tells which calls to claim.
        max_batch: The most events of one transaction.
        max_pending: How many events may wait before impatient ones are refused.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        on_commit: Callable[[Changes], None],
        *,
        ownership: Ownership,
        max_batch: int = 256,
        max_pending: int = 10_000,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_commit = on_commit
        self._ownership = ownership
        self._max_batch = max_batch
        self._max_pending = max_pending
        self._queue: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_down = False
        self.counters = CommitCounters()

    def start(self) -> None:
        """Begin to commit. Call it in the running event loop."""
        self._task = asyncio.create_task(self._run(), name="xdb-committer")

    async def close(self) -> None:
        """Commit what has been submitted, then stop. Later events are refused as unavailable."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task

    @property
    def is_running(self) -> bool:
        """Whether events are being committed: between `start` and the end of `close`."""
        return self._task is not None and not self._task.done()

    def submit(self, event: Event[ResultT], *, is_patient: bool = False) -> "asyncio.Future[ResultT]":
        """Hand over an event; the future has its result once it is committed.

        Args:
            event: What happened.
            is_patient: Whether to go on trying while the database is unavailable, as the answers of workers need;
                otherwise the future fails with StoreUnavailable.

        Returns:
            A future with the event's result, or one of: `Refused`, `RowWriteFailed`, `RowReadFailed`,
            `StoreUnavailable`, `CommitterFull`.
        """
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        if self._is_closing:
            future.set_exception(StoreUnavailable("the server is stopping"))
        elif len(self._queue) >= self._max_pending and not is_patient:
            future.set_exception(CommitterFull())
        else:
            self._queue.append(_Pending(event, cast("asyncio.Future[Any]", future), is_patient))
            self._wake.set()
        return future

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._max_batch))]
                # What its caller has given up is not to happen any more.
                if wanted := [pending for pending in batch if not pending.future.cancelled()]:
                    await self._commit(wanted)
            if self._is_closing:
                return

    async def _commit(self, batch: list[_Pending]) -> None:
        work = _Batch(batch, self._clock, self._ownership)
        try:
            changes = await self._store.transact(work)
        except StoreUnavailable as error:
            await self._pause(batch, error)
        except ConcurrentStart as error:
            await self._repeat(batch, error)
        except Exception as error:
            await self._split(batch, error)
        else:
            self._note_up()
            self._count(batch)
            self._hand_on(changes)
            put_off = _answer(batch, work.results)
            self._queue.extendleft(reversed(put_off))

    async def _split(self, batch: list[_Pending], error: Exception) -> None:
        """Find the event that fails by halving the batch, so that it hurts nobody else."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])
            return
        pending = batch[0]
        if not isinstance(error, RowWriteFailed | RowReadFailed):
            logger.error("event failed: %s", type(pending.event).__name__, exc_info=error)
        replacement = pending.event.on_store_error(error)
        if replacement is None:
            _fail(pending, error)
        else:
            await self._commit([_Pending(replacement, pending.future, pending.is_patient)])

    async def _repeat(self, batch: list[_Pending], error: ConcurrentStart) -> None:
        for pending in batch:
            pending.tries += 1
        if all(pending.tries < CONCURRENT_START_TRIES for pending in batch):
            await self._commit(batch)
        else:
            await self._split(batch, error)

    async def _pause(self, batch: list[_Pending], error: StoreUnavailable) -> None:
        """Keep the events that must not be lost, answer the others, and leave the database a moment."""
        if not self._is_down:
            logger.error("database unavailable: %s", error)
            self._is_down = True
        patient = [pending for pending in batch if pending.is_patient and not self._is_closing]
        for pending in batch:
            if pending not in patient:
                _fail(pending, error)
        if not patient:
            return
        for pending in patient:
            pending.tries += 1
        self._queue.extendleft(reversed(patient))
        delay_s = min(FIRST_RETRY_S * 2 ** min(patient[0].tries, 10), LONGEST_RETRY_S)
        await asyncio.sleep(delay_s)

    def _hand_on(self, changes: Changes) -> None:
        try:
            self._on_commit(changes)
        except Exception:
            # What is due is in the database, where the next scan finds it; the other callers must not suffer.
            logger.exception("a commit could not be handed on")

    def _note_up(self) -> None:
        if self._is_down:
            logger.warning("database available again")
            self._is_down = False

    def _count(self, batch: Sequence[_Pending]) -> None:
        self.counters.transactions += 1
        self.counters.events += len(batch)
        self.counters.largest_batch = max(self.counters.largest_batch, len(batch))


def _answer(batch: Sequence[_Pending], results: Sequence[Any]) -> list[_Pending]:
    """Answer the callers, and give the events that have to wait for the next transaction."""
    put_off: list[_Pending] = []
    for pending, result in zip(batch, results, strict=True):
        if result is _MUST_WAIT:
            put_off.append(pending)
        elif isinstance(result, Refused):
            _fail(pending, result)
        elif not pending.future.done():
            pending.future.set_result(result)
    return put_off


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.future.done():
        pending.future.set_exception(error)
