"""The batch endpoint: many calls in one request, each carried out as it arrives and answered as it finishes."""

import asyncio
import logging
import time
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, TypeAdapter, ValidationError, create_model
from starlette.types import Message, Receive, Send

from server_stub.api.body import ClientDisconnected, read_chunks
from server_stub.api.calls import Calls, Response, response_of
from server_stub.api.limits import ApiLimits
from server_stub.api.operations import OPERATIONS, Operation
from server_stub.api.refusals import invalid_fields, too_large, unknown_operation
from server_stub.engine.errors import ServiceError
from xdb_sdk.protocol import (
    BATCH_CONTENT_TYPE,
    UNKNOWN_CALL_ID,
    LineSplitter,
    ServiceRequest,
    WireModel,
    answer_line,
    call_id_of,
)

logger = logging.getLogger(__name__)

_LINE_OVERHEAD_BYTES = 256
"""What the envelope of a line may add to a call."""
_PATIENCE_S = 0.05
"""How long the first answer waits for the rest of the request."""


class CallLine(Protocol):
    """One line of a batch request."""

    call_id: int
    operation: str
    body: ServiceRequest


def _line_type(operation: Operation) -> type[WireModel]:
    fields: dict[str, Any] = {
        "call_id": (int, ...),
        "operation": (Literal[operation.name], ...),
        "body": (operation.request_type, ...),
    }
    name = operation.request_type.__name__.removesuffix("Request") + "Line"
    doc = f"A call of `{operation.name}` in a batch."
    return create_model(name, __base__=WireModel, __doc__=doc, **fields)


LINE_TYPES = {operation.name: _line_type(operation) for operation in OPERATIONS.values()}
"""The wire model of a line, by operation."""
_AnyLine: Any = Annotated[reduce(or_, LINE_TYPES.values()), Field(discriminator="operation")]
_LINE: TypeAdapter[Any] = TypeAdapter(_AnyLine)


class Batch:
    """One batch request.

    Reading, the calls and writing go on side by side: a long poll delays no other call, and answers that are ready at
    the same turn of the event loop travel in one chunk. Once begun, a call goes on to its end even if the client hangs
    up, as a call in a request of its own does.
    """

    def __init__(self, calls: Calls, limits: ApiLimits, receive: Receive, send: Send) -> None:
        self._calls = calls
        self._limits = limits
        self._receive = receive
        self._send = send
        self._begun = 0
        self._open = 0
        self._answers: list[bytes] = []
        self._wake = asyncio.Event()
        self._reading_ended = asyncio.Event()
        self._is_read_whole = False

    async def serve(self) -> None:
        """Serve the request to its end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            try:
                await self._read(tasks)
                self._is_read_whole = True
            except ServiceError as error:
                self._answer(UNKNOWN_CALL_ID, response_of(error))
            except ClientDisconnected:
                logger.debug("batch cut off")
            self._calls.measures.batch_calls.observe(self._begun)
            self._reading_ended.set()
            self._wake.set()

    async def _read(self, calls: asyncio.TaskGroup) -> None:
        limits = self._limits
        splitter = LineSplitter(limits.max_call_bytes + _LINE_OVERHEAD_BYTES)
        async for chunk in read_chunks(self._receive, limits, limits.max_batch_bytes, "max_batch_bytes"):
            for line in splitter.feed(chunk):
                self._begin(calls, line)
        for line in splitter.rest():
            self._begin(calls, line)

    def _begin(self, calls: asyncio.TaskGroup, line: bytes) -> None:
        if self._begun == self._limits.max_batch_calls:
            raise too_large("the batch holds more calls", str(self._begun), "max_batch_calls")
        self._begun += 1
        self._open += 1
        calls.create_task(self._run(line))

    async def _run(self, line: bytes) -> None:
        began_s = time.perf_counter()
        call_id, operation, request = UNKNOWN_CALL_ID, "unknown", None
        try:
            call = self._parse(line)
            call_id, operation, request = call.call_id, call.operation, call.body
            response = await self._calls.carry_out(OPERATIONS[operation], request, line)
        except ServiceError as error:
            response = response_of(error)
            if request is None:
                call_id = call_id_of(line)
        self._open -= 1
        self._answer(call_id, response)
        self._calls.note(operation, response.status, began_s, request)

    def _parse(self, line: bytes) -> CallLine:
        limit_bytes = self._limits.max_call_bytes
        if len(line) > limit_bytes + _LINE_OVERHEAD_BYTES:
            raise too_large("the line is longer", f"{limit_bytes} bytes", "max_call_bytes")
        try:
            call: CallLine = _LINE.validate_json(line)
        except ValidationError as error:
            raise _line_refusal(error) from error
        return call

    def _answer(self, call_id: int, response: Response) -> None:
        self._answers.append(answer_line(call_id, response.status, response.body, response.retry_after_s))
        self._wake.set()

    async def _write(self) -> None:
        await self._wake.wait()
        await self._send(await self._head())
        has_more = True
        while has_more:
            await self._wake.wait()
            self._wake.clear()
            has_more = self._open > 0 or not self._reading_ended.is_set()
            chunk = b"".join(self._answers)
            self._answers.clear()
            if chunk or not has_more:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": has_more})

    async def _head(self) -> Message:
        """Give the head of the answer, once the request has been read or does not come to its end soon.

        Then the connection is not kept: otherwise the HTTP server would go on to read, and throw away, a body that
        may have no end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._reading_ended.wait()
        headers = [(b"content-type", BATCH_CONTENT_TYPE.encode())]
        if not self._is_read_whole:
            headers.append((b"connection", b"close"))
        return {"type": "http.response.start", "status": 200, "headers": headers}


def _line_refusal(error: ValidationError) -> ServiceError:
    problem = error.errors(include_url=False, include_input=False)[0]
    if problem["type"] == "union_tag_invalid":
        return unknown_operation(str(problem.get("ctx", {}).get("tag")))
    return invalid_fields(error, skip=1)
