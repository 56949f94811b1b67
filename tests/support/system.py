"""A whole system in one thread on virtual time: server, worker and clients as users have them, on a real database.

Only the sockets are missing: requests go through the ASGI applications of the server and the worker. Time passes when
nothing else is to be done, so a test of a day's timer is over in milliseconds, and every run is the same.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from server_stub.app import Server
from server_stub.config import ServerSettings
from server_stub.core.ports import Store
from server_stub.dispatch.transport import WorkerResponse, WorkerTransport
from tests.support.asgi import AsgiTransport
from tests.support.databases import Database
from tests.support.virtual_time import VirtualClock
from xdb_sdk import AsyncClient, AsyncUnregisteredClient, ClientOptions, Registry, Worker
from xdb_sdk.client._http import MAX_ANSWER_BYTES
from xdb_sdk.client._transport import LineStream, Reply
from xdb_sdk.protocol import WORKER_BATCH_PATH, LineSplitter

WORKER_URL = "http://worker"
SERVER_URL = "http://server"


class RecordingTransport:
    """Passes requests on to workers, and keeps the calls in them: what the worker really was asked to do."""

    def __init__(self, inner: WorkerTransport) -> None:
        self._inner = inner
        self.calls: list[dict[str, Any]] = []
        """Every call in order: `operation` and `body` as sent, and when on the loop's clock, `at_s`."""
        self.urls: list[str] = []
        self.headers: list[Mapping[str, str]] = []

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[WorkerResponse]:
        """See `WorkerTransport.post`."""
        self.urls.append(url)
        self.headers.append(headers)
        at_s = asyncio.get_running_loop().time()
        path = urlsplit(url).path
        if path.endswith(WORKER_BATCH_PATH):
            self.calls += [json.loads(line) | {"at_s": at_s} for line in body.splitlines()]
        else:
            self.calls.append({"operation": path.rpartition("/")[2], "body": json.loads(body), "at_s": at_s})
        async with self._inner.post(url, body, headers, timeout_s) as response:
            yield response

    def count(self, state_id: str, operation: str = "execute") -> int:
        """Count the calls of one method of a state, all executions together."""
        return len(self._of_state(state_id, operation))

    def bodies(self, state_id: str, operation: str = "execute") -> list[dict[str, Any]]:
        """Give the calls of one method of a state as they were sent."""
        return [call["body"] for call in self._of_state(state_id, operation)]

    def attempts(self, state_id: str, operation: str = "execute") -> list[tuple[int, float]]:
        """Give the calls of one method of a state: which attempt, and how many seconds after the first call."""
        calls = self._of_state(state_id, operation)
        return [(call["body"]["context"]["attempt"], round(call["at_s"] - calls[0]["at_s"], 3)) for call in calls]

    def _of_state(self, state_id: str, operation: str) -> list[dict[str, Any]]:
        return [
            call for call in self.calls if call["operation"] == operation and call["body"].get("stateId") == state_id
        ]

    def by_state(self) -> Counter[str]:
        """Count the calls of execute by state execution."""
        return Counter(
            call["body"]["context"]["stateExecutionId"] for call in self.calls if call["operation"] == "execute"
        )


class InMemoryClientTransport:
    """Carries the calls of an `AsyncClient` to the server's ASGI application, without sockets."""

    def __init__(self, inner: AsgiTransport) -> None:
        self._inner = inner

    async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        """POST and read the whole answer."""
        async with self._inner.post(SERVER_URL + path, body, {"content-type": "application/json"}, timeout_s) as answer:
            content = b"".join([chunk async for chunk in answer.chunks()])
            return Reply(answer.status, content, answer.headers.get("content-type", ""), _retry_after_s(answer))

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, timeout_s: float) -> AsyncIterator[LineStream]:
        """POST a batch and hand over the answer line by line."""
        async with self._inner.post(SERVER_URL + path, body, {}, timeout_s) as answer:
            content_type = answer.headers.get("content-type", "")
            yield LineStream(answer.status, _lines(answer), content_type, _retry_after_s(answer))

    async def close(self) -> None:
        """There is nothing to let go of."""


async def _lines(answer: WorkerResponse) -> AsyncIterator[bytes]:
    splitter = LineSplitter(MAX_ANSWER_BYTES)
    async for chunk in answer.chunks():
        for line in splitter.feed(chunk):
            yield line
    for line in splitter.rest():
        yield line


def _retry_after_s(answer: WorkerResponse) -> float | None:
    value = answer.headers.get("retry-after")
    return None if value is None else float(value)


class System:
    """Server, worker and client on one database.

    Attributes:
        client: A client that knows the served processes.
        raw: A client of type names and JSON values.
        worker: The calls that workers have got.
        clock: Wall time of the server.
        database: The database, for SQL of the application's own.
    """

    def __init__(
        self, database: Database, settings: ServerSettings, *, notify: bool = True, registry: Registry | None = None
    ) -> None:
        self.database = database
        self.settings = settings
        self.clock = VirtualClock()
        self.registry = Registry() if registry is None else registry
        self._apps: dict[str, Any] = {WORKER_URL: Worker(self.registry)}
        self._notify = notify
        self._stack = AsyncExitStack()
        self._ids = 0
        self.store: Store
        self.server: Server
        self.client: AsyncClient
        self.raw: AsyncUnregisteredClient
        self.worker: RecordingTransport

    async def __aenter__(self) -> Self:
        await self.start_server()
        options = ClientOptions(server_url=SERVER_URL, worker_url=WORKER_URL)
        transport = await self._stack.enter_async_context(AsgiTransport({SERVER_URL: self._serve_api}))
        self.raw = AsyncUnregisteredClient(options, transport=InMemoryClientTransport(transport))
        self.client = AsyncClient(self.registry, options, transport=InMemoryClientTransport(transport))
        await self._stack.enter_async_context(self.raw)
        await self._stack.enter_async_context(self.client)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()
        await self.stop_server()

    async def _serve_api(self, scope: Any, receive: Any, send: Any) -> None:
        await self.server.api(scope, receive, send)

    def serve(self, *processes: Any) -> None:
        """Register process classes with worker and client."""
        self.registry.add_processes(*processes)

    def route(self, url: str, app: Any) -> None:
        """Let an ASGI application answer at the origin of a worker URL; None takes it down."""
        if app is None:
            self._apps.pop(url, None)
        else:
            self._apps[url] = app

    async def start_server(self) -> None:
        """Open the database and serve it."""
        self.store = await self.open_store()
        self._worker_transport = _Routes(self._apps)
        self.worker = RecordingTransport(self._worker_transport)
        self.server = await self.open_server(self.store, self.worker)

    async def open_store(self) -> Store:
        """Open the store of the database."""
        return await self.database.open_virtual_store()

    async def open_server(self, store: Store, transport: WorkerTransport) -> Server:
        """Open a server on a store and a transport."""
        return await Server.open(
            self.settings,
            store=store,
            transport=transport,
            clock=self.clock,
            ids=self._next_id,
            notify=self._notify,
        )

    async def stop_server(self) -> None:
        """Shut the server down gracefully."""
        await self.server.close()
        await self._worker_transport.aclose()
        await self.store.close()

    async def restart_server(self, *, down_s: float = 0) -> None:
        """Stop the server, let time pass, and start it again on what the database holds."""
        calls = self.worker.calls
        await self.stop_server()
        await asyncio.sleep(down_s)
        await self.start_server()
        self.worker.calls = calls

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run SQL of the application's own on the database, in its own connection and transaction."""
        return self.database.sql(statement, *values)

    def _next_id(self) -> str:
        self._ids += 1
        return f"execution-{self._ids:06}"


class _Routes(AsgiTransport):
    """An `AsgiTransport` whose routes may change while it runs."""

    def __init__(self, apps: dict[str, Any]) -> None:
        super().__init__(apps)
        self._apps = apps
