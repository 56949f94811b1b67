"""The services of Restate's workloads, an ASGI application: hypercorn benchmarks.peers.restate_services:app"""

import time
from datetime import timedelta

import restate

from benchmarks.recovery import interrupted_step
from benchmarks.workloads import CHAIN_STEPS

chain = restate.Workflow("Chain")
one_step = restate.Workflow("OneStep")
receive = restate.Workflow("Receive")
sleep = restate.Workflow("Sleep")
interrupted = restate.Workflow("Interrupted")


async def do_nothing() -> None:
    pass


@chain.main("run")
async def run_chain(ctx: restate.WorkflowContext) -> None:
    for _ in range(CHAIN_STEPS):
        await ctx.run_typed("step", do_nothing)


@one_step.main("run")
async def run_one_step(ctx: restate.WorkflowContext) -> None:
    await ctx.run_typed("step", do_nothing)


@receive.main("run")
async def run_receive(ctx: restate.WorkflowContext) -> None:
    await ctx.promise("waits", type_hint=bool).resolve(True)
    await ctx.promise("go", type_hint=bool).value()


@receive.handler("waits")
async def waits(ctx: restate.WorkflowSharedContext) -> None:
    await ctx.promise("waits", type_hint=bool).value()


@receive.handler("go")
async def go(ctx: restate.WorkflowSharedContext) -> None:
    await ctx.promise("go", type_hint=bool).resolve(True)


@sleep.main("run")
async def run_sleep(ctx: restate.WorkflowContext, wake_at_s: float) -> float:
    await ctx.sleep(timedelta(seconds=max(wake_at_s - time.time(), 0.0)))
    return time.time()


@interrupted.main("run")
async def run_interrupted(ctx: restate.WorkflowContext, mark: str) -> None:
    await ctx.run_typed("step", interrupted_step, mark=mark)


app = restate.app([chain, one_step, receive, sleep, interrupted], protocol="bidi")
