"""The workloads, the same for every engine. Standard library only: engines in other environments import it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar
from uuid import uuid4

from benchmarks.measurement import Measurement, percentile
from benchmarks.recovery import Part, measure_recovery

T = TypeVar("T")

CHAIN_STEPS = 3
CONCURRENCY = 64
SLEEP_S = 2.0
SETTLE_S = 1.0
WARM_UP_EXECUTIONS = 8


class Workload(StrEnum):
    """What is measured."""

    CHAIN = "chain"
    LATENCY = "latency"
    SIGNAL = "signal"
    TIMERS = "timers"
    SERVER_KILL = "server-kill"
    WORKER_KILL = "worker-kill"


FULL_SIZES: Mapping[Workload, int] = {
    Workload.CHAIN: 2000,
    Workload.LATENCY: 300,
    Workload.SIGNAL: 2000,
    Workload.TIMERS: 1000,
    Workload.SERVER_KILL: 5,
    Workload.WORKER_KILL: 5,
}
"""Executions of each workload, or how often is killed."""

QUICK_SIZES: Mapping[Workload, int] = {
    Workload.CHAIN: 50,
    Workload.LATENCY: 10,
    Workload.SIGNAL: 20,
    Workload.TIMERS: 20,
    Workload.SERVER_KILL: 1,
    Workload.WORKER_KILL: 1,
}
"""Enough to see that everything works; too few to measure."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine has used so far: CPU time of all its processes, and what it counts, by name."""

    cpu_s: float
    counts: Mapping[str, int]


class Engine(Protocol):
    """What a workload asks of an engine. Steps do nothing; everything is durable as the engine is by default."""

    name: str

    async def run_chain(self, process_id: str) -> None:
        """Start an execution of `CHAIN_STEPS` steps and wait until it has completed."""

    async def run_one_step(self, process_id: str) -> None:
        """Start an execution of one step and wait until it has completed."""

    async def start_waiting(self, process_id: str) -> None:
        """Start an execution that waits for a message; return once it waits."""

    async def send_message(self, process_id: str) -> None:
        """Send the message that the execution waits for."""

    async def message_received(self, process_id: str) -> None:
        """Wait until the execution that waited for a message has completed."""

    async def start_sleeping(self, process_id: str, wake_at_s: float) -> None:
        """Start an execution that sleeps until an instant, in seconds since the epoch."""

    async def woken_at_s(self, process_id: str) -> float:
        """Wait until the sleeping execution has completed, and say when its first user code after the sleep ran."""
        ...

    async def start_interrupted(self, process_id: str, mark: str) -> None:
        """Start an execution of one step, which awaits `benchmarks.recovery.interrupted_step(mark)`."""

    async def kill_and_start(self, part: Part) -> float:
        """Kill a part with SIGKILL, start it again at once, and say when, in seconds since the epoch."""
        ...

    async def usage(self) -> Usage:
        """Tell what the engine has used since it was started."""
        ...


class _Watch:
    """Measures what happens in an `async with`."""

    elapsed_s: float
    cpu_s: float
    database_cpu_s: float | None = None
    counts: Mapping[str, int]

    def __init__(self, engine: Engine, database_cpu_s: Callable[[], float] | None) -> None:
        self._engine = engine
        self._database_cpu_s = database_cpu_s

    async def __aenter__(self) -> None:
        self._before = await self._engine.usage()
        self._database_before_s = self._database_cpu_s() if self._database_cpu_s else 0.0
        self._began_s = time.perf_counter()

    async def __aexit__(self, *error: object) -> None:
        self.elapsed_s = time.perf_counter() - self._began_s
        if self._database_cpu_s:
            self.database_cpu_s = self._database_cpu_s() - self._database_before_s
        after = await self._engine.usage()
        self.cpu_s = after.cpu_s - self._before.cpu_s
        self.counts = {name: count - self._before.counts[name] for name, count in after.counts.items()}


async def measure(
    engine: Engine, workload: Workload, executions: int, database_cpu_s: Callable[[], float] | None = None
) -> Measurement:
    """Run a workload, after a few executions that warm everything up.

    Args:
        engine: Runs it.
        workload: What is run.
        executions: How many executions, or how often a part is killed.
        database_cpu_s: Tells the CPU time of the database so far, if it has processes of its own.
    """
    if workload in _KILLED:
        return await measure_recovery(engine, _KILLED[workload], workload, executions)
    run, steps_per_execution = _WORKLOADS[workload]
    await run(engine, _new_ids(workload, WARM_UP_EXECUTIONS), _Watch(engine, database_cpu_s))
    watch = _Watch(engine, database_cpu_s)
    times_ms = await run(engine, _new_ids(workload, executions), watch)
    return Measurement(
        engine=engine.name,
        workload=workload,
        executions=executions,
        steps=executions * steps_per_execution,
        elapsed_s=watch.elapsed_s,
        cpu_s=watch.cpu_s,
        p50_ms=percentile(times_ms, 50),
        p95_ms=percentile(times_ms, 95),
        p99_ms=percentile(times_ms, 99),
        counts=watch.counts,
        database_cpu_s=watch.database_cpu_s,
    )


def _new_ids(workload: Workload, count: int) -> list[str]:
    run = uuid4().hex[:12]
    return [f"bench-{workload}-{run}-{number}" for number in range(count)]


async def _chain(engine: Engine, process_ids: list[str], watch: _Watch) -> list[float]:
    async with watch:
        return await run_all(CONCURRENCY, lambda process_id: timed_ms(engine.run_chain(process_id)), process_ids)


async def _latency(engine: Engine, process_ids: list[str], watch: _Watch) -> list[float]:
    async with watch:
        return await run_all(1, lambda process_id: timed_ms(engine.run_one_step(process_id)), process_ids)


async def _signal(engine: Engine, process_ids: list[str], watch: _Watch) -> list[float]:
    async def deliver(process_id: str) -> asyncio.Task[float]:
        began_s = time.perf_counter()
        await engine.send_message(process_id)
        return asyncio.create_task(received_ms(process_id, began_s))

    async def received_ms(process_id: str, began_s: float) -> float:
        await engine.message_received(process_id)
        return (time.perf_counter() - began_s) * 1000

    await run_all(CONCURRENCY, engine.start_waiting, process_ids)
    await asyncio.sleep(SETTLE_S)  # what an engine still does after the starts is not part of the deliveries
    async with watch:
        return list(await asyncio.gather(*await run_all(CONCURRENCY, deliver, process_ids)))


async def _timers(engine: Engine, process_ids: list[str], watch: _Watch) -> list[float]:
    async def sleep(process_id: str) -> asyncio.Task[float]:
        wake_at_s = time.time() + SLEEP_S
        await engine.start_sleeping(process_id, wake_at_s)
        return asyncio.create_task(lateness_ms(process_id, wake_at_s))

    async def lateness_ms(process_id: str, wake_at_s: float) -> float:
        return (await engine.woken_at_s(process_id) - wake_at_s) * 1000

    async with watch:
        return list(await asyncio.gather(*await run_all(CONCURRENCY, sleep, process_ids)))


_WORKLOADS: Mapping[Workload, tuple[Callable[[Engine, list[str], _Watch], Awaitable[list[float]]], int]] = {
    Workload.CHAIN: (_chain, CHAIN_STEPS),
    Workload.LATENCY: (_latency, 1),
    Workload.SIGNAL: (_signal, 1),
    Workload.TIMERS: (_timers, 1),
}

_KILLED: Mapping[Workload, Part] = {Workload.SERVER_KILL: Part.SERVER, Workload.WORKER_KILL: Part.WORKER}


async def timed_ms(work: Awaitable[object]) -> float:
    """Say how many milliseconds something takes."""
    began_s = time.perf_counter()
    await work
    return (time.perf_counter() - began_s) * 1000


async def run_all(concurrency: int, work: Callable[[str], Awaitable[T]], process_ids: Iterable[str]) -> list[T]:
    """Do the work for all ids, at most `concurrency` at a time; the first failure ends it."""
    results: list[T] = []
    remaining = iter(process_ids)

    async def take_turns() -> None:
        results.extend([await work(process_id) for process_id in remaining])

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(take_turns())
    return results
