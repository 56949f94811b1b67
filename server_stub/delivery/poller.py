"""Finds soon what other servers have made due in the shards of this one (idempotency-and-shards D.6, "Wake-up").

Hints of the other servers say where to look. A hint may be lost, and some databases carry none, so that the poller also
looks by itself: often while it finds something, seldom while it does not, and never while there is no other server.
After the last of them has left it goes on for a while: a server may commit until it leaves, and nobody else looks.

Where there are no hints, it also sees whether the calls that wait in memory for a worker are still due.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from server_stub.core.cluster import Hint, Neighbours
from server_stub.core.model import CallKey, Timer
from server_stub.core.ports import Clock, Ownership, Store

logger = logging.getLogger(__name__)

_SHORTEST_INTERVAL_S = 0.02
_INTERVALS_OF_TIMERS = 5
"""Timers are looked for less often: most that another server makes come with a call, and both are found together."""


class SharingNeighbours(Neighbours, Protocol):
    """The other servers, with whom shards are shared."""

    @property
    def has_handovers(self) -> bool:
        """Whether former owners of shards are still making calls, and with them timers."""
        ...


class CallRoom(Protocol):
    """Where calls go: the dispatcher."""

    async def wait_for_room(self) -> None:
        """Wait until there is room for many."""
        ...

    def waiting_keys(self) -> Collection[CallKey]:
        """Name the calls that no worker has."""
        ...

    def drop_waiting(self, keys: Collection[CallKey]) -> None:
        """Do not make calls, as far as no worker has them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PollerOptions:
    """How often the database is asked.

    Attributes:
        poll_interval: How often when idle.
        look_ahead: What is due within it is claimed. The polls go on for so long after the last other server was seen;
            longer than the interval of the scans, which find all that becomes due later.
        page_size: How many rows are read at a time.
    """

    poll_interval: timedelta = timedelta(seconds=1)
    look_ahead: timedelta = timedelta(seconds=60)
    page_size: int = 1_000


class Poller:
    """Asks for calls that nobody has claimed, and for new timers.

    Args:
        store: Is asked.
        clock: Wall time in milliseconds.
        ownership: The shards of this server.
        neighbours: The other servers.
        room: Nothing is claimed that there is no room for.
        claim: Claims calls; what it gives is done when that is committed.
        plan_timers: Takes timers that are due soon, known ones among them.
        options: Intervals.
        look_again: Has the database scanned soon, for what was dropped and may be due again.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ownership: Ownership,
        neighbours: SharingNeighbours,
        room: CallRoom,
        claim: Callable[[Sequence[CallKey]], Awaitable[object]],
        plan_timers: Callable[[Sequence[Timer]], None],
        options: PollerOptions,
        *,
        look_again: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ownership = ownership
        self._neighbours = neighbours
        self._room = room
        self._claim = claim
        self._plan_timers = plan_timers
        self._look_again = look_again
        self._page_size = options.page_size
        self._look_ahead_ms = options.look_ahead // timedelta(milliseconds=1)
        self._longest_interval_s = options.poll_interval.total_seconds()
        self._interval_s = self._longest_interval_s
        self._timers_polled_at_s = 0.0
        self._rechecked_at_s = 0.0
        self._peers_seen_at_s = -math.inf
        self._hint = Hint()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_healthy = True

    @property
    def timer_window_ms(self) -> int:
        """Timers due sooner than this need a hint; the others are found by polls."""
        return round((_INTERVALS_OF_TIMERS + 1) * self._longest_interval_s * 1_000)

    @property
    def has_recent_peers(self) -> bool:
        """Whether there are other servers, or were until a short while ago."""
        now_s = asyncio.get_running_loop().time()
        if self._neighbours.has_peers:
            self._peers_seen_at_s = now_s
        return now_s < self._peers_seen_at_s + self._look_ahead_ms / 1_000

    def start(self) -> None:
        """Begin to poll. Call it in the running event loop."""
        self._task = asyncio.create_task(self._run(), name="xdb-poller")

    async def close(self) -> None:
        """Find nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def hinted(self, hint: Hint) -> None:
        """Look into shards that a hint names, if they are this server's."""
        mine = frozenset(self._ownership.shard_ids)
        self._hint |= Hint(shard_ids=hint.shard_ids & mine, timer_shard_ids=hint.timer_shard_ids & mine)
        if self._hint:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            self._wake.clear()
            hint, self._hint = self._hint, Hint()
            try:
                has_found = await self._poll(hint)
            except Exception as error:
                if self._is_healthy:
                    logger.warning("cannot look for what other servers have made due", extra={"error": str(error)})
                self._is_healthy = False
                self._interval_s = self._longest_interval_s
                continue
            self._is_healthy = True
            self._interval_s = self._next_interval_s(has_found=has_found)

    def _next_interval_s(self, *, has_found: bool) -> float:
        if not self.has_recent_peers or self._neighbours.has_hints:
            return self._longest_interval_s
        return _SHORTEST_INTERVAL_S if has_found else min(2 * self._interval_s, self._longest_interval_s)

    async def _poll(self, hint: Hint) -> bool:
        """Look into the hinted shards, or all; say whether there was anything."""
        shard_ids = tuple(hint.shard_ids if hint else self._ownership.shard_ids)
        has_found = False
        await self._recheck_waiting()
        if shard_ids and (hint or self.has_recent_peers):
            await self._wait_for_room()
            has_found = await self._poll_calls(shard_ids)
        if hint.timer_shard_ids or (self.has_recent_peers and self._are_timers_due(has_found=has_found)):
            await self._poll_timers()
        return has_found

    async def _wait_for_room(self) -> None:
        """Wait until calls may be claimed; timers, which need no room, are looked for meanwhile."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._longest_interval_s):
                    return await self._room.wait_for_room()
            await self._recheck_waiting()
            if self.has_recent_peers and self._are_timers_due(has_found=False):
                await self._poll_timers()

    async def _poll_calls(self, shard_ids: Sequence[int]) -> bool:
        before_ms = self._clock() + self._look_ahead_ms
        calls = await self._store.find_unclaimed_calls(shard_ids, before_ms, limit=self._page_size)
        if calls:
            await self._claim([call.key for call in calls])
        if len(calls) == self._page_size:
            self._wake.set()
        return bool(calls)

    async def _recheck_waiting(self) -> None:
        """Drop the calls that wait here and that another server has called off, unheard."""
        now_s = asyncio.get_running_loop().time()
        is_told = self._neighbours.has_hints or not self.has_recent_peers
        if is_told or now_s - self._rechecked_at_s < self._longest_interval_s:
            return
        self._rechecked_at_s = now_s
        keys = self._room.waiting_keys()
        if not keys:
            return
        due = await self._store.find_due_keys({key.state for key in keys})
        if gone := [key for key in keys if key not in due]:
            self._room.drop_waiting(gone)
            self._look_again()

    def _are_timers_due(self, *, has_found: bool) -> bool:
        since_s = asyncio.get_running_loop().time() - self._timers_polled_at_s
        is_due = since_s >= _INTERVALS_OF_TIMERS * self._longest_interval_s
        is_busy = (has_found and not self._neighbours.has_hints) or self._neighbours.has_handovers
        return is_due or (is_busy and since_s >= self._longest_interval_s / 2)

    async def _poll_timers(self) -> None:
        self._timers_polled_at_s = asyncio.get_running_loop().time()
        before_ms = self._clock() + self.timer_window_ms
        after = None
        while shard_ids := tuple(self._ownership.shard_ids):
            page = await self._store.find_due_timers(shard_ids, before_ms, limit=self._page_size, after=after)
            self._plan_timers(page)
            if len(page) < self._page_size:
                return
            after = page[-1]
