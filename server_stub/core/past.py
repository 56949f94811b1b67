"""An execution as it was at a point of its history, made from the events up to there (semantics 6.7).

Nothing of the user's is run for that: events say what came of each call. What they need not say stands in the rows of
the state executions, whose input, options and output never change: so the history alone is small.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json, to_json

from server_stub.core.model import (
    Execution,
    HistoryEvent,
    ProcessExecution,
    QueuedMessage,
    RememberedSkip,
    StateExecution,
    StateKey,
    Wait,
)
from server_stub.core.states import AfterFailure, timer_index
from server_stub.core.waits import LATEST_INSTANT_MS, is_satisfied
from xdb_sdk.protocol import (
    CommandRequestBody,
    CommandResultsBody,
    ExecuteStatus,
    HistoryEventType,
    Json,
    ReceivedMessage,
    StateOutput,
    StateStatus,
    TimerStatus,
    WaitUntilStatus,
)

_ENDS: Final = {
    HistoryEventType.COMPLETED,
    HistoryEventType.FAILED,
    HistoryEventType.TIMED_OUT,
    HistoryEventType.TERMINATED,
    HistoryEventType.CANCELED,
}


def changes_of(events: Sequence[HistoryEvent]) -> Iterator[Sequence[HistoryEvent]]:
    """Give the events of each change: the one that says what happened, and those that came of it."""
    begin = 0
    for end in range(1, len(events) + 1):
        if end == len(events) or events[end].cause_id is None:
            yield events[begin:end]
            begin = end


def data_of(event: HistoryEvent) -> dict[str, Any]:
    """Give what more an event says."""
    return {} if event.data is None else from_json(event.data)


@dataclass(slots=True)
class Past:
    """An execution as it was.

    Attributes:
        execution: Its row and its state executions, open and ended ones, in order of creation, with the unclaimed
            messages of each queue.
        claimed: Messages that were taken and whose ids are known.
        local_attributes: By name.
        at_ms: When the last change was that it has.
        has_ended: Whether it was closed.
    """

    execution: Execution
    claimed: list[QueuedMessage] = field(default_factory=list)
    local_attributes: dict[str, Json] = field(default_factory=dict)
    at_ms: int = 0
    has_ended: bool = False


def rebuild(process: ProcessExecution, events: Sequence[HistoryEvent], rows: Iterable[StateExecution]) -> Past:
    """Make an execution from events.

    Args:
        process: The execution's row as it was made by the start, under the id that it is to have.
        events: Whole changes, from the first on.
        rows: The state executions that the events tell of, as they are now.
    """
    rebuilding = _Rebuilding(Past(Execution(process, {})), {row.key.state_execution_id: row for row in rows})
    for change in changes_of(events):
        rebuilding.apply(change)
    return rebuilding.finish()


def go_on_at(past: Past, now_ms: int) -> None:
    """Move what is still to come from the past to now: timers and delays have as much time left as they had."""
    by_ms = now_ms - past.at_ms
    for state in past.execution.open_states():
        if state.due_at_ms is not None:
            state.due_at_ms = max(state.due_at_ms + by_ms, now_ms)
        if state.wait is not None:
            commands = state.wait.commands
            timers = tuple(
                timer.model_copy(update={"fire_at_ms": min((timer.fire_at_ms or 0) + by_ms, LATEST_INSTANT_MS)})
                for timer in commands.timer_commands
            )
            state.wait.commands = commands.model_copy(update={"timer_commands": timers})
    past.at_ms = now_ms


class _Rebuilding:
    def __init__(self, past: Past, rows: Mapping[str, StateExecution]) -> None:
        self.past = past
        self._rows = rows
        self._process = past.execution.process
        self._messages: dict[int, QueuedMessage] = {}
        self._fed: list[StateExecution] = []
        """States of which a change has completed commands, or that have begun to wait."""

    def apply(self, change: Sequence[HistoryEvent]) -> None:
        """Apply a change: what its events say, and then the waits that have got what they need."""
        for event in change:
            self._apply(event, data_of(event))
            self.past.at_ms = event.at_ms
        for state in self._fed:
            if state.wait is not None and is_satisfied(state.wait):
                self._begin_execute(state, state.wait.results(), change[0].at_ms)
        self._fed.clear()

    def finish(self) -> Past:
        """Give what has come of it."""
        for message in self._messages.values():
            self.past.execution.queues.setdefault(message.queue_name, []).append(message)
        return self.past

    def _apply(self, event: HistoryEvent, data: Mapping[str, Any]) -> None:
        match event.event_type:
            case HistoryEventType.STATE_SCHEDULED:
                self._schedule(data, event.at_ms)
            case HistoryEventType.WAIT_UNTIL_COMPLETED:
                self._wait(data)
            case HistoryEventType.COMMAND_COMPLETED:
                self._complete_command(data)
            case HistoryEventType.STATE_EXECUTED | HistoryEventType.STATE_COMPLETED_BY_OPERATOR:
                self._execute(data)
            case HistoryEventType.ATTEMPT_FAILED:
                self._fail(data, event.at_ms)
            case HistoryEventType.ATTRIBUTES_WRITTEN:
                self.past.local_attributes.update(data.get("localAttributes", {}))
            case HistoryEventType.PUBLISHED:
                self._publish(data)
            case HistoryEventType.TIMER_SKIPPED:
                self._skip(data)
            case HistoryEventType.OUTPUT_GIVEN:
                self._process.outputs += (StateOutput(output=data["output"]),)
            case HistoryEventType.COMPLETION_REQUESTED:
                self._process.graceful_complete_requested = True
            case HistoryEventType.RESET:
                go_on_at(self.past, event.at_ms)
            case event_type if event_type in _ENDS:
                self.past.has_ended = True
            case _:
                pass

    def _state(self, data: Mapping[str, Any]) -> StateExecution:
        return self.past.execution.states[self._key(data)]

    def _key(self, data: Mapping[str, Any]) -> StateKey:
        state_id, _, number = data["stateExecutionId"].rpartition("-")
        return StateKey(self._process.process_execution_id, state_id, int(number))

    def _schedule(self, data: Mapping[str, Any], at_ms: int) -> None:
        row = self._rows[data["stateExecutionId"]]
        skipped = row.options.skip_wait_until
        state = StateExecution(
            process_execution_id=self._process.process_execution_id,
            state_id=row.state_id,
            number=row.number,
            created_at_ms=row.created_at_ms,
            input=row.input,
            options=row.options,
            wait_until_status=WaitUntilStatus.SKIPPED if skipped else WaitUntilStatus.RUNNING,
            execute_status=ExecuteStatus.RUNNING if skipped else ExecuteStatus.NOT_STARTED,
            wait_for_key=row.wait_for_key,
            recover_from=row.recover_from,
            due_at_ms=at_ms + data.get("delayMs", 0),
            shard_id=self._process.shard_id,
        )
        self.past.execution.states[state.key] = state
        self._process.state_counters[state.state_id] = state.number

    def _wait(self, data: Mapping[str, Any]) -> None:
        state = self._state(data)
        # From text, as on the wire: what a model takes of it is stricter otherwise.
        commands = CommandRequestBody.model_validate_json(to_json(data["commands"]))
        state.wait = Wait(
            order=self._process.next_wait_order,
            commands=commands,
            timer_statuses=[TimerStatus.SCHEDULED] * len(commands.timer_commands),
            received=[None] * len(commands.internal_queue_commands),
        )
        state.wait_until_status = WaitUntilStatus.WAITING_COMMANDS_COMPLETED
        state.due_at_ms = None
        state.state_locals = data.get("stateLocals", {})
        self._fed.append(state)
        self._process.next_wait_order += 1
        self._process.remembered_skips = tuple(
            skip for skip in self._process.remembered_skips if (skip.state_id, skip.number) != state.key[1:]
        )

    def _complete_command(self, data: Mapping[str, Any]) -> None:
        state = self._state(data)
        self._fed.append(state)
        wait = state.wait
        assert wait is not None, "only commands of a wait are completed"
        if "timerCommand" in data:
            wait.timer_statuses[data["timerCommand"]] = TimerStatus(data["status"])
            return
        messages = [self._messages.pop(sequence_id) for sequence_id in data["sequenceIds"]]
        wait.received[data["queueCommand"]] = tuple(
            ReceivedMessage(message_id=message.message_id, payload=message.payload) for message in messages
        )
        self.past.claimed += [message for message in messages if message.message_id is not None]

    def _begin_execute(self, state: StateExecution, results: CommandResultsBody, at_ms: int) -> None:
        state.wait = None
        state.wait_until_status = WaitUntilStatus.COMPLETED
        state.execute_status = ExecuteStatus.RUNNING
        state.command_results = results
        state.due_at_ms = at_ms

    def _execute(self, data: Mapping[str, Any]) -> None:
        state = self._state(data)
        if state.wait_until_status is not WaitUntilStatus.SKIPPED:
            state.wait_until_status = WaitUntilStatus.COMPLETED
        state.execute_status = ExecuteStatus.COMPLETED
        self._end(state, StateStatus.COMPLETED)
        state.output = self._rows[state.key.state_execution_id].output
        if state.output is not None:
            output = StateOutput(
                state_id=state.state_id,
                state_execution_id=state.key.state_execution_id,
                output=from_json(state.output),
            )
            self._process.outputs += (output,)

    def _fail(self, data: Mapping[str, Any], at_ms: int) -> None:
        state = self._state(data)
        if data["then"] == AfterFailure.EXECUTE:
            self._begin_execute(state, CommandResultsBody(wait_until_api_succeeded=False), at_ms)
        elif data["then"] == AfterFailure.FAIL:
            self._end(state, StateStatus.FAILED)

    def _end(self, state: StateExecution, status: StateStatus) -> None:
        state.status = status
        state.closed_at_ms = self._rows[state.key.state_execution_id].closed_at_ms
        state.due_at_ms = None
        state.wait = None
        state.command_results = None
        state.state_locals = {}

    def _publish(self, data: Mapping[str, Any]) -> None:
        process = self._process
        for told in data["messages"]:
            message = QueuedMessage(
                process_execution_id=process.process_execution_id,
                queue_name=told["queueName"],
                sequence_id=told["sequenceId"],
                message_id=told.get("messageId"),
                payload=told["payload"],
            )
            self._messages[message.sequence_id] = message
            process.next_sequence_id = message.sequence_id + 1
            if message.message_id is not None:
                self.past.execution.known_message_ids.add((message.queue_name, message.message_id))

    def _skip(self, data: Mapping[str, Any]) -> None:
        """Remember a skip, unless the state waits: then its command is completed by an event of its own."""
        key = self._key(data)
        skip = RememberedSkip(key.state_id, key.number, data.get("commandId"), data.get("index"))
        state = self.past.execution.states.get(key)
        if state is None or timer_index(state, skip) is None:
            self._process.remembered_skips += (skip,)
