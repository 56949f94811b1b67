"""An execution is paused: its calls are not due until it is resumed."""

from server_stub.core.edit import Edit
from xdb_sdk.protocol import HistoryEventType


def pause(edit: Edit, reason: str | None) -> None:
    """Pause an execution that is not paused: what its open states are due for is held."""
    edit.process.paused_at_ms = edit.now_ms
    edit.touch_process()
    edit.record(HistoryEventType.PAUSED, reason=reason)
    for state in edit.execution.open_states():
        if state.due_at_ms is not None:
            # The claim stays: it is part of the name of a call that a worker may have, and whose answer counts.
            edit.make_due(state, state.due_at_ms)
