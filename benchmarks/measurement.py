"""What one run of one workload has shown. Standard library only: engines in other environments import it."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run of one workload on one engine.

    Attributes:
        engine: Which engine.
        workload: Which workload.
        executions: How many executions ran in the measured time.
        steps: How many steps of user code they had together.
        elapsed_s: The measured time.
        cpu_s: CPU time of all processes that took part, user and system, in the measured time.
        p50_ms: Median of what the workload times; see benchmarks/README.md.
        p95_ms: The same, 95th percentile.
        p99_ms: The same, 99th percentile.
        counts: What the engine counted in the measured time, by name; empty if it counts nothing.
    """

    engine: str
    workload: str
    executions: int
    steps: int
    elapsed_s: float
    cpu_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def executions_per_s(self) -> float:
        """Executions, and in the signal workload deliveries, per second."""
        return self.executions / self.elapsed_s

    @property
    def steps_per_s(self) -> float:
        """Steps per second."""
        return self.steps / self.elapsed_s

    @property
    def cpu_s_per_1000_steps(self) -> float:
        """CPU seconds per 1000 steps, which is also milliseconds a step."""
        return self.cpu_s / self.steps * 1000

    def per_step(self, name: str) -> float | None:
        """Give a count per step; None if the engine does not count it."""
        return self.counts[name] / self.steps if name in self.counts else None

    def to_json(self) -> str:
        """Write it on one line."""
        return json.dumps(asdict(self))


def from_json(line: str) -> Measurement:
    """Read what `Measurement.to_json` wrote."""
    return Measurement(**json.loads(line))


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the smallest value that at least `percent` of all values do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def median_of(runs: Sequence[Measurement]) -> Measurement:
    """Give the median of each number over runs of the same workload on the same engine."""

    def median(number: Callable[[Measurement], float]) -> float:
        return statistics.median(number(run) for run in runs)

    first = runs[0]
    return Measurement(
        engine=first.engine,
        workload=first.workload,
        executions=first.executions,
        steps=first.steps,
        elapsed_s=median(lambda run: run.elapsed_s),
        cpu_s=median(lambda run: run.cpu_s),
        p50_ms=median(lambda run: run.p50_ms),
        p95_ms=median(lambda run: run.p95_ms),
        p99_ms=median(lambda run: run.p99_ms),
        counts={name: round(statistics.median(run.counts[name] for run in runs)) for name in first.counts},
    )
