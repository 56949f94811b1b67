"""Wire models between server and worker (semantics 8).

Every call is `POST <worker url><path>` with one of the `*Call` bodies, or a line of the batch endpoint. The worker
answers 200 with the matching `*Answer`, 406 with a `ReviseAnswer`, or another status with a `WorkerErrorBody`.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from xdb_sdk.protocol._base import NO_ENTRIES, Json, WireModel
from xdb_sdk.protocol.enums import CloseType, QueueCommandStatus, StateApi, TimerStatus, WaitingType
from xdb_sdk.protocol.options import (
    MAX_COMMANDS,
    MAX_ITEMS,
    Commands,
    DurationMs,
    InstantMs,
    Items,
    LoadedData,
    Name,
    ReadRequest,
    StateOptionsConfig,
    Tables,
    TableWrite,
)
from xdb_sdk.protocol.tracing import TraceContext

WAIT_UNTIL_PATH = "/api/v1/xdb/worker/async-state/wait-until"
EXECUTE_PATH = "/api/v1/xdb/worker/async-state/execute"
RPC_PATH = "/api/v1/xdb/worker/process/rpc"
PROCESS_CLOSED_PATH = "/api/v1/xdb/worker/process/closed"
WORKER_BATCH_PATH = "/api/v1/xdb/worker/batch"

IDEMPOTENCY_KEY_HEADER = "X-Xdb-Idempotency-Key"
DEADLINE_HEADER = "X-Xdb-Deadline-Ms"

MAX_MESSAGE_LENGTH = 4_096
"""The most characters of the message of a decision."""


def error_message_of(details: str) -> str:
    """Give the first paragraph of a failure's details: the message, without the traceback that may follow it."""
    return details.partition("\n\n")[0]


class RecoverFrom(WireModel):
    """The exhausted state execution that a recovery state stands in for (semantics 2.7).

    `error_type` is the class of the exception of the last attempt, or what the server calls the failure; `details` are
    its message and, if user code raised it, the traceback.
    """

    state_execution_id: str
    api: StateApi
    error_type: str | None = None
    details: str = ""
    attempts: int = 0

    @property
    def error_message(self) -> str:
        """The message alone."""
        return error_message_of(self.details)


class DatabaseErrorInfo(WireModel):
    """What the user's database said to the previous attempt's read or write (semantics 7.4)."""

    operation: Literal["READ", "WRITE"]
    kind: str
    """UNIQUE, FOREIGN_KEY, NOT_NULL, CHECK, TOO_LONG, TYPE, UNKNOWN_TABLE, UNKNOWN_COLUMN or OTHER."""
    code: str | None = None
    message: str = ""
    table_name: str | None = None

    @property
    def error_message(self) -> str:
        """`message`, under the name that it has in every failure."""
        return self.message


class CallContext(WireModel):
    """Who is called, for which attempt, and until when (semantics 2.4). Instants are milliseconds since the epoch.

    `state_execution_id`, `attempt` and `first_attempt_at_ms` are absent for an RPC. `timeout_ms` is how long the
    server waits for the answer, counted by the worker from the arrival of the call: no clocks are compared.
    `trace_context` is that of the server's own span or of the client's call: W3C `traceparent`, and after a space
    `tracestate` if there is one.
    """

    namespace: str
    process_id: str
    process_execution_id: str
    process_type: str
    object_id: Json = None
    process_started_at_ms: int
    state_execution_id: str | None = None
    attempt: int | None = None
    first_attempt_at_ms: int | None = None
    recover_from: RecoverFrom | None = None
    idempotency_key: str | None = None
    timeout_ms: DurationMs
    last_database_error: DatabaseErrorInfo | None = None
    trace_context: TraceContext = None
    protocol_version: int = 0
    """PROTOCOL_VERSION of the server; 0 when it does not say."""


class TimerCommandRequest(WireModel):
    """A timer: `duration_ms` from the commit of wait_until, or at the instant `fire_at_ms` (semantics 3.1)."""

    command_id: Name | None = None
    duration_ms: Annotated[int, Field(le=2**53)] | None = None
    fire_at_ms: InstantMs | None = None


class InternalQueueCommandRequest(WireModel):
    """A wait for messages: exactly `count`, or from `at_least` up to `at_most` when those are given (semantics 3.1)."""

    command_id: Name | None = None
    queue_name: Name
    count: Annotated[int, Field(ge=0, le=10_000)] = 1
    at_least: Annotated[int, Field(ge=0, le=10_000)] | None = None
    at_most: Annotated[int, Field(ge=1, le=10_000)] | None = None


class CommandRequestBody(WireModel):
    """What wait_until asks for. `combinations` lists command ids, for ANY_COMBINATION only (semantics 3.1)."""

    waiting_type: WaitingType
    timer_commands: Commands[TimerCommandRequest] = ()
    internal_queue_commands: Commands[InternalQueueCommandRequest] = ()
    combinations: Commands[Commands[str]] = ()


class Message(WireModel):
    """A message to publish. Messages with one `message_id` are delivered once per queue (semantics 3.2)."""

    queue_name: Name
    message_id: Name | None = None
    payload: Json = None


class ReceivedMessage(WireModel):
    """A message as it is delivered to a command."""

    message_id: str | None = None
    payload: Json = None


class TimerResult(WireModel):
    """Outcome of one timer command."""

    command_id: str | None = None
    status: TimerStatus


class InternalQueueResult(WireModel):
    """Outcome of one queue command; `messages` is empty while it waits, in FIFO order when it received."""

    command_id: str | None = None
    queue_name: str
    status: QueueCommandStatus
    messages: tuple[ReceivedMessage, ...] = ()


class CommandResultsBody(WireModel):
    """Outcome of every command, in the order they were asked, the same on every attempt of execute (semantics 3.5)."""

    timer_results: tuple[TimerResult, ...] = ()
    internal_queue_results: tuple[InternalQueueResult, ...] = ()
    wait_until_api_succeeded: bool = True


class MovementBody(WireModel):
    """One next state. `options` absent means the defaults, not the deciding state's (semantics 4.2, 4.5)."""

    state_id: Name
    input: Json = None
    options: StateOptionsConfig = StateOptionsConfig()
    wait_for_key: Name | None = None


class ThreadCloseDecision(WireModel):
    """End of a thread of states. A null output is no output (semantics 4.6)."""

    close_type: CloseType
    close_output: Json = None
    message: Annotated[str, Field(max_length=MAX_MESSAGE_LENGTH)] | None = None


class ConditionalClose(WireModel):
    """Close if every named queue is empty at the commit, else go to `next_states` (semantics 4.4)."""

    queue_names: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_COMMANDS)]
    close_type: Literal[CloseType.FORCE_COMPLETE_PROCESS, CloseType.GRACEFUL_COMPLETE_PROCESS]
    close_output: Json = None
    next_states: Annotated[Items[MovementBody], Field(min_length=1)]


class StateDecisionBody(WireModel):
    """What is next: exactly one of the three, or none of them for an RPC (semantics 4.1)."""

    next_states: Items[MovementBody] = ()
    thread_close_decision: ThreadCloseDecision | None = None
    conditional_close: ConditionalClose | None = None


class RecordedEvent(WireModel):
    """A user's event for the history (semantics 2.8)."""

    name: Name
    data: Items[Json] = ()


class Effects(WireModel):
    """What any answer may change besides its own result: buffered by the SDK, applied in one commit (semantics 2.8)."""

    publish: Items[Message] = ()
    write_tables: Tables[TableWrite] = ()
    write_local_attributes: Annotated[Mapping[Name, Json], Field(max_length=MAX_ITEMS)] = NO_ENTRIES
    recorded_events: Items[RecordedEvent] = ()


class WaitUntilCall(WireModel):
    """Body of a call of wait_until."""

    context: CallContext
    process_type: str
    state_id: str
    input: Json = None
    loaded: LoadedData = LoadedData()


class WaitUntilAnswer(Effects):
    """Answer of wait_until. `state_locals` are kept with the state execution and given to its execute."""

    command_request: CommandRequestBody
    state_locals: Annotated[Mapping[Name, Json], Field(max_length=MAX_ITEMS)] = NO_ENTRIES


class ExecuteCall(WireModel):
    """Body of a call of execute."""

    context: CallContext
    process_type: str
    state_id: str
    input: Json = None
    command_results: CommandResultsBody = CommandResultsBody()
    state_locals: Mapping[str, Json] = NO_ENTRIES
    loaded: LoadedData = LoadedData()


class ExecuteAnswer(Effects):
    """Answer of execute."""

    state_decision: StateDecisionBody


class RpcCall(WireModel):
    """Body of a call of an RPC. `queue_sizes` counts the messages stored and not yet claimed, by queue."""

    context: CallContext
    process_type: str
    rpc_name: str
    input: Json = None
    queue_sizes: Mapping[str, int] = NO_ENTRIES
    loaded: LoadedData = LoadedData()


class RpcAnswer(Effects):
    """Answer of an RPC."""

    output: Json = None
    state_decision: StateDecisionBody = StateDecisionBody()

    @property
    def is_read_only(self) -> bool:
        """Whether the answer changes nothing (semantics 5.5)."""
        return not (
            self.publish
            or self.write_tables
            or self.write_local_attributes
            or self.recorded_events
            or self.state_decision != StateDecisionBody()
        )


class ReviseAnswer(WireModel):
    """Body of a 406: read again with this request and repeat the call; not a failed attempt (semantics 7.4)."""

    read_request: ReadRequest


class WorkerErrorBody(WireModel):
    """Body of every worker error. `retryable` false exhausts the attempts at once (semantics 8).

    `error_type` is what tells a worker from anything else that answers at its URL.
    """

    error_type: str
    detail: str = ""
    retryable: bool = True


class WaitUntilLine(WireModel):
    """A wait_until call in a batch."""

    call_id: int
    operation: Literal["wait-until"]
    body: WaitUntilCall


class ExecuteLine(WireModel):
    """An execute call in a batch."""

    call_id: int
    operation: Literal["execute"]
    body: ExecuteCall


class RpcLine(WireModel):
    """An RPC call in a batch."""

    call_id: int
    operation: Literal["rpc"]
    body: RpcCall


class ProcessClosedCall(WireModel):
    """Best-effort news that an execution has closed: calls still running for it are told so (`is_stopped`)."""

    process_execution_id: str


class ProcessClosedLine(WireModel):
    """A closed notice in a batch; answered with 200 and an empty body."""

    call_id: int
    operation: Literal["process-closed"]
    body: ProcessClosedCall


WorkerLine = Annotated[WaitUntilLine | ExecuteLine | RpcLine | ProcessClosedLine, Field(discriminator="operation")]
"""One line of the worker's batch endpoint (application/x-ndjson)."""
