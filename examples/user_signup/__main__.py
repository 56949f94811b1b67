"""Signs a user up and says what happens as it happens: `python -m examples.user_signup`."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.console import say
from examples.support import running
from examples.user_signup.model import Form
from examples.user_signup.process import SubmitState, UserSignupProcess, VerifyState
from examples.user_signup.table import create_table, read_row
from examples.user_signup.worker import app, registry
from xdb_sdk import Client, ProcessStartOptions

USER_ID = "anna"
PROCESS_ID = "user-signup-process-" + USER_ID
LIMIT = timedelta(seconds=30)


def main() -> None:
    """Run server, worker and client on a database that is gone afterwards."""
    VerifyState.reminder_interval = timedelta(seconds=2)  # instead of a day
    with TemporaryDirectory() as directory:
        database = Path(directory) / "signup.db"
        create_table(database)
        with running(app, database) as options, Client(registry, options) as client:
            sign_up(client, database)


def sign_up(client: Client, database: Path) -> None:
    """Play Anna, who needs a reminder."""
    say("submitted: Anna sends the form")
    # [start:start]
    form = Form(email="anna@example.com", first_name="Anna", last_name="Berg")
    client.start_object_process(
        PROCESS_ID,
        UserSignupProcess,
        USER_ID,
        options=ProcessStartOptions(
            initial_upsert_data_attributes={
                UserSignupProcess.form: form,
                UserSignupProcess.status: "waiting",
            }
        ),
    )
    # [end:start]
    client.wait_for_state_completion(PROCESS_ID, SubmitState, timeout=LIMIT)
    show_row(database)

    say(f"reminder: {VerifyState.reminder_interval.seconds} seconds go by")
    client.wait_for_state_completion(PROCESS_ID, VerifyState, timeout=LIMIT)
    show_row(database)

    say("verified: Anna follows the link in the email")
    # [start:verify]
    answer = client.invoke_rpc(PROCESS_ID, UserSignupProcess.verify, "email")
    output = client.wait_for_process_completion(PROCESS_ID, str, timeout=LIMIT)
    # [end:verify]
    say(f"    the RPC answered: {answer}")
    show_row(database)

    say(f"{output}: the process is {client.describe_process(PROCESS_ID).status}")
    answer = client.invoke_rpc(PROCESS_ID, UserSignupProcess.verify, "email")
    say(f"    Anna follows the link once more: {answer}")
    show_row(database)


def show_row(database: Path) -> None:
    """Print the row as the application sees it, by plain SQL."""
    row = read_row(database, USER_ID)
    say(f"    row: {', '.join(f'{column}={value}' for column, value in row.items())}")


if __name__ == "__main__":
    main()
