"""Server, worker and clients inside one process, started and stopped over and over (C-047)."""

import asyncio
import gc
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from server_stub.app import Server
from server_stub.config import ServerSettings
from tests.faults.processes import Walker, registry
from tests.simulation.processes import Mailbox, Sleeper
from tests.support.serving import serving
from xdb_sdk import (
    AsyncClient,
    Client,
    ClientClosedError,
    ClientOptions,
    ClientRetryPolicy,
    UnavailableError,
    Worker,
)

LIVES = 100
LIVES_AT_ONCE = 5
GENERATION_LIMIT_S = 60.0


def test_hundred_lives_in_one_process_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the worker leaves its traces
    asyncio.run(live_together(tmp_path, 0))  # what is loaded or opened once, is now
    before = resources()

    for generation in range(1, LIVES // LIVES_AT_ONCE):
        asyncio.run(live_together(tmp_path, generation))

    grown = {what: (before[what], count) for what, count in resources().items() if count > before[what]}
    assert grown == {}


async def live_together(directory: Path, generation: int) -> None:
    """Live some lives at once, each on the database file that its predecessor left."""
    async with asyncio.timeout(GENERATION_LIMIT_S), asyncio.TaskGroup() as lives:
        for number in range(LIVES_AT_ONCE):
            lives.create_task(live(f"sqlite:///{directory}/{number}.db", generation))


async def live(database_url: str, generation: int) -> None:
    """Complete a process, and stop while others wait, for a message or a time, and clients wait for them."""
    settings = ServerSettings(database_url=database_url, shutdown_grace=timedelta(seconds=1))
    walk, mail, sleep = (f"{name}-{generation}" for name in ("walk", "mail", "sleep"))
    async with serving(Worker(registry)) as worker_url, await Server.open(settings) as server:
        polls = OpenPolls(server.api, enough=3)
        async with serving(polls) as server_url:
            options = ClientOptions(server_url=server_url, worker_url=worker_url, retry=ClientRetryPolicy.none())
            client, left_client = AsyncClient(registry, options), AsyncClient(registry, options)
            sync_client = Client(registry, options)
            await client.start_process(walk, Walker, 0.0)
            await client.start_process(mail, Mailbox)
            await client.start_process(sleep, Sleeper, 3600.0)
            assert await client.wait_for_process_completion(walk, int) == 1
            waiting = [
                asyncio.create_task(client.wait_for_process_completion(mail)),
                asyncio.create_task(asyncio.to_thread(sync_client.wait_for_process_completion, sleep)),
                asyncio.create_task(left_client.wait_for_process_completion(mail)),
            ]
            await polls.are_enough.wait()
            await left_client.close()
            server.begin_shutdown()
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    await client.close()
    sync_client.close()

    assert [type(error) for error in errors] == [UnavailableError, UnavailableError, ClientClosedError]


class OpenPolls:
    """Passes everything on, and tells when enough clients wait at the same time."""

    def __init__(self, app: ASGIApp, *, enough: int) -> None:
        self._app = app
        self._enough = enough
        self._open = 0
        self.are_enough = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_poll = scope.get("path", "").endswith("/wait-for-completion")
        self._open += is_poll
        if self._open == self._enough:
            self.are_enough.set()
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= is_poll


def resources() -> dict[str, int]:
    """Count what this process holds."""
    gc.collect()
    process = psutil.Process()
    return {
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "sockets": len(process.net_connections("all")),
    }
