"""The envelope: calls that an AsyncClient makes at the same time share one request (protocol/batch.py).

A request costs more than the calls in it. So calls of one turn of the event loop are gathered, and while some requests
have not begun to be answered, calls go on gathering: the busier the server, the larger the batches. A call never waits
for another's answer, only, for a few milliseconds at most, for its departure.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk.client._exchange import Call, ClientClosedError
from xdb_sdk.client._transport import AsyncTransport, LineStream, Reply, TransportError
from xdb_sdk.protocol import SERVICE_BATCH_PATH, AnswerLine

_log = logging.getLogger(__name__)

_MAX_UNANSWERED = 2
"""Requests on their way at once before further calls are gathered."""

_MAX_GATHERING_S = 0.01
"""A request that is not answered by then holds back nobody: a slow RPC or a stuck connection delays no other call."""

_NO_BATCHES = (404, 405)
_LINE_OVERHEAD_BYTES = 64


@dataclass(slots=True, eq=False)
class _OpenCall:
    call: Call[Any]
    reply: "asyncio.Future[Reply]"
    batch: "_Batch | None" = None

    @property
    def size_bytes(self) -> int:
        return len(self.call.body) + _LINE_OVERHEAD_BYTES

    def answer(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: BaseException) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


@dataclass(slots=True, eq=False)
class _Batch:
    """Calls that travel together. `unanswered` maps the id of a line to its call."""

    unanswered: dict[int, _OpenCall]
    task: "asyncio.Task[None] | None" = None
    holds_departures: bool = False

    @property
    def timeout_s(self) -> float:
        return max(open_call.call.timeout_s for open_call in self.unanswered.values())

    def body(self) -> bytes:
        lines = (
            b'{"callId":%d,"operation":"%b","body":%b}\n'
            % (call_id, open_call.call.operation.encode(), open_call.call.body)
            for call_id, open_call in self.unanswered.items()
        )
        return b"".join(lines)


class Envelope:
    """Sends calls over an AsyncTransport, together when that is cheaper. Belongs to one event loop.

    Args:
        transport: Carries the requests.
        max_calls: The most calls in one request.
        max_bytes: The most bytes in one request; a larger call travels alone.
    """

    def __init__(self, transport: AsyncTransport, *, max_calls: int, max_bytes: int) -> None:
        self._transport = transport
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_OpenCall] = []
        self._batches: set[_Batch] = set()
        self._unanswered_requests = 0
        self._departure: asyncio.Handle | None = None
        self._server_takes_batches = True
        self._is_closed = False

    async def send(self, call: Call[Any]) -> Reply:
        """Send one call, perhaps with others, and wait for its own answer.

        Cancelling it disturbs no other call.

        Raises:
            TransportError: No answer came in time.
            ClientClosedError: The envelope was closed before the answer came.
            InvalidArgumentError: The envelope is used in a second event loop.
        """
        open_call = _OpenCall(call, self._running_loop().create_future())
        self._waiting.append(open_call)
        self._plan_departure()
        try:
            async with asyncio.timeout(call.timeout_s):
                return await open_call.reply
        except TimeoutError as error:
            raise TransportError(f"no answer within {call.timeout_s:g} s", was_sent=True) from error
        finally:
            if open_call.reply.cancelled():
                self._abandon(open_call)

    async def close(self) -> None:
        """Fail the open calls and end the requests that carry them."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        for open_call in waiting:
            open_call.fail(ClientClosedError())
        tasks = []
        for batch in self._batches:
            for open_call in batch.unanswered.values():
                open_call.fail(ClientClosedError())
            if batch.task is not None:
                _end(batch.task)
                tasks.append(batch.task)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise ClientClosedError
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InvalidArgumentError(
                "this AsyncClient was used in another event loop before; make one client for each event loop"
            )
        return loop

    @property
    def _may_depart(self) -> bool:
        return self._unanswered_requests < _MAX_UNANSWERED or not self._server_takes_batches

    def _plan_departure(self) -> None:
        if self._departure is None and self._waiting and self._may_depart:
            self._departure = asyncio.get_running_loop().call_soon(self._depart)

    def _depart(self) -> None:
        self._departure = None
        self._waiting = [open_call for open_call in self._waiting if not open_call.reply.done()]
        while self._waiting and self._may_depart:
            self._dispatch(self._take())

    def _take(self) -> list[_OpenCall]:
        """Take from the front what fits into one request; at least one call."""
        if not self._server_takes_batches:
            return [self._waiting.pop(0)]
        count, size_bytes = 0, 0
        for open_call in self._waiting[: self._max_calls]:
            size_bytes += open_call.size_bytes
            if count and size_bytes > self._max_bytes:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _dispatch(self, calls: list[_OpenCall]) -> None:
        batch = _Batch(dict(enumerate(calls)))
        for open_call in calls:
            open_call.batch = batch
        self._batches.add(batch)
        self._hold_departures(batch)
        batch.task = asyncio.get_running_loop().create_task(self._carry(batch))
        batch.task.add_done_callback(partial(self._settle, batch))

    def _hold_departures(self, batch: _Batch) -> None:
        if all(open_call.call.is_long_poll for open_call in batch.unanswered.values()):
            return
        batch.holds_departures = True
        self._unanswered_requests += 1
        asyncio.get_running_loop().call_later(_MAX_GATHERING_S, self._release_departures, batch)

    def _release_departures(self, batch: _Batch) -> None:
        if not batch.holds_departures:
            return
        batch.holds_departures = False
        self._unanswered_requests -= 1
        self._plan_departure()

    def _abandon(self, open_call: _OpenCall) -> None:
        """Let go of a call that its caller gave up; end its request if nobody else waits for it."""
        batch = open_call.batch
        if batch is None:
            self._waiting = [other for other in self._waiting if other is not open_call]
        elif batch.task is not None and all(other.reply.done() for other in batch.unanswered.values()):
            _end(batch.task)

    async def _carry(self, batch: _Batch) -> None:
        if len(batch.unanswered) == 1:
            await self._carry_one(batch)
        else:
            await self._carry_many(batch)

    def _settle(self, batch: _Batch, task: "asyncio.Task[None]") -> None:
        """Whatever way a request ended, nobody may wait for it any longer."""
        self._batches.discard(batch)
        self._release_departures(batch)
        error: BaseException | None
        if task.cancelled():
            error = TransportError("the request was ended", was_sent=True)
        else:
            error = task.exception() or TransportError("the answer ended before this call was answered", was_sent=True)
        for open_call in batch.unanswered.values():
            open_call.fail(error)

    async def _carry_one(self, batch: _Batch) -> None:
        (open_call,) = batch.unanswered.values()
        call = open_call.call
        open_call.answer(await self._transport.send(call.path, call.body, call.timeout_s))

    async def _carry_many(self, batch: _Batch) -> None:
        async with self._transport.stream(SERVICE_BATCH_PATH, batch.body(), batch.timeout_s) as stream:
            self._release_departures(batch)
            if stream.status == 200:
                await self._hand_out(batch, stream.lines)
            else:
                await self._hand_out_refusal(batch, stream)

    async def _hand_out(self, batch: _Batch, lines: AsyncIterator[bytes]) -> None:
        async for line in lines:
            if not line.strip():
                continue
            answer = _answer_of(line)
            open_call = batch.unanswered.pop(answer.call_id, None)
            if open_call is None:
                _log.warning("answer line for no open call", extra={"call_id": answer.call_id, "status": answer.status})
                continue
            open_call.answer(Reply(answer.status, answer.body, retry_after_s=answer.retry_after_s))

    async def _hand_out_refusal(self, batch: _Batch, stream: LineStream) -> None:
        """The batch as a whole was refused: its calls go alone if the server knows no batches, else fail alike."""
        body = b"\n".join([line async for line in stream.lines])
        calls = list(batch.unanswered.values())
        batch.unanswered.clear()
        if stream.status in _NO_BATCHES:
            self._server_takes_batches = False
            for open_call in calls:
                open_call.batch = None
            self._waiting[:0] = [open_call for open_call in calls if not open_call.reply.done()]
            self._plan_departure()
            return
        for open_call in calls:
            open_call.answer(Reply(stream.status, body, stream.content_type, stream.retry_after_s))


def _end(task: "asyncio.Task[None]") -> None:
    """Cancel a request, but only once: a second time would keep it from closing its connection."""
    if not task.cancelling():
        task.cancel()


def _answer_of(line: bytes) -> AnswerLine:
    try:
        return AnswerLine.model_validate_json(line)
    except ValidationError as error:
        raise TransportError("the stream of answers has a line that is no answer", was_sent=True) from error
