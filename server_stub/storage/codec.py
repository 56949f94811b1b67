"""Rows of the system tables from and to the dataclasses of the core; the same for every database.

Models are kept as their wire JSON, without the fields that nobody set: the defaults of the wire models are part of the
protocol. Empty collections are null. Numbers never pass through a float parser that would cut them.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json

from server_stub.core.model import (
    CallKey,
    HistoryEvent,
    ProcessExecution,
    QueuedMessage,
    RememberedSkip,
    RequestKey,
    RequestRecord,
    RequestType,
    StateExecution,
    StateKey,
    Wait,
    json_text,
)
from server_stub.core.ports import StoreError
from xdb_sdk.protocol import (
    AttemptFailureInfo,
    CommandResultsBody,
    DatabaseErrorInfo,
    ExecuteStatus,
    HistoryEventType,
    ProcessErrorInfo,
    ProcessStatus,
    RecoverFrom,
    StateApi,
    StateOptionsConfig,
    StateOutput,
    StateStatus,
    TableMapping,
    WaitUntilStatus,
    WireModel,
)

Row = Sequence[Any]
"""What a driver reads or binds: None, int, float, str or bytes for each column."""


def only_row(rows: Sequence[Row]) -> Row | None:
    """Give the one row that was asked for, if there is one."""
    return rows[0] if rows else None


PROCESS_FIXED: Final = (
    "process_execution_id",
    "namespace",
    "process_id",
    "process_type",
    "started_at_ms",
    "object_id",
    "mapped_tables",
    "shard_id",
    "trace_context",
    "create_request_id",
    "is_current",
    "status",
)
"""Columns that are written when an execution starts; the last two have indexes, and statements of their own."""
PROCESS_CHANGING: Final = (
    "worker_url",
    "timeout_at_ms",
    "closed_at_ms",
    "reason",
    "error",
    "graceful_complete_requested",
    "outputs",
    "state_counters",
    "remembered_skips",
    "next_sequence_id",
    "next_wait_order",
    "next_event_id",
    "history_bytes",
    "paused_at_ms",
    "version",
)
PROCESS_COLUMNS: Final = PROCESS_FIXED + PROCESS_CHANGING

STATE_FIXED: Final = (
    "process_execution_id",
    "state_id",
    "number",
    "created_at_ms",
    "input",
    "options",
    "wait_for_key",
    "recover_from",
    "shard_id",
)
"""Columns that are written when a state execution is created: its input and options are frozen (semantics 2.1)."""
STATE_CHANGING: Final = (
    "status",
    "wait_until_status",
    "execute_status",
    "attempt",
    "first_attempt_at_ms",
    "due_at_ms",
    "held_due_at_ms",
    "wait_state",
    "command_results",
    "state_locals",
    "last_failure",
    "last_database_error",
    "output",
    "closed_at_ms",
    "claim_range",
    "version",
)
STATE_COLUMNS: Final = STATE_FIXED + STATE_CHANGING

CALL_KEY_COLUMNS: Final = ("process_execution_id", "state_id", "number", "wait_until_status", "attempt", "claim_range")

REQUEST_KEY: Final = ("namespace", "process_id", "request_type", "request_id")
REQUEST_COLUMNS: Final = (
    *REQUEST_KEY,
    "shard_id",
    "process_execution_id",
    "fingerprint",
    "result",
    "created_at_ms",
    "expires_at_ms",
    "version",
)

HISTORY_COLUMNS: Final = (
    "process_execution_id",
    "event_id",
    "at_ms",
    "event_type",
    "cause_id",
    "request_id",
    "data",
)

MESSAGE_COLUMNS: Final = ("process_execution_id", "queue_name", "sequence_id", "message_id", "payload")

_TABLES: Final = TypeAdapter(tuple[TableMapping, ...])
_OUTPUTS: Final = TypeAdapter(tuple[StateOutput, ...])
_SKIPS: Final = TypeAdapter(tuple[RememberedSkip, ...])
_WAIT: Final = TypeAdapter(Wait)

_PROCESS_STATUS: Final = {status.value: status for status in ProcessStatus}
_STATE_STATUS: Final = {status.value: status for status in StateStatus}
_WAIT_UNTIL_STATUS: Final = {status.value: status for status in WaitUntilStatus}
_EXECUTE_STATUS: Final = {status.value: status for status in ExecuteStatus}

_ModelT = TypeVar("_ModelT", bound=WireModel)


class UnreadableRow(StoreError):
    """A row of a system table holds what no server wrote; its execution stands still, others go on."""

    def __init__(self, table_name: str, key: object, cause: Exception) -> None:
        self.table_name = table_name
        self.key = key
        super().__init__(f"row {key} of {table_name} cannot be read: {type(cause).__name__}")


@lru_cache(maxsize=4096)
def _parse_options(text: str) -> StateOptionsConfig:
    """Read options. Few different ones are in use, and they are immutable: each is parsed once."""
    return StateOptionsConfig.model_validate_json(text)


@lru_cache(maxsize=4096)
def _parse_tables(text: str) -> tuple[TableMapping, ...]:
    return _TABLES.validate_json(text)


def _dump_model(model: WireModel | None) -> str | None:
    return None if model is None else model.model_dump_json(by_alias=True, exclude_unset=True)


def _parse_model(model_type: type[_ModelT], text: str | None) -> _ModelT | None:
    return None if text is None else model_type.model_validate_json(text)


def _dump_many(adapter: TypeAdapter[Any], value: Any) -> str | None:
    return adapter.dump_json(value, by_alias=True, exclude_unset=True).decode() if value else None


def process_fixed(process: ProcessExecution) -> tuple[Any, ...]:
    """Give the values of `PROCESS_FIXED`."""
    return (
        process.process_execution_id,
        process.namespace,
        process.process_id,
        process.process_type,
        process.started_at_ms,
        json_text(process.object_id),
        _dump_many(_TABLES, process.tables),
        process.shard_id,
        process.trace_context,
        process.create_request_id,
        1 if process.is_current else None,
        process.status.value,
    )


def process_changing(process: ProcessExecution) -> tuple[Any, ...]:
    """Give the values of `PROCESS_CHANGING`."""
    return (
        process.worker_url,
        process.timeout_at_ms,
        process.closed_at_ms,
        process.reason,
        _dump_model(process.error),
        1 if process.graceful_complete_requested else 0,
        _dump_many(_OUTPUTS, process.outputs),
        json_text(process.state_counters) if process.state_counters else None,
        _dump_many(_SKIPS, process.remembered_skips),
        process.next_sequence_id,
        process.next_wait_order,
        process.next_event_id,
        process.history_bytes,
        process.paused_at_ms,
        process.version,
    )


def process_of(row: Row) -> ProcessExecution:
    """Read a process execution from the values of `PROCESS_COLUMNS`.

    Raises:
        UnreadableRow: It holds what no server wrote.
    """
    (
        process_execution_id,
        namespace,
        process_id,
        process_type,
        started_at_ms,
        object_id,
        mapped_tables,
        shard_id,
        trace_context,
        create_request_id,
        is_current,
        status,
        worker_url,
        timeout_at_ms,
        closed_at_ms,
        reason,
        error,
        graceful_complete_requested,
        outputs,
        state_counters,
        remembered_skips,
        next_sequence_id,
        next_wait_order,
        next_event_id,
        history_bytes,
        paused_at_ms,
        version,
    ) = row
    try:
        return ProcessExecution(
            process_execution_id=process_execution_id,
            namespace=namespace,
            process_id=process_id,
            process_type=process_type,
            worker_url=worker_url,
            started_at_ms=started_at_ms,
            object_id=None if object_id is None else from_json(object_id),
            tables=() if mapped_tables is None else _parse_tables(mapped_tables),
            status=_PROCESS_STATUS[status],
            is_current=is_current is not None,
            timeout_at_ms=timeout_at_ms,
            closed_at_ms=closed_at_ms,
            reason=reason,
            error=_parse_model(ProcessErrorInfo, error),
            graceful_complete_requested=graceful_complete_requested == 1,
            outputs=() if outputs is None else _OUTPUTS.validate_json(outputs),
            state_counters={} if state_counters is None else from_json(state_counters),
            remembered_skips=() if remembered_skips is None else _SKIPS.validate_json(remembered_skips),
            next_sequence_id=next_sequence_id,
            next_wait_order=next_wait_order,
            paused_at_ms=paused_at_ms,
            shard_id=shard_id,
            trace_context=trace_context,
            create_request_id=create_request_id,
            next_event_id=next_event_id,
            history_bytes=history_bytes,
            version=version,
        )
    except (ValueError, TypeError, KeyError) as error_:
        raise UnreadableRow("xdb_sys_process_execution", process_execution_id, error_) from error_


def state_fixed(state: StateExecution) -> tuple[Any, ...]:
    """Give the values of `STATE_FIXED`."""
    return (
        state.process_execution_id,
        state.state_id,
        state.number,
        state.created_at_ms,
        state.input,
        _dump_model(state.options),
        state.wait_for_key,
        _dump_model(state.recover_from),
        state.shard_id,
    )


def state_changing(state: StateExecution) -> tuple[Any, ...]:
    """Give the values of `STATE_CHANGING`."""
    return (
        state.status.value,
        state.wait_until_status.value,
        state.execute_status.value,
        state.attempt,
        state.first_attempt_at_ms,
        state.due_at_ms,
        state.held_due_at_ms,
        _dump_many(_WAIT, state.wait),
        _dump_model(state.command_results),
        json_text(state.state_locals) if state.state_locals else None,
        _dump_model(state.last_failure),
        _dump_model(state.last_database_error),
        state.output,
        state.closed_at_ms,
        state.claim_range,
        state.version,
    )


def state_of(row: Row) -> StateExecution:
    """Read a state execution from the values of `STATE_COLUMNS`.

    Raises:
        UnreadableRow: It holds what no server wrote.
    """
    (
        process_execution_id,
        state_id,
        number,
        created_at_ms,
        input_,
        options,
        wait_for_key,
        recover_from,
        shard_id,
        status,
        wait_until_status,
        execute_status,
        attempt,
        first_attempt_at_ms,
        due_at_ms,
        held_due_at_ms,
        wait,
        command_results,
        state_locals,
        last_failure,
        last_database_error,
        output,
        closed_at_ms,
        claim_range,
        version,
    ) = row
    try:
        return StateExecution(
            process_execution_id=process_execution_id,
            state_id=state_id,
            number=number,
            created_at_ms=created_at_ms,
            input=input_,
            options=_parse_options(options),
            status=_STATE_STATUS[status],
            wait_until_status=_WAIT_UNTIL_STATUS[wait_until_status],
            execute_status=_EXECUTE_STATUS[execute_status],
            wait_for_key=wait_for_key,
            recover_from=_parse_model(RecoverFrom, recover_from),
            attempt=attempt,
            first_attempt_at_ms=first_attempt_at_ms,
            due_at_ms=due_at_ms,
            held_due_at_ms=held_due_at_ms,
            wait=None if wait is None else _WAIT.validate_json(wait),
            command_results=_parse_model(CommandResultsBody, command_results),
            state_locals={} if state_locals is None else from_json(state_locals),
            last_failure=_parse_model(AttemptFailureInfo, last_failure),
            last_database_error=_parse_model(DatabaseErrorInfo, last_database_error),
            output=output,
            closed_at_ms=closed_at_ms,
            shard_id=shard_id,
            claim_range=claim_range,
            version=version,
        )
    except (ValueError, TypeError, KeyError) as error:
        key = (process_execution_id, state_id, number)
        raise UnreadableRow("xdb_sys_async_state_execution", key, error) from error


def call_key_of(row: Row) -> CallKey:
    """Read the call that a state is due for from the values of `CALL_KEY_COLUMNS`."""
    process_execution_id, state_id, number, wait_until_status, attempt, claim_range = row
    is_wait_until = wait_until_status == WaitUntilStatus.RUNNING.value
    api = StateApi.WAIT_UNTIL if is_wait_until else StateApi.EXECUTE
    return CallKey(StateKey(process_execution_id, state_id, number), api, attempt, claim_range)


def request_row(record: RequestRecord) -> tuple[Any, ...]:
    """Give the values of `REQUEST_COLUMNS`."""
    return (
        *record.key,
        record.shard_id,
        record.process_execution_id,
        record.fingerprint,
        record.result,
        record.created_at_ms,
        record.expires_at_ms,
        record.version,
    )


def request_of(row: Row) -> RequestRecord:
    """Read a request from the values of `REQUEST_COLUMNS`.

    Raises:
        UnreadableRow: It holds what no server wrote.
    """
    namespace, process_id, request_type, request_id, *others = row
    try:
        return RequestRecord(RequestKey(namespace, process_id, RequestType(request_type), request_id), *others)
    except ValueError as error:
        raise UnreadableRow("xdb_sys_request", (namespace, process_id, request_type, request_id), error) from error


def history_row(event: HistoryEvent) -> tuple[Any, ...]:
    """Give the values of `HISTORY_COLUMNS`."""
    process_execution_id, event_id, at_ms, event_type, cause_id, request_id, data = event
    return process_execution_id, event_id, at_ms, event_type.value, cause_id, request_id, data


def event_of(row: Row) -> HistoryEvent:
    """Read an event of a history from the values of `HISTORY_COLUMNS`.

    Raises:
        UnreadableRow: It holds what no server wrote.
    """
    process_execution_id, event_id, at_ms, event_type, *others = row
    try:
        return HistoryEvent(process_execution_id, event_id, at_ms, HistoryEventType(event_type), *others)
    except ValueError as error:
        raise UnreadableRow("xdb_sys_history", (process_execution_id, event_id), error) from error


def message_row(message: QueuedMessage) -> tuple[Any, ...]:
    """Give the values of `MESSAGE_COLUMNS`."""
    return (
        message.process_execution_id,
        message.queue_name,
        message.sequence_id,
        message.message_id,
        json_text(message.payload),
    )


def message_of(row: Row) -> QueuedMessage:
    """Read a message from the values of `MESSAGE_COLUMNS`.

    Raises:
        UnreadableRow: It holds what no server wrote.
    """
    process_execution_id, queue_name, sequence_id, message_id, payload = row
    try:
        return QueuedMessage(process_execution_id, queue_name, sequence_id, message_id, from_json(payload))
    except (ValueError, TypeError) as error:
        raise UnreadableRow("xdb_sys_internal_queue", (process_execution_id, sequence_id), error) from error
