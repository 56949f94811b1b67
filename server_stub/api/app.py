"""The service API as an ASGI application."""

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qsl

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from server_stub.api.batch import Batch
from server_stub.api.body import ClientDisconnected, check_announced_size, read_body
from server_stub.api.calls import CallHeaders, Calls, Response, log_request, response_of
from server_stub.api.limits import ApiLimits
from server_stub.api.measures import RequestMeasures
from server_stub.api.openapi import SERVICE_DOCUMENT, WORKER_DOCUMENT
from server_stub.api.operations import OPERATIONS, Operation, ServiceOperations
from server_stub.api.refusals import internal_error, refusal, unavailable, unknown_operation
from server_stub.core.ports import StoreError
from server_stub.engine.errors import ServiceError
from xdb_sdk.protocol import REQUEST_ID_HEADER, SERVICE_BATCH_PATH, SERVICE_PREFIX, ErrorSubType
from xdb_sdk.protocol.tracing import valid_trace_context

logger = logging.getLogger(__name__)

JSON = "application/json"
READY_TIMEOUT_S = 5.0

Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]
ReadyCheck = Callable[[], Awaitable[None]]
Metrics = Callable[[str], tuple[bytes, str]]
Status = Callable[[], Mapping[str, object]]


class ServiceApi:
    """Serve the service API, health and the OpenAPI documents.

    The paths that carry load are found in one dictionary and served from bytes to bytes; starlette serves the rest.

    Args:
        operations: What the calls are handed to.
        is_ready: Returns if the database can be reached and has the right schema, and raises `StoreError` if not.
        limits: How large requests may be.
        ids: Makes the ids by which faults of the server are found in its log.
        status: What /internal/status shows, as JSON.
        metrics: Writes what /metrics shows, given an Accept header; gives the content type too.
        serves_clients: Whether this server has the role of serving them; if not, it sends them to another one.

    Source: semantics 6.
    """

    def __init__(
        self,
        operations: ServiceOperations,
        is_ready: ReadyCheck,
        limits: ApiLimits,
        ids: Callable[[], str],
        *,
        status: Status = dict,
        metrics: Metrics = lambda accept: (b"", "text/plain"),
        serves_clients: bool = True,
    ) -> None:
        self._limits = limits
        self._ids = ids
        self._calls = Calls(operations, self._limits, ids)
        self._metrics = metrics
        self._is_ready = is_ready
        self._was_ready = True
        """The latest answer, so that a probe that comes every second fills no log."""
        self._status_of = status
        self._serves_clients = serves_clients
        self._hot: dict[str, Endpoint] = {
            SERVICE_PREFIX + operation.name: partial(self._serve_call, operation) for operation in OPERATIONS.values()
        }
        self._hot[SERVICE_BATCH_PATH] = self._serve_batch
        self._rest = Starlette(
            routes=[
                Route("/healthz", _healthz),
                Route("/readyz", self._readyz),
                Route("/internal/status", self._status),
                Route("/metrics", self._show_metrics),
                Route("/openapi.json", partial(_document, SERVICE_DOCUMENT)),
                Route("/openapi-worker.json", partial(_document, WORKER_DOCUMENT)),
            ],
            exception_handlers={HTTPException: _http_error, Exception: self._unexpected_error},
        )

    @property
    def measures(self) -> RequestMeasures:
        """What is known of the calls of clients."""
        return self._calls.measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path = _path_below_mount(scope)
        endpoint = self._hot.get(path)
        history = _HISTORY_PATH.fullmatch(path) if endpoint is None and scope["method"] == "GET" else None
        if history is not None and self._serves_clients:
            await self._serve_history(history["namespace"], history["process_id"], scope, send)
        elif endpoint is None:
            await self._serve_rest(scope, receive, send)
        elif not self._serves_clients:
            await self._refuse(scope, send, unavailable("this server has not the role api; call another one"), _CLOSE)
        elif scope["method"] == "POST":
            await endpoint(scope, receive, send)
        else:
            error = _method_not_allowed(scope["method"], scope["path"], "POST")
            await self._refuse(scope, send, error, (b"allow", b"POST"))

    async def _serve_call(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_announced_size(scope, self._limits.max_call_bytes, "max_call_bytes")
            body = await read_body(receive, self._limits)
        except ServiceError as error:
            await self._refuse(scope, send, error, _CLOSE)
        except ClientDisconnected:
            logger.debug("call cut off")
        else:
            headers = CallHeaders(_trace_context(scope), _request_id(scope))
            await _send(send, await self._calls.respond(operation, body, headers))

    async def _serve_history(self, namespace: str, process_id: str, scope: Scope, send: Send) -> None:
        """Read a page of a history by its path, as `get-history` does by its body."""
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        asked = {name: int(value) if re.fullmatch(r"\d{1,16}", value) else value for name, value in query.items()}
        if "processExecutionId" in query:
            asked["processExecutionId"] = query["processExecutionId"]
        body = to_json({**asked, "namespace": namespace, "processId": process_id})
        await _send(send, await self._calls.respond(OPERATIONS["get-history"], body))

    async def _serve_batch(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_announced_size(scope, self._limits.max_batch_bytes, "max_batch_bytes")
        except ServiceError as error:
            await self._refuse(scope, send, error, _CLOSE)
        else:
            await Batch(self._calls, self._limits, receive, send).serve()

    async def _refuse(self, scope: Scope, send: Send, error: ServiceError, *headers: tuple[bytes, bytes]) -> None:
        began_s = time.perf_counter()
        await _send(send, response_of(error), *headers)
        self.measures.answered(_path_below_mount(scope).rpartition("/")[2], error.status, began_s)
        log_request(_label(scope), error.status, began_s)

    async def _serve_rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = time.perf_counter()

        async def send_and_log(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                log_request(_label(scope), message["status"], began_s)

        await self._rest(scope, receive, send_and_log)

    async def _readyz(self, request: Request) -> StarletteResponse:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._is_ready()
        except (StoreError, TimeoutError) as error:
            if self._was_ready:
                logger.warning("not ready", extra={"error": str(error) or "the database does not answer"})
            self._was_ready = False
            return _starlette_response(response_of(unavailable("the database cannot be used")))
        if not self._was_ready:
            logger.warning("ready again")
        self._was_ready = True
        return StarletteResponse(b'{"status":"ready"}', media_type=JSON)

    def _unexpected_error(self, request: Request, error: Exception) -> StarletteResponse:
        error_id = self._ids()
        logger.error("request failed", exc_info=error, extra={"error_id": error_id})
        return _starlette_response(response_of(internal_error(error_id)))

    async def _show_metrics(self, request: Request) -> StarletteResponse:
        text, content_type = self._metrics(request.headers.get("accept", ""))
        return StarletteResponse(text, headers={"content-type": content_type})

    async def _status(self, request: Request) -> StarletteResponse:
        return StarletteResponse(to_json(self._status_of()), media_type=JSON)


_HISTORY_PATH = re.compile(re.escape(SERVICE_PREFIX) + "(?P<namespace>[^/]+)/(?P<process_id>.+)/history", re.DOTALL)
_CLOSE = (b"connection", b"close")
"""Sent where part of a body is left unread: nobody is to send, or read, the rest of it."""
_REQUEST_ID_HEADER = REQUEST_ID_HEADER.lower().encode()


def _path_below_mount(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _trace_context(scope: Scope) -> str | None:
    """Give the trace that the headers of a request tell of, in the form of the wire models."""
    found = {name: value for name, value in scope["headers"] if name in (b"traceparent", b"tracestate")}
    parent, state = found.get(b"traceparent"), found.get(b"tracestate")
    if parent is None:
        return None
    return valid_trace_context((parent if state is None else parent + b" " + state).decode("latin-1"))


def _request_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == _REQUEST_ID_HEADER:
            return str(value.decode("latin-1"))
    return None


def _label(scope: Scope) -> str:
    return f"{scope['method']} {scope['path'][:200]}"


async def _healthz(request: Request) -> StarletteResponse:
    return StarletteResponse(b'{"status":"ok"}', media_type=JSON)


async def _document(name: str, request: Request) -> StarletteResponse:
    return StarletteResponse(files("server_stub.api").joinpath(name).read_bytes(), media_type=JSON)


def _http_error(request: Request, error: Exception) -> StarletteResponse:
    """Answer what starlette refuses: a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    path = _path_below_mount(request.scope)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        return _starlette_response(response_of(_method_not_allowed(request.method, path, allowed)), error.headers)
    return _starlette_response(response_of(_not_found(path)))


def _not_found(path: str) -> ServiceError:
    if path.startswith(SERVICE_PREFIX):
        return unknown_operation(path.removeprefix(SERVICE_PREFIX))
    return refusal(
        HTTPStatus.NOT_FOUND,
        ErrorSubType.NOT_FOUND,
        f"there is no path {path[:100]!r}; /openapi.json describes the paths there are",
    )


def _method_not_allowed(method: str, path: str, allowed: str) -> ServiceError:
    return refusal(
        HTTPStatus.METHOD_NOT_ALLOWED, ErrorSubType.METHOD_NOT_ALLOWED, f"{path} takes {allowed}, not {method}"
    )


def _starlette_response(response: Response, headers: Mapping[str, str] | None = None) -> StarletteResponse:
    all_headers = dict(headers or {})
    if response.retry_after_s is not None:
        all_headers["retry-after"] = str(math.ceil(response.retry_after_s))
    return StarletteResponse(response.body, response.status, all_headers, media_type=JSON)


async def _send(send: Send, response: Response, *headers: tuple[bytes, bytes]) -> None:
    all_headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(response.body)),
        *headers,
    ]
    if response.retry_after_s is not None:
        all_headers.append((b"retry-after", b"%d" % math.ceil(response.retry_after_s)))
    await send({"type": "http.response.start", "status": response.status, "headers": all_headers})
    await send({"type": "http.response.body", "body": response.body})
