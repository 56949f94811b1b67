"""Answers that are lost on the way: real HTTP, both clients, and a proxy that hangs up instead of answering."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from server_stub.app import Server
from server_stub.config import ServerSettings
from tests.contract.service_api.greeter import Greeter, registry
from tests.contract.service_api.greeter import app as greeter
from tests.support.asgi import AsgiTransport
from tests.support.serving import serving
from xdb_sdk import AsyncClient, Client, ClientOptions, ProcessStatus


class Proxy:
    """Passes connections on to a server, and closes the first ones when the answer comes."""

    def __init__(self, server_url: str, *, lost: int) -> None:
        self._server = urlsplit(server_url)
        self._lost = lost
        self.requests: list[bytes] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen, and give the URL."""
        async with await asyncio.start_server(self._carry, "127.0.0.1", 0) as listener:
            yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    async def _carry(self, caller: asyncio.StreamReader, to_caller: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
        sending = asyncio.create_task(self._send(caller, to_server))
        try:
            while answer := await server.read(65_536):
                if len(self.requests) <= self._lost:
                    break
                to_caller.write(answer)
        finally:
            sending.cancel()
            for writer in (to_caller, to_server):
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    async def _send(self, caller: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while sent := await caller.read(65_536):
            if sent.startswith(b"POST "):
                self.requests.append(b"")
            self.requests[-1] += sent
            to_server.write(sent)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    settings = ServerSettings(database_url=f"sqlite:///{tmp_path / 'xdb.db'}")
    async with (
        AsgiTransport({"http://worker": greeter}) as workers,
        await Server.open(settings, transport=workers) as server,
        serving(server.api) as url,
    ):
        yield Proxy(url, lost=2)


async def test_sync_client_whose_answers_are_lost_starts_one_execution(proxy: Proxy) -> None:
    async with proxy.listening() as url:
        options = ClientOptions(server_url=url, worker_url="http://worker")
        with Client(registry, options) as client:
            execution_id = await asyncio.to_thread(client.start_process, "p", Greeter, "Hello")
            found = await asyncio.to_thread(lambda: list(client.list_processes()))

    assert [each.process_execution_id for each in found] == [execution_id]
    assert same_request(proxy)


async def test_async_client_whose_answers_are_lost_starts_one_execution_and_sends_one_message(proxy: Proxy) -> None:
    async with proxy.listening() as url:
        options = ClientOptions(server_url=url, worker_url="http://worker")
        async with AsyncClient(registry, options) as client:
            result = await client.publish_or_start("p", Greeter, Greeter.names, "Ada", start_input="Hello")
            output = await client.wait_for_process_completion("p", str)
            found = [each async for each in client.list_processes()]

    assert (result.started, output) == (True, "Hello, Ada!")
    assert [each.status for each in found] == [ProcessStatus.COMPLETED]
    assert same_request(proxy)


def same_request(proxy: Proxy) -> bool:
    """Say whether the first three requests ask for the same, with the same id."""
    bodies = {request.partition(b"\r\n\r\n")[2] for request in proxy.requests[:3]}
    return len(bodies) == 1 and b'"requestId":' in bodies.pop()
