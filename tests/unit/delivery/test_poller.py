"""How soon a server finds what others have made due, and what it asks the database meanwhile."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from server_stub.core.cluster import Hint
from server_stub.core.model import Call, CallKey, StateKey, Timer, TimerKey
from server_stub.core.ports import SoleOwnership, Store, StoreUnavailable
from server_stub.delivery.poller import Poller, PollerOptions
from tests.support.dispatching import make_call
from tests.support.virtual_time import EPOCH_MS, VirtualClock


@dataclass
class World:
    """A poller, its database, and what it found and when."""

    unclaimed: list[Call] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    claimed: list[tuple[float, CallKey]] = field(default_factory=list)
    planned: list[tuple[float, TimerKey]] = field(default_factory=list)
    statements: Counter[str] = field(default_factory=Counter)
    asked_shards: list[Collection[int]] = field(default_factory=list)
    has_peers: bool = True
    has_hints: bool = False
    has_handovers: bool = False
    is_available: bool = True
    waiting: set[CallKey] = field(default_factory=set)
    """Calls that no worker has."""
    due: set[CallKey] = field(default_factory=set)
    """Calls that the database has."""
    looks: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)
    poller: Poller = field(init=False)

    async def find_unclaimed_calls(self, shard_ids: Collection[int], before_ms: int, *, limit: int) -> list[Call]:
        self.statements["calls"] += 1
        self.asked_shards.append(shard_ids)
        if not self.is_available:
            raise StoreUnavailable("down")
        return [call for call in self.unclaimed if call.due_at_ms < before_ms][:limit]

    async def find_due_timers(
        self, shard_ids: Collection[int], before_ms: int, *, limit: int, after: Timer | None
    ) -> list[Timer]:
        self.statements["timers"] += 1
        start_ms = 0 if after is None else after.fire_at_ms
        return [timer for timer in self.timers if start_ms < timer.fire_at_ms < before_ms][:limit]

    async def wait_for_room(self) -> None:
        await self.room.wait()

    async def find_due_keys(self, states: Collection[StateKey]) -> set[CallKey]:
        self.statements["due keys"] += 1
        return {key for key in self.due if key.state in states}

    def waiting_keys(self) -> Collection[CallKey]:
        return list(self.waiting)

    def drop_waiting(self, keys: Collection[CallKey]) -> None:
        self.waiting.difference_update(keys)

    def look_again(self) -> None:
        self.looks += 1

    def claim(self, keys: Sequence[CallKey]) -> asyncio.Future[None]:
        now_s = round(asyncio.get_running_loop().time(), 3)
        self.claimed += [(now_s, key) for key in keys]
        self.unclaimed = [call for call in self.unclaimed if call.key not in keys]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def plan(self, timers: Sequence[Timer]) -> None:
        now_s = round(asyncio.get_running_loop().time(), 3)
        self.planned += [(now_s, timer.key) for timer in timers]


@asynccontextmanager
async def polling(**changes: bool) -> AsyncIterator[World]:
    world = World(**changes)  # type: ignore[arg-type]  # only its flags
    world.room.set()
    world.poller = Poller(
        cast(Store, world),
        VirtualClock(),
        SoleOwnership(4),
        world,
        world,
        world.claim,
        world.plan,
        PollerOptions(page_size=10),
        look_again=world.look_again,
    )
    world.poller.start()
    try:
        yield world
    finally:
        await world.poller.close()


def make_timer(fire_in_ms: int, number: int = 1) -> Timer:
    return Timer(TimerKey(f"e-{number}", "S", 1, 0), EPOCH_MS + fire_in_ms)


@pytest.mark.parametrize("has_hints", [True, False], ids=["hints", "no-hints"])
async def test_call_of_another_server_is_claimed_within_a_second_though_nothing_is_heard(has_hints: bool) -> None:
    async with polling(has_hints=has_hints) as world:
        await asyncio.sleep(20.5)
        world.unclaimed = [make_call(1)]
        await asyncio.sleep(1)

    [(claimed_at_s, _)] = world.claimed
    assert claimed_at_s - 20.5 <= 1.0


async def test_hint_is_followed_at_once_and_only_into_its_shards() -> None:
    async with polling(has_hints=True) as world:
        await asyncio.sleep(0.3)
        world.unclaimed = [make_call(1)]
        world.poller.hinted(Hint(shard_ids=frozenset({2, 77})))
        await asyncio.sleep(0.001)

    assert [at_s for at_s, _ in world.claimed] == [0.3]
    assert list(world.asked_shards) == [(2,)]


async def test_hint_about_shards_of_other_servers_costs_nothing() -> None:
    async with polling(has_hints=True) as world:
        world.poller.hinted(Hint(shard_ids=frozenset({77}), closed=frozenset({"e-1"})))
        await asyncio.sleep(0.1)

    assert world.statements == {}


async def test_server_without_hints_looks_again_soon_after_it_found_something_and_then_less_and_less() -> None:
    async with polling() as world:
        world.unclaimed = [make_call(1)]
        await asyncio.sleep(1.01)
        statements_by_s = []
        for _ in range(3):
            before = world.statements["calls"]
            await asyncio.sleep(1)
            statements_by_s.append(world.statements["calls"] - before)

    assert statements_by_s == [5, 1, 1]


@pytest.mark.parametrize("has_hints", [True, False], ids=["hints", "no-hints"])
async def test_idle_server_among_others_makes_little_more_than_a_statement_a_second(has_hints: bool) -> None:
    async with polling(has_hints=has_hints) as world:
        await asyncio.sleep(100)

    assert 110 <= world.statements.total() <= 121


async def test_server_alone_asks_nothing() -> None:
    async with polling(has_peers=False) as world:
        await asyncio.sleep(100)

    assert world.statements == {}


@pytest.mark.parametrize("has_hints", [True, False], ids=["hints", "no-hints"])
async def test_what_the_last_other_server_has_made_due_as_it_left_is_found_in_time(has_hints: bool) -> None:
    async with polling(has_hints=has_hints) as world:
        await asyncio.sleep(20.5)
        world.unclaimed, world.timers = [make_call(1)], [make_timer(40_000)]
        world.has_peers = False
        await asyncio.sleep(20)

    [(claimed_at_s, _)] = world.claimed
    assert claimed_at_s - 20.5 <= 1.0
    assert world.planned[0][0] < 40


async def test_server_that_is_alone_again_soon_asks_nothing() -> None:
    async with polling() as world:
        await asyncio.sleep(20.5)
        world.has_peers = False
        await asyncio.sleep(60)
        before = world.statements.total()
        await asyncio.sleep(100)

    assert world.statements.total() == before


async def test_everything_is_claimed_though_a_page_holds_less() -> None:
    async with polling(has_hints=True) as world:
        world.unclaimed = [make_call(number) for number in range(35)]
        world.poller.hinted(Hint(shard_ids=frozenset({0})))
        await asyncio.sleep(0.001)

    assert len(world.claimed) == 35


async def test_nothing_is_claimed_while_there_is_no_room() -> None:
    async with polling() as world:
        world.room.clear()
        world.unclaimed = [make_call(1)]
        await asyncio.sleep(10)
        before = list(world.claimed)
        world.room.set()
        await asyncio.sleep(0.001)

    assert before == []
    assert [at_s for at_s, _ in world.claimed] == [10.0]


async def test_timers_are_found_while_there_is_no_room_for_calls() -> None:
    async with polling() as world:
        world.room.clear()
        await asyncio.sleep(10.5)
        world.timers = [make_timer(20_000)]
        await asyncio.sleep(9)

    assert {key for _, key in world.planned} == {world.timers[0].key}


async def test_all_timers_are_found_though_a_page_holds_less() -> None:
    async with polling(has_hints=True) as world:
        world.timers = [make_timer(1_500 + number, number) for number in range(35)]
        world.poller.hinted(Hint(timer_shard_ids=frozenset({1})))
        await asyncio.sleep(0.001)

    assert sorted(key for _, key in world.planned) == sorted(timer.key for timer in world.timers)


async def test_timer_that_comes_with_a_call_is_found_with_it() -> None:
    async with polling() as world:
        await asyncio.sleep(10.5)
        world.unclaimed, world.timers = [make_call(1)], [make_timer(12_000)]
        await asyncio.sleep(1)

    [(call_at_s, _)] = world.claimed
    assert world.planned[0][0] == call_at_s


@pytest.mark.parametrize("has_hints", [True, False], ids=["hints", "no-hints"])
async def test_timer_of_another_server_is_planned_before_it_is_due(has_hints: bool) -> None:
    async with polling(has_hints=has_hints) as world:
        await asyncio.sleep(0.5)
        world.timers = [make_timer(500 + world.poller.timer_window_ms)]
        await asyncio.sleep(world.poller.timer_window_ms / 1_000)

    assert world.planned[0][0] < 0.5 + world.poller.timer_window_ms / 1_000


async def test_timer_that_is_due_soon_is_found_by_its_hint() -> None:
    async with polling(has_hints=True) as world:
        await asyncio.sleep(7.3)
        world.timers = [make_timer(7_500)]
        world.poller.hinted(Hint(timer_shard_ids=frozenset({1})))
        await asyncio.sleep(0.001)

    assert world.planned == [(7.3, world.timers[0].key)]


async def test_timers_of_calls_that_a_former_owner_still_makes_are_looked_for_each_second() -> None:
    async with polling(has_hints=True, has_handovers=True) as world:
        await asyncio.sleep(10.5)

    assert world.statements["timers"] == 10


async def test_poller_outlives_trouble_with_the_database_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with polling() as world:
        world.is_available = False
        await asyncio.sleep(10)
        world.is_available = True
        world.unclaimed = [make_call(1)]
        await asyncio.sleep(1.1)

    assert len(world.claimed) == 1
    assert [record.message for record in caplog.records] == ["cannot look for what other servers have made due"]


@pytest.mark.parametrize("has_room", [True, False], ids=["room", "no-room"])
async def test_waiting_call_that_another_server_has_called_off_unheard_is_dropped_within_two_seconds(
    has_room: bool,
) -> None:
    gone, kept = make_call(1).key, make_call(2).key
    async with polling() as world:
        world.waiting = {gone, kept}
        world.due = {kept}
        if not has_room:
            world.room.clear()
        await asyncio.sleep(2.1)

    assert world.waiting == {kept}
    assert world.looks == 1
    assert world.statements["due keys"] <= 3


@pytest.mark.parametrize("told", [{"has_hints": True}, {"has_peers": False}], ids=["hints", "no peers"])
async def test_waiting_calls_are_not_asked_about_where_others_tell_or_are_none(told: dict[str, bool]) -> None:
    async with polling(**told) as world:
        world.waiting = {make_call(1).key}
        await asyncio.sleep(10)

    assert world.statements["due keys"] == 0
    assert len(world.waiting) == 1
