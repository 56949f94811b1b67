"""The transports over HTTP, on httpx.

They use httpx's transports and not its `Client`: nothing here needs cookies, redirects, authentication flows or event
hooks, and without them a sync call costs about two fifths less CPU and an async one about a fifth. The proxy and the
certificates that the environment names are used.
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from xdb_sdk.client._transport import LineStream, Reply, TransportError
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, SERVICE_BATCH_PATH, LineSplitter, join_url

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
        self._http = httpx.AsyncHTTPTransport(
            verify=_uses_tls(server_url), limits=_LIMITS, proxy=_environment_proxy(server_url)
        )

    async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        """POST `body` and read the whole answer; raises TransportError."""
        received = _Received(timeout_s)
        with _translated_errors(self._server_url):
            response = await self._http.handle_async_request(_request(self._server_url, path, body, timeout_s))
            try:
                async for chunk in response.aiter_bytes():
                    received.add(chunk)
            finally:
                await response.aclose()
        return _reply(response, received.body)

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, timeout_s: float) -> AsyncIterator[LineStream]:
        """POST a batch and hand over the answer as it is written; raises TransportError."""
        with _translated_errors(self._server_url):
            response = await self._http.handle_async_request(_request(self._server_url, path, body, timeout_s))
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
        """Close all connections."""
        await self._http.aclose()

    async def _lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
        splitter = LineSplitter(MAX_ANSWER_BYTES)
        with _translated_errors(self._server_url):
            async for chunk in response.aiter_bytes():
                for line in splitter.feed(chunk):
                    yield _not_too_large(line)
        for line in splitter.rest():
            yield line


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
