"""Which server is to own which shard: worked out by each server alone, from what all of them see.

Servers whose views differ for a moment disagree for a moment. That is harmless: a shard is taken by a comparison with
what was seen, and what its owner does is fenced by the range id (idempotency-and-shards D.7).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from server_stub.core.cluster import ClusterView, Role, Shard


@dataclass(frozen=True, slots=True)
class Plan:
    """What one member is to do about shards.

    Attributes:
        acquire: Shards, as they were seen, that are the member's by assignment and that nobody owns any more.
        release: Shards that the member owns and another one is to own.
    """

    acquire: Sequence[Shard] = ()
    release: frozenset[int] = frozenset()


def takers(view: ClusterView) -> set[str]:
    """Give the ids of the members that take shards: those with the role async that are not draining."""
    return {member.member_id for member in view.members if Role.ASYNC in member.roles and not member.is_draining}


def assign(view: ClusterView) -> Mapping[int, str]:
    """Give each shard to one of the members that take shards; by shard, the member id.

    Every member gets the same number of shards, or one more. Within that, a shard stays with its owner, so that no more
    shards move than have to. The others go where a hash of shard and member puts them, as in rendezvous hashing.

    Returns:
        All shards, or none when no member takes any.
    """
    member_ids = takers(view)
    if not member_ids:
        return {}
    owned: dict[str, list[int]] = {member_id: [] for member_id in member_ids}
    for shard in view.shards:
        if shard.owner_id in owned:
            owned[shard.owner_id].append(shard.shard_id)
    room = _quotas(owned, len(view.shards))
    assigned: dict[int, str] = {}
    kept = [(shard_id, member_id) for member_id, shard_ids in owned.items() for shard_id in shard_ids]
    all_pairs = [(shard.shard_id, member_id) for shard in view.shards for member_id in member_ids]
    for pairs in (kept, all_pairs):
        for shard_id, member_id in sorted(pairs, key=lambda pair: _rank(*pair)):
            if shard_id not in assigned and room[member_id]:
                assigned[shard_id] = member_id
                room[member_id] -= 1
    return assigned


def plan(view: ClusterView, member_id: str) -> Plan:
    """Say what a member is to do next.

    A shard whose former owner still makes calls of it is not passed on, or nobody would wait for those.
    """
    assigned = assign(view)
    mine = [shard for shard in view.shards if assigned.get(shard.shard_id) == member_id]
    others = [shard for shard in view.shards if assigned.get(shard.shard_id, member_id) != member_id]
    return Plan(
        acquire=[shard for shard in mine if shard.owner_id != member_id and is_free(shard, view.now_ms)],
        release=frozenset(
            shard.shard_id
            for shard in others
            if shard.owner_id == member_id and not (shard.handover_range and shard.handover_until_ms > view.now_ms)
        ),
    )


def is_free(shard: Shard, now_ms: int) -> bool:
    """Whether nobody owns the shard, or its owner has let the lease end."""
    return shard.owner_id is None or shard.lease_until_ms < now_ms


def _quotas(owned: Mapping[str, Sequence[int]], num_shards: int) -> dict[str, int]:
    """Say how many shards each member is to have; what does not divide goes to those that have most already."""
    least, rest = divmod(num_shards, len(owned))
    by_need = sorted(owned, key=lambda member_id: (-min(len(owned[member_id]), least + 1), _rank(-1, member_id)))
    return {member_id: least + (place < rest) for place, member_id in enumerate(by_need)}


def _rank(shard_id: int, member_id: str) -> tuple[int, str]:
    """Order members for a shard: the same in every server, and different for each shard."""
    return crc32(f"{shard_id}\0{member_id}".encode()), member_id
