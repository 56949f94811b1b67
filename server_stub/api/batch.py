"""The batch endpoint: many calls in one request, each carried out as it arrives and answered as it finishes."""

import asyncio
import logging
import time
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, TypeAdapter, ValidationError, create_model
from pydantic_core import from_json
from starlette.types import Receive, Send

from server_stub.api.body import ClientDisconnected, LineSplitter, read_chunks
from server_stub.api.calls import Calls, Response, log_request, response_of
from server_stub.api.limits import ApiLimits
from server_stub.api.operations import OPERATIONS, Operation
from server_stub.api.refusals import invalid_fields, too_large, unknown_operation
from server_stub.engine.errors import ServiceError
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, WireModel

logger = logging.getLogger(__name__)

UNKNOWN_CALL_ID = -1
_LINE_OVERHEAD_BYTES = 256
"""What the envelope of a line may add to a call."""


class CallLine(Protocol):
    """One line of a batch request."""

    call_id: int
    operation: str
    body: WireModel


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
        self._answers: list[bytes] = []
        self._is_finished = False
        self._wake = asyncio.Event()

    async def serve(self) -> None:
        """Serve the request to its end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            await self._run_calls()
            self._is_finished = True
            self._wake.set()

    async def _run_calls(self) -> None:
        async with asyncio.TaskGroup() as calls:
            try:
                await self._read(calls)
            except ServiceError as error:
                self._answer(UNKNOWN_CALL_ID, response_of(error))
            except ClientDisconnected:
                logger.debug("batch cut off")

    async def _read(self, calls: asyncio.TaskGroup) -> None:
        limits = self._limits
        splitter = LineSplitter(limits.max_call_bytes + _LINE_OVERHEAD_BYTES)
        async for chunk in read_chunks(self._receive, limits, limits.max_batch_bytes, "max_batch_bytes"):
            for line in splitter.feed(chunk):
                self._begin(calls, line)
        self._begin(calls, splitter.rest())

    def _begin(self, calls: asyncio.TaskGroup, line: bytes) -> None:
        if not line.strip():
            return
        if self._begun == self._limits.max_batch_calls:
            raise too_large("the batch holds more calls", str(self._begun), "max_batch_calls")
        self._begun += 1
        calls.create_task(self._run(line))

    async def _run(self, line: bytes) -> None:
        began_s = time.perf_counter()
        try:
            call = self._parse(line)
        except ServiceError as error:
            self._answer(_call_id_of(line), response_of(error))
            log_request("unknown", error.status, began_s)
            return
        try:
            response = await self._calls.carry_out(OPERATIONS[call.operation], call.body, line)
        except ServiceError as error:
            response = response_of(error)
        self._answer(call.call_id, response)
        log_request(call.operation, response.status, began_s, call.body)

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
        retry_after = b"" if response.retry_after_s is None else b',"retryAfterS":%g' % response.retry_after_s
        line = b'{"callId":%d,"status":%d,"body":%b%b}\n' % (call_id, response.status, response.body, retry_after)
        self._answers.append(line)
        self._wake.set()

    async def _write(self) -> None:
        headers = [(b"content-type", BATCH_CONTENT_TYPE.encode())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        has_more = True
        while has_more:
            await self._wake.wait()
            self._wake.clear()
            has_more = not self._is_finished
            chunk = b"".join(self._answers)
            self._answers.clear()
            await self._send({"type": "http.response.body", "body": chunk, "more_body": has_more})


def _line_refusal(error: ValidationError) -> ServiceError:
    problem = error.errors(include_url=False, include_input=False)[0]
    if problem["type"] == "union_tag_invalid":
        return unknown_operation(str(problem["ctx"]["tag"]))
    return invalid_fields(error, skip=1)


def _call_id_of(line: bytes) -> int:
    """Find the call id of a line that cannot be used, even if it is cut short."""
    try:
        data = from_json(line, allow_partial=True)
    except ValueError:
        return UNKNOWN_CALL_ID
    call_id = data.get("callId") if isinstance(data, dict) else None
    return call_id if type(call_id) is int else UNKNOWN_CALL_ID
