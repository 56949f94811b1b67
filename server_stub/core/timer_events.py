"""A timer is due (semantics 1.6, 3.4)."""

from dataclasses import dataclass

from server_stub.core.changes import Changes
from server_stub.core.closing import close
from server_stub.core.edit import Edit
from server_stub.core.events import Event
from server_stub.core.model import (
    StateExecution,
    TimerKey,
    TimerKind,
)
from server_stub.core.ports import Loaded, Selection
from server_stub.core.states import record_timer, trigger
from server_stub.core.waits import is_satisfied
from xdb_sdk.protocol import (
    ProcessErrorInfo,
    ProcessErrorType,
    ProcessStatus,
    TimerStatus,
)


@dataclass(frozen=True, slots=True)
class TimerFired(Event[None]):
    """A timer is due. One that nothing waits for any more is only removed (B15)."""

    is_repeatable = True

    key: TimerKey

    def select(self, selection: Selection) -> None:
        selection.execution_ids.add(self.key.process_execution_id)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> None:
        execution = loaded.executions.get(self.key.process_execution_id)
        if execution is None or not execution.process.is_running:
            changes.delete_timer(self.key)
            return
        edit = Edit(execution, changes, now_ms)
        if self.key.kind is TimerKind.PROCESS_TIMEOUT:
            self._time_out(edit)
        else:
            self._complete_command(edit)

    def _time_out(self, edit: Edit) -> None:
        timeout_at_ms = edit.process.timeout_at_ms
        if timeout_at_ms is None:
            edit.changes.delete_timer(self.key)
        elif timeout_at_ms <= edit.now_ms:
            error = ProcessErrorInfo(
                error_type=ProcessErrorType.TIMEOUT,
                message=f"the process did not close within {timeout_at_ms - edit.process.started_at_ms} ms",
            )
            close(edit, ProcessStatus.TIMEOUT, error=error)

    def _complete_command(self, edit: Edit) -> None:
        state = edit.execution.states.get(self.key.state)
        if state is None or state.wait is None:
            edit.changes.delete_timer(self.key)
            return
        fire_at_ms = state.wait.commands.timer_commands[self.key.command_index].fire_at_ms or 0
        if fire_at_ms <= edit.now_ms:
            complete_timer(edit, state, self.key.command_index, TimerStatus.FIRED)


def complete_timer(edit: Edit, state: StateExecution, command_index: int, status: TimerStatus) -> None:
    """Mark a timer command as fired or skipped, and trigger its state when that satisfies the wait."""
    wait = state.wait
    edit.changes.delete_timer(TimerKey(*state.key, command_index))
    if wait is None or wait.timer_statuses[command_index] is not TimerStatus.SCHEDULED:
        return
    wait.timer_statuses[command_index] = status
    record_timer(edit, state, command_index, status)
    edit.touch_state(state)
    if is_satisfied(wait):
        trigger(edit, state)
