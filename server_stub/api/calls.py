"""Carries out one call: bytes in, status and bytes out, whichever way it came."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter, ValidationError

from server_stub.api.limits import ApiLimits
from server_stub.api.measures import RequestMeasures
from server_stub.api.operations import OPERATIONS, Operation, ServiceOperations
from server_stub.api.refusals import internal_error, invalid_fields, invalid_request, too_large
from server_stub.core.json_text import find_json_problem
from server_stub.engine.errors import ServiceError
from xdb_sdk.protocol import (
    REQUEST_ID_HEADER,
    RepeatableRequest,
    RequestId,
    ServiceRequest,
    WireModel,
    find_large_value,
)
from xdb_sdk.protocol.tracing import Kind, Trace, traced

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer ready to be sent; `body` is JSON."""

    status: int
    body: bytes
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """What the headers of a request tell that has one call: what the call itself may say, too."""

    trace_context: str | None = None
    request_id: str | None = None


_NO_HEADERS = CallHeaders()
_REQUEST_ID: TypeAdapter[str] = TypeAdapter(RequestId)


def response_of(error: ServiceError) -> Response:
    """Write an error."""
    return Response(error.status, error.body.to_json(), error.body.retry_after_s)


class Calls:
    """Parse, check and carry out calls, count them, and log one line for each.

    Args:
        operations: What the calls are handed to.
        limits: How large they may be.
        ids: Makes the ids by which faults of the server are found in its log.
    """

    def __init__(self, operations: ServiceOperations, limits: ApiLimits, ids: Callable[[], str]) -> None:
        self.measures = RequestMeasures()
        self._limits = limits
        self._ids = ids
        self._methods: dict[str, Callable[[Any], Awaitable[WireModel]]] = {
            operation.name: getattr(operations, operation.method) for operation in OPERATIONS.values()
        }

    async def respond(self, operation: Operation, body: bytes, headers: CallHeaders = _NO_HEADERS) -> Response:
        """Carry out a call whose body is the request of `operation`. Never raises an `Exception`."""
        began_s = time.perf_counter()
        request: ServiceRequest | None = None
        try:
            request = self._parse(operation, body)
            if headers != _NO_HEADERS:
                request = _with_headers(request, headers)
            response = await self.carry_out(operation, request, body)
        except ServiceError as error:
            response = response_of(error)
        self.note(operation.name, response.status, began_s, request)
        return response

    def note(self, operation: str, status: int, began_s: float, request: WireModel | None = None) -> None:
        """Count and log a call that has been answered; `began_s` is from `time.perf_counter`."""
        self.measures.answered(operation, status, began_s)
        log_request(operation, status, began_s, request)

    def _parse(self, operation: Operation, body: bytes) -> ServiceRequest:
        try:
            return operation.request_type.model_validate_json(body)
        except ValidationError as error:
            raise invalid_fields(error) from error

    async def carry_out(self, operation: Operation, request: ServiceRequest, text: bytes) -> Response:
        """Check a parsed request and carry it out.

        Args:
            operation: What to do.
            request: Of the operation's request type.
            text: The JSON that the request was parsed from.

        Raises:
            ServiceError: It was refused.
        """
        self._check(request, text)
        with traced(f"xdb {operation.name}", Kind.SERVER, request.trace_context) as trace:
            if trace.is_collected:
                trace.describe({"xdb.process_id": getattr(request, "process_id", None)})
                request = _within(request, trace.context)
            return Response(200, (await self._perform(operation, request, trace)).to_json())

    async def _perform(self, operation: Operation, request: ServiceRequest, trace: Trace) -> WireModel:
        try:
            return await self._methods[operation.name](request)
        except ServiceError as error:
            if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                trace.fail(error.body.error_sub_type)
            raise
        except Exception as error:
            error_id = self._ids()
            logger.exception("operation failed", extra={"operation": operation.name, "error_id": error_id})
            trace.fail(f"error_id={error_id}", error)
            raise internal_error(error_id) from error

    def _check(self, request: ServiceRequest, text: bytes) -> None:
        limits = self._limits
        if len(text) > limits.max_value_bytes and (large := find_large_value(request, limits.max_value_bytes)):
            raise too_large(large, f"{limits.max_value_bytes} bytes", "max_value_bytes")
        if problem := find_json_problem(text, max_depth=limits.max_json_depth):
            raise invalid_request(problem)


def _with_headers(request: ServiceRequest, headers: CallHeaders) -> ServiceRequest:
    """Give the request what the headers tell; the trace that it names itself is better.

    Raises:
        ServiceError: It has another request id, or one that is none.
    """
    if request.trace_context is None and headers.trace_context is not None:
        request = _within(request, headers.trace_context)
    if headers.request_id is None or not isinstance(request, RepeatableRequest):
        return request
    if request.request_id not in (None, headers.request_id):
        raise invalid_request(
            f"the header {REQUEST_ID_HEADER} says {headers.request_id!r}, and requestId {request.request_id!r}; "
            "give one of them, or the same"
        )
    try:
        request_id = _REQUEST_ID.validate_python(headers.request_id)
    except ValidationError as error:
        raise invalid_request(
            f"the header {REQUEST_ID_HEADER} must have 1 to 128 printable ASCII characters"
        ) from error
    return request.model_copy(update={"request_id": request_id})


def _within(request: ServiceRequest, trace_context: str | None) -> ServiceRequest:
    return request.model_copy(update={"trace_context": trace_context})


def log_request(operation: str, status: int, began_s: float, request: WireModel | None = None) -> None:
    """Log a request that has been answered; `began_s` is from `time.perf_counter`. Never payloads."""
    if logger.isEnabledFor(logging.INFO):
        duration_ms = round((time.perf_counter() - began_s) * 1000, 2)
        facts = {"operation": operation, "status": status, "duration_ms": duration_ms}
        process_id = getattr(request, "process_id", None)
        if process_id is not None:
            facts["process_id"] = process_id
        logger.info("request", extra=facts)
