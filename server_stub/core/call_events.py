"""Workers answer, or fail to: wait_until, execute and RPC have returned (semantics 2, 4, 5)."""

from dataclasses import dataclass

from server_stub.core.changes import Changes
from server_stub.core.closing import close, end_state
from server_stub.core.decisions import apply_decision, check_decision, in_short
from server_stub.core.edit import Edit
from server_stub.core.effects import apply_writes, check_writes, has_changed, may_be_changed, publish
from server_stub.core.events import (
    Event,
    need_messages,
    need_published,
    need_queues_of_decision,
    need_read_set,
    need_written,
    require_running,
)
from server_stub.core.history import told_length
from server_stub.core.model import (
    CallKey,
    ProcessExecution,
    ReadSet,
    StateExecution,
)
from server_stub.core.outcomes import CallFailure, FailureKind, StateAnswered, Verdict
from server_stub.core.ports import Loaded, Needs, RowReadFailed, RowWriteFailed, Selection
from server_stub.core.refusals import InvalidAnswer, Refused
from server_stub.core.states import fail_attempt, register_wait, settle_waits
from server_stub.core.waits import check_commands, most_messages
from xdb_sdk.protocol import (
    Effects,
    ErrorSubType,
    ExecuteAnswer,
    ExecuteStatus,
    HistoryEventType,
    ProcessErrorInfo,
    ProcessErrorType,
    ProcessStatus,
    RpcAnswer,
    StateStatus,
    WaitUntilAnswer,
)


@dataclass(frozen=True, slots=True)
class CallReturned(Event[Verdict]):
    """A worker answered one attempt of a state's wait_until or execute, or the attempt failed."""

    is_repeatable = True

    key: CallKey
    outcome: StateAnswered | CallFailure

    def select(self, selection: Selection) -> None:
        selection.execution_ids.add(self.key.state.process_execution_id)
        if isinstance(self.outcome, StateAnswered) and (self.outcome.read_set or self.outcome.answer.write_tables):
            selection.touches_rows = True

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        execution = loaded.executions.get(self.key.state.process_execution_id)
        if execution is None or isinstance(self.outcome, CallFailure):
            return
        answer = self.outcome.answer
        need_published(needs, execution, answer.publish)
        need_read_set(needs, self.outcome.read_set)
        need_written(needs, execution, answer.write_tables)
        if isinstance(answer, WaitUntilAnswer):
            for queue_name, count in most_messages(answer.command_request).items():
                need_messages(needs, execution, queue_name, count)
        else:
            need_queues_of_decision(needs, execution, answer.state_decision)

    def must_wait(self, loaded: Loaded, changes: Changes) -> bool:
        return isinstance(self.outcome, StateAnswered) and may_be_changed(self.outcome.read_set, loaded, changes)

    def on_store_error(self, error: Exception) -> Event[Verdict] | None:
        if self.outcome is _NOT_APPLICABLE:
            return None
        failure = _NOT_APPLICABLE
        if isinstance(error, RowWriteFailed | RowReadFailed):
            kind = FailureKind.DATABASE_WRITE if isinstance(error, RowWriteFailed) else FailureKind.DATABASE_READ
            failure = CallFailure(kind, f"APP_{kind.value}_ERROR", str(error), database_error=error.error)
        return CallReturned(self.key, failure)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> Verdict:
        execution = loaded.executions.get(self.key.state.process_execution_id)
        state = execution.states.get(self.key.state) if execution else None
        if execution is None or state is None or not execution.process.is_running or state.call_key != self.key:
            return Verdict.OBSOLETE
        edit = Edit(execution, changes, now_ms)
        if isinstance(self.outcome, CallFailure):
            fail_attempt(edit, state, self.outcome)
            return Verdict.APPLIED
        if has_changed(self.outcome.read_set, loaded, edit):
            return Verdict.READ_SET_CHANGED
        answer = self.outcome.answer
        try:
            _check_answer(execution.process, answer)
        except InvalidAnswer as error:
            fail_attempt(edit, state, invalid_response(str(error)))
            return Verdict.APPLIED
        if isinstance(answer, WaitUntilAnswer):
            _wait_until_returned(edit, state, answer)
        else:
            _execute_returned(edit, state, answer)
        _end_if_full(edit)
        return Verdict.APPLIED


@dataclass(frozen=True, slots=True)
class CallFound(Event[None]):
    """A due call was found that this server has not claimed: the shard was another server's, or nobody's.

    The commit claims it, if the shard is this server's still; what another server makes of it meanwhile counts. The
    same event gives a call back: of a shard that is not this server's any more, nobody has claimed the call then.
    """

    is_repeatable = True

    key: CallKey

    def select(self, selection: Selection) -> None:
        selection.execution_ids.add(self.key.state.process_execution_id)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> None:
        execution = loaded.executions.get(self.key.state.process_execution_id)
        state = execution.states.get(self.key.state) if execution else None
        if execution is None or state is None or not execution.process.is_running or state.call_key != self.key:
            return
        state.claim_range = 0
        changes.touch_state(state)


_NOT_APPLICABLE = CallFailure(
    FailureKind.INTERNAL, FailureKind.INTERNAL.value, "the server could not apply the answer; its log says why"
)


def invalid_response(details: str) -> CallFailure:
    """Give the failure of an attempt whose answer breaks the rules."""
    return CallFailure(FailureKind.INVALID_RESPONSE, FailureKind.INVALID_RESPONSE.value, details, http_status=200)


def _check_answer(process: ProcessExecution, answer: WaitUntilAnswer | ExecuteAnswer) -> None:
    check_writes(process.tables, answer.write_tables)
    if isinstance(answer, WaitUntilAnswer):
        check_commands(answer.command_request)
    else:
        check_decision(answer.state_decision, is_required=True)


def _wait_until_returned(edit: Edit, state: StateExecution, answer: WaitUntilAnswer) -> None:
    state.state_locals = {**state.state_locals, **answer.state_locals}
    register_wait(edit, state, answer.command_request)
    apply_writes(edit, answer)
    publish(edit, answer.publish)
    settle_waits(edit, fed=_queues_of(answer), registered=state)


def _execute_returned(edit: Edit, state: StateExecution, answer: ExecuteAnswer) -> None:
    edit.record(
        HistoryEventType.STATE_EXECUTED,
        state_execution_id=state.key.state_execution_id,
        decision=in_short(answer.state_decision),
    )
    apply_writes(edit, answer)
    state.execute_status = ExecuteStatus.COMPLETED
    end_state(edit, state, StateStatus.COMPLETED)
    publish(edit, answer.publish)
    apply_decision(edit, answer.state_decision, state)
    if edit.process.is_running:
        settle_waits(edit, fed=_queues_of(answer))


def _end_if_full(edit: Edit) -> None:
    """Fail an execution whose history has no room for another step: it would go on without a trace, or not at all."""
    process = edit.process
    if process.is_running and edit.changes.history_rules.is_full(process):
        error = ProcessErrorInfo(
            error_type=ProcessErrorType.HISTORY_LIMIT, message=f"{told_length(process)}, which is full"
        )
        close(edit, ProcessStatus.FAILED, error=error)


def _queues_of(effects: Effects) -> set[str]:
    return {message.queue_name for message in effects.publish}


@dataclass(frozen=True, slots=True)
class RpcReturned(Event[Verdict]):
    """A worker answered an RPC with changes to make (semantics 5). An RPC that changes nothing is no event."""

    process_execution_id: str
    answer: RpcAnswer
    read_set: ReadSet | None = None
    rpc_name: str = ""
    request_id: str | None = None

    def select(self, selection: Selection) -> None:
        selection.execution_ids.add(self.process_execution_id)
        if self.read_set or self.answer.write_tables:
            selection.touches_rows = True

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        execution = loaded.executions.get(self.process_execution_id)
        if execution is None:
            return
        need_published(needs, execution, self.answer.publish)
        need_read_set(needs, self.read_set)
        need_written(needs, execution, self.answer.write_tables)
        need_queues_of_decision(needs, execution, self.answer.state_decision)

    def must_wait(self, loaded: Loaded, changes: Changes) -> bool:
        return may_be_changed(self.read_set, loaded, changes)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> Verdict:
        execution = loaded.executions[self.process_execution_id]
        require_running(execution.process)
        changes.history_rules.require_room(execution.process)
        edit = Edit(execution, changes, now_ms, self.request_id)
        try:
            check_writes(execution.process.tables, self.answer.write_tables)
            check_decision(self.answer.state_decision, is_required=False)
        except InvalidAnswer as error:
            raise Refused(ErrorSubType.INVALID_WORKER_RESPONSE, str(error), self.process_execution_id) from error
        if has_changed(self.read_set, loaded, edit):
            return Verdict.READ_SET_CHANGED
        decision = self.answer.state_decision
        edit.record(HistoryEventType.RPC_APPLIED, rpc_name=self.rpc_name, decision=in_short(decision))
        apply_writes(edit, self.answer)
        publish(edit, self.answer.publish)
        apply_decision(edit, decision, None)
        if execution.process.is_running:
            settle_waits(edit, fed=_queues_of(self.answer))
        return Verdict.APPLIED
