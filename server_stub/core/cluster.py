"""The servers of one database as plain data, and what they ask of it (idempotency-and-shards D.7).

Instants are milliseconds of the database's clock: nothing depends on the clocks of different hosts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """What a server process does (idempotency-and-shards D.9)."""

    API = "api"
    ASYNC = "async"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Member:
    """A server process. `member_id` is new with each start of one."""

    member_id: str
    address: str
    roles: frozenset[Role]
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, who owns it, and until when if the owner does not renew its lease.

    Claims of `handover_range` are calls that the former owner was making when it gave the shard up, and finishes: they
    are left alone until `handover_until_ms`.
    """

    shard_id: int
    range_id: int = 0
    owner_id: str | None = None
    lease_until_ms: int = 0
    handover_range: int = 0
    handover_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The members that are alive and all shards, at one instant."""

    now_ms: int
    members: Sequence[Member]
    shards: Sequence[Shard]


class Coordinator(Protocol):
    """The part of a database in which servers find each other and share the shards out. Each method is a transaction.

    Raises:
        StoreUnavailable: From any of them; nothing was changed, or, when the connection broke at the commit, perhaps.
    """

    async def beat(self, member: Member, *, lease_ms: int | None, member_timeout_ms: int) -> ClusterView:
        """Say that a member is alive, remove members that are not, and give the view after it.

        Args:
            member: Is added when the database does not know it.
            lease_ms: Extends the leases of all shards that the member owns, to so long from now; None leaves them.
            member_timeout_ms: Members that have not said so for this long are removed.
        """
        ...

    async def acquire(
        self, member_id: str, seen: Sequence[Shard], *, lease_ms: int, is_forced: bool = False
    ) -> Mapping[int, int]:
        """Take shards that are as they were seen, whose lease is over or which nobody owns; force ignores the lease.

        Returns:
            By shard, the new range id, which is one more than before.
        """
        ...

    async def release(self, member_id: str, shard_ids: Collection[int], *, handover_ms: int) -> None:
        """Give up shards; those that are not the member's are left alone.

        Args:
            handover_ms: How long the member may go on with the calls that it has claimed; 0 when it makes none.
        """
        ...

    async def end_handover(self, ranges: Mapping[int, int]) -> None:
        """Say that the calls claimed under some former ranges, by shard, are finished."""
        ...

    async def leave(self, member_id: str) -> None:
        """Remove a member. What it owns is released."""
        ...
