"""The core on tables in memory: commit events one by one or together, look at the rows, check the invariants.

It is the smallest thing that honours the store's port, so that tests of the rules need no database; the contract suite
of the stores shows that the real ones write the same.
"""

import copy
from collections.abc import Sequence
from typing import Any

from server_stub.core.changes import Changes
from server_stub.core.events import Event, add_wait_needs
from server_stub.core.history import HistoryRules
from server_stub.core.model import (
    Call,
    CallKey,
    Execution,
    HistoryEvent,
    ProcessExecution,
    ProcessKey,
    QueuedMessage,
    RowKey,
    StateExecution,
    StateKey,
    Timer,
    TimerKey,
    call_of,
)
from server_stub.core.ports import Loaded, Needs, Selection
from server_stub.core.refusals import Refused
from xdb_sdk.protocol import ExecuteStatus, ProcessStatus, StateStatus, WaitUntilStatus


class CoreBench:
    """System tables as dicts, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.processes: dict[str, ProcessExecution] = {}
        self.states: dict[StateKey, StateExecution] = {}
        self.messages: dict[tuple[str, int], QueuedMessage] = {}
        self.known_message_ids: set[tuple[str, str, str]] = set()
        self.timers: dict[TimerKey, Timer] = {}
        self.rows: dict[RowKey, dict[str, Any]] = {}
        self.local_attributes: dict[str, dict[str, str]] = {}
        self.history: dict[str, list[HistoryEvent]] = {}
        self.history_rules = HistoryRules()
        self.volatile_tables: frozenset[str] = frozenset()
        self.last_changes = Changes()
        self.transactions = 0

    def commit(self, *events: Event[Any]) -> list[Any]:
        """Apply events in one transaction and give their results, a refusal as the exception itself.

        What has to wait for the writes of the others is applied in a transaction of its own.
        """
        selection = Selection()
        for event in events:
            event.select(selection)
        loaded = self._load(selection)
        needs = Needs()
        for event in events:
            event.add_needs(loaded, needs)
        add_wait_needs(loaded, needs)
        self._load_needs(loaded, needs)
        changes = Changes(history_rules=self.history_rules)
        results: list[Any] = []
        for event in events:
            if event.must_wait(loaded, changes):
                break
            try:
                results.append(event.apply(loaded, changes, self.now_ms))
            except Refused as refusal:
                results.append(refusal)
        self._write(changes)
        self.transactions += 1
        self.last_changes = changes
        self.check_invariants()
        put_off = events[len(results) :]
        return results + self.commit(*put_off) if put_off else results

    def commit_one(self, event: Event[Any]) -> Any:
        """Apply one event in its own transaction; a refusal is raised."""
        (result,) = self.commit(event)
        if isinstance(result, Refused):
            raise result
        return result

    def current(self, process_id: str, namespace: str = "default") -> ProcessExecution:
        """Give the current execution of a process id."""
        (process,) = [
            process
            for process in self.processes.values()
            if process.is_current and process.key == ProcessKey(namespace, process_id)
        ]
        return process

    def due_calls(self) -> list[Call]:
        """Give the calls that are due by now, earliest first."""
        calls = [call_of(self.processes[state.process_execution_id], state) for state in self.states.values()]
        due = [call for call in calls if call is not None and call.due_at_ms <= self.now_ms]
        return sorted(due, key=lambda call: call.due_at_ms)

    def call(self, state_execution_id: str) -> CallKey:
        """Give the attempt that a state execution is due for, now or later."""
        state = self.state(state_execution_id)
        key = state.call_key
        assert key is not None, f"{state_execution_id} is due for no call: {state}"
        return key

    def state(self, state_execution_id: str) -> StateExecution:
        """Find a state execution of the only process by its text id."""
        (state,) = [state for key, state in self.states.items() if key.state_execution_id == state_execution_id]
        return state

    def due_timers(self) -> list[TimerKey]:
        """Give the timers that have reached their instant, earliest first."""
        due = [timer for timer in self.timers.values() if timer.fire_at_ms <= self.now_ms]
        return [timer.key for timer in sorted(due, key=lambda timer: (timer.fire_at_ms, timer.key))]

    def queue(self, process_id: str, queue_name: str) -> Sequence[Any]:
        """Give the payloads of the unclaimed messages of a queue, in order."""
        process_execution_id = self.current(process_id).process_execution_id
        return [
            message.payload
            for key, message in sorted(self.messages.items())
            if key[0] == process_execution_id and message.queue_name == queue_name
        ]

    def _load(self, selection: Selection) -> Loaded:
        loaded = Loaded(volatile_tables=self.volatile_tables)
        for process in self.processes.values():
            if process.is_current and process.key in selection.process_keys:
                loaded.current[process.key] = process.process_execution_id
        for process_execution_id in selection.execution_ids | set(loaded.current.values()):
            if process_execution_id in self.processes:
                states = {
                    key: copy.deepcopy(state)
                    for key, state in self.states.items()
                    if key.process_execution_id == process_execution_id and state.is_open
                }
                process = copy.deepcopy(self.processes[process_execution_id])
                loaded.executions[process_execution_id] = Execution(process, states)
        return loaded

    def _load_needs(self, loaded: Loaded, needs: Needs) -> None:
        for (process_execution_id, queue_name), count in needs.messages.items():
            messages = [
                message
                for key, message in sorted(self.messages.items())
                if key[0] == process_execution_id and message.queue_name == queue_name
            ]
            loaded.executions[process_execution_id].queues[queue_name] = messages[:count]
        for process_execution_id, queue_name, message_id in needs.message_ids & self.known_message_ids:
            loaded.executions[process_execution_id].known_message_ids.add((queue_name, message_id))
        for read in needs.rows:
            row = self.rows.get(read.row)
            loaded.rows[read] = None if row is None else {column: row.get(column) for column in read.columns}
        for local in needs.local_attributes:
            values = self.local_attributes.get(local.process_execution_id, {})
            loaded.local_attributes[local.process_execution_id] = dict(values)
        for process_execution_id in needs.histories:
            loaded.histories[process_execution_id] = list(self.history.get(process_execution_id, ()))
            loaded.past_states[process_execution_id] = [
                copy.deepcopy(state) for key, state in self.states.items() if key[0] == process_execution_id
            ]

    def _write(self, changes: Changes) -> None:
        for write in changes.row_writes:
            self.rows.setdefault(write.row, dict(write.row.primary_key)).update(write.columns)
        for local in changes.local_attribute_writes:
            self.local_attributes.setdefault(local.process_execution_id, {})[local.name] = local.value
        self.processes.update(copy.deepcopy({**changes.changed_processes, **changes.new_processes}))
        for key, state in {**changes.new_states, **changes.changed_states}.items():
            self.states[key] = copy.deepcopy(state)
        for event in changes.history:
            self.history.setdefault(event.process_execution_id, []).append(event)
        for message_key, message in changes.new_messages.items():
            self.messages[message_key] = message
            self._remember(message)
        for message_key, message in changes.claimed_messages.items():
            self.messages.pop(message_key, None)
            self._remember(message)
        self.timers.update(changes.new_timers)
        for timer_key in changes.deleted_timers:
            self.timers.pop(timer_key, None)
        for process_execution_id in changes.closed_processes:
            self.messages = {key: m for key, m in self.messages.items() if key[0] != process_execution_id}
            self.timers = {k: t for k, t in self.timers.items() if k.process_execution_id != process_execution_id}
            self.known_message_ids = {k for k in self.known_message_ids if k[0] != process_execution_id}

    def _remember(self, message: QueuedMessage) -> None:
        if message.message_id is not None:
            self.known_message_ids.add((message.process_execution_id, message.queue_name, message.message_id))

    def check_invariants(self) -> None:
        """Check what must hold between any two transactions (semantics 9.6)."""
        for process in self.processes.values():
            self._check_execution(process)
        currents = [process.key for process in self.processes.values() if process.is_current]
        assert len(currents) == len(set(currents)), "two current executions of one process id"

    def _check_execution(self, process: ProcessExecution) -> None:
        process_execution_id = process.process_execution_id
        events = self.history.get(process_execution_id, [])
        assert [event.event_id for event in events] == list(range(1, max(process.next_event_id, 1))), (
            "gaps in a history"
        )
        assert process.history_bytes == sum(len((event.data or "").encode()) for event in events)
        states = [s for s in self.states.values() if s.process_execution_id == process_execution_id]
        open_states = [state for state in states if state.is_open]
        numbers: dict[str, list[int]] = {}
        for state in states:
            numbers.setdefault(state.state_id, []).append(state.number)
            self._check_state(state)
        for state_id, found in numbers.items():
            assert sorted(found) == list(range(1, len(found) + 1)), f"numbers of {state_id}: {found}"
            assert process.state_counters[state_id] == len(found)
        timers = [timer for timer in self.timers.values() if timer.key.process_execution_id == process_execution_id]
        if process.status is not ProcessStatus.RUNNING:
            assert not open_states, "a closed process has an open state"
            assert not timers, "a closed process has a timer"
            assert not any(key[0] == process_execution_id for key in self.messages), "a closed process has a message"
            assert process.closed_at_ms is not None
        elif process.graceful_complete_requested:
            assert open_states, "a graceful completion with nothing pending did not complete"
        for timer in timers:
            if timer.key.state_id:
                assert self.states[timer.key.state].wait is not None, "a timer of a state that does not wait"

    def _check_state(self, state: StateExecution) -> None:
        if not state.is_open:
            assert state.planned_at_ms is None
            assert state.wait is None
            assert state.status in {StateStatus.COMPLETED, StateStatus.FAILED, StateStatus.ABORTED}
            return
        is_waiting = state.wait_until_status is WaitUntilStatus.WAITING_COMMANDS_COMPLETED
        assert is_waiting == (state.wait is not None)
        assert is_waiting == (state.planned_at_ms is None), "an open state that does not wait has one call due"
        is_held = self.processes[state.process_execution_id].paused_at_ms is not None
        assert state.due_at_ms is None or not is_held, "a call of a paused process is due"
        assert state.held_due_at_ms is None or is_held, "a call of a process that is not paused is held"
        is_executing = state.execute_status is ExecuteStatus.RUNNING
        assert is_executing == (state.wait_until_status in {WaitUntilStatus.COMPLETED, WaitUntilStatus.SKIPPED})
