"""An ASGI client whose request body goes in, and whose response comes out, one chunk at a time."""

import asyncio
import json
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp, Message

DEADLINE_S = 10.0


class Exchange:
    """One HTTP request. Enter it to start the application; leaving waits for the application to return.

    `status` and `headers` are known from the first chunk on.
    """

    def __init__(self, app: ASGIApp, method: str, path: str, *, root_path: str = "") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._app = app
        self._scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": []}
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def __aenter__(self) -> "Exchange":
        self._task = asyncio.ensure_future(self._app(self._scope, self._incoming.get, self._receive_from_app))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._task.cancel()
        await asyncio.wait_for(self._task, DEADLINE_S)

    def send(self, chunk: bytes, *, more: bool = False) -> None:
        """Give the application a chunk of the request body."""
        self._incoming.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    def hang_up(self) -> None:
        """Close the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def chunk(self) -> bytes | None:
        """Wait for the next chunk of the response body; None at its end."""
        return await asyncio.wait_for(self._chunks.get(), DEADLINE_S)

    async def lines(self) -> list[dict[str, Any]]:
        """Wait for a chunk and read its JSON lines."""
        return [json.loads(line) for line in (await self.chunk() or b"").splitlines()]

    async def read(self) -> bytes:
        """Read the response body to its end."""
        chunks = []
        while (chunk := await self.chunk()) is not None:
            chunks.append(chunk)
        return b"".join(chunks)

    async def _receive_from_app(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if message["body"]:
            self._chunks.put_nowait(message["body"])
        if not message.get("more_body", False):
            self._chunks.put_nowait(None)


async def request(app: ASGIApp, method: str, path: str, body: bytes = b"", *, root_path: str = "") -> Exchange:
    """Make a whole request; read the answer with `Exchange.read`."""
    async with Exchange(app, method, path, root_path=root_path) as exchange:
        exchange.send(body)
    return exchange
