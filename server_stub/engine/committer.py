"""Group commit: many events, one transaction (architecture.md, "One transaction for many executions")."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.events import Event, add_wait_needs
from server_stub.core.history import DEFAULT_RULES, HistoryRules, told_length
from server_stub.core.measures import SECONDS, SIZES, Histogram
from server_stub.core.model import call_of
from server_stub.core.ports import (
    Clock,
    CommitOutcomeUnknown,
    ConcurrentStart,
    Loaded,
    Needs,
    Ownership,
    RowReadFailed,
    RowWriteFailed,
    Selection,
    Store,
    StoreBusy,
    StoreUnavailable,
)
from server_stub.core.refusals import Refused

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 2.0
CONCURRENT_START_TRIES = 5
OVERLAP_AFTER_S = 0.02
"""How long a transaction runs before another may run beside it: longer than one that waits for nobody."""
_LONGEST_LOOK = 4
"""How many batches of waiting events are searched for those that may run beside others."""


class CommitterFull(Exception):
    """Too many events wait already; this one was not taken."""


class Submission(asyncio.Future[ResultT]):
    """The future result of an event. `is_begun` says whether it may have been committed: one that is cancelled before
    that never happens."""

    is_begun = False


@dataclass(slots=True, eq=False)
class _Pending:
    event: Event[Any]
    future: Submission[Any]
    is_patient: bool
    tries: int = 0
    is_apart: bool = False
    """Whether it is committed by itself, because others were in its way: nobody else is to wait with it."""

    def keys(self) -> set[Hashable]:
        """Name the executions that it is about, by one of their names."""
        selection = Selection()
        self.event.select(selection)
        return {*selection.execution_ids, *selection.process_keys}


_MUST_WAIT = object()
"""The result of an event that is put off to the next transaction."""


class _Batch:
    """The work of one transaction. It is decided anew on each try, from freshly loaded rows."""

    def __init__(
        self, pending: Sequence[_Pending], clock: Clock, ownership: Ownership, history_rules: HistoryRules
    ) -> None:
        self._pending = pending
        self._clock = clock
        self._ownership = ownership
        self._history_rules = history_rules
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
        changes = Changes(history_rules=self._history_rules)
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
            if state.claim_range < range_id and not ownership.is_handed_over(
                state.shard_id, state.claim_range, state.due_at_ms
            ):
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


class CommitMeasures:
    """Totals since the start of the server, for metrics.

    Attributes:
        durations_s: How long each transaction took that was committed, waits for locks included.
        batch_events: Events in each of them.
        failures: Transactions that were not, or not certainly, committed, by the class of the error. What they were to
            do is repeated, at once, later or in parts, or its callers are told.
    """

    def __init__(self) -> None:
        self.durations_s = Histogram(SECONDS)
        self.batch_events = Histogram(SIZES)
        self.failures: Counter[str] = Counter()


class Committer:
    """Gather events and commit them together, by few transactions.

    Events are committed in the order of their arrival, but for those that have to wait for what others write, and those
    that an unavailable database or a failing neighbour has delayed.

    While a transaction runs, the events that arrive wait for the next one: under load a transaction holds many, idle
    it holds one and latency is that of one transaction. Another transaction begins beside it only when it takes long,
    as one does that waits for a lock of the application, or when a whole batch waits; not about the same executions by
    the same names: an execution that one event names by its id and another by its process id has the database's lock.
    Callers are answered, and `on_commit` is told, only after the commit.

    Args:
        store: Runs the transactions.
        clock: The time of every transition.
        on_commit: Called in the event loop with what each transaction has changed, before callers are answered.
        ownership: Tells which calls to claim.
        on_uncertain: Called when a transaction may have been kept of which `on_commit` is not told, or is told after a
            later one about the same execution.
        max_batch: The most events of one transaction.
        max_pending: How many events may wait before impatient ones are refused.
        max_transactions: The most transactions at a time.
        history_rules: What the histories of executions hold, and how much.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        on_commit: Callable[[Changes], None],
        *,
        ownership: Ownership,
        on_uncertain: Callable[[], None] = lambda: None,
        max_batch: int = 256,
        max_pending: int = 10_000,
        max_transactions: int = 1,
        history_rules: HistoryRules = DEFAULT_RULES,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_commit = on_commit
        self._ownership = ownership
        self._on_uncertain = on_uncertain
        self._max_batch = max_batch
        self._max_pending = max_pending
        self._max_transactions = max_transactions
        self._history_rules = history_rules
        self._queue: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._running: dict[asyncio.Task[None], set[Hashable]] = {}
        """The transactions that run, and what they are about."""
        self._handed_on: dict[str, int] = {}
        """The versions of executions that `on_commit` was told of while several transactions ran."""
        self._may_overlap_at_s = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        """Rings then; also when the latest transaction has ended, as an earlier one may still run."""
        self._is_closing = False
        self._is_down = False
        self.counters = CommitCounters()
        self.measures = CommitMeasures()

    def start(self) -> None:
        """Begin to commit. Call it in the running event loop."""
        self._task = asyncio.create_task(self._run(), name="xdb-committer")

    async def close(self) -> None:
        """Commit what has been submitted, then stop. Later events are refused as unavailable."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        if self._alarm is not None:
            self._alarm.cancel()

    @property
    def is_running(self) -> bool:
        """Whether events are being committed: between `start` and the end of `close`."""
        return self._task is not None and not self._task.done()

    @property
    def pending(self) -> int:
        """How many events wait for a transaction."""
        return len(self._queue)

    @property
    def is_down(self) -> bool:
        """Whether the database was unavailable to the latest transaction."""
        return self._is_down

    def submit(self, event: Event[ResultT], *, is_patient: bool = False) -> Submission[ResultT]:
        """Hand over an event; the future has its result once it is committed.

        Args:
            event: What happened.
            is_patient: Whether to go on trying while the database is unavailable, as the answers of workers need;
                otherwise the future fails with StoreUnavailable.

        Returns:
            A future with the event's result, or one of: `Refused`, `RowWriteFailed`, `RowReadFailed`,
            `StoreUnavailable`, `CommitterFull`.
        """
        future: Submission[ResultT] = Submission()
        if self._is_closing:
            future.set_exception(StoreUnavailable("the server is stopping"))
        elif len(self._queue) >= self._max_pending and not is_patient:
            future.set_exception(CommitterFull())
        else:
            self._queue.append(_Pending(event, future, is_patient))
            if self._may_begin():
                self._wake.set()
        return future

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._may_begin() and (batch := self._take()):
                    self._begin(group, batch)
                if self._is_closing and not self._queue and not self._running:
                    return

    def _may_begin(self) -> bool:
        if not self._queue or not self._running:
            return bool(self._queue)
        if self._is_down or len(self._running) >= self._max_transactions:
            return False
        is_slow = asyncio.get_running_loop().time() >= self._may_overlap_at_s
        return is_slow or len(self._queue) >= self._max_batch

    def _take(self) -> list[_Pending]:
        """Take the next events that no running transaction is in the way of, in their order."""
        batch: list[_Pending] = []
        held: list[_Pending] = []
        busy = set().union(*self._running.values())
        most = _LONGEST_LOOK * self._max_batch
        while self._queue and len(batch) < self._max_batch and len(batch) + len(held) < most:
            pending = self._queue.popleft()
            if pending.future.done():  # what its caller has given up, or waited for too long, is not to happen any more
                continue
            if pending.is_apart and not batch and busy.isdisjoint(pending.keys()):
                batch.append(pending)
                break
            if pending.is_apart or (busy and not busy.isdisjoint(pending.keys())):
                busy |= pending.keys()
                held.append(pending)
            else:
                batch.append(pending)
        self._queue.extendleft(reversed(held))
        return batch

    def _begin(self, group: asyncio.TaskGroup, batch: list[_Pending]) -> None:
        task = group.create_task(self._commit(batch))
        self._running[task] = set()
        if self._max_transactions > 1:
            self._running[task].update(*(pending.keys() for pending in batch))
            loop = asyncio.get_running_loop()
            self._may_overlap_at_s = loop.time() + OVERLAP_AFTER_S
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = loop.call_later(OVERLAP_AFTER_S, self._wake.set)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._wake.set()

    async def _commit(self, batch: list[_Pending]) -> None:
        # What is committed again after a failure may have been given up meanwhile.
        batch = [pending for pending in batch if not pending.future.done()]
        if not batch:
            return
        for pending in batch:
            pending.future.is_begun = True
        work = _Batch(batch, self._clock, self._ownership, self._history_rules)
        try:
            changes = await self._transact(work)
        except CommitOutcomeUnknown as error:
            await self._doubt(batch, error)
        except Exception as error:
            for pending in batch:
                pending.future.is_begun = False
            await self._go_on(batch, error)
        else:
            self._note_up()
            self._count(batch)
            self._hand_on(changes)
            put_off = _answer(batch, work.results)
            self._queue.extendleft(reversed(put_off))

    async def _go_on(self, batch: list[_Pending], error: Exception) -> None:
        """Deal with a transaction of which nothing was kept."""
        match error:
            case StoreBusy():
                await self._yield_to_others(batch, error)
            case StoreUnavailable():
                await self._pause(batch, error)
            case ConcurrentStart():
                await self._repeat(batch, error)
            case _:
                await self._split(batch, error)

    async def _transact(self, work: _Batch) -> Changes:
        began_s = time.perf_counter()
        try:
            changes = await self._store.transact(work)
        except Exception as error:
            self.measures.failures[type(error).__name__] += 1
            raise
        self.measures.durations_s.observe(time.perf_counter() - began_s)
        self.measures.batch_events.observe(len(work.results))
        return changes

    async def _split(self, batch: list[_Pending], error: Exception) -> None:
        """Find the event that fails by halving the batch, so that it hurts nobody else."""
        if len(batch) > 1 and _is_lock_timeout(error):
            self._set_apart(batch)
            return
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

    async def _yield_to_others(self, batch: list[_Pending], error: StoreBusy) -> None:
        """Commit one by one what others were in the way of, so that those wait alone whose rows are held."""
        self._note_up()
        if len(batch) > 1:
            self._set_apart(batch)
        else:
            batch[0].is_apart = True
            await self._keep_patient(batch, error)

    def _set_apart(self, batch: list[_Pending]) -> None:
        for pending in batch:
            pending.is_apart = True
        self._queue.extendleft(reversed(batch))

    async def _doubt(self, batch: list[_Pending], error: CommitOutcomeUnknown) -> None:
        """Commit again what may be committed twice, and let the others' callers know that they cannot know."""
        self._note_down(error)
        self._on_uncertain()
        for pending in batch:
            if not pending.event.is_repeatable:
                _fail(pending, error)
        await self._keep_patient([pending for pending in batch if pending.event.is_repeatable], error)

    async def _pause(self, batch: list[_Pending], error: StoreUnavailable) -> None:
        """Keep the events that must not be lost, answer the others, and leave the database a moment."""
        self._note_down(error)
        await self._keep_patient(batch, error)

    async def _keep_patient(self, batch: list[_Pending], error: StoreUnavailable) -> None:
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
        for process in changes.long_histories:
            logger.warning("long history: %s", told_length(process))
        if self._is_late(changes):
            self._on_uncertain()

    def _is_late(self, changes: Changes) -> bool:
        """Say whether something later was handed on of an execution: two commits may be heard of in another order."""
        versions = {id_: process.version for id_, process in changes.changed_processes.items()}
        is_late = any(self._handed_on.get(id_, 0) > version for id_, version in versions.items())
        if len(self._running) > 1:
            self._handed_on |= versions
        else:
            self._handed_on.clear()
        return is_late

    def _note_down(self, error: StoreUnavailable) -> None:
        if not self._is_down:
            logger.error("database unavailable: %s", error)
            self._is_down = True

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


def _is_lock_timeout(error: Exception) -> bool:
    return isinstance(error, RowReadFailed | RowWriteFailed) and error.error.kind == "LOCK_TIMEOUT"


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.future.done():
        pending.future.set_exception(error)
