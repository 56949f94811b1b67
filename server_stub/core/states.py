"""The life of a state execution: created, waiting, triggered, failed (semantics 2)."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from server_stub.core.closing import close, end_state
from server_stub.core.edit import Edit
from server_stub.core.model import JsonText, RememberedSkip, StateExecution, Timer, TimerKey, json_text
from server_stub.core.outcomes import CallFailure
from server_stub.core.retry import next_attempt_at_ms
from server_stub.core.waits import is_satisfied, match_messages, new_wait
from xdb_sdk.protocol import (
    AttemptFailureInfo,
    CommandRequestBody,
    CommandResultsBody,
    ExecuteStatus,
    HistoryEventType,
    MovementBody,
    ProcessErrorInfo,
    ProcessErrorType,
    ProcessStatus,
    RecoverFrom,
    RecoveryConfig,
    StateApi,
    StateOptionsConfig,
    StateStatus,
    TimerStatus,
    WaitUntilStatus,
)

_TOLD_DETAILS: Final = 1_000
"""How much of an error's text the history has."""


class AfterFailure(StrEnum):
    """What follows a failed attempt."""

    RETRY = "RETRY"
    EXECUTE = "EXECUTE"
    """The state goes on to execute without its commands."""
    FAIL = "FAIL"
    """The state fails; another one takes over, or the execution fails."""


def create_state(
    edit: Edit,
    state_id: str,
    input_text: JsonText,
    options: StateOptionsConfig,
    *,
    wait_for_key: str | None = None,
    recover_from: RecoverFrom | None = None,
    delay_ms: int = 0,
) -> StateExecution:
    """Add a state execution to the pending set, its first call due at once or after a delay."""
    process = edit.process
    number = process.state_counters.get(state_id, 0) + 1
    process.state_counters[state_id] = number
    skipped = options.skip_wait_until
    state = StateExecution(
        process_execution_id=process.process_execution_id,
        state_id=state_id,
        number=number,
        created_at_ms=edit.now_ms,
        input=input_text,
        options=options,
        wait_until_status=WaitUntilStatus.SKIPPED if skipped else WaitUntilStatus.RUNNING,
        execute_status=ExecuteStatus.RUNNING if skipped else ExecuteStatus.NOT_STARTED,
        wait_for_key=wait_for_key,
        recover_from=recover_from,
        shard_id=process.shard_id,
    )
    edit.add_state(state)
    edit.record(
        HistoryEventType.STATE_SCHEDULED,
        state_execution_id=state.key.state_execution_id,
        delay_ms=delay_ms or None,
    )
    edit.make_due(state, edit.now_ms + delay_ms)
    return state


def move_to(edit: Edit, movement: MovementBody) -> StateExecution:
    """Create the next state that a decision or an RPC asks for."""
    return create_state(
        edit,
        movement.state_id,
        json_text(movement.input),
        movement.options,
        wait_for_key=movement.wait_for_key,
    )


def register_wait(edit: Edit, state: StateExecution, request: CommandRequestBody) -> None:
    """Let a state wait for its commands. The caller matches messages and timers afterwards."""
    process = edit.process
    state.wait_until_status = WaitUntilStatus.WAITING_COMMANDS_COMPLETED
    state.due_at_ms = state.held_due_at_ms = None
    state.wait = new_wait(request, order=process.next_wait_order, now_ms=edit.now_ms)
    process.next_wait_order += 1
    edit.execution.note_wait(state)
    edit.record(
        HistoryEventType.WAIT_UNTIL_COMPLETED,
        state_execution_id=state.key.state_execution_id,
        commands=state.wait.commands.model_dump(mode="json", by_alias=True, exclude_unset=True),
        state_locals=state.state_locals or None,
    )
    edit.touch_process()
    edit.touch_state(state)


def settle_waits(edit: Edit, *, fed: Iterable[str] = (), registered: StateExecution | None = None) -> None:
    """Give messages to waits, let due timers of a just registered wait fire, and trigger what is satisfied.

    Between transitions no wait can take anything more, so only what this one changes is looked at: waits on the queues
    that it has fed, and the wait that it has registered. Within one transition queue commands are tried before due
    timers (semantics 3.4), and a wait that they satisfy never gets timer rows.
    """
    waiting = edit.execution.waiting_on(fed)
    if registered is not None and registered not in waiting:
        waiting.append(registered)
    for state, command_index, messages in match_messages(edit.execution, waiting):
        edit.touch_state(state)
        for message in messages:
            edit.changes.claim_message(message)
        edit.record(
            HistoryEventType.COMMAND_COMPLETED,
            state_execution_id=state.key.state_execution_id,
            queue_command=command_index,
            sequence_ids=[message.sequence_id for message in messages],
        )
    if registered is not None and registered.wait is not None:
        _apply_remembered_skips(edit, registered)
        _fire_due_timers(edit, registered)
        set_timers(edit, registered)
    for state in waiting:
        if state.wait is not None and is_satisfied(state.wait):
            trigger(edit, state)


def _apply_remembered_skips(edit: Edit, state: StateExecution) -> None:
    process = edit.process
    mine = [skip for skip in process.remembered_skips if (skip.state_id, skip.number) == (state.state_id, state.number)]
    if not mine:
        return
    process.remembered_skips = tuple(skip for skip in process.remembered_skips if skip not in mine)
    edit.touch_process()
    for skip in mine:
        index = timer_index(state, skip)
        if index is not None and state.wait is not None:
            state.wait.timer_statuses[index] = TimerStatus.SKIPPED
            record_timer(edit, state, index, TimerStatus.SKIPPED)


def timer_index(state: StateExecution, skip: RememberedSkip) -> int | None:
    """Find the timer command that a skip names; None when the state waits for no such timer."""
    if state.wait is None:
        return None
    timers = state.wait.commands.timer_commands
    if skip.command_id is not None:
        return next((i for i, timer in enumerate(timers) if timer.command_id == skip.command_id), None)
    index = skip.command_index or 0
    return index if index < len(timers) else None


def _fire_due_timers(edit: Edit, state: StateExecution) -> None:
    wait = state.wait
    if wait is None:
        return
    for index, timer in enumerate(wait.commands.timer_commands):
        if is_satisfied(wait):
            return
        is_due = timer.fire_at_ms is not None and timer.fire_at_ms <= edit.now_ms
        if is_due and wait.timer_statuses[index] is TimerStatus.SCHEDULED:
            wait.timer_statuses[index] = TimerStatus.FIRED
            record_timer(edit, state, index, TimerStatus.FIRED)


def record_timer(edit: Edit, state: StateExecution, command_index: int, status: TimerStatus) -> None:
    """Record that a timer command is complete."""
    edit.record(
        HistoryEventType.COMMAND_COMPLETED,
        state_execution_id=state.key.state_execution_id,
        timer_command=command_index,
        status=status,
    )


def set_timers(edit: Edit, state: StateExecution) -> None:
    wait = state.wait
    if wait is None or is_satisfied(wait):
        return
    for index, timer in enumerate(wait.commands.timer_commands):
        if wait.timer_statuses[index] is TimerStatus.SCHEDULED:
            key = TimerKey(*state.key, index)
            edit.changes.set_timer(Timer(key, timer.fire_at_ms or edit.now_ms, state.shard_id))


def trigger(edit: Edit, state: StateExecution) -> None:
    """End the wait of a state: its execute is due now, with the results as they stand."""
    wait = state.wait
    if wait is None:
        return
    for index, status in enumerate(wait.timer_statuses):
        if status is TimerStatus.SCHEDULED:
            edit.changes.delete_timer(TimerKey(*state.key, index))
    state.wait = None
    _begin_execute(edit, state, wait.results())


def _begin_execute(edit: Edit, state: StateExecution, results: CommandResultsBody) -> None:
    state.wait_until_status = WaitUntilStatus.COMPLETED
    state.execute_status = ExecuteStatus.RUNNING
    state.command_results = results
    state.attempt = 1
    state.first_attempt_at_ms = None
    state.claim_range = 0
    state.last_database_error = None
    edit.make_due(state, edit.now_ms)


def fail_attempt(edit: Edit, state: StateExecution, failure: CallFailure) -> None:
    """Record a failed attempt; schedule the next one, or go the way of exhaustion (semantics 2.5, 2.7)."""
    api = state.api
    if state.first_attempt_at_ms is None:
        state.first_attempt_at_ms = failure.first_attempt_at_ms or edit.now_ms
    state.last_failure = AttemptFailureInfo(
        api=api,
        http_status=failure.http_status,
        error_type=failure.error_type,
        details=failure.details,
        attempt=state.attempt,
        at_ms=edit.now_ms,
    )
    state.last_database_error = failure.database_error
    edit.touch_state(state)
    due_at_ms = next_attempt_at_ms(
        state.retry_policy,
        completed_attempts=state.attempt,
        first_attempt_at_ms=state.first_attempt_at_ms,
        now_ms=edit.now_ms,
    )
    if due_at_ms is None or not failure.retryable:
        _exhaust(edit, state, api, failure)
        return
    if _is_told(state.attempt) and not edit.changes.history_rules.is_full(edit.process):
        _record_failure(edit, state, api, failure, AfterFailure.RETRY)
    state.attempt += 1
    state.claim_range = 0
    edit.make_due(state, due_at_ms)


def _is_told(attempt: int) -> bool:
    """Say whether the history has a failed attempt: 1 to 10, then 20, 30 to 100, then 200, and so on.

    A state that is tried for months would fill the history otherwise.
    """
    return not str(attempt)[1:].strip("0")


def _record_failure(edit: Edit, state: StateExecution, api: StateApi, failure: CallFailure, then: AfterFailure) -> None:
    edit.record(
        HistoryEventType.ATTEMPT_FAILED,
        state_execution_id=state.key.state_execution_id,
        api=api,
        attempt=state.attempt,
        http_status=failure.http_status or None,
        error_type=failure.error_type,
        details=failure.details[:_TOLD_DETAILS],
        then=then,
    )


def _exhaust(edit: Edit, state: StateExecution, api: StateApi, failure: CallFailure) -> None:
    options = state.options
    if api is StateApi.WAIT_UNTIL and options.proceed_to_execute_when_wait_until_retry_exhausted:
        _record_failure(edit, state, api, failure, AfterFailure.EXECUTE)
        _begin_execute(edit, state, CommandResultsBody(wait_until_api_succeeded=False))
        return
    recovery = options.wait_until_recovery if api is StateApi.WAIT_UNTIL else options.execute_recovery
    attempts, state_input = state.attempt, state.input
    _record_failure(edit, state, api, failure, AfterFailure.FAIL)
    end_state(edit, state, StateStatus.FAILED)
    if recovery is not None:
        _recover(edit, state, recovery, api, failure, attempts=attempts, state_input=state_input)
        return
    error = ProcessErrorInfo(
        error_type=ProcessErrorType.STATE_API,
        message=_failure_message(state, api, failure, attempts),
        state_execution_id=state.key.state_execution_id,
        api=api,
        worker_error_type=failure.error_type,
    )
    close(edit, ProcessStatus.FAILED, error=error)


def _recover(
    edit: Edit,
    failed: StateExecution,
    recovery: RecoveryConfig,
    api: StateApi,
    failure: CallFailure,
    *,
    attempts: int,
    state_input: JsonText,
) -> None:
    origin = RecoverFrom(
        state_execution_id=failed.key.state_execution_id,
        api=api,
        error_type=failure.error_type,
        details=failure.details,
        attempts=attempts,
    )
    create_state(edit, recovery.state_id, state_input, recovery.options, recover_from=origin)


def _failure_message(state: StateExecution, api: StateApi, failure: CallFailure, attempts: int) -> str:
    status = f"status {failure.http_status}, " if failure.http_status else ""
    return (
        f"{api.value.lower()} of state execution {state.key.state_execution_id} failed after {attempts} attempt(s): "
        f"{status}{failure.error_type}: {failure.details}"
    )
