"""What is due is handed over in time, from commits and from scans alone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import cast

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import Call, CallKey, StateKey, Timer, TimerKey
from server_stub.core.ports import Ownership, SoleOwnership, Store, StoreUnavailable
from server_stub.delivery.delivery import Delivery, DeliveryOptions
from tests.support.dispatching import make_call, make_process
from tests.support.virtual_time import EPOCH_MS, VirtualClock

DEFAULT = DeliveryOptions()
SCANS_ONLY = DeliveryOptions(look_ahead=timedelta(seconds=2), rescan_interval=timedelta(milliseconds=500), notify=False)
DAY_MS = 86_400_000


@dataclass
class DueStore:
    """The part of a store that delivery uses: what is due, in memory."""

    calls: dict[CallKey, Call] = field(default_factory=dict)
    timers: dict[TimerKey, Timer] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    page_sizes: list[int] = field(default_factory=list)
    before_answer: asyncio.Event | None = None
    """What an answer that has been read waits for before it is given."""
    lookups: list[set[str]] = field(default_factory=list)
    """The executions of which was asked whether their calls are due, by statement."""

    async def find_due_keys(self, states: Collection[StateKey]) -> set[CallKey]:
        self.lookups.append({state.process_execution_id for state in states})
        if self.errors:
            raise self.errors.pop(0)
        found = {key for key in self.calls if key.state in states}
        if self.before_answer is not None:
            await self.before_answer.wait()
        return found

    async def find_due_calls(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: tuple[int, CallKey] | None
    ) -> list[Call]:
        if self.errors:
            raise self.errors.pop(0)
        rows = sorted(
            (call.due_at_ms, key._replace(claim_range=0), call)
            for key, call in self.calls.items()
            if call.due_at_ms < before_ms and call.shard_id in shard_ids
        )
        start = None if after is None else (after[0], after[1]._replace(claim_range=0))
        found = [call for due_at_ms, key, call in rows if start is None or (due_at_ms, key) > start][:limit]
        self.page_sizes.append(len(found))
        if self.before_answer is not None:
            await self.before_answer.wait()
        return found

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: Timer | None
    ) -> list[Timer]:
        rows = sorted(
            (timer.fire_at_ms, key, timer)
            for key, timer in self.timers.items()
            if timer.fire_at_ms < before_ms and timer.shard_id in shard_ids
        )
        start = None if after is None else (after.fire_at_ms, after.key)
        found = [timer for fire_at_ms, key, timer in rows if start is None or (fire_at_ms, key) > start][:limit]
        if self.before_answer is not None:
            await self.before_answer.wait()
        return found


@dataclass
class World:
    """Delivery, its database, and what it handed over: (elapsed ms, key) each."""

    store: DueStore
    clock: VirtualClock
    is_applying: bool = True
    """Whether fired timers are committed at once, as the engine does."""
    dispatched: list[tuple[int, CallKey]] = field(default_factory=list)
    fired: list[tuple[int, TimerKey]] = field(default_factory=list)
    fire_batches: list[int] = field(default_factory=list)
    on_dispatch: Callable[[Call], None] = lambda call: None
    ownership: Ownership = field(default_factory=SoleOwnership)
    room: int = 1_000_000
    """How many more calls are taken."""
    has_peers: bool = False
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)
    delivery: Delivery = field(init=False)

    def begin(self, options: DeliveryOptions) -> None:
        self.delivery = Delivery(
            cast(Store, self.store),
            self.clock,
            self,
            self._fire,
            self._claim,
            self.ownership,
            options,
            has_peers=lambda: self.has_peers,
        )

    def commit_timers(self, *timers: Timer) -> None:
        self.store.timers.update({timer.key: timer for timer in timers})
        self.delivery.committed(Changes(new_timers={timer.key: timer for timer in timers}))

    def commit_calls(self, *calls: Call) -> None:
        self.store.calls.update({call.key: call for call in calls})
        self.delivery.committed(Changes(due_calls=list(calls)))

    def dispatch(self, calls: Iterable[Call]) -> Sequence[Call]:
        """Take calls while there is room; each is done at once, but its place is free only once `make_room` says so."""
        declined: list[Call] = []
        for call in calls:
            if self.room == 0:
                declined.append(call)
                continue
            self.room -= 1
            self.on_dispatch(call)
            self.dispatched.append((_elapsed_ms(), call.key))
            self.store.calls.pop(call.key, None)
        return declined

    async def wait_for_room(self) -> None:
        while self.room == 0:
            self._has_room.clear()
            await self._has_room.wait()

    def make_room(self, room: int) -> None:
        self.room = room
        self._has_room.set()

    def _claim(self, keys: Sequence[CallKey]) -> asyncio.Future[None]:
        """Claim calls as a commit does, which then hands them over; give back those of other shards."""
        for key in keys:
            call = self.store.calls.pop(key)
            range_id = self.ownership.range_of(call.shard_id)
            call = replace(call, key=key._replace(claim_range=range_id))
            self.store.calls[call.key] = call
            if range_id:
                self.delivery.committed(Changes(due_calls=[call]))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def _fire(self, keys: Sequence[TimerKey]) -> None:
        self.fire_batches.append(len(keys))
        self.fired += [(_elapsed_ms(), key) for key in keys]
        if self.is_applying:
            for key in keys:
                self.store.timers.pop(key, None)
            self.delivery.committed(Changes(deleted_timers=set(keys)))


def _elapsed_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1_000)


@asynccontextmanager
async def delivering(
    options: DeliveryOptions = DEFAULT, *, store: DueStore | None = None, ownership: Ownership | None = None
) -> AsyncIterator[World]:
    world = World(store or DueStore(), VirtualClock(), ownership=ownership or SoleOwnership())
    world.begin(options)
    world.delivery.start()
    await asyncio.sleep(0)
    try:
        yield world
    finally:
        await world.delivery.close()


def make_timer(delay_ms: int, number: int = 1) -> Timer:
    return Timer(TimerKey(f"e-{number}", "S", 1, 0), EPOCH_MS + delay_ms)


async def test_due_call_goes_on_in_the_turn_of_its_commit() -> None:
    async with delivering() as world:
        world.commit_calls(make_call(1))

        assert world.dispatched == [(0, make_call(1).key)]


@pytest.mark.parametrize("delay_ms", [0, 1, 100, 250, 59_999, 60_000, 60_001, 90_000, 3_600_000])
async def test_timer_fires_at_its_instant(delay_ms: int) -> None:
    timer = make_timer(delay_ms)

    async with delivering() as world:
        world.commit_timers(timer)
        await asyncio.sleep(delay_ms / 1_000)
        await asyncio.sleep(0)

    assert world.fired == [(delay_ms, timer.key)]


@pytest.mark.parametrize("delay_ms", [2**31 - 1, 2**31, 25 * DAY_MS, 400 * DAY_MS])
async def test_timer_beyond_what_a_32_bit_number_holds_fires_at_its_instant(delay_ms: int) -> None:
    hourly = DeliveryOptions(look_ahead=timedelta(hours=2), rescan_interval=timedelta(hours=1))

    async with delivering(hourly) as world:
        world.commit_timers(make_timer(delay_ms))
        await asyncio.sleep(delay_ms / 1_000 + 1)

    assert world.fired == [(delay_ms, make_timer(0).key)]


@pytest.mark.parametrize("delay_ms", [0, 100, 250, 60_000])
async def test_backoff_is_not_stretched(delay_ms: int) -> None:
    call = make_call(1, due_at_ms=EPOCH_MS + delay_ms)

    async with delivering() as world:
        world.commit_calls(call)
        await asyncio.sleep(delay_ms / 1_000)
        await asyncio.sleep(0)

    assert world.dispatched == [(delay_ms, call.key)]


async def test_earlier_timer_wakes_the_sleeper() -> None:
    late, early = make_timer(10_000, 1), make_timer(1_000, 2)

    async with delivering() as world:
        world.commit_timers(late)
        world.commit_timers(early)
        await asyncio.sleep(20)

    assert world.fired == [(1_000, early.key), (10_000, late.key)]


async def test_timers_of_one_instant_are_fired_together() -> None:
    async with delivering() as world:
        world.commit_timers(*(make_timer(5_000, number) for number in range(50)))
        await asyncio.sleep(6)

    assert world.fire_batches == [50]


async def test_deleted_timer_does_not_fire() -> None:
    kept, deleted = make_timer(5_000, 1), make_timer(5_000, 2)

    async with delivering() as world:
        world.commit_timers(kept, deleted)
        del world.store.timers[deleted.key]
        world.delivery.committed(Changes(deleted_timers={deleted.key}))
        await asyncio.sleep(10)

    assert world.fired == [(5_000, kept.key)]


@pytest.mark.parametrize("new_delay_ms", [2_000, 8_000, 100_000])
async def test_moved_timer_fires_once_at_its_new_instant(new_delay_ms: int) -> None:
    async with delivering() as world:
        world.commit_timers(make_timer(5_000))
        world.commit_timers(make_timer(new_delay_ms))
        await asyncio.sleep(200)

    assert world.fired == [(new_delay_ms, make_timer(0).key)]


async def test_nothing_of_a_closed_execution_is_handed_over() -> None:
    call, timer = make_call(1, due_at_ms=EPOCH_MS + 5_000), make_timer(5_000, 1)

    async with delivering() as world:
        world.commit_calls(call)
        world.commit_timers(timer)
        world.store.calls.clear()
        world.store.timers.clear()
        world.delivery.committed(Changes(closed_processes={"e-1": make_process(1)}))
        await asyncio.sleep(10)

    assert world.dispatched == []
    assert world.fired == []


async def test_backoff_of_a_superseded_attempt_is_dropped() -> None:
    first, second = make_call(1, due_at_ms=EPOCH_MS + 5_000), make_call(1, attempt=2, due_at_ms=EPOCH_MS + 7_000)

    async with delivering() as world:
        world.commit_calls(first)
        del world.store.calls[first.key]
        world.store.calls[second.key] = second
        changed = Changes(due_calls=[second])
        changed.changed_states[first.key.state] = cast(object, None)  # type: ignore[assignment]  # only its key matters
        world.delivery.committed(changed)
        await asyncio.sleep(10)

    assert world.dispatched == [(7_000, second.key)]


async def test_planned_call_is_made_with_the_worker_url_of_the_latest_commit() -> None:
    urls: list[str] = []
    old = make_call(1, due_at_ms=EPOCH_MS + 5_000)
    new = replace(old, worker_url="http://moved")

    async with delivering() as world:
        world.on_dispatch = lambda call: urls.append(call.worker_url)
        world.commit_calls(old)
        world.commit_calls(new)
        await asyncio.sleep(10)

    assert urls == ["http://moved"]


async def test_start_finds_what_is_due_and_what_will_be() -> None:
    store = DueStore()
    calls = [make_call(1, due_at_ms=EPOCH_MS - DAY_MS), make_call(2, due_at_ms=EPOCH_MS + 3_000)]
    timers = [make_timer(-DAY_MS, 1), make_timer(70_000, 2)]
    store.calls = {call.key: call for call in calls}
    store.timers = {timer.key: timer for timer in timers}

    async with delivering(store=store) as world:
        await asyncio.sleep(100)

    assert world.dispatched == [(0, calls[0].key), (3_000, calls[1].key)]
    assert world.fired == [(0, timers[0].key), (70_000, timers[1].key)]


async def test_scans_read_all_pages() -> None:
    store = DueStore(calls={call.key: call for call in (make_call(number) for number in range(25))})
    timers = [make_timer(1_000, number) for number in range(20)]
    store.timers = {timer.key: timer for timer in timers}

    async with delivering(DeliveryOptions(page_size=10), store=store) as world:
        await asyncio.sleep(2)

    assert store.page_sizes == [10, 10, 5]
    assert {key for _, key in world.dispatched} == {make_call(number).key for number in range(25)}
    assert sorted(key for _, key in world.fired) == sorted(timer.key for timer in timers)


async def test_row_that_was_committed_late_is_found_by_the_next_scan() -> None:
    async with delivering() as world:
        await asyncio.sleep(10)
        world.store.calls[make_call(1).key] = make_call(1, due_at_ms=EPOCH_MS - 1_000)
        await asyncio.sleep(30)

    assert world.dispatched == [(30_000, make_call(1).key)]


@pytest.mark.parametrize("delay_ms", [100, 1_999, 2_000, 2_001, 10_000, 3_600_000])
async def test_scans_alone_fire_at_the_instant_or_within_their_interval(delay_ms: int) -> None:
    timer = make_timer(delay_ms)

    async with delivering(SCANS_ONLY) as world:
        world.commit_timers(timer)
        await asyncio.sleep(delay_ms / 1_000 + 1)

    [(fired_at_ms, key)] = world.fired
    assert key == timer.key
    assert delay_ms <= fired_at_ms <= max(delay_ms, 500)


async def test_scans_alone_forget_what_is_gone() -> None:
    async with delivering(SCANS_ONLY) as world:
        world.commit_timers(make_timer(1_900))
        await asyncio.sleep(1)
        world.store.timers.clear()
        await asyncio.sleep(5)

    assert world.fired == []


async def test_timer_that_is_being_fired_is_not_fired_again() -> None:
    async with delivering() as world:
        world.is_applying = False
        world.commit_timers(make_timer(29_000))
        await asyncio.sleep(45)

    assert [at_ms for at_ms, _ in world.fired] == [29_000]


async def test_timer_whose_firing_was_lost_is_fired_again() -> None:
    async with delivering() as world:
        world.is_applying = False
        world.commit_timers(make_timer(29_000))
        await asyncio.sleep(70)

    assert [at_ms for at_ms, _ in world.fired] == [29_000, 60_000]


async def test_timer_that_another_server_has_moved_later_fires_at_its_new_instant_though_it_fired_as_nothing() -> None:
    async with delivering() as world:
        world.is_applying = False
        world.commit_timers(make_timer(29_000, 1), make_timer(29_000, 2))
        polled, scanned = make_timer(33_000, 1), make_timer(40_000, 2)
        world.store.timers.update({timer.key: timer for timer in (polled, scanned)})
        await asyncio.sleep(29.5)
        world.delivery.timers_found([polled])
        await asyncio.sleep(15)

    assert world.fired[2:] == [(33_000, polled.key), (40_000, scanned.key)]


async def test_commit_during_a_scan_outdates_what_the_scan_has_read() -> None:
    call, timer = make_call(1), make_timer(0)
    store = DueStore({call.key: call}, {timer.key: timer}, before_answer=asyncio.Event())
    changes = Changes(deleted_timers={timer.key})
    changes.changed_states[call.key.state] = cast(object, None)  # type: ignore[assignment]  # only its key matters

    async with delivering(store=store) as world:
        world.delivery.committed(changes)
        assert store.before_answer is not None
        store.before_answer.set()
        await asyncio.sleep(20)

    assert world.dispatched == []
    assert world.fired == []


async def test_clock_that_is_set_back_makes_no_timer_early() -> None:
    async with delivering() as world:
        world.commit_timers(make_timer(5_000))
        await asyncio.sleep(2)
        world.clock.jump(-3_600_000)
        await asyncio.sleep(3_600 + 4)

    assert world.fired == [(3_605_000, make_timer(0).key)]


async def test_clock_that_is_set_forward_is_noticed_by_the_next_scan() -> None:
    async with delivering() as world:
        world.commit_timers(make_timer(50_000, 1), make_timer(DAY_MS, 2))
        await asyncio.sleep(2)
        world.clock.jump(2 * DAY_MS)
        await asyncio.sleep(30)

    assert sorted(world.fired) == [(30_000, make_timer(0, 1).key), (30_000, make_timer(0, 2).key)]


async def test_trouble_with_the_database_is_outlived_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = DueStore({make_call(1).key: make_call(1)}, errors=[StoreUnavailable("down")] * 20)

    with caplog.at_level(logging.INFO, logger="server_stub.delivery"):
        async with delivering(store=store) as world:
            was_healthy = world.delivery.is_healthy
            await asyncio.sleep(600)
            is_healthy = world.delivery.is_healthy

    assert (was_healthy, is_healthy) == (False, True)
    assert [key for _, key in world.dispatched] == [make_call(1).key]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


async def test_timers_in_memory_fire_while_the_database_cannot_be_searched() -> None:
    async with delivering() as world:
        world.commit_timers(make_timer(45_000))
        world.store.errors = [StoreUnavailable("down")] * 100
        await asyncio.sleep(50)

    assert world.fired == [(45_000, make_timer(0).key)]


async def test_nothing_is_handed_over_after_close() -> None:
    async with delivering() as world:
        world.commit_timers(make_timer(5_000, 1))
    world.commit_timers(make_timer(5_000, 2))
    world.commit_calls(make_call(3))
    await asyncio.sleep(100)

    assert world.fired == []
    assert world.dispatched == []


@asynccontextmanager
async def crowded(
    options: DeliveryOptions, calls: int, *, room: int, due_in_ms: int = -DAY_MS, claim_range: int = 1
) -> AsyncIterator[World]:
    """Deliver many calls from the database to a dispatcher with little room."""
    world = World(DueStore(), VirtualClock(), room=room)
    due_at_ms = EPOCH_MS + due_in_ms
    for number in range(calls):
        call = make_call(number, due_at_ms=due_at_ms + number)
        call = replace(call, key=call.key._replace(claim_range=claim_range))
        world.store.calls[call.key] = call
    world.begin(options)
    world.delivery.start()
    try:
        yield world
    finally:
        await world.delivery.close()


async def test_scan_reads_no_further_than_there_is_room_and_goes_on_when_there_is() -> None:
    async with crowded(DeliveryOptions(page_size=10), 100, room=15) as world:
        await asyncio.sleep(5)
        pages_while_full = list(world.store.page_sizes)
        world.make_room(1_000)
        await asyncio.sleep(0.01)

    assert pages_while_full == [10, 10]
    assert [key.state.number for _, key in world.dispatched] == list(range(100))


async def test_room_that_comes_bit_by_bit_is_used_and_no_call_is_forgotten() -> None:
    async with crowded(DeliveryOptions(page_size=10), 300, room=1) as world:
        for _ in range(400):
            await asyncio.sleep(1)
            world.make_room(1)

    assert sorted(key.state.number for _, key in world.dispatched) == list(range(300))


async def test_take_over_claims_no_more_than_there_is_room_for() -> None:
    async with crowded(DeliveryOptions(page_size=10), 100, room=15, claim_range=0) as world:
        await asyncio.sleep(5)
        claimed_while_full = len(world.dispatched) + sum(key.claim_range == 1 for key in world.store.calls)
        world.make_room(1_000)
        await asyncio.sleep(1)

    assert claimed_while_full == 20
    assert sorted(key.state.number for _, key in world.dispatched) == list(range(100))


@pytest.mark.parametrize("claim_range", [0, 1], ids=["unclaimed", "claimed"])
async def test_oldest_call_without_room_is_known_until_all_have_been_handed_over(claim_range: int) -> None:
    async with crowded(DeliveryOptions(page_size=10), 40, room=20, claim_range=claim_range) as world:
        await asyncio.sleep(5)
        at_first = world.delivery.oldest_left_behind_ms()
        world.make_room(10)
        await asyncio.sleep(5)
        then = world.delivery.oldest_left_behind_ms()
        world.make_room(1_000)
        await asyncio.sleep(5)
        in_the_end = world.delivery.oldest_left_behind_ms()

    oldest_ms = EPOCH_MS - DAY_MS
    assert (at_first, then, in_the_end) == ({0: oldest_ms + 20}, {0: oldest_ms + 30}, {})


async def test_oldest_call_that_a_commit_found_no_room_for_is_known_shard_by_shard() -> None:
    async with delivering(ownership=SoleOwnership(4)) as world:
        await asyncio.sleep(1)
        world.room = 0
        world.commit_calls(make_call(1, shard_id=1), make_call(2, shard_id=2), make_call(3, due_at_ms=EPOCH_MS + 900))
        world.commit_calls(make_call(4, due_at_ms=EPOCH_MS + 950))
        left_behind = world.delivery.oldest_left_behind_ms()

    assert left_behind == {0: EPOCH_MS + 900, 1: EPOCH_MS, 2: EPOCH_MS}


async def test_commit_without_room_is_left_to_a_scan_as_soon_as_there_is_room() -> None:
    async with delivering() as world:
        await asyncio.sleep(1)
        world.room = 0
        world.commit_calls(make_call(1))
        await asyncio.sleep(4)
        was_dispatched = list(world.dispatched)
        world.make_room(10)
        await asyncio.sleep(1)

    assert was_dispatched == []
    assert world.dispatched == [(5_100, make_call(1).key)]


async def test_timers_are_found_and_fire_on_time_while_there_is_no_room_for_calls() -> None:
    async with crowded(DeliveryOptions(page_size=10), 100, room=0) as world:
        await asyncio.sleep(1)
        world.commit_timers(make_timer(80_000, 1))
        await asyncio.sleep(100)

    assert world.fired == [(80_000, make_timer(0, 1).key)]


async def test_calls_that_become_due_are_made_on_time_though_memory_holds_only_some() -> None:
    options = DeliveryOptions(page_size=10, max_planned_calls=7)
    async with crowded(options, 60, room=1_000, due_in_ms=5_000) as world:
        await asyncio.sleep(1)
        pages_at_first = list(world.store.page_sizes)
        for number in range(60, 80):
            world.commit_calls(make_call(number, due_at_ms=EPOCH_MS + 20_000))
        await asyncio.sleep(30)

    late_ms = {key.state.number: at_ms - (5_000 + key.state.number) for at_ms, key in world.dispatched}
    assert pages_at_first == [10]
    assert sorted(late_ms) == list(range(80))
    assert all(0 <= late_ms[number] < 1_000 for number in range(60))
    assert all(20_000 <= at_ms < 21_000 for at_ms, key in world.dispatched if key.state.number >= 60)


@dataclass
class Ranges:
    """An ownership that the test changes."""

    ranges: dict[int, int] = field(default_factory=dict)
    num_shards: int = 4

    @property
    def shard_ids(self) -> Collection[int]:
        return self.ranges.keys()

    def range_of(self, shard_id: int) -> int:
        return self.ranges.get(shard_id, 0)

    def is_handed_over(self, shard_id: int, claim_range: int, due_at_ms: int) -> bool:
        return claim_range == 2


async def test_shards_that_are_gained_are_scanned_at_once() -> None:
    ownership = Ranges({0: 1})
    call = make_call(1, shard_id=1)
    timer = replace(make_timer(-1_000), shard_id=1)
    async with delivering(store=DueStore({call.key: call}, {timer.key: timer}), ownership=ownership) as world:
        await asyncio.sleep(3)
        before = (list(world.dispatched), list(world.fired))
        ownership.ranges[1] = 3
        world.delivery.shards_gained([1])
        await asyncio.sleep(0.001)

    assert before == ([], [])
    assert world.dispatched == [(3_000, call.key._replace(claim_range=3))]
    assert world.fired == [(3_000, timer.key)]


async def test_shards_may_be_gained_in_the_very_moment_in_which_a_scan_is_due() -> None:
    loop = asyncio.get_running_loop()
    has_gained = asyncio.Event()
    interval_s = DEFAULT.rescan_interval.total_seconds()

    def gain() -> None:
        world.delivery.shards_gained([1])
        has_gained.set()

    async with delivering() as world:
        await asyncio.sleep(interval_s / 2)  # the pause has begun, so that its end comes before the gain
        loop.call_at(interval_s, gain)
        await asyncio.sleep(interval_s)

    assert has_gained.is_set()


async def test_shards_that_are_gained_while_a_scan_waits_for_room_are_scanned_at_once() -> None:
    ownership = Ranges({0: 1})
    world = World(DueStore(), VirtualClock(), room=0, ownership=ownership)
    call = make_call(1)
    timer = replace(make_timer(-1_000), shard_id=1)
    world.store = DueStore({call.key: call}, {timer.key: timer})
    world.begin(DEFAULT)
    world.delivery.start()
    await asyncio.sleep(3)
    ownership.ranges[1] = 1
    world.delivery.shards_gained([1])
    await asyncio.sleep(0.001)
    await world.delivery.close()

    assert world.fired == [(3_000, timer.key)]


async def test_nothing_planned_in_a_shard_that_was_lost_happens_and_its_calls_are_given_back() -> None:
    ownership = Ranges({0: 1, 1: 1})
    lost, kept = make_call(1, shard_id=1, due_at_ms=EPOCH_MS + 5_000), make_call(2, due_at_ms=EPOCH_MS + 5_000)
    async with delivering(ownership=ownership) as world:
        world.commit_calls(lost, kept)
        world.commit_timers(replace(make_timer(5_000, 1), shard_id=1), make_timer(5_000, 2))
        del ownership.ranges[1]
        world.delivery.shards_lost([1])
        await asyncio.sleep(10)

    assert world.dispatched == [(5_000, kept.key)]
    assert world.fired == [(5_000, make_timer(0, 2).key)]
    assert list(world.store.calls) == [lost.key._replace(claim_range=0)]


async def test_call_whose_shard_was_lost_during_its_commit_is_given_back() -> None:
    ownership = Ranges({0: 1})
    call = make_call(1, shard_id=1)
    async with delivering(ownership=ownership) as world:
        world.commit_calls(call)

    assert world.dispatched == []
    assert list(world.store.calls) == [call.key._replace(claim_range=0)]


async def test_timer_in_a_shard_of_another_server_is_left_to_that() -> None:
    async with delivering(ownership=Ranges({0: 1})) as world:
        world.commit_timers(replace(make_timer(5_000), shard_id=1))
        await asyncio.sleep(10)

    assert world.fired == []


@pytest.mark.parametrize(("claim_range", "is_made"), [(0, True), (1, True), (2, False), (3, True), (4, False)], ids=str)
async def test_scan_takes_what_is_unclaimed_its_own_or_left_by_a_former_owner(claim_range: int, is_made: bool) -> None:
    call = make_call(1)
    call = replace(call, key=call.key._replace(claim_range=claim_range))
    async with delivering(store=DueStore({call.key: call}), ownership=Ranges({0: 3})) as world:
        await asyncio.sleep(1)

    assert [key for _, key in world.dispatched] == [call.key._replace(claim_range=3)] * is_made


async def test_server_without_shards_asks_the_database_nothing() -> None:
    async with delivering(ownership=Ranges()) as world:
        await asyncio.sleep(100)

    assert world.store.page_sizes == []


def make_planned_call(number: int = 1, delay_ms: int = 5_000) -> Call:
    return make_call(number, due_at_ms=EPOCH_MS + delay_ms)


async def test_nothing_of_an_execution_that_another_server_says_it_has_closed_is_handed_over() -> None:
    async with delivering() as world:
        world.commit_calls(make_planned_call(1), make_planned_call(2))
        world.commit_timers(make_timer(5_000, 1))
        world.delivery.processes_closed(["e-1"])
        await asyncio.sleep(10)

    assert world.dispatched == [(5_000, make_planned_call(2).key)]
    assert world.fired == []


async def test_planned_calls_that_another_server_has_called_off_unheard_are_not_made() -> None:
    async with delivering() as world:
        world.has_peers = True
        world.commit_calls(make_planned_call(1), make_planned_call(2))
        del world.store.calls[make_planned_call(1).key]
        await asyncio.sleep(10)

    assert world.dispatched == [(5_000, make_planned_call(2).key)]
    assert world.store.lookups == [{"e-1", "e-2"}]


async def test_planned_calls_that_are_withdrawn_are_made_only_if_the_database_still_has_them() -> None:
    held, kept = make_planned_call(1), make_planned_call(2)
    async with delivering() as world:
        world.commit_calls(held, kept)
        world.commit_timers(make_timer(5_000, 1))
        del world.store.calls[held.key]
        world.delivery.calls_withdrawn(["e-1", "e-2"])
        planned = world.delivery.planned_calls
        await asyncio.sleep(10)

    assert planned == 0
    assert world.dispatched == [(5_000, kept.key)]
    assert [at_ms for at_ms, _ in world.fired] == [5_000]


async def test_call_that_a_scan_has_read_is_not_made_if_it_is_withdrawn_meanwhile() -> None:
    call = make_call(1)
    store = DueStore({call.key: call}, before_answer=asyncio.Event())
    async with delivering(store=store) as world:
        await asyncio.sleep(1)
        del store.calls[call.key]
        world.delivery.calls_withdrawn(["e-1"])
        assert store.before_answer is not None
        store.before_answer.set()
        await asyncio.sleep(1)

    assert world.dispatched == []


async def test_calls_that_are_due_at_once_or_have_no_other_server_to_close_their_executions_cost_no_statement() -> None:
    async with delivering() as world:
        world.commit_calls(make_planned_call(1))
        await asyncio.sleep(10)
        world.has_peers = True
        world.commit_calls(make_call(2))

    assert [key.state.number for _, key in world.dispatched] == [1, 2]
    assert world.store.lookups == []


async def test_planned_calls_that_become_due_while_others_are_checked_share_the_next_statement() -> None:
    async with delivering() as world:
        world.has_peers = True
        world.commit_calls(*(make_planned_call(number, 5_000 + number) for number in (1, 2, 3)))
        world.store.before_answer = asyncio.Event()
        await asyncio.sleep(6)
        world.store.before_answer.set()
        await asyncio.sleep(0.001)

    assert world.store.lookups == [{"e-1"}, {"e-2", "e-3"}]
    assert [(at_ms, key.state.number) for at_ms, key in world.dispatched] == [(6_000, 1), (6_000, 2), (6_000, 3)]


async def test_commit_while_a_planned_call_is_checked_outdates_it() -> None:
    async with delivering() as world:
        world.has_peers = True
        world.commit_calls(make_planned_call(1), make_planned_call(2))
        world.store.before_answer = asyncio.Event()
        await asyncio.sleep(6)
        world.delivery.committed(Changes(closed_processes={"e-1": make_process(1)}))
        world.store.before_answer.set()
        await asyncio.sleep(0.001)

    assert world.dispatched == [(6_000, make_planned_call(2).key)]


async def test_planned_call_whose_shard_is_lost_while_it_is_checked_is_given_back() -> None:
    ownership = Ranges({0: 1})
    call = make_planned_call()
    async with delivering(ownership=ownership) as world:
        world.has_peers = True
        world.commit_calls(call)
        world.store.before_answer = asyncio.Event()
        await asyncio.sleep(6)
        ownership.ranges.clear()
        world.delivery.shards_lost([0])
        world.store.before_answer.set()
        await asyncio.sleep(0.001)

    assert world.dispatched == []
    assert list(world.store.calls) == [call.key._replace(claim_range=0)]


async def test_planned_calls_that_cannot_be_checked_are_made_when_the_database_is_back() -> None:
    async with delivering() as world:
        world.has_peers = True
        world.commit_calls(make_planned_call())
        world.store.errors = [StoreUnavailable("down")] * 3
        await asyncio.sleep(10)

    [(at_ms, key)] = world.dispatched
    assert key == make_planned_call().key
    assert 5_000 < at_ms < 7_000


def test_window_that_is_not_longer_than_the_scan_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"look_ahead .* must be longer than rescan_interval"):
        DeliveryOptions(look_ahead=timedelta(seconds=5), rescan_interval=timedelta(seconds=5))
