"""The servers of one database as plain data, and what they ask of it (idempotency-and-shards D.7).

Instants are milliseconds of the database's clock: nothing depends on the clocks of different hosts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
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


class Neighbours(Protocol):
    """What is known of the other servers at the moment."""

    @property
    def has_peers(self) -> bool:
        """Whether there are any."""
        ...

    @property
    def has_hints(self) -> bool:
        """Whether their hints get here."""
        ...


class Coordinator(Protocol):
    """The part of a database in which servers find each other and share the shards out. Each method is a transaction.

    Raises:
        StoreUnavailable: From any of them; nothing was changed, or, when the connection broke at the commit, perhaps.
    """

    async def beat(self, member: Member, *, lease_ms: int | None, member_timeout_ms: int) -> ClusterView:
        """Say that a member is alive, remove members that are not, and give the view after it.

        Args:
            member: Is added when the database does not know it. Once it is draining, it stays so; anybody may say that
                it is, and it sees that in its view.
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
            handover_ms: How long the member may go on with the calls that it has claimed; 0 when it makes none, so that
                what its predecessor has handed over is still left alone.
        """
        ...

    async def end_handover(self, ranges: Mapping[int, int]) -> None:
        """Say that the calls claimed under some former ranges, by shard, are finished."""
        ...

    async def leave(self, member_id: str) -> None:
        """Remove a member. What it owns is released."""
        ...


@dataclass(frozen=True, slots=True)
class Hint:
    """What a server tells the others so that they look at the database sooner than they would by themselves.

    Attributes:
        shard_ids: Shards in which calls have become due that nobody has claimed.
        timer_shard_ids: Shards that have new timers.
        closed: Ids of executions that have closed.
        with_ended_states: Ids of other executions of which state executions have ended.
        withdrawn: Ids of executions of which calls are not to be made any more that may have been found.
        is_cluster_changed: Whether a member came or goes, or shards were given up.
    """

    shard_ids: frozenset[int] = field(default_factory=frozenset)
    timer_shard_ids: frozenset[int] = field(default_factory=frozenset)
    closed: frozenset[str] = field(default_factory=frozenset)
    with_ended_states: frozenset[str] = field(default_factory=frozenset)
    withdrawn: frozenset[str] = field(default_factory=frozenset)
    is_cluster_changed: bool = False

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return self != Hint()

    def __or__(self, other: "Hint") -> "Hint":
        """Say what both say."""
        return Hint(
            self.shard_ids | other.shard_ids,
            self.timer_shard_ids | other.timer_shard_ids,
            self.closed | other.closed,
            self.with_ended_states | other.with_ended_states,
            self.withdrawn | other.withdrawn,
            self.is_cluster_changed or other.is_cluster_changed,
        )


class Hints(Protocol):
    """Carries hints between the servers of one database. Any of them may be lost, so that nothing depends on them."""

    @property
    def are_working(self) -> bool:
        """Whether hints get here at the moment, as far as is known."""
        ...

    async def start(self, on_hint: Callable[[Hint], None]) -> None:
        """Begin to listen. `on_hint` is called in the event loop with what other servers send, never with one's own."""
        ...

    def send(self, hint: Hint) -> None:
        """Have a hint sent soon; it never waits, and drops what cannot be sent."""
        ...

    async def close(self) -> None:
        """Send what is left, if that is quick, and stop."""
        ...
