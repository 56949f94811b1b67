"""The same process with its schemas given by methods, at run time, and everything named by strings."""

from datetime import timedelta

from examples.user_signup.mail import send_email
from examples.user_signup.model import Form
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    CommunicationMethod,
    CommunicationSchema,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    PersistenceField,
    PersistenceSchema,
    ProcessContext,
    QueueCommandStatus,
    StateDecision,
    StateSchema,
    TimerCommand,
    rpc,
)


class SubmitState(AsyncState[None]):
    """Ask the user to verify the email address."""

    def execute(
        self,
        ctx: ProcessContext,
        input: None,
        command_results: CommandResults,
        persistence: Persistence,
        communication: Communication,
    ) -> StateDecision:
        """Send the first email and wait."""
        form = persistence.get_data_attribute("form")
        send_email(form.email, "verify")
        return StateDecision.single_next_state(VerifyState)


class VerifyState(AsyncState[None]):
    """Wait until the user verifies, and remind once a day."""

    def wait_until(self, ctx: ProcessContext, input: None, communication: Communication) -> CommandRequest:
        """Wait for a message of the RPC, or for the next reminder to be due."""
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(timedelta(hours=24)),
            InternalQueueCommand.by_name("verify"),
        )

    def execute(
        self,
        ctx: ProcessContext,
        input: None,
        command_results: CommandResults,
        persistence: Persistence,
        communication: Communication,
    ) -> StateDecision:
        """Welcome the user, or remind and wait again."""
        form = persistence.get_data_attribute("form")
        if command_results.internal_queue_commands[0].status == QueueCommandStatus.RECEIVED:
            send_email(form.email, "welcome")
            return StateDecision.graceful_complete_process("done")
        send_email(form.email, "reminder")
        return StateDecision.single_next_state(VerifyState)


# [start:process]
class UserSignupProcess(ObjectProcess):
    """A user signs up; each execution is mapped to the user's row of `user_sign_up`."""

    def get_async_states(self) -> StateSchema:
        """List the states."""
        return StateSchema.with_starting_state(SubmitState(), VerifyState())

    def get_persistence_schema(self) -> PersistenceSchema:
        """List the data attributes and name the table."""
        return PersistenceSchema.create(
            PersistenceField.data_attribute_def("form", Form),
            PersistenceField.data_attribute_def("status", str),
            PersistenceField.data_attribute_def("source", str),
            table_name="user_sign_up",
            primary_key="user_id",
            primary_key_type=str,
        )

    def get_communication_schema(self) -> CommunicationSchema:
        """List the queues."""
        return CommunicationSchema.create(CommunicationMethod.internal_queue_def("verify", None))

    @rpc()
    def verify(self, source: str, persistence: Persistence, communication: Communication) -> str:
        """Note that the user has verified the address, through `source`, and wake the process."""
        if persistence.get_data_attribute("status") == "verified":
            return "already verified"
        persistence.set_data_attribute("status", "verified")
        persistence.set_data_attribute("source", source)
        communication.publish_to_internal_queue("verify")
        return "done"


# [end:process]
