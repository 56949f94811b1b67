"""The life of state executions: what is called, in which order, under which options (semantics 2.1 to 2.4)."""

import asyncio
from typing import Any

import pytest

from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    CommandResults,
    InternalQueueCommand,
    ObjectProcess,
    ProcessContext,
    ProcessFailed,
    ProcessStartOptions,
    Registry,
    RetryPolicy,
    StateDecision,
    StateMovement,
    Worker,
    internal_queue,
    process,
    state,
)


def attempts_at_most(count: int) -> RetryPolicy:
    return RetryPolicy(initial_interval_seconds=1, backoff_coefficient=1, maximum_attempts=count)


def calls_in_order(system: System) -> list[tuple[str, str]]:
    return [(call["operation"], call["body"]["context"]["stateExecutionId"]) for call in system.worker.calls]


# Which methods are called


class PlainState(AsyncState[str]):
    """Has no wait_until."""

    def execute(self, input: str, command_results: CommandResults) -> StateDecision:
        results = [len(command_results.timer_commands), len(command_results.internal_queue_commands)]
        return StateDecision.graceful_complete_process([input, *results, command_results.wait_until_api_succeeded])


class PlainChildState(PlainState):
    """Inherits none."""


class WaitingState(PlainState):
    """Waits for nothing."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()


class WaitingChildState(WaitingState):
    """Inherits its wait_until."""


class WaitingGrandchildState(WaitingChildState):
    """Inherits it from the middle of its bases."""


class PlainChildThatWaitsState(PlainChildState):
    """Adds it to bases that have none."""

    async def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()


class TourState(AsyncState[list[str]]):
    """Goes to itself until all is visited, each time beside the state that is next on the list."""

    def execute(self, input: list[str]) -> StateDecision:
        if not input:
            return StateDecision.dead_end()
        return StateDecision.multi_next_states(
            StateMovement.create(input[0], "in"), StateMovement.create(TourState, input[1:])
        )


FAMILY = (
    PlainState,
    PlainChildState,
    WaitingState,
    WaitingChildState,
    WaitingGrandchildState,
    PlainChildThatWaitsState,
)


class Family(ObjectProcess):
    starting_state = TourState
    states = FAMILY


async def test_state_without_wait_until_is_never_asked_to_wait_and_gets_no_results(system: System) -> None:
    system.serve(Family)

    await system.client.start_process("p", Family, ["PlainState"])
    result = await system.client.wait_for_process_completion("p", list[Any])

    assert result == ["in", 0, 0, True]
    assert (system.worker.count("PlainState", "wait-until"), system.worker.count("PlainState")) == (0, 1)


async def test_wait_until_is_called_exactly_if_the_class_or_any_base_defines_it(system: System) -> None:
    system.serve(Family)
    visited = [cls.__name__ for cls in FAMILY]

    await system.client.start_process("p", Family, visited)
    await system.client.get_process_results("p")

    assert {state_id: system.worker.count(state_id, "wait-until") for state_id in visited} == {
        "PlainState": 0,
        "PlainChildState": 0,
        "WaitingState": 1,
        "WaitingChildState": 1,
        "WaitingGrandchildState": 1,
        "PlainChildThatWaitsState": 1,
    }
    assert {state_id: system.worker.count(state_id) for state_id in visited} == dict.fromkeys(visited, 1)


async def test_wait_until_that_asks_for_nothing_is_followed_by_execute_at_once(system: System) -> None:
    system.serve(Family)

    await system.client.start_process("p", Family, ["WaitingState"])
    result = await system.client.wait_for_process_completion("p", list[Any])

    assert result == ["in", 0, 0, True]
    [waited, executed] = [call for call in system.worker.calls if call["body"]["stateId"] == "WaitingState"]
    assert (waited["operation"], executed["operation"]) == ("wait-until", "execute")
    assert waited["at_s"] == executed["at_s"]


class FirstLink(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(SecondLink)


class SecondLink(AsyncState[None]):
    async def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()

    async def execute(self) -> StateDecision:
        return StateDecision.single_next_state(ThirdLink)


class ThirdLink(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(FourthLink)


class FourthLink(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class MixedChain(ObjectProcess):
    starting_state = FirstLink
    states = (SecondLink, ThirdLink, FourthLink)


async def test_states_with_and_without_wait_until_follow_one_another(system: System) -> None:
    system.serve(MixedChain)

    await system.client.start_process("p", MixedChain)
    await system.client.wait_for_process_completion("p")

    assert calls_in_order(system) == [
        ("execute", "FirstLink-1"),
        ("wait-until", "SecondLink-1"),
        ("execute", "SecondLink-1"),
        ("execute", "ThirdLink-1"),
        ("wait-until", "FourthLink-1"),
        ("execute", "FourthLink-1"),
    ]


class LoopState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        if input:
            return StateDecision.single_next_state(LoopState, input - 1)
        return StateDecision.multi_next_states(
            StateMovement.create(TwinState, "a"), StateMovement.create(TwinState, "b")
        )


class TwinState(AsyncState[str]):
    def execute(self, ctx: ProcessContext, input: str) -> StateDecision:
        return StateDecision.graceful_complete_process([ctx.state_execution_id, input])


class LoopProcess(ObjectProcess):
    starting_state = LoopState
    states = (TwinState,)


async def test_executions_of_a_state_are_numbered_over_loops_and_in_the_order_of_the_decision(system: System) -> None:
    system.serve(LoopProcess)

    await system.client.start_process("p", LoopProcess, 2)
    outputs = await system.client.get_process_results("p")

    assert list(system.worker.by_state()) == ["LoopState-1", "LoopState-2", "LoopState-3", "TwinState-1", "TwinState-2"]
    assert [output.output for output in outputs] == [["TwinState-1", "a"], ["TwinState-2", "b"]]


# Whose options count


@state(execute_api_timeout_seconds=1, execute_api_retry_policy=attempts_at_most(1))
class OnceState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(OftenState)


@state(
    wait_until_api_timeout_seconds=5,
    wait_until_api_retry_policy=attempts_at_most(2),
    execute_api_timeout_seconds=6,
    execute_api_retry_policy=attempts_at_most(4),
)
class OftenState(AsyncState[None]):
    """Needs every attempt that its options allow."""

    def wait_until(self, ctx: ProcessContext) -> CommandRequest:
        if ctx.attempt != 2:
            raise ConnectionError("down")
        return CommandRequest.empty()

    def execute(self, ctx: ProcessContext) -> StateDecision:
        if ctx.attempt != 4:
            raise ConnectionError("down")
        return StateDecision.graceful_complete_process("all used")


class OptionsProcess(ObjectProcess):
    starting_state = OnceState
    states = (OftenState,)


def timeouts_ms(system: System, state_id: str, operation: str = "execute") -> list[int]:
    return [body["context"]["timeoutMs"] for body in system.worker.bodies(state_id, operation)]


async def test_each_call_obeys_the_options_of_its_own_state_and_method(system: System) -> None:
    system.serve(OptionsProcess)

    await system.client.start_process("p", OptionsProcess)
    result = await system.client.wait_for_process_completion("p", str)

    assert result == "all used"
    assert timeouts_ms(system, "OnceState") == [1_000]
    assert timeouts_ms(system, "OftenState", "wait-until") == [5_000] * 2
    assert timeouts_ms(system, "OftenState") == [6_000] * 4


async def test_options_given_at_start_are_for_the_starting_state_only(system: System) -> None:
    system.serve(OptionsProcess)
    override = AsyncStateOptions(execute_api_timeout_seconds=2)

    await system.client.start_process(
        "p", OptionsProcess, None, ProcessStartOptions(starting_state_options_override=override)
    )
    result = await system.client.wait_for_process_completion("p", str)

    assert result == "all used"
    assert timeouts_ms(system, "OnceState") == [2_000]
    assert timeouts_ms(system, "OftenState") == [6_000] * 4


SHARED = AsyncStateOptions(execute_api_timeout_seconds=9, execute_api_retry_policy=attempts_at_most(2))


class ImpatientState(AsyncState[None]):
    def get_state_options(self) -> AsyncStateOptions:
        return SHARED

    def execute(self) -> StateDecision:
        raise ConnectionError("down")


class SiblingState(AsyncState[None]):
    def get_state_options(self) -> AsyncStateOptions:
        return SHARED

    def execute(self) -> StateDecision:
        override = AsyncStateOptions(execute_api_timeout_seconds=3)
        return StateDecision.single_next_state(ImpatientState, None, override)


class SharedOptionsProcess(ObjectProcess):
    starting_state = SiblingState
    states = (ImpatientState,)


async def test_override_of_one_movement_changes_only_the_fields_it_sets(system: System) -> None:
    system.serve(SharedOptionsProcess)

    await system.client.start_process("p", SharedOptionsProcess)
    with pytest.raises(ProcessFailed):
        await system.client.wait_for_process_completion("p")

    assert timeouts_ms(system, "ImpatientState") == [3_000, 3_000]
    assert [attempt for attempt, _ in system.worker.attempts("ImpatientState")] == [1, 2]


async def test_override_for_one_state_leaves_the_options_of_another_that_shares_them(system: System) -> None:
    system.serve(SharedOptionsProcess)

    for process_id in ("before", "after"):
        await system.client.start_process(process_id, SharedOptionsProcess)
        with pytest.raises(ProcessFailed):
            await system.client.wait_for_process_completion(process_id)

    assert timeouts_ms(system, "SiblingState") == [9_000, 9_000]
    assert AsyncStateOptions(execute_api_timeout_seconds=9, execute_api_retry_policy=attempts_at_most(2)) == SHARED


# Deployments


@state(state_id="Ship", execute_api_retry_policy=attempts_at_most(2))
class ShipState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("paid"))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("shipped")


@state(state_id="Ship", execute_api_retry_policy=attempts_at_most(3))
class RevisedShipState(ShipState):
    def execute(self) -> StateDecision:
        raise ConnectionError("the carrier is on strike")


@process(type_name="Shop")
class Shop(ObjectProcess):
    paid = internal_queue(None)
    starting_state = ShipState


@process(type_name="Shop")
class RevisedShop(ObjectProcess):
    paid = internal_queue(None)
    starting_state = RevisedShipState


async def test_state_that_waits_keeps_its_options_over_a_deployment_with_others(system: System) -> None:
    system.serve(Shop)
    await system.client.start_process("p", Shop)
    await asyncio.sleep(1)
    revised = Registry()
    revised.add_process(RevisedShop)

    system.route(WORKER_URL, Worker(revised))
    await system.client.publish_to_internal_queue("p", Shop, Shop.paid, None)
    with pytest.raises(ProcessFailed, match="on strike"):
        await system.client.wait_for_process_completion("p")

    assert [attempt for attempt, _ in system.worker.attempts("Ship")] == [1, 2]
