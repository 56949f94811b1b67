"""Waits of several commands: any, all, combinations (semantics 3.1, 3.3 to 3.5)."""

import asyncio
from datetime import timedelta

import pytest

from tests.engine.mailbox import (
    BOX,
    DEADLINE,
    Ask,
    Mailbox,
    Want,
    all_of,
    any_of,
    ask,
    claims,
    combination_of,
    leftovers,
    publish,
    queue_sizes,
    received,
    results,
    start_mailbox,
    timer_count,
)
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    InternalQueue,
    InternalQueueCommand,
    ObjectProcess,
    ProcessContext,
    ProcessStatus,
    QueueMessage,
    StateDecision,
    StateStatus,
    TimerCommand,
    internal_queue,
)

WAITING, SCHEDULED, FIRED = "WAITING", "SCHEDULED", "FIRED"


async def test_any_takes_only_the_first_command_that_can_be_filled(system: System) -> None:
    await start_mailbox(system)
    await publish(system, "b", "b1")
    await publish(system, "a", "a1")

    await ask(system, any_of("a", "b"), all_of("c"))
    sizes = await queue_sizes(system)
    await publish(system, "c", "end")

    assert sizes == {"b": 1}
    assert await results(system) == [[["a1"], WAITING], [["end"]]]


async def test_any_of_nothing_available_waits_and_takes_nothing(system: System) -> None:
    await start_mailbox(system)
    await publish(system, "c", "of no use")

    await ask(system, any_of("a", Want("c", 2)))

    assert await received(system) == []
    assert await claims(system) == [[0, 0]]
    assert await queue_sizes(system) == {"c": 1}


async def test_all_partly_satisfied_keeps_its_claims_until_the_last_message_comes(system: System) -> None:
    await start_mailbox(system, all_of("a", Want("b", 2), "c"))

    await publish(system, "a", "a1")
    await publish(system, "b", "b1")
    await publish(system, "c", "c1")
    before = (await received(system), await claims(system), await queue_sizes(system))
    await publish(system, "b", "b2")

    assert before == ([], [[1, 0, 1]], {"b": 1})
    assert await results(system) == [[["a1"], ["b1", "b2"], ["c1"]]]


async def test_all_of_a_timer_and_queues_gets_messages_of_a_batch_and_of_an_rpc_in_their_own_queues(
    system: System,
) -> None:
    await start_mailbox(system, all_of("a", "b", "c", timers_s=[60]))

    await system.client.publish_messages(
        BOX, Mailbox, [QueueMessage(queue="c", value="c1"), QueueMessage(queue="b", value="b1")]
    )
    await system.client.invoke_rpc(BOX, Mailbox.publish_and_count, ["a1"])
    before_the_timer = await received(system)

    assert before_the_timer == []
    assert await results(system) == [[["a1"], ["b1"], ["c1"], FIRED]]
    assert leftovers(system) == {}


async def test_batch_that_could_satisfy_any_twice_gives_one_command_its_message(system: System) -> None:
    await start_mailbox(system, any_of("a", "a", "b"), all_of("c"))

    messages = [QueueMessage(queue=queue, value=i) for i, queue in enumerate("baa")]
    await system.client.publish_messages(BOX, Mailbox, messages)
    sizes = await queue_sizes(system)
    await publish(system, "c", "end")

    assert sizes == {"a": 1, "b": 1}
    assert await results(system) == [[[1], WAITING, WAITING], [["end"]]]


@pytest.mark.parametrize("kind", ["any", "all"])
async def test_wait_for_no_commands_goes_to_execute_at_once(system: System, kind: str) -> None:
    await start_mailbox(system, Ask(kind, []))

    assert await results(system) == [[]]


async def test_one_whole_list_of_a_combination_ends_the_wait(system: System) -> None:
    wants = [Want("a", command_id="a"), Want("b", command_id="b"), Want("c", command_id="c")]
    await start_mailbox(system, combination_of([["a", "b"], ["c"]], *wants))

    await publish(system, "c", "c1")

    assert await results(system) == [[WAITING, WAITING, ["c1"]]]


async def test_part_of_a_list_does_not_end_the_wait_and_the_rest_of_it_does(system: System) -> None:
    wants = [Want("a", command_id="a"), Want("b", command_id="b"), Want("c", command_id="c")]
    await start_mailbox(system, combination_of([["a", "b"], ["c"]], *wants))

    await publish(system, "a", "a1")
    after_a = await received(system)
    await publish(system, "b", "b1")

    assert after_a == []
    assert await results(system) == [[["a1"], ["b1"], WAITING]]


async def test_command_outside_the_winning_list_delivers_what_it_has_received(system: System) -> None:
    wants = [Want("a", command_id="a"), Want("b", command_id="b"), Want("c", command_id="c")]
    await start_mailbox(system, combination_of([["a", "b"], ["c"]], *wants))

    await publish(system, "a", "a1")
    await publish(system, "c", "c1")

    assert await results(system) == [[["a1"], WAITING, ["c1"]]]
    assert leftovers(system) == {}


async def test_timer_may_end_a_combination_together_with_a_message(system: System) -> None:
    ask_for = combination_of([["a", "t0"]], Want("a", command_id="a"), timers_s=[60, 3_600])
    await start_mailbox(system, ask_for)

    await publish(system, "a", "a1")
    await asyncio.sleep(59)
    before = await received(system)

    assert before == []
    assert await results(system) == [[["a1"], FIRED, SCHEDULED]]
    assert timer_count(system) == 0


async def test_id_twice_in_a_list_needs_two_commands_with_that_id_to_complete(system: System) -> None:
    wants = [Want("a", command_id="same"), Want("b", command_id="same"), Want("c", command_id="c")]
    await start_mailbox(system, combination_of([["same", "same"]], *wants))

    await publish(system, "b", "b1")
    after_one = await received(system)
    await publish(system, "a", "a1")

    assert after_one == []
    assert await results(system) == [[["a1"], ["b1"], WAITING]]


IMPOSSIBLE = {
    "unknown id": ([["known", "zz"]], "known"),
    "empty list": ([["known"], []], "known"),
    "no list": ([], "known"),
    "command without id": ([["known"]], None),
    "id more often than there are commands": ([["known", "known"]], "known"),
}


class PickyState(AsyncState[str]):
    def wait_until(self, input: str, ctx: ProcessContext) -> CommandRequest:
        combinations, command_id = IMPOSSIBLE[input] if ctx.attempt == 1 else ([["known"]], "known")
        return CommandRequest.for_any_command_combination_completed(
            combinations, InternalQueueCommand.by_name(PickyProcess.q, command_id=command_id)
        )

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process(command_results.internal_queue_commands[0].value)


class PickyProcess(ObjectProcess):
    q = internal_queue(str)

    starting_state = PickyState


@pytest.mark.parametrize("mistake", IMPOSSIBLE)
async def test_impossible_combination_is_a_failed_attempt_and_a_corrected_one_proceeds(
    system: System, mistake: str
) -> None:
    system.serve(PickyProcess)
    await system.client.start_process("picky", PickyProcess, mistake)
    await system.client.publish_to_internal_queue("picky", PickyProcess, PickyProcess.q, "here")
    await asyncio.sleep(0.5)

    [failing] = (await system.client.describe_process("picky")).states
    result = await system.client.wait_for_process_completion("picky", str, timeout=DEADLINE)

    assert failing.last_failure is not None
    assert failing.last_failure.error_type == "InvalidArgumentError"
    assert failing.attempt == 2
    assert result == "here"
    assert system.worker.count("PickyState", "wait-until") == 2


async def test_results_of_all_commands_without_ids_stand_at_the_place_of_their_command(system: System) -> None:
    await start_mailbox(system, all_of("a", "a", timers_s=[2, 1]))

    await publish(system, "a", "first")
    await asyncio.sleep(1.5)
    await publish(system, "a", "second")

    assert await results(system) == [[["first"], ["second"], FIRED, FIRED]]


@pytest.mark.parametrize(
    ("message_after_s", "expected"),
    [
        (0.5, [["first"], WAITING, SCHEDULED, SCHEDULED]),
        (None, [WAITING, WAITING, SCHEDULED, FIRED]),
    ],
    ids=["message", "second timer"],
)
async def test_result_of_any_command_without_ids_stands_at_the_place_of_the_command_that_completed(
    system: System, message_after_s: float | None, expected: list[object]
) -> None:
    await start_mailbox(system, any_of("a", "a", timers_s=[2, 1]))

    if message_after_s is not None:
        await asyncio.sleep(message_after_s)
        await publish(system, "a", "first")

    assert await results(system) == [expected]


async def test_wait_of_many_commands_keeps_its_claims_over_a_restart_and_takes_no_surplus(system: System) -> None:
    await start_mailbox(system, all_of(Want("a", 2), "b", Want("c", 3)), all_of("p_end"))

    for i, queue in enumerate("cbac"):
        await publish(system, queue, f"{queue}{i}")
    await system.restart_server()
    for i, queue in enumerate("aabb", start=4):
        await publish(system, queue, f"{queue}{i}")
    before_the_last = await received(system)
    await publish(system, "c", "c8")
    sizes = await queue_sizes(system)
    await publish(system, "p_end", "end")

    assert before_the_last == []
    assert sizes == {"a": 1, "b": 2}
    assert await results(system) == [[["a2", "a4"], ["b1"], ["c0", "c3", "c8"]], [["end"]]]
    assert system.worker.count("WaitState") == 2
    assert leftovers(system) == {}


class ReminderState(AsyncState[float]):
    def wait_until(self, input: float) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.by_seconds(input), InternalQueueCommand.by_name(ReminderProcess.answers)
        )

    def execute(self, command_results: CommandResults) -> StateDecision:
        if command_results.timer_commands[0].is_fired:
            return StateDecision.graceful_complete_process("no answer")
        return StateDecision.single_next_state(ReminderState, 60)


class ReminderProcess(ObjectProcess):
    answers: InternalQueue[str] = internal_queue(str)

    starting_state = ReminderState


async def test_timer_of_a_wait_that_ended_by_a_message_is_gone_and_ends_no_later_wait(system: System) -> None:
    system.serve(ReminderProcess)
    await system.client.start_process("reminder", ReminderProcess, 5.0)
    await asyncio.sleep(1)
    await system.client.publish_to_internal_queue("reminder", ReminderProcess, ReminderProcess.answers, "hello")
    await asyncio.sleep(0.001)

    timers = system.sql("SELECT state_id, number, fire_at_ms FROM xdb_sys_timer_tasks")
    await asyncio.sleep(58)
    late = await system.client.describe_process("reminder")
    await asyncio.sleep(3)
    closed = await system.client.describe_process("reminder")

    assert [(state_id, number) for state_id, number, _ in timers] == [("ReminderState", 2)]
    assert [open_state.number for open_state in late.states] == [2]
    assert closed.status is ProcessStatus.COMPLETED
    assert closed.closed_at is not None
    assert closed.closed_at - closed.started_at == timedelta(seconds=61)
    assert timer_count(system) == 0


async def test_messages_claimed_by_a_state_that_is_aborted_are_gone_with_it(system: System) -> None:
    await start_mailbox(system, all_of(Want("a", 2), "b"))
    await publish(system, "a", "a1", "a2", "a3")
    claimed = (await claims(system), await queue_sizes(system))

    await system.client.stop_process(BOX)
    info = await system.client.describe_process(BOX, include={"closed_states", "queues"})

    assert claimed == ([[2, 0]], {"a": 1})
    assert info.status is ProcessStatus.TERMINATED
    assert [closed.status for closed in info.states] == [StateStatus.ABORTED]
    assert info.queue_sizes == {}
    assert leftovers(system) == {}
