"""A worker transport without sockets: ASGI apps are called in process, and their answers are read as they send them.

`httpx.ASGITransport` gives an answer only once the app is done, so it cannot show what streams.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message, Scope

from server_stub.dispatch.transport import WorkerConnectionError, WorkerResponse


class AsgiTransport:
    """Reaches one app for each origin, like `{"http://worker": app}`; any other origin refuses the connection.

    An app may go on after its caller hung up: it then receives `http.disconnect`, and sending is an OSError. Leaving
    the context, or `aclose`, cancels the apps that still run.
    """

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = dict(apps)
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def __aenter__(self) -> "AsgiTransport":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the apps that still run."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[WorkerResponse]:
        """POST to the app behind the URL's origin; see `WorkerTransport.post`."""
        parts = urlsplit(url)
        app = self._apps.get(f"{parts.scheme}://{parts.netloc}")
        if app is None:
            raise WorkerConnectionError(f"connection to {parts.netloc} refused", was_sent=False)
        async with asyncio.timeout(timeout_s):
            connection = _Connection(body)
            task = asyncio.create_task(connection.run(app, _scope(parts.path, parts.netloc, parts.scheme, headers)))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
            try:
                yield await connection.response()
            finally:
                connection.is_disconnected.set()


class _Connection:
    """One request and its response, between the task of the app and that of the caller."""

    def __init__(self, body: bytes) -> None:
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self.is_disconnected = asyncio.Event()

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Run the app; an error in it breaks the connection, or gives a 500 when nothing was sent yet."""
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:
            self._sent.put_nowait({"type": "failed", "error": error})
        finally:
            self._sent.put_nowait(None)

    async def response(self) -> "_AsgiResponse":
        """Wait for the head of the response."""
        message = await self._sent.get()
        if message is None or message["type"] == "failed":
            return _AsgiResponse(500, {}, self)
        headers = {name.decode().lower(): value.decode() for name, value in message.get("headers", ())}
        return _AsgiResponse(message["status"], headers, self)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give the pieces of the body as the app sends them."""
        while (message := await self._sent.get()) is not None:
            if message["type"] == "failed":
                raise WorkerConnectionError("the connection broke before the response was complete", was_sent=True)
            if body := message.get("body", b""):
                yield body
            if not message.get("more_body", False):
                return
        raise WorkerConnectionError("the connection broke before the response was complete", was_sent=True)

    async def _receive(self) -> Message:
        if self._request is not None:
            request, self._request = self._request, None
            return request
        await self.is_disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.is_disconnected.is_set():
            raise OSError("the client has hung up")
        self._sent.put_nowait(message)
        await asyncio.sleep(0)  # the reader gets its turn, also if the app never waits for anything


class _AsgiResponse:
    def __init__(self, status: int, headers: Mapping[str, str], connection: _Connection) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection

    def chunks(self) -> AsyncIterator[bytes]:
        return self._connection.chunks()


def _scope(path: str, netloc: str, scheme: str, headers: Mapping[str, str]) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": scheme,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", netloc.encode()),
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
        ],
        "client": ("127.0.0.1", 50_000),
        "server": (netloc, 80),
    }
