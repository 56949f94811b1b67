"""Sends a claim through both approvers: `python -m examples.expense_approval`."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.console import say
from examples.expense_approval.process import HEAD, Answer, AskState, Claim, ExpenseApprovalProcess, Verdict
from examples.expense_approval.worker import app, registry
from examples.support import running
from xdb_sdk import Client, ProcessStartOptions

PROCESS_ID = "claim-42"
LIMIT = timedelta(seconds=30)


def main() -> None:
    """Run server, worker and client on a database that is gone afterwards."""
    with TemporaryDirectory() as directory:
        database = Path(directory) / "claims.db"
        with running(app, database) as options, Client(registry, options) as client:
            claim(client)


def claim(client: Client) -> None:
    """Play the team lead, who is too late, and the head of department."""
    say("a claim is made")
    client.start_process(
        PROCESS_ID,
        ExpenseApprovalProcess,
        options=ProcessStartOptions(
            initial_upsert_data_attributes={
                ExpenseApprovalProcess.claim: Claim(purpose="a keyboard", amount_cents=12_000),
                ExpenseApprovalProcess.approver: "the team lead",
            }
        ),
    )
    say(f"    {client.invoke_rpc(PROCESS_ID, ExpenseApprovalProcess.summary)}")

    say("three days go by, skipped here")
    # [start:skip]
    client.skip_timer(PROCESS_ID, AskState, command_id="time to answer", remember=True)
    client.wait_for_state_completion(PROCESS_ID, AskState, timeout=LIMIT)
    # [end:skip]
    say(f"    {client.invoke_rpc(PROCESS_ID, ExpenseApprovalProcess.summary)}")

    for approver in ("the team lead", HEAD):
        say(f"{approver} answers")
        answer = Answer(approver=approver, verdict=Verdict.APPROVED)
        say(f"    {client.invoke_rpc(PROCESS_ID, ExpenseApprovalProcess.answer, answer)}")

    answer = client.wait_for_process_completion(PROCESS_ID, Answer, timeout=LIMIT)
    say(f"{answer.verdict} by {answer.approver}")


if __name__ == "__main__":
    main()
