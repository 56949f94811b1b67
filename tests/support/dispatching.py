"""A dispatcher between a scripted worker and a recording engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from starlette.types import Message, Receive, Scope, Send

from server_stub.core.model import Call, CallKey, LocalAttributeRead, ProcessExecution, RowRead, StateKey
from server_stub.core.outcomes import StateOutcome, Verdict
from server_stub.core.ports import CallReads, Store
from server_stub.dispatch.dispatcher import Dispatcher
from server_stub.dispatch.options import DispatchOptions
from tests.support.asgi import AsgiTransport
from tests.support.virtual_time import EPOCH_MS, VirtualClock
from xdb_sdk.protocol import (
    BATCH_CONTENT_TYPE,
    WORKER_BATCH_PATH,
    Json,
    ReadRequest,
    StateApi,
    StateOptionsConfig,
    TableMapping,
)

WORKER_URL = "http://worker"
DONE: Json = {"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}
NO_COMMANDS: Json = {"commandRequest": {"waitingType": "EMPTY"}}


def make_call(number: int = 1, *, api: StateApi = StateApi.EXECUTE, attempt: int = 1, **changes: Any) -> Call:
    """Make the call of attempt `attempt` of state execution `S-<number>` of execution `e-<number>`."""
    call = Call(
        key=CallKey(StateKey(f"e-{number}", "S", number), api, attempt, claim_range=1),
        due_at_ms=EPOCH_MS,
        namespace="default",
        process_id=f"p-{number}",
        process_type="P",
        worker_url=WORKER_URL,
        process_started_at_ms=EPOCH_MS - 5_000,
        object_id=None,
        tables=(),
        input='"in"',
        options=StateOptionsConfig(),
        first_attempt_at_ms=EPOCH_MS,
        recover_from=None,
        command_results=None,
        state_locals={},
        last_database_error=None,
    )
    return replace(call, **changes)


def make_process(number: int = 1, **changes: Any) -> ProcessExecution:
    """Make the execution `e-<number>`."""
    process = ProcessExecution(f"e-{number}", "default", f"p-{number}", "P", WORKER_URL, EPOCH_MS - 5_000)
    return replace(process, **changes)


def locking_options(*columns: str, lock_type: str = "EXCLUSIVE_LOCK") -> StateOptionsConfig:
    """Options of a state whose execute locks columns of the row of `user`."""
    table = {"table_name": "user", "columns": columns, "lock_columns": columns}
    read = ReadRequest.model_validate({"tables": [table], "lock_type": lock_type})
    return StateOptionsConfig(execute_read=read)


USER_ROW = TableMapping(table_name="user", primary_key={"id": 7})

Handler = Callable[[Json], Awaitable[Json]]
"""Answers one call: given the body, gives a body for status 200, or an `Answer`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with another status than 200."""

    status: int
    body: Json = None
    retry_after_s: float | None = None


@dataclass
class ScriptedWorker:
    """A worker that answers every call with what `handler` gives, each as soon as it is there.

    `calls` are the bodies in order of arrival, `batches` the numbers of calls of each batch request, `requests` the
    path and headers of each request.
    """

    handler: Handler
    has_batch_endpoint: bool = True
    calls: list[Json] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((scope["path"], headers))
        body = (await receive())["body"]
        if not scope["path"].endswith(WORKER_BATCH_PATH):
            await self._serve_single(body, send)
        elif self.has_batch_endpoint:
            await self._serve_batch(body, send)
        else:
            await respond(send, 404, b'{"errorType":"PathNotFound","detail":"no such path"}')

    async def _serve_single(self, body: bytes, send: Send) -> None:
        answer = await self._answer(json.loads(body))
        headers = {} if answer.retry_after_s is None else {"retry-after": f"{answer.retry_after_s:g}"}
        await respond(send, answer.status, json.dumps(answer.body).encode(), headers)

    async def _serve_batch(self, body: bytes, send: Send) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        self.batches.append(len(lines))
        self.operations += [line["operation"] for line in lines]
        await send(response_start(200, {"content-type": BATCH_CONTENT_TYPE}))

        async def serve(line: Json) -> None:
            answer = await self._answer(line["body"])
            await send({"type": "http.response.body", "body": answer_line(line["callId"], answer), "more_body": True})

        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                tasks.create_task(serve(line))
        await send({"type": "http.response.body"})

    async def _answer(self, body: Json) -> Answer:
        self.calls.append(body)
        answer = await self.handler(body)
        return answer if isinstance(answer, Answer) else Answer(200, answer)


def response_start(status: int, headers: Mapping[str, str]) -> Message:
    """Make the ASGI message that begins a response."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


async def respond(send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Send a whole response."""
    await send(response_start(status, headers or {}))
    await send({"type": "http.response.body", "body": body})


def answer_line(call_id: int, answer: Answer) -> bytes:
    """Write one answer of a batch."""
    line = {"callId": call_id, "status": answer.status, "body": answer.body, "retryAfterS": answer.retry_after_s}
    return json.dumps(line).encode() + b"\n"


async def answer_done(body: Json) -> Json:
    """Answer every call with the least that its operation allows."""
    if "rpcName" in body:
        return {"output": "out"}
    is_execute = body["context"]["idempotencyKey"].endswith("/EXECUTE")
    return DONE if is_execute else NO_COMMANDS


@dataclass
class RecordingSink:
    """An engine that only writes down outcomes. `verdicts` are given first; then all outcomes are APPLIED."""

    verdicts: list[Verdict] = field(default_factory=list)
    outcomes: list[tuple[CallKey, StateOutcome]] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    given_back: list[CallKey] = field(default_factory=list)
    delay_s: float = 0.0
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, call: Call, outcome: StateOutcome) -> asyncio.Future[Verdict]:
        loop = asyncio.get_running_loop()
        self.outcomes.append((call.key, outcome))
        self.at_s.append(loop.time())
        verdict = self.verdicts.pop(0) if self.verdicts else Verdict.APPLIED
        future: asyncio.Future[Verdict] = loop.create_future()
        loop.call_later(self.delay_s, future.set_result, verdict)
        self._arrived.set()
        return future

    def give_back(self, keys: Sequence[CallKey]) -> None:
        self.given_back += keys

    async def wait_for(self, count: int) -> list[StateOutcome]:
        """Wait until `count` outcomes have been recorded, and give them in their order."""
        while len(self.outcomes) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return [outcome for _, outcome in self.outcomes]

    def states_at(self) -> dict[str, float]:
        """Give the instant of each outcome on the loop's clock, by execution."""
        return {key.state.process_execution_id: at_s for (key, _), at_s in zip(self.outcomes, self.at_s, strict=True)}


@dataclass
class RowsStore:
    """The part of a store that a dispatcher uses: rows by table and key, attributes by execution, errors to come."""

    rows: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    local_attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    queue_sizes: dict[str, int] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    refused: Callable[[RowRead], Exception | None] = lambda row: None
    reads: list[int] = field(default_factory=list)

    async def read_for_calls(
        self, rows: Sequence[RowRead], local_attributes: Sequence[LocalAttributeRead]
    ) -> CallReads:
        self.reads.append(len(rows) + len(local_attributes))
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        found: dict[RowRead, Mapping[str, Json] | None] = {}
        for row in rows:
            if error := self.refused(row):
                raise error
            values = self.rows.get(row.row.table_name)
            found[row] = None if values is None else {name: values[name] for name in row.columns}
        return CallReads(found, self.local_attributes)

    async def count_messages(self, process_execution_id: str) -> dict[str, int]:
        return self.queue_sizes


@dataclass
class World:
    """A dispatcher and what is around it."""

    dispatcher: Dispatcher
    sink: RecordingSink
    store: RowsStore
    worker: ScriptedWorker


@asynccontextmanager
async def dispatching(
    handler: Handler = answer_done,
    *,
    options: DispatchOptions | None = None,
    has_batch_endpoint: bool = True,
    app: Any = None,
) -> AsyncIterator[World]:
    """Run a dispatcher whose worker answers by `handler`, or is `app`."""
    worker = ScriptedWorker(handler, has_batch_endpoint)
    sink = RecordingSink()
    store = RowsStore()
    async with AsgiTransport({WORKER_URL: app or worker}) as transport:
        dispatcher = Dispatcher(transport, cast(Store, store), sink, options or DispatchOptions(), VirtualClock())
        try:
            yield World(dispatcher, sink, store, worker)
        finally:
            await dispatcher.close(grace_s=0)
