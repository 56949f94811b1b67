"""The sign-up process word for word as the design gives it, types left out."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

import xdb_sdk
from tests.unit.sdk.compiling import definition_of
from xdb_sdk import CommandResults, Communication, Persistence, QueueCommandStatus, StateDecision
from xdb_sdk._definition import ParameterRole
from xdb_sdk.protocol import (
    CommandResultsBody,
    InternalQueueResult,
    LoadedData,
    LoadedTable,
    Message,
    ReceivedMessage,
    TableWrite,
)

SOURCE = """
class SubmitState(AsyncState[None]):
    def execute(self, ctx, input, command_results, persistence, communication) -> StateDecision:
        form = persistence.get_data_attribute("form")           # a Form, decoded to its declared type
        send_email(form.email, "verify")
        return StateDecision.single_next_state(VerifyState)

class VerifyState(AsyncState[None]):
    def wait_until(self, ctx, input, communication) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(timedelta(hours=24)),
            InternalQueueCommand.by_name("verify"),
        )

    def execute(self, ctx, input, command_results, persistence, communication) -> StateDecision:
        form = persistence.get_data_attribute("form")
        if command_results.internal_queue_commands[0].status == QueueCommandStatus.RECEIVED:
            send_email(form.email, "welcome")
            return StateDecision.graceful_complete_process("done")
        send_email(form.email, "reminder")
        return StateDecision.single_next_state(VerifyState)

class UserSignupProcess(ObjectProcess):
    def get_async_states(self) -> StateSchema:
        return StateSchema.with_starting_state(SubmitState(), VerifyState())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.create(
            PersistenceField.data_attribute_def("form", Form),
            PersistenceField.data_attribute_def("status", str),
            PersistenceField.data_attribute_def("source", str),
            table_name="user_sign_up", primary_key="user_id", primary_key_type=str,
        )

    def get_communication_schema(self) -> CommunicationSchema:
        return CommunicationSchema.create(CommunicationMethod.internal_queue_def("verify", None))

    @rpc()
    def verify(self, source: str, persistence: Persistence, communication: Communication) -> str:
        if persistence.get_data_attribute("status") == "verified":
            return "already verified"
        persistence.set_data_attribute("status", "verified")
        persistence.set_data_attribute("source", source)
        communication.publish_to_internal_queue("verify")
        return "done"
"""


class Form(BaseModel):
    """What a user fills in."""

    email: str


Module = dict[str, Any]


@pytest.fixture
def module() -> Module:
    sent: list[tuple[str, str]] = []
    names = {name: getattr(xdb_sdk, name) for name in xdb_sdk.__all__}
    module = {
        **names,
        "__name__": __name__,
        "Form": Form,
        "timedelta": timedelta,
        "send_email": lambda to, kind: sent.append((to, kind)),
        "sent": sent,
    }
    exec(SOURCE, module)
    return module


def persistence_of(module: Module, **columns: Any) -> Persistence:
    loaded = LoadedData(tables=(LoadedTable(table_name="user_sign_up", columns=columns),))
    return Persistence(definition_of(module["UserSignupProcess"]), loaded, where="a call")


def execute(module: Module, state_id: str, results: CommandResults) -> StateDecision:
    state = definition_of(module["UserSignupProcess"]).state_of(state_id)
    form = {"$json": {"email": "ann@example.com"}}
    values = {
        ParameterRole.CONTEXT: None,
        ParameterRole.INPUT: None,
        ParameterRole.COMMAND_RESULTS: results,
        ParameterRole.PERSISTENCE: persistence_of(module, form=form),
        ParameterRole.COMMUNICATION: None,
    }
    decision: StateDecision = state.execute.function(state.state, **state.execute.arguments(values))
    return decision


def test_submitting_sends_an_email_and_waits_for_verification(module: Module) -> None:
    decision = execute(module, "SubmitState", CommandResults())

    assert decision == StateDecision.single_next_state(module["VerifyState"])
    assert module["sent"] == [("ann@example.com", "verify")]


def test_verification_waits_a_day_or_for_a_message(module: Module) -> None:
    definition = definition_of(module["UserSignupProcess"])
    wait_until = definition.state_of("VerifyState").wait_until
    assert wait_until is not None

    body = wait_until.function(None, None, None, None).to_wire(definition)

    assert [timer.duration_ms for timer in body.timer_commands] == [86_400_000]
    assert [command.queue_name for command in body.internal_queue_commands] == ["verify"]


@pytest.mark.parametrize(
    ("status", "email", "is_done"),
    [(QueueCommandStatus.RECEIVED, "welcome", True), (QueueCommandStatus.WAITING, "reminder", False)],
)
def test_a_message_ends_the_process_and_the_timer_reminds(
    module: Module, status: QueueCommandStatus, email: str, is_done: bool
) -> None:
    messages = (ReceivedMessage(),) if is_done else ()
    body = CommandResultsBody(
        internal_queue_results=(InternalQueueResult(queue_name="verify", status=status, messages=messages),)
    )
    results = CommandResults.from_wire(body, definition_of(module["UserSignupProcess"]))

    decision = execute(module, "VerifyState", results)

    assert module["sent"] == [("ann@example.com", email)]
    again = StateDecision.single_next_state(module["VerifyState"])
    assert decision == (StateDecision.graceful_complete_process("done") if is_done else again)


def test_the_rpc_verifies_once(module: Module) -> None:
    definition = definition_of(module["UserSignupProcess"])
    verify = definition.rpcs["verify"].method.function
    fresh, verified = persistence_of(module, status="waiting"), persistence_of(module, status="verified")
    communication = Communication(definition, where="a call", queue_sizes={})

    assert verify(definition.process, "email", fresh, communication) == "done"
    assert verify(definition.process, "email", verified, communication) == "already verified"

    assert fresh.effects().write_tables == (
        TableWrite(table_name="user_sign_up", columns={"status": "verified", "source": "email"}),
    )
    assert verified.effects().write_tables == ()
    assert communication.effects().publish == (Message(queue_name="verify"),)
