"""What execute or an RPC decides: next states, or an end (semantics 4)."""

from server_stub.core.closing import add_output, close, close_if_nothing_is_left
from server_stub.core.edit import Edit
from server_stub.core.model import StateExecution, Wait
from server_stub.core.refusals import InvalidAnswer
from server_stub.core.states import move_to
from xdb_sdk.protocol import (
    CloseType,
    ConditionalClose,
    HistoryEventType,
    ProcessErrorInfo,
    ProcessErrorType,
    ProcessStatus,
    StateDecisionBody,
    ThreadCloseDecision,
)


def check_decision(decision: StateDecisionBody, *, is_required: bool) -> None:
    """Refuse a decision that says nothing, or two things at once (semantics 4.1).

    Raises:
        InvalidAnswer: Names what is given.
    """
    given = [
        name
        for name, value in (
            ("nextStates", decision.next_states),
            ("threadCloseDecision", decision.thread_close_decision),
            ("conditionalClose", decision.conditional_close),
        )
        if value
    ]
    if is_required and not given:
        raise InvalidAnswer("the decision must not be empty; a state that has nothing to do next returns a dead end")
    if len(given) > 1:
        raise InvalidAnswer(f"a decision is one of next states, a close and a conditional close, not {given}")


def apply_decision(edit: Edit, decision: StateDecisionBody, decider: StateExecution | None) -> None:
    """Carry out a checked decision, after the deciding state has left the pending set and its messages are queued.

    Args:
        decider: The deciding state execution; None for an RPC.
    """
    was_requested = edit.process.graceful_complete_requested
    if decision.thread_close_decision is not None:
        _end_thread(edit, decision.thread_close_decision, decider)
    elif decision.conditional_close is not None:
        _end_if_empty(edit, decision.conditional_close, decider)
    for movement in decision.next_states:
        move_to(edit, movement)
    if decider is not None or decision.thread_close_decision is not None or decision.conditional_close is not None:
        close_if_nothing_is_left(edit)
    if edit.process.is_running and edit.process.graceful_complete_requested and not was_requested:
        edit.record(HistoryEventType.COMPLETION_REQUESTED)


def in_short(decision: StateDecisionBody) -> str | None:
    """Say in a word what a decision is, for the history; None for one that says nothing."""
    if decision.thread_close_decision is not None:
        return decision.thread_close_decision.close_type
    if decision.conditional_close is not None:
        return "CONDITIONAL_CLOSE"
    return "NEXT_STATES" if decision.next_states else None


def _end_thread(edit: Edit, decision: ThreadCloseDecision, decider: StateExecution | None) -> None:
    add_output(edit, decider, decision.close_output)
    match decision.close_type:
        case CloseType.DEAD_END:
            return
        case CloseType.GRACEFUL_COMPLETE_PROCESS:
            edit.process.graceful_complete_requested = True
            edit.touch_process()
        case CloseType.FORCE_COMPLETE_PROCESS:
            close(edit, ProcessStatus.COMPLETED)
        case CloseType.FORCE_FAIL_PROCESS:
            error = ProcessErrorInfo(
                error_type=ProcessErrorType.STATE_DECISION,
                message=decision.message or "the process decided to fail",
                state_execution_id=decider.key.state_execution_id if decider else None,
            )
            close(edit, ProcessStatus.FAILED, error=error)


def _end_if_empty(edit: Edit, conditional: ConditionalClose, decider: StateExecution | None) -> None:
    if any(_holds_messages(edit, queue_name) for queue_name in conditional.queue_names):
        for movement in conditional.next_states:
            move_to(edit, movement)
        return
    end = ThreadCloseDecision(close_type=conditional.close_type, close_output=conditional.close_output)
    _end_thread(edit, end, decider)


def _holds_messages(edit: Edit, queue_name: str) -> bool:
    """Say whether a queue has messages that no execute has been given: unclaimed, or held by a wait that goes on."""
    if edit.execution.queues.get(queue_name):
        return True
    return any(_has_claimed(state.wait, queue_name) for state in edit.execution.open_states())


def _has_claimed(wait: Wait | None, queue_name: str) -> bool:
    if wait is None:
        return False
    return any(
        command.queue_name == queue_name and messages
        for command, messages in zip(wait.commands.internal_queue_commands, wait.received, strict=True)
    )
