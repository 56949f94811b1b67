"""Requests to workers over HTTP, on a pool of kept connections."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import aiohttp

from server_stub.dispatch.transport import WorkerConnectionError, WorkerResponse

_KEEP_ALIVE = timedelta(seconds=4)
"""Shorter than the 5 s after which uvicorn hangs up, so that a request does not meet a connection about to close."""


class HttpTransport:
    """A `WorkerTransport` on sockets. Takes no settings from the environment, and follows no redirects.

    Args:
        connect_timeout: The longest that a connection may take to be made.
        ssl_context: How https workers are verified; None means the system's trusted authorities.
    """

    def __init__(
        self, *, connect_timeout: timedelta = timedelta(seconds=5), ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._connect_timeout_s = connect_timeout.total_seconds()
        self._ssl_context = ssl_context
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[WorkerResponse]:
        """Send a POST; see `WorkerTransport.post`."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_timeout_s)
        try:
            response = await self._open_session().post(
                url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            )
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # A ValueError is a host that cannot be written for DNS.
            raise _connection_error(error) from error
        async with response:
            yield _HttpResponse(response)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,  # the dispatcher limits the calls
                keepalive_timeout=_KEEP_ALIVE.total_seconds(),
                ssl=self._ssl_context if self._ssl_context is not None else True,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # the limit of an answer's size would not hold
                headers={"accept-encoding": "identity", "user-agent": "xdb"},
                trust_env=False,
            )
        return self._session


class _HttpResponse:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._content = response.content

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._content.iter_any():
                yield chunk
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise _connection_error(error) from error


def _connection_error(error: Exception) -> WorkerConnectionError:
    was_sent = not isinstance(error, aiohttp.ClientConnectorError | ValueError)
    return WorkerConnectionError(f"{type(error).__name__}: {error}", was_sent=was_sent)
