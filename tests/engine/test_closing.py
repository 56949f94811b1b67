"""Ends of processes: on a condition, at the same instant, late answers, and the ids of states (semantics 4)."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.mailbox import DEADLINE, leftovers, timer_count
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    ProcessAbnormalExitError,
    ProcessContext,
    ProcessNotRunningError,
    ProcessStartOptions,
    ProcessStatus,
    RetryPolicy,
    RpcExecutionError,
    StateDecision,
    StateMovement,
    StateStatus,
    TimerCommand,
    internal_queue,
    rpc,
    state,
)


class OrderState(AsyncState[list[str]]):
    """Handles what it got, publishes what its input says, and completes if there is nothing more."""

    async def execute(self, input: list[str], communication: Communication) -> StateDecision:
        await asyncio.sleep(5)
        for item in input:
            communication.publish_to_internal_queue(OrderProcess.items, item)
        return StateDecision.force_complete_if_internal_queue_empty_or_else(
            OrderProcess.items, ["complete"], or_else_state=NextItemState
        )


class NextItemState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(OrderProcess.items))

    async def execute(self, command_results: CommandResults) -> StateDecision:
        await asyncio.sleep(5)
        handled = list(command_results.values_of(OrderProcess.items))
        return StateDecision.force_complete_if_internal_queue_empty_or_else(
            OrderProcess.items, handled, or_else_state=NextItemState
        )


class OrderProcess(ObjectProcess):
    items = internal_queue(str)

    starting_state = OrderState
    states = (NextItemState,)


async def completed_with(system: System, process_id: str = "p") -> Any:
    """Wait until a process completes and give its output."""
    return await system.client.wait_for_process_completion(process_id, timeout=DEADLINE)


async def test_conditional_close_of_an_empty_queue_completes_with_its_output(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess, [])

    assert await completed_with(system) == ["complete"]
    assert system.worker.count("NextItemState") == 0
    assert leftovers(system) == {}


async def test_conditional_close_goes_on_for_messages_that_came_during_execute_and_loses_none(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess, [])
    await asyncio.sleep(4)
    await system.client.publish_to_internal_queue("p", OrderProcess, OrderProcess.items, "during the first")
    await asyncio.sleep(5)
    await system.client.publish_to_internal_queue("p", OrderProcess, OrderProcess.items, "during the second")

    assert await completed_with(system) == ["during the second"]
    assert system.worker.count("NextItemState") == 2
    with pytest.raises(ProcessNotRunningError):
        await system.client.publish_to_internal_queue("p", OrderProcess, OrderProcess.items, "too late")


async def test_conditional_close_goes_on_for_a_message_of_its_own_answer(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess, ["my own"])

    assert await completed_with(system) == ["my own"]
    assert system.worker.count("NextItemState") == 1


class SettleState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(
            InternalQueueCommand.by_name("items"), InternalQueueCommand.by_name("never")
        )

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class CheckState(AsyncState[None]):
    async def execute(self, ctx: ProcessContext) -> StateDecision:
        await asyncio.sleep(5)
        return StateDecision.force_complete_if_internal_queue_empty_or_else(
            ["items", "never"], "complete", or_else_state=CheckState
        )


class HeldProcess(ObjectProcess):
    items = internal_queue(str)
    never = internal_queue(str)

    states = (SettleState, CheckState)

    @rpc
    def go(self, communication: Communication) -> None:
        communication.trigger_state_execution(SettleState)
        communication.trigger_state_execution(CheckState)


async def test_message_held_by_a_wait_that_goes_on_keeps_a_conditional_close_from_closing(system: System) -> None:
    system.serve(HeldProcess)
    await system.client.start_process("p", HeldProcess)
    await system.client.publish_to_internal_queue("p", HeldProcess, HeldProcess.items, "held")
    await system.client.invoke_rpc("p", HeldProcess.go)

    await asyncio.sleep(12)
    held = await system.client.describe_process("p", include={"queues"})
    await system.client.publish_to_internal_queue("p", HeldProcess, HeldProcess.never, "now")

    assert (held.status, held.queue_sizes) == (ProcessStatus.RUNNING, {})
    assert await completed_with(system) == "complete"
    assert system.worker.count("SettleState") == 1


class BothRpcProcess(ObjectProcess):
    states = (SettleState,)
    items = internal_queue(str)
    never = internal_queue(str)

    @rpc
    def both(self, communication: Communication) -> None:
        communication.trigger_state_execution(SettleState)
        communication.decide(StateDecision.force_complete_process())


async def test_rpc_that_closes_and_starts_a_state_is_refused_and_changes_nothing(system: System) -> None:
    system.serve(BothRpcProcess)
    await system.client.start_process("p", BothRpcProcess)

    with pytest.raises(RpcExecutionError, match="one decision"):
        await system.client.invoke_rpc("p", BothRpcProcess.both)

    info = await system.client.describe_process("p", include={"closed_states"})
    assert (info.status, info.states) == (ProcessStatus.RUNNING, ())


@dataclass
class End:
    how: str
    after_s: float


class EndState(AsyncState[End]):
    async def execute(self, input: End) -> StateDecision:
        await asyncio.sleep(input.after_s)
        if input.how == "complete":
            return StateDecision.force_complete_process(input.how)
        return StateDecision.force_fail_process(input.how)


class WaitState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(InternalQueueCommand.by_name("never"))

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class FirstEndState(AsyncState[list[End]]):
    def execute(self, input: list[End]) -> StateDecision:
        ends = [StateMovement.create(EndState, end) for end in input]
        return StateDecision.multi_next_states(WaitState, *ends)


class EndsProcess(ObjectProcess):
    """Ends as its input says, in several ways one of which is first; or by RPC."""

    never = internal_queue(None)

    starting_state = FirstEndState
    states = (EndState, WaitState)

    @rpc
    def end(self, communication: Communication) -> None:
        communication.decide(StateDecision.force_complete_process("rpc"))


async def final_status(system: System, process_id: str) -> ProcessStatus:
    """Give the status in which a process has ended, which must be the same to every way of asking."""
    info = await system.client.describe_process(process_id)
    [listed] = [each async for each in system.client.list_processes(process_id=process_id)]
    try:
        await system.client.get_process_results(process_id, timeout=timedelta(0))
        waited = ProcessStatus.COMPLETED
    except ProcessAbnormalExitError as error:
        waited = error.status
    assert info.status == listed.status == waited
    assert info.closed_at == listed.closed_at
    return info.status


@pytest.mark.parametrize("order", [["complete", "fail"], ["fail", "complete"]], ids="-".join)
async def test_of_two_ends_in_the_same_instant_the_first_commit_wins_and_the_other_is_dropped(
    system: System, order: list[str]
) -> None:
    system.serve(EndsProcess)
    ends = [End(how, 1) for how in order]
    await asyncio.gather(*[system.client.start_process(f"p-{i}", EndsProcess, ends) for i in range(20)])
    await asyncio.sleep(10)

    for i in range(20):
        status = await final_status(system, f"p-{i}")
        info = await system.client.describe_process(f"p-{i}", include={"closed_states"})
        states = [each.status for each in info.states if each.state_id == "EndState"]
        expected = "complete" if status is ProcessStatus.COMPLETED else "fail"
        assert [output.output for output in info.outputs] == [expected]
        assert sorted(states) == [StateStatus.ABORTED, StateStatus.COMPLETED]
    assert leftovers(system) == {}


async def test_any_of_several_waiting_states_may_close_and_it_does_so_once(system: System) -> None:
    system.serve(EndsProcess)
    ends = [End("complete", after_s) for after_s in (3, 1, 2)]
    await system.client.start_process("p", EndsProcess, ends)

    outputs = await system.client.get_process_results("p", timeout=DEADLINE)
    await asyncio.sleep(10)
    info = await system.client.describe_process("p", include={"closed_states"})

    assert [output.state_execution_id for output in outputs] == ["EndState-2"]
    assert info.closed_at is not None
    assert info.closed_at - info.started_at == timedelta(seconds=1)
    assert sorted(each.status for each in info.states) == [
        *[StateStatus.ABORTED] * 3,
        *[StateStatus.COMPLETED] * 2,
    ]


async def test_ends_of_every_kind_at_the_same_time_leave_one_status_that_of_the_earliest(system: System) -> None:
    system.serve(EndsProcess)
    moments_s = random.Random(5)
    earliest: dict[str, set[ProcessStatus]] = {}

    async def after(delay_s: float, act: Callable[[], Coroutine[Any, Any, object]]) -> None:
        await asyncio.sleep(delay_s)
        try:
            await act()
        except ProcessNotRunningError:
            return

    async def end_in_every_way(process_id: str) -> None:
        complete, fail, timeout, stop, by_rpc = (moments_s.choice([1, 1.001, 1.002, 1.003]) for _ in range(5))
        at_s = [(complete, ProcessStatus.COMPLETED), (fail, ProcessStatus.FAILED), (timeout, ProcessStatus.TIMEOUT)]
        at_s += [(stop, ProcessStatus.TERMINATED), (by_rpc, ProcessStatus.COMPLETED)]
        first = min(moment for moment, _ in at_s)
        earliest[process_id] = {status for moment, status in at_s if moment == first}
        options = ProcessStartOptions(timeout=timedelta(seconds=timeout))
        ends = [End("complete", complete), End("fail", fail)]
        await system.client.start_process(process_id, EndsProcess, ends, options)
        await asyncio.gather(
            after(stop, lambda: system.client.stop_process(process_id)),
            after(by_rpc, lambda: system.client.invoke_rpc(process_id, EndsProcess.end)),
        )

    await asyncio.gather(*[end_in_every_way(f"p-{i}") for i in range(system.database.some_of(200))])
    await asyncio.sleep(60)
    ended = {process_id: await final_status(system, process_id) for process_id in earliest}

    assert {p: status for p, status in ended.items() if status not in earliest[p]} == {}
    assert set(ended.values()) == {
        ProcessStatus.COMPLETED,
        ProcessStatus.FAILED,
        ProcessStatus.TIMEOUT,
        ProcessStatus.TERMINATED,
    }
    assert timer_count(system) == 0
    assert leftovers(system) == {}


class SlowToAskState(AsyncState[None]):
    async def wait_until(self, communication: Communication) -> CommandRequest:
        communication.publish_to_internal_queue("q", "late")
        await asyncio.sleep(5)
        return CommandRequest.for_any_command_completed(TimerCommand.by_seconds(1))

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class CloseAtOneState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(1)
        return StateDecision.force_complete_process()


class ForkState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(SlowToAskState, CloseAtOneState)


class LateProcess(ObjectProcess):
    q = internal_queue(str)

    starting_state = ForkState
    states = (SlowToAskState, CloseAtOneState)


async def test_late_answer_of_wait_until_does_not_revive_a_state_that_was_aborted(system: System) -> None:
    system.serve(LateProcess)
    await system.client.start_process("p", LateProcess)
    await asyncio.sleep(2)
    at_two = await system.client.describe_process("p", include={"closed_states", "queues"})

    await asyncio.sleep(100)

    assert at_two.status is ProcessStatus.COMPLETED
    assert {each.state_id: each.status for each in at_two.states}["SlowToAskState"] is StateStatus.ABORTED
    assert await system.client.describe_process("p", include={"closed_states", "queues"}) == at_two
    assert system.worker.count("SlowToAskState") == 0
    assert timer_count(system) == 0
    assert leftovers(system) == {}


class PartState(AsyncState[int]):
    """Tells, in its last commit, that it is done."""

    async def execute(self, input: int, communication: Communication) -> StateDecision:
        await asyncio.sleep(input % 3)
        communication.publish_to_internal_queue(PartsProcess.done, input)
        return StateDecision.graceful_complete_process()


class GatherState(AsyncState[int]):
    def wait_until(self, input: int) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(PartsProcess.done, input))

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process(sorted(command_results.values_of(PartsProcess.done)))


class SpreadState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        parts = [StateMovement.create(PartState, i) for i in range(input)]
        return StateDecision.multi_next_states(StateMovement.create(GatherState, 2 * input), *parts)


class PartsProcess(ObjectProcess):
    done = internal_queue(int)

    starting_state = SpreadState
    states = (PartState, GatherState)

    @rpc
    async def tell(self, input: int, communication: Communication) -> None:
        await asyncio.sleep(input % 3)
        communication.publish_to_internal_queue(PartsProcess.done, input)


async def test_many_parallel_states_and_rpcs_that_publish_and_complete_all_finish(system: System) -> None:
    system.serve(PartsProcess)
    processes, parts = [f"p-{i}" for i in range(5)], 50
    for process_id in processes:
        await system.client.start_process(process_id, PartsProcess, parts)

    await asyncio.gather(
        *[
            system.client.invoke_rpc(process_id, PartsProcess.tell, parts + i)
            for process_id, i in itertools.product(processes, range(parts))
        ]
    )
    results = [await completed_with(system, process_id) for process_id in processes]

    assert results == [list(range(2 * parts))] * 5
    assert system.worker.count("PartState") == 5 * parts
    assert set(system.worker.by_state().values()) == {5}
    assert leftovers(system) == {}


@state(state_id="named/first")
class NamedState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(TimerCommand.by_seconds(3_600))

    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(FailingNamedState)


@state(state_id="named/rescue")
class RescueState(AsyncState[None]):
    def execute(self, ctx: ProcessContext) -> StateDecision:
        assert ctx.recover_from is not None
        return StateDecision.graceful_complete_process([ctx.state_execution_id, ctx.recover_from.state_execution_id])


@state(
    state_id="named/fails",
    execute_api_retry_policy=RetryPolicy(maximum_attempts=1),
    proceed_to_state_when_execute_retry_exhausted=RescueState,
)
class FailingNamedState(AsyncState[None]):
    def execute(self) -> StateDecision:
        raise RuntimeError("on purpose")


class NamedProcess(ObjectProcess):
    starting_state = NamedState
    states = (FailingNamedState, RescueState)


async def test_state_named_by_its_class_goes_by_the_id_of_its_options_everywhere(system: System) -> None:
    system.serve(NamedProcess)
    await system.client.start_process("p", NamedProcess)
    await asyncio.sleep(1)

    await system.client.skip_timer("p", NamedState, index=0)
    completion = await system.client.wait_for_state_completion("p", NamedState, timeout=DEADLINE)
    result = await completed_with(system)
    info = await system.client.describe_process("p", include={"closed_states"})

    assert completion.state_execution_id == "named/first-1"
    assert result == ["named/rescue-1", "named/fails-1"]
    assert [each.state_id for each in info.states] == ["named/first", "named/fails", "named/rescue"]
    assert info.closed_at is not None
    assert info.closed_at - info.started_at == timedelta(seconds=1)
