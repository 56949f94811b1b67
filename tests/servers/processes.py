"""Processes whose work several servers share, and what ran of it."""

import asyncio
from collections import Counter

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    InternalQueueCommand,
    ObjectProcess,
    ProcessContext,
    RetryPolicy,
    StateDecision,
    TimerCommand,
    internal_queue,
    state,
)

STEPS = 4

runs: Counter[tuple[str, int]] = Counter()
"""How often each step of each process was begun, or each attempt of `FailState`."""


class Gate:
    """What some steps wait for, within their call, until the test lets them go on."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()

    def close(self) -> None:
        """Hold steps up from now on, in the running event loop."""
        self._is_open = asyncio.Event()

    def open(self) -> None:
        """Let them go on."""
        self._is_open.set()

    async def wait(self) -> None:
        """Wait to be let go on."""
        await self._is_open.wait()


gate = Gate()


class StepState(AsyncState[int]):
    """Counts its run, and goes on to the next step."""

    async def execute(self, ctx: ProcessContext, input: int) -> StateDecision:
        runs[ctx.process_id, input] += 1
        if input == STEPS:
            return StateDecision.graceful_complete_process(input)
        return StateDecision.single_next_state(StepState, input + 1)


class ChainProcess(ObjectProcess):
    """Completes after some steps."""

    starting_state = StepState


class HeldState(AsyncState[None]):
    """Waits, within its call, until the test lets it go on."""

    async def execute(self, ctx: ProcessContext) -> StateDecision:
        runs[ctx.process_id, 1] += 1
        await gate.wait()
        return StateDecision.single_next_state(StepState, 2)


class HeldProcess(ObjectProcess):
    """Has one long call, and short ones after it."""

    starting_state = HeldState
    states = (StepState,)


class NapState(AsyncState[float]):
    """Waits for a timer or a message."""

    def wait_until(self, input: float) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.by_seconds(input), InternalQueueCommand.by_name("wake")
        )

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process(command_results.timer_commands[0].status)


class NapProcess(ObjectProcess):
    """Sleeps."""

    starting_state = NapState
    wake = internal_queue(str)


class FailState(AsyncState[None]):
    """Fails at its first attempt, after the test lets it."""

    async def execute(self, ctx: ProcessContext) -> StateDecision:
        assert ctx.attempt is not None
        runs[ctx.process_id, ctx.attempt] += 1
        if ctx.attempt == 1:
            await gate.wait()
            raise RuntimeError("once")
        return StateDecision.graceful_complete_process(ctx.attempt)


class FailProcess(ObjectProcess):
    """Needs a second attempt."""

    starting_state = FailState


@state(execute_api_retry_policy=RetryPolicy(initial_interval_seconds=600, maximum_interval_seconds=600))
class StuckState(AsyncState[None]):
    """Fails at its first attempt; the second comes in ten minutes."""

    async def execute(self, ctx: ProcessContext) -> StateDecision:
        assert ctx.attempt is not None
        runs[ctx.process_id, ctx.attempt] += 1
        if ctx.attempt == 1:
            raise RuntimeError("stuck")
        return StateDecision.graceful_complete_process(ctx.attempt)


class StuckProcess(ObjectProcess):
    """Waits long for its second attempt."""

    starting_state = StuckState


ALL = (ChainProcess, HeldProcess, NapProcess, FailProcess, StuckProcess)
