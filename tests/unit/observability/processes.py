"""A process that does a little of everything that is measured and traced."""

import asyncio

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    ObjectProcess,
    ProcessContext,
    StateDecision,
    TimerCommand,
    rpc,
)


class Stumble(AsyncState[None]):
    """Fails at its first attempt."""

    def execute(self, ctx: ProcessContext) -> StateDecision:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return StateDecision.single_next_state(Sleep)


class Sleep(AsyncState[None]):
    """Sleeps for a minute, and works for a second."""

    async def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(60))

    async def execute(self) -> StateDecision:
        await asyncio.sleep(1)
        return StateDecision.graceful_complete_process()


class Walk(ObjectProcess):
    """Stumbles, sleeps, and is done."""

    starting_state = Stumble
    states = (Sleep,)

    @rpc
    def peek(self) -> str:
        return "asleep"
