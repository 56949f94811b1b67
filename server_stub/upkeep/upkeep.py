"""Forgets requests that have expired."""

import asyncio
import logging
from datetime import timedelta

from server_stub.core.ports import Clock, Store

logger = logging.getLogger(__name__)

PAGE_SIZE = 1_000
"""The most rows of one transaction: others do not wait long for it."""


class Upkeep:
    """Deletes rows of requests once they have expired, a thousand in a transaction, now and then.

    Several servers may do it at a time: each leaves alone what another is at.

    Args:
        store: Has the rows.
        clock: Wall time in milliseconds.
        interval: How often it looks for something to delete.
    """

    def __init__(self, store: Store, clock: Clock, interval: timedelta) -> None:
        self._store = store
        self._clock = clock
        self._interval_s = interval.total_seconds()
        self._task: asyncio.Task[None] | None = None
        self._is_healthy = True
        self.forgotten_requests = 0

    def start(self) -> None:
        """Begin. Call it in the running event loop."""
        self._task = asyncio.create_task(self._run(), name="xdb-upkeep")

    async def close(self) -> None:
        """Delete nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._forget_requests()
            except Exception as error:
                if self._is_healthy:
                    logger.warning("cannot forget expired requests", extra={"error": str(error)})
                self._is_healthy = False
            else:
                self._is_healthy = True

    async def _forget_requests(self) -> None:
        before_ms = self._clock()
        while True:
            count = await self._store.delete_expired_requests(before_ms, limit=PAGE_SIZE)
            self.forgotten_requests += count
            if count < PAGE_SIZE:
                return
