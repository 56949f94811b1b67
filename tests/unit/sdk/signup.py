"""The sign-up process of the design, in both forms, as small as the unit tests need it."""

from datetime import timedelta

from pydantic import BaseModel

from xdb_sdk import (
    AsyncState,
    Communication,
    CommunicationMethod,
    CommunicationSchema,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    PersistenceField,
    PersistenceSchema,
    StateDecision,
    StateSchema,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
)
from xdb_sdk._command import CommandRequest, CommandResults
from xdb_sdk._context import ProcessContext


class Form(BaseModel):
    """What a user fills in."""

    email: str


class SubmitState(AsyncState[None]):
    """The first step."""

    def execute(
        self,
        ctx: ProcessContext,
        input: None,
        command_results: CommandResults,
        persistence: Persistence,
        communication: Communication,
    ) -> StateDecision:
        return StateDecision.single_next_state(VerifyState)


class VerifyState(AsyncState[None]):
    """Waits for the user, and reminds."""

    def wait_until(self, ctx: ProcessContext, input: None, communication: Communication) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(timedelta(hours=24)), InternalQueueCommand.by_name("verify")
        )

    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process("done")


class SchemaSignup(ObjectProcess):
    """Declared by the schema methods."""

    def get_process_type(self) -> str:
        return "Signup"

    def get_async_states(self) -> StateSchema:
        return StateSchema.with_starting_state(SubmitState(), VerifyState())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.create(
            PersistenceField.data_attribute_def("form", Form),
            PersistenceField.data_attribute_def("status", str),
            PersistenceField.data_attribute_def("source", str, col_name="came_from"),
            table_name="user_sign_up",
            primary_key="user_id",
            primary_key_type=str,
        )

    def get_communication_schema(self) -> CommunicationSchema:
        return CommunicationSchema.create(CommunicationMethod.internal_queue_def("verify", None))

    @rpc()
    def verify(self, source: str, persistence: Persistence, communication: Communication) -> str:
        persistence.set_data_attribute("source", source)
        communication.publish_to_internal_queue("verify")
        return "done"


@process(type_name="Signup", table_name="user_sign_up", primary_key="user_id", primary_key_type=str)
class DecoratedSignup(ObjectProcess):
    """Declared by decorators and class attributes."""

    form = data_attribute(Form)
    status = data_attribute(str)
    source = data_attribute(str, column="came_from")
    verify_queue = internal_queue(None, name="verify")

    starting_state = SubmitState
    states = (VerifyState,)

    @rpc
    def verify(self, source: str, persistence: Persistence, communication: Communication) -> str:
        persistence.set_data_attribute(DecoratedSignup.source, source)
        communication.publish_to_internal_queue(DecoratedSignup.verify_queue)
        return "done"
