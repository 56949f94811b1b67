"""Connections to a database server, lent out one at a time; the same for every driver."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Generic, TypeVar

from server_stub.core.ports import StoreBusy, StoreUnavailable

logger = logging.getLogger(__name__)

ConnectionT = TypeVar("ConnectionT")


class Pool(Generic[ConnectionT]):
    """Keeps connections open for the next who needs one, and opens more up to a limit. Used in one event loop.

    The drivers' own pools ask the database to reset each connection that comes back, which costs a round trip; here a
    connection comes back as it was, or broken.

    Args:
        connect: Opens a connection; raises StoreUnavailable.
        is_usable: Whether a connection that comes back is open and in no transaction.
        discard: Closes a connection at once, without asking the database; must not raise.
        close: Closes a connection in good order.
        max_size: The most connections that are open at a time.
        timeout: How long to wait for one that is in use.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[ConnectionT]],
        *,
        is_usable: Callable[[ConnectionT], bool],
        discard: Callable[[ConnectionT], None],
        close: Callable[[ConnectionT], Awaitable[None]],
        max_size: int,
        timeout: timedelta,
    ) -> None:
        self._connect = connect
        self._is_usable = is_usable
        self._discard = discard
        self._close = close
        self._timeout = timeout
        self._room = asyncio.Semaphore(max_size)
        self._idle: list[ConnectionT] = []
        self._is_closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[ConnectionT]:
        """Lend a connection.

        Raises:
            StoreUnavailable: The pool is closed, or no connection can be opened.
            StoreBusy: All connections were in use for as long as it may be waited.
        """
        await self._wait_for_room()
        try:
            if self._is_closed:
                raise StoreUnavailable("the store is closed")
            connection = await self._take()
            try:
                yield connection
            except BaseException:
                # The next one that is taken is new then: where one is broken, those that were open with it may be too.
                if not self._is_usable(connection):
                    self.drop_idle()
                raise
            finally:
                self._give_back(connection)
        finally:
            self._room.release()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses, without asking the database."""
        while self._idle:
            self._discard(self._idle.pop())

    async def close(self) -> None:
        """Close all connections; those that are in use when they come back."""
        self._is_closed = True
        while self._idle:
            await self._close(self._idle.pop())

    async def _wait_for_room(self) -> None:
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                await self._room.acquire()
        except TimeoutError as error:
            raise StoreBusy(
                f"all connections to the database were in use for {self._timeout.total_seconds():g} s; "
                "allow more with max_connections"
            ) from error

    async def _take(self) -> ConnectionT:
        while self._idle:
            connection = self._idle.pop()
            if self._is_usable(connection):
                return connection
            self._discard(connection)
        return await self._connect()

    def _give_back(self, connection: ConnectionT) -> None:
        if self._is_closed or not self._is_usable(connection):
            self._discard(connection)
        else:
            self._idle.append(connection)
