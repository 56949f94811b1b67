"""Stand-ins for the network and the clock, in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from xdb_sdk.client import LineStream, Reply, TransportError
from xdb_sdk.protocol import SERVICE_BATCH_PATH, SERVICE_PREFIX, WireModel

Outcome = Reply | TransportError
SERVER_LOST = TransportError("connection reset", was_sent=True)
SERVER_REFUSES = TransportError("connection refused", was_sent=False)


def good(answer: WireModel) -> Reply:
    """A 200 with `answer` as its body."""
    return Reply(200, answer.to_json(), "application/json")


def error(status: int, sub_type: str, **fields: Any) -> Reply:
    """An error answer of an xdb server."""
    return Reply(status, json.dumps({"errorSubType": sub_type, **fields}).encode(), "application/json")


class HandClock:
    """A clock that moves only when somebody sleeps, or waits for an answer."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []
        self._now_s = 1_000.0

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, delay_s: float) -> None:
        self.sleeps.append(delay_s)
        self._now_s += delay_s

    def pass_by(self, delay_s: float) -> None:
        self._now_s += delay_s


class ScriptedTransport:
    """Answers each request with the next outcome, and keeps what was asked."""

    def __init__(self, *outcomes: Outcome | Callable[[], Outcome]) -> None:
        self.requests: list[tuple[str, Any, float]] = []
        self.is_closed = False
        self._outcomes = list(outcomes)

    def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        self.requests.append((path.removeprefix(SERVICE_PREFIX), json.loads(body), timeout_s))
        outcome = self._outcomes.pop(0)
        if callable(outcome):
            outcome = outcome()
        if isinstance(outcome, TransportError):
            raise outcome
        return outcome

    def close(self) -> None:
        self.is_closed = True

    def answer_next(self, *outcomes: Outcome | Callable[[], Outcome]) -> None:
        """Add outcomes for the next requests."""
        self._outcomes += outcomes

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _, _ in self.requests]

    @property
    def bodies(self) -> list[Any]:
        """What was sent, but for the request ids, which differ each time."""
        return [{name: body[name] for name in body if name != "requestId"} for _, body, _ in self.requests]

    @property
    def request_ids(self) -> list[str | None]:
        return [body.get("requestId") for _, body, _ in self.requests]


class HeldServer:
    """An async transport whose answers the test gives, call by call.

    `requests` holds the operations of each request, in order; a batch has its lines' operations. The body of a call is
    its key: `answer(key)` answers the call whose body is `{"processId": key}`.
    """

    def __init__(self, *, batch_status: int = 200, single: Reply | None = None) -> None:
        self.requests: list[tuple[str, list[str]]] = []
        self.ended: list[str] = []
        self.is_closed = False
        self._batch_status = batch_status
        self._single = single
        self._answers: dict[str, asyncio.Future[Outcome]] = {}

    async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        key = json.loads(body)["processId"]
        self.requests.append((path, [key]))
        try:
            outcome = self._single or await self._answer(key)
        finally:
            self.ended.append(key)
        if isinstance(outcome, TransportError):
            raise outcome
        return outcome

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, timeout_s: float) -> AsyncIterator[LineStream]:
        assert path == SERVICE_BATCH_PATH
        calls = {line["body"]["processId"]: line["callId"] for line in map(json.loads, body.splitlines())}
        self.requests.append((path, list(calls)))
        try:
            yield LineStream(self._batch_status, self._lines(calls), "application/x-ndjson")
        finally:
            self.ended.extend(calls)

    async def close(self) -> None:
        self.is_closed = True

    def answer(self, key: str, outcome: Outcome | None = None) -> None:
        """Answer the call with this key, by default 200 with the key as execution id."""
        self._answer(key).set_result(outcome or Reply(200, {"processExecutionId": key}))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let other tasks run until what was asked of the server is as `condition` says."""
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110  # nobody signals what a test waits for
                await asyncio.sleep(0)

    async def until_requests(self, count: int) -> None:
        """Let other tasks run until the server has been sent so many requests."""
        await self.until(lambda: len(self.requests) == count)

    def _answer(self, key: str) -> "asyncio.Future[Outcome]":
        return self._answers.setdefault(key, asyncio.get_running_loop().create_future())

    async def _lines(self, calls: dict[str, int]) -> AsyncIterator[bytes]:
        if self._batch_status != 200:
            yield b"no batches here"
            return
        unanswered = {asyncio.ensure_future(self._line(key, call_id)) for key, call_id in calls.items()}
        try:
            while unanswered:
                done, unanswered = await asyncio.wait(unanswered, return_when=asyncio.FIRST_COMPLETED)
                for line in done:
                    yield line.result()
        finally:
            for task in unanswered:
                task.cancel()

    async def _line(self, key: str, call_id: int) -> bytes:
        outcome = await self._answer(key)
        if isinstance(outcome, TransportError):
            raise outcome
        if isinstance(outcome.body, bytes):
            return outcome.body
        return json.dumps({"callId": call_id, "status": outcome.status, "body": outcome.body}).encode()
