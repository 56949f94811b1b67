"""How servers meet in a database, on each of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from server_stub.core.cluster import ClusterView, Coordinator, Member, Role, Shard
from tests.contract.cluster.coordinators import NUM_SHARDS

LEASE_MS = 60_000
SHORT_MS = 50
TIMEOUT_MS = 60_000
A = Member("a#1", "a.example:8801", frozenset(Role))
B = Member("b#1", "b.example:8801", frozenset({Role.API, Role.ASYNC}))


async def beat(
    coordinator: Coordinator, member: Member, *, lease_ms: int | None = None, member_timeout_ms: int = TIMEOUT_MS
) -> ClusterView:
    return await coordinator.beat(member, lease_ms=lease_ms, member_timeout_ms=member_timeout_ms)


async def shards(coordinator: Coordinator) -> list[Shard]:
    """Give all shards in order, as somebody sees them who is no member."""
    view = await beat(coordinator, Member("observer", "", frozenset()))
    await coordinator.leave("observer")
    return sorted(view.shards, key=lambda shard: shard.shard_id)


async def own(coordinator: Coordinator, member: Member, shard_ids: Sequence[int], *, lease_ms: int = LEASE_MS) -> None:
    """Let a member acquire shards."""
    seen = [shard for shard in await shards(coordinator) if shard.shard_id in shard_ids]
    taken = await coordinator.acquire(member.member_id, seen, lease_ms=lease_ms)
    assert set(taken) == set(shard_ids)


async def test_first_beat_shows_the_member_and_shards_that_nobody_owns(coordinator: Coordinator) -> None:
    view = await beat(coordinator, A)

    assert list(view.members) == [A]
    assert sorted(view.shards, key=lambda shard: shard.shard_id) == [Shard(shard_id) for shard_id in range(NUM_SHARDS)]


async def test_members_see_each_other_as_they_were_when_they_last_said_so(coordinator: Coordinator) -> None:
    draining = Member(A.member_id, A.address, A.roles, is_draining=True)
    await beat(coordinator, A)
    await beat(coordinator, draining)

    view = await beat(coordinator, B)

    assert sorted(view.members, key=lambda member: member.member_id) == [draining, B]


async def test_member_that_somebody_else_drains_sees_it_and_stays_so(coordinator: Coordinator) -> None:
    await beat(coordinator, A)
    await beat(coordinator, replace(A, is_draining=True))

    view = await beat(coordinator, A)
    seen_by_other = await beat(coordinator, B)

    assert list(view.members) == [replace(A, is_draining=True)]
    assert replace(A, is_draining=True) in seen_by_other.members


async def test_member_without_roles_is_seen_by_others(coordinator: Coordinator) -> None:
    without_roles = Member("c#1", "", frozenset())
    await beat(coordinator, without_roles)

    view = await beat(coordinator, A)

    assert sorted(view.members, key=lambda member: member.member_id) == [A, without_roles]


async def test_time_of_views_goes_on(coordinator: Coordinator) -> None:
    first = await beat(coordinator, A)
    await asyncio.sleep(0.05)
    second = await beat(coordinator, A)

    assert 50 <= second.now_ms - first.now_ms < 5_000


async def test_member_that_says_nothing_is_removed_by_others(coordinator: Coordinator) -> None:
    await beat(coordinator, A)
    await asyncio.sleep(2 * SHORT_MS / 1_000)

    view = await beat(coordinator, B, member_timeout_ms=SHORT_MS)

    assert list(view.members) == [B]


async def test_member_that_was_removed_is_added_again_by_its_beat(coordinator: Coordinator) -> None:
    await beat(coordinator, A)
    await coordinator.leave(A.member_id)

    view = await beat(coordinator, A)

    assert list(view.members) == [A]


async def test_acquired_shard_has_an_owner_a_lease_and_the_next_range(coordinator: Coordinator) -> None:
    seen = await shards(coordinator)

    taken = await coordinator.acquire(A.member_id, seen[:2], lease_ms=LEASE_MS)
    view = await beat(coordinator, A)

    first, _, third, _ = sorted(view.shards, key=lambda shard: shard.shard_id)
    assert taken == {0: 1, 1: 1}
    assert (first.owner_id, first.range_id) == (A.member_id, 1)
    assert LEASE_MS - 10_000 < first.lease_until_ms - view.now_ms <= LEASE_MS
    assert third == Shard(2)


async def test_shard_whose_lease_runs_is_not_given_to_another(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0])
    seen = await shards(coordinator)

    taken = await coordinator.acquire(B.member_id, seen, lease_ms=LEASE_MS)

    assert taken == {1: 1, 2: 1, 3: 1}
    assert (await shards(coordinator))[0].owner_id == A.member_id


async def test_shard_whose_lease_is_over_is_given_to_another(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0], lease_ms=SHORT_MS)
    seen = (await shards(coordinator))[:1]
    await asyncio.sleep(2 * SHORT_MS / 1_000)

    taken = await coordinator.acquire(B.member_id, seen, lease_ms=LEASE_MS)

    assert taken == {0: 2}
    assert (await shards(coordinator))[0].owner_id == B.member_id


async def test_force_ignores_the_lease_but_not_what_was_seen(coordinator: Coordinator) -> None:
    old = await shards(coordinator)
    await own(coordinator, A, [0])
    seen = (await shards(coordinator))[:1]

    with_old = await coordinator.acquire(B.member_id, old[:1], lease_ms=LEASE_MS, is_forced=True)
    with_new = await coordinator.acquire(B.member_id, seen, lease_ms=LEASE_MS, is_forced=True)

    assert (with_old, with_new) == ({}, {0: 2})


async def test_one_of_ten_that_acquire_the_same_shards_wins_each(coordinator: Coordinator) -> None:
    seen = await shards(coordinator)

    results = await asyncio.gather(
        *(coordinator.acquire(f"m-{number}", seen, lease_ms=LEASE_MS) for number in range(10))
    )

    won = [shard_id for taken in results for shard_id in taken]
    assert sorted(won) == list(range(NUM_SHARDS))
    assert [shard.range_id for shard in await shards(coordinator)] == [1] * NUM_SHARDS


async def test_beat_renews_the_leases_of_its_member_alone(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0], lease_ms=LEASE_MS)
    await own(coordinator, B, [1], lease_ms=LEASE_MS)

    view = await beat(coordinator, A, lease_ms=10 * LEASE_MS)
    unchanged = await beat(coordinator, A)

    left_ms = {shard.shard_id: shard.lease_until_ms - view.now_ms for shard in view.shards}
    assert 9 * LEASE_MS < left_ms[0] <= 10 * LEASE_MS
    assert left_ms[1] <= LEASE_MS
    assert {shard.shard_id: shard.lease_until_ms for shard in unchanged.shards} == {
        shard.shard_id: shard.lease_until_ms for shard in view.shards
    }


async def test_released_shard_is_free_and_keeps_its_range(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0, 1])

    await coordinator.release(A.member_id, [0], handover_ms=0)
    first, second, *_ = await shards(coordinator)

    assert first == Shard(0, range_id=1)
    assert second.owner_id == A.member_id


async def test_shard_of_another_is_not_released(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0])

    await coordinator.release(B.member_id, [0], handover_ms=0)

    assert (await shards(coordinator))[0].owner_id == A.member_id


async def test_handover_is_known_to_the_new_owner_until_it_is_ended(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0])
    await coordinator.release(A.member_id, [0], handover_ms=30_000)
    await own(coordinator, B, [0])
    view = await beat(coordinator, B)
    during = next(shard for shard in view.shards if shard.shard_id == 0)

    await coordinator.end_handover({0: 7})
    after_another = (await shards(coordinator))[0]
    await coordinator.end_handover({0: 1})
    afterwards = (await shards(coordinator))[0]

    assert (during.range_id, during.handover_range) == (2, 1)
    assert 20_000 < during.handover_until_ms - view.now_ms <= 30_000
    assert after_another.handover_range == 1
    assert (afterwards.handover_range, afterwards.owner_id) == (0, B.member_id)


async def test_handover_lasts_though_its_new_owner_gives_the_shard_up_idle(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0, 1])
    await coordinator.release(A.member_id, [0, 1], handover_ms=30_000)
    before = {shard.shard_id: shard.handover_until_ms for shard in await shards(coordinator)}
    await own(coordinator, B, [0, 1])

    await coordinator.release(B.member_id, [0], handover_ms=0)
    await coordinator.leave(B.member_id)

    first, second, *_ = await shards(coordinator)
    assert first == Shard(0, range_id=2, handover_range=1, handover_until_ms=before[0])
    assert second == Shard(1, range_id=2, handover_range=1, handover_until_ms=before[1])


async def test_end_of_no_handover_changes_nothing(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0])
    before = await shards(coordinator)

    await coordinator.end_handover({})

    assert await shards(coordinator) == before


async def test_member_that_leaves_is_gone_and_its_shards_are_free(coordinator: Coordinator) -> None:
    await beat(coordinator, A)
    await own(coordinator, A, [0, 1])
    await own(coordinator, B, [2])

    await coordinator.leave(A.member_id)
    view = await beat(coordinator, B)

    owners = {shard.shard_id: shard.owner_id for shard in view.shards}
    assert list(view.members) == [B]
    assert owners == {0: None, 1: None, 2: B.member_id, 3: None}


async def test_shards_of_a_member_that_was_removed_can_still_be_left(coordinator: Coordinator) -> None:
    await own(coordinator, A, [0])

    await coordinator.leave(A.member_id)

    assert (await shards(coordinator))[0] == Shard(0, range_id=1)


@pytest.mark.parametrize("member_id", ["x" * 64, "é#1"], ids=["longest", "accented"])
async def test_names_of_members_come_back_as_they_were_given(coordinator: Coordinator, member_id: str) -> None:
    view = await beat(coordinator, Member(member_id, "[::1]:8801", frozenset({Role.SYSTEM})))

    assert list(view.members) == [Member(member_id, "[::1]:8801", frozenset({Role.SYSTEM}))]
