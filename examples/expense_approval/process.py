"""The process: its data lives with the execution, because no table is mapped."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from pydantic import BaseModel

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    rpc,
)

TIME_TO_ANSWER = timedelta(days=3)
HEAD = "the head of department"


@dataclass(frozen=True)
class Claim:
    """What was spent. The amount is in cents."""

    purpose: str
    amount_cents: int


class Verdict(StrEnum):
    """What an approver says."""

    APPROVED = "approved"
    REJECTED = "rejected"


class Answer(BaseModel):
    """A verdict, and whose it is. A pydantic model, because outputs have no declared type to be written by."""

    approver: str
    verdict: Verdict


class AskState(AsyncState[None]):
    """Wait for an answer, and escalate if there is none in three days."""

    def wait_until(self) -> CommandRequest:
        """Wait for the answer that comes first, or until the time is over."""
        return CommandRequest.for_any_command_completed(
            InternalQueueCommand.by_name(ExpenseApprovalProcess.answers),
            TimerCommand.timer_command_by_duration(TIME_TO_ANSWER, command_id="time to answer"),
        )

    def execute(self, command_results: CommandResults, persistence: Persistence) -> StateDecision:
        """Close with the answer, or let the head of department decide."""
        answers = command_results.values_of(ExpenseApprovalProcess.answers)
        if answers:
            return StateDecision.graceful_complete_process(answers[0])
        persistence.set_data_attribute(ExpenseApprovalProcess.approver, HEAD)
        return StateDecision.single_next_state(AskState)


# [start:process]
class ExpenseApprovalProcess(ObjectProcess):
    """Somebody wants money back."""

    claim = data_attribute(Claim)
    approver = data_attribute(str)
    answers = internal_queue(Answer)

    starting_state = AskState

    @rpc
    def answer(self, answer: Answer, persistence: Persistence, communication: Communication) -> str:
        """Give a verdict; only the approver whose turn it is can."""
        approver = persistence.get_data_attribute(ExpenseApprovalProcess.approver)
        if answer.approver != approver:
            return f"it is for {approver} to answer"
        communication.publish_to_internal_queue(ExpenseApprovalProcess.answers, answer)
        return "thank you"

    @rpc(read_only=True)
    def summary(self, persistence: Persistence) -> str:
        """Say what the claim is about and whose turn it is."""
        claim = persistence.get_data_attribute(ExpenseApprovalProcess.claim)
        approver = persistence.get_data_attribute(ExpenseApprovalProcess.approver)
        return f"{claim.purpose}, {claim.amount_cents / 100:.2f}, waits for {approver}"


# [end:process]
