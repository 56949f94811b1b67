"""The transport without sockets gives the pieces of an answer as the app sends them."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from server_stub.dispatch.transport import WorkerConnectionError
from tests.support.asgi import AsgiTransport
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture
def anyio_backend() -> object:
    return VIRTUAL_TIME_BACKEND


async def send_start(send: Send, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"Retry-After", b"3")]})


async def test_pieces_arrive_when_they_are_sent() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send_start(send)
        for second in range(3):
            await send({"type": "http.response.body", "body": b"%d" % second, "more_body": True})
            await asyncio.sleep(1)
        await send({"type": "http.response.body", "body": b"end"})

    loop = asyncio.get_running_loop()
    async with AsgiTransport({"http://app": app}) as transport, transport.post("http://app/x", b"", {}, 60) as response:
        arrivals = [(loop.time(), chunk) async for chunk in response.chunks()]

    assert arrivals == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"end")]


async def test_app_sees_request_and_caller_sees_status_and_headers() -> None:
    seen: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["path"], (await receive())["body"], dict(scope["headers"])[b"x-a"]))
        await send_start(send, 429)
        await send({"type": "http.response.body"})

    async with (
        AsgiTransport({"http://app": app}) as transport,
        transport.post("http://app/a/b", b"body", {"X-A": "1"}, 60) as response,
    ):
        status, retry_after = response.status, response.headers["retry-after"]

    assert (status, retry_after) == (429, "3")
    assert seen == [("/a/b", b"body", b"1")]


async def test_unknown_origin_refuses_the_connection() -> None:
    transport = AsgiTransport({})

    with pytest.raises(WorkerConnectionError, match="nowhere refused"):
        async with transport.post("http://nowhere/x", b"", {}, 60):
            pass


async def test_app_that_dies_within_its_answer_breaks_the_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send_start(send)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError

    async with AsgiTransport({"http://app": app}) as transport, transport.post("http://app/x", b"", {}, 60) as response:
        chunks = response.chunks()
        first = await anext(chunks)
        with pytest.raises(WorkerConnectionError):
            await anext(chunks)

    assert first == b"half"


async def test_app_learns_that_its_caller_has_hung_up() -> None:
    learned = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send_start(send)
        assert (await receive())["type"] == "http.disconnect"
        learned.set()

    async with AsgiTransport({"http://app": app}) as transport:
        async with transport.post("http://app/x", b"", {}, 60):
            pass
        await learned.wait()

    assert learned.is_set()


async def test_exchange_ends_at_its_timeout() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(100)

    async with AsgiTransport({"http://app": app}) as transport:
        with pytest.raises(TimeoutError):
            async with transport.post("http://app/x", b"", {}, 10):
                pass

    assert asyncio.get_running_loop().time() == 10
