"""What a server takes for its own, and how it gives shards up."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from server_stub.cluster.clock import SyncedClock
from server_stub.cluster.identity import new_member_id
from server_stub.cluster.keeper import KeeperCounters, KeeperOptions, ShardKeeper
from server_stub.core.cluster import Member, Role
from server_stub.core.ports import StoreUnavailable
from tests.support.cluster import HintNetwork, MemoryCoordinator, MemoryHints

HANDOVER_S = 10.0


@dataclass
class Work:
    """What works on the shards of a keeper: what it was told and when, and the shards in which it makes calls."""

    gained: list[tuple[float, frozenset[int]]] = field(default_factory=list)
    lost: list[tuple[float, frozenset[int]]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    ends: dict[int, asyncio.Event] = field(default_factory=dict)

    def shards_gained(self, shard_ids: Collection[int]) -> None:
        self.gained.append((_now_s(), frozenset(shard_ids)))

    def shards_lost(self, shard_ids: Collection[int]) -> Collection[int]:
        self.lost.append((_now_s(), frozenset(shard_ids)))
        return self.busy & set(shard_ids)

    async def calls_ended(self, shard_id: int) -> None:
        await self.ends.setdefault(shard_id, asyncio.Event()).wait()

    def end_calls(self) -> None:
        """End the calls in all shards."""
        for shard_id in self.busy:
            self.ends.setdefault(shard_id, asyncio.Event()).set()


@dataclass
class Server:
    """A keeper and what it was told."""

    keeper: ShardKeeper
    work: Work
    hints: MemoryHints | None

    @property
    def member_id(self) -> str:
        return self.keeper.member.member_id

    def owns_at(self, shard_id: int = 0) -> bool:
        return self.keeper.range_of(shard_id) > 0


def _now_s() -> float:
    return round(asyncio.get_running_loop().time(), 3)


@dataclass
class Cluster:
    """Servers on one coordinator."""

    coordinator: MemoryCoordinator = field(default_factory=MemoryCoordinator)
    network: HintNetwork | None = field(default_factory=HintNetwork)
    servers: list[Server] = field(default_factory=list)

    async def join(self, name: str, *, place: str | None = None, roles: frozenset[Role] = frozenset(Role)) -> Server:
        loop = asyncio.get_running_loop()
        hints = self.network.join() if self.network else None
        member = Member(name + new_member_id(place) if place is None else new_member_id(place), name, roles)
        keeper = ShardKeeper(self.coordinator, member, 16, SyncedClock(loop.time, 0), KeeperOptions(), hints=hints)
        server = Server(keeper, Work(), hints)
        if hints:
            await hints.start(lambda hint: keeper.look() if hint.is_cluster_changed else None)
        await keeper.start(server.work)
        self.servers.append(server)
        return server

    async def crash(self, server: Server) -> None:
        """End a server as kill -9 does: the database is not told."""
        await _stop_silently(server.keeper)
        self.servers.remove(server)


async def _stop_silently(keeper: ShardKeeper) -> None:
    task = keeper._task
    assert task is not None
    task.cancel()
    await asyncio.wait([task])
    if keeper._alarm is not None:
        keeper._alarm.cancel()


@asynccontextmanager
async def running(*, with_hints: bool = True) -> AsyncIterator[Cluster]:
    cluster = Cluster(network=HintNetwork() if with_hints else None)
    try:
        yield cluster
    finally:
        for server in cluster.servers:
            server.work.end_calls()
            await server.keeper.close()


async def test_first_server_owns_everything_at_once() -> None:
    async with running() as cluster:
        server = await cluster.join("a")

        assert sorted(server.keeper.shard_ids) == list(range(16))
        assert server.work.gained == [(0.0, frozenset(range(16)))]
        assert cluster.coordinator.owners() == {server.member_id: 16}


@pytest.mark.parametrize(("with_hints", "within_s"), [(True, 0.0), (False, 2.2)], ids=["hints", "no-hints"])
async def test_server_that_joins_gets_its_half(with_hints: bool, within_s: float) -> None:
    async with running(with_hints=with_hints) as cluster:
        first = await cluster.join("a")
        await asyncio.sleep(7.5)
        second = await cluster.join("b")
        await asyncio.sleep(0.001 + within_s)

        assert cluster.coordinator.owners() == {first.member_id: 8, second.member_id: 8}
        assert set(first.keeper.shard_ids) | set(second.keeper.shard_ids) == set(range(16))
        assert set(first.keeper.shard_ids).isdisjoint(second.keeper.shard_ids)


async def test_at_any_time_a_shard_has_one_owner_while_servers_come_go_and_crash() -> None:
    async with running() as cluster:
        seen: Counter[int] = Counter()

        async def watch() -> None:
            while True:
                seen.update(sum(server.owns_at(shard_id) for server in cluster.servers) for shard_id in range(16))
                await asyncio.sleep(0.05)

        watcher = asyncio.create_task(watch())
        for step in range(4):
            await cluster.join(f"{step}-x")
            server = await cluster.join(f"{step}-y")
            await asyncio.sleep(5)
            await cluster.crash(server)
            await asyncio.sleep(20)
        watcher.cancel()

        assert set(seen) == {0, 1}
        assert sorted(cluster.coordinator.owners().values()) == [4, 4, 4, 4]


async def test_shards_of_a_server_that_was_killed_are_taken_when_its_lease_is_over() -> None:
    async with running() as cluster:
        first = await cluster.join("a")
        second = await cluster.join("b")
        await asyncio.sleep(30)
        await cluster.crash(first)
        await asyncio.sleep(15.2)

        assert cluster.coordinator.owners() == {second.member_id: 16}


async def test_server_that_starts_again_at_its_address_takes_its_shards_back_at_once() -> None:
    async with running() as cluster:
        other = await cluster.join("a")
        before = await cluster.join("b", place="here")
        await asyncio.sleep(30)
        await cluster.crash(before)
        again = await cluster.join("b", place="here")

        assert len(again.keeper.shard_ids) == 8
        assert set(cluster.coordinator.members) == {other.member_id, again.member_id}


async def test_server_without_the_database_owns_nothing_before_others_may_take_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        await asyncio.sleep(30)
        cluster.coordinator.is_available = False
        left_at_s = _now_s()
        lease_ends_s = cluster.coordinator.shards[0].lease_until_ms / 1_000
        await asyncio.sleep(60)
        cluster.coordinator.is_available = True
        is_owner_while_down, is_down = server.owns_at(), server.keeper.is_down
        await asyncio.sleep(2.1)

        lost_at_s, lost = server.work.lost[-1]
        assert not is_owner_while_down
        assert (is_down, server.keeper.is_down) == (True, False)
        assert lost == frozenset(range(16))
        assert left_at_s < lost_at_s <= lease_ends_s - 3.0
        assert sorted(server.keeper.shard_ids) == list(range(16))
        assert server.keeper.range_of(0) == 1
        messages = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert messages == [
            "cannot renew leases: the database is unavailable",
            "leases were not renewed in time; nothing is done in these shards",
            "leases are renewed again",
        ]


@pytest.mark.parametrize("with_hints", [True, False], ids=["hints", "no-hints"])
async def test_each_server_keeps_its_shards_after_an_outage_though_they_come_back_one_after_the_other(
    with_hints: bool,
) -> None:
    async with running(with_hints=with_hints) as cluster:
        first = await cluster.join("a")
        await asyncio.sleep(1)
        second = await cluster.join("b")
        await asyncio.sleep(30)
        before = dict(cluster.coordinator.shards)
        cluster.coordinator.is_available = False
        await asyncio.sleep(20)
        cluster.coordinator.is_available = True
        await asyncio.sleep(30)

        assert len(first.keeper.shard_ids) == len(second.keeper.shard_ids) == 8
        assert {id_: shard.range_id for id_, shard in cluster.coordinator.shards.items()} == {
            id_: shard.range_id for id_, shard in before.items()
        }


async def test_shards_of_a_server_that_an_outage_took_along_are_taken_over_after_a_while() -> None:
    async with running() as cluster:
        first = await cluster.join("a")
        second = await cluster.join("b")
        await asyncio.sleep(30)
        cluster.coordinator.is_available = False
        await cluster.crash(first)
        await asyncio.sleep(20)
        cluster.coordinator.is_available = True
        await asyncio.sleep(2)
        at_first = len(second.keeper.shard_ids)
        await asyncio.sleep(12)

        assert at_first == 8
        assert len(second.keeper.shard_ids) == 16


async def test_keeper_that_fails_by_itself_says_so_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as cluster:
        server = await cluster.join("a")

        async def fail(*args: object, **options: object) -> object:
            raise KeyError(3)

        real_beat = cluster.coordinator.beat
        cluster.coordinator.beat = fail  # type: ignore[method-assign, assignment]
        await asyncio.sleep(10)
        was_down = server.keeper.is_down
        cluster.coordinator.beat = real_beat  # type: ignore[method-assign]
        await asyncio.sleep(2.1)

        records = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert was_down
        assert not server.keeper.is_down
        assert [record.message for record in records] == [
            "cannot look at the other servers",
            "leases are renewed again",
        ]
        assert records[0].exc_info is not None


async def test_keeper_that_has_stopped_is_down_when_its_lease_is_over() -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        await asyncio.sleep(5.5)
        await cluster.crash(server)
        await asyncio.sleep(8)
        is_down_before = server.keeper.is_down
        await asyncio.sleep(8)

        assert (is_down_before, server.keeper.is_down) == (False, True)


async def test_answer_that_takes_long_counts_from_before_the_request() -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        real_beat = cluster.coordinator.beat

        async def slow_beat(*args: object, **options: object) -> object:
            view = await real_beat(*args, **options)  # type: ignore[arg-type]
            await asyncio.sleep(4)
            return view

        cluster.coordinator.beat = slow_beat  # type: ignore[method-assign, assignment]
        await asyncio.sleep(30)

        owned = server.keeper._owned[0]
        assert owned.until_s <= cluster.coordinator.shards[0].lease_until_ms / 1_000 - 3.0


async def test_owner_that_is_robbed_by_force_stops_at_its_next_beat() -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        await asyncio.sleep(10.5)
        await cluster.coordinator.acquire("nobody", [cluster.coordinator.shards[3]], lease_ms=60_000, is_forced=True)
        await asyncio.sleep(2)

        assert not server.owns_at(3)
        assert server.owns_at(4)
        assert server.work.lost == [(12.0, frozenset({3}))]


async def test_lease_that_others_renew_is_never_renewed_by_this_server() -> None:
    async with running() as cluster:
        await cluster.join("a")
        await cluster.coordinator.acquire("nobody", [cluster.coordinator.shards[3]], lease_ms=5_000, is_forced=True)
        await asyncio.sleep(4.9)
        until_ms = cluster.coordinator.shards[3].lease_until_ms

        assert until_ms == 5_000


async def test_calls_under_way_stay_with_the_former_owner_until_they_end() -> None:
    async with running() as cluster:
        first = await cluster.join("a")
        first.work.busy = set(range(16))
        await asyncio.sleep(1)
        second = await cluster.join("b")
        await asyncio.sleep(0.001)
        [shard_id, *_] = second.keeper.shard_ids
        during = [second.keeper.is_handed_over(shard_id, claim, due) for claim, due in [(1, 900), (1, 1_100), (2, 900)]]
        scans_during = len(second.work.gained)
        await asyncio.sleep(3)
        first.work.end_calls()
        await asyncio.sleep(0.001)
        afterwards = second.keeper.is_handed_over(shard_id, 1, 900)

        assert second.keeper.range_of(shard_id) == 2
        assert during == [True, False, False]
        assert not afterwards
        assert len(second.work.gained) > scans_during


async def test_handover_ends_when_its_time_is_over_though_nothing_is_heard() -> None:
    async with running() as cluster:
        first = await cluster.join("a")
        first.work.busy = set(range(16))
        second = await cluster.join("b")
        await asyncio.sleep(0.001)
        [shard_id, *_] = second.keeper.shard_ids
        await cluster.crash(first)
        cluster.coordinator.is_available = False
        await asyncio.sleep(HANDOVER_S + 0.1)

        assert not second.keeper.is_handed_over(shard_id, 1, 0)
        assert second.work.gained[-1][0] == pytest.approx(HANDOVER_S, abs=0.1)
        cluster.coordinator.is_available = True


async def test_shard_given_up_twice_is_handed_over_until_the_call_of_the_second_time_ends() -> None:
    other = Member("other", "other", frozenset(Role))
    async with running(with_hints=False) as cluster:
        coordinator = cluster.coordinator
        server = await cluster.join("a")
        server.work.busy = set(range(16))
        await coordinator.beat(other, lease_ms=None, member_timeout_ms=60_000)
        await asyncio.sleep(2.1)
        given = [shard.shard_id for shard in coordinator.shards.values() if shard.handover_range == 1]
        await coordinator.leave(other.member_id)
        await asyncio.sleep(HANDOVER_S + 2)
        real_beat = coordinator.beat

        async def beat_in_which_the_first_calls_end(*args: object, **options: object) -> object:
            view = await real_beat(*args, **options)  # type: ignore[arg-type]
            coordinator.beat = real_beat  # type: ignore[method-assign]
            for shard_id in given:
                server.work.ends.pop(shard_id).set()
            await asyncio.sleep(0.1)
            return view

        await coordinator.beat(other, lease_ms=None, member_timeout_ms=60_000)
        coordinator.beat = beat_in_which_the_first_calls_end  # type: ignore[method-assign, assignment]
        await asyncio.sleep(5)
        during = {coordinator.shards[shard_id].handover_range for shard_id in given}
        server.work.end_calls()
        await asyncio.sleep(5)
        afterwards = {coordinator.shards[shard_id].handover_range for shard_id in given}

        assert len(given) == 8
        assert during == {2}
        assert afterwards == {0}
        assert coordinator.members[server.member_id][1] / 1_000 > _now_s() - 2.1


async def test_handover_that_cannot_be_ended_does_not_keep_a_server_from_renewing_its_leases() -> None:
    async with running(with_hints=False) as cluster:
        server = await cluster.join("a")
        server.work.busy = set(range(16))
        await cluster.join("b")
        await asyncio.sleep(3)

        async def refuse(ranges: object) -> None:
            raise StoreUnavailable("not now")

        cluster.coordinator.end_handover = refuse  # type: ignore[method-assign]
        server.work.end_calls()
        await asyncio.sleep(30)
        owned = len(server.keeper.shard_ids)
        del cluster.coordinator.end_handover

        assert owned == 8


@pytest.mark.parametrize("with_hints", [True, False], ids=["hints", "no-hints"])
async def test_draining_server_leaves_its_shards_to_others_without_a_gap(with_hints: bool) -> None:
    async with running(with_hints=with_hints) as cluster:
        first = await cluster.join("a")
        second = await cluster.join("b")
        await asyncio.sleep(30.7)
        moved = set(first.keeper.shard_ids)
        first.work.busy = {min(moved)}
        gaps: set[float] = set()

        async def watch() -> None:
            while True:
                if not any(server.owns_at(shard_id) for server in (first, second) for shard_id in moved):
                    gaps.add(_now_s())
                await asyncio.sleep(0.01)

        watcher = asyncio.create_task(watch())
        await first.keeper.drain()
        await asyncio.sleep(0.2)
        watcher.cancel()

        assert len(first.keeper.shard_ids) == 0
        assert set(second.keeper.shard_ids) == set(range(16))
        assert len(gaps) * 0.01 <= 0.15


async def test_server_alone_gives_its_shards_up_and_leaves_at_once() -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        await asyncio.sleep(5.5)
        began_s = _now_s()
        await server.keeper.drain()
        await server.keeper.close()
        cluster.servers.clear()

        assert _now_s() == began_s
        assert cluster.coordinator.members == {}
        assert cluster.coordinator.owners() == {None: 16}


async def test_server_leaves_no_calls_to_wait_for_behind() -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        server.work.busy = {1, 2, 3}
        await server.keeper.drain()
        handed_over = {shard.shard_id for shard in cluster.coordinator.shards.values() if shard.handover_range}
        await server.keeper.close()
        cluster.servers.clear()

        assert handed_over == {1, 2, 3}
        assert not any(shard.handover_range for shard in cluster.coordinator.shards.values())


async def test_server_cannot_stop_in_time_while_the_database_is_away_and_does_not_wait_for_it() -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        await asyncio.sleep(5.5)
        cluster.coordinator.is_available = False
        await asyncio.sleep(3)
        began_s = _now_s()
        await server.keeper.drain()
        await server.keeper.close()
        cluster.servers.clear()

        assert _now_s() == began_s


async def test_server_without_the_role_async_is_a_member_and_owns_nothing() -> None:
    async with running() as cluster:
        api = await cluster.join("a", roles=frozenset({Role.API}))
        await asyncio.sleep(20)
        worker = await cluster.join("b", roles=frozenset({Role.ASYNC}))
        await asyncio.sleep(0.001)

        assert not api.keeper.shard_ids
        assert len(worker.keeper.shard_ids) == 16
        assert api.keeper.has_peers
        assert worker.keeper.has_peers


async def test_start_without_the_database_fails() -> None:
    async with running() as cluster:
        cluster.coordinator.is_available = False

        with pytest.raises(StoreUnavailable):
            await cluster.join("a")


async def test_start_that_fails_halfway_leaves_nothing_behind() -> None:
    async with running() as cluster:
        coordinator = cluster.coordinator
        loop = asyncio.get_running_loop()
        member = Member("a", "a", frozenset(Role))
        keeper = ShardKeeper(coordinator, member, 16, SyncedClock(loop.time, 0), KeeperOptions())
        real_acquire = coordinator.acquire

        async def acquire_and_break(*args: object, **options: object) -> object:
            await real_acquire(*args, **options)  # type: ignore[arg-type]
            raise StoreUnavailable("the answer was lost")

        coordinator.acquire = acquire_and_break  # type: ignore[method-assign, assignment]
        with pytest.raises(StoreUnavailable):
            await keeper.start(Work())
        await keeper.close()

        assert coordinator.members == {}
        assert coordinator.owners() == {None: 16}


async def test_idle_server_makes_few_transactions() -> None:
    async with running() as cluster:
        await cluster.join("a")
        await cluster.join("b")
        await asyncio.sleep(1)
        cluster.coordinator.calls.clear()
        await asyncio.sleep(100)

        assert Counter(cluster.coordinator.calls) == {"beat": 100}


async def test_shards_that_change_hands_are_counted_by_how_they_do() -> None:
    async with running() as cluster:
        first = await cluster.join("a")
        second = await cluster.join("b")
        await asyncio.sleep(30)
        await cluster.crash(first)
        await asyncio.sleep(15.2)

        assert first.keeper.counters == KeeperCounters(gained=16, given_up=8)
        assert second.keeper.counters == KeeperCounters(gained=16, taken_over=8)


async def test_expired_leases_and_stolen_shards_are_counted() -> None:
    async with running() as cluster:
        server = await cluster.join("a")
        await cluster.coordinator.acquire("nobody", [cluster.coordinator.shards[3]], lease_ms=60_000, is_forced=True)
        await asyncio.sleep(3)
        cluster.coordinator.is_available = False
        await asyncio.sleep(30)

        assert server.keeper.counters == KeeperCounters(gained=16, lost=1, expired=15)
        assert server.keeper.is_down
        cluster.coordinator.is_available = True
