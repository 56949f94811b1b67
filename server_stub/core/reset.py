"""A client goes on from a point of an execution's history (semantics 6.7; idempotency-and-shards D.10).

A new execution of the process id takes the place of the other one, which is its base: it has the events up to the point
and is as the base was then. What came from outside afterwards is applied again, in its order. Rows of the user's tables
are what they are: they belong to the user, and others may have changed them. Who holds a process holds its id, not a
point of its past: an execution that takes the place of one that is paused now is paused.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never

from server_stub.core.changes import Changes
from server_stub.core.closing import close
from server_stub.core.edit import Edit
from server_stub.core.effects import publish, record_attributes, write_local_attributes
from server_stub.core.events import Event, find_target, select_target, target_of
from server_stub.core.holding import pause
from server_stub.core.model import HistoryEvent, ProcessExecution, ProcessKey, StateExecution, Timer, TimerKey
from server_stub.core.past import Past, changes_of, data_of, go_on_at, rebuild
from server_stub.core.ports import Loaded, Needs, Selection
from server_stub.core.refusals import Refused
from server_stub.core.states import create_state, set_timers, settle_waits
from xdb_sdk.protocol import (
    ErrorSubType,
    HistoryEventType,
    Message,
    ProcessStatus,
    ResetAnswer,
    ResetRequest,
    ResetType,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_NAMED_STATES: Final = 5


@dataclass(frozen=True, slots=True)
class ResetProcess(Event[ResetAnswer]):
    """A client resets an execution; `process_execution_id` is that of the new one, made by the caller."""

    request: ResetRequest
    process_execution_id: str

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)
        selection.process_keys.add(ProcessKey(self.request.namespace, self.request.process_id))

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        base = find_target(loaded, self.request)
        if base is not None:
            needs.histories.add(base.process.process_execution_id)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> ResetAnswer:
        request = self.request
        base = target_of(loaded, request)
        base_id = base.process.process_execution_id
        current = loaded.executions[loaded.current.get(base.process.key, base_id)]
        if current is not base and current.process.is_running:
            raise Refused(
                ErrorSubType.PROCESS_ALREADY_STARTED,
                f"process {request.process_id!r} is running as {current.process.process_execution_id}, not as "
                f"{base_id}, which is to be reset; stop that one first, or reset it",
                current.process.process_execution_id,
            )
        # What this transaction has recorded before is not among the events that were loaded.
        recorded = [event for event in changes.history if event.process_execution_id == base_id]
        events = _complete(base.process, [*loaded.histories[base_id], *recorded])
        end = _find_point(request, base.process, events)
        # Those that are loaded for the transaction know what it has changed.
        rows = ({state.key: state for state in loaded.past_states[base_id]} | base.states).values()
        new = _new_process(base.process, self.process_execution_id, now_ms)
        past = rebuild(new, events[:end], rows)
        if past.has_ended:
            raise _no_point(request, base.process, "it had ended by then")
        is_held = base.process.is_running and base.process.paused_at_ms is not None
        _leave(Edit(base, changes, now_ms, request.request_id), request, self.process_execution_id, end)
        current.process.is_current = False
        changes.touch_process(current.process)
        loaded.executions[self.process_execution_id] = past.execution
        loaded.current[new.key] = self.process_execution_id
        edit = Edit(past.execution, changes, now_ms, request.request_id)
        _write(edit, past, events[:end])
        edit.record(HistoryEventType.RESET, base=base_id, event_id=end, reason=request.reason)
        go_on_at(past, now_ms)
        if is_held:
            pause(edit, request.reason)
        for state in past.execution.open_states():
            set_timers(edit, state)
        _apply_again(edit, request, events[end:], rows)
        return ResetAnswer(
            process_execution_id=self.process_execution_id, base_process_execution_id=base_id, event_id=end
        )


def _complete(process: ProcessExecution, events: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Give the events if they are all there.

    Raises:
        Refused: HISTORY_INCOMPLETE.
    """
    if process.next_event_id == 0:
        why = "has no history: histories were turned off for its namespace when it started"
    elif not events or events[0].event_type is not HistoryEventType.STARTED:
        why = "has a history that does not begin with its start: it was started by a server that wrote none"
    elif len(events) != process.next_event_id - 1:
        why = f"has a history of {process.next_event_id - 1} events, of which {len(events)} are left"
    else:
        return events
    raise Refused(
        ErrorSubType.HISTORY_INCOMPLETE,
        f"process {process.process_id!r} ({process.process_execution_id}) {why}; it cannot be reset, only started anew",
        process.process_execution_id,
    )


def _find_point(request: ResetRequest, process: ProcessExecution, events: Sequence[HistoryEvent]) -> int:
    """Give how many events the point comes after: all of whole changes.

    Raises:
        Refused: INVALID_REQUEST, the point is not named; RESET_POINT_NOT_FOUND, there is no such point.
    """
    _check_names(request)
    event_id = _find_event(request, events)
    if event_id is None or event_id > len(events):
        raise _no_point(request, process, _what_there_is(request, events))
    while event_id < len(events) and events[event_id].cause_id is not None:
        event_id += 1
    return event_id


def _check_names(request: ResetRequest) -> None:
    needed = {
        ResetType.BEGINNING: set[str](),
        ResetType.STATE_ID: {"state_id"},
        ResetType.STATE_EXECUTION_ID: {"state_id", "number"},
        ResetType.TIME: {"at_ms"},
        ResetType.EVENT_ID: {"event_id"},
    }[request.reset_type]
    given = {name for name in ("state_id", "number", "at_ms", "event_id") if getattr(request, name) is not None}
    if given != needed:
        raise Refused(
            ErrorSubType.INVALID_REQUEST,
            f"a reset of type {request.reset_type} needs {sorted(needed) or 'no name of a point'}, "
            f"but {sorted(given) or 'none'} is given",
        )


def _find_event(request: ResetRequest, events: Sequence[HistoryEvent]) -> int | None:
    match request.reset_type:
        case ResetType.BEGINNING:
            return 1
        case ResetType.EVENT_ID:
            return request.event_id
        case ResetType.TIME:
            until_ms = request.at_ms or 0
            return next((event.event_id for event in reversed(events) if event.at_ms <= until_ms), None)
        case ResetType.STATE_ID | ResetType.STATE_EXECUTION_ID:
            return next((event.event_id for event in events if _schedules(event, request)), None)
        case _:
            assert_never(request.reset_type)


def _schedules(event: HistoryEvent, request: ResetRequest) -> bool:
    if event.event_type is not HistoryEventType.STATE_SCHEDULED:
        return False
    state_id, _, number = data_of(event)["stateExecutionId"].rpartition("-")
    return state_id == request.state_id and request.number in (None, int(number))


def _what_there_is(request: ResetRequest, events: Sequence[HistoryEvent]) -> str:
    """Say which points there are of the kind that was asked for; of many states, the first few."""
    if request.reset_type is ResetType.TIME:
        return f"its history begins at {_instant(events[0].at_ms)}"
    if request.reset_type not in (ResetType.STATE_ID, ResetType.STATE_EXECUTION_ID):
        return f"its history has {len(events)} events"
    scheduled = Counter(
        data_of(event)["stateExecutionId"].rpartition("-")[0]
        for event in events
        if event.event_type is HistoryEventType.STATE_SCHEDULED
    )
    if not scheduled:
        return "its history has no states"
    named = [f"{state_id}-1" if count == 1 else f"{state_id}-1 to -{count}" for state_id, count in scheduled.items()]
    more = f" and {len(named) - _MAX_NAMED_STATES} more states" if len(named) > _MAX_NAMED_STATES else ""
    return f"its history has {', '.join(named[:_MAX_NAMED_STATES])}{more}"


def _instant(epoch_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=epoch_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _no_point(request: ResetRequest, process: ProcessExecution, why: str) -> Refused:
    point = {
        ResetType.BEGINNING: "beginning",
        ResetType.STATE_ID: f"execution of state {request.state_id!r}",
        ResetType.STATE_EXECUTION_ID: f"state execution {request.state_id}-{request.number}",
        ResetType.TIME: f"change at or before {_instant(request.at_ms or 0)}",
        ResetType.EVENT_ID: f"event {request.event_id}",
    }[request.reset_type]
    return Refused(
        ErrorSubType.RESET_POINT_NOT_FOUND,
        f"process {process.process_id!r} ({process.process_execution_id}) has no {point} to go on from: {why}",
        process.process_execution_id,
    )


def _new_process(base: ProcessExecution, process_execution_id: str, now_ms: int) -> ProcessExecution:
    """Give the row of the new execution as a start would make it: with a timeout of its own, of the same length."""
    timeout_at_ms = None if base.timeout_at_ms is None else now_ms + base.timeout_at_ms - base.started_at_ms
    return ProcessExecution(
        process_execution_id=process_execution_id,
        namespace=base.namespace,
        process_id=base.process_id,
        process_type=base.process_type,
        worker_url=base.worker_url,
        started_at_ms=now_ms,
        object_id=base.object_id,
        tables=base.tables,
        timeout_at_ms=timeout_at_ms,
        shard_id=base.shard_id,
        create_request_id=base.create_request_id,
        trace_context=base.trace_context,
    )


def _leave(edit: Edit, request: ResetRequest, new_id: str, event_id: int) -> None:
    """Tell the base's history what goes on from it, and end the base if it runs."""
    edit.record(HistoryEventType.RESET, successor=new_id, event_id=event_id, reason=request.reason)
    if edit.process.is_running:
        close(edit, ProcessStatus.TERMINATED, reason="reset" if request.reason is None else f"reset: {request.reason}")


def _write(edit: Edit, past: Past, events: Sequence[HistoryEvent]) -> None:
    """Write everything that the new execution has of the base."""
    process, changes = edit.process, edit.changes
    process_execution_id = process.process_execution_id
    changes.new_processes[process_execution_id] = process
    changes.new_states |= past.execution.states
    for messages in past.execution.queues.values():
        for message in messages:
            changes.add_message(message)
    for message in past.claimed:
        changes.claimed_messages[process_execution_id, message.sequence_id] = message
    write_local_attributes(edit, past.local_attributes)
    if process.timeout_at_ms is not None:
        changes.set_timer(Timer(TimerKey.of_timeout(process_execution_id), process.timeout_at_ms, process.shard_id))
    changes.history += [event._replace(process_execution_id=process_execution_id) for event in events]
    process.next_event_id = len(events) + 1
    process.history_bytes = sum(len(event.data.encode()) for event in events if event.data is not None)


def _apply_again(
    edit: Edit, request: ResetRequest, events: Sequence[HistoryEvent], rows: Iterable[StateExecution]
) -> None:
    """Apply what came from outside: messages of clients, what they and RPCs wrote, and the states of RPCs.

    Ends that RPCs decided are not: nothing would be left to go on with.
    """
    by_id = {row.key.state_execution_id: row for row in rows}
    for change in changes_of(events):
        first = change[0]
        is_message = first.event_type is HistoryEventType.PUBLISHED and not request.skip_messages
        is_change = first.event_type in (HistoryEventType.RPC_APPLIED, HistoryEventType.ATTRIBUTES_WRITTEN)
        if is_message or (is_change and not request.skip_rpcs):
            again = replace(edit, request_id=first.request_id, cause_id=None)
            for event in change:
                _apply_event_again(again, event, data_of(event), by_id)


def _apply_event_again(edit: Edit, event: HistoryEvent, data: dict[str, Any], rows: dict[str, StateExecution]) -> None:
    match event.event_type:
        case HistoryEventType.RPC_APPLIED:
            edit.record(event.event_type, rpc_name=data.get("rpcName"), decision=data.get("decision"))
        case HistoryEventType.USER_EVENT:
            edit.record(event.event_type, name=data.get("name"), values=data.get("values"))
        case HistoryEventType.ATTRIBUTES_WRITTEN:
            local_attributes = data.get("localAttributes", {})
            write_local_attributes(edit, local_attributes)
            record_attributes(edit, {}, local_attributes)
        case HistoryEventType.PUBLISHED:
            messages = [
                Message(queue_name=told["queueName"], message_id=told.get("messageId"), payload=told["payload"])
                for told in data["messages"]
            ]
            publish(edit, messages)
            settle_waits(edit, fed={message.queue_name for message in messages})
        case HistoryEventType.STATE_SCHEDULED:
            row = rows[data["stateExecutionId"]]
            create_state(edit, row.state_id, row.input, row.options, wait_for_key=row.wait_for_key)
        case _:
            return
