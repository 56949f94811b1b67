"""The seam between the dispatcher and HTTP: a POST whose answer is read piece by piece."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class WorkerConnectionError(Exception):
    """The worker cannot be reached, or the connection broke before the response was complete. The text says how.

    `was_sent` is false if the request certainly never reached a worker.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        super().__init__(message)


class WorkerResponse(Protocol):
    """The head of a response; its body is still on the way."""

    @property
    def status(self) -> int:
        """The HTTP status; redirects are not followed."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, looked up in any case or in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Give the body in pieces as they arrive, without holding more than a bounded buffer.

        Raises:
            WorkerConnectionError: The connection broke.
        """
        ...


class WorkerTransport(Protocol):
    """How requests get to workers."""

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AbstractAsyncContextManager[WorkerResponse]:
        """Send a POST. On exit of the context the exchange is over, also when the body was not read to its end.

        Raises:
            WorkerConnectionError: The worker cannot be reached.
            TimeoutError: The exchange takes longer than `timeout_s`.
        """
        ...
