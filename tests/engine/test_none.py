"""None is a value of its own wherever a value can be: neither missing nor anything else (semantics 3.5, 7.2)."""

from tests.engine.mailbox import DEADLINE
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    DataAttribute,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    QueueCommandStatus,
    StateDecision,
    StateMovement,
    data_attribute,
    internal_queue,
    rpc,
)


class BellState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(NothingProcess.bell))

    def execute(self, command_results: CommandResults) -> StateDecision:
        [bell] = command_results.internal_queue_commands
        heard = [bell.status is QueueCommandStatus.RECEIVED, bell.value, list(bell.values)]
        inputs = [StateMovement.create(InputState, None), StateMovement(InputState), StateMovement(InputState, "")]
        return StateDecision.multi_next_states(*inputs, StateMovement.create(HeardState, heard))


class InputState(AsyncState[str | None]):
    def execute(self, input: str | None) -> StateDecision:
        return StateDecision.graceful_complete_process([input])


class HeardState(AsyncState[list[bool | list[None] | None]]):
    def execute(self, input: list[bool | list[None] | None]) -> StateDecision:
        return StateDecision.graceful_complete_process(input)


class NothingProcess(ObjectProcess):
    bell = internal_queue(None)
    nickname: DataAttribute[str | None] = data_attribute(str | None)
    never_set: DataAttribute[str | None] = data_attribute(str | None)

    starting_state = BellState
    states = (InputState, HeardState)

    @rpc
    def forget_the_nickname(self, persistence: Persistence) -> str | None:
        persistence.set_data_attribute(NothingProcess.nickname, None)
        return persistence.get_data_attribute(NothingProcess.nickname)


async def test_message_and_inputs_without_a_value_arrive_as_none(system: System) -> None:
    system.serve(NothingProcess)
    await system.client.start_process("p", NothingProcess)

    await system.client.publish_to_internal_queue("p", NothingProcess, NothingProcess.bell, None)
    outputs = await system.client.get_process_results("p", timeout=DEADLINE)

    assert [output.output for output in outputs] == [[None], [None], [""], [True, None, [None]]]


async def test_attribute_that_is_none_differs_from_one_that_was_never_set(system: System) -> None:
    system.serve(NothingProcess)
    await system.client.start_process("p", NothingProcess)

    result = await system.client.invoke_rpc("p", NothingProcess.forget_the_nickname)
    attributes = await system.client.get_data_attributes("p", NothingProcess)

    assert result is None
    assert attributes == {"nickname": None}
