"""A worker of Absurd's workloads: python -m benchmarks.peers.absurd_worker postgresql://postgres@127.0.0.1:5432/new"""

import asyncio
import sys
import time
from typing import Any

from absurd_sdk import AsyncAbsurd, AsyncTaskContext

from benchmarks.workloads import CHAIN_STEPS, CONCURRENCY

WORKER_PROCESSES = 4
"""Each has one connection, whose transactions run one after another; four did best on two cores."""

POLL_INTERVAL_S = 0.05
"""Its default of 0.25 seconds adds about as much to each latency, and saves no CPU under load."""


async def do_nothing() -> None:
    pass


async def chain(params: Any, context: AsyncTaskContext) -> None:
    for _ in range(CHAIN_STEPS):
        await context.step("step", do_nothing)


async def one_step(params: Any, context: AsyncTaskContext) -> None:
    await context.step("step", do_nothing)


async def receive(event: str, context: AsyncTaskContext) -> None:
    await context.await_event(event)


async def sleep(wake_at_s: float, context: AsyncTaskContext) -> float:
    await context.sleep_until("sleep", wake_at_s)
    return time.time()


async def main(database_url: str) -> None:
    absurd = AsyncAbsurd(database_url)
    for task in (chain, one_step, receive, sleep):
        absurd.register_task(task.__name__)(task)
    await absurd.start_worker(concurrency=CONCURRENCY // WORKER_PROCESSES, poll_interval=POLL_INTERVAL_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
