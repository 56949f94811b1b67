"""The transports over HTTP, on httpx.

They use httpx's transports and not its `Client`: nothing here needs cookies, redirects, authentication flows or event
hooks, and without them a sync call costs about two fifths less CPU and an async one about a fifth. The proxy and the
certificates that the environment names are used.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx

from xdb_sdk.client._transport import LineStream, Reply, TransportError
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, SERVICE_BATCH_PATH, LineSplitter, join_url

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The most that is read of one answer, or of one line of a streamed one."""

_CONNECT_TIMEOUT_S = 10.0
_LIMITS = httpx.Limits(
    max_connections=None,  # every open long poll may hold one; the caller bounds how many it makes
    max_keepalive_connections=32,
    keepalive_expiry=4.0,  # below the 5 s after which uvicorn closes: never write into a connection about to end
)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class HttpxTransport:
    """The transport of `Client` over HTTP.

    Args:
        server_url: Base URL in normal form.
    """

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._http = httpx.HTTPTransport(
            verify=_uses_tls(server_url), limits=_LIMITS, proxy=_environment_proxy(server_url)
        )

    def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        """POST `body` and read the whole answer; raises TransportError."""
        received = _Received(timeout_s)
        with _translated_errors(self._server_url):
            response = self._http.handle_request(_request(self._server_url, path, body, timeout_s))
            try:
                for chunk in response.iter_bytes():
                    received.add(chunk)
            finally:
                response.close()
        return _reply(response, received.body)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()


class AsyncHttpxTransport:
    """The transport of `AsyncClient` over HTTP.

    Args:
        server_url: Base URL in normal form.
    """

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._pieces = _Pieces()
        self._http = httpx.AsyncHTTPTransport(
            verify=_uses_tls(server_url), limits=_LIMITS, proxy=_environment_proxy(server_url)
        )

    async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        """POST `body` and read the whole answer; raises TransportError."""
        return await self._pieces.run(self._send(_request(self._server_url, path, body, timeout_s), timeout_s))

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, timeout_s: float) -> AsyncIterator[LineStream]:
        """POST a batch and hand over the answer as it is written; raises TransportError."""
        with _translated_errors(self._server_url):
            response = await self._pieces.run(self._open(_request(self._server_url, path, body, timeout_s)))
        try:
            yield LineStream(
                status=response.status_code,
                lines=self._lines(response),
                content_type=response.headers.get("content-type", ""),
                retry_after_s=_retry_after_s(response),
            )
        finally:
            await response.aclose()

    async def close(self) -> None:
        """End the requests that are under way, and close all connections."""
        await self._pieces.run(self._close())

    async def _close(self) -> None:
        try:
            await self._pieces.end_others()
        finally:
            await self._http.aclose()

    async def _send(self, request: httpx.Request, timeout_s: float) -> Reply:
        received = _Received(timeout_s)
        with _translated_errors(self._server_url):
            response = await self._http.handle_async_request(request)
            try:
                async for chunk in response.aiter_bytes():
                    received.add(chunk)
            finally:
                await response.aclose()
        return _reply(response, received.body)

    async def _open(self, request: httpx.Request) -> httpx.Response:
        response = await self._http.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Answer(response.stream, self._pieces)
        return response

    async def _lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
        splitter = LineSplitter(MAX_ANSWER_BYTES)
        with _translated_errors(self._server_url):
            async for chunk in response.aiter_bytes():
                for line in splitter.feed(chunk):
                    yield _not_too_large(line)
        for line in splitter.rest():
            yield line


class _Pieces:
    """Runs pieces of requests, each in a task of its own, so that they end tidily when the caller is cancelled.

    A request also closes connections that others are done with. httpcore shields that by anyio, which holds off the
    cancellation of a scope, but not that of a task: those still to be closed would be forgotten, open (httpcore's
    issues 830 and 1115). So the caller's task is cancelled as asyncio does it, and the piece by a scope.
    """

    def __init__(self) -> None:
        self._scopes: dict[asyncio.Task[Any], anyio.CancelScope] = {}

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`. When cancelled, cancel it, and wait until it has tidied up."""
        scope = anyio.CancelScope()
        task = asyncio.create_task(_in_scope(scope, work))
        self._scopes[task] = scope
        task.add_done_callback(self._scopes.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            scope.cancel()
            await asyncio.wait([task])
            await _close_unwanted(task)
            raise

    async def end_others(self) -> None:
        """Cancel all but the piece that asks for it, and wait until they have tidied up."""
        others = [task for task in self._scopes if task is not asyncio.current_task()]
        for task in others:
            self._scopes[task].cancel()
        if others:
            await asyncio.wait(others)


async def _in_scope(scope: anyio.CancelScope, work: Coroutine[Any, Any, T]) -> T:
    with scope:
        return await work
    raise asyncio.CancelledError


async def _close_unwanted(task: "asyncio.Task[Any]") -> None:
    """Close a response that came although its request was cancelled."""
    if not task.cancelled() and task.exception() is None and isinstance(task.result(), httpx.Response):
        await task.result().aclose()


class _Answer(httpx.AsyncByteStream):
    """The body of an answer. Its end gives its connection back, and is a piece."""

    def __init__(self, stream: httpx.AsyncByteStream, pieces: _Pieces) -> None:
        self._stream = stream
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        await self._pieces.run(self._stream.aclose())


class _Received:
    """The answer so far, within its limits. httpx bounds each read; only this bounds their sum."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ends_at_s = time.monotonic() + timeout_s
        self._chunks: list[bytes] = []
        self._size_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size_bytes += len(chunk)
        if self._size_bytes > MAX_ANSWER_BYTES:
            raise _too_large()
        if time.monotonic() > self._ends_at_s:
            raise TransportError(f"the answer was not complete after {self._timeout_s:g} s", was_sent=True)

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)


def _not_too_large(line: bytes) -> bytes:
    if len(line) > MAX_ANSWER_BYTES:
        raise _too_large()
    return line


def _too_large() -> TransportError:
    return TransportError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes", was_sent=True)


@lru_cache(maxsize=256)
def _parsed_url(server_url: str, path: str) -> httpx.URL:
    return httpx.URL(join_url(server_url, path))


def _request(server_url: str, path: str, body: bytes, timeout_s: float) -> httpx.Request:
    content_type = BATCH_CONTENT_TYPE if path == SERVICE_BATCH_PATH else "application/json"
    return httpx.Request(
        "POST",
        _parsed_url(server_url, path),
        headers={"content-type": content_type, "accept": content_type, "user-agent": "xdb-sdk"},
        content=body,
        extensions={
            "timeout": {
                "connect": min(timeout_s, _CONNECT_TIMEOUT_S),
                "pool": timeout_s,
                "read": timeout_s,
                "write": timeout_s,
            }
        },
    )


def _reply(response: httpx.Response, body: bytes) -> Reply:
    return Reply(
        status=response.status_code,
        body=body,
        content_type=response.headers.get("content-type", ""),
        retry_after_s=_retry_after_s(response),
    )


def _retry_after_s(response: httpx.Response) -> float | None:
    """The Retry-After header, a number of seconds or a date, as seconds from now."""
    text = response.headers.get("retry-after")
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


@contextmanager
def _translated_errors(server_url: str) -> Iterator[None]:
    try:
        yield
    except httpx.RequestError as error:
        reason = str(error) or "no details"
        raise TransportError(
            f"{server_url}: {type(error).__name__}: {reason}", was_sent=not isinstance(error, _NEVER_SENT)
        ) from error


def _uses_tls(server_url: str) -> bool:
    # Without TLS there is nothing to verify, and loading the certificates would take longer than a hundred calls.
    return server_url.startswith("https:")


def _environment_proxy(server_url: str) -> str | None:
    """The proxy that HTTP_PROXY and its kin ask for, or None if NO_PROXY spares this server."""
    parts = urlsplit(server_url)
    if proxy_bypass(parts.netloc) or proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None or "://" in proxy:
        return proxy
    return f"http://{proxy}"
