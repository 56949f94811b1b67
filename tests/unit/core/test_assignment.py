"""Which server is to own which shard."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from server_stub.core.assignment import Plan, assign, plan
from server_stub.core.cluster import ClusterView, Member, Role, Shard

NOW_MS = 1_000_000
LEASE_MS = 15_000
ALL_ROLES = frozenset(Role)


def member(member_id: str, *roles: Role, is_draining: bool = False) -> Member:
    return Member(member_id, f"{member_id}:8801", frozenset(roles) or ALL_ROLES, is_draining)


def view_of(*members: Member, owners: dict[int, str] | None = None, num_shards: int = 16) -> ClusterView:
    """Give a view in which the owners hold leases; the other shards are nobody's."""
    owned = {} if owners is None else owners
    shards = [
        Shard(
            shard_id, range_id=1, owner_id=owned.get(shard_id), lease_until_ms=NOW_MS + LEASE_MS * (shard_id in owned)
        )
        for shard_id in range(num_shards)
    ]
    return ClusterView(NOW_MS, members, shards)


member_ids = st.lists(st.sampled_from([f"server-{number}" for number in range(6)]), min_size=1, unique=True)


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    """Draw clusters whose shards are owned by members, by servers that are gone, or by nobody."""
    ids = draw(member_ids)
    members = [replace(member(each), is_draining=draw(st.booleans())) for each in ids]
    num_shards = draw(st.integers(1, 20))
    owners = draw(st.dictionaries(st.integers(0, num_shards - 1), st.sampled_from([*ids, "gone"])))
    return view_of(*members, owners=owners, num_shards=num_shards)


@given(views())
def test_members_get_equally_many_shards_or_one_more(view: ClusterView) -> None:
    counts = Counter(assign(view).values())

    takers = [each.member_id for each in view.members if not each.is_draining]
    assert set(counts) <= set(takers)
    if takers:
        least = len(view.shards) // len(takers)
        assert all(counts[member_id] in (least, least + 1) for member_id in takers)
        assert sum(counts.values()) == len(view.shards)


@given(views(), st.randoms())
def test_assignment_does_not_depend_on_the_order_in_which_members_and_shards_are_seen(
    view: ClusterView, random: Random
) -> None:
    members, shards = list(view.members), list(view.shards)
    random.shuffle(members)
    random.shuffle(shards)

    assert assign(replace(view, members=members, shards=shards)) == assign(view)


@given(views())
def test_no_more_shards_move_than_balance_asks_for(view: ClusterView) -> None:
    assigned = assign(view)

    takers = [each.member_id for each in view.members if not each.is_draining]
    owned = Counter(shard.owner_id for shard in view.shards if shard.owner_id in takers)
    stays = sum(assigned[shard.shard_id] == shard.owner_id for shard in view.shards) if takers else 0
    least, rest = divmod(len(view.shards), max(len(takers), 1))
    most_that_can_stay = sum(sorted(min(count, least) for count in owned.values()))
    most_that_can_stay += min(sum(count > least for count in owned.values()), rest)
    assert stays == most_that_can_stay


@given(views())
def test_plans_lead_to_a_balance_in_which_nobody_plans_anything(view: ClusterView) -> None:
    takers = [each.member_id for each in view.members if not each.is_draining]
    for after_leases in (False, True, True):
        for member_id in takers:
            view = _carry_out(view, member_id, after_leases=after_leases)

    assert [plan(view, member_id) for member_id in takers] == [Plan([], frozenset())] * len(takers)
    if takers:
        assert {shard.shard_id: shard.owner_id for shard in view.shards} == assign(view)


def _carry_out(view: ClusterView, member_id: str, *, after_leases: bool) -> ClusterView:
    """Do what a member plans; after the leases, those of servers that are gone or go are over."""
    alive = {each.member_id for each in view.members if not each.is_draining}
    if after_leases:
        shards = [
            shard if shard.owner_id in alive else replace(shard, owner_id=None, lease_until_ms=0)
            for shard in view.shards
        ]
        view = replace(view, shards=shards)
    todo = plan(view, member_id)
    acquired = {shard.shard_id for shard in todo.acquire}
    shards = []
    for shard in view.shards:
        if shard.shard_id in acquired:
            shard = replace(shard, owner_id=member_id, range_id=shard.range_id + 1, lease_until_ms=NOW_MS + LEASE_MS)
        elif shard.shard_id in todo.release:
            shard = replace(shard, owner_id=None, lease_until_ms=0)
        shards.append(shard)
    return replace(view, shards=shards)


def test_two_members_share_sixteen_shards_evenly() -> None:
    counts = Counter(assign(view_of(member("a"), member("b"))).values())

    assert counts == {"a": 8, "b": 8}


def test_member_that_joins_takes_only_its_part_from_the_owner() -> None:
    view = view_of(member("a"), member("b"), owners=dict.fromkeys(range(16), "a"))

    assert len(plan(view, "a").release) == 8
    assert plan(view, "a").acquire == []
    assert plan(view, "b") == Plan([], frozenset())


def test_shards_of_a_server_that_is_gone_are_acquired_only_when_its_lease_is_over() -> None:
    view = view_of(member("a"), owners=dict.fromkeys(range(16), "gone"))

    before = plan(view, "a")
    after = plan(replace(view, now_ms=NOW_MS + LEASE_MS + 1), "a")

    assert before.acquire == []
    assert [shard.shard_id for shard in after.acquire] == list(range(16))


def test_member_without_the_role_async_gets_no_shards() -> None:
    view = view_of(member("a", Role.API, Role.SYSTEM), member("b"))

    assert set(assign(view).values()) == {"b"}


def test_nobody_is_assigned_anything_when_nobody_takes_shards() -> None:
    view = view_of(member("a", is_draining=True), member("b", Role.API), owners={3: "a"})

    assert assign(view) == {}
    assert plan(view, "a") == Plan([], frozenset())


def test_shard_whose_former_owner_still_makes_calls_is_not_passed_on() -> None:
    view = view_of(member("a"), member("b"), owners=dict.fromkeys(range(16), "a"))
    handed_over = [replace(shard, handover_range=1, handover_until_ms=NOW_MS + 5_000) for shard in view.shards]
    view = replace(view, shards=handed_over)

    during = plan(view, "a")
    afterwards = plan(replace(view, now_ms=NOW_MS + 5_000), "a")

    assert during.release == frozenset()
    assert len(afterwards.release) == 8
