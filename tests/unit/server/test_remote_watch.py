"""Long polls hear of what other servers have closed."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from server_stub.core.cluster import Hint
from server_stub.core.model import ProcessExecution
from server_stub.core.ports import Store, StoreUnavailable
from server_stub.engine.remote_watch import RemoteWatch
from server_stub.engine.waiters import Waiters
from tests.support.dispatching import make_process
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND


@dataclass
class World:
    """Waiters, what watches for them, and a database in which other servers close executions."""

    has_peers: bool = True
    has_hints: bool = True
    closed: dict[str, ProcessExecution] = field(default_factory=dict)
    asked: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    waiters: Waiters = field(default_factory=Waiters)
    watch: RemoteWatch = field(init=False)

    async def find_closed(self, process_execution_ids: Collection[str]) -> list[ProcessExecution]:
        self.asked.append((_now_s(), frozenset(process_execution_ids)))
        if self.errors:
            raise self.errors.pop()
        return [self.closed[each] for each in process_execution_ids if each in self.closed]

    async def wait(self, process: ProcessExecution, timeout_s: float = 10) -> float | None:
        """Wait for an execution to close, and give when that was heard of."""
        with self.waiters.of_process(process.key) as subscription:
            self.waiters.await_closing(subscription, process.process_execution_id)
            await subscription.news(timeout_s)
            return _now_s() if process.process_execution_id in subscription.closed else None

    def close_elsewhere(self, process: ProcessExecution) -> None:
        self.closed[process.process_execution_id] = process


def _now_s() -> float:
    return round(asyncio.get_running_loop().time(), 3)


@asynccontextmanager
async def watching(*, has_peers: bool = True, has_hints: bool = True) -> AsyncIterator[World]:
    world = World(has_peers, has_hints)
    world.watch = RemoteWatch(cast(Store, world), world.waiters, world, longest_interval_s=1.0)
    world.watch.start()
    try:
        yield world
    finally:
        await world.watch.close()


async def test_hint_of_a_closed_execution_wakes_at_once_who_waits_for_it() -> None:
    process = make_process(1)
    async with watching() as world:
        waiter = asyncio.create_task(world.wait(process))
        await asyncio.sleep(0.5)
        world.close_elsewhere(process)
        world.watch.hinted(Hint(closed=frozenset({"e-1", "e-2"})))
        heard_at_s = await waiter

    assert heard_at_s == 0.5
    assert world.asked == [(0.5, frozenset({"e-1"}))]


async def test_hint_that_comes_while_the_execution_is_still_looked_up_is_not_lost() -> None:
    process = make_process(1)
    async with watching() as world:
        with world.waiters.of_process(process.key) as subscription:
            world.close_elsewhere(process)
            world.watch.hinted(Hint(closed=frozenset({"e-1"})))
            world.waiters.await_closing(subscription, "e-1")
            await subscription.news(10)
            heard = set(subscription.closed)

    assert heard == {"e-1"}
    assert world.asked == [(0.0, frozenset({"e-1"}))]


async def test_hints_about_what_nobody_waits_for_cost_nothing() -> None:
    async with watching() as world:
        waiter = asyncio.create_task(world.wait(make_process(1), timeout_s=5))
        await asyncio.sleep(0.5)
        world.watch.hinted(Hint(closed=frozenset({"e-2"}), with_ended_states=frozenset({"e-3"})))
        await waiter

    assert world.asked == []


async def test_without_hints_all_who_wait_share_one_statement_that_comes_soon_and_then_less_often() -> None:
    async with watching(has_hints=False) as world:
        await asyncio.sleep(20.3)
        waiters = [asyncio.create_task(world.wait(make_process(number), timeout_s=3)) for number in (1, 2)]
        await asyncio.gather(*waiters)

    ids = frozenset({"e-1", "e-2"})
    assert {asked for _, asked in world.asked} == {ids}
    delays_s = [round(at_s - 20.3, 2) for at_s, _ in world.asked]
    assert delays_s == [0.02, 0.06, 0.14, 0.3, 0.62, 1.26, 2.26]


async def test_wait_may_begin_in_the_very_moment_in_which_a_look_is_due() -> None:
    loop = asyncio.get_running_loop()
    has_begun = asyncio.Event()

    def begin() -> None:
        world.waiters.on_wait(())
        has_begun.set()

    async with watching(has_hints=False) as world:
        await asyncio.sleep(0.5)  # the pause has begun, so that its end comes before the wait
        loop.call_at(1.0, begin)
        await asyncio.sleep(1)

    assert has_begun.is_set()


@pytest.mark.parametrize("has_hints", [True, False], ids=["hints", "no-hints"])
async def test_nothing_is_asked_while_nobody_waits(has_hints: bool) -> None:
    async with watching(has_hints=has_hints) as world:
        await asyncio.sleep(100)

    assert world.asked == []


async def test_server_alone_asks_nothing() -> None:
    async with watching(has_peers=False, has_hints=False) as world:
        await world.wait(make_process(1))

    assert world.asked == []


async def test_without_hints_a_closed_execution_is_heard_of_within_a_second() -> None:
    process = make_process(1)
    async with watching(has_hints=False) as world:
        waiter = asyncio.create_task(world.wait(process))
        await asyncio.sleep(5.1)
        world.close_elsewhere(process)
        heard_at_s = await waiter

    assert heard_at_s is not None
    assert heard_at_s - 5.1 <= 1.0


async def test_hint_of_ended_states_wakes_who_waits_for_states_of_that_execution() -> None:
    async with watching() as world:
        with world.waiters.of_states("e-1") as concerned, world.waiters.of_states("e-2") as other:
            world.watch.hinted(Hint(with_ended_states=frozenset({"e-1"})))
            await concerned.news(10)
            concerned_at_s = _now_s()
            await other.news(10)
            other_at_s = _now_s()

    assert (concerned_at_s, other_at_s) == (0.0, 10.0)


async def test_without_hints_who_waits_for_states_looks_again_soon() -> None:
    async with watching(has_hints=False) as world:
        with world.waiters.of_states("e-1") as subscription:
            await subscription.news(10)
            first_s = _now_s()
            await subscription.news(10)
            second_s = _now_s()

    assert (first_s, second_s) == (0.02, 0.06)
    assert world.asked == []


async def test_trouble_with_the_database_is_outlived_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    process = make_process(1)
    async with watching(has_hints=False) as world:
        world.errors = [StoreUnavailable("down")] * 3
        world.close_elsewhere(process)
        heard_at_s = await world.wait(process)

    assert heard_at_s is not None
    assert [record.message for record in caplog.records] == ["cannot look for what other servers have closed"]


@pytest.mark.parametrize("has_peers", [True, False], ids=["among-others", "alone"])
async def test_look_that_is_asked_for_finds_what_is_closed_and_wakes_who_waits_for_states(has_peers: bool) -> None:
    process = make_process(1)
    async with watching(has_peers=has_peers) as world:
        waiter = asyncio.create_task(world.wait(process))
        with world.waiters.of_states("e-2") as subscription:
            await asyncio.sleep(0.5)
            world.close_elsewhere(process)
            world.watch.look_again()
            await subscription.news(10)
            states_heard_at_s = _now_s()
        heard_at_s = await waiter

    assert (heard_at_s, states_heard_at_s) == (0.5, 0.5)
    assert world.asked == [(0.5, frozenset({"e-1"}))]


async def test_what_a_hint_names_is_looked_up_though_the_database_is_away_at_first() -> None:
    process = make_process(1)
    async with watching() as world:
        waiter = asyncio.create_task(world.wait(process))
        await asyncio.sleep(0.5)
        world.close_elsewhere(process)
        world.errors = [StoreUnavailable("down")] * 2
        world.watch.hinted(Hint(closed=frozenset({"e-1"})))
        heard_at_s = await waiter

    assert heard_at_s == 2.5


async def test_look_that_is_asked_for_is_made_though_the_database_is_away_at_first() -> None:
    process = make_process(1)
    async with watching() as world:
        waiter = asyncio.create_task(world.wait(process))
        await asyncio.sleep(0.5)
        world.close_elsewhere(process)
        world.errors = [StoreUnavailable("down")] * 2
        world.watch.look_again()
        heard_at_s = await waiter

    assert heard_at_s == 2.5


async def test_without_hints_a_steady_stream_of_waits_asks_for_no_more_than_so_many_executions_a_second() -> None:
    async with watching(has_hints=False) as world, asyncio.TaskGroup() as waits:
        for number in range(1_000):
            waits.create_task(world.wait(make_process(number), timeout_s=2))
            await asyncio.sleep(0.01)

    assert sum(len(ids) for _, ids in world.asked) / 12 <= 2_100
