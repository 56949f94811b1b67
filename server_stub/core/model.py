"""Process executions as plain data: the rows of the system tables, and what is loaded together for a transaction.

Instants are milliseconds since the epoch, UTC. A `JsonText` is a JSON value kept as text, since the core never looks
inside it; what the core does look at is parsed into the wire models.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

from pydantic_core import to_json

from xdb_sdk.protocol import (
    AttemptFailureInfo,
    CommandRequestBody,
    CommandResultsBody,
    DatabaseErrorInfo,
    ExecuteStatus,
    HistoryEventType,
    InternalQueueResult,
    Json,
    ProcessErrorInfo,
    ProcessStatus,
    QueueCommandStatus,
    ReceivedMessage,
    RecoverFrom,
    RetryPolicyConfig,
    StateApi,
    StateOptionsConfig,
    StateOutput,
    StateStatus,
    TableMapping,
    TimerResult,
    TimerStatus,
    WaitUntilStatus,
)

JsonText: TypeAlias = str


def json_text(value: Json) -> JsonText:
    """Write a JSON value as text."""
    return to_json(value).decode()


class ProcessKey(NamedTuple):
    """Names the current execution of a process id."""

    namespace: str
    process_id: str


class StateKey(NamedTuple):
    """Identity of a state execution."""

    process_execution_id: str
    state_id: str
    number: int

    @property
    def state_execution_id(self) -> str:
        """The text form `<state id>-<number>` of the API edges (semantics 1.1)."""
        return f"{self.state_id}-{self.number}"


class RequestType(IntEnum):
    """What kinds of requests are carried out once: to each the same id means another one. The numbers are stored."""

    START = 1
    PUBLISH = 2
    STOP = 3
    RESET = 4
    RPC = 5
    PAUSE = 6
    RESUME = 7
    RETRY = 8
    SKIP_TIMER = 9
    COMPLETE_STATE = 10
    UPDATE_CONFIG = 11
    SET_ATTRIBUTES = 12
    STOP_MANY = 13
    REPLACE_WORKER_URL = 14


class RequestKey(NamedTuple):
    """Names a request that is carried out once."""

    namespace: str
    process_id: str
    request_type: RequestType
    request_id: str


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that was carried out: a row of xdb_sys_request (idempotency-and-shards D.3).

    Attributes:
        result: The answer, as JSON; None while the request is only reserved.
        fingerprint: A hash of what it asked for.
        expires_at_ms: From when on the request is forgotten.
        version: Of two clusters' records of one request, the larger one wins.
    """

    key: RequestKey
    shard_id: int
    process_execution_id: str
    fingerprint: str
    result: JsonText | None
    created_at_ms: int
    expires_at_ms: int
    version: int = 0


class CallKey(NamedTuple):
    """Identity of one attempt of a state's wait_until or execute: what an answer must match to be applied.

    `claim_range` is part of it: an answer to a server that has lost the shard is refused once the call has been claimed
    for the shard's new owner (idempotency-and-shards D.6).
    """

    state: StateKey
    api: StateApi
    attempt: int
    claim_range: int = 0


class TimerKind(StrEnum):
    """What a timer is for. Backoff and start delays are no timers: they are the `due_at_ms` of their state."""

    COMMAND = "COMMAND"
    PROCESS_TIMEOUT = "PROCESS_TIMEOUT"


class TimerKey(NamedTuple):
    """Identity of a timer: of a state's timer command number `command_index`, or of an execution (`state_id` empty)."""

    process_execution_id: str
    state_id: str
    number: int
    command_index: int

    @classmethod
    def of_timeout(cls, process_execution_id: str) -> "TimerKey":
        """The timer that closes the execution as TIMEOUT."""
        return cls(process_execution_id, "", 0, 0)

    @property
    def kind(self) -> TimerKind:
        """What the timer is for."""
        return TimerKind.COMMAND if self.state_id else TimerKind.PROCESS_TIMEOUT

    @property
    def state(self) -> StateKey:
        """The state execution whose command the timer is."""
        return StateKey(self.process_execution_id, self.state_id, self.number)


@dataclass(frozen=True, slots=True)
class Timer:
    """A durable timer."""

    key: TimerKey
    fire_at_ms: int
    shard_id: int = 0


@dataclass(slots=True)
class ProcessExecution:
    """One run of a process: a row of xdb_sys_process_execution."""

    process_execution_id: str
    namespace: str
    process_id: str
    process_type: str
    worker_url: str
    started_at_ms: int
    object_id: Json = None
    tables: tuple[TableMapping, ...] = ()
    """The user's rows the execution is mapped to; `initial_write` is not kept."""
    status: ProcessStatus = ProcessStatus.RUNNING
    is_current: bool = True
    timeout_at_ms: int | None = None
    closed_at_ms: int | None = None
    reason: str | None = None
    error: ProcessErrorInfo | None = None
    graceful_complete_requested: bool = False
    outputs: tuple[StateOutput, ...] = ()
    state_counters: dict[str, int] = field(default_factory=dict)
    """How many state executions each state id has had; their numbers are 1..n."""
    remembered_skips: tuple["RememberedSkip", ...] = ()
    next_sequence_id: int = 1
    """The `sequence_id` of the next message of any queue of the execution."""
    next_wait_order: int = 1
    """Rank of the next wait to be registered; the oldest wait is served first."""
    paused_at_ms: int | None = None
    """Since when no call of its states is made; None while calls are."""
    shard_id: int = 0
    create_request_id: str | None = None
    """Of the request that started it, which starts no other while this one is current, however late it comes again."""
    trace_context: str | None = None
    """Trace of the start, for the calls that it leads to: `<traceparent>`, or `<traceparent> <tracestate>`."""
    next_event_id: int = 0
    """The id of the next event of its history, which begins with 1; 0 for an execution that has no history."""
    history_bytes: int = 0
    """How much data the events hold."""
    version: int = 1

    @property
    def key(self) -> ProcessKey:
        """The process id within its namespace."""
        return ProcessKey(self.namespace, self.process_id)

    @property
    def is_running(self) -> bool:
        """Whether the execution has not closed."""
        return self.status is ProcessStatus.RUNNING


class RememberedSkip(NamedTuple):
    """A timer skip that came before its state execution waits (semantics 3.6)."""

    state_id: str
    number: int
    command_id: str | None
    command_index: int | None


@dataclass(slots=True)
class Wait:
    """What a state execution waits for, and what it has got so far.

    `commands` is the worker's request made definite: every timer has its `fire_at_ms`, every queue command its
    `at_least` and `at_most`. `timer_statuses` and `received` are parallel to its two lists; an entry of `received` is
    None while that command waits.
    """

    order: int
    commands: CommandRequestBody
    timer_statuses: list[TimerStatus]
    received: list[tuple[ReceivedMessage, ...] | None]

    def results(self, *, wait_until_api_succeeded: bool = True) -> CommandResultsBody:
        """Give the results in the order of the request (semantics 3.5)."""
        timers = tuple(
            TimerResult(command_id=command.command_id, status=status)
            for command, status in zip(self.commands.timer_commands, self.timer_statuses, strict=True)
        )
        queues = tuple(
            InternalQueueResult(
                command_id=command.command_id,
                queue_name=command.queue_name,
                status=QueueCommandStatus.WAITING if messages is None else QueueCommandStatus.RECEIVED,
                messages=messages or (),
            )
            for command, messages in zip(self.commands.internal_queue_commands, self.received, strict=True)
        )
        return CommandResultsBody(
            timer_results=timers,
            internal_queue_results=queues,
            wait_until_api_succeeded=wait_until_api_succeeded,
        )


@dataclass(slots=True)
class StateExecution:
    """One run of an async state: a row of xdb_sys_async_state_execution.

    `due_at_ms` is when its next call is to be made, None while it waits or is closed: the row itself is the durable
    task (idempotency-and-shards D.6). `attempt` numbers that call, from 1 for each API.
    """

    process_execution_id: str
    state_id: str
    number: int
    created_at_ms: int
    input: JsonText
    options: StateOptionsConfig
    status: StateStatus = StateStatus.RUNNING
    wait_until_status: WaitUntilStatus = WaitUntilStatus.RUNNING
    execute_status: ExecuteStatus = ExecuteStatus.NOT_STARTED
    wait_for_key: str | None = None
    recover_from: RecoverFrom | None = None
    attempt: int = 1
    first_attempt_at_ms: int | None = None
    due_at_ms: int | None = None
    held_due_at_ms: int | None = None
    """What `due_at_ms` would be, were the execution not paused; None while it is not."""
    wait: Wait | None = None
    """Set while wait_until_status is WAITING_COMMANDS_COMPLETED."""
    command_results: CommandResultsBody | None = None
    """Set once triggered: what every attempt of execute is given."""
    state_locals: Mapping[str, Json] = field(default_factory=dict)
    last_failure: AttemptFailureInfo | None = None
    last_database_error: DatabaseErrorInfo | None = None
    output: JsonText | None = None
    closed_at_ms: int | None = None
    shard_id: int = 0
    claim_range: int = 0
    """The range id of the ownership under which its due call is made; 0 while nobody has claimed the call."""
    version: int = 1

    @property
    def key(self) -> StateKey:
        """Identity of the state execution."""
        return StateKey(self.process_execution_id, self.state_id, self.number)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status is StateStatus.RUNNING

    @property
    def planned_at_ms(self) -> int | None:
        """When its next call is to be made, or would be, were the execution not paused; None as for `due_at_ms`."""
        return self.due_at_ms if self.held_due_at_ms is None else self.held_due_at_ms

    @property
    def api(self) -> StateApi:
        """The API that is being called, or will be next."""
        if self.wait_until_status is WaitUntilStatus.RUNNING:
            return StateApi.WAIT_UNTIL
        return StateApi.EXECUTE

    @property
    def retry_policy(self) -> RetryPolicyConfig:
        """When a failed attempt of `api` is repeated."""
        is_wait_until = self.api is StateApi.WAIT_UNTIL
        return self.options.wait_until_api_retry_policy if is_wait_until else self.options.execute_api_retry_policy

    @property
    def call_key(self) -> CallKey | None:
        """The attempt that is due or in flight; None while waiting and after the end."""
        if not self.is_open or self.wait is not None:
            return None
        return CallKey(self.key, self.api, self.attempt, self.claim_range)


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message stored and not claimed: a row of xdb_sys_internal_queue."""

    process_execution_id: str
    queue_name: str
    sequence_id: int
    message_id: str | None
    payload: Json


@dataclass(frozen=True, slots=True)
class RowKey:
    """Names one row of a user's table: key column to wire value."""

    table_name: str
    primary_key: tuple[tuple[str, Json], ...]

    @classmethod
    def of(cls, mapping: TableMapping) -> "RowKey":
        """The row an execution is mapped to."""
        return cls(mapping.table_name, tuple(sorted(mapping.primary_key.items())))

    def __hash__(self) -> int:
        """A key value may be a tagged object, which has no hash of its own."""
        values = (repr(value) if isinstance(value, dict) else value for _, value in self.primary_key)
        return hash((self.table_name, *values))


class RowWriteMode(StrEnum):
    """How a row is written (semantics 1.5, 7.3)."""

    UPDATE_OR_INSERT = "UPDATE_OR_INSERT"
    INSERT_IF_ABSENT = "INSERT_IF_ABSENT"
    INSERT = "INSERT"


@dataclass(frozen=True, slots=True)
class RowWrite:
    """Columns to write into one row of a user's table."""

    row: RowKey
    columns: Mapping[str, Json]
    mode: RowWriteMode = RowWriteMode.UPDATE_OR_INSERT


@dataclass(frozen=True, slots=True)
class LocalAttributeWrite:
    """A process-local attribute to write."""

    process_execution_id: str
    name: str
    value: JsonText


@dataclass(frozen=True, slots=True)
class RowRead:
    """Columns to read of one row."""

    row: RowKey
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalAttributeRead:
    """Process-local attributes to read: by name, by prefix, or all of them."""

    process_execution_id: str
    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    read_all: bool = False


@dataclass(frozen=True, slots=True)
class ReadSet:
    """What a locking call was given and must find unchanged at its commit (semantics 5.4).

    `rows` pairs each read with the column values it saw (None: no such row); `local_attributes` maps each name to the
    value it saw, None standing for unset.
    """

    rows: tuple[tuple[RowRead, Mapping[str, Json] | None], ...] = ()
    process_execution_id: str = ""
    local_attributes: Mapping[str, JsonText | None] = field(default_factory=dict)


class HistoryEvent(NamedTuple):
    """One event of the history of an execution: a row of xdb_sys_history.

    Attributes:
        event_id: 1, 2, 3 and so on within the execution.
        cause_id: The event of the same change that this one came of; None for the first of a change.
        request_id: Of the request that the change was made by, if it had one.
        data: What more there is to say, as JSON; its content depends on the type.
    """

    process_execution_id: str
    event_id: int
    at_ms: int
    event_type: HistoryEventType
    cause_id: int | None
    request_id: str | None
    data: JsonText | None


@dataclass(frozen=True, slots=True)
class Call:
    """An attempt to be made: everything that the worker is told, except the attributes, which are read at the call."""

    key: CallKey
    due_at_ms: int
    namespace: str
    process_id: str
    process_type: str
    worker_url: str
    process_started_at_ms: int
    object_id: Json
    tables: tuple[TableMapping, ...]
    input: JsonText
    options: StateOptionsConfig
    first_attempt_at_ms: int | None
    recover_from: RecoverFrom | None
    command_results: CommandResultsBody | None
    state_locals: Mapping[str, Json]
    last_database_error: DatabaseErrorInfo | None
    shard_id: int = 0
    trace_context: str | None = None


def call_of(process: ProcessExecution, state: StateExecution) -> Call | None:
    """Give the call that a state execution is due for, None when it is due for none."""
    key = state.call_key
    if key is None or state.due_at_ms is None:
        return None
    return Call(
        key=key,
        due_at_ms=state.due_at_ms,
        namespace=process.namespace,
        process_id=process.process_id,
        process_type=process.process_type,
        worker_url=process.worker_url,
        process_started_at_ms=process.started_at_ms,
        object_id=process.object_id,
        tables=process.tables,
        input=state.input,
        options=state.options,
        first_attempt_at_ms=state.first_attempt_at_ms,
        recover_from=state.recover_from,
        command_results=state.command_results,
        state_locals=state.state_locals,
        last_database_error=state.last_database_error,
        shard_id=state.shard_id,
        trace_context=process.trace_context,
    )


@dataclass(slots=True)
class Execution:
    """A process execution as it is loaded for one transaction: its row, its open states, and messages it may need.

    `queues` holds, by name, the oldest unclaimed messages: at least as many as the waits of this transaction can take,
    or all there are. `known_message_ids` says which of the message ids asked about were seen before.
    """

    process: ProcessExecution
    states: dict[StateKey, StateExecution]
    queues: dict[str, list[QueuedMessage]] = field(default_factory=dict)
    known_message_ids: set[tuple[str, str]] = field(default_factory=set)
    _waits: dict[str, dict[StateKey, StateExecution]] | None = None
    """Waiting states by queue, made at first use; it may hold states that wait no more."""

    def waiting_on(self, queue_names: Iterable[str]) -> list[StateExecution]:
        """Give the states that wait and have a command on one of the queues, each once."""
        if self._waits is None:
            self._waits = {}
            for state in self.states.values():
                self.note_wait(state)
        found: dict[StateKey, StateExecution] = {}
        for queue_name in queue_names:
            found.update(self._waits.get(queue_name, {}))
        return [state for state in found.values() if state.wait is not None]

    def note_wait(self, state: StateExecution) -> None:
        """Take a wait into account that was registered after `waiting_on` was first asked."""
        if self._waits is None or state.wait is None:
            return
        for command in state.wait.commands.internal_queue_commands:
            self._waits.setdefault(command.queue_name, {})[state.key] = state

    def open_states(self) -> Sequence[StateExecution]:
        """The pending set, in order of creation."""
        return [state for state in self.states.values() if state.is_open]
