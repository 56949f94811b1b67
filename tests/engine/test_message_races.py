"""Messages against waits, timers and ends of the process, all at the same time (semantics 3.3, 3.4, 4.4)."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from server_stub.config import ServerSettings
from tests.engine.mailbox import DEADLINE, leftovers, timer_count
from tests.support.databases import Database
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    ProcessNotRunningError,
    ProcessStatus,
    StateDecision,
    StateMovement,
    StateStatus,
    TimerCommand,
    internal_queue,
    rpc,
)

T = TypeVar("T")

consumed: list[str] = []


@pytest.fixture(autouse=True)
def nothing_consumed() -> None:
    consumed.clear()


async def all_done(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Run everything at the same time."""
    return list(await asyncio.gather(*awaitables))


class SlowlyAskingState(AsyncState[float]):
    async def wait_until(self, input: float) -> CommandRequest:
        await asyncio.sleep(input)
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(timedelta(hours=1)), InternalQueueCommand.by_name("q")
        )

    def execute(self, command_results: CommandResults) -> StateDecision:
        [result] = command_results.internal_queue_commands
        return StateDecision.graceful_complete_process(result.value or "the timer")


class SlowlyAskingProcess(ObjectProcess):
    q = internal_queue(str)

    starting_state = SlowlyAskingState

    @rpc
    def tell(self, value: str, communication: Communication) -> None:
        communication.publish_to_internal_queue(SlowlyAskingProcess.q, value)


async def test_message_between_the_question_and_its_registration_wakes_the_waiter_by_scans_alone(
    database: Database,
) -> None:
    gaps_ms = random.Random(1)
    settings = replace(ServerSettings(), rescan_interval=timedelta(seconds=1))

    async def ask_and_tell(system: System, process_id: str) -> tuple[str, timedelta]:
        await system.client.start_process(process_id, SlowlyAskingProcess, 0.005)
        asked_at = system.clock() // 1_000 * 1_000 + 1_000  # the scan that lets the worker be asked
        await asyncio.sleep((asked_at - system.clock() + gaps_ms.randint(3, 7)) / 1_000)
        await system.client.publish_to_internal_queue(process_id, SlowlyAskingProcess, "q", f"for {process_id}")
        result = await system.client.wait_for_process_completion(process_id, str, timeout=DEADLINE)
        info = await system.client.describe_process(process_id)
        assert info.closed_at is not None
        return result, info.closed_at - info.started_at

    async with System(database, settings, notify=False) as system:
        system.serve(SlowlyAskingProcess)
        numbers = range(database.some_of(500))
        done = await all_done(ask_and_tell(system, f"p-{i}") for i in numbers)
        timers, executed = timer_count(system), system.worker.count("SlowlyAskingState")

    assert [result for result, _ in done] == [f"for p-{i}" for i in numbers]
    assert max(took for _, took in done) <= timedelta(seconds=3)
    assert (timers, executed) == (0, len(numbers))


@pytest.mark.parametrize("by", ["client", "rpc"])
async def test_message_sent_right_after_the_start_is_never_lost(system: System, by: str) -> None:
    system.serve(SlowlyAskingProcess)

    async def start_and_tell(process_id: str) -> object:
        await system.client.start_process(process_id, SlowlyAskingProcess, 0.0)
        if by == "client":
            await system.client.publish_to_internal_queue(process_id, SlowlyAskingProcess, "q", process_id)
        else:
            await system.client.invoke_rpc(process_id, SlowlyAskingProcess.tell, process_id)
        return await system.client.wait_for_process_completion(process_id, timeout=DEADLINE)

    process_ids = [f"p-{i}" for i in range(system.database.some_of(1_000))]
    results = await all_done(map(start_and_tell, process_ids))

    assert results == process_ids
    assert system.worker.count("SlowlyAskingState") == len(process_ids)
    assert leftovers(system) == {}


class TakeOneState(AsyncState[int]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(LoopProcess.q))

    def execute(self, input: int, command_results: CommandResults) -> StateDecision:
        consumed.extend(command_results.values_of(LoopProcess.q))
        if input == 1:
            return StateDecision.graceful_complete_process()
        return StateDecision.single_next_state(TakeOneState, input - 1)


class LoopProcess(ObjectProcess):
    """Takes as many messages as it is told at start, one state execution each."""

    q = internal_queue(str)

    starting_state = TakeOneState


async def test_messages_of_many_concurrent_clients_are_each_consumed_once_by_a_looping_consumer(
    system: System,
) -> None:
    system.serve(LoopProcess)
    sent = [f"m-{i}" for i in range(100)]
    await system.client.start_process("loop", LoopProcess, 100)

    await all_done(system.client.publish_to_internal_queue("loop", LoopProcess, "q", message) for message in sent)
    await system.client.wait_for_process_completion("loop", timeout=DEADLINE)

    assert sorted(consumed) == sorted(sent)
    assert system.worker.count("TakeOneState") == 100
    assert set(system.worker.by_state().values()) == {1}
    assert leftovers(system) == {}


async def test_messages_of_one_client_are_consumed_in_the_order_in_which_it_sent_them(system: System) -> None:
    system.serve(LoopProcess)
    pauses = random.Random(2)
    clients, messages = range(10), range(system.database.some_of(50))
    count = len(clients) * len(messages)

    async def publish_in_turn(client: int) -> None:
        for i in messages:
            await system.client.publish_to_internal_queue("loop", LoopProcess, "q", f"{client}:{i}")
            await asyncio.sleep(pauses.choice([0, 0, 0.001, 0.01]))

    await system.client.start_process("loop", LoopProcess, count)
    await all_done(map(publish_in_turn, clients))
    await system.client.wait_for_process_completion("loop", timeout=DEADLINE)
    [(next_sequence_id,)] = system.sql("SELECT next_sequence_id FROM xdb_sys_process_execution")

    by_client = {client: [m for m in consumed if m.startswith(f"{client}:")] for client in clients}
    assert by_client == {client: [f"{client}:{i}" for i in messages] for client in clients}
    assert len(consumed) == count
    assert next_sequence_id == count + 1, "numbers of messages have a hole"


class AnyOfThreeState(AsyncState[int]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.by_seconds(1),
            InternalQueueCommand.by_name(AnyOfThreeProcess.a),
            InternalQueueCommand.by_name(AnyOfThreeProcess.b),
        )

    def execute(self, input: int, command_results: CommandResults) -> StateDecision:
        values = [
            *command_results.values_of(AnyOfThreeProcess.a),
            *command_results.values_of(AnyOfThreeProcess.b),
        ]
        consumed.extend(values)
        left = input - len(values)
        if left == 0:
            return StateDecision.graceful_complete_process()
        return StateDecision.single_next_state(AnyOfThreeState, left)


class AnyOfThreeProcess(ObjectProcess):
    """Loops over the first of a timer and two queues until it has got as many messages as it is told."""

    a = internal_queue(str)
    b = internal_queue(str)

    starting_state = AnyOfThreeState


async def test_no_message_is_lost_that_comes_at_the_moment_another_command_ends_the_wait(system: System) -> None:
    system.serve(AnyOfThreeProcess)
    moments_s = random.Random(3)

    async def publish(process_id: str, i: int, at_s: float) -> None:
        await asyncio.sleep(at_s)
        queue = moments_s.choice(["a", "b"])
        await system.client.publish_to_internal_queue(process_id, AnyOfThreeProcess, queue, f"{process_id}:{i}")

    async def run(process_id: str) -> None:
        await system.client.start_process(process_id, AnyOfThreeProcess, 8)
        # Timers of a second fire at whole seconds; so do most of the messages, several of them together.
        at_s = [moments_s.choice([1, 1, 1.001, 0.999, 2, 2, 3, 4]) for _ in range(8)]
        await all_done(publish(process_id, i, at) for i, at in enumerate(at_s))
        await system.client.wait_for_process_completion(process_id, timeout=DEADLINE)

    await all_done(run(f"p-{i}") for i in range(50))

    assert Counter(consumed) == Counter(f"p-{p}:{i}" for p in range(50) for i in range(8))
    assert leftovers(system) == {}


class WorkState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("work"))

    async def execute(self, command_results: CommandResults) -> StateDecision:
        await asyncio.sleep(5)
        return StateDecision.graceful_complete_process(command_results.internal_queue_commands[0].value)


class OverseeState(AsyncState[bool]):
    async def execute(self, input: bool) -> StateDecision:
        await asyncio.sleep(1)
        return StateDecision.force_complete_if_internal_queue_empty_or_else(
            "work", "nothing to do", or_else_state=WorkState, graceful=input
        )


class ForkState(AsyncState[bool]):
    def execute(self, input: bool, communication: Communication) -> StateDecision:
        communication.publish_to_internal_queue("work", "task")
        return StateDecision.multi_next_states(WorkState, StateMovement.create(OverseeState, input))


class OverseenProcess(ObjectProcess):
    work = internal_queue(str)

    starting_state = ForkState
    states = (WorkState, OverseeState)


async def test_graceful_conditional_close_waits_for_the_state_that_works_on_the_last_message(system: System) -> None:
    system.serve(OverseenProcess)
    await system.client.start_process("p", OverseenProcess, True)

    outputs = await system.client.get_process_results("p", timeout=DEADLINE)
    info = await system.client.describe_process("p")

    assert [(output.state_id, output.output) for output in outputs] == [
        ("OverseeState", "nothing to do"),
        ("WorkState", "task"),
    ]
    assert info.closed_at is not None
    assert info.closed_at - info.started_at == timedelta(seconds=5)


async def test_forced_conditional_close_aborts_the_state_that_works_on_the_last_message_and_says_so(
    system: System,
) -> None:
    system.serve(OverseenProcess)
    await system.client.start_process("p", OverseenProcess, False)

    outputs = await system.client.get_process_results("p", timeout=DEADLINE)
    info = await system.client.describe_process("p", include={"closed_states"})

    assert [output.output for output in outputs] == ["nothing to do"]
    assert {closed.state_id: closed.status for closed in info.states} == {
        "ForkState": StateStatus.COMPLETED,
        "WorkState": StateStatus.ABORTED,
        "OverseeState": StateStatus.COMPLETED,
    }


class DrainState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("q"))

    async def execute(self, command_results: CommandResults) -> StateDecision:
        consumed.extend(command_results.internal_queue_commands[0].values)
        await asyncio.sleep(0.01)
        return StateDecision.force_complete_if_internal_queue_empty_or_else("q", or_else_state=DrainState)


class DrainProcess(ObjectProcess):
    """Works off a queue, and completes when there is nothing left to do."""

    q = internal_queue(str)

    starting_state = DrainState


async def publish_until_refused(system: System, process_id: str, pauses_s: Iterable[float]) -> list[str]:
    """Publish one message after another until the process is closed; give those that were accepted."""
    accepted: list[str] = []
    for i, pause_s in enumerate(pauses_s):
        message = f"{process_id}:{i}"
        try:
            await system.raw.publish_to_internal_queue(process_id, "q", message)
        except ProcessNotRunningError:
            break
        accepted.append(message)
        await asyncio.sleep(pause_s)
    return accepted


async def test_conditional_close_under_constant_traffic_drops_no_message_that_was_accepted(system: System) -> None:
    system.serve(DrainProcess)
    pauses = random.Random(4)
    # A little slower than the process works, so that its queue is empty now and then when it looks.
    pauses_s = [[pauses.choice([0, 0.01, 0.01, 0.019, 0.025]) for _ in range(1_000)] for _ in range(100)]
    await all_done(system.client.start_process(f"p-{i}", DrainProcess) for i in range(100))

    accepted = await all_done(publish_until_refused(system, f"p-{i}", pauses_s[i]) for i in range(100))

    assert Counter(consumed) == Counter(message for messages in accepted for message in messages)
    assert max(map(len, accepted)) > 10, "no process found messages again and again when it wanted to close"
    assert leftovers(system) == {}


class EndSoonState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(1)
        return StateDecision.graceful_complete_process()


class EndSoonProcess(ObjectProcess):
    q = internal_queue(str)

    starting_state = EndSoonState


async def test_process_closes_in_one_attempt_under_constant_traffic_and_refuses_what_comes_after(
    system: System,
) -> None:
    system.serve(EndSoonProcess)
    await system.client.start_process("p", EndSoonProcess)

    accepted = await publish_until_refused(system, "p", itertools.repeat(0.005))
    info = await system.client.describe_process("p")

    assert info.status is ProcessStatus.COMPLETED
    assert len(accepted) in (200, 201)
    assert system.worker.count("EndSoonState") == 1
    assert leftovers(system) == {}
