"""A server that dies at chosen points, and a network between it and the world that loses, repeats and delays.

A dead server is one whose ports have gone silent: nothing it still does reaches the database, a worker or a client,
and nothing comes back to it. So no code of the server needs to know that it can be killed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from server_stub.core.changes import Changes
from server_stub.core.ports import CommitOutcomeUnknown, Loaded, Needs, Selection, Store, Work
from server_stub.dispatch.transport import WorkerConnectionError, WorkerResponse, WorkerTransport
from xdb_sdk.client._transport import AsyncTransport, LineStream, Reply, TransportError


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what goes wrong, as probabilities."""

    crash_before_commit: float = 0.0
    crash_after_commit: float = 0.0
    crash_after_answer: float = 0.0
    lose_commit: float = 0.0
    """How often the connection to the database breaks during a commit, which was then kept or was not."""
    survive_crash: float = 0.0
    """How often a server that is taken for dead goes on all the same, beside its successor on the same rows."""
    refuse_connection: float = 0.0
    lose_answer: float = 0.0
    repeat_call: float = 0.0
    delay_answer: float = 0.0
    longest_delay_s: float = 8.0
    lose_client_answer: float = 0.0


@dataclass(slots=True)
class Life:
    """The time of one server between two crashes. `replace` begins the next one."""

    replace: Callable[[], None]
    survives: Callable[[], bool]
    is_replaced: bool = False
    is_alive: bool = True
    unheard_commits: int = 0
    """How many commits were answered by nothing but a broken connection."""
    _silence: asyncio.Event = field(default_factory=asyncio.Event)

    async def check(self) -> None:
        """Let a dead server wait for ever."""
        if not self.is_alive:
            await self._silence.wait()

    async def end(self) -> None:
        """Kill the server here and now, so that the caller does not return; or only take it for dead."""
        if not self.is_replaced:
            self.is_replaced = True
            self.is_alive = self.survives()
            self.replace()
        await self.check()


class _CrashBeforeCommit(Exception):
    pass


class _DyingWork:
    """Work whose transaction is rolled back at its end."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def selection(self) -> Selection:
        return self._work.selection()

    def needs(self, loaded: Loaded) -> Needs:
        return self._work.needs(loaded)

    def decide(self, loaded: Loaded) -> Changes:
        self._work.decide(loaded)
        raise _CrashBeforeCommit


class MortalStore:
    """The store as one life of the server sees it; everything but transactions passes through."""

    def __init__(self, store: Store, life: Life, faults: Faults, rng: random.Random) -> None:
        self._store = store
        self._life = life
        self._faults = faults
        self._rng = rng

    async def transact(self, work: Work) -> Changes:
        """See `Store.transact`; the server may die before or after the commit."""
        await self._life.check()
        if self._rng.random() < self._faults.crash_before_commit:
            try:
                await self._store.transact(_DyingWork(work))
            except _CrashBeforeCommit:
                await self._life.end()
        if self._rng.random() < self._faults.lose_commit:
            await self._commit_unheard(work)
        changes = await self._store.transact(work)
        if self._rng.random() < self._faults.crash_after_commit:
            await self._life.end()
        return changes

    async def _commit_unheard(self, work: Work) -> None:
        self._life.unheard_commits += 1
        with suppress(_CrashBeforeCommit):
            await self._store.transact(work if self._rng.random() < 0.5 else _DyingWork(work))
        raise CommitOutcomeUnknown("the connection broke during a commit")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def read(*args: Any, **kwargs: Any) -> Any:
            await self._life.check()
            return await method(*args, **kwargs)

        return read


class ChaoticTransport:
    """The way from one life of the server to the workers."""

    def __init__(self, inner: WorkerTransport, life: Life, faults: Faults, rng: random.Random) -> None:
        self._inner = inner
        self._life = life
        self._faults = faults
        self._rng = rng

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[WorkerResponse]:
        """See `WorkerTransport.post`."""
        await self._life.check()
        await asyncio.sleep(self._rng.random() * 0.01)
        if self._rng.random() < self._faults.refuse_connection:
            raise WorkerConnectionError("connection refused", was_sent=False)
        if self._rng.random() < self._faults.repeat_call:
            async with self._inner.post(url, body, headers, timeout_s) as repeated:
                async for _ in repeated.chunks():
                    pass
        async with self._inner.post(url, body, headers, timeout_s) as response:
            yield _ChaoticResponse(response, self._life, self._faults, self._rng)


class _ChaoticResponse:
    def __init__(self, inner: WorkerResponse, life: Life, faults: Faults, rng: random.Random) -> None:
        self.status = inner.status
        self.headers = inner.headers
        self._inner = inner
        self._life = life
        self._faults = faults
        self._rng = rng

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner.chunks():
            if self._rng.random() < self._faults.delay_answer:
                await asyncio.sleep(self._rng.random() * self._faults.longest_delay_s)
            if self._rng.random() < self._faults.crash_after_answer:
                await self._life.end()
            await self._life.check()
            if self._rng.random() < self._faults.lose_answer:
                raise WorkerConnectionError("the connection broke before the response was complete", was_sent=True)
            yield chunk


class ChaoticClientTransport:
    """The way from clients to whichever server lives: a call to a server that dies gets no answer."""

    def __init__(self, inner: AsyncTransport, life: Callable[[], Life], faults: Faults, rng: random.Random) -> None:
        self._inner = inner
        self._life = life
        self._faults = faults
        self._rng = rng

    async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        """See `AsyncTransport.send`."""
        life = self._life()
        sending = asyncio.create_task(self._inner.send(path, body, timeout_s))
        while not sending.done():
            await asyncio.wait([sending], timeout=0.5)
            if not life.is_alive:
                sending.cancel()
                raise TransportError("the server has died", was_sent=True)
        reply = sending.result()
        if self._rng.random() < self._faults.lose_client_answer:
            raise TransportError("the answer was lost", was_sent=True)
        return reply

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, timeout_s: float) -> AsyncIterator[LineStream]:
        """Know no batches, so that each call has a fate of its own."""
        yield LineStream(404, _NoLines())

    async def close(self) -> None:
        """There is nothing to let go of."""


class _NoLines(AsyncIterator[bytes]):
    async def __anext__(self) -> bytes:
        raise StopAsyncIteration
