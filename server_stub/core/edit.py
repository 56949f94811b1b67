"""The frame of a transition: one execution, one instant, and where its changes are collected."""

from dataclasses import dataclass

from server_stub.core.changes import Changes
from server_stub.core.model import Execution, ProcessExecution, StateExecution


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to one loaded execution at one instant. The transitions alter the loaded rows and note them here."""

    execution: Execution
    changes: Changes
    now_ms: int

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
