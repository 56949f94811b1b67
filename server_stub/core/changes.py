"""What a transaction changes, collected by the transitions and written by the store in a few statements."""

from dataclasses import dataclass, field

from server_stub.core.history import DEFAULT_RULES, HistoryRules
from server_stub.core.model import (
    Call,
    HistoryEvent,
    LocalAttributeWrite,
    ProcessExecution,
    QueuedMessage,
    RequestKey,
    RequestRecord,
    RowWrite,
    StateExecution,
    StateKey,
    Timer,
    TimerKey,
)


@dataclass(slots=True)
class Changes:
    """Rows to write, grouped by table; the store writes them in the order of the fields.

    Processes and states are kept by identity and hold their final content when the transaction is written, so a row
    that several commands of one transaction touch is written once. A row is in the `new_*` or the `changed_*`
    collection, never in both.
    """

    row_writes: list[RowWrite] = field(default_factory=list)
    local_attribute_writes: list[LocalAttributeWrite] = field(default_factory=list)
    changed_processes: dict[str, ProcessExecution] = field(default_factory=dict)
    """Written before `new_processes`: the current flag moves from the old execution to the new one."""
    new_processes: dict[str, ProcessExecution] = field(default_factory=dict)
    new_states: dict[StateKey, StateExecution] = field(default_factory=dict)
    changed_states: dict[StateKey, StateExecution] = field(default_factory=dict)
    new_messages: dict[tuple[str, int], QueuedMessage] = field(default_factory=dict)
    """By execution and sequence id. A message that was claimed in the same transaction is only remembered by id."""
    claimed_messages: dict[tuple[str, int], QueuedMessage] = field(default_factory=dict)
    """To remove from the queue; one with a message id stays known until the execution closes (semantics 3.2)."""
    new_timers: dict[TimerKey, Timer] = field(default_factory=dict)
    deleted_timers: set[TimerKey] = field(default_factory=set)
    closed_processes: dict[str, ProcessExecution] = field(default_factory=dict)
    """Executions whose messages, message ids and timers are all to be deleted."""
    ended_states: dict[StateKey, StateExecution] = field(default_factory=dict)
    """State executions that completed, failed or were aborted: what waiters wait for. Written by `changed_states`."""
    requests: dict[RequestKey, RequestRecord] = field(default_factory=dict)
    """Requests to remember. Written in the order of their keys; one that is there already repeats the transaction."""
    dropped_requests: dict[RequestKey, RequestRecord] = field(default_factory=dict)
    """Rows to delete before, of requests that expired or were only reserved, unless they are others by now."""
    history: list[HistoryEvent] = field(default_factory=list)
    due_calls: list[Call] = field(default_factory=list)
    """Calls that the written states are due for, now or later: for delivery, not a row of its own."""
    withdrawn: set[str] = field(default_factory=set)
    """Executions that run and of which calls are not to be made any more that may have been found before."""
    foreign_shards: set[int] = field(default_factory=set)
    """Shards of other servers, or of nobody yet, in which something has become due: their owners are to be woken."""
    history_rules: HistoryRules = DEFAULT_RULES
    long_histories: list[ProcessExecution] = field(default_factory=list)
    """Executions whose history has become long, to be told to the operators."""

    def touch_process(self, process: ProcessExecution) -> None:
        """Note that the row has changed."""
        if process.process_execution_id not in self.new_processes:
            if process.process_execution_id not in self.changed_processes:
                process.version += 1
            self.changed_processes[process.process_execution_id] = process

    def touch_state(self, state: StateExecution) -> None:
        """Note that the row has changed."""
        if state.key not in self.new_states:
            if state.key not in self.changed_states:
                state.version += 1
            self.changed_states[state.key] = state

    def set_timer(self, timer: Timer) -> None:
        """Add a timer, or move one."""
        self.deleted_timers.discard(timer.key)
        self.new_timers[timer.key] = timer

    def delete_timer(self, key: TimerKey) -> None:
        """Remove a timer; one that does not exist is no error, and one that was moved in this transaction exists."""
        self.new_timers.pop(key, None)
        self.deleted_timers.add(key)

    def add_message(self, message: QueuedMessage) -> None:
        """Append a message to its queue."""
        self.new_messages[message.process_execution_id, message.sequence_id] = message

    def claim_message(self, message: QueuedMessage) -> None:
        """Take a message out of its queue."""
        key = (message.process_execution_id, message.sequence_id)
        if self.new_messages.pop(key, None) is None or message.message_id is not None:
            self.claimed_messages[key] = message
