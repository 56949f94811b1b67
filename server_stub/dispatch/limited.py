"""Sends nothing to where no worker may be."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from server_stub.core.allowed_urls import AllowedUrls, not_allowed
from server_stub.dispatch.transport import WorkerConnectionError, WorkerResponse, WorkerTransport


class LimitedTransport:
    """A `WorkerTransport` to some URLs only.

    Starts and changes of a worker URL are refused before; an execution may have been stored when more was allowed.
    """

    def __init__(self, inner: WorkerTransport, allowed: AllowedUrls) -> None:
        self._inner = inner
        self._allowed = allowed

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AbstractAsyncContextManager[WorkerResponse]:
        """Send a POST, or raise `WorkerConnectionError`; see `WorkerTransport.post`."""
        if not self._allowed.allow(url):
            raise WorkerConnectionError(not_allowed(url), was_sent=False)
        return self._inner.post(url, body, headers, timeout_s)
