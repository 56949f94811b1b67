"""Keeps this server among the members, and its shards its own (idempotency-and-shards D.7)."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from server_stub.cluster.clock import SyncedClock
from server_stub.cluster.identity import predecessors
from server_stub.core.assignment import assign, plan
from server_stub.core.cluster import ClusterView, Coordinator, Hint, Hints, Member, Shard
from server_stub.core.ports import StoreUnavailable

logger = logging.getLogger(__name__)

_MARGIN = 0.2
"""The part of a lease that is not used: 3 s of 15 s, for clocks that differ and for what is on its way."""
_RENEWALS = 3
"""How often a lease is renewed in its time: every 5 s of 15 s."""
_HASTE = 20
"""How many times as often a server looks when it waits for shards that another one is giving up."""
_LEAVE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperOptions:
    """When a server says that it lives.

    Attributes:
        heartbeat: How often it says so, and looks at the other servers.
        lease: How long a shard stays its own after it has last said so.
        member_timeout: How long the others take a server that says nothing for alive.
        handover: How long it may go on with calls of a shard that it has given up.
    """

    heartbeat: timedelta = timedelta(seconds=2)
    lease: timedelta = timedelta(seconds=15)
    member_timeout: timedelta = timedelta(seconds=10)
    handover: timedelta = timedelta(seconds=10)


class ShardUser(Protocol):
    """What works on the shards: delivery and the dispatcher. It is called in the event loop and does not wait."""

    def shards_gained(self, shard_ids: Collection[int]) -> None:
        """Look at once for what is due in these shards: they are new here, or a former owner has finished its calls."""
        ...

    def shards_lost(self, shard_ids: Collection[int]) -> Collection[int]:
        """Send no more calls of these shards; give those of them in which calls are still being made."""
        ...

    async def calls_ended(self, shard_id: int) -> None:
        """Wait until none of the calls is being made any more that were when the shard was lost."""
        ...


@dataclass(slots=True)
class KeeperCounters:
    """Shards that changed hands since the start of the server, for metrics.

    Attributes:
        gained: They became this server's.
        taken_over: Those of them that another server had and did not give up.
        given_up: This server released them.
        lost: Another server has taken them.
        expired: Their leases could not be renewed in time.
    """

    gained: int = 0
    taken_over: int = 0
    given_up: int = 0
    lost: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class _Owned:
    """A shard of this server; `until_s` and `handover_until_s` are instants of the loop's clock."""

    range_id: int
    since_ms: int
    until_s: float
    handover_range: int
    handover_until_s: float


class ShardKeeper:
    """Implements `Ownership` for a server among others.

    Whether a shard is still this server's is judged by the loop's clock alone, from before the request was sent that
    extended the lease. So a server that cannot reach the database, or stood still, stops by itself before another one
    may take its shards, whatever the clocks of the machines say.

    Args:
        coordinator: Where the servers meet.
        member: This server.
        num_shards: How many shards there are.
        clock: Is told the time of the database.
        options: Intervals.
        hints: Carries word to other servers; None where there is no such thing.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        member: Member,
        num_shards: int,
        clock: SyncedClock,
        options: KeeperOptions,
        *,
        hints: Hints | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._member = member
        self._num_shards = num_shards
        self._clock = clock
        self._hints = hints
        self._heartbeat_s = options.heartbeat.total_seconds()
        self._lease_s = options.lease.total_seconds()
        self._member_timeout_ms = options.member_timeout // timedelta(milliseconds=1)
        self._handover_ms = options.handover // timedelta(milliseconds=1)
        self._time = asyncio.get_running_loop().time
        self._user: ShardUser
        self._owned: Mapping[int, _Owned] = {}
        self._view = ClusterView(0, (), ())
        self._changed_at_s = 0.0
        """When the view was last another one than before."""
        self._renew_at_s = 0.0
        self._beat_at_s: float | None = None
        """When the latest beat was sent that was answered."""
        self._outage_s = 0.0
        """How long it could not beat before that, while the others get time to come back."""
        self._outage_forgotten_at_s = 0.0
        self._draining_ends_s: float | None = None
        """From when on everything is given up; None while the server is to go on."""
        self._handing_over: dict[int, int] = {}
        """The latest ranges, by shard, that were given up while calls were being made."""
        self._finished: set[tuple[int, int]] = set()
        """Shards and ranges given up so whose last call has ended; the database is to be told."""
        self._released = asyncio.Event()
        self._wake = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._finishers: set[asyncio.Task[None]] = set()
        self._is_down = False
        self.counters = KeeperCounters()

    @property
    def num_shards(self) -> int:
        """How many shards there are."""
        return self._num_shards

    @property
    def shard_ids(self) -> Collection[int]:
        """The shards that are this server's."""
        return self._owned.keys()

    @property
    def view(self) -> ClusterView:
        """The members and shards as they were last seen."""
        return self._view

    @property
    def member(self) -> Member:
        """This server."""
        return self._member

    @property
    def has_peers(self) -> bool:
        """Whether other servers were alive when last seen."""
        return any(member.member_id != self._member.member_id for member in self._view.members)

    @property
    def is_down(self) -> bool:
        """Whether the latest beat failed, or none was answered for as long as a lease lasts.

        The database is away or only to be read from, or this server cannot do its part.
        """
        return self._is_down or (self._beat_at_s is not None and self._time() - self._beat_at_s > self._lease_s)

    @property
    def has_hints(self) -> bool:
        """Whether other servers' hints get here."""
        return self._hints is not None and self._hints.are_working

    @property
    def has_handovers(self) -> bool:
        """Whether former owners of this server's shards are still making calls."""
        return any(owned.handover_range for owned in self._owned.values())

    def range_of(self, shard_id: int) -> int:
        """See `Ownership.range_of`; it may be called on any thread."""
        owned = self._owned.get(shard_id)
        return owned.range_id if owned is not None and self._time() < owned.until_s else 0

    def is_handed_over(self, shard_id: int, claim_range: int, due_at_ms: int) -> bool:
        """See `Ownership.is_handed_over`; it may be called on any thread."""
        owned = self._owned.get(shard_id)
        return (
            owned is not None
            and claim_range == owned.handover_range != 0
            and due_at_ms <= owned.since_ms
            and self._time() < owned.handover_until_s
        )

    async def start(self, user: ShardUser) -> None:
        """Join the members, take the shards that are to be had, and go on doing so.

        What was this server's before it crashed and was started again is taken over at once.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """
        self._user = user
        view = await self._beat()
        for member_id in predecessors(view, self._member.member_id):
            logger.info("taking over from the server that was here before", extra={"member_id": member_id})
            await self._coordinator.leave(member_id)
        self._tell(Hint(is_cluster_changed=True))
        await self._turn()
        self._task = asyncio.create_task(self._run(), name="xdb-shard-keeper")

    def look(self) -> None:
        """Look at the other servers soon: something has changed."""
        self._wake.set()

    def begin_drain(self) -> None:
        """Begin to give up all shards: at once if the others hear of it, else when they have seen that it will be."""
        if self._draining_ends_s is not None:
            return
        self._member = replace(self._member, is_draining=True)
        is_noticed = self.has_hints or not self.has_peers
        self._draining_ends_s = self._time() + (0.0 if is_noticed else self._heartbeat_s * (1 + 2 / _HASTE))
        self.look()

    async def drain(self) -> None:
        """Give up all shards, and come back when that is done or the database does not answer."""
        self.begin_drain()
        if self._task is None or self._is_down:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(3 * self._heartbeat_s):
                await self._released.wait()

    async def close(self) -> None:
        """Leave the other servers, also after a start that failed halfway. No call may be under way any more."""
        tasks = [*self._finishers] if self._task is None else [self._task, *self._finishers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._beat_at_s is None:
            return
        self._owned = {}
        self._set_alarm()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._coordinator.end_handover(self._handing_over)
                await self._coordinator.leave(self._member.member_id)
        except (StoreUnavailable, TimeoutError) as error:
            logger.warning("could not leave; the others wait until the leases are over", extra={"error": str(error)})
        self._tell(Hint(is_cluster_changed=True))

    def _tell(self, hint: Hint) -> None:
        if self._hints is not None and self.has_peers:
            self._hints.send(hint)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            self._wake.clear()
            try:
                async with asyncio.timeout(self._lease_s):
                    await self._turn()
            except Exception as error:
                # Without its keeper a server would stand still for ever; the next beat may well go better.
                self._note_down(error)
            else:
                self._note_up()

    async def _turn(self) -> None:
        """Say that this server lives, see what is its own, and do what is planned then."""
        view = await self._beat()
        is_handover_over = await self._end_handovers()
        is_richer = await self._carry_out(view)
        if is_handover_over or is_richer:
            await self._beat()
        if self._draining_ends_s is not None and not self._owned:
            self._released.set()

    async def _end_handovers(self) -> bool:
        """Tell the database whose calls have ended; say whether a shard of them is this server's again."""
        finished = set(self._finished)
        ended = {shard_id: range_id for shard_id, range_id in finished if self._handing_over.get(shard_id) == range_id}
        if ended:
            await self._coordinator.end_handover(ended)
            self._tell(Hint(is_cluster_changed=True))
        for shard_id in ended:
            del self._handing_over[shard_id]
        self._finished -= finished
        return not ended.keys().isdisjoint(self._owned)

    async def _beat(self) -> ClusterView:
        sent_s = self._time()
        is_renewing = sent_s + self._heartbeat_s > self._renew_at_s
        outage_s = self._outage_until(sent_s)
        view = await self._coordinator.beat(
            self._member,
            lease_ms=round(self._lease_s * 1_000) if is_renewing else None,
            member_timeout_ms=self._member_timeout_ms + round(outage_s * 1_000),
        )
        self._note_beat(sent_s, outage_s)
        if is_renewing:
            self._renew_at_s = sent_s + self._lease_s / _RENEWALS
        self._clock.learn(view.now_ms, sent_s=sent_s, received_s=self._time())
        if _without_instants(view) != _without_instants(self._view):
            self._changed_at_s = self._time()
        self._view = view
        self._note_drain(view)
        self._adopt(view, sent_s)
        return view

    def _outage_until(self, now_s: float) -> float:
        """Give for how many seconds the others may have been kept from beating, as this server was.

        That is not counted against them, nor do they have less time than always to come back afterwards: else the first
        one to be back would take the shards of all.
        """
        known_s = self._outage_s if now_s < self._outage_forgotten_at_s else 0.0
        silent_s = 0.0 if self._beat_at_s is None else now_s - self._beat_at_s
        return known_s + silent_s if silent_s > 2 * self._heartbeat_s else known_s

    def _note_beat(self, sent_s: float, outage_s: float) -> None:
        self._beat_at_s = sent_s
        if outage_s > self._outage_s:
            self._outage_forgotten_at_s = sent_s + self._member_timeout_ms / 1_000
        self._outage_s = outage_s

    def _note_drain(self, view: ClusterView) -> None:
        """Remember what an operator has said, should the database forget it."""
        draining = replace(self._member, is_draining=True)
        if self._member != draining and draining in view.members:
            logger.warning("an operator drains this server: it gets no shards until it is started anew")
            self._member = draining

    def _adopt(self, view: ClusterView, sent_s: float) -> None:
        """Own what the view says, and nothing else."""
        now_s = self._time()
        owned: dict[int, _Owned] = {}
        for shard in view.shards:
            until_s = sent_s + (shard.lease_until_ms - view.now_ms) / 1_000 - self._lease_s * _MARGIN
            if shard.owner_id == self._member.member_id and now_s < until_s:
                owned[shard.shard_id] = self._owned_shard(shard, view.now_ms, until_s)
        before, self._owned = self._owned, owned
        self._set_alarm()
        kept = {id_ for id_ in owned.keys() & before.keys() if owned[id_].range_id == before[id_].range_id}
        if lost := before.keys() - kept:
            self.counters.lost += len(lost)
            logger.warning("shards were lost", extra={"shard_ids": sorted(lost)})
            self._user.shards_lost(lost)
        if gained := owned.keys() - kept:
            self.counters.gained += len(gained)
            logger.info("shards were gained", extra={"shard_ids": sorted(gained)})
        ended = {id_ for id_ in kept if before[id_].handover_range and not owned[id_].handover_range}
        if gained or ended:
            self._user.shards_gained(gained | ended)

    def _owned_shard(self, shard: Shard, now_ms: int, until_s: float) -> _Owned:
        known = self._owned.get(shard.shard_id)
        is_known = known is not None and known.range_id == shard.range_id
        left_ms = shard.handover_until_ms - now_ms
        is_handed_over = shard.handover_range != 0 and left_ms > 0
        return _Owned(
            shard.range_id,
            since_ms=known.since_ms if known is not None and is_known else now_ms,
            until_s=until_s,
            handover_range=shard.handover_range if is_handed_over else 0,
            handover_until_s=self._time() + left_ms / 1_000 if is_handed_over else 0.0,
        )

    def _set_alarm(self) -> None:
        """Wake when the first lease or handover ends, should nothing have been heard of the database until then."""
        if self._alarm is not None:
            self._alarm.cancel()
        instants = [owned.until_s for owned in self._owned.values()]
        instants += [owned.handover_until_s for owned in self._owned.values() if owned.handover_range]
        self._alarm = asyncio.get_running_loop().call_at(min(instants), self._end_what_is_over) if instants else None

    def _end_what_is_over(self) -> None:
        now_s = self._time()
        over = {shard_id for shard_id, owned in self._owned.items() if owned.until_s <= now_s}
        ended = {
            shard_id
            for shard_id, owned in self._owned.items()
            if owned.handover_range and owned.handover_until_s <= now_s and shard_id not in over
        }
        self._owned = {
            shard_id: replace(owned, handover_range=0) if shard_id in ended else owned
            for shard_id, owned in self._owned.items()
            if shard_id not in over
        }
        self._set_alarm()
        if over:
            self.counters.expired += len(over)
            logger.error(
                "leases were not renewed in time; nothing is done in these shards", extra={"shard_ids": sorted(over)}
            )
            self._user.shards_lost(over)
        if ended:
            self._user.shards_gained(ended)

    async def _carry_out(self, view: ClusterView) -> bool:
        """Release and acquire what is to be; say whether anything was acquired."""
        member_id = self._member.member_id
        todo = plan(view, member_id)
        release = todo.release
        if self._draining_ends_s is not None:
            is_time = self._time() >= self._draining_ends_s
            mine = frozenset(shard.shard_id for shard in view.shards if shard.owner_id == member_id)
            release = mine if is_time else frozenset()
        if release:
            await self._release(release)
        if not todo.acquire:
            return False
        acquired = await self._coordinator.acquire(member_id, todo.acquire, lease_ms=round(self._lease_s * 1_000))
        self.counters.taken_over += sum(s.owner_id is not None for s in todo.acquire if s.shard_id in acquired)
        return bool(acquired)

    async def _release(self, shard_ids: Collection[int]) -> None:
        """Give up shards. The new owners need not wait for calls that are being made, and leave those alone."""
        ranges = {shard_id: owned.range_id for shard_id, owned in self._owned.items() if shard_id in shard_ids}
        self._owned = {shard_id: owned for shard_id, owned in self._owned.items() if shard_id not in shard_ids}
        self._set_alarm()
        busy = set(self._user.shards_lost(shard_ids)) & ranges.keys()
        member_id = self._member.member_id
        if idle := set(shard_ids) - busy:
            await self._coordinator.release(member_id, idle, handover_ms=0)
        if busy:
            await self._coordinator.release(member_id, busy, handover_ms=self._handover_ms)
        for shard_id in busy:
            self._handing_over[shard_id] = ranges[shard_id]
            task = asyncio.create_task(self._finish(shard_id, ranges[shard_id]), name=f"xdb-handover-{shard_id}")
            self._finishers.add(task)
            task.add_done_callback(self._finishers.discard)
        self.counters.given_up += len(shard_ids)
        logger.info("shards were given up", extra={"shard_ids": sorted(shard_ids), "busy_shard_ids": sorted(busy)})
        self._tell(Hint(is_cluster_changed=True))

    async def _finish(self, shard_id: int, range_id: int) -> None:
        await self._user.calls_ended(shard_id)
        self._finished.add((shard_id, range_id))
        self.look()

    def _pause_s(self) -> float:
        """Give how long to wait for the next look: less when a shard is to be had before."""
        now_s = self._time()
        waits_s = [self._heartbeat_s]
        if self._draining_ends_s is not None and self._draining_ends_s > now_s:
            waits_s.append(self._draining_ends_s - now_s)
        if self._is_down:
            return self._heartbeat_s
        view, member_id = self._view, self._member.member_id
        alive = {member.member_id for member in view.members}
        assigned = assign(view)
        wanted = [s for s in view.shards if assigned.get(s.shard_id) == member_id and s.owner_id != member_id]
        is_recent = now_s - self._changed_at_s < self._member_timeout_ms / 1_000
        if not self.has_hints and is_recent and any(shard.owner_id in alive for shard in wanted):
            waits_s.append(self._heartbeat_s / _HASTE)
        ends = [shard.lease_until_ms - view.now_ms for shard in wanted if shard.owner_id not in alive]
        if ends:
            waits_s.append(max(min(ends) / 1_000, self._heartbeat_s / _HASTE))
        return min(waits_s)

    def _note_down(self, error: Exception) -> None:
        if not self._is_down and isinstance(error, StoreUnavailable | TimeoutError):
            logger.error("cannot renew leases: the database is unavailable", extra={"error": str(error) or "no answer"})
        elif not self._is_down:
            logger.error("cannot look at the other servers", exc_info=error)
        self._is_down = True

    def _note_up(self) -> None:
        if self._is_down:
            logger.warning("leases are renewed again")
        self._is_down = False


def _without_instants(view: ClusterView) -> object:
    """Give what of a view is the same until a server comes, goes or takes something."""
    shards = [(shard.shard_id, shard.range_id, shard.owner_id, shard.handover_range) for shard in view.shards]
    return view.members, shards
