"""What calls of a client return: plain immutable values, instants as aware UTC datetimes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from xdb_sdk._options import RetryPolicy
from xdb_sdk.protocol import (
    DescribeAnswer,
    ExecuteStatus,
    HistoryEventInfo,
    HistoryEventType,
    Json,
    ProcessErrorType,
    ProcessStatus,
    QueueCommandStatus,
    StateApi,
    StateStatus,
    TimerStatus,
    WaitUntilStatus,
)
from xdb_sdk.protocol import ProcessErrorInfo as WireProcessError
from xdb_sdk.protocol import ProcessSummary as WireProcessSummary
from xdb_sdk.protocol import StateExecutionInfo as WireStateExecution
from xdb_sdk.protocol import StateOutput as WireStateOutput
from xdb_sdk.protocol.worker import error_message_of

OutputT = TypeVar("OutputT")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOutput:
    """An output of a closing decision (semantics 4.6).

    Attributes:
        state_id: The state that gave it; None if an RPC did.
        state_execution_id: The same with its number, "<state_id>-<number>".
        output: The value, decoded if a type hint was given to the call, else as JSON.
    """

    state_id: str | None
    state_execution_id: str | None
    output: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessError:
    """Why an execution did not complete (semantics 4.7).

    Attributes:
        error_type: In one word.
        details: For people; the traceback of the last attempt follows if user code raised.
        state_execution_id: The state that failed, if one did.
        api: Which of its two methods failed.
        worker_error_type: Class name of the exception in the worker.
    """

    error_type: ProcessErrorType
    details: str
    state_execution_id: str | None
    api: StateApi | None
    worker_error_type: str | None

    @property
    def error_message(self) -> str:
        """`details` without the traceback."""
        return error_message_of(self.details)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailure:
    """The last failed attempt of a state execution.

    Attributes:
        error_type: Class name of the exception in the worker, or what the server calls the failure.
        details: Its message and, if user code raised it, the traceback; at most 4 KiB.
    """

    api: StateApi
    http_status: int
    error_type: str
    details: str
    attempt: int
    failed_at: datetime

    @property
    def error_message(self) -> str:
        """`details` without the traceback."""
        return error_message_of(self.details)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerInfo:
    """A timer that a state waits for."""

    command_id: str | None
    fire_at: datetime
    status: TimerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCommandInfo:
    """Messages that a state waits for: `received_count` it has already, of `at_least` up to `at_most`."""

    command_id: str | None
    queue_name: str
    status: QueueCommandStatus
    received_count: int
    at_least: int
    at_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateExecutionInfo:
    """Where a state execution stands, in enough detail to explain why a process does not go on.

    Attributes:
        attempt: The attempt that runs, or will next, from 1.
        running_since: Since when that attempt is due; None if it is not yet, or the state waits for its commands.
        next_attempt_at: When that attempt will be made; None if it is due.
        held_due_at: When that attempt would be made, were the execution not paused; None while it is not.
        retry_policy: What was frozen for the method that runs, or will next; None once the state has ended.
        timers: What it waits for, in the order of its commands.
        queue_commands: What it waits for, in the order of its commands.
    """

    state_id: str
    number: int
    status: StateStatus
    wait_until_status: WaitUntilStatus
    execute_status: ExecuteStatus
    attempt: int
    created_at: datetime
    closed_at: datetime | None
    running_since: datetime | None
    next_attempt_at: datetime | None
    held_due_at: datetime | None = None
    retry_policy: RetryPolicy | None
    last_failure: AttemptFailure | None
    timers: tuple[TimerInfo, ...]
    queue_commands: tuple[QueueCommandInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSummary:
    """An execution in a list. `is_current` says that it is the latest of its process id."""

    namespace: str
    process_id: str
    process_execution_id: str
    process_type: str
    status: ProcessStatus
    is_current: bool
    started_at: datetime
    closed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo(ProcessSummary):
    """Everything about an execution.

    Attributes:
        object_id: Primary key of the row it is mapped to, in table `table_name`; both None without a table.
        timeout_at: When it times out; None if never.
        graceful_complete_requested: It completes as soon as no state is open.
        paused_at: Since when its states are not called; None while they are.
        reason: Why it was stopped, in the words of who stopped it.
        states: The open state executions; with `include={"closed_states"}` also those of the latest 1,000 that are
            closed. In order of creation.
        omitted_states: How many closed state executions are not in `states`.
        queue_sizes: Messages in each queue; None unless asked for with `include={"queues"}`.
    """

    worker_url: str
    object_id: Any
    table_name: str | None
    timeout_at: datetime | None
    graceful_complete_requested: bool
    paused_at: datetime | None = None
    reason: str | None
    error: ProcessError | None
    outputs: tuple[StateOutput, ...]
    states: tuple[StateExecutionInfo, ...]
    omitted_states: int
    queue_sizes: Mapping[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult:
    """What came of a call that changes something.

    Attributes:
        process_execution_id: The execution that it was applied to.
        duplicate: The request was carried out before, and this is what was answered then; nothing was done now.
        mismatch: It asked for something else then: the request id was used for two purposes.
    """

    process_execution_id: str
    duplicate: bool
    mismatch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult(ChangeResult):
    """What came of a start.

    Attributes:
        already_started: This call created nothing: the request was carried out before, or `ignore_already_started`
            found the execution running.
    """

    already_started: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult(ChangeResult):
    """Status of the execution after a stop; `changed` is false if it was closed before."""

    status: ProcessStatus
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseResult(ChangeResult):
    """What came of a pause or a resumption; `changed` is false if the execution was paused, or not, already."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStateResult(ChangeResult):
    """Status of the execution after the decision about a state."""

    status: ProcessStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What came of a call for many executions.

    Attributes:
        examined: How many running executions were looked at.
        matched: To how many of them the filters fit.
        changed: How many were changed; others had closed or changed meanwhile. 0 in a dry run.
        processes: In a dry run, those that would be changed; empty otherwise.
    """

    examined: int
    matched: int
    changed: int
    processes: tuple[ProcessSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """Something that has happened to an execution.

    Attributes:
        event_id: 1, 2, 3 and so on within the execution.
        at: When.
        event_type: What.
        cause_id: The event of the same change that this one came of; None for the first of a change.
        request_id: Of the request that made the change, if it had one.
        data: What more there is to say, as JSON values by name; its content depends on the type.
    """

    event_id: int
    at: datetime
    event_type: HistoryEventType
    cause_id: int | None
    request_id: str | None
    data: Mapping[str, Json]


def history_event(event: HistoryEventInfo) -> HistoryEvent:
    """Read an event from the wire."""
    return HistoryEvent(
        event_id=event.event_id,
        at=instant(event.at_ms),
        event_type=event.event_type,
        cause_id=event.cause_id,
        request_id=event.request_id,
        data=event.data,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetResult(ChangeResult):
    """What came of `reset_process`; `process_execution_id` is the new execution.

    Attributes:
        base_process_execution_id: The execution that it goes on from.
        event_id: The last event that both have in common.
    """

    base_process_execution_id: str
    event_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOrStartResult(ChangeResult):
    """What came of `publish_or_start`.

    Attributes:
        started: This request has started the execution.
        is_new: The message was new to the queue; false if its dedup id was known.
    """

    started: bool
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult(ChangeResult):
    """What came of `publish`; `is_new` is false if the message was known by its dedup id."""

    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcResult(ChangeResult, Generic[OutputT]):
    """What came of `call_rpc`; `output` is what the RPC returned."""

    output: OutputT


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcOrStartResult(ChangeResult, Generic[OutputT]):
    """What came of `rpc_or_start`.

    Attributes:
        started: This request has started the execution.
        output: What the RPC returned.
    """

    started: bool
    output: OutputT


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCompletion:
    """How the wait for a state execution ended (semantics 6.8).

    Attributes:
        state_status: Its status, COMPLETED if `execute` was applied; None if the process closed without it.
        output: What its decision gave as output, decoded if a type hint was given; None if nothing.
    """

    process_execution_id: str
    process_status: ProcessStatus
    state_execution_id: str | None
    state_status: StateStatus | None
    output: Any


def instant(at_ms: int) -> datetime:
    """Turn milliseconds since the epoch into an aware UTC datetime, exactly."""
    return _EPOCH + timedelta(milliseconds=at_ms)


def optional_instant(at_ms: int | None) -> datetime | None:
    """Turn milliseconds since the epoch, if any, into an aware UTC datetime."""
    return None if at_ms is None else instant(at_ms)


def process_summary(wire: WireProcessSummary) -> ProcessSummary:
    """Read an execution of a list."""
    return ProcessSummary(**_summary_fields(wire))


def process_info(wire: DescribeAnswer) -> ProcessInfo:
    """Read the answer of describe."""
    return ProcessInfo(
        **_summary_fields(wire),
        worker_url=wire.worker_url,
        object_id=wire.object_id,
        table_name=wire.table_name,
        timeout_at=optional_instant(wire.timeout_at_ms),
        graceful_complete_requested=wire.graceful_complete_requested,
        paused_at=optional_instant(wire.paused_at_ms),
        reason=wire.reason,
        error=_process_error(wire.error),
        outputs=state_outputs(wire.outputs),
        states=tuple(_state_execution(state) for state in wire.states),
        omitted_states=wire.omitted_states,
        queue_sizes=wire.queue_sizes,
    )


def state_outputs(wire: Sequence[WireStateOutput]) -> tuple[StateOutput, ...]:
    """Read outputs, their values as JSON."""
    return tuple(
        StateOutput(state_id=output.state_id, state_execution_id=output.state_execution_id, output=output.output)
        for output in wire
    )


def _summary_fields(wire: WireProcessSummary) -> dict[str, Any]:
    return {
        "namespace": wire.namespace,
        "process_id": wire.process_id,
        "process_execution_id": wire.process_execution_id,
        "process_type": wire.process_type,
        "status": wire.status,
        "is_current": wire.is_current,
        "started_at": instant(wire.started_at_ms),
        "closed_at": optional_instant(wire.closed_at_ms),
    }


def _process_error(wire: WireProcessError | None) -> ProcessError | None:
    if wire is None:
        return None
    return ProcessError(
        error_type=wire.error_type,
        details=wire.message,
        state_execution_id=wire.state_execution_id,
        api=wire.api,
        worker_error_type=wire.worker_error_type,
    )


def _state_execution(wire: WireStateExecution) -> StateExecutionInfo:
    return StateExecutionInfo(
        state_id=wire.state_id,
        number=wire.number,
        status=wire.status,
        wait_until_status=wire.wait_until_status,
        execute_status=wire.execute_status,
        attempt=wire.attempt,
        created_at=instant(wire.created_at_ms),
        closed_at=optional_instant(wire.closed_at_ms),
        running_since=optional_instant(wire.running_since_ms),
        next_attempt_at=optional_instant(wire.next_attempt_at_ms),
        held_due_at=optional_instant(wire.held_due_at_ms),
        retry_policy=None if wire.retry_policy is None else RetryPolicy.from_wire(wire.retry_policy),
        last_failure=_attempt_failure(wire),
        timers=tuple(
            TimerInfo(command_id=timer.command_id, fire_at=instant(timer.fire_at_ms), status=timer.status)
            for timer in wire.timers
        ),
        queue_commands=tuple(
            QueueCommandInfo(
                command_id=command.command_id,
                queue_name=command.queue_name,
                status=command.status,
                received_count=command.received,
                at_least=command.at_least,
                at_most=command.at_most,
            )
            for command in wire.queue_commands
        ),
    )


def _attempt_failure(wire: WireStateExecution) -> AttemptFailure | None:
    failure = wire.last_failure
    if failure is None:
        return None
    return AttemptFailure(
        api=failure.api,
        http_status=failure.http_status,
        error_type=failure.error_type,
        details=failure.details,
        attempt=failure.attempt,
        failed_at=instant(failure.at_ms),
    )
