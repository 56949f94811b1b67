"""How requests get to the server and answers back: a small seam. HTTP is behind it in `_http.py`."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from xdb_sdk._errors import UnavailableError
from xdb_sdk.protocol import Json, WireModel

AnswerModel = TypeVar("AnswerModel", bound=WireModel)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one call.

    `body` is the answer as bytes, or the JSON value already parsed if it came as a line of a batch.
    """

    status: int
    body: bytes | Json
    content_type: str = ""
    retry_after_s: float | None = None

    def parse(self, model: type[AnswerModel]) -> AnswerModel:
        """Read the body as `model`; raises pydantic's ValidationError."""
        if isinstance(self.body, bytes):
            return model.model_validate_json(self.body)
        return model.model_validate(self.body)


@dataclass(frozen=True, slots=True)
class LineStream:
    """An answer that is read line by line while the server writes it, without blank lines and newlines."""

    status: int
    lines: AsyncIterator[bytes]
    content_type: str = ""
    retry_after_s: float | None = None


class TransportError(UnavailableError):
    """No complete answer came. `was_sent` is false if the request certainly never reached a server."""

    code = "transport"

    def __init__(self, message: str, *, was_sent: bool) -> None:
        self.was_sent = was_sent
        super().__init__(message)


class Transport(Protocol):
    """Carries the calls of a `Client`. Used by several threads at once."""

    def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        """POST `body` to `path` of the server and read the whole answer; raises TransportError."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


class AsyncTransport(Protocol):
    """Carries the calls of an `AsyncClient`. Used by several tasks of one event loop at once."""

    async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        """POST `body` to `path` of the server and read the whole answer; raises TransportError."""
        ...

    def stream(self, path: str, body: bytes, timeout_s: float) -> AbstractAsyncContextManager[LineStream]:
        """POST a batch and hand over the answer as it is written.

        Entering waits for the head of the answer. Entering and every step of the lines raise TransportError. A
        transport that knows no batches gives an empty answer of status 404, and is then sent one call at a time.
        """
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...
