"""The frame of a transition: one execution, one instant, and where its changes are collected."""

from dataclasses import dataclass
from functools import cache
from typing import Final

from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from server_stub.core.changes import Changes
from server_stub.core.model import Execution, HistoryEvent, ProcessExecution, StateExecution
from xdb_sdk.protocol import HistoryEventType, Json

_wire_name: Final = cache(to_camel)


@dataclass(slots=True)
class Edit:
    """A change to one loaded execution at one instant. The transitions alter the loaded rows and note them here.

    `request_id` is that of the request that the change is made by. `cause_id` is the first event that the change has
    recorded: those that follow came of it.
    """

    execution: Execution
    changes: Changes
    now_ms: int
    request_id: str | None = None
    cause_id: int | None = None

    @property
    def process(self) -> ProcessExecution:
        """The execution's own row."""
        return self.execution.process

    def add_state(self, state: StateExecution) -> None:
        """Add a new state execution to the pending set."""
        self.execution.states[state.key] = state
        self.changes.new_states[state.key] = state
        self.changes.touch_process(self.process)

    def touch_process(self) -> None:
        """Note that the execution's row has changed."""
        self.changes.touch_process(self.process)

    def touch_state(self, state: StateExecution) -> None:
        """Note that a state's row has changed."""
        self.changes.touch_state(state)

    def make_due(self, state: StateExecution, due_at_ms: int) -> None:
        """Have the next call of a state made at an instant; of a paused execution, once it is resumed."""
        is_paused = self.process.paused_at_ms is not None
        state.due_at_ms = None if is_paused else due_at_ms
        state.held_due_at_ms = due_at_ms if is_paused else None
        self.touch_state(state)

    def record(self, event_type: HistoryEventType, **data: Json) -> None:
        """Append an event to the execution's history, if it has one.

        Args:
            event_type: What happened.
            data: What more there is to say, with names of Python; what is None is left out.
        """
        process, changes = self.execution.process, self.changes
        event_id = process.next_event_id
        if event_id == 0:
            return
        told = {_wire_name(name): value for name, value in data.items() if value is not None}
        text = to_json(told) if told else b""
        changes.history.append(
            HistoryEvent(
                process.process_execution_id,
                event_id,
                self.now_ms,
                event_type,
                self.cause_id,
                self.request_id,
                text.decode() if told else None,
            )
        )
        if self.cause_id is None:
            self.cause_id = event_id
        if changes.history_rules.becomes_long(process, len(text)):
            changes.long_histories.append(process)
        process.next_event_id = event_id + 1
        process.history_bytes += len(text)
        changes.touch_process(process)
