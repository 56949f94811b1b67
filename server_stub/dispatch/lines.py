"""Reads streamed bodies without ever holding more than a bounded part."""

from server_stub.dispatch.transport import WorkerResponse


class AnswerTooLarge(Exception):
    """An answer is larger than allowed. Its rest stays unread."""


async def read_body(response: WorkerResponse, max_bytes: int) -> bytes:
    """Read a body to its end.

    Raises:
        AnswerTooLarge: It is larger than `max_bytes`.
        WorkerConnectionError: The connection broke.
    """
    body = await read_beginning(response, max_bytes + 1)
    if len(body) > max_bytes:
        raise AnswerTooLarge
    return body


async def read_beginning(response: WorkerResponse, max_bytes: int) -> bytes:
    """Read a body to its end or to `max_bytes`, whichever comes first.

    Raises:
        WorkerConnectionError: The connection broke.
    """
    body = bytearray()
    async for chunk in response.chunks():
        body += chunk
        if len(body) >= max_bytes:
            break
    return bytes(body[:max_bytes])
