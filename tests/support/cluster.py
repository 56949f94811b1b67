"""The coordinator of a cluster in memory, with time on the running loop's clock."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from server_stub.core.assignment import is_free
from server_stub.core.cluster import ClusterView, Hint, Member, Shard
from server_stub.core.ports import StoreUnavailable


@dataclass
class MemoryCoordinator:
    """Keeps members and shards as a database does; passes the contract suite of coordinators."""

    num_shards: int = 16
    clock: Callable[[], int] = lambda: round(asyncio.get_running_loop().time() * 1_000)
    is_available: bool = True
    shards: dict[int, Shard] = field(init=False)
    members: dict[str, tuple[Member, int]] = field(default_factory=dict)
    """By id, with the instant of the latest heartbeat."""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shards = {shard_id: Shard(shard_id) for shard_id in range(self.num_shards)}

    async def beat(self, member: Member, *, lease_ms: int | None, member_timeout_ms: int) -> ClusterView:
        """See `Coordinator.beat`."""
        now_ms = self._now_ms("beat")
        known, _ = self.members.get(member.member_id, (member, 0))
        member = replace(member, is_draining=member.is_draining or known.is_draining)
        self.members[member.member_id] = (member, now_ms)
        self.members = {id_: each for id_, each in self.members.items() if each[1] + member_timeout_ms >= now_ms}
        if lease_ms is not None:
            for shard in self._owned_by(member.member_id):
                self.shards[shard.shard_id] = replace(shard, lease_until_ms=now_ms + lease_ms)
        members = [each for each, _ in self.members.values()]
        return ClusterView(now_ms, sorted(members, key=lambda each: each.member_id), list(self.shards.values()))

    async def acquire(
        self, member_id: str, seen: Sequence[Shard], *, lease_ms: int, is_forced: bool = False
    ) -> Mapping[int, int]:
        """See `Coordinator.acquire`."""
        now_ms = self._now_ms("acquire")
        taken: dict[int, int] = {}
        for each in seen:
            shard = self.shards[each.shard_id]
            if shard.range_id != each.range_id or not (is_forced or is_free(shard, now_ms)):
                continue
            taken[shard.shard_id] = shard.range_id + 1
            self.shards[shard.shard_id] = replace(
                shard, range_id=shard.range_id + 1, owner_id=member_id, lease_until_ms=now_ms + lease_ms
            )
        return taken

    async def release(self, member_id: str, shard_ids: Collection[int], *, handover_ms: int) -> None:
        """See `Coordinator.release`."""
        now_ms = self._now_ms("release")
        for shard in self._owned_by(member_id):
            if shard.shard_id in shard_ids:
                self._free(shard)
                if handover_ms:
                    self.shards[shard.shard_id] = replace(
                        self.shards[shard.shard_id],
                        handover_range=shard.range_id,
                        handover_until_ms=now_ms + handover_ms,
                    )

    async def end_handover(self, ranges: Mapping[int, int]) -> None:
        """See `Coordinator.end_handover`."""
        self._now_ms("end_handover")
        for shard_id, range_id in ranges.items():
            if self.shards[shard_id].handover_range == range_id:
                self.shards[shard_id] = replace(self.shards[shard_id], handover_range=0, handover_until_ms=0)

    async def leave(self, member_id: str) -> None:
        """See `Coordinator.leave`."""
        self._now_ms("leave")
        for shard in self._owned_by(member_id):
            self._free(shard)
        self.members.pop(member_id, None)

    def owners(self) -> dict[str | None, int]:
        """Count shards by their owners."""
        counts: dict[str | None, int] = {}
        for shard in self.shards.values():
            counts[shard.owner_id] = counts.get(shard.owner_id, 0) + 1
        return counts

    def _now_ms(self, call: str) -> int:
        if not self.is_available:
            raise StoreUnavailable("down")
        self.calls.append(call)
        return self.clock()

    def _owned_by(self, member_id: str) -> list[Shard]:
        return [shard for shard in self.shards.values() if shard.owner_id == member_id]

    def _free(self, shard: Shard) -> None:
        self.shards[shard.shard_id] = replace(shard, owner_id=None, lease_until_ms=0)


@dataclass
class HintNetwork:
    """Carries hints between the servers of a test at once."""

    listeners: dict["MemoryHints", Callable[[Hint], None]] = field(default_factory=dict)

    def join(self) -> "MemoryHints":
        """Give the hints of another server."""
        return MemoryHints(self)


@dataclass(eq=False)
class MemoryHints:
    """One server's end of a `HintNetwork`."""

    network: HintNetwork
    are_working: bool = True
    sent: list[Hint] = field(default_factory=list)

    async def start(self, on_hint: Callable[[Hint], None]) -> None:
        """See `Hints.start`."""
        self.network.listeners[self] = on_hint

    def send(self, hint: Hint) -> None:
        """See `Hints.send`."""
        self.sent.append(hint)
        for listener, on_hint in self.network.listeners.items():
            if listener is not self and listener.are_working:
                on_hint(hint)

    async def close(self) -> None:
        """See `Hints.close`."""
        self.network.listeners.pop(self, None)
