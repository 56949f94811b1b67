"""The worker as an ASGI application."""

import asyncio
import math
from functools import partial
from http import HTTPStatus

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.types import Message, Receive, Scope, Send

from xdb_sdk._registry import Registry
from xdb_sdk.protocol import (
    BATCH_CONTENT_TYPE,
    EXECUTE_PATH,
    PROCESS_CLOSED_PATH,
    RPC_PATH,
    UNKNOWN_CALL_ID,
    WAIT_UNTIL_PATH,
    WORKER_BATCH_PATH,
    ExecuteCall,
    LineSplitter,
    ProcessClosedCall,
    RpcCall,
    WaitUntilCall,
    WorkerLine,
    answer_line,
    call_id_of,
)
from xdb_sdk.worker._failure import WorkerCallError, WorkerResponse, invalid_request, refusal, response_of
from xdb_sdk.worker._options import DEFAULT_WORKER_OPTIONS, WorkerOptions
from xdb_sdk.worker._service import WorkerCall, WorkerService

HEALTH_PATH = "/healthz"
METRICS_PATH = "/metrics"

_LINE: TypeAdapter[WorkerLine] = TypeAdapter(WorkerLine)

_CALL_TYPES: dict[str, type[WorkerCall]] = {
    EXECUTE_PATH: ExecuteCall,
    WAIT_UNTIL_PATH: WaitUntilCall,
    RPC_PATH: RpcCall,
    PROCESS_CLOSED_PATH: ProcessClosedCall,
}


class Worker:
    """Serve the registered processes to xdb servers, as an ASGI application.

    It may be mounted under a path of another application. Such a mount passes no lifespan events on: call
    `service.stop()` when that application stops. uvicorn waits for open requests before it tells the worker to stop;
    bound that wait by its `timeout_graceful_shutdown`.

    Args:
        registry: The processes to serve.
        options: Limits; the defaults suit one process on one core.

    Example:
        app = Worker(registry)  # then: uvicorn myapp:app

    Source: semantics 8.
    """

    def __init__(self, registry: Registry, options: WorkerOptions = DEFAULT_WORKER_OPTIONS) -> None:
        self.service = WorkerService(registry, options)
        self._options = options

    @property
    def app(self) -> "Worker":
        """The ASGI application, which is the worker itself."""
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        allowed = "GET" if path in (HEALTH_PATH, METRICS_PATH) else "POST"
        call_type = _CALL_TYPES.get(path)
        if call_type is None and path not in (WORKER_BATCH_PATH, HEALTH_PATH, METRICS_PATH):
            await _send_error(send, refusal(HTTPStatus.NOT_FOUND, "PathNotFound", f"the worker has no path {path!r}"))
        elif scope["method"] != allowed:
            detail = f"{path} takes {allowed}, not {scope['method']}"
            error = refusal(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", detail)
            await _send_error(send, error, (b"allow", allowed.encode()))
        elif call_type is not None:
            await self._serve_call(call_type, receive, send)
        elif path == WORKER_BATCH_PATH:
            await _Batch(self.service, self._options, receive, send).serve()
        elif path == METRICS_PATH:
            await self._show_metrics(scope, send)
        else:
            await _send(send, WorkerResponse(HTTPStatus.OK, to_json(self.service.health())))

    async def _serve_call(self, call_type: type[WorkerCall], receive: Receive, send: Send) -> None:
        try:
            body = await _read_body(receive, self._options.max_call_bytes)
        except WorkerCallError as error:
            await _send_error(send, error)
            return
        if body is not None:
            await _send(send, await self.service.respond(call_type, body))

    async def _show_metrics(self, scope: Scope, send: Send) -> None:
        accept = b", ".join(value for name, value in scope["headers"] if name == b"accept")
        text, content_type = self.service.metrics(accept.decode("latin-1"))
        await send(_response_start(HTTPStatus.OK, content_type, (b"content-length", b"%d" % len(text))))
        await send({"type": "http.response.body", "body": text})

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "lifespan.startup":
            self.service.start()
            await send({"type": "lifespan.startup.complete"})
        await self.service.stop()
        await send({"type": "lifespan.shutdown.complete"})


class _Batch:
    """One batch request: each line is called as soon as it has arrived, each answer is sent as soon as it is there.

    Answers that are ready at the same turn of the event loop travel in one chunk. When the server hangs up, the calls
    that have begun go on to their end and their answers are dropped; the server repeats the attempts.
    """

    def __init__(self, service: WorkerService, options: WorkerOptions, receive: Receive, send: Send) -> None:
        self._service = service
        self._options = options
        self._receive = receive
        self._send = send
        self._answers: list[bytes] = []
        self._open_calls = 0
        self._is_read = False
        self._is_disconnected = False
        self._wake = asyncio.Event()

    async def serve(self) -> None:
        """Serve the request to its end."""
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(self._read())
            await self._send(_response_start(HTTPStatus.OK, BATCH_CONTENT_TYPE))
            await self._write()
            reader.cancel()

    async def _read(self) -> None:
        """Start the calls as they arrive, then watch for a disconnect."""
        splitter = LineSplitter(self._options.max_call_bytes)
        size_bytes = 0
        while (message := await self._receive())["type"] == "http.request":
            chunk = message.get("body", b"")
            size_bytes += len(chunk)
            if size_bytes > self._options.max_batch_bytes:
                self._answer(UNKNOWN_CALL_ID, response_of(_too_large("batch", self._options.max_batch_bytes)))
                break
            is_last = not message.get("more_body", False)
            for line in (*splitter.feed(chunk), *(splitter.rest() if is_last else ())):
                self._call(line)
            if is_last:
                self._end_of_lines()
        else:
            self._is_disconnected = True
        self._end_of_lines()

    def _end_of_lines(self) -> None:
        self._is_read = True
        self._wake.set()

    def _call(self, line: bytes) -> None:
        if len(line) > self._options.max_call_bytes:
            self._answer(call_id_of(line), response_of(_too_large("line", self._options.max_call_bytes)))
            return
        try:
            call = _LINE.validate_json(line)
        except ValidationError as error:
            self._answer(call_id_of(line), response_of(invalid_request(error)))
            return
        self._open_calls += 1
        self._service.submit(call.body, partial(self._finish, call.call_id))

    def _finish(self, call_id: int, response: WorkerResponse) -> None:
        self._open_calls -= 1
        self._answer(call_id, response)

    def _answer(self, call_id: int, response: WorkerResponse) -> None:
        if not self._is_disconnected:
            self._answers.append(answer_line(call_id, response.status, response.body, response.retry_after_s))
            self._wake.set()

    async def _write(self) -> None:
        has_more = True
        while has_more:
            await self._wake.wait()
            self._wake.clear()
            if self._is_disconnected:
                return
            chunk = b"".join(self._answers)
            self._answers.clear()
            has_more = not self._is_read or self._open_calls > 0
            if chunk or not has_more:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": has_more})


async def _read_body(receive: Receive, limit_bytes: int) -> bytes | None:
    """Read a request body; None if the client has gone.

    Raises:
        WorkerCallError: 413, it is larger than `limit_bytes`. The rest stays unread.
    """
    chunks: list[bytes] = []
    size_bytes = 0
    while (message := await receive())["type"] == "http.request":
        chunks.append(message.get("body", b""))
        size_bytes += len(chunks[-1])
        if size_bytes > limit_bytes:
            raise _too_large("request", limit_bytes)
        if not message.get("more_body", False):
            return b"".join(chunks)
    return None


def _too_large(what: str, limit_bytes: int) -> WorkerCallError:
    detail = f"the {what} is larger than the {limit_bytes} bytes that WorkerOptions allows"
    return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "CallTooLarge", detail)


async def _send_error(send: Send, error: WorkerCallError, *headers: tuple[bytes, bytes]) -> None:
    await _send(send, response_of(error), *headers)


async def _send(send: Send, response: WorkerResponse, *headers: tuple[bytes, bytes]) -> None:
    all_headers = [(b"content-length", b"%d" % len(response.body)), *headers]
    if response.retry_after_s is not None:
        all_headers.append((b"retry-after", b"%d" % math.ceil(response.retry_after_s)))
    await send(_response_start(response.status, "application/json", *all_headers))
    await send({"type": "http.response.body", "body": response.body})


def _response_start(status: int, content_type: str, *headers: tuple[bytes, bytes]) -> Message:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", content_type.encode()), *headers],
    }
