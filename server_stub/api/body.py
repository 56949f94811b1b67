"""Reads request bodies, never more of them than is allowed, nor for longer."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope

from server_stub.api.limits import ApiLimits
from server_stub.api.refusals import invalid_request, too_large


class ClientDisconnected(Exception):
    """The client has gone before the whole body had come; nobody waits for an answer."""


def check_announced_size(scope: Scope, limit_bytes: int, setting: str) -> None:
    """Refuse a body that is too large by its own Content-Length, before any of it is read.

    Raises:
        ServiceError: 400.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise too_large(f"the body is {int(value)} bytes", f"{limit_bytes} bytes", setting)


async def read_body(receive: Receive, limits: ApiLimits) -> bytes:
    """Read a body whole.

    Raises:
        ServiceError: 400, it is larger than `max_call_bytes` or stopped coming; the rest stays unread.
        ClientDisconnected: It was cut off.
    """
    chunks = []
    async for chunk in read_chunks(receive, limits, limits.max_call_bytes, "max_call_bytes"):
        chunks.append(chunk)  # noqa: PERF401  # an async comprehension would hide the reading
    return b"".join(chunks)


async def read_chunks(receive: Receive, limits: ApiLimits, limit_bytes: int, setting: str) -> AsyncIterator[bytes]:
    """Give the pieces of a body as they arrive.

    Raises:
        ServiceError: 400, there are more than `limit_bytes`, or no piece came in time.
        ClientDisconnected: It was cut off.
    """
    size_bytes = 0
    has_more = True
    while has_more:
        try:
            async with asyncio.timeout(limits.body_timeout.total_seconds()):
                message = await receive()
        except TimeoutError as error:
            raise invalid_request(
                f"the body stopped coming: nothing within {limits.body_timeout.total_seconds():g} s (body_timeout)"
            ) from error
        if message["type"] != "http.request":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise too_large(f"the body is more than {limit_bytes} bytes", f"{limit_bytes} bytes", setting)
        yield chunk
        has_more = message.get("more_body", False)
