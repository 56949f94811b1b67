"""How a process execution closes: one function for every way it can end (semantics 4.3, 9.6)."""

from typing import Final

from server_stub.core.edit import Edit
from server_stub.core.model import StateExecution, json_text
from xdb_sdk.protocol import HistoryEventType, Json, ProcessErrorInfo, ProcessStatus, StateOutput, StateStatus

_EVENT_TYPES: Final = {
    ProcessStatus.COMPLETED: HistoryEventType.COMPLETED,
    ProcessStatus.FAILED: HistoryEventType.FAILED,
    ProcessStatus.TIMEOUT: HistoryEventType.TIMED_OUT,
    ProcessStatus.TERMINATED: HistoryEventType.TERMINATED,
    ProcessStatus.CANCELED: HistoryEventType.CANCELED,
}


def close(
    edit: Edit, status: ProcessStatus, *, reason: str | None = None, error: ProcessErrorInfo | None = None
) -> None:
    """Leave RUNNING: abort the open states, drop messages and timers, keep outputs, tell the waiters.

    The store deletes the messages and timers last, and with them what this very transaction adds.
    """
    process, changes = edit.process, edit.changes
    process.status = status
    process.closed_at_ms = edit.now_ms
    process.reason = reason
    process.error = error
    process.remembered_skips = ()
    edit.touch_process()
    edit.record(
        _EVENT_TYPES[status],
        reason=reason if error is None else None,
        error=None if error is None else error.model_dump(mode="json", by_alias=True, exclude_none=True),
    )
    for state in edit.execution.open_states():
        end_state(edit, state, StateStatus.ABORTED)
    changes.closed_processes[process.process_execution_id] = process


def end_state(edit: Edit, state: StateExecution, status: StateStatus) -> None:
    """Take a state execution out of the pending set."""
    state.status = status
    state.closed_at_ms = edit.now_ms
    state.due_at_ms = state.held_due_at_ms = None
    state.wait = None
    state.command_results = None
    state.state_locals = {}
    edit.touch_state(state)
    edit.changes.ended_states[state.key] = state


def close_if_nothing_is_left(edit: Edit) -> None:
    """Complete the execution when a graceful completion was asked for and the pending set is empty."""
    process = edit.process
    if process.is_running and process.graceful_complete_requested and not edit.execution.open_states():
        close(edit, ProcessStatus.COMPLETED)


def add_output(edit: Edit, state: StateExecution | None, output: Json) -> None:
    """Keep the output of a closing decision; null is no output (semantics 4.6)."""
    if output is None:
        return
    if state is not None:
        state.output = json_text(output)
    else:
        edit.record(HistoryEventType.OUTPUT_GIVEN, output=output)
    entry = StateOutput(
        state_id=state.state_id if state else None,
        state_execution_id=state.key.state_execution_id if state else None,
        output=output,
    )
    edit.process.outputs = (*edit.process.outputs, entry)
    edit.touch_process()
