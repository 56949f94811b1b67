"""How a process starts: what it is given, what its first state sees, and what a start refuses (semantics 1)."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.service_http import nothing_was_started, post, start_of
from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    Communication,
    EncodeError,
    ErrorSubType,
    NotRegisteredError,
    ObjectProcess,
    ProcessContext,
    ProcessFailed,
    ProcessStartOptions,
    ProcessStatus,
    Registry,
    RetryPolicy,
    StateDecision,
    Worker,
    process,
    rpc,
)

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    """Begin with nothing seen by any state."""
    seen.clear()


class PackState(AsyncState[str]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()

    def execute(self, input: str) -> StateDecision:
        return StateDecision.single_next_state(ShipState, input + " packed")


class ShipState(AsyncState[str]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()

    def execute(self, input: str) -> StateDecision:
        return StateDecision.graceful_complete_process(input + " shipped")


class ParcelProcess(ObjectProcess):
    starting_state = PackState
    states = (ShipState,)


async def test_process_goes_from_state_to_state_and_calls_each_method_once(system: System) -> None:
    system.serve(ParcelProcess)

    await system.client.start_process("p", ParcelProcess, "book")
    result = await system.client.wait_for_process_completion("p", str)

    info = await system.client.describe_process("p")
    assert result == "book packed shipped"
    assert info.status is ProcessStatus.COMPLETED
    assert [(call["operation"], call["body"]["stateId"]) for call in system.worker.calls] == [
        ("wait-until", "PackState"),
        ("execute", "PackState"),
        ("wait-until", "ShipState"),
        ("execute", "ShipState"),
    ]


async def test_start_without_options_has_no_timeout_and_completes(system: System) -> None:
    system.serve(ParcelProcess)

    body = start_of("ParcelProcess", startStateId="PackState", startStateInput="book")
    response = await post(system, "start", body)
    await asyncio.sleep(1)

    info = await system.client.describe_process("p")
    assert response.json() == {"processExecutionId": info.process_execution_id}
    assert (info.status, info.timeout_at) == (ProcessStatus.COMPLETED, None)
    assert [output.output for output in info.outputs] == ["book packed shipped"]


@dataclass
class Address:
    street: str
    number: int
    note: str | None


class TextState(AsyncState[str]):
    def execute(self, input: str) -> StateDecision:
        seen.append(input)
        return StateDecision.single_next_state(NumberState, 7)


class NumberState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        seen.append(input)
        return StateDecision.single_next_state(StructState, Address("Ring", 2**70, None))


class StructState(AsyncState[Address]):
    def execute(self, input: Address) -> StateDecision:
        seen.append(input)
        return StateDecision.single_next_state(NothingState)


class NothingState(AsyncState[None]):
    def execute(self, input: None) -> StateDecision:
        seen.append(input)
        return StateDecision.graceful_complete_process()


class TextProcess(ObjectProcess):
    starting_state = TextState
    states = (NumberState, StructState, NothingState)


class NumberProcess(ObjectProcess):
    starting_state = NumberState
    states = (TextState, StructState, NothingState)


class StructProcess(ObjectProcess):
    starting_state = StructState
    states = (TextState, NumberState, NothingState)


class NothingProcess(ObjectProcess):
    starting_state = NothingState
    states = (TextState, NumberState, StructState)


@pytest.mark.parametrize(
    ("process_class", "given", "expected"),
    [
        pytest.param(TextProcess, "zwölf ☃ \U0001f4a1", [7, Address("Ring", 2**70, None), None], id="str"),
        pytest.param(NumberProcess, -(2**70), [Address("Ring", 2**70, None), None], id="int"),
        pytest.param(StructProcess, Address("Platz", 1, "left"), [None], id="struct"),
        pytest.param(NothingProcess, None, [], id="nothing"),
    ],
)
async def test_inputs_of_the_start_and_of_states_arrive_equal_and_typed(
    system: System, process_class: type[ObjectProcess], given: Any, expected: list[Any]
) -> None:
    system.serve(process_class)

    await system.client.start_process("p", process_class, given)
    await system.client.wait_for_process_completion("p")

    assert seen == [given, *expected]
    assert [type(value) for value in seen] == [type(value) for value in (given, *expected)]


@pytest.mark.parametrize("process_id", ["", "x" * 256], ids=["empty", "too long"])
async def test_process_id_that_cannot_be_meant_is_refused(system: System, process_id: str) -> None:
    response = await post(system, "start", start_of("ParcelProcess", process_id))

    assert response.status_code == 400
    assert response.json()["errorSubType"] == ErrorSubType.INVALID_REQUEST
    assert "processId" in response.json()["details"]
    assert nothing_was_started(system)


@pytest.mark.parametrize("field", ["processId", "processType", "workerUrl"])
async def test_start_that_lacks_a_field_names_it(system: System, field: str) -> None:
    body = {name: value for name, value in start_of("ParcelProcess").items() if name != field}

    response = await post(system, "start", body)

    assert (response.status_code, response.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert field in response.json()["details"]
    assert nothing_was_started(system)


async def test_start_that_is_no_json_is_refused(system: System) -> None:
    response = await post(system, "start", b'{"processId": "p", ')

    assert (response.status_code, response.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert nothing_was_started(system)


class GreetState(AsyncState[str]):
    def execute(self, input: str) -> StateDecision:
        return StateDecision.graceful_complete_process(f"hello {input}")


class IdleProcess(ObjectProcess):
    """Does nothing until it is told to."""

    states = (GreetState,)

    @rpc
    def greet(self, name: str, communication: Communication) -> None:
        communication.trigger_state_execution(GreetState, name)


async def test_process_without_a_starting_state_runs_until_an_rpc_triggers_one(system: System) -> None:
    system.serve(IdleProcess)

    await system.client.start_process("p", IdleProcess)
    await asyncio.sleep(3_600)
    idle = await system.client.describe_process("p", include={"closed_states"})
    await system.client.invoke_rpc("p", IdleProcess.greet, "Ann")
    result = await system.client.wait_for_process_completion("p", str)

    assert (idle.status, idle.states) == (ProcessStatus.RUNNING, ())
    assert result == "hello Ann"
    assert system.worker.by_state() == {"GreetState-1": 1}


@process(type_name="shop.Register")
class RegisterProcess(ObjectProcess):
    """Has no states at all."""

    @rpc
    def total(self, prices: list[int]) -> int:
        return sum(prices)


async def test_process_without_any_states_answers_rpcs_and_stops(system: System) -> None:
    system.serve(RegisterProcess)

    await system.client.start_process("p", RegisterProcess)
    total = await system.client.invoke_rpc("p", RegisterProcess.total, [3, 4])
    stopped = await system.client.stop_process("p")

    assert total == 7
    assert stopped.status is ProcessStatus.TERMINATED
    assert system.sql("SELECT * FROM xdb_sys_async_state_execution") == []


async def test_overridden_process_type_is_used_throughout(system: System) -> None:
    system.serve(RegisterProcess)

    await system.client.start_process("p", RegisterProcess)
    await system.client.invoke_rpc("p", RegisterProcess.total, [])

    info = await system.client.describe_process("p")
    listed = [each.process_type async for each in system.client.list_processes(process_type="shop.Register")]
    assert info.process_type == "shop.Register"
    assert listed == ["shop.Register"]
    assert {call["body"]["context"]["processType"] for call in system.worker.calls} == {"shop.Register"}
    assert system.sql("SELECT process_type FROM xdb_sys_process_execution") == [("shop.Register",)]


class NoteTimeState(AsyncState[None]):
    def execute(self) -> StateDecision:
        seen.append(asyncio.get_running_loop().time())
        return StateDecision.graceful_complete_process()


class LateProcess(ObjectProcess):
    starting_state = NoteTimeState

    @rpc(read_only=True)
    def ping(self) -> str:
        return "pong"


async def test_start_delay_holds_the_first_state_back_and_nothing_else(system: System) -> None:
    system.serve(LateProcess)
    began_s = asyncio.get_running_loop().time()

    await system.client.start_process("p", LateProcess, None, ProcessStartOptions(start_delay=timedelta(seconds=10)))
    await asyncio.sleep(9.9)
    waiting = await system.client.describe_process("p")
    answered = await system.client.invoke_rpc("p", LateProcess.ping)
    calls_before = system.worker.count("NoteTimeState")
    await system.client.wait_for_process_completion("p", timeout=timedelta(seconds=2))

    [called_s] = seen
    assert (waiting.status, calls_before, answered) == (ProcessStatus.RUNNING, 0, "pong")
    assert called_s - began_s == pytest.approx(10, abs=0.05)


async def test_timeout_counts_from_the_start_not_from_the_delayed_first_state(system: System) -> None:
    system.serve(LateProcess)
    options = ProcessStartOptions(start_delay=timedelta(seconds=10), timeout=timedelta(seconds=4))

    await system.client.start_process("p", LateProcess, None, options)
    await asyncio.sleep(20)

    info = await system.client.describe_process("p")
    assert info.closed_at is not None
    assert (info.status, info.closed_at - info.started_at) == (ProcessStatus.TIMEOUT, timedelta(seconds=4))
    assert seen == []


class FragileState(AsyncState[str]):
    def get_state_options(self) -> AsyncStateOptions:
        return AsyncStateOptions(
            execute_api_retry_policy=RetryPolicy(maximum_attempts=3),
            proceed_to_state_when_execute_retry_exhausted=MendState,
        )

    def execute(self, input: str) -> StateDecision:
        raise RuntimeError(input)


class MendState(AsyncState[str]):
    def get_state_options(self) -> AsyncStateOptions:
        return AsyncStateOptions(execute_api_retry_policy=RetryPolicy(maximum_attempts=2))

    def execute(self, input: str, ctx: ProcessContext) -> StateDecision:
        if ctx.state_execution_id == "MendState-1":
            return StateDecision.single_next_state(FragileState, input)
        raise RuntimeError(input)


class FragileProcess(ObjectProcess):
    starting_state = FragileState
    states = (MendState,)


async def test_options_overridden_at_the_start_are_those_of_the_first_state_execution_only(system: System) -> None:
    system.serve(FragileProcess)
    override = AsyncStateOptions(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
    options = ProcessStartOptions(starting_state_options_override=override)

    await system.client.start_process("p", FragileProcess, "broken", options)
    with pytest.raises(ProcessFailed):
        await system.client.wait_for_process_completion("p")

    assert system.worker.by_state() == {"FragileState-1": 1, "MendState-1": 1, "FragileState-2": 3, "MendState-2": 2}


async def test_process_type_unknown_to_the_worker_fails_visibly_until_it_is_deployed(system: System) -> None:
    system.serve(ParcelProcess)
    system.route(WORKER_URL, Worker(Registry()))

    await system.client.start_process("p", ParcelProcess, "book")
    await asyncio.sleep(20)
    stuck = await system.client.describe_process("p")
    system.route(WORKER_URL, Worker(system.registry))
    result = await system.client.wait_for_process_completion("p", str, timeout=timedelta(seconds=100))

    [state] = stuck.states
    assert stuck.status is ProcessStatus.RUNNING
    assert state.attempt > 3
    assert state.last_failure is not None
    assert "ParcelProcess" in state.last_failure.details
    assert result == "book packed shipped"


async def test_class_that_the_client_does_not_know_is_not_asked_for(system: System) -> None:
    with pytest.raises(NotRegisteredError, match="ParcelProcess"):
        await system.client.start_process("p", ParcelProcess, "book")

    assert nothing_was_started(system)


@pytest.mark.parametrize("wrong", [7, None, ["book"]], ids=str)
async def test_input_of_another_type_than_declared_is_not_sent(system: System, wrong: Any) -> None:
    system.serve(ParcelProcess)

    with pytest.raises(EncodeError, match="PackState"):
        await system.client.start_process("p", ParcelProcess, wrong)

    assert nothing_was_started(system)
