"""Local delivery: makes prompt what the database says is due (architecture.md, "Delivery"; semantics 9.2).

After a commit, what it made due goes straight on. What is due within the look-ahead window waits in memory. All else,
and all that memory has missed, is found by scans of the whole of what is due before the end of the window; a scan
starts from nothing, so that a row that was committed late is found too.

A server finds what is due in its own shards. A call that it has not claimed, since another server made it due or owned
the shard before, is claimed by a commit first, which then hands it over. What other servers have made due, the poller
finds sooner than the scans.

Memory holds a bounded number of calls. What it has no room for, from a scan or from a commit, stays in the database and
is scanned for once there is room.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from server_stub.core.changes import Changes
from server_stub.core.measures import SECONDS, Histogram
from server_stub.core.model import Call, CallKey, StateKey, Timer, TimerKey
from server_stub.core.ports import Clock, Ownership, Store
from server_stub.delivery.plan import Plan

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.25
_LONGEST_RETRY_S = 5.0
"""Soon after the database is back, all that has become due meanwhile is found."""
_LEAST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """How what is due is found.

    Attributes:
        look_ahead: What is due within it is kept in memory. Longer than `rescan_interval`, or timers fire late.
        rescan_interval: How often the database is searched.
        notify: Whether commits are listened to. Without it scans alone have to find everything; for tests.
        page_size: How many rows a scan reads at a time.
        max_planned_calls: How many calls that are due within the window are kept in memory.
    """

    look_ahead: timedelta = timedelta(seconds=60)
    rescan_interval: timedelta = timedelta(seconds=30)
    notify: bool = True
    page_size: int = 1_000
    max_planned_calls: int = 2_000

    def __post_init__(self) -> None:
        if self.look_ahead <= self.rescan_interval:
            raise ValueError(
                f"look_ahead ({self.look_ahead}) must be longer than rescan_interval ({self.rescan_interval}); "
                "otherwise what becomes due between two scans is late"
            )


class CallSink(Protocol):
    """Makes calls that are due: the dispatcher."""

    def dispatch(self, calls: Iterable[Call]) -> Sequence[Call]:
        """Make the calls, except those that are being made already; give back those that there is no room for."""
        ...

    async def wait_for_room(self) -> None:
        """Wait until there is room for many."""
        ...


@dataclass(frozen=True, slots=True)
class _Fire:
    """The latest fire of a timer: for which instant, and when by the loop's clock."""

    fire_at_ms: int
    fired_at_s: float


class Delivery:
    """Hands over calls and timers when they are due.

    Whether something is due is judged by `clock`; how long to sleep until then by the event loop's clock. So a wall
    clock that is set back makes nothing early, and one that is set forward is noticed by the next scan.

    Args:
        store: Searched for what is due.
        clock: Wall time in milliseconds.
        sink: Takes calls that are due.
        fire: Takes timers that are due. A timer whose row is still there a scan interval later is fired again.
        claim: Begins at once to claim calls that were found, or to give back those of lost shards. What it gives is
            done when that is committed, and the commits have handed over what was claimed.
        ownership: The shards to look after.
        options: Intervals.
        has_peers: Whether other servers may have changed executions without this one hearing of it. If so, of the
            planned calls that become due those are made that the database still has.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        sink: CallSink,
        fire: Callable[[Sequence[TimerKey]], None],
        claim: Callable[[Sequence[CallKey]], Awaitable[object]],
        ownership: Ownership,
        options: DeliveryOptions | None = None,
        *,
        has_peers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sink = sink
        self._fire = fire
        self._claim = claim
        self._ownership = ownership
        self._options = options or DeliveryOptions()
        self._has_peers = has_peers
        self._look_ahead_ms = self._options.look_ahead // timedelta(milliseconds=1)
        self._rescan_interval_s = self._options.rescan_interval.total_seconds()
        self._plan = Plan(self._options.max_planned_calls)
        self._unchecked: dict[StateKey, Call] = {}
        """Planned calls that are due, and may not be any more for what other servers have done."""
        self._check: asyncio.Task[None] | None = None
        self.timer_lag_s = Histogram(SECONDS)
        """How late timers were when they were handed over."""
        self._fires: dict[TimerKey, _Fire] = {}
        """Timers that were fired and whose rows are not known to be gone."""
        self._is_closed = False
        self._is_scanning = False
        self._changed_during_scan: set[Hashable] = set()
        """States, timers and executions that commits have dealt with since the scan began."""
        self._is_scan_due = False
        """Whether shards were gained that the scan in progress, if there is one, may not have seen."""
        self._wait: asyncio.Timeout | None = None
        """What to end when shards are gained."""
        self._left_behind = asyncio.Event()
        """Set while there are due calls that memory had no room for."""
        self._declined_at_ms: dict[int, int] = {}
        """By shard, when the oldest of those was due that no scan has come across since."""
        self._without_room: Sequence[Call] = ()
        """The calls that the latest scan came across last and that there was no room for; it knows of none before."""
        self._behind_at_ms: int | None = None
        """When the first of the calls is due that the plan had no room for."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at_ms = 0
        self._task: asyncio.Task[None] | None = None
        self.is_healthy = True
        """Whether the latest scan succeeded."""

    @property
    def shard_ids(self) -> Collection[int]:
        """The shards that are looked after at the moment."""
        return self._ownership.shard_ids

    @property
    def planned_calls(self) -> int:
        """How many calls wait in memory until they are due."""
        return self._plan.call_count

    def count_planned_timers(self) -> int:
        """Count the timers that wait in memory until they are due, execution by execution."""
        return self._plan.count_timers()

    def oldest_left_behind_ms(self) -> dict[int, int]:
        """Give, by shard, when the oldest of the calls was due that are left in the database for want of room.

        A shard whose calls are all due later than those that a scan waits with may be missing.
        """
        oldest = dict(self._declined_at_ms)
        _note_oldest(self._without_room, oldest)
        return oldest

    def start(self) -> None:
        """Begin to scan, at once and then at intervals. Call it in the running event loop."""
        self._task = asyncio.create_task(self.run(), name="xdb-delivery")

    async def close(self) -> None:
        """Hand over nothing more, whatever is committed."""
        self._is_closed = True
        for task in (self._task, self._check):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def run(self) -> None:
        """Scan until cancelled. Trouble with the database is outlived."""
        retry_s = 0.0
        while True:
            try:
                await self._scan()
            except Exception as error:
                retry_s = min(max(2 * retry_s, _FIRST_RETRY_S), _LONGEST_RETRY_S, self._rescan_interval_s)
                if self.is_healthy:
                    logger.exception("cannot search for what is due, trying again", extra={"error": str(error)})
                self.is_healthy = False
                await asyncio.sleep(retry_s)
                continue
            if not self.is_healthy:
                logger.info("searching for what is due works again")
            self.is_healthy = True
            retry_s = 0.0
            await self._pause()

    async def _pause(self) -> None:
        """Sleep until the next scan: for the interval, or until there is room for calls that were left behind."""
        with suppress(TimeoutError):
            async with self._waiting(asyncio.get_running_loop().time() + self._rescan_interval_s):
                await self._left_behind.wait()
                await self._sink.wait_for_room()
                await asyncio.sleep(_LEAST_PAUSE_S)  # one scan for all that many commits leave behind

    @asynccontextmanager
    async def _waiting(self, until_s: float) -> AsyncIterator[None]:
        """Bound a wait by an instant of the loop's clock, and by the moment at which shards are gained.

        Raises:
            TimeoutError: It is over.
        """
        async with asyncio.timeout_at(0.0 if self._is_scan_due else until_s) as self._wait:
            try:
                yield
            finally:
                self._wait = None

    def shards_gained(self, shard_ids: Collection[int]) -> None:
        """Scan at once: these shards are this server's now, or a former owner has finished its calls there."""
        self._is_scan_due = True
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(0.0)

    def shards_lost(self, shard_ids: Collection[int]) -> None:
        """Forget what is planned for these shards, and have the calls given back that were claimed for them."""
        lost = self._plan.remove_shards(shard_ids)
        lost += [call for call in self._unchecked.values() if call.shard_id in shard_ids]
        for call in lost:
            self._unchecked.pop(call.key.state, None)
        if lost and not self._is_closed:
            self._claim([call.key for call in lost])

    def look_again(self) -> None:
        """Scan soon: there may be something due that no commit has told of."""
        self._left_behind.set()

    def committed(self, changes: Changes) -> None:
        """Take note of a commit; called in the event loop right after it."""
        if not self._options.notify or self._is_closed:
            return
        self._drop_outdated(changes)
        calls = self._still_mine(changes.due_calls)
        self._leave_behind(self._hand_over(calls, self._mine(changes.new_timers.values())))

    def processes_closed(self, process_execution_ids: Collection[str]) -> None:
        """Forget what is planned for executions that have closed, here or elsewhere."""
        for process_execution_id in process_execution_ids:
            self._plan.remove_process(process_execution_id)
        for state_key in [key for key in self._unchecked if key.process_execution_id in process_execution_ids]:
            del self._unchecked[state_key]
        if self._is_scanning:
            self._changed_during_scan.update(process_execution_ids)

    def calls_withdrawn(self, process_execution_ids: Collection[str]) -> None:
        """Forget the calls that are planned for executions: some are not to be made. A scan finds the others again."""
        for process_execution_id in process_execution_ids:
            self._plan.remove_calls(process_execution_id)
        for state_key in [key for key in self._unchecked if key.process_execution_id in process_execution_ids]:
            del self._unchecked[state_key]
        if self._is_scanning:
            self._changed_during_scan.update(process_execution_ids)
        self.look_again()

    def timers_found(self, timers: Iterable[Timer]) -> None:
        """Take note of timers that others have made, or that are known already."""
        if not self._is_closed:
            self._hand_over((), [timer for timer in self._mine(timers) if self._is_news(timer)])

    def _still_mine(self, calls: Sequence[Call]) -> Sequence[Call]:
        """Give the calls whose claims hold; have the others given back, whose shards were lost during the commit."""
        lost = [call.key for call in calls if call.key.claim_range != self._ownership.range_of(call.shard_id)]
        if not lost:
            return calls
        self._claim(lost)
        return [call for call in calls if call.key not in lost]

    def _mine(self, timers: Iterable[Timer]) -> Iterable[Timer]:
        return (timer for timer in timers if self._ownership.range_of(timer.shard_id))

    def _drop_outdated(self, changes: Changes) -> None:
        for state_key in changes.changed_states:
            self._plan.remove(state_key)
            self._unchecked.pop(state_key, None)
        for timer_key in (*changes.deleted_timers, *changes.new_timers):
            self._plan.remove(timer_key)
            self._fires.pop(timer_key, None)
        self.processes_closed(changes.closed_processes.keys())
        if self._is_scanning:
            self._changed_during_scan.update(changes.changed_states, changes.deleted_timers, changes.new_timers)

    def _hand_over(self, calls: Iterable[Call], timers: Iterable[Timer]) -> Sequence[Call]:
        """Pass on what is due now, plan what is due within the window, and leave the rest to the scans.

        Returns:
            Calls that are due now and that there is no room for.
        """
        now_ms = self._clock()
        end_ms = now_ms + self._look_ahead_ms
        due_calls: list[Call] = []
        due_timers: list[Timer] = []
        for call in calls:
            if call.due_at_ms <= now_ms:
                due_calls.append(call)
            elif call.due_at_ms < end_ms:
                self._plan_call(call)
        for timer in timers:
            if timer.fire_at_ms <= now_ms:
                due_timers.append(timer)
            elif timer.fire_at_ms < end_ms:
                self._plan.add_timer(timer)
        self._set_alarm(now_ms)
        return self._pass_on(due_calls, due_timers, now_ms)

    def _plan_call(self, call: Call) -> None:
        """Plan a call, or else the scan that will find it when it is due."""
        if not self._plan.add_call(call) and (self._behind_at_ms is None or call.due_at_ms < self._behind_at_ms):
            self._behind_at_ms = call.due_at_ms

    def _pass_on(self, calls: Sequence[Call], timers: Sequence[Timer], now_ms: int) -> Sequence[Call]:
        now_s = asyncio.get_running_loop().time()
        for timer in timers:
            self._fires[timer.key] = _Fire(timer.fire_at_ms, now_s)
            self.timer_lag_s.observe((now_ms - timer.fire_at_ms) / 1_000)
        declined = self._sink.dispatch(calls) if calls else ()
        if timers:
            self._fire([timer.key for timer in timers])
        return declined

    def _leave_behind(self, calls: Sequence[Call]) -> None:
        """Leave calls that there is no room for to a scan."""
        if calls:
            _note_oldest(calls, self._declined_at_ms)
            self._left_behind.set()

    def _set_alarm(self, now_ms: int) -> None:
        """Wake when the earliest of the plan is due, or of what it had no room for."""
        instants = [at_ms for at_ms in (self._plan.next_due_at_ms, self._behind_at_ms) if at_ms is not None]
        due_at_ms = min(instants, default=None)
        if due_at_ms is None or (self._alarm is not None and self._alarm_at_ms <= due_at_ms):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm_at_ms = due_at_ms
        self._alarm = loop.call_at(loop.time() + (due_at_ms - now_ms) / 1_000, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        now_ms = self._clock()
        due = self._plan.take_due(now_ms)
        if self._behind_at_ms is not None and self._behind_at_ms <= now_ms:
            self._behind_at_ms = None
            self._left_behind.set()
        self._set_alarm(now_ms)
        calls = due.calls
        if calls and self._has_peers():
            self._begin_check(calls)
            calls = ()
        self._leave_behind(self._pass_on(calls, due.timers, now_ms))

    def _begin_check(self, calls: Sequence[Call]) -> None:
        self._unchecked.update((call.key.state, call) for call in calls)
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._check_planned(), name="xdb-delivery-check")

    async def _check_planned(self) -> None:
        """Make the planned calls that are due, but for those that other servers have called off meanwhile.

        They have closed the execution, paused it or completed the state, or have something else called in its stead.
        One statement asks for all that have become due while the one before was answered. What cannot be checked is
        left to a scan, which reads it anew. Source: idempotency-and-shards D.6, "Before use the handler re-checks".
        """
        while calls := list(self._unchecked.values()):
            try:
                keys = await self._store.find_due_keys({call.key.state for call in calls})
            except Exception as error:
                if self.is_healthy:
                    logger.warning("cannot see whether planned calls are still due", extra={"error": str(error)})
                self._unchecked.clear()
                self._left_behind.set()
                return
            checked = [call for call in calls if self._unchecked.get(call.key.state) is call]
            for call in checked:
                del self._unchecked[call.key.state]
            due = [call for call in checked if call.key in keys]
            self._leave_behind(self._pass_on(due, (), self._clock()))

    async def _scan(self) -> None:
        """Find what is due before the end of the window, as far as there is room for it."""
        end_ms = self._clock() + self._look_ahead_ms
        until_s = asyncio.get_running_loop().time() + self._rescan_interval_s
        self._left_behind.clear()
        self._behind_at_ms = None
        self._is_scan_due = False
        if not self._ownership.shard_ids:
            return
        self._plan.begin_round()
        self._is_scanning = True
        try:
            await self._scan_timers(end_ms)
            is_complete = await self._scan_calls(end_ms, until_s)
        finally:
            self._is_scanning = False
            self._changed_during_scan.clear()
        if is_complete:
            self._plan.end_round()
        self._forget_old_fires()
        self._reset_alarm()

    async def _scan_calls(self, end_ms: int, until_s: float) -> bool:
        """Hand over due calls, earliest first, and go no further when memory is full; say whether that were all."""
        limit = self._options.page_size
        after = None
        while True:
            page = await self._store.find_due_calls(self._ownership.shard_ids, end_ms, limit=limit, after=after)
            if after is None:
                self._declined_at_ms.clear()
            if not await self._work_off(page, until_s):
                self._left_behind.set()
                return False
            if page and self._behind_at_ms is not None and self._behind_at_ms <= page[-1].due_at_ms:
                return False  # what follows is due later than the next scan, as the plan has no room for it
            if len(page) < limit:
                return True
            after = (page[-1].due_at_ms, page[-1].key)

    async def _work_off(self, page: Sequence[Call], until_s: float) -> bool:
        """Hand over the calls of a page and claim those to be claimed, as there is room; say whether that were all.

        It waits for room at most until an instant of the loop's clock. After that a new scan begins, because timers and
        what commits have left behind cannot wait any longer. A shard that is taken over with a long backlog is claimed
        as it is worked off, so that what is left when it is lost again costs its next owner nothing.
        """
        claimed, unclaimed = self._sort_out(page)
        while (claimed := self._hand_over_unchanged(claimed)) or unclaimed:
            self._without_room = (*claimed, *unclaimed)
            if not await self._wait_for_room(until_s):
                return False
            if not claimed:
                await self._claim([call.key for call in unclaimed])
                unclaimed = ()
        self._without_room = ()
        return True

    def _sort_out(self, page: Sequence[Call]) -> tuple[Sequence[Call], Sequence[Call]]:
        """Give the calls that are claimed, and those to be claimed: not what a former owner still makes."""
        claimed: list[Call] = []
        unclaimed: list[Call] = []
        for call in page:
            range_id = self._ownership.range_of(call.shard_id)
            if call.key.claim_range > range_id or not range_id:
                continue  # the shard was lost while the page was read, or before without this server knowing it yet
            if call.key.claim_range == range_id:
                claimed.append(call)
            elif not self._ownership.is_handed_over(call.shard_id, call.key.claim_range, call.due_at_ms):
                unclaimed.append(call)
        return claimed, unclaimed

    def _hand_over_unchanged(self, calls: Sequence[Call]) -> Sequence[Call]:
        return self._hand_over([call for call in calls if not self._has_changed(call.key.state)], ())

    async def _wait_for_room(self, until_s: float) -> bool:
        try:
            async with self._waiting(until_s):
                await self._sink.wait_for_room()
        except TimeoutError:
            return False
        return True

    async def _scan_timers(self, end_ms: int) -> None:
        limit = self._options.page_size
        after = None
        while True:
            page = await self._store.find_due_timers(self._ownership.shard_ids, end_ms, limit=limit, after=after)
            self._hand_over((), [timer for timer in self._mine(page) if self._is_news(timer)])
            if len(page) < limit:
                return
            after = page[-1]

    def _has_changed(self, key: StateKey | TimerKey) -> bool:
        """Whether a commit has dealt with it since the scan began: what was read is then old."""
        changed = self._changed_during_scan
        return key in changed or key.process_execution_id in changed

    def _is_news(self, timer: Timer) -> bool:
        """Whether there is something to do about a timer; it was not fired if another server has moved it since."""
        fire = self._fires.get(timer.key)
        is_being_fired = (
            fire is not None and fire.fire_at_ms == timer.fire_at_ms and fire.fired_at_s > self._oldest_fire_s()
        )
        return not is_being_fired and not self._has_changed(timer.key)

    def _oldest_fire_s(self) -> float:
        return asyncio.get_running_loop().time() - self._rescan_interval_s

    def _forget_old_fires(self) -> None:
        oldest_s = self._oldest_fire_s()
        self._fires = {key: fire for key, fire in self._fires.items() if fire.fired_at_s > oldest_s}

    def _reset_alarm(self) -> None:
        """Plan the next wake anew: the wall clock may have been set since."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._set_alarm(self._clock())


def _note_oldest(calls: Iterable[Call], oldest_ms: dict[int, int]) -> None:
    for call in calls:
        oldest_ms[call.shard_id] = min(call.due_at_ms, oldest_ms.get(call.shard_id, call.due_at_ms))
