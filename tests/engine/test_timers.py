"""Timer commands: when they fire, what they leave, and how they are skipped (semantics 3.4 to 3.6)."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.engine.mailbox import (
    BOX,
    all_of,
    any_of,
    ask,
    leftovers,
    publish,
    received,
    results,
    start_mailbox,
    timer_count,
)
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    CommandRequest,
    CommandResults,
    ErrorSubType,
    InternalQueueCommand,
    ObjectProcess,
    ProcessStartOptions,
    ProcessTerminated,
    ProcessTimeout,
    QueueCommandStatus,
    StateDecision,
    StateMovement,
    TimerCommand,
    TimerStatus,
    internal_queue,
)

LOOK_AHEAD_MS = 60_000
"""The default of the setting: timers due later are not kept in memory."""


def now_s() -> float:
    return asyncio.get_running_loop().time()


# When they fire


async def test_timer_alone_fires_after_its_duration(system: System) -> None:
    await start_mailbox(system)
    began_s = now_s()

    await ask(system, any_of(timers_s=[1]))
    outcomes = await results(system)

    assert outcomes == [["FIRED"]]
    assert now_s() - began_s == pytest.approx(1, abs=0.005)


async def test_all_of_three_timers_ends_with_the_last(system: System) -> None:
    await start_mailbox(system)
    began_s = now_s()

    await ask(system, all_of(timers_s=[2, 3, 1]))
    await asyncio.sleep(2.5)
    before = await received(system)
    outcomes = await results(system)

    assert before == []
    assert outcomes == [["FIRED", "FIRED", "FIRED"]]
    assert now_s() - began_s == pytest.approx(3, abs=0.005)


async def test_message_ends_the_wait_before_its_timer_which_stays_scheduled(system: System) -> None:
    await start_mailbox(system, any_of("a", timers_s=[20]))
    began_s = now_s()

    await publish(system, "a", "early")
    outcomes = await results(system)

    assert outcomes == [[["early"], "SCHEDULED"]]
    assert now_s() - began_s < 5
    assert timer_count(system) == 0


async def test_timer_ends_the_wait_without_a_message_and_the_queue_command_stays_waiting(system: System) -> None:
    await start_mailbox(system, any_of("a", timers_s=[5]))

    outcomes = await results(system)

    assert outcomes == [["WAITING", "FIRED"]]
    [body] = system.worker.bodies("WaitState")
    assert body["commandResults"]["internalQueueResults"] == [{"queueName": "a", "status": "WAITING"}]


@pytest.mark.parametrize("seconds", [0, -5])
async def test_timer_of_no_time_fires_at_once_without_being_set(system: System, seconds: int) -> None:
    await start_mailbox(system, all_of(timers_s=[seconds]))

    outcomes = await received(system)

    assert outcomes == [["FIRED"]]
    assert timer_count(system) == 0


class SleepUntilState(AsyncState[datetime]):
    def wait_until(self, input: datetime) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.at(input))

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process(command_results.timer_commands[0].status)


class AlarmClock(ObjectProcess):
    starting_state = SleepUntilState


@pytest.mark.parametrize(("offset_s", "slept_s"), [(-3_600, 0), (3_600, 3_600)], ids=["past", "future"])
async def test_timer_at_an_instant_fires_then_or_at_once_if_it_is_past(
    system: System, offset_s: int, slept_s: int
) -> None:
    system.serve(AlarmClock)
    fire_at = datetime.fromtimestamp(system.clock() / 1_000, UTC) + timedelta(seconds=offset_s)
    began_s = now_s()

    await system.client.start_process("p", AlarmClock, fire_at)
    status = await system.client.wait_for_process_completion("p", TimerStatus)

    assert status is TimerStatus.FIRED
    assert now_s() - began_s == pytest.approx(slept_s, abs=0.005)


@pytest.mark.parametrize(("down_s", "fires_at_s"), [(10, 60), (300, 320)], ids=["back before", "back after"])
async def test_timer_fires_after_a_restart_of_the_server_over_or_before_its_time(
    system: System, down_s: int, fires_at_s: int
) -> None:
    await start_mailbox(system, any_of(timers_s=[60]))
    began_s = now_s()
    await asyncio.sleep(20)

    await system.restart_server(down_s=down_s)
    outcomes = await results(system)

    assert outcomes == [["FIRED"]]
    assert now_s() - began_s == pytest.approx(fires_at_s, abs=0.005)


async def test_timer_that_is_due_earlier_but_was_set_later_fires_first(system: System) -> None:
    durations_s = [600.0, 500.0, 90.0, 61.0, 30.0, 5.0, 1.0]
    await start_mailbox(system)
    began_s = now_s()

    fired_at_s = []
    for duration_s in durations_s:
        await ask(system, any_of(timers_s=[duration_s]))
    for count in range(len(durations_s)):
        await system.client.wait_for_state_completion(BOX, "WaitState", len(durations_s) - count)
        fired_at_s.append(now_s() - began_s)

    assert fired_at_s == pytest.approx(sorted(durations_s), abs=0.05)


async def test_hundred_timers_of_one_wait_complete_with_the_last(system: System) -> None:
    await start_mailbox(system, all_of(timers_s=[float(seconds) for seconds in range(100, 0, -1)]))
    began_s = now_s()

    outcomes = await results(system)

    assert outcomes == [["FIRED"] * 100]
    assert now_s() - began_s == pytest.approx(100, abs=0.005)


@pytest.mark.parametrize("delay_ms", [250, LOOK_AHEAD_MS - 1, LOOK_AHEAD_MS, LOOK_AHEAD_MS + 1, 600_000])
async def test_timer_is_in_time_on_either_side_of_what_is_kept_in_memory(system: System, delay_ms: int) -> None:
    assert system.settings.look_ahead // timedelta(milliseconds=1) == LOOK_AHEAD_MS
    await start_mailbox(system)
    await asyncio.sleep(7)
    began_s = now_s()

    await ask(system, any_of(timers_s=[delay_ms / 1_000]))
    await results(system)

    assert now_s() - began_s == pytest.approx(delay_ms / 1_000, abs=0.005)


async def test_timer_fires_while_the_wait_until_of_another_state_is_running(system: System) -> None:
    system.serve(SideBySide)

    await system.client.start_process("p", SideBySide)
    outputs = await system.client.get_process_results("p")

    assert [(each.state_execution_id, each.output) for each in outputs] == [
        ("ShortSleepState-1", 5),
        ("SlowToWaitState-1", 15),
    ]
    assert system.worker.attempts("SlowToWaitState", "wait-until") == [(1, 0)]
    assert system.worker.attempts("SlowToWaitState") == [(1, 0)]


class SideBySideState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(ShortSleepState, SlowToWaitState)


class ShortSleepState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(5))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process(round(now_s()))


class SlowToWaitState(AsyncState[None]):
    async def wait_until(self) -> CommandRequest:
        await asyncio.sleep(10)
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(5))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process(round(now_s()))


class SideBySide(ObjectProcess):
    starting_state = SideBySideState
    states = (ShortSleepState, SlowToWaitState)


# Loops


class ReminderState(AsyncState[int]):
    """Waits 60 s for a message again and again, and counts how often it did so in vain."""

    def wait_until(self, input: int) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.by_seconds(5 if input == 0 else 60), InternalQueueCommand.by_name("answer")
        )

    def execute(self, input: int, command_results: CommandResults) -> StateDecision:
        answer = command_results.internal_queue_commands[0]
        if answer.status is QueueCommandStatus.WAITING:
            return StateDecision.single_next_state(ReminderState, input + 1)
        if answer.value == "later":
            return StateDecision.single_next_state(ReminderState, 100)
        return StateDecision.graceful_complete_process(input)


class Reminder(ObjectProcess):
    answer = internal_queue(str)
    starting_state = ReminderState


async def test_state_loops_to_itself_on_its_timer_until_a_message_ends_it(system: System) -> None:
    system.serve(Reminder)
    await system.client.start_process("p", Reminder, 1)
    await asyncio.sleep(3 * 60 + 30)

    await system.client.publish_to_internal_queue("p", Reminder, Reminder.answer, "done")
    result = await system.client.wait_for_process_completion("p", int)

    assert result == 4
    assert system.worker.attempts("ReminderState") == [(1, 0), (1, 60), (1, 120), (1, 150)]
    assert leftovers(system) == {}


async def test_timer_of_a_wait_that_a_message_ended_does_not_end_the_next_wait(system: System) -> None:
    system.serve(Reminder)
    await system.client.start_process("p", Reminder, 0)
    await asyncio.sleep(1)

    await system.client.publish_to_internal_queue("p", Reminder, Reminder.answer, "later")
    await asyncio.sleep(0.001)
    timers = system.sql("SELECT state_id, number FROM xdb_sys_timer_tasks")
    await asyncio.sleep(10)

    assert timers == [("ReminderState", 2)]
    [waiting] = (await system.client.describe_process("p")).states
    assert (waiting.number, waiting.timers[0].status) == (2, TimerStatus.SCHEDULED)
    assert system.worker.count("ReminderState") == 1


# What they leave


async def test_timers_are_gone_when_one_of_them_ends_the_wait(system: System) -> None:
    await start_mailbox(system, any_of(timers_s=[1, 100, 200]), any_of(timers_s=[300]))
    assert timer_count(system) == 4

    await asyncio.sleep(2)

    assert system.sql("SELECT number FROM xdb_sys_timer_tasks") == [(2,)]


class AbortState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(1))

    def execute(self) -> StateDecision:
        return StateDecision.force_complete_process()


class LongSleepState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(100), TimerCommand.by_seconds(1_000))

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class AbortedState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(LongSleepState, AbortState)


class Aborted(ObjectProcess):
    starting_state = AbortedState
    states = (LongSleepState, AbortState)


async def test_timers_are_gone_when_their_state_is_aborted(system: System) -> None:
    system.serve(Aborted)

    await system.client.start_process("p", Aborted)
    await asyncio.sleep(0.5)
    before = timer_count(system)
    await system.client.wait_for_process_completion("p")

    assert (before, timer_count(system)) == (3, 0)
    await asyncio.sleep(2_000)
    assert system.worker.count("LongSleepState") == 0


async def test_timers_are_gone_when_the_process_is_stopped(system: System) -> None:
    await start_mailbox(system, any_of(timers_s=[1]), all_of("a", timers_s=[100]))

    await system.client.stop_process(BOX)
    left = timer_count(system)
    with pytest.raises(ProcessTerminated):
        await results(system)
    await asyncio.sleep(200)

    assert left == 0
    assert system.worker.count("WaitState") == 0


async def test_timers_are_gone_when_the_process_times_out(system: System) -> None:
    system.serve(Aborted)

    await system.client.start_process("p", Aborted, None, ProcessStartOptions(timeout=timedelta(milliseconds=500)))
    with pytest.raises(ProcessTimeout):
        await system.client.wait_for_process_completion("p")

    assert timer_count(system) == 0


# Skipping


@dataclass
class Nap:
    command_id: str
    seconds: float


class NapState(AsyncState[list[Nap]]):
    """Waits for all of its timers, before that for 10 s without saying so."""

    async def wait_until(self, input: list[Nap]) -> CommandRequest:
        await asyncio.sleep(10)
        timers = [TimerCommand.by_seconds(nap.seconds, command_id=nap.command_id) for nap in input]
        return CommandRequest.for_all_command_completed(*timers)

    def execute(self, command_results: CommandResults) -> StateDecision:
        statuses = {each.command_id: [each.status, each.is_fired] for each in command_results.timer_commands}
        return StateDecision.graceful_complete_process([round(now_s()), statuses])


class TiredState(AsyncState[int]):
    """Takes as many naps at once as its input says."""

    def execute(self, input: int) -> StateDecision:
        return StateDecision.multi_next_states(*[StateMovement.create(NapState, NAPS)] * input)


class Naps(ObjectProcess):
    starting_state = TiredState
    states = (NapState,)


NAPS = [Nap("short", 20), Nap("long", 50), Nap("longest", 100)]


async def start_naps(system: System, count: int = 1) -> None:
    system.serve(Naps)
    await system.client.start_process("p", Naps, count)


@pytest.mark.parametrize("by", [{"command_id": "longest"}, {"index": 2}], ids=["id", "index"])
async def test_timer_is_skipped_by_id_or_index_and_the_others_go_on(system: System, by: dict[str, Any]) -> None:
    await start_naps(system)
    await asyncio.sleep(15)

    await system.client.skip_timer("p", NapState, **by)
    await system.client.skip_timer("p", NapState, **by)
    [napping] = (await system.client.describe_process("p")).states
    result = await system.client.wait_for_process_completion("p", list[Any])

    assert [timer.status for timer in napping.timers] == ["SCHEDULED", "SCHEDULED", "SKIPPED"]
    assert result == [60, {"short": ["FIRED", True], "long": ["FIRED", True], "longest": ["SKIPPED", True]}]


async def test_skip_of_a_timer_that_has_fired_changes_nothing(system: System) -> None:
    await start_naps(system)
    await asyncio.sleep(35)

    await system.client.skip_timer("p", NapState, command_id="short")
    [napping] = (await system.client.describe_process("p")).states

    assert [timer.status for timer in napping.timers] == ["FIRED", "SCHEDULED", "SCHEDULED"]


@pytest.mark.parametrize(
    ("after_s", "state_id", "number", "by"),
    [
        (15, NapState, 1, {"command_id": "shortest"}),
        (15, NapState, 1, {"index": 3}),
        (15, NapState, 2, {"index": 0}),
        (15, TiredState, 1, {"index": 0}),
        (5, NapState, 1, {"index": 0}),
    ],
    ids=["unknown id", "unknown index", "unknown number", "other state", "not waiting yet"],
)
async def test_skip_of_what_nobody_waits_for_is_refused(
    system: System, after_s: int, state_id: type[AsyncState[Any]], number: int, by: dict[str, Any]
) -> None:
    await start_naps(system)
    await asyncio.sleep(after_s)

    with pytest.raises(ClientSideError) as refused:
        await system.client.skip_timer("p", state_id, number, **by)
    result = await system.client.wait_for_process_completion("p", list[Any])

    assert (refused.value.status, refused.value.error_sub_type) == (404, ErrorSubType.TIMER_NOT_FOUND)
    assert result is not None
    assert result[0] == 110


async def test_remembered_skip_is_for_the_named_state_execution_only(system: System) -> None:
    await start_naps(system, 2)
    await asyncio.sleep(5)

    await system.client.skip_timer("p", NapState, 2, command_id="longest", remember=True)
    outputs = await system.client.get_process_results("p")

    statuses = {each.state_execution_id: each.output[1]["longest"] for each in outputs}
    assert statuses == {"NapState-2": ["SKIPPED", True], "NapState-1": ["FIRED", True]}
    assert [each.output[0] for each in outputs] == [60, 110]
