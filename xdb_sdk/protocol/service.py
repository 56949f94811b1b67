"""Wire models between client and server (semantics 1, 6). Instants are milliseconds since the epoch, UTC.

Every operation is `POST <server url><SERVICE_PREFIX><operation>`, or a line of the batch endpoint. An error answer has
an `ErrorBody`, whatever the operation.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field

from xdb_sdk.protocol._base import NO_ENTRIES, Json, WireModel
from xdb_sdk.protocol.enums import (
    ErrorSubType,
    ExecuteStatus,
    IdReusePolicy,
    ProcessErrorType,
    ProcessStatus,
    ProcessStopType,
    QueueCommandStatus,
    StateApi,
    StateStatus,
    TimerStatus,
    WaitUntilStatus,
)
from xdb_sdk.protocol.options import (
    MAX_ITEMS,
    DurationMs,
    InstantMs,
    Items,
    LoadedData,
    Name,
    ReadRequest,
    RequestId,
    RetryPolicyConfig,
    StateOptionsConfig,
    TableMapping,
    Tables,
    TableWrite,
)
from xdb_sdk.protocol.tracing import TraceContext
from xdb_sdk.protocol.worker import Message, StateDecisionBody

SERVICE_PREFIX = "/api/v1/xdb/service/process-execution/"
SERVICE_BATCH_PATH = "/api/v1/xdb/service/batch"
REQUEST_ID_HEADER = "Idempotency-Key"
"""Tells the request id of a request that travels by itself, as its `request_id` does."""
DEFAULT_NAMESPACE = "default"
MAX_LONG_POLL_MS = 30_000
"""The longest one wait request is held; the SDK repeats it until its own deadline (semantics 6.4)."""
MAX_PAGE_SIZE = 1_000
MAX_DESCRIBED_STATES = 1_000
"""How many of the latest state executions of a process are described although they are closed (semantics 6.2)."""


Reason: TypeAlias = Annotated[str, Field(max_length=1000)]
"""Why an operator does something, for those who look at the execution later."""
WorkerUrl: TypeAlias = Annotated[str, Field(min_length=1, max_length=2048)]


class ServiceRequest(WireModel):
    """What every request may tell: the trace that it belongs to (W3C `traceparent`, a space, `tracestate` if any).

    A request that travels by itself may tell so by the headers of those names instead.
    """

    trace_context: TraceContext = None


class RepeatableRequest(ServiceRequest):
    """A request that changes something. With a `request_id` it is carried out once, however often it is sent.

    The id is compared byte by byte, and is one of its process id and operation: the same id means something else to
    another operation. A request that is refused leaves no trace of its id (idempotency-and-shards D.3).
    """

    request_id: RequestId | None = None


class RepeatableAnswer(WireModel):
    """`duplicate` tells that the request was carried out before, and that this is the answer it was given then.

    `mismatch` tells that it asked for something else then (idempotency-and-shards D.3).
    """

    process_execution_id: str
    duplicate: bool = False
    mismatch: bool = False


class ProcessRequest(ServiceRequest):
    """What names a process execution: by `process_id` the current one, with `process_execution_id` exactly that one."""

    namespace: Name = DEFAULT_NAMESPACE
    process_id: Name
    process_execution_id: Name | None = None


class StartRequest(RepeatableRequest):
    """Start a process execution (semantics 1)."""

    namespace: Name = DEFAULT_NAMESPACE
    process_id: Name
    process_type: Name
    worker_url: WorkerUrl
    object_id: Json = None
    start_state_id: Name | None = None
    start_state_input: Json = None
    start_state_options: StateOptionsConfig = StateOptionsConfig()
    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_IF_NO_RUNNING
    timeout_ms: DurationMs = 0
    """0 means no timeout (semantics 1.6)."""
    start_delay_ms: DurationMs = 0
    ignore_already_started: bool = False
    tables: Annotated[tuple[TableMapping, ...], Field(max_length=1)] = ()
    local_attributes: Annotated[Mapping[Name, Json], Field(max_length=MAX_ITEMS)] = NO_ENTRIES


class StartAnswer(RepeatableAnswer):
    """`already_started` tells that this call created nothing (semantics 1.4)."""

    already_started: bool = False


class StopRequest(ProcessRequest, RepeatableRequest):
    """Close a running execution; a closed one stays as it is (semantics 6.1)."""

    stop_type: ProcessStopType = ProcessStopType.TERMINATE
    reason: Reason | None = None


class StopAnswer(RepeatableAnswer):
    """Status after the call; `changed` is false when the execution was closed before."""

    status: ProcessStatus
    changed: bool = True


class PublishRequest(ProcessRequest, RepeatableRequest):
    """Append messages, all in one transaction (semantics 6.3)."""

    messages: Annotated[Items[Message], Field(min_length=1)]


class PublishAnswer(RepeatableAnswer):
    """How many of the messages were new; the others repeat a known message id.

    `sequence_ids` has an entry for each message, in their order: its number in the execution, null for one that was
    known.
    """

    published: int
    sequence_ids: tuple[int | None, ...] = ()


class PublishOrStartRequest(RepeatableRequest):
    """Append messages to the running execution, which `start` is to start if there is none, in one transaction.

    `request_id` stands for both halves, each of which is carried out once; that of `start` is not to be given.
    """

    start: StartRequest
    messages: Annotated[Items[Message], Field(min_length=1)]

    @property
    def process_id(self) -> str:
        """Whose process execution it is about."""
        return self.start.process_id


class PublishOrStartAnswer(PublishAnswer):
    """`started` tells that this request has started the execution."""

    started: bool


class RpcBody(WireModel):
    """What an RPC is called with (semantics 5). `read` absent lets the worker say what it needs (a 406 round).

    `exclusive` keeps a repetition from the worker while the first call is there: it is refused with RETRY_LATER. It
    needs a request id (idempotency-and-shards D.3).
    """

    rpc_name: Name
    input: Json = None
    timeout_ms: Annotated[int, Field(ge=1)] = 10_000
    read: ReadRequest = ReadRequest()
    read_only: bool = False
    needs_queue_sizes: bool = True
    """Whether the handler may look at the sizes of the queues; counting them costs a read."""
    exclusive: bool = False


class RpcRequest(ProcessRequest, RepeatableRequest, RpcBody):
    """Call an RPC of the process."""


class RpcServiceAnswer(RepeatableAnswer):
    """The RPC's return value."""

    output: Json = None


class RpcOrStartRequest(RepeatableRequest, RpcBody):
    """Call an RPC of the running execution, which `start` is to start if there is none.

    The start is committed before the call. `request_id` stands for both halves, each of which is carried out once; that
    of `start` is not to be given.
    """

    start: StartRequest

    @property
    def process_id(self) -> str:
        """Whose process execution it is about."""
        return self.start.process_id


class RpcOrStartAnswer(RpcServiceAnswer):
    """`started` tells that this request has started the execution."""

    started: bool


class WaitForCompletionRequest(ProcessRequest):
    """Wait until the execution closes, at most `timeout_ms`, capped at MAX_LONG_POLL_MS (semantics 6.4)."""

    timeout_ms: Annotated[int, Field(ge=0)] = MAX_LONG_POLL_MS


class StateOutput(WireModel):
    """An output given by a closing decision; RPC outputs have no state (semantics 4.6)."""

    state_id: str | None = None
    state_execution_id: str | None = None
    output: Json


class ProcessErrorInfo(WireModel):
    """Why an execution did not complete (semantics 4.7)."""

    error_type: ProcessErrorType
    message: str = ""
    state_execution_id: str | None = None
    api: StateApi | None = None
    worker_error_type: str | None = None


class WaitForCompletionAnswer(WireModel):
    """`timeout` when time ran out (status is then RUNNING); `server_stopping` asks to repeat the call."""

    process_execution_id: str
    timeout: bool = False
    server_stopping: bool = False
    status: ProcessStatus
    outputs: tuple[StateOutput, ...] = ()
    reason: str | None = None
    error: ProcessErrorInfo | None = None


class WaitForStateRequest(ProcessRequest):
    """Wait for one state execution: by number, or by the `wait_for_key` of its movement (semantics 6.8)."""

    state_id: Name
    number: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    wait_for_key: Name | None = None
    timeout_ms: Annotated[int, Field(ge=0)] = MAX_LONG_POLL_MS


class WaitForStateAnswer(WireModel):
    """`state_status` is null when the process closed before such a state execution existed."""

    process_execution_id: str
    timeout: bool = False
    server_stopping: bool = False
    process_status: ProcessStatus
    state_execution_id: str | None = None
    state_status: StateStatus | None = None
    output: Json = None


class AttemptFailureInfo(WireModel):
    """The last failed attempt of a state execution; details at most 4 KiB (semantics 2.5)."""

    api: StateApi
    http_status: int
    error_type: str
    details: str
    attempt: int
    at_ms: int


class TimerCommandInfo(WireModel):
    """A timer command of a waiting state."""

    command_id: str | None = None
    fire_at_ms: int
    status: TimerStatus


class QueueCommandInfo(WireModel):
    """A queue command of a waiting state: it has claimed `received` messages of `at_least` up to `at_most`."""

    command_id: str | None = None
    queue_name: str
    status: QueueCommandStatus
    received: int
    at_least: int = 1
    at_most: int = 1


class StateExecutionInfo(WireModel):
    """A state execution, so that a stuck process can be explained without SQL (semantics 6.2).

    Attempt number `attempt` of an open one is due since `running_since_ms`, or will be at `next_attempt_at_ms`; neither
    while it waits for commands. Of a paused execution `held_due_at_ms` says when the call was due that is not made,
    unless a worker has it already. `retry_policy` is the one frozen for the method that runs, or will next.
    """

    state_id: str
    number: int
    status: StateStatus
    wait_until_status: WaitUntilStatus
    execute_status: ExecuteStatus
    attempt: int
    created_at_ms: int
    closed_at_ms: int | None = None
    running_since_ms: int | None = None
    next_attempt_at_ms: int | None = None
    held_due_at_ms: int | None = None
    retry_policy: RetryPolicyConfig | None = None
    last_failure: AttemptFailureInfo | None = None
    timers: tuple[TimerCommandInfo, ...] = ()
    queue_commands: tuple[QueueCommandInfo, ...] = ()


DescribeInclude = Literal["queues", "closed_states", "all"]
"""What a description may have besides; "all" stands for each of the others."""


class DescribeRequest(ProcessRequest):
    """Tell everything about an execution (semantics 6.2)."""

    include: Annotated[tuple[DescribeInclude, ...], Field(max_length=len(get_args(DescribeInclude)))] = ()


class ProcessSummary(WireModel):
    """An execution in a list."""

    namespace: str
    process_id: str
    process_execution_id: str
    process_type: str
    status: ProcessStatus
    is_current: bool
    started_at_ms: int
    closed_at_ms: int | None = None


class DescribeAnswer(ProcessSummary):
    """An execution in full.

    `states` are all that are open; if "closed_states" is included, also those that are closed among the latest
    1,000 (MAX_DESCRIBED_STATES). `omitted_states` says how many more there have been.
    """

    worker_url: str
    object_id: Json = None
    table_name: str | None = None
    timeout_at_ms: int | None = None
    graceful_complete_requested: bool = False
    paused_at_ms: int | None = None
    """Since when its states are not called; null while they are."""
    reason: str | None = None
    error: ProcessErrorInfo | None = None
    outputs: tuple[StateOutput, ...] = ()
    states: tuple[StateExecutionInfo, ...] = ()
    omitted_states: int = 0
    queue_sizes: Mapping[str, int] | None = None


class ListRequest(ServiceRequest):
    """List executions, newest first; every filter is optional and they combine (semantics 6.6)."""

    namespace: Name = DEFAULT_NAMESPACE
    page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 100
    next_page_token: Annotated[str, Field(max_length=1024)] | None = None
    process_id: Name | None = None
    process_type: Name | None = None
    statuses: Annotated[tuple[ProcessStatus, ...], Field(max_length=len(ProcessStatus))] = ()
    started_from_ms: InstantMs | None = None
    started_before_ms: InstantMs | None = None
    closed_from_ms: InstantMs | None = None
    closed_before_ms: InstantMs | None = None


class ListAnswer(WireModel):
    """One page. `next_page_token` is absent on the last."""

    processes: tuple[ProcessSummary, ...] = ()
    next_page_token: str | None = None


class GetAttributesRequest(ProcessRequest):
    """Read attributes from outside, also of a closed execution (semantics 6.5)."""

    read: ReadRequest = ReadRequest()
    all_local_attributes: bool = False


class GetAttributesAnswer(WireModel):
    """What was found."""

    process_execution_id: str
    loaded: LoadedData = LoadedData()


class SetAttributesRequest(ProcessRequest, RepeatableRequest):
    """Write attributes from outside; the execution must be running (semantics 6.5)."""

    write_tables: Tables[TableWrite] = ()
    write_local_attributes: Annotated[Mapping[Name, Json], Field(max_length=MAX_ITEMS)] = NO_ENTRIES


class OperatorRequest(ProcessRequest, RepeatableRequest):
    """What an operator does to an execution: `reason` is kept in its history."""

    reason: Reason | None = None


class StateRequest(OperatorRequest):
    """What an operator does to one state execution."""

    state_id: Name
    number: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1


class SkipTimerRequest(StateRequest):
    """Complete a timer command now (semantics 3.6): by `command_id`, or by `index` among the state's timers.

    `remember` keeps a skip that comes before the state waits, for that state execution only.
    """

    command_id: Name | None = None
    index: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    remember: bool = False


class RetryStateRequest(StateRequest):
    """Make the next call of a state execution now that waits for it: after a failed attempt, or since it was started.

    Its attempts go on being counted; `reset_attempts` begins to count anew, as if none had been made.
    """

    reset_attempts: bool = False


class CompleteStateRequest(StateRequest):
    """End an open state execution as if its `execute` had returned `decision`, whatever it does or waits for.

    A worker's answer that comes later is dropped.
    """

    decision: StateDecisionBody


class CompleteStateAnswer(RepeatableAnswer):
    """The status of the execution after the decision."""

    status: ProcessStatus


class PauseRequest(OperatorRequest):
    """Make no more calls of the states of a running execution, until it is resumed.

    What workers are doing may return, and is applied. Timers fire, messages are received, RPCs are called, and the
    execution times out and is stopped as always.
    """


class ResumeRequest(OperatorRequest):
    """Make the calls of a paused execution, each when it was due or at once."""


class PauseAnswer(RepeatableAnswer):
    """`changed` is false when the execution was paused, or not paused, already."""

    changed: bool = True


class UpdateConfigRequest(OperatorRequest):
    """Change the worker URL or the timeout of a running execution; what is absent stays.

    With a new worker URL, states that wait to be called again are called at once. `timeout_ms` counts from the start
    of the execution; 0 removes the timeout.
    """

    worker_url: WorkerUrl | None = None
    timeout_ms: DurationMs | None = None


class DoneAnswer(RepeatableAnswer):
    """Answer of an operation that has nothing more to tell."""


class BulkRequest(RepeatableRequest):
    """What an operator does to many running executions, some at a time.

    A call looks at up to `page_size` executions, newest first, that run and that the filters fit; `next_page_token`
    goes on from there. Each execution is changed by itself. With a `request_id`, which all pages share, what has
    started since it came first is left alone: a repetition goes on with what is left of that.

    `dry_run` changes nothing, and tells what would be changed. `request_id` and `reason` are kept in the history of
    each execution.
    """

    namespace: Name = DEFAULT_NAMESPACE
    process_type: Name | None = None
    process_id_prefix: Name | None = None
    started_from_ms: InstantMs | None = None
    started_before_ms: InstantMs | None = None
    reason: Reason | None = None
    dry_run: bool = False
    page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 100
    next_page_token: Annotated[str, Field(max_length=1024)] | None = None


class StopProcessesRequest(BulkRequest):
    """Close the running executions that the filters fit."""

    stop_type: ProcessStopType = ProcessStopType.TERMINATE


class ReplaceWorkerUrlRequest(BulkRequest):
    """Give running executions another worker URL: those that have `old_worker_url`, or any.

    As when the URL of one is changed, states that wait to be called again are called at once.
    """

    new_worker_url: WorkerUrl
    old_worker_url: WorkerUrl | None = None


class BulkAnswer(WireModel):
    """What a call for many executions has done, or would do.

    Attributes:
        examined: How many running executions it has looked at.
        matched: To how many of them the filters fit.
        changed: How many it has changed; others had closed or changed meanwhile.
        processes: In a dry run, those that match.
        next_page_token: Absent when there are no more to look at.
    """

    examined: int
    matched: int
    changed: int
    processes: tuple[ProcessSummary, ...] = ()
    next_page_token: str | None = None


class ErrorBody(WireModel):
    """Body of every error of the service API (semantics 1.7). `details` is for people, the rest for programs."""

    error_sub_type: ErrorSubType
    details: str = ""
    process_execution_id: str | None = None
    app_error_type: str | None = None
    worker_error_status: int | None = None
    app_database_table: str | None = None
    retry_after_s: float | None = None
