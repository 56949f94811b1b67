"""Operators mend, hold and move running executions (semantics 3.6; idempotency-and-shards D.10).

Whatever they change stands in the history of the execution, with their reason and the id of their request.

While an execution is paused its calls are not due: what `due_at_ms` would say is kept in `held_due_at_ms`, so that
nothing that looks for due calls finds them.
"""

from dataclasses import dataclass

from server_stub.core.changes import Changes
from server_stub.core.closing import end_state
from server_stub.core.decisions import apply_decision, check_decision, in_short
from server_stub.core.edit import Edit
from server_stub.core.events import (
    Event,
    client_edit,
    find_target,
    need_queues_of_decision,
    select_target,
)
from server_stub.core.holding import pause
from server_stub.core.model import (
    ProcessExecution,
    RememberedSkip,
    StateExecution,
    StateKey,
    Timer,
    TimerKey,
)
from server_stub.core.ports import Loaded, Needs, Selection
from server_stub.core.refusals import InvalidAnswer, Refused
from server_stub.core.states import timer_index
from server_stub.core.timer_events import complete_timer
from xdb_sdk.protocol import (
    CompleteStateAnswer,
    CompleteStateRequest,
    DoneAnswer,
    ErrorSubType,
    ExecuteStatus,
    HistoryEventType,
    PauseAnswer,
    PauseRequest,
    ReplaceWorkerUrlRequest,
    ResumeRequest,
    RetryStateRequest,
    SkipTimerRequest,
    StateApi,
    StateRequest,
    StateStatus,
    TimerStatus,
    UpdateConfigRequest,
    WaitUntilStatus,
)

MAX_REMEMBERED_SKIPS = 1_000


def _open_state(edit: Edit, request: StateRequest) -> StateExecution:
    """Give the open state execution that a request is about.

    Raises:
        Refused: STATE_NOT_FOUND, or STATE_NOT_RUNNING.
    """
    process = edit.process
    state = edit.execution.states.get(StateKey(process.process_execution_id, request.state_id, request.number))
    if state is not None and state.is_open:
        return state
    name = f"state execution {request.state_id}-{request.number} of process {process.process_id!r}"
    count = process.state_counters.get(request.state_id, 0)
    if request.number <= count:
        raise Refused(
            ErrorSubType.STATE_NOT_RUNNING, f"{name} has ended; nothing was changed", process.process_execution_id
        )
    raise Refused(
        ErrorSubType.STATE_NOT_FOUND,
        f"there is no {name}: state {request.state_id!r} has been entered {count} time(s)",
        process.process_execution_id,
    )


@dataclass(frozen=True, slots=True)
class PauseProcess(Event[PauseAnswer]):
    """No call of the states of an execution is made any more; what workers are doing may return, and is applied."""

    request: PauseRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> PauseAnswer:
        edit = client_edit(loaded, changes, now_ms, self.request, self.request.request_id)
        process = edit.process
        if process.paused_at_ms is not None:
            return PauseAnswer(process_execution_id=process.process_execution_id, changed=False)
        pause(edit, self.request.reason)
        changes.withdrawn.add(process.process_execution_id)
        return PauseAnswer(process_execution_id=process.process_execution_id)


@dataclass(frozen=True, slots=True)
class ResumeProcess(Event[PauseAnswer]):
    """The calls of a paused execution are due again, as they were or have become meanwhile."""

    request: ResumeRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> PauseAnswer:
        edit = client_edit(loaded, changes, now_ms, self.request, self.request.request_id)
        process = edit.process
        if process.paused_at_ms is None:
            return PauseAnswer(process_execution_id=process.process_execution_id, changed=False)
        process.paused_at_ms = None
        edit.touch_process()
        edit.record(HistoryEventType.RESUMED, reason=self.request.reason)
        for state in edit.execution.open_states():
            if state.held_due_at_ms is not None:
                edit.make_due(state, state.held_due_at_ms)
                state.claim_range = 0
        return PauseAnswer(process_execution_id=process.process_execution_id)


@dataclass(frozen=True, slots=True)
class RetryState(Event[DoneAnswer]):
    """The next call of a state, which waits for its time, is made now; of a paused execution once it is resumed."""

    request: RetryStateRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> DoneAnswer:
        edit = client_edit(loaded, changes, now_ms, self.request, self.request.request_id)
        state = _open_state(edit, self.request)
        planned_at_ms = state.planned_at_ms
        if planned_at_ms is None or planned_at_ms <= now_ms:
            does = "waits for its commands" if planned_at_ms is None else "is being called, or will be in a moment"
            raise Refused(
                ErrorSubType.STATE_NOT_BACKING_OFF,
                f"state execution {state.key.state_execution_id} of process {edit.process.process_id!r} {does}; "
                "only one that waits for its next attempt can be retried",
                edit.process.process_execution_id,
            )
        edit.record(
            HistoryEventType.STATE_RETRIED,
            state_execution_id=state.key.state_execution_id,
            attempt=state.attempt,
            reset_attempts=self.request.reset_attempts or None,
            reason=self.request.reason,
        )
        if self.request.reset_attempts:
            state.attempt = 1
            state.first_attempt_at_ms = None
        edit.make_due(state, now_ms)
        state.claim_range = 0
        return DoneAnswer(process_execution_id=edit.process.process_execution_id)


@dataclass(frozen=True, slots=True)
class CompleteState(Event[CompleteStateAnswer]):
    """A state execution ends as if its execute had returned a decision; the answer to a call in flight is too late."""

    request: CompleteStateRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        execution = find_target(loaded, self.request)
        if execution is not None:
            need_queues_of_decision(needs, execution, self.request.decision)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> CompleteStateAnswer:
        edit = client_edit(loaded, changes, now_ms, self.request, self.request.request_id)
        state = _open_state(edit, self.request)
        decision = self.request.decision
        process_execution_id = edit.process.process_execution_id
        try:
            check_decision(decision, is_required=True)
        except InvalidAnswer as error:
            raise Refused(ErrorSubType.INVALID_REQUEST, str(error), process_execution_id) from error
        edit.record(
            HistoryEventType.STATE_COMPLETED_BY_OPERATOR,
            state_execution_id=state.key.state_execution_id,
            decision=in_short(decision),
            reason=self.request.reason,
        )
        if state.wait is not None:
            for index, _ in enumerate(state.wait.commands.timer_commands):
                changes.delete_timer(TimerKey(*state.key, index))
        if state.wait_until_status is not WaitUntilStatus.SKIPPED:
            state.wait_until_status = WaitUntilStatus.COMPLETED
        state.execute_status = ExecuteStatus.COMPLETED
        end_state(edit, state, StateStatus.COMPLETED)
        changes.withdrawn.add(process_execution_id)
        apply_decision(edit, decision, state)
        return CompleteStateAnswer(process_execution_id=process_execution_id, status=edit.process.status)


@dataclass(frozen=True, slots=True)
class SkipTimer(Event[DoneAnswer]):
    """A client completes a timer command before its time (semantics 3.6)."""

    request: SkipTimerRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> DoneAnswer:
        request = self.request
        edit = client_edit(loaded, changes, now_ms, request, request.request_id)
        process = edit.process
        skip = RememberedSkip(request.state_id, request.number, request.command_id, request.index)
        state = edit.execution.states.get(StateKey(process.process_execution_id, request.state_id, request.number))
        index = timer_index(state, skip) if state is not None else None
        if state is not None and state.wait is not None and index is not None:
            if state.wait.timer_statuses[index] is TimerStatus.SCHEDULED:
                self._record(edit)
            complete_timer(edit, state, index, TimerStatus.SKIPPED)
        elif request.remember and self._may_still_wait(process, state):
            self._remember(edit, skip)
        else:
            raise self._not_found(process)
        return DoneAnswer(process_execution_id=process.process_execution_id)

    def _record(self, edit: Edit) -> None:
        request = self.request
        edit.record(
            HistoryEventType.TIMER_SKIPPED,
            state_execution_id=f"{request.state_id}-{request.number}",
            command_id=request.command_id,
            index=request.index,
            reason=request.reason,
        )

    def _remember(self, edit: Edit, skip: RememberedSkip) -> None:
        process = edit.process
        if skip in process.remembered_skips:
            return
        if len(process.remembered_skips) >= MAX_REMEMBERED_SKIPS:
            raise Refused(
                ErrorSubType.INVALID_REQUEST,
                f"process {process.process_id!r} has {MAX_REMEMBERED_SKIPS} timer skips to remember already; "
                "skip a timer once its state waits for it",
                process.process_execution_id,
            )
        process.remembered_skips = (*process.remembered_skips, skip)
        edit.touch_process()
        self._record(edit)

    def _may_still_wait(self, process: ProcessExecution, state: StateExecution | None) -> bool:
        """Say whether the state execution has not come to its wait: not created, or in wait_until."""
        if state is None:
            return self.request.number > process.state_counters.get(self.request.state_id, 0)
        return state.is_open and state.api is StateApi.WAIT_UNTIL

    def _not_found(self, process: ProcessExecution) -> Refused:
        request = self.request
        name = f"command id {request.command_id!r}" if request.command_id else f"index {request.index or 0}"
        return Refused(
            ErrorSubType.TIMER_NOT_FOUND,
            f"state execution {request.state_id}-{request.number} of process {request.process_id!r} does not wait for "
            f"a timer command with {name}; use remember to skip it once it does",
            process.process_execution_id,
        )


@dataclass(frozen=True, slots=True)
class UpdateConfig(Event[DoneAnswer]):
    """A client changes the worker URL or the timeout of a running execution; what is absent stays."""

    request: UpdateConfigRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> DoneAnswer:
        request = self.request
        edit = client_edit(loaded, changes, now_ms, request, request.request_id)
        if request.worker_url is not None or request.timeout_ms is not None:
            edit.record(
                HistoryEventType.CONFIG_UPDATED,
                worker_url=request.worker_url,
                timeout_ms=request.timeout_ms,
                reason=request.reason,
            )
        if request.worker_url is not None:
            _set_worker_url(edit, request.worker_url)
        if request.timeout_ms is not None:
            _set_timeout(edit, request.timeout_ms)
        edit.touch_process()
        return DoneAnswer(process_execution_id=edit.process.process_execution_id)


@dataclass(frozen=True, slots=True)
class ReplaceWorkerUrl(Event[bool]):
    """One of many executions gets another worker URL; says whether it has changed.

    One that has closed, or has got a URL meanwhile that is not to be replaced, stays as it is.
    """

    is_repeatable = True

    process_execution_id: str
    request: ReplaceWorkerUrlRequest

    def select(self, selection: Selection) -> None:
        selection.execution_ids.add(self.process_execution_id)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> bool:
        execution = loaded.executions.get(self.process_execution_id)
        if execution is None or not execution.process.is_running or not is_replaced(execution.process, self.request):
            return False
        edit = Edit(execution, changes, now_ms, request_id=self.request.request_id)
        edit.record(HistoryEventType.CONFIG_UPDATED, worker_url=self.request.new_worker_url, reason=self.request.reason)
        _set_worker_url(edit, self.request.new_worker_url)
        return True


def is_replaced(process: ProcessExecution, request: ReplaceWorkerUrlRequest) -> bool:
    """Say whether an execution has a worker URL that a request replaces."""
    old = process.worker_url
    return old != request.new_worker_url and request.old_worker_url in (None, old)


def _set_worker_url(edit: Edit, worker_url: str) -> None:
    """Have the next calls made at another worker, at once those that wait after a failed attempt."""
    edit.process.worker_url = worker_url
    edit.touch_process()
    for state in edit.execution.open_states():
        planned_at_ms = state.planned_at_ms
        if planned_at_ms is None:
            continue
        if state.attempt > 1 and planned_at_ms > edit.now_ms:
            edit.make_due(state, edit.now_ms)
        if state.due_at_ms is not None:
            state.claim_range = 0
            edit.touch_state(state)  # so that its call is handed over anew, with the new URL


def _set_timeout(edit: Edit, timeout_ms: int) -> None:
    process = edit.process
    key = TimerKey.of_timeout(process.process_execution_id)
    if timeout_ms == 0:
        process.timeout_at_ms = None
        edit.changes.delete_timer(key)
        return
    process.timeout_at_ms = process.started_at_ms + timeout_ms
    edit.changes.set_timer(Timer(key, process.timeout_at_ms, process.shard_id))
