"""Values above the limit are refused by name, wherever they come from, and never cut (semantics 4.6)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from server_stub.config import ServerSettings
from tests.support.databases import Database
from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    CommandRequest,
    Communication,
    ErrorSubType,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessStatus,
    RpcExecutionError,
    StateDecision,
    Worker,
    WorkerOptions,
    data_attribute,
    internal_queue,
    rpc,
)

LIMIT_BYTES = 50_000
FITS = "é" * (LIMIT_BYTES // 2 - 1)
"""As JSON, with its quotes, it is as large as the limit."""
TOO_LARGE = FITS + "!"


@dataclass
class Make:
    """Tells a state where to put a value, since one that is too large cannot be sent to it."""

    where: str
    is_too_large: bool

    @property
    def value(self) -> str:
        text = TOO_LARGE if self.is_too_large else FITS
        return text[1:] if self.where == "event" else text  # the data of an event is a list: two bytes more


class MakeState(AsyncState[Make]):
    def wait_until(self, input: Make, persistence: Persistence, communication: Communication) -> CommandRequest:
        if input.where == "state execution local":
            persistence.set_state_execution_local("note", input.value)
        if input.where == "message of wait_until":
            communication.publish_to_internal_queue(BulkyProcess.notes, input.value)
        return CommandRequest.empty()

    def execute(self, input: Make, persistence: Persistence, communication: Communication) -> StateDecision:
        match input.where:
            case "attribute":
                persistence.set_data_attribute(BulkyProcess.note, input.value)
            case "event":
                persistence.record_event("note", input.value)
            case "message":
                communication.publish_to_internal_queue(BulkyProcess.notes, input.value)
            case "next input":
                return StateDecision.single_next_state(KeepState, input.value)
            case "output":
                return StateDecision.graceful_complete_process(input.value)
        return StateDecision.single_next_state(KeepState, "")


class KeepState(AsyncState[str]):
    def execute(self, input: str) -> StateDecision:
        return StateDecision.graceful_complete_process(input)


class HearState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(BulkyProcess.notes))

    def execute(self, command_results: Any) -> StateDecision:
        return StateDecision.graceful_complete_process(command_results.internal_queue_commands[0].value)


class BulkyProcess(ObjectProcess):
    note = data_attribute(str)
    notes = internal_queue(str)
    starting_state = HearState
    states = (MakeState, KeepState)

    @rpc
    def length(self, text: str) -> int:
        return len(text)

    @rpc
    def make(self, is_too_large: bool) -> str:
        return Make("output", is_too_large).value


class MakerProcess(ObjectProcess):
    note = BulkyProcess.note
    notes = BulkyProcess.notes
    starting_state = MakeState
    states = (KeepState,)


class KeeperProcess(ObjectProcess):
    starting_state = KeepState


@pytest.fixture
async def limited(database: Database) -> AsyncIterator[System]:
    """Give a system whose server has a low limit."""
    async with System(database, ServerSettings(max_value_bytes=LIMIT_BYTES)) as system:
        system.serve(BulkyProcess, MakerProcess, KeeperProcess)
        yield system


async def give_input(system: System, value: str) -> Any:
    await system.client.start_process("q", KeeperProcess, value)
    return await system.client.wait_for_process_completion("q", str)


async def give_message(system: System, value: str) -> Any:
    await system.client.publish_to_internal_queue("p", BulkyProcess, BulkyProcess.notes, value)
    return await system.client.wait_for_process_completion("p", str)


async def give_attribute(system: System, value: str) -> Any:
    await system.client.set_data_attributes("p", BulkyProcess, {"note": value})
    return (await system.client.get_data_attributes("p", BulkyProcess))["note"]


async def give_rpc_input(system: System, value: str) -> Any:
    length = await system.client.invoke_rpc("p", BulkyProcess.length, value)
    return value[:length]


GIVE = (give_input, give_message, give_attribute, give_rpc_input)


@pytest.mark.parametrize("give", GIVE, ids=lambda give: give.__name__)
async def test_value_of_a_client_is_whole_up_to_the_limit_and_refused_above(
    limited: System, give: Callable[[System, str], Awaitable[Any]]
) -> None:
    await limited.client.start_process("p", BulkyProcess)

    with pytest.raises(ClientSideError) as refusal:
        await give(limited, TOO_LARGE)
    calls_for_it = [call for call in limited.worker.calls if TOO_LARGE in str(call)]
    whole = await give(limited, FITS)

    assert (refusal.value.status, refusal.value.error_sub_type) == (400, ErrorSubType.PAYLOAD_TOO_LARGE)
    assert f"{LIMIT_BYTES + 1} bytes" in refusal.value.body.details
    assert TOO_LARGE not in str(refusal.value)
    assert calls_for_it == []
    assert whole == FITS


WHERE = ("state execution local", "message of wait_until", "attribute", "event", "message", "next input", "output")


@pytest.mark.parametrize("where", WHERE)
async def test_value_of_a_state_is_whole_up_to_the_limit(limited: System, where: str) -> None:
    await limited.client.start_process("p", MakerProcess, Make(where, is_too_large=False))

    result = await limited.client.wait_for_process_completion("p", str)

    assert result == (FITS if where in ("next input", "output") else "")
    if where == "attribute":
        assert await limited.client.get_data_attributes("p", MakerProcess) == {"note": FITS}


@pytest.mark.parametrize("refuser", ["server", "worker"])
@pytest.mark.parametrize("where", WHERE)
async def test_value_of_a_state_above_the_limit_is_a_failed_attempt(
    database: Database, where: str, refuser: str
) -> None:
    settings = ServerSettings(max_value_bytes=LIMIT_BYTES) if refuser == "server" else ServerSettings()
    options = WorkerOptions(max_value_bytes=LIMIT_BYTES) if refuser == "worker" else WorkerOptions()
    async with System(database, settings) as system:
        system.serve(MakerProcess)
        system.route(WORKER_URL, Worker(system.registry, options))
        await system.client.start_process("p", MakerProcess, Make(where, is_too_large=True))

        await asyncio.sleep(10)

        info = await system.client.describe_process("p", include={"queues"})
        attributes = await system.client.get_data_attributes("p", MakerProcess)
    [state] = info.states
    assert info.status is ProcessStatus.RUNNING
    assert (state.state_id, info.queue_sizes, info.outputs) == ("MakeState", {}, ())
    assert 3 <= state.attempt <= 5
    assert state.last_failure is not None
    assert f"{LIMIT_BYTES + 1} bytes" in state.last_failure.details
    assert attributes == {}


async def test_output_of_an_rpc_is_whole_up_to_the_limit_and_refused_above(limited: System) -> None:
    await limited.client.start_process("p", BulkyProcess)

    whole = await limited.client.invoke_rpc("p", BulkyProcess.make, False)
    with pytest.raises(RpcExecutionError, match=f"{LIMIT_BYTES + 1} bytes") as failure:
        await limited.client.invoke_rpc("p", BulkyProcess.make, True)

    assert whole == FITS
    assert failure.value.error_sub_type is ErrorSubType.INVALID_WORKER_RESPONSE
