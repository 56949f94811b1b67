"""The sign-up process of the design, from the client through the server to the worker and back (line 221)."""

from dataclasses import dataclass
from datetime import timedelta

from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessStartOptions,
    QueueCommandStatus,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
)

sent: list[tuple[str, str]] = []


@dataclass
class Form:
    email: str
    name: str


class SubmitState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        sent.append((persistence.get_data_attribute(UserSignupProcess.form).email, "verify"))
        return StateDecision.single_next_state(VerifyState)


class VerifyState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(timedelta(hours=24)),
            InternalQueueCommand.by_name("verify"),
        )

    def execute(self, command_results, persistence):  # type: ignore[no-untyped-def]  # as loosely as users may write
        form = persistence.get_data_attribute("form")
        if command_results.internal_queue_commands[0].status == QueueCommandStatus.RECEIVED:
            sent.append((form.email, "welcome"))
            return StateDecision.graceful_complete_process("done")
        sent.append((form.email, "reminder"))
        return StateDecision.single_next_state(VerifyState)


@process(table_name="user_sign_up", primary_key="user_id", primary_key_type=str)
class UserSignupProcess(ObjectProcess):
    form = data_attribute(Form)
    status = data_attribute(str)
    source = data_attribute(str)
    verified = internal_queue(None, name="verify")

    starting_state = SubmitState
    states = (VerifyState,)

    @rpc
    def verify(self, source: str, persistence: Persistence, communication: Communication) -> str:
        if persistence.get_data_attribute(UserSignupProcess.status) == "verified":
            return "already verified"
        persistence.set_data_attribute(UserSignupProcess.status, "verified")
        persistence.set_data_attribute(UserSignupProcess.source, source)
        communication.publish_to_internal_queue(UserSignupProcess.verified)
        return "done"


async def test_user_signs_up_is_reminded_verifies_and_is_welcomed(system: System) -> None:
    system.sql("CREATE TABLE user_sign_up (user_id TEXT PRIMARY KEY, form JSON, status TEXT, source TEXT)")
    system.serve(UserSignupProcess)
    sent.clear()
    process_id = "user-signup-process-u1"
    options = ProcessStartOptions(initial_upsert_data_attributes={"form": Form("a@b.c", "Ann"), "status": "waiting"})

    await system.client.start_object_process(process_id, UserSignupProcess, "u1", None, options)
    still_open = await system.client.wait_for_state_completion(process_id, VerifyState)
    first = await system.client.invoke_rpc(process_id, UserSignupProcess.verify, "email")
    second = await system.client.invoke_rpc(process_id, UserSignupProcess.verify, "email")
    result = await system.client.wait_for_process_completion(process_id, str)
    third = await system.client.invoke_rpc(process_id, UserSignupProcess.verify, "email")

    assert still_open is not None
    assert [first, second, third] == ["done", "already verified", "already verified"]
    assert result == "done"
    assert sent == [("a@b.c", "verify"), ("a@b.c", "reminder"), ("a@b.c", "welcome")]
    assert system.sql("SELECT * FROM user_sign_up") == [("u1", '{"email":"a@b.c","name":"Ann"}', "verified", "email")]
