"""Learns what other servers have closed that is waited for here (semantics 6.4, 6.8)."""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from server_stub.core.cluster import Hint, Neighbours
from server_stub.core.ports import Store
from server_stub.engine.waiters import Waiters

logger = logging.getLogger(__name__)

_SHORTEST_INTERVAL_S = 0.02
_INTERVAL_PER_WAIT_S = 0.0005
"""However many waits begin, no more than the inverse of it are looked up in a second."""


class RemoteWatch:
    """Wakes long polls for what other servers have committed.

    Their hints say what to look up. Where there are no hints, one statement asks for all executions that are waited
    for: soon after a wait has begun or something was found, less soon the more there are, and then less and less often.

    Args:
        store: Is asked which executions have closed.
        waiters: The long polls of this server.
        neighbours: The other servers.
        longest_interval_s: How often to ask when nothing happens, where there are no hints.
    """

    def __init__(self, store: Store, waiters: Waiters, neighbours: Neighbours, *, longest_interval_s: float) -> None:
        self._store = store
        self._waiters = waiters
        self._neighbours = neighbours
        self._longest_interval_s = longest_interval_s
        self._interval_s = longest_interval_s
        self._hinted_ids: set[str] = set()
        self._has_polled = False
        self._is_look_asked = False
        self._wake = asyncio.Event()
        self._pause: asyncio.Timeout | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_healthy = True
        waiters.on_wait = self._begin_wait

    def start(self) -> None:
        """Begin to watch. Call it in the running event loop."""
        self._task = asyncio.create_task(self._run(), name="xdb-remote-watch")

    async def close(self) -> None:
        """Wake nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def hinted(self, hint: Hint) -> None:
        """Look up what a hint names, as far as it is waited for."""
        self._look_up(self._waiters.hinted(hint))

    def look_again(self) -> None:
        """Look up all that is waited for: something may have been committed that nobody has told of."""
        self._is_look_asked = True
        self._wake.set()

    def _begin_wait(self, hinted_ids: Collection[str]) -> None:
        self._look_up(hinted_ids)
        if not self._is_polling:
            return
        self._interval_s = self._shortest_interval_s
        if self._pause is not None and not self._pause.expired():
            soon_s = asyncio.get_running_loop().time() + self._interval_s
            self._pause.reschedule(min(self._pause.when() or soon_s, soon_s))

    def _look_up(self, process_execution_ids: Collection[str]) -> None:
        if process_execution_ids:
            self._hinted_ids.update(process_execution_ids)
            self._wake.set()

    @property
    def _is_polling(self) -> bool:
        return self._neighbours.has_peers and not self._neighbours.has_hints

    @property
    def _shortest_interval_s(self) -> float:
        for_all_s = self._waiters.awaited_count * _INTERVAL_PER_WAIT_S
        return min(max(_SHORTEST_INTERVAL_S, for_all_s), self._longest_interval_s)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s) as self._pause:
                    await self._wake.wait()
            self._pause = None
            self._wake.clear()
            try:
                has_found = await self._look()
            except Exception as error:
                if self._is_healthy:
                    logger.warning("cannot look for what other servers have closed", extra={"error": str(error)})
                self._is_healthy = False
                self._interval_s = self._longest_interval_s
                continue
            self._is_healthy = True
            longer_s = min(2 * self._interval_s, self._longest_interval_s)
            self._interval_s = self._shortest_interval_s if has_found else longer_s

    async def _look(self) -> bool:
        """Look up executions, and wake whoever waits for those that have closed; say whether there were any."""
        ids, self._hinted_ids = self._hinted_ids & self._waiters.awaited_ids, set()
        # Once more when hints begin to get here: what came between the last poll and the first hint is in neither.
        is_polling = self._is_polling
        has_polled, self._has_polled = self._has_polled, is_polling
        is_look_asked, self._is_look_asked = self._is_look_asked, False
        if (is_polling or has_polled or is_look_asked) and self._waiters.awaited_count:
            ids.update(self._waiters.awaited_ids)
            self._waiters.recheck_states()
        if not ids:
            return False
        try:
            closed = await self._store.find_closed(ids)
        except Exception:
            self._hinted_ids |= ids  # nobody will name them again
            raise
        self._waiters.closed(closed)
        return bool(closed)
