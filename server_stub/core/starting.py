"""How a process execution starts, and what a process id that was used before means for it (semantics 1)."""

from server_stub.core.closing import close
from server_stub.core.edit import Edit
from server_stub.core.effects import record_attributes, write_local_attributes
from server_stub.core.model import (
    Execution,
    ProcessExecution,
    RowKey,
    RowWrite,
    RowWriteMode,
    Timer,
    TimerKey,
    json_text,
)
from server_stub.core.refusals import Refused
from server_stub.core.states import create_state
from xdb_sdk.protocol import (
    ConflictMode,
    ErrorSubType,
    HistoryEventType,
    IdReusePolicy,
    ProcessStatus,
    StartRequest,
    TableMapping,
)

_WRITE_MODES = {
    ConflictMode.OVERRIDE_ON_CONFLICT: RowWriteMode.UPDATE_OR_INSERT,
    ConflictMode.IGNORE_CONFLICT: RowWriteMode.INSERT_IF_ABSENT,
    ConflictMode.RETURN_ERROR_ON_CONFLICT: RowWriteMode.INSERT,
}


def check_reuse(request: StartRequest, previous: ProcessExecution | None) -> None:
    """Apply the id reuse policy to the latest execution of the process id (semantics 1.3).

    Raises:
        Refused: PROCESS_ALREADY_STARTED, with the id of that execution.
    """
    if previous is None:
        return
    policy = request.id_reuse_policy
    if previous.is_running:
        if policy is IdReusePolicy.TERMINATE_IF_RUNNING:
            return
        raise _already_started(request, previous, "is running")
    if policy is IdReusePolicy.DISALLOW_REUSE:
        raise _already_started(request, previous, f"has been used before ({previous.status})")
    is_abnormal = previous.status is not ProcessStatus.COMPLETED
    if policy is IdReusePolicy.ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY and not is_abnormal:
        raise _already_started(request, previous, "has completed normally")


def _already_started(request: StartRequest, previous: ProcessExecution, what: str) -> Refused:
    other_type = ""
    if previous.process_type != request.process_type:
        other_type = f" It is of type {previous.process_type!r}, this start is of type {request.process_type!r}."
    remedy = "use another process id or another policy"
    if previous.is_running:
        remedy = "use another process id, another policy, or ignore_already_started"
    return Refused(
        ErrorSubType.PROCESS_ALREADY_STARTED,
        f"process {request.process_id!r} {what} as {previous.process_execution_id}, and the id reuse policy "
        f"{request.id_reuse_policy} forbids another start; {remedy}.{other_type}",
        previous.process_execution_id,
    )


def replace(edit: Edit) -> None:
    """Make room for a new execution: the previous one is no longer current, and is terminated if it runs."""
    process = edit.process
    if process.is_running:
        close(edit, ProcessStatus.TERMINATED, reason="replaced by a start with TERMINATE_IF_RUNNING")
    process.is_current = False
    edit.touch_process()


def new_execution(request: StartRequest, process_execution_id: str, now_ms: int, *, shard_id: int = 0) -> Execution:
    """Give the execution that a start creates, without its first state."""
    mappings = tuple(table.model_copy(update={"initial_write": {}}) for table in request.tables)
    process = ProcessExecution(
        process_execution_id=process_execution_id,
        namespace=request.namespace,
        process_id=request.process_id,
        process_type=request.process_type,
        worker_url=request.worker_url,
        object_id=request.object_id,
        tables=mappings,
        started_at_ms=now_ms,
        timeout_at_ms=now_ms + request.timeout_ms if request.timeout_ms else None,
        shard_id=shard_id,
        trace_context=request.trace_context,
        create_request_id=request.request_id,
    )
    return Execution(process=process, states={})


def begin(edit: Edit, request: StartRequest) -> None:
    """Write the initial attributes, the starting state and the timeout of a new execution."""
    process, changes = edit.process, edit.changes
    changes.new_processes[process.process_execution_id] = process
    if process.namespace not in changes.history_rules.off_in:
        process.next_event_id = 1
    edit.record(HistoryEventType.STARTED)
    for table in request.tables:
        _write_initially(edit, table)
    write_local_attributes(edit, request.local_attributes)
    initial = {table.table_name: table.initial_write for table in request.tables if table.initial_write}
    record_attributes(edit, initial, request.local_attributes)
    if request.start_state_id is not None:
        create_state(
            edit,
            request.start_state_id,
            json_text(request.start_state_input),
            request.start_state_options,
            delay_ms=request.start_delay_ms,
        )
    if process.timeout_at_ms is not None:
        key = TimerKey.of_timeout(process.process_execution_id)
        changes.set_timer(Timer(key, process.timeout_at_ms, process.shard_id))


def _write_initially(edit: Edit, table: TableMapping) -> None:
    if table.initial_write:
        write = RowWrite(RowKey.of(table), table.initial_write, _WRITE_MODES[table.conflict_mode])
        edit.changes.row_writes.append(write)
