"""How soon work goes on after a crash. Standard library only: engines in other environments import it.

Executions are in flight, which is inside a step that does not end, when a process of the engine is killed. A step that
is called a second time was called because of the recovery, and by nothing else: no step runs while all of them hang.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from benchmarks.measurement import Measurement, percentile

IN_FLIGHT = 20
POLL_INTERVAL_S = 0.01
TIMEOUT_S = 120.0


class Part(StrEnum):
    """A part of an engine that can be killed; an engine of one process is both."""

    SERVER = "server"
    WORKER = "worker"


class RestartableEngine(Protocol):
    """What is asked of an engine that can be killed."""

    name: str

    async def start_interrupted(self, process_id: str, mark: str) -> None:
        """Start an execution of one step, which awaits `interrupted_step(mark)`."""

    async def kill_and_start(self, part: Part) -> float:
        """Kill a part with SIGKILL, start it again at once, and say when, in seconds since the epoch."""
        ...


async def interrupted_step(mark: str) -> None:
    """Hang when called first; when called again, note the time and return.

    Args:
        mark: The path of a file that does not exist before the first call.
    """
    path = Path(mark)
    if not _is_first_call(path):
        _note_time(_second_call(path))
        return
    while not _second_call(path).exists():  # noqa: ASYNC110  # the second call may be in another process
        await asyncio.sleep(POLL_INTERVAL_S)


def _is_first_call(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _second_call(mark: Path) -> Path:
    return mark.with_suffix(".again")


def _note_time(path: Path) -> None:
    """Write the time into a file that is never seen without it."""
    draft = path.with_suffix(f".{uuid4().hex}")
    draft.write_text(str(time.time()))
    draft.rename(path)


async def measure_recovery(engine: RestartableEngine, part: Part, workload: str, kills: int) -> Measurement:
    """Kill a part some times, each time with `IN_FLIGHT` executions in flight, and time the first progress."""
    times_ms = [await _first_progress_ms(engine, part) for _ in range(kills)]
    return Measurement(
        engine=engine.name,
        workload=workload,
        executions=kills,
        steps=kills,
        elapsed_s=sum(times_ms) / 1000,
        cpu_s=None,
        p50_ms=percentile(times_ms, 50),
        p95_ms=percentile(times_ms, 95),
        p99_ms=percentile(times_ms, 99),
    )


async def _first_progress_ms(engine: RestartableEngine, part: Part) -> float:
    run = uuid4().hex[:12]
    with tempfile.TemporaryDirectory(prefix="bench-marks-") as directory:
        marks = [Path(directory) / f"bench-{part}-{run}-{number}" for number in range(IN_FLIGHT)]
        for mark in marks:
            await engine.start_interrupted(mark.name, str(mark))
        await _until(lambda: all(mark.exists() for mark in marks), "all executions are in flight")
        started_at_s = await engine.kill_and_start(part)
        again = [_second_call(mark) for mark in marks]
        await _until(lambda: all(path.exists() for path in again), "all executions have gone on")
        return (min(float(path.read_text()) for path in again) - started_at_s) * 1000


async def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {TIMEOUT_S:.0f} s until {what}")
        await asyncio.sleep(POLL_INTERVAL_S)
