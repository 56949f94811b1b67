"""Calls on their way to a worker: what is written on the wire, and what has happened to them so far."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pydantic_core import from_json

from server_stub.core.model import Call, ProcessExecution, ReadSet
from server_stub.core.ports import CallReads
from server_stub.core.reads import ReadPlan, loaded_data, plan_reads, read_set_of
from server_stub.core.retry import attempt_timeout_ms
from server_stub.dispatch.lock_queue import LockTicket
from server_stub.dispatch.replies import Answer, Busy, Reply
from xdb_sdk.protocol import (
    DEADLINE_HEADER,
    EXECUTE_PATH,
    IDEMPOTENCY_KEY_HEADER,
    PROTOCOL_VERSION,
    RPC_PATH,
    WAIT_UNTIL_PATH,
    CallContext,
    CommandResultsBody,
    ExecuteAnswer,
    ExecuteCall,
    Json,
    LoadedData,
    LockType,
    ReadRequest,
    RpcAnswer,
    RpcCall,
    StateApi,
    TableMapping,
    WaitUntilAnswer,
    WaitUntilCall,
)
from xdb_sdk.protocol.tracing import Trace

_NOTHING_LOADED = LoadedData()
_NO_RESULTS = CommandResultsBody()


@dataclass(frozen=True, slots=True)
class RpcInvocation:
    """An RPC to be made.

    `timeout_ms` bounds everything: waiting for locks, reading, and the worker. `needs_queue_sizes` asks for the number
    of stored messages by queue. `request_id` is that of the client's request, if it changes something.
    """

    process: ProcessExecution
    rpc_name: str
    input: Json
    timeout_ms: int
    read: ReadRequest
    needs_queue_sizes: bool = False
    trace_context: str | None = None
    request_id: str | None = None


class Job(ABC):
    """A call, from its admission to its outcome. `reply_to` is told once for each time it is sent."""

    __slots__ = (
        "body",
        "busy",
        "conflicts",
        "deadline_s",
        "is_alone",
        "is_departing",
        "is_dropped",
        "is_sent",
        "is_withdrawn",
        "loaded",
        "plan",
        "read_set",
        "reply_to",
        "revisions",
        "sent_at_s",
        "ticket",
        "timeout_s",
        "trace",
        "was_cut_off",
    )

    path: str
    operation: str
    answer_type: type[Answer]
    is_rpc = False

    def __init__(self, reply_to: "Callable[[Job, Reply], None]") -> None:
        self.reply_to = reply_to
        self.plan: ReadPlan
        self.loaded = _NOTHING_LOADED
        self.read_set: ReadSet | None = None
        self.ticket: LockTicket | None = None
        self.conflicts = 0
        self.revisions = 0
        self.busy: Busy | None = None
        """How the worker last refused it, if it did."""
        self.is_alone = False
        self.was_cut_off = False
        """Whether the connection has broken once while the worker had it."""
        self.is_departing = False
        """Whether another server is to make the call, should this one's worker not have begun with it."""
        self.is_dropped = False
        """Whether nobody wants the answer any more."""
        self.is_withdrawn = False
        """Whether it is not to be made, should the worker not have begun with it."""
        self.is_sent = False
        """Whether the worker has it, as far as is known."""
        self.body = b""
        self.sent_at_s = 0.0
        """When it was written, on the clock `time.perf_counter`."""
        self.trace: Trace | None = None
        """The span of this round, from writing the call to its reply, where spans are collected."""
        self.timeout_s = 0.0
        self.deadline_s = 0.0

    @property
    @abstractmethod
    def process_execution_id(self) -> str:
        """The execution that is called for."""

    @property
    @abstractmethod
    def process_id(self) -> str:
        """Its process id."""

    @property
    @abstractmethod
    def process_type(self) -> str:
        """Its process type."""

    @property
    def attempt(self) -> int:
        """Which attempt it is, from 1."""
        return 1

    @property
    @abstractmethod
    def trace_context(self) -> str | None:
        """The trace that led to the call."""

    @property
    @abstractmethod
    def tables(self) -> Sequence[TableMapping]:
        """The rows that the execution is mapped to."""

    @abstractmethod
    def write(self, now_ms: int, cap: timedelta) -> None:
        """Write `body` for a call that begins now, and set `timeout_s`; `cap` bounds that of a state's call."""

    def headers(self, now_ms: int) -> dict[str, str]:
        """Give the headers of a call that travels by itself; its deadline is in milliseconds since the epoch."""
        return {DEADLINE_HEADER: str(now_ms + round(self.timeout_s * 1_000))}

    def line(self, call_id: int) -> bytes:
        """Give the call as a line of a batch."""
        return b'{"callId":%d,"operation":"%b","body":%b}\n' % (call_id, self.operation.encode(), self.body)

    def ask(self, request: ReadRequest) -> None:
        """Have the call given what `request` names.

        Raises:
            InvalidAnswer: The execution is not mapped to a table that it names.
        """
        self.plan = plan_reads(self.process_execution_id, self.tables, request)
        self.loaded = _NOTHING_LOADED
        self.read_set = None

    def take_back(self) -> None:
        """Note that the worker has not begun with what it was sent."""
        self.is_sent = False

    def give(self, reads: CallReads) -> None:
        """Take what was read."""
        self.loaded = loaded_data(self.plan, reads)
        self.read_set = read_set_of(self.plan, reads)

    def lock_keys(self) -> Sequence[Hashable]:
        """Give what a locking policy names: columns of rows, and process-local attributes of the execution."""
        request = self.plan.request
        if request.lock_type is LockType.NO_LOCKING:
            return ()
        keys: list[Hashable] = [(self.process_execution_id, name) for name in request.lock_local_attributes]
        for table, read in zip(request.tables, self.plan.rows, strict=True):
            keys += [(read.row, column) for column in table.lock_columns]
        return keys


class StateJob(Job):
    """A call of a state's wait_until or execute."""

    __slots__ = ("answer_type", "call", "first_attempt_at_ms", "is_submitted", "operation", "path")

    def __init__(self, call: Call, reply_to: Callable[[Job, Reply], None]) -> None:
        super().__init__(reply_to)
        self.call = call
        self.first_attempt_at_ms = call.first_attempt_at_ms
        """When the first attempt was sent: what came before, like a wait for a lock, uses up no time of the policy."""
        self.is_submitted = False
        """Whether the engine has been told the outcome and has not given its verdict."""
        if call.key.api is StateApi.WAIT_UNTIL:
            self.path, self.operation, self.answer_type = WAIT_UNTIL_PATH, "wait-until", WaitUntilAnswer
        else:
            self.path, self.operation, self.answer_type = EXECUTE_PATH, "execute", ExecuteAnswer

    @property
    def process_execution_id(self) -> str:
        return self.call.key.state.process_execution_id

    @property
    def process_id(self) -> str:
        return self.call.process_id

    @property
    def process_type(self) -> str:
        return self.call.process_type

    @property
    def tables(self) -> Sequence[TableMapping]:
        return self.call.tables

    @property
    def attempt(self) -> int:
        return self.call.key.attempt

    @property
    def trace_context(self) -> str | None:
        return self.call.trace_context

    @property
    def is_begun(self) -> bool:
        """Whether the worker has the call, or has had it and the engine has its outcome."""
        return self.is_sent or self.is_submitted

    @property
    def declared_read(self) -> ReadRequest:
        """What the options of the state name for this API."""
        options = self.call.options
        return options.wait_until_read if self.call.key.api is StateApi.WAIT_UNTIL else options.execute_read

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts (semantics 2.4)."""
        state = self.call.key.state
        return f"{state.process_execution_id}/{state.state_execution_id}/{self.call.key.api.value}"

    def take_back(self) -> None:
        super().take_back()
        self.first_attempt_at_ms = self.call.first_attempt_at_ms

    def headers(self, now_ms: int) -> dict[str, str]:
        return super().headers(now_ms) | {IDEMPOTENCY_KEY_HEADER: self.idempotency_key}

    def write(self, now_ms: int, cap: timedelta) -> None:
        call = self.call
        if self.first_attempt_at_ms is None:
            self.first_attempt_at_ms = now_ms
        first_attempt_at_ms = self.first_attempt_at_ms
        timeout_ms = self._timeout_ms(first_attempt_at_ms, now_ms, cap)
        context = CallContext(
            protocol_version=PROTOCOL_VERSION,
            namespace=call.namespace,
            process_id=call.process_id,
            process_execution_id=call.key.state.process_execution_id,
            process_type=call.process_type,
            object_id=call.object_id,
            process_started_at_ms=call.process_started_at_ms,
            state_execution_id=call.key.state.state_execution_id,
            attempt=call.key.attempt,
            first_attempt_at_ms=first_attempt_at_ms,
            recover_from=call.recover_from,
            idempotency_key=self.idempotency_key,
            timeout_ms=timeout_ms,
            last_database_error=call.last_database_error,
            trace_context=self.trace_context if self.trace is None else self.trace.context,
        )
        body: WaitUntilCall | ExecuteCall
        if call.key.api is StateApi.WAIT_UNTIL:
            body = WaitUntilCall(
                context=context,
                process_type=call.process_type,
                state_id=call.key.state.state_id,
                input=from_json(call.input),
                loaded=self.loaded,
            )
        else:
            body = ExecuteCall(
                context=context,
                process_type=call.process_type,
                state_id=call.key.state.state_id,
                input=from_json(call.input),
                command_results=call.command_results or _NO_RESULTS,
                state_locals=call.state_locals,
                loaded=self.loaded,
            )
        self.body = body.to_json()
        self.timeout_s = timeout_ms / 1_000

    def _timeout_ms(self, first_attempt_at_ms: int, now_ms: int, cap: timedelta) -> int:
        options = self.call.options
        if self.call.key.api is StateApi.WAIT_UNTIL:
            policy, api_timeout_ms = options.wait_until_api_retry_policy, options.wait_until_api_timeout_ms
        else:
            policy, api_timeout_ms = options.execute_api_retry_policy, options.execute_api_timeout_ms
        return attempt_timeout_ms(
            policy,
            api_timeout_ms=api_timeout_ms,
            cap_ms=cap // timedelta(milliseconds=1),
            first_attempt_at_ms=first_attempt_at_ms,
            now_ms=now_ms,
        )


class RpcJob(Job):
    """A call of an RPC. `replied` holds what came of the last time it was sent."""

    __slots__ = ("ends_at_s", "invocation", "is_called", "queue_sizes", "replied")

    path = RPC_PATH
    operation = "rpc"
    answer_type = RpcAnswer
    is_rpc = True

    def __init__(self, invocation: RpcInvocation, queue_sizes: Mapping[str, int], ends_at_s: float) -> None:
        super().__init__(_set_replied)
        self.invocation = invocation
        self.queue_sizes = queue_sizes
        self.ends_at_s = ends_at_s
        self.is_called = False
        """Whether the worker has been sent it and has not said that it did not begin; stays so when it is given up."""
        self.replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    @property
    def process_execution_id(self) -> str:
        return self.invocation.process.process_execution_id

    @property
    def process_id(self) -> str:
        return self.invocation.process.process_id

    @property
    def process_type(self) -> str:
        return self.invocation.process.process_type

    @property
    def tables(self) -> Sequence[TableMapping]:
        return self.invocation.process.tables

    @property
    def trace_context(self) -> str | None:
        return self.invocation.trace_context

    @property
    def idempotency_key(self) -> str | None:
        """The same for all repetitions of the client's request; None for one without an id."""
        if self.invocation.request_id is None:
            return None
        return f"{self.process_execution_id}/RPC/{self.invocation.request_id}"

    def headers(self, now_ms: int) -> dict[str, str]:
        key = self.idempotency_key
        return super().headers(now_ms) | ({} if key is None else {IDEMPOTENCY_KEY_HEADER: key})

    def take_back(self) -> None:
        super().take_back()
        self.is_called = False

    @property
    def has_run(self) -> bool:
        """Whether the method has run and its answer could not be applied."""
        return self.conflicts > 0

    def write(self, now_ms: int, cap: timedelta) -> None:
        process = self.invocation.process
        left_s = self.ends_at_s - asyncio.get_running_loop().time()
        self.timeout_s = max(left_s, 0.001)
        self.is_called = True
        context = CallContext(
            protocol_version=PROTOCOL_VERSION,
            namespace=process.namespace,
            process_id=process.process_id,
            process_execution_id=process.process_execution_id,
            process_type=process.process_type,
            object_id=process.object_id,
            process_started_at_ms=process.started_at_ms,
            idempotency_key=self.idempotency_key,
            timeout_ms=round(self.timeout_s * 1_000),
            trace_context=self.trace_context if self.trace is None else self.trace.context,
        )
        self.body = RpcCall(
            context=context,
            process_type=process.process_type,
            rpc_name=self.invocation.rpc_name,
            input=self.invocation.input,
            queue_sizes=self.queue_sizes,
            loaded=self.loaded,
        ).to_json()


def _set_replied(job: Job, reply: Reply) -> None:
    assert isinstance(job, RpcJob)
    if not job.replied.done():
        job.replied.set_result(reply)
