"""An ASGI conversation held piece by piece, to see when what is sent."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp, Message


class Conversation:
    """One POST whose body the test sends, and whose answer it reads, piece by piece.

    Example:
        async with Conversation(api, path) as talk:
            talk.send(b"...", more=True)
            chunk = await talk.chunk()
    """

    def __init__(self, app: ASGIApp, path: str, headers: dict[str, str] | None = None) -> None:
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        serve: Callable[..., Awaitable[None]] = self._app
        self._task = asyncio.ensure_future(serve(self._scope, self._to_app.get, self._from_app.put))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._task.cancel()
            return
        async with asyncio.timeout(5):
            await self._task

    def send(self, body: bytes, *, more: bool = False) -> None:
        """Send a piece of the body."""
        self._to_app.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def hang_up(self) -> None:
        """Close the connection."""
        self._to_app.put_nowait({"type": "http.disconnect"})

    @property
    def has_answered(self) -> bool:
        """Whether something of the answer is there to be read."""
        return not self._from_app.empty()

    async def message(self) -> Message:
        """Read the next piece of the answer."""
        async with asyncio.timeout(5):
            return await self._from_app.get()

    async def status(self) -> int:
        """Read the head of the answer."""
        status: int = (await self.message())["status"]
        return status

    async def chunk(self) -> bytes:
        """Read a piece of the answer's body."""
        body: bytes = (await self.message())["body"]
        return body

    async def rest(self) -> bytes:
        """Read the answer's body to its end."""
        chunks = []
        has_more = True
        while has_more:
            message = await self.message()
            chunks.append(message["body"])
            has_more = message.get("more_body", False)
        return b"".join(chunks)
