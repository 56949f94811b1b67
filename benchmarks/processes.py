"""The processes of the workloads. Their steps do nothing, so that what is measured is the engine."""

import asyncio
import time
from datetime import UTC, datetime

from benchmarks.recovery import interrupted_step
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    InternalQueueCommand,
    ObjectProcess,
    Registry,
    StateDecision,
    TimerCommand,
    internal_queue,
)


class LinkState(AsyncState[int]):
    """Goes round until no steps are left; its input says how many are, this one included."""

    async def execute(self, input: int) -> StateDecision:
        if input > 1:
            return StateDecision.single_next_state(LinkState, input - 1)
        return StateDecision.graceful_complete_process()


class ChainProcess(ObjectProcess):
    """As many steps, one after another, as its input says."""

    starting_state = LinkState


class ReceiveState(AsyncState[None]):
    """Waits for a message."""

    async def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(SignalProcess.go))

    async def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class SignalProcess(ObjectProcess):
    """Completes once it has got a message."""

    go = internal_queue(None)

    starting_state = ReceiveState


class SleepState(AsyncState[float]):
    """Sleeps until the instant of its input, and puts out when it woke; both in seconds since the epoch."""

    async def wait_until(self, input: float) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.at(datetime.fromtimestamp(input, UTC)))

    async def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process(time.time())


class SleepProcess(ObjectProcess):
    """Completes once it has slept."""

    starting_state = SleepState


class NapState(AsyncState[float]):
    """Stays in its call for as many seconds as its input says."""

    async def execute(self, input: float) -> StateDecision:
        await asyncio.sleep(input)
        return StateDecision.graceful_complete_process()


class NapProcess(ObjectProcess):
    """Completes after one call that takes its time."""

    starting_state = NapState


class InterruptedState(AsyncState[str]):
    """Is in flight while a part of the engine is killed; its input is the mark of its first call."""

    async def execute(self, input: str) -> StateDecision:
        await interrupted_step(input)
        return StateDecision.graceful_complete_process()


class InterruptedProcess(ObjectProcess):
    """Completes once it was interrupted."""

    starting_state = InterruptedState


registry = Registry()
registry.add_processes(ChainProcess, SignalProcess, SleepProcess, NapProcess, InterruptedProcess)
