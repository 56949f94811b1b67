"""Hints between servers over LISTEN and NOTIFY of PostgreSQL, on a connection of their own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import asyncpg
from pydantic_core import from_json, to_json

from server_stub.core.cluster import Hint
from server_stub.core.ports import StoreUnavailable

logger = logging.getLogger(__name__)

# Servers in other schemas of the database have shards and executions of their own.
_CHANNEL: Final = "SELECT 'xdb_hints_' || md5(current_schema())"
_NOTIFY: Final = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"
_PING: Final = "SELECT 1"
_IDS_PER_PAYLOAD: Final = 100
"""PostgreSQL takes payloads below 8000 bytes; ids are UUIDs of 36 characters."""
_SEND_TIMEOUT_S: Final = 5.0
_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 5.0
_FLUSH_TIMEOUT_S: Final = 1.0
_TROUBLE: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


class PostgresHints:
    """Implements `Hints`.

    What is to be sent while another notification is under way is united with what else comes, since each one takes a
    lock of the whole PostgreSQL server for a moment.

    Args:
        connect: Opens a connection; raises StoreUnavailable.
        ping_interval: How long a connection may be silent before it is seen whether it still stands. One that a
            firewall has forgotten, or whose host is gone, says nothing more of itself.
        ping_timeout: How long an answer may take.
    """

    def __init__(
        self,
        connect: "Callable[[], Awaitable[asyncpg.Connection[Any]]]",
        *,
        ping_interval: timedelta = timedelta(seconds=5),
        ping_timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        self._connect = connect
        self._ping_interval_s = ping_interval.total_seconds()
        self._ping_timeout_s = ping_timeout.total_seconds()
        self._on_hint: Callable[[Hint], None] = lambda hint: None
        self._outbox = Hint()
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_connected = False
        self._retry_s = _FIRST_RETRY_S

    @property
    def are_working(self) -> bool:
        """Whether the connection stands."""
        return self._is_connected

    async def start(self, on_hint: Callable[[Hint], None]) -> None:
        """Begin to listen; see `Hints.start`. Comes back when the connection stands, or could not be made at once."""
        self._on_hint = on_hint
        self._task = asyncio.create_task(self._run(), name="xdb-hints")
        await self._tried.wait()

    def send(self, hint: Hint) -> None:
        """Have a hint sent soon; see `Hints.send`."""
        if self._is_connected:
            self._outbox |= hint
            self._sent.clear()
            self._wake.set()

    async def close(self) -> None:
        """Send what is left, if that is quick, and stop."""
        if self._task is None:
            return
        if self._is_connected and self._outbox:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                    await self._sent.wait()
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._serve(connection)
                finally:
                    self._is_connected = False
                    self._outbox = Hint()
                    connection.terminate()
            except (StoreUnavailable, *_TROUBLE) as error:
                logger.debug("no hints from other servers", extra={"error": str(error)})
            self._tried.set()
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    async def _serve(self, connection: "asyncpg.Connection[Any]") -> None:
        """Listen and send until the connection breaks."""
        await connection.execute("SET synchronous_commit = off")  # a notification is a commit, and may be lost
        channel = await connection.fetchval(_CHANNEL)
        own_pid = connection.get_server_pid()

        def on_notification(_: object, pid: int, __: object, payload: object) -> None:
            if pid != own_pid and (hint := _read(str(payload))):
                self._on_hint(hint)

        await connection.add_listener(channel, on_notification)
        connection.add_termination_listener(lambda _: self._wake.set())
        self._is_connected = True
        self._retry_s = _FIRST_RETRY_S
        self._tried.set()
        while not connection.is_closed():
            try:
                async with asyncio.timeout(self._ping_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                await connection.execute(_PING, timeout=self._ping_timeout_s)
                continue
            self._wake.clear()
            outbox, self._outbox = self._outbox, Hint()
            if outbox and not connection.is_closed():
                await connection.execute(_NOTIFY, channel, list(_payloads(outbox)), timeout=_SEND_TIMEOUT_S)
            if not self._outbox:
                self._sent.set()


def _payloads(hint: Hint) -> Iterator[str]:
    """Write a hint in parts, none of which is too long."""
    first = {
        "shards": sorted(hint.shard_ids),
        "timerShards": sorted(hint.timer_shard_ids),
        "clusterChanged": hint.is_cluster_changed,
    }
    if any(first.values()):
        yield to_json(first).decode()
    for name, ids in (
        ("closed", hint.closed),
        ("endedStates", hint.with_ended_states),
        ("withdrawn", hint.withdrawn),
    ):
        ordered = sorted(ids)
        for start in range(0, len(ordered), _IDS_PER_PAYLOAD):
            yield to_json({name: ordered[start : start + _IDS_PER_PAYLOAD]}).decode()


def _read(payload: str) -> Hint:
    """Read a part of a hint; what a newer server says besides is left out, and what is no hint says nothing."""
    try:
        body = from_json(payload)
        return Hint(
            shard_ids=frozenset(body.get("shards", ())),
            timer_shard_ids=frozenset(body.get("timerShards", ())),
            closed=frozenset(body.get("closed", ())),
            with_ended_states=frozenset(body.get("endedStates", ())),
            withdrawn=frozenset(body.get("withdrawn", ())),
            is_cluster_changed=bool(body.get("clusterChanged")),
        )
    except (ValueError, TypeError, AttributeError):
        logger.warning("a notification of another server cannot be read")
        return Hint()
