"""Executions as this server has just written them, so that the next transaction about them need not read them."""

from collections.abc import Collection, Mapping
from typing import Final

from server_stub.core.changes import Changes
from server_stub.core.model import Execution, ProcessExecution, StateExecution
from server_stub.core.ports import Loaded

_MOST_STATES: Final = 10


class RecentExecutions:
    """Executions of which a call is due, as the latest transactions here left them.

    They may be out of date: whoever takes one checks the version of each when it writes, and reads those of which it
    would write nothing. What is taken is here no more, so that two transactions never have the same.

    Args:
        most: How many are kept; the oldest go first.
        largest_chars: How long the inputs of an execution's open states may be together, for it to be kept.
    """

    def __init__(self, most: int = 2_000, largest_chars: int = 10_000) -> None:
        self._most = most
        self._largest_chars = largest_chars
        self._executions: dict[str, Execution] = {}

    def take(self, execution_ids: Collection[str]) -> dict[str, Execution]:
        """Give those that are here."""
        return {id_: self._executions.pop(id_) for id_ in sorted(execution_ids) if id_ in self._executions}

    def keep(self, loaded: Loaded, changes: Changes) -> None:
        """Keep what has been committed of an unlocked transaction. Nobody else may change it from now on."""
        for id_ in (*changes.changed_processes, *changes.new_processes):
            execution = loaded.executions.get(id_)
            if execution is None or not _is_called(execution):
                continue
            states = {key: state for key, state in execution.states.items() if state.is_open}
            if self._is_small(execution.process, states.values()):
                self._executions[id_] = Execution(execution.process, states)
        while len(self._executions) > self._most:
            del self._executions[next(iter(self._executions))]

    def _is_small(self, process: ProcessExecution, states: Collection[StateExecution]) -> bool:
        """Say whether the execution holds little: a few states, of which only the inputs have a size."""
        if process.outputs or len(states) > _MOST_STATES:
            return False
        if any(state.wait or state.command_results or state.state_locals for state in states):
            return False
        return sum(len(state.input) for state in states) <= self._largest_chars

    def forget(self, processes: Mapping[str, ProcessExecution]) -> None:
        """Drop executions that were changed otherwise."""
        for id_ in processes:
            self._executions.pop(id_, None)


def _is_called(execution: Execution) -> bool:
    """Say whether an answer is to come, by the id of the execution. Those that wait for something else may be many."""
    process = execution.process
    if not process.is_running or not process.is_current:
        return False
    return any(state.call_key is not None for state in execution.states.values())
