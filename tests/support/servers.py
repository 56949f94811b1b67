"""Several servers on one database, with real time and real I/O to the database; only the other sockets are missing."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

from server_stub.app import Server
from server_stub.config import ServerSettings
from tests.support.asgi import AsgiTransport
from tests.support.system import SERVER_URL, WORKER_URL, InMemoryClientTransport, RecordingTransport
from xdb_sdk import AsyncClient, ClientOptions, Registry, Worker

DEADLINE_S = 30


def quick_settings(url: str, **changes: Any) -> ServerSettings:
    """Give settings with short leases, so that a take-over is a matter of tenths of a second."""
    settings = ServerSettings(
        database_url=url,
        heartbeat=timedelta(milliseconds=100),
        lease=timedelta(milliseconds=900),
        member_timeout=timedelta(milliseconds=600),
        shutdown_grace=timedelta(seconds=5),
        max_connections=3,
    )
    return replace(settings, **changes)


class Node:
    """A server, a client of it alone, and the calls that it makes to the worker."""

    def __init__(self, server: Server, client: AsyncClient, calls: RecordingTransport) -> None:
        self.server = server
        self.client = client
        self.calls = calls

    @property
    def shard_ids(self) -> set[int]:
        """The shards that the server owns."""
        status: Any = self.server.status()["cluster"]
        return {shard["shard_id"] for shard in status["shards"] if shard["is_mine"]}


class Servers:
    """Servers that share a database and a worker."""

    def __init__(self, url: str, *processes: Any) -> None:
        self.url = url
        self.registry = Registry()
        self.registry.add_processes(*processes)
        self._worker = Worker(self.registry)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Servers":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def start(self, **changes: Any) -> Node:
        """Start a server; it is stopped at the end, if it was not before."""
        to_worker = await self._stack.enter_async_context(AsgiTransport({WORKER_URL: self._worker}))
        calls = RecordingTransport(to_worker)
        place = changes.pop("place", None)
        server = await Server.open(quick_settings(self.url, **changes), transport=calls, place=place)
        self._stack.push_async_callback(server.close)
        to_server = await self._stack.enter_async_context(AsgiTransport({SERVER_URL: server.api}))
        options = ClientOptions(server_url=SERVER_URL, worker_url=WORKER_URL)
        client = AsyncClient(self.registry, options, transport=InMemoryClientTransport(to_server))
        await self._stack.enter_async_context(client)
        return Node(server, client, calls)


async def eventually(is_so: Callable[[], bool], *, within_s: float = DEADLINE_S) -> float:
    """Poll until something is so, and give how many seconds that took."""
    began_s = asyncio.get_running_loop().time()
    while not is_so():
        assert asyncio.get_running_loop().time() < began_s + within_s, "it did not come to be"
        await asyncio.sleep(0.005)
    return asyncio.get_running_loop().time() - began_s
