"""The transports over HTTP: what httpx says is what the client is told."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import psutil
import pytest
import respx
from starlette.types import Receive, Scope, Send

from tests.support.serving import serving
from xdb_sdk.client import Reply, TransportError
from xdb_sdk.client import _http as http
from xdb_sdk.client._http import AsyncHttpxTransport, HttpxTransport
from xdb_sdk.protocol import SERVICE_BATCH_PATH, SERVICE_PREFIX

SERVER = "http://xdb.test:8801"
PATH = SERVICE_PREFIX + "start"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def transport() -> Iterator[HttpxTransport]:
    transport = HttpxTransport(SERVER)
    yield transport
    transport.close()


@pytest.fixture
async def async_transport() -> AsyncIterator[AsyncHttpxTransport]:
    transport = AsyncHttpxTransport(SERVER)
    yield transport
    await transport.close()


@respx.mock
def test_a_call_is_a_json_post_to_its_path(transport: HttpxTransport) -> None:
    route = respx.post(SERVER + PATH).respond(200, json={"a": 1})

    reply = transport.send(PATH, b'{"processId":"p"}', 60)

    request = route.calls.last.request
    assert (reply.status, reply.body, reply.content_type) == (200, b'{"a":1}', "application/json")
    assert request.content == b'{"processId":"p"}'
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == "xdb.test:8801"


@respx.mock
def test_the_path_prefix_and_the_query_of_the_server_url_are_kept() -> None:
    route = respx.post("http://xdb.test/api" + PATH + "?tenant=7").respond(200)
    transport = HttpxTransport("http://xdb.test/api?tenant=7")

    transport.send(PATH, b"{}", 60)

    assert route.call_count == 1
    transport.close()


@respx.mock
def test_the_connection_is_given_up_before_the_answer_is(transport: HttpxTransport) -> None:
    route = respx.post(SERVER + PATH).respond(200)

    transport.send(PATH, b"{}", 40)

    assert route.calls.last.request.extensions["timeout"] == {"connect": 10.0, "pool": 40, "read": 40, "write": 40}


ERRORS: list[tuple[Any, bool]] = [
    (httpx.ConnectError("refused"), False),
    (httpx.ConnectTimeout("no connection"), False),
    (httpx.PoolTimeout("no connection free"), False),
    (httpx.ReadTimeout(""), True),
    (httpx.WriteTimeout(""), True),
    (httpx.ReadError("reset"), True),
    (httpx.WriteError("broken pipe"), True),
    (httpx.RemoteProtocolError("peer closed connection without sending complete message body"), True),
]


@pytest.mark.parametrize(("error", "was_sent"), ERRORS, ids=lambda value: getattr(type(value), "__name__", str(value)))
@respx.mock
async def test_a_failed_request_says_whether_it_may_have_arrived(
    error: httpx.RequestError, was_sent: bool, transport: HttpxTransport, async_transport: AsyncHttpxTransport
) -> None:
    respx.post(SERVER + PATH).mock(side_effect=error)

    with pytest.raises(TransportError) as raised:
        transport.send(PATH, b"{}", 60)
    with pytest.raises(TransportError) as raised_async:
        await async_transport.send(PATH, b"{}", 60)

    for failure in (raised.value, raised_async.value):
        assert failure.was_sent is was_sent
        assert SERVER in str(failure)
        assert type(error).__name__ in str(failure)
        assert failure.__cause__ is error


class CutOff(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        yield b'{"process'
        raise httpx.RemoteProtocolError("peer closed connection")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'{"process'
        raise httpx.RemoteProtocolError("peer closed connection")


@respx.mock
async def test_an_answer_that_is_cut_off_is_no_answer(
    transport: HttpxTransport, async_transport: AsyncHttpxTransport
) -> None:
    respx.post(SERVER + PATH).mock(side_effect=lambda _: httpx.Response(200, stream=CutOff()))

    with pytest.raises(TransportError, match="peer closed") as raised:
        transport.send(PATH, b"{}", 60)
    with pytest.raises(TransportError, match="peer closed"):
        await async_transport.send(PATH, b"{}", 60)

    assert raised.value.was_sent


@respx.mock
async def test_reading_stops_at_the_size_limit(
    transport: HttpxTransport, async_transport: AsyncHttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    respx.post(SERVER + PATH).respond(200, content=b"x" * 1001)

    with pytest.raises(TransportError, match="larger than 1000 bytes"):
        transport.send(PATH, b"{}", 60)
    with pytest.raises(TransportError, match="larger than 1000 bytes"):
        await async_transport.send(PATH, b"{}", 60)


@respx.mock
def test_an_answer_that_drips_in_for_longer_than_the_timeout_is_given_up(transport: HttpxTransport) -> None:
    respx.post(SERVER + PATH).respond(200, content=b"{}")

    with pytest.raises(TransportError, match="not complete after 0 s"):
        transport.send(PATH, b"{}", 0)


@respx.mock
async def test_lines_of_a_stream_come_one_by_one_however_they_are_cut(async_transport: AsyncHttpxTransport) -> None:
    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in (b'{"callId"', b':1}\n{"callId":2}\n{"ca', b'llId":3}'):
                yield piece

    route = respx.post(SERVER + SERVICE_BATCH_PATH)
    route.mock(side_effect=lambda _: httpx.Response(200, stream=Pieces()))

    async with async_transport.stream(SERVICE_BATCH_PATH, b"{}\n", 60) as stream:
        lines = [line async for line in stream.lines]

    assert lines == [b'{"callId":1}', b'{"callId":2}', b'{"callId":3}']
    assert route.calls.last.request.headers["content-type"] == "application/x-ndjson"


@respx.mock
async def test_a_line_without_end_is_given_up(
    async_transport: AsyncHttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    respx.post(SERVER + SERVICE_BATCH_PATH).respond(200, content=b"x" * 1001)

    async with async_transport.stream(SERVICE_BATCH_PATH, b"{}\n", 60) as stream:
        with pytest.raises(TransportError, match="larger than 1000 bytes"):
            await anext(stream.lines)


@respx.mock
async def test_a_stream_that_cannot_begin_says_whether_it_may_have_arrived(
    async_transport: AsyncHttpxTransport,
) -> None:
    respx.post(SERVER + SERVICE_BATCH_PATH).mock(side_effect=httpx.ConnectError("refused"))

    with pytest.raises(TransportError) as raised:
        async with async_transport.stream(SERVICE_BATCH_PATH, b"{}\n", 60):
            pytest.fail("there is no stream")

    assert not raised.value.was_sent


def retry_after(header: str) -> float | None:
    with respx.mock:
        respx.post(SERVER + PATH).respond(503, headers={"retry-after": header})
        transport = HttpxTransport(SERVER)
        reply: Reply = transport.send(PATH, b"{}", 60)
        transport.close()
    return reply.retry_after_s


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("0", 0.0), ("soon", None), ("-1", None), ("nan", None), ("", None)]
)
def test_retry_after_is_read_as_seconds(header: str, seconds: float | None) -> None:
    assert retry_after(header) == seconds


def test_retry_after_is_read_as_a_date() -> None:
    seconds = retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True))

    assert seconds == pytest.approx(100, abs=5)
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize(
    ("environment", "server_url", "proxy"),
    [
        ({}, "http://h", None),
        ({"http_proxy": "http://proxy:3128"}, "http://h", "http://proxy:3128"),
        ({"http_proxy": "proxy:3128"}, "http://h", "http://proxy:3128"),
        ({"http_proxy": "http://proxy:3128"}, "https://h", None),
        ({"https_proxy": "http://proxy:3128"}, "https://h", "http://proxy:3128"),
        ({"all_proxy": "http://proxy:3128"}, "http://h", "http://proxy:3128"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "127.0.0.1,.corp"}, "http://127.0.0.1:8801", None),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "::1"}, "http://[::1]:8801", None),
        ({"http_proxy": "http://proxy:3128", "no_proxy": ".corp"}, "http://xdb.corp", None),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "*"}, "http://h", None),
    ],
)
def test_the_proxy_of_the_environment_is_used(
    environment: dict[str, str], server_url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert http._environment_proxy(server_url) == proxy


def test_a_server_without_tls_costs_no_certificates_and_one_with_tls_is_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts: list[ssl.SSLContext] = []
    create = httpx.create_ssl_context

    def recorded(**kwargs: Any) -> ssl.SSLContext:
        contexts.append(create(**kwargs))
        return contexts[-1]

    monkeypatch.setattr("httpx._transports.default.create_ssl_context", recorded)

    HttpxTransport("http://h").close()
    HttpxTransport("https://h").close()

    assert [context.verify_mode for context in contexts] == [ssl.CERT_NONE, ssl.CERT_REQUIRED]


async def test_a_port_that_nobody_listens_on_refuses_before_anything_is_sent() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        server_url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        transport, async_transport = HttpxTransport(server_url), AsyncHttpxTransport(server_url)

        with pytest.raises(TransportError) as raised:
            transport.send(PATH, b"{}", 5)
        with pytest.raises(TransportError) as raised_async:
            await async_transport.send(PATH, b"{}", 5)

    assert not raised.value.was_sent
    assert not raised_async.value.was_sent
    transport.close()
    await async_transport.close()


IDLE_CONNECTIONS = 5
MEETING_PATH = "/meeting"
KEPT_S = http._LIMITS.keepalive_expiry or 0.0


class HandClock:
    """In place of the module `time`, for how long connections are kept."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class MeetingServer:
    """Answers at once, except to the requests of `meet`: to those when all are there."""

    def __init__(self) -> None:
        self._all = asyncio.Barrier(IDLE_CONNECTIONS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == MEETING_PATH:
            await self._all.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})


async def meet(transport: AsyncHttpxTransport) -> None:
    """Leave some idle connections behind."""
    await asyncio.gather(*(transport.send(MEETING_PATH, b"{}", 5) for _ in range(IDLE_CONNECTIONS)))


def sockets_to(server_url: str) -> int:
    port = int(server_url.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return sum(bool(connection.raddr) and connection.raddr.port == port for connection in connections)


async def post(transport: AsyncHttpxTransport) -> None:
    await transport.send(PATH, b"{}", 5)


async def post_batch(transport: AsyncHttpxTransport) -> None:
    async with transport.stream(SERVICE_BATCH_PATH, b"{}\n", 5) as stream:
        assert [line async for line in stream.lines] == [b"{}"]


async def post_and_close(transport: AsyncHttpxTransport) -> None:
    await transport.send(PATH, b"{}", 5)
    await transport.close()


@pytest.mark.parametrize("request_of", [post, post_batch, post_and_close])
async def test_no_connection_is_left_open_wherever_a_request_is_cancelled(
    request_of: Callable[[AsyncHttpxTransport], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    monkeypatch.setattr("httpcore._async.http11.time", clock)
    left: dict[int, int] = {}

    async with serving(MeetingServer()) as server_url:
        for turn in itertools.count():
            transport = AsyncHttpxTransport(server_url)
            await meet(transport)
            clock.now_s += KEPT_S + 1
            requesting = asyncio.create_task(request_of(transport))
            for _ in range(turn):
                await asyncio.sleep(0)
            was_done = requesting.done()
            requesting.cancel()
            await asyncio.wait([requesting])
            await transport.close()
            left[turn] = sockets_to(server_url)
            if was_done:
                break

    assert sum(left.values()) == 0, left
