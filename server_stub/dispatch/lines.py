"""Reads streamed bodies without ever holding more than a bounded part."""

from server_stub.dispatch.transport import WorkerResponse


class AnswerTooLarge(Exception):
    """An answer is larger than allowed. Its rest stays unread."""


class LineCutter:
    """Cuts pieces of a body into lines of at most `max_line_bytes`."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._unfinished: list[bytes] = []
        self._unfinished_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next piece and give the lines that it completes, without blank ones.

        Raises:
            AnswerTooLarge: A line outgrew the limit, complete or not. The lines before it are lost.
        """
        first, *others = chunk.split(b"\n")
        self._unfinished.append(first)
        self._unfinished_bytes += len(first)
        if self._unfinished_bytes > self._max_line_bytes:
            raise AnswerTooLarge
        if not others:
            return []
        lines = [b"".join(self._unfinished), *others[:-1]]
        self._unfinished = [others[-1]]
        self._unfinished_bytes = len(others[-1])
        if max(map(len, others)) > self._max_line_bytes:
            raise AnswerTooLarge
        return [line for line in lines if line.strip()]

    def rest(self) -> bytes:
        """Give the line that no line end follows; empty if there is none."""
        return b"".join(self._unfinished)


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
