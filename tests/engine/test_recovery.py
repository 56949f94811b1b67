"""What happens when the attempts of a state are exhausted and its options say how to go on (semantics 2.7).

That such options need bounded attempts is checked when a process is registered: tests/unit/sdk/test_options.py.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    ProcessErrorType,
    ProcessFailed,
    RetryPolicy,
    StateDecision,
    StateMovement,
    StateRecovery,
    StateStatus,
    data_attribute,
    internal_queue,
    process,
    state,
)

TWICE = RetryPolicy(initial_interval_seconds=1, maximum_attempts=2)


class CardDeclined(Exception):
    """What the failing states raise."""


@dataclass
class Order:
    article: str
    amounts: list[float] = field(default_factory=list)


ORDER = Order("Äpfel", [1.5, 2.0])


async def closed_states(system: System) -> dict[str, StateStatus]:
    info = await system.client.describe_process("p", include={"closed_states"})
    return {f"{each.state_id}-{each.number}": each.status for each in info.states}


# Who fails, and who takes over


def what_is_known(ctx: ProcessContext) -> list[Any]:
    origin = ctx.recover_from
    assert origin is not None
    return [origin.state_execution_id, origin.api, origin.error_type, origin.attempts]


class RefundState(AsyncState[Order]):
    """Takes over, and completes with what it knows."""

    def execute(self, ctx: ProcessContext, input: Order) -> StateDecision:
        return StateDecision.graceful_complete_process([input.article, *what_is_known(ctx)])


class WaitingRefundState(AsyncState[Order]):
    """Is told the same in wait_until."""

    def wait_until(self, ctx: ProcessContext, persistence: Persistence) -> CommandRequest:
        persistence.set_state_execution_local("known", what_is_known(ctx))
        return CommandRequest.empty()

    def execute(self, ctx: ProcessContext, input: Order, persistence: Persistence) -> StateDecision:
        known = persistence.get_state_execution_local("known")
        assert known == what_is_known(ctx)
        return StateDecision.graceful_complete_process([input.article, *known])


@state(execute_api_retry_policy=TWICE, proceed_to_state_when_execute_retry_exhausted=RefundState)
class ChargeState(AsyncState[Order]):
    def execute(self, ctx: ProcessContext, input: Order) -> StateDecision:
        raise CardDeclined(f"attempt {ctx.attempt}")


@state(proceed_to_state_when_execute_retry_exhausted=WaitingRefundState)
class WaitingChargeState(ChargeState):
    """Has a wait_until that succeeds."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()


@state(wait_until_api_retry_policy=TWICE, proceed_to_state_when_wait_until_retry_exhausted=RefundState)
class UnwaitableChargeState(ChargeState):
    """Has a wait_until that fails."""

    def wait_until(self, ctx: ProcessContext) -> CommandRequest:
        raise CardDeclined(f"attempt {ctx.attempt}")


class OrderState(AsyncState[str]):
    """Goes to the state that is named."""

    def execute(self, input: str) -> StateDecision:
        return StateDecision.single_next_state(input, ORDER)


class Purchase(ObjectProcess):
    starting_state = OrderState
    states = (ChargeState, WaitingChargeState, UnwaitableChargeState, RefundState, WaitingRefundState)


class Charge(ObjectProcess):
    starting_state = ChargeState
    states = (RefundState,)


class UnwaitableCharge(ObjectProcess):
    starting_state = UnwaitableChargeState
    states = (RefundState,)


@pytest.mark.parametrize(
    ("failing", "operation", "recovery"),
    [
        ("ChargeState", "execute", "RefundState"),
        ("WaitingChargeState", "execute", "WaitingRefundState"),
        ("UnwaitableChargeState", "wait-until", "RefundState"),
    ],
)
async def test_recovery_state_takes_over_with_the_same_input_and_knows_why(
    system: System, failing: str, operation: str, recovery: str
) -> None:
    system.serve(Purchase)

    await system.client.start_process("p", Purchase, failing)
    result = await system.client.wait_for_process_completion("p", list[Any])

    api = {"execute": "EXECUTE", "wait-until": "WAIT_UNTIL"}[operation]
    assert result == ["Äpfel", f"{failing}-1", api, "CardDeclined", 2]
    assert system.worker.attempts(failing, operation) == [(1, 0), (2, 1)]
    assert await closed_states(system) == {
        "OrderState-1": StateStatus.COMPLETED,
        f"{failing}-1": StateStatus.FAILED,
        f"{recovery}-1": StateStatus.COMPLETED,
    }
    inputs = [call["body"]["input"] for call in system.worker.calls if call["body"]["stateId"] in (failing, recovery)]
    assert all(each == {"article": "Äpfel", "amounts": [1.5, 2.0]} for each in inputs)


@pytest.mark.parametrize("process_class", [Charge, UnwaitableCharge], ids=lambda cls: cls.__name__)
async def test_starting_state_is_recovered_too(system: System, process_class: type[ObjectProcess]) -> None:
    system.serve(process_class)

    await system.client.start_process("p", process_class, ORDER)
    result = await system.client.wait_for_process_completion("p", list[Any])

    assert result is not None
    assert result[:2] == ["Äpfel", f"{process_class.__name__}State-1"]


async def test_recovery_state_is_told_the_details_of_the_last_failure(system: System) -> None:
    system.serve(Charge)

    await system.client.start_process("p", Charge, ORDER)
    await system.client.wait_for_process_completion("p")

    [body] = system.worker.bodies("RefundState")
    assert body["context"]["recoverFrom"]["details"].startswith("attempt 2\n")
    assert body["context"]["attempt"] == 1


# The options of the recovery state


@state(execute_api_timeout_seconds=7, execute_api_retry_policy=RetryPolicy(maximum_attempts=3))
class HopelessState(AsyncState[None]):
    def execute(self) -> StateDecision:
        raise CardDeclined("also here")


@state(
    execute_api_timeout_seconds=5,
    execute_api_retry_policy=TWICE,
    proceed_to_state_when_execute_retry_exhausted=HopelessState,
)
class HopefulState(AsyncState[None]):
    def execute(self) -> StateDecision:
        raise CardDeclined("here")


class Hope(ObjectProcess):
    starting_state = HopefulState
    states = (HopelessState,)


async def test_recovery_state_has_its_own_options_and_fails_the_process_when_it_fails(system: System) -> None:
    system.serve(Hope)

    await system.client.start_process("p", Hope)
    with pytest.raises(
        ProcessFailed, match="execute of state execution HopelessState-1 failed after 3 attempt"
    ) as failed:
        await system.client.wait_for_process_completion("p")

    assert failed.value.error_type is ProcessErrorType.STATE_API
    assert [body["context"]["timeoutMs"] for body in system.worker.bodies("HopelessState")] == [7_000] * 3
    assert system.worker.attempts("HopelessState") == [(1, 0), (2, 1), (3, 3)]
    assert await closed_states(system) == {"HopefulState-1": StateStatus.FAILED, "HopelessState-1": StateStatus.FAILED}


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
class LastState(AsyncState[int]):
    def execute(self, ctx: ProcessContext, input: int) -> StateDecision:
        return StateDecision.graceful_complete_process([input, *what_is_known(ctx)])


@state(
    execute_api_retry_policy=RetryPolicy(maximum_attempts=1), proceed_to_state_when_execute_retry_exhausted=LastState
)
class SecondState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        raise CardDeclined


@state(
    execute_api_retry_policy=RetryPolicy(maximum_attempts=1),
    proceed_to_state_when_execute_retry_exhausted=StateRecovery(
        SecondState, AsyncStateOptions(execute_api_timeout_seconds=4, execute_api_retry_policy=TWICE)
    ),
)
class FirstState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        raise CardDeclined


class Chain(ObjectProcess):
    starting_state = FirstState
    states = (SecondState, LastState)


async def test_chain_of_recovery_states_runs_in_order_each_with_the_options_it_is_given(system: System) -> None:
    system.serve(Chain)

    await system.client.start_process("p", Chain, 7)
    result = await system.client.wait_for_process_completion("p", list[Any])

    assert result == [7, "SecondState-1", "EXECUTE", "CardDeclined", 2]
    calls = [(call["body"]["stateId"], call["body"]["context"]["timeoutMs"]) for call in system.worker.calls]
    assert calls == [("FirstState", 30_000), ("SecondState", 4_000), ("SecondState", 4_000), ("LastState", 30_000)]


# What else goes on, and what does not


class WaitState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("go"))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("waited")


class PairState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(
            WaitState,
            StateMovement.create(ChargeState, Order("first")),
            StateMovement.create(ChargeState, Order("second")),
        )


class Pair(ObjectProcess):
    go = internal_queue(None)
    starting_state = PairState
    states = (WaitState, ChargeState, RefundState)


async def test_two_states_recover_into_numbered_executions_while_another_goes_on(system: System) -> None:
    system.serve(Pair)
    await system.client.start_process("p", Pair)
    await asyncio.sleep(10)

    await system.client.publish_to_internal_queue("p", Pair, Pair.go, None)
    outputs = {each.state_execution_id: each.output for each in await system.client.get_process_results("p")}

    assert {key: output[:2] if isinstance(output, list) else output for key, output in outputs.items()} == {
        "RefundState-1": ["first", "ChargeState-1"],
        "RefundState-2": ["second", "ChargeState-2"],
        "WaitState-1": "waited",
    }


@state(execute_api_retry_policy=TWICE, proceed_to_state_when_execute_retry_exhausted="CleanState")
class TracingExecuteState(AsyncState[None]):
    def execute(self, persistence: Persistence, communication: Communication) -> StateDecision:
        persistence.set_data_attribute(Traces.total, 1)
        persistence.record_event("tried", 1)
        communication.publish_to_internal_queue(Traces.go, None)
        raise CardDeclined


@state(wait_until_api_retry_policy=TWICE, proceed_to_execute_when_wait_until_retry_exhausted=True)
class TracingWaitState(AsyncState[None]):
    def wait_until(self, persistence: Persistence, communication: Communication) -> CommandRequest:
        persistence.set_data_attribute(Traces.total, 1)
        persistence.set_state_execution_local("secret", "kept")
        persistence.record_event("tried", 1)
        communication.publish_to_internal_queue(Traces.go, None)
        raise CardDeclined

    def execute(self, persistence: Persistence) -> StateDecision:
        secret = persistence.get_state_execution_local("secret")
        return StateDecision.single_next_state(CleanState) if secret is None else StateDecision.force_fail_process()


class CleanState(AsyncState[None]):
    """Completes with what it finds."""

    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(persistence.get_data_attribute(Traces.total))


class TraceState(AsyncState[str]):
    def execute(self, input: str) -> StateDecision:
        return StateDecision.single_next_state(input)


@process(table_name="traces", primary_key="id", primary_key_type=str)
class Traces(ObjectProcess):
    total = data_attribute(int)
    go = internal_queue(None)
    starting_state = TraceState
    states = (TracingExecuteState, TracingWaitState, CleanState)


@pytest.mark.parametrize("failing", ["TracingExecuteState", "TracingWaitState"])
async def test_failed_attempts_leave_no_trace(system: System, failing: str) -> None:
    system.sql("CREATE TABLE traces (id VARCHAR(255) PRIMARY KEY, total INTEGER)")
    system.sql("INSERT INTO traces VALUES ('row', 0)")
    system.serve(Traces)

    await system.client.start_object_process("p", Traces, "row", failing)
    await asyncio.sleep(0.5)
    during = await system.client.describe_process("p", include={"queues"})
    result = await system.client.wait_for_process_completion("p", int)

    assert during.states[0].attempt == 2
    assert during.queue_sizes == {}
    assert result == 0
    assert system.sql("SELECT * FROM traces") == [("row", 0)]
    assert system.sql("SELECT * FROM xdb_sys_history WHERE event_type = 'USER_EVENT'") == []
    assert system.sql("SELECT * FROM xdb_sys_internal_queue") == []


# Going on to execute without having waited


@state(wait_until_api_retry_policy=TWICE, proceed_to_execute_when_wait_until_retry_exhausted=True)
class ImpatientState(AsyncState[str]):
    def wait_until(self) -> CommandRequest:
        raise CardDeclined

    def execute(self, ctx: ProcessContext, input: str, command_results: CommandResults) -> StateDecision:
        results = [len(command_results.timer_commands), len(command_results.internal_queue_commands)]
        return StateDecision.graceful_complete_process(
            [input, ctx.state_execution_id, ctx.attempt, *results, command_results.wait_until_api_succeeded]
        )


@state(wait_until_api_retry_policy=TWICE, proceed_to_execute_when_wait_until_retry_exhausted=False)
class PatientState(ImpatientState):
    """Says that the process fails when wait_until does."""


class Impatient(ObjectProcess):
    starting_state = ImpatientState


class Patient(ObjectProcess):
    starting_state = PatientState


async def test_exhausted_wait_until_may_go_on_to_execute_of_the_same_state_without_results(system: System) -> None:
    system.serve(Impatient)

    await system.client.start_process("p", Impatient, "in")
    result = await system.client.wait_for_process_completion("p", list[Any])

    assert result == ["in", "ImpatientState-1", 1, 0, 0, False]
    assert system.worker.attempts("ImpatientState", "wait-until") == [(1, 0), (2, 1)]
    assert await closed_states(system) == {"ImpatientState-1": StateStatus.COMPLETED}


async def test_exhausted_wait_until_fails_the_process_when_its_options_say_so(system: System) -> None:
    system.serve(Patient)

    await system.client.start_process("p", Patient, "in")
    with pytest.raises(ProcessFailed, match="wait_until of state execution PatientState-1 failed after 2 attempt"):
        await system.client.wait_for_process_completion("p")

    assert system.worker.count("PatientState") == 0
    assert await closed_states(system) == {"PatientState-1": StateStatus.FAILED}
