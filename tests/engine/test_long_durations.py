"""Timers and timeouts that 32 bits of milliseconds cannot hold: they are in time to the millisecond, or refused."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest

from tests.engine.mailbox import leftovers
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    ObjectProcess,
    ProcessStartOptions,
    ProcessStatus,
    StateDecision,
    TimerCommand,
)

LONG = (
    timedelta(milliseconds=2**31 - 1),
    timedelta(milliseconds=2**31),
    timedelta(milliseconds=2**32 + 1),
    timedelta(days=25),
    timedelta(days=50),
    timedelta(days=400),
    timedelta(days=36_525),
)
TOO_LONG = (timedelta(days=1_000_001), timedelta.max)


class SleepState(AsyncState[timedelta]):
    def wait_until(self, input: timedelta) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.timer_command_by_duration(input))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("awake")


class SleeperProcess(ObjectProcess):
    """Sleeps as long as it is told to."""

    starting_state = SleepState


class PatientProcess(ObjectProcess):
    """Does nothing until it times out."""


async def sleep_by_timer(system: System, duration: timedelta) -> None:
    await system.client.start_process("p", SleeperProcess, duration)


async def sleep_by_timeout(system: System, duration: timedelta) -> None:
    await system.client.start_process("p", PatientProcess, None, ProcessStartOptions(timeout=duration))


async def due_at(system: System) -> datetime:
    """Give the instant that the process waits for."""
    info = await system.client.describe_process("p")
    if info.timeout_at is not None:
        return info.timeout_at
    return info.states[0].timers[0].fire_at


@pytest.mark.parametrize("duration", LONG, ids=str)
@pytest.mark.parametrize(
    ("begin", "status"), [(sleep_by_timer, ProcessStatus.COMPLETED), (sleep_by_timeout, ProcessStatus.TIMEOUT)]
)
async def test_long_duration_ends_at_its_instant(
    system: System,
    begin: Callable[[System, timedelta], Awaitable[None]],
    status: ProcessStatus,
    duration: timedelta,
) -> None:
    system.serve(SleeperProcess, PatientProcess)
    await begin(system, duration)
    await asyncio.sleep(300)
    at = await due_at(system)

    system.clock.jump((duration - timedelta(seconds=400)) // timedelta(milliseconds=1))
    await asyncio.sleep(99)
    before = await system.client.describe_process("p")
    await asyncio.sleep(10)
    after = await system.client.describe_process("p")

    assert abs(at - before.started_at - duration) <= timedelta(milliseconds=5)
    assert before.status is ProcessStatus.RUNNING
    assert after.status is status
    assert after.closed_at is not None
    assert abs(after.closed_at - at) <= timedelta(milliseconds=2)
    assert leftovers(system) == {}


@pytest.mark.parametrize("duration", TOO_LONG, ids=str)
async def test_timeout_beyond_the_calendar_is_refused_at_the_call(system: System, duration: timedelta) -> None:
    system.serve(PatientProcess)

    with pytest.raises(ValueError, match=r"timeout .* the longest duration is"):
        await sleep_by_timeout(system, duration)

    assert system.sql("SELECT * FROM xdb_sys_process_execution") == []


@pytest.mark.parametrize("duration", TOO_LONG, ids=str)
async def test_timer_beyond_the_calendar_is_a_failed_attempt_and_never_fires(
    system: System, duration: timedelta
) -> None:
    system.serve(SleeperProcess)

    await sleep_by_timer(system, duration)
    await asyncio.sleep(300)

    info = await system.client.describe_process("p")
    failure = info.states[0].last_failure
    assert info.status is ProcessStatus.RUNNING
    assert failure is not None
    assert failure.error_type == "InvalidArgumentError"
    assert "the longest duration is" in failure.details
    assert system.sql("SELECT * FROM xdb_sys_timer_tasks") == []
    with pytest.raises(ValueError, match="the longest duration is"):
        TimerCommand.timer_command_by_duration(duration)
