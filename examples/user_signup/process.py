"""The process: its states, its data and its queue, declared on the class."""

from datetime import timedelta
from typing import ClassVar

from examples.user_signup.mail import send_email
from examples.user_signup.model import Form
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    QueueCommandStatus,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
)


# [start:submit]
class SubmitState(AsyncState[None]):
    """Ask the user to verify the email address."""

    def execute(self, persistence: Persistence) -> StateDecision:
        """Send the first email and wait."""
        form = persistence.get_data_attribute(UserSignupProcess.form)
        send_email(form.email, "verify")
        return StateDecision.single_next_state(VerifyState)


# [end:submit]
# [start:verify]
class VerifyState(AsyncState[None]):
    """Wait until the user verifies, and remind at intervals."""

    reminder_interval: ClassVar[timedelta] = timedelta(hours=24)

    def wait_until(self) -> CommandRequest:
        """Wait for a message of the RPC, or for the next reminder to be due."""
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(self.reminder_interval),
            InternalQueueCommand.by_name(UserSignupProcess.verify_queue),
        )

    def execute(self, command_results: CommandResults, persistence: Persistence) -> StateDecision:
        """Welcome the user, or remind and wait again."""
        form = persistence.get_data_attribute(UserSignupProcess.form)
        if command_results.internal_queue_commands[0].status == QueueCommandStatus.RECEIVED:
            send_email(form.email, "welcome")
            return StateDecision.graceful_complete_process("done")
        send_email(form.email, "reminder")
        return StateDecision.single_next_state(VerifyState)


# [end:verify]
# [start:process]
@process(table_name="user_sign_up", primary_key="user_id", primary_key_type=str)
class UserSignupProcess(ObjectProcess):
    """A user signs up; each execution is mapped to the user's row of `user_sign_up`."""

    form = data_attribute(Form)
    status = data_attribute(str)
    source = data_attribute(str)
    verify_queue = internal_queue(None, name="verify")

    starting_state = SubmitState
    states = (VerifyState,)

    # [start:rpc]
    @rpc
    def verify(self, source: str, persistence: Persistence, communication: Communication) -> str:
        """Note that the user has verified the address, through `source`, and wake the process."""
        if persistence.get_data_attribute(UserSignupProcess.status) == "verified":
            return "already verified"
        persistence.set_data_attribute(UserSignupProcess.status, "verified")
        persistence.set_data_attribute(UserSignupProcess.source, source)
        communication.publish_to_internal_queue(UserSignupProcess.verify_queue)
        return "done"

    # [end:rpc]


# [end:process]
