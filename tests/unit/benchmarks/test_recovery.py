"""How the time from a crash to the first progress is measured."""

import asyncio
import time

import pytest

from benchmarks.recovery import IN_FLIGHT, Part, interrupted_step
from benchmarks.workloads import Workload, measure
from tests.unit.benchmarks.test_measurement import InstantEngine

OUTAGE_MS = 50.0


class FragileEngine(InstantEngine):
    """Runs steps as tasks, forgets them when it is killed, and takes some time to begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.killed: list[Part] = []
        self._steps: dict[str, asyncio.Task[None]] = {}

    async def start_interrupted(self, process_id: str, mark: str) -> None:
        self._steps[mark] = asyncio.create_task(interrupted_step(mark))

    async def kill_and_start(self, part: Part) -> float:
        self.killed.append(part)
        for step in self._steps.values():
            step.cancel()
        started_at_s = time.time()
        self._steps = {mark: asyncio.create_task(self._call_again(mark)) for mark in self._steps}
        return started_at_s

    async def _call_again(self, mark: str) -> None:
        await asyncio.sleep(OUTAGE_MS / 1000)
        await interrupted_step(mark)


@pytest.mark.parametrize(
    ("workload", "part"),
    [
        pytest.param(Workload.SERVER_KILL, Part.SERVER, id="server"),
        pytest.param(Workload.WORKER_KILL, Part.WORKER, id="worker"),
    ],
)
async def test_part_is_killed_as_often_as_asked(workload: Workload, part: Part) -> None:
    engine = FragileEngine()

    measured = await measure(engine, workload, executions=2)

    assert engine.killed == [part, part]
    assert measured.executions == 2


async def test_first_progress_is_timed_from_the_restart() -> None:
    measured = await measure(FragileEngine(), Workload.SERVER_KILL, executions=1)

    assert OUTAGE_MS <= measured.p50_ms < OUTAGE_MS + 1000


async def test_all_executions_are_in_flight_when_a_part_is_killed() -> None:
    class CountingEngine(FragileEngine):
        async def kill_and_start(self, part: Part) -> float:
            self.calls = sum(not step.done() for step in self._steps.values())
            return await super().kill_and_start(part)

    engine = CountingEngine()

    await measure(engine, Workload.WORKER_KILL, executions=1)

    assert engine.calls == IN_FLIGHT
