"""A worker on a real socket that writes whatever bytes a test wants."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.dispatching import DONE, Answer, answer_line
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, Json


@dataclass
class RawRequest:
    """A request as it came, and the writer to misuse for the response."""

    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def lines(self) -> list[Json]:
        """Give the lines of a batch."""
        return [json.loads(line) for line in self.body.splitlines()]

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def begin_batch(self, *extra_headers: str) -> None:
        """Send the head of a chunked batch response."""
        await self.write(head(200, f"content-type: {BATCH_CONTENT_TYPE}", "transfer-encoding: chunked", *extra_headers))

    async def write_chunk(self, data: bytes) -> None:
        """Send a piece of a chunked body; an empty one ends it."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer_all(self) -> None:
        """Answer a batch as a good worker does; the end of the response arrives together with its last answer."""
        await self.begin_batch()
        body = b"".join(answer_line(line["callId"], Answer(200, DONE)) for line in self.lines())
        await self.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    async def wait_for_hang_up(self) -> None:
        """Wait until the server has closed its end."""
        assert await self.reader.read() == b""


def head(status: int, *headers: str) -> bytes:
    """Make the head of a response."""
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *headers, "", ""]).encode()


Misbehaviour = Callable[[RawRequest], Awaitable[None]]


@dataclass
class RawWorker:
    """`behave` serves each request; it closes the writer to break the connection."""

    url: str
    behave: Misbehaviour
    connections: int = 0
    requests: list[RawRequest] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        self.connections += 1
        try:
            while not writer.is_closing():
                request = await _read_request(reader, writer)
                self.requests.append(request)
                await self.behave(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side has hung up
        finally:
            writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RawRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return RawRequest(first.split(" ")[1], headers, body, reader, writer)


@asynccontextmanager
async def raw_worker(behave: Misbehaviour, host: str = "127.0.0.1") -> AsyncIterator[RawWorker]:
    """Serve on a free port."""
    worker = RawWorker("", behave)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(worker.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0)
    port = server.sockets[0].getsockname()[1]
    worker.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        yield worker
    finally:
        server.close()
        remaining = list(tasks)
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)
        await server.wait_closed()
