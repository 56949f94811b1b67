"""How executions are shown to clients (semantics 4.7, 6.2, 6.4)."""

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic_core import from_json

from server_stub.core.model import HistoryEvent, ProcessExecution, StateExecution
from xdb_sdk.protocol import (
    DescribeAnswer,
    GetHistoryAnswer,
    HistoryEventInfo,
    ProcessSummary,
    QueueCommandInfo,
    QueueCommandStatus,
    StateExecutionInfo,
    StateStatus,
    TimerCommandInfo,
    WaitForCompletionAnswer,
    WaitForStateAnswer,
)

_MAX_PAGE_CHARACTERS: Final = 4 * 1024 * 1024
"""How much data a page of a history holds, unless it is a single event."""


def process_summary(process: ProcessExecution) -> ProcessSummary:
    """Show an execution in a list."""
    return ProcessSummary(
        namespace=process.namespace,
        process_id=process.process_id,
        process_execution_id=process.process_execution_id,
        process_type=process.process_type,
        status=process.status,
        is_current=process.is_current,
        started_at_ms=process.started_at_ms,
        closed_at_ms=process.closed_at_ms,
    )


def history_answer(process: ProcessExecution, events: Sequence[HistoryEvent], *, page_size: int) -> GetHistoryAnswer:
    """Show a page of a history; `events` has one more than fit on it if there are more."""
    shown: list[HistoryEventInfo] = []
    size = 0
    for event in events[:page_size]:
        size += len(event.data or "")
        if shown and size > _MAX_PAGE_CHARACTERS:
            break
        shown.append(_event_info(event))
    return GetHistoryAnswer(
        process_execution_id=process.process_execution_id,
        has_history=process.next_event_id > 0,
        events=tuple(shown),
        has_more=len(shown) < len(events),
    )


def _event_info(event: HistoryEvent) -> HistoryEventInfo:
    return HistoryEventInfo(
        event_id=event.event_id,
        at_ms=event.at_ms,
        event_type=event.event_type,
        cause_id=event.cause_id,
        request_id=event.request_id,
        data={} if event.data is None else from_json(event.data),
    )


def describe_answer(
    process: ProcessExecution,
    states: Sequence[StateExecution],
    queue_sizes: Mapping[str, int] | None,
    *,
    now_ms: int,
) -> DescribeAnswer:
    """Show an execution in full; `now_ms` tells an attempt that is being made from one that will be."""
    return DescribeAnswer(
        **dict(process_summary(process)),
        worker_url=process.worker_url,
        object_id=process.object_id,
        table_name=process.tables[0].table_name if process.tables else None,
        timeout_at_ms=process.timeout_at_ms,
        graceful_complete_requested=process.graceful_complete_requested,
        paused_at_ms=process.paused_at_ms,
        reason=process.reason,
        error=process.error,
        outputs=process.outputs,
        states=tuple(_state_info(state, now_ms) for state in states),
        # The states were read later than the process, and may have become more.
        omitted_states=max(0, sum(process.state_counters.values()) - len(states)),
        queue_sizes=queue_sizes,
    )


def _state_info(state: StateExecution, now_ms: int) -> StateExecutionInfo:
    due_at_ms = state.due_at_ms
    is_due = due_at_ms is not None and due_at_ms <= now_ms
    return StateExecutionInfo(
        state_id=state.state_id,
        number=state.number,
        status=state.status,
        wait_until_status=state.wait_until_status,
        execute_status=state.execute_status,
        attempt=state.attempt,
        created_at_ms=state.created_at_ms,
        closed_at_ms=state.closed_at_ms,
        running_since_ms=due_at_ms if is_due else None,
        next_attempt_at_ms=None if is_due else due_at_ms,
        held_due_at_ms=state.held_due_at_ms,
        retry_policy=state.retry_policy if state.is_open else None,
        last_failure=state.last_failure,
        timers=_timer_infos(state),
        queue_commands=_queue_command_infos(state),
    )


def _timer_infos(state: StateExecution) -> tuple[TimerCommandInfo, ...]:
    wait = state.wait
    if wait is None:
        return ()
    return tuple(
        TimerCommandInfo(command_id=timer.command_id, fire_at_ms=timer.fire_at_ms or 0, status=status)
        for timer, status in zip(wait.commands.timer_commands, wait.timer_statuses, strict=True)
    )


def _queue_command_infos(state: StateExecution) -> tuple[QueueCommandInfo, ...]:
    wait = state.wait
    if wait is None:
        return ()
    return tuple(
        QueueCommandInfo(
            command_id=command.command_id,
            queue_name=command.queue_name,
            status=QueueCommandStatus.WAITING if messages is None else QueueCommandStatus.RECEIVED,
            received=len(messages or ()),
            at_least=command.count if command.at_least is None else command.at_least,
            at_most=command.count if command.at_most is None else command.at_most,
        )
        for command, messages in zip(wait.commands.internal_queue_commands, wait.received, strict=True)
    )


def wait_answer(process: ProcessExecution, *, server_stopping: bool) -> WaitForCompletionAnswer:
    """Answer a wait for completion: closed, out of time, or cut short by the end of this server."""
    return WaitForCompletionAnswer(
        process_execution_id=process.process_execution_id,
        timeout=process.is_running and not server_stopping,
        server_stopping=process.is_running and server_stopping,
        status=process.status,
        outputs=process.outputs,
        reason=process.reason,
        error=process.error,
    )


def state_answer(
    process: ProcessExecution, state: StateExecution | None, *, server_stopping: bool
) -> WaitForStateAnswer:
    """Answer a wait for a state execution; without one in a closed process there is no state status."""
    goes_on = process.is_running and (state is None or state.status is StateStatus.RUNNING)
    return WaitForStateAnswer(
        process_execution_id=process.process_execution_id,
        timeout=goes_on and not server_stopping,
        server_stopping=goes_on and server_stopping,
        process_status=process.status,
        state_execution_id=state.key.state_execution_id if state else None,
        state_status=state.status if state else None,
        output=from_json(state.output) if state is not None and state.output is not None else None,
    )
