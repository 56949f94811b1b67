"""What execute decides: next states, ends of threads, ends of the process, and outputs (semantics 4)."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.mailbox import DEADLINE, leftovers
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    Communication,
    InternalQueueCommand,
    InvalidArgumentError,
    ObjectProcess,
    ProcessErrorType,
    ProcessFailed,
    ProcessStatus,
    RetryPolicy,
    StateDecision,
    StateMovement,
    StateStatus,
    TimerCommand,
    internal_queue,
    rpc,
)

PROCESS = "p"


@dataclass
class Step:
    """What a state does `after_s` seconds in execute; `then` is one of END, or "go" to the next steps, or "raise"."""

    then: str
    after_s: float = 0
    output: Any = None
    next: list["Step"] = field(default_factory=list)


END = {
    "graceful": StateDecision.graceful_complete_process,
    "complete": StateDecision.force_complete_process,
    "fail": StateDecision.force_fail_process,
}
ONE_ATTEMPT = AsyncStateOptions(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))


def go(*steps: Step, after_s: float = 0) -> Step:
    """Go to several steps at once."""
    return Step("go", after_s, next=list(steps))


class StepState(AsyncState[Step]):
    async def execute(self, input: Step) -> StateDecision:
        await asyncio.sleep(input.after_s)
        if input.then in END:
            return END[input.then](input.output)
        if input.then == "dead end":
            return StateDecision.dead_end()
        if input.then == "go":
            return StateDecision.multi_next_states(*map(_movement, input.next))
        raise RuntimeError(input.then)


class WaitingState(AsyncState[Step]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            InternalQueueCommand.by_name(StepsProcess.never), TimerCommand.by_seconds(3_600)
        )

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


def _movement(step: Step) -> StateMovement:
    if step.then == "wait":
        return StateMovement.create(WaitingState, step)
    return StateMovement.create(StepState, step, ONE_ATTEMPT if step.then == "raise once" else None)


class StepsProcess(ObjectProcess):
    """Does the steps that it is given at start, or later by RPC."""

    never = internal_queue(None)

    starting_state = StepState
    states = (WaitingState,)

    @rpc
    def do(self, step: Step, communication: Communication) -> None:
        communication.trigger_state_execution(StepState, step)


async def start(system: System, step: Step) -> None:
    """Start a process that does a step."""
    system.serve(StepsProcess)
    await system.client.start_process(PROCESS, StepsProcess, step)


async def status(system: System) -> ProcessStatus:
    """Look at the status of the process."""
    return (await system.client.describe_process(PROCESS)).status


async def closed_after(system: System) -> timedelta:
    """Tell when the process closed, from its start."""
    info = await system.client.describe_process(PROCESS)
    assert info.closed_at is not None
    return info.closed_at - info.started_at


async def outputs(system: System) -> list[tuple[str | None, Any]]:
    """Wait until the process completes and give its outputs with their state executions."""
    results = await system.client.get_process_results(PROCESS, timeout=DEADLINE)
    return [(result.state_execution_id, result.output) for result in results]


async def states(system: System) -> dict[str, StateStatus]:
    """Give the status of every state execution."""
    info = await system.client.describe_process(PROCESS, include={"closed_states"})
    return {f"{each.state_id}-{each.number}": each.status for each in info.states}


async def test_graceful_complete_alone_completes(system: System) -> None:
    await start(system, Step("graceful", output="done"))

    assert await outputs(system) == [("StepState-1", "done")]
    assert await status(system) is ProcessStatus.COMPLETED
    assert leftovers(system) == {}


async def test_graceful_complete_waits_for_the_other_state_and_keeps_both_outputs(system: System) -> None:
    await start(system, go(Step("graceful", 1, "first"), Step("graceful", 5, "second")))

    await asyncio.sleep(3)
    between = await system.client.describe_process(PROCESS)

    assert between.status is ProcessStatus.RUNNING
    assert between.graceful_complete_requested
    assert await outputs(system) == [("StepState-2", "first"), ("StepState-3", "second")]
    assert await closed_after(system) == timedelta(seconds=5)


async def test_graceful_complete_waits_for_further_states_of_the_others(system: System) -> None:
    last = Step("dead end", 2)
    await start(system, go(Step("graceful", output="done"), go(go(last, Step("dead end"), after_s=2), after_s=2)))

    assert await outputs(system) == [("StepState-2", "done")]
    assert await closed_after(system) == timedelta(seconds=6)
    assert set((await states(system)).values()) == {StateStatus.COMPLETED}


async def test_graceful_complete_is_done_when_the_other_state_comes_to_a_dead_end(system: System) -> None:
    await start(system, go(Step("graceful"), Step("dead end", 3)))

    assert await outputs(system) == []
    assert await status(system) is ProcessStatus.COMPLETED
    assert await closed_after(system) == timedelta(seconds=3)


async def test_graceful_complete_waits_for_states_that_an_rpc_triggers_meanwhile(system: System) -> None:
    await start(system, go(Step("graceful"), Step("dead end", 3)))
    await asyncio.sleep(1)

    await system.client.invoke_rpc(PROCESS, StepsProcess.do, Step("graceful", 10, "by rpc"))

    assert await outputs(system) == [("StepState-4", "by rpc")]
    assert await closed_after(system) == timedelta(seconds=11)


async def test_force_fail_of_the_last_state_fails_a_process_that_was_to_complete(system: System) -> None:
    await start(system, go(Step("graceful", output="first"), Step("fail", 1, "last")))

    with pytest.raises(ProcessFailed) as failed:
        await outputs(system)

    assert failed.value.error_type is ProcessErrorType.STATE_DECISION
    assert [result.output for result in failed.value.results] == ["first", "last"]


async def test_exhausted_state_fails_a_process_that_was_to_complete(system: System) -> None:
    await start(system, go(Step("graceful", output="first"), Step("raise once", 1)))

    with pytest.raises(ProcessFailed, match="raise once") as failed:
        await outputs(system)

    assert failed.value.error_type is ProcessErrorType.STATE_API
    assert [result.output for result in failed.value.results] == ["first"]
    assert await states(system) == {
        "StepState-1": StateStatus.COMPLETED,
        "StepState-2": StateStatus.COMPLETED,
        "StepState-3": StateStatus.FAILED,
    }
    assert leftovers(system) == {}


RUNNING_WAITING_BACKING_OFF = (Step("complete", 20, "too late"), Step("wait"), Step("raise"))


@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_forced_end_comes_at_once_aborts_the_other_states_and_ignores_their_answers(
    system: System, end: str
) -> None:
    await start(system, go(Step(end, 10, "now"), *RUNNING_WAITING_BACKING_OFF))
    await asyncio.sleep(9)
    before = await states(system)
    await asyncio.sleep(2)
    after, info = await states(system), await system.client.describe_process(PROCESS)
    calls = len(system.worker.calls)
    await asyncio.sleep(7_200)

    assert [state_id for state_id, status in before.items() if status is StateStatus.RUNNING] == [
        "StepState-2",
        "StepState-3",
        "WaitingState-1",
        "StepState-4",
    ]
    assert [state_id for state_id, status in after.items() if status is StateStatus.ABORTED] == [
        "StepState-3",
        "WaitingState-1",
        "StepState-4",
    ]
    assert await closed_after(system) == timedelta(seconds=10)
    assert await system.client.describe_process(PROCESS) == info
    assert [output.output for output in info.outputs] == ["now"]
    assert len(system.worker.calls) == calls
    assert leftovers(system) == {}


async def test_force_fail_tells_that_a_state_decided_so_and_what_the_outputs_are(system: System) -> None:
    await start(system, go(Step("graceful", output="before"), Step("wait"), Step("fail", 1, {"why": "so"})))

    with pytest.raises(ProcessFailed) as failed:
        await system.client.wait_for_process_completion(PROCESS, timeout=DEADLINE)

    assert failed.value.status is ProcessStatus.FAILED
    assert failed.value.error_type is ProcessErrorType.STATE_DECISION
    assert [(result.state_execution_id, result.output) for result in failed.value.results] == [
        ("StepState-2", "before"),
        ("StepState-3", {"why": "so"}),
    ]
    assert (await states(system))["WaitingState-1"] is StateStatus.ABORTED


async def test_dead_end_alone_leaves_the_process_running_until_an_rpc_triggers_a_state_that_completes(
    system: System,
) -> None:
    await start(system, Step("dead end"))
    await asyncio.sleep(3_600)
    idle = await system.client.describe_process(PROCESS)

    await system.client.invoke_rpc(PROCESS, StepsProcess.do, Step("graceful", output="at last"))

    assert (idle.status, idle.states) == (ProcessStatus.RUNNING, ())
    assert await outputs(system) == [("StepState-2", "at last")]


async def test_dead_end_of_one_of_several_states_leaves_the_rest_alone(system: System) -> None:
    await start(system, go(Step("dead end"), go(Step("graceful", 1, "rest"), after_s=1), Step("dead end", 1)))

    assert await outputs(system) == [("StepState-5", "rest")]
    assert await closed_after(system) == timedelta(seconds=2)


async def test_outputs_of_parallel_states_come_in_the_order_of_their_ends_without_the_empty_ones(
    system: System,
) -> None:
    given: list[Any] = [None, "a", 0, None, "", [], None, False]
    await start(system, go(*[Step("graceful", 8 - i, output) for i, output in enumerate(given)]))

    assert await outputs(system) == [
        ("StepState-9", False),
        ("StepState-7", []),
        ("StepState-6", ""),
        ("StepState-4", 0),
        ("StepState-3", "a"),
    ]
    assert system.worker.count("StepState") == 9


@dataclass
class Receipt:
    number: int


class ReceiptState(AsyncState[list[Receipt]]):
    def execute(self, input: list[Receipt]) -> StateDecision:
        if not input:
            return StateDecision.graceful_complete_process()
        movements = [StateMovement.create(OneReceiptState, receipt) for receipt in input]
        return StateDecision.multi_next_states(*movements)


class OneReceiptState(AsyncState[Receipt]):
    def execute(self, input: Receipt) -> StateDecision:
        return StateDecision.graceful_complete_process(input)


class ReceiptProcess(ObjectProcess):
    starting_state = ReceiptState
    states = (OneReceiptState,)


@pytest.mark.parametrize("receipts", [[], [Receipt(7)]], ids=["none", "one"])
async def test_simple_result_is_the_only_output_in_its_type_or_none(system: System, receipts: list[Receipt]) -> None:
    system.serve(ReceiptProcess)
    await system.client.start_process("r", ReceiptProcess, receipts)

    result = await system.client.wait_for_process_completion("r", Receipt | None, DEADLINE)

    assert result == (receipts[0] if receipts else None)


async def test_simple_result_of_two_outputs_is_an_error_that_names_the_other_call(system: System) -> None:
    system.serve(ReceiptProcess)
    await system.client.start_process("r", ReceiptProcess, [Receipt(1), Receipt(2)])

    with pytest.raises(InvalidArgumentError, match="get_process_results"):
        await system.client.wait_for_process_completion("r", Receipt, DEADLINE)

    results = await system.client.get_process_results("r", Receipt, DEADLINE)
    assert [result.output for result in results] == [Receipt(1), Receipt(2)]
