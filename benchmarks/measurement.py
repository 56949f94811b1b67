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
        cpu_s: CPU time of all processes of the engine and its clients, user and system, in the measured time; None if
            that says nothing about the workload.
        p50_ms: Median of what the workload times; see benchmarks/README.md.
        p95_ms: The same, 95th percentile.
        p99_ms: The same, 99th percentile.
        counts: What the engine counted in the measured time, by name; empty if it counts nothing.
        database_cpu_s: CPU time of the processes of the database in the measured time; None if the engine has none
            outside its own processes.
    """

    engine: str
    workload: str
    executions: int
    steps: int
    elapsed_s: float
    cpu_s: float | None
    p50_ms: float
    p95_ms: float
    p99_ms: float
    counts: Mapping[str, int] = field(default_factory=dict)
    database_cpu_s: float | None = None

    @property
    def executions_per_s(self) -> float:
        """Executions, and in the signal workload deliveries, per second."""
        return self.executions / self.elapsed_s

    @property
    def steps_per_s(self) -> float:
        """Steps per second."""
        return self.steps / self.elapsed_s

    @property
    def cpu_s_per_1000_steps(self) -> float | None:
        """CPU seconds of the engine per 1000 steps, which is also milliseconds a step."""
        return None if self.cpu_s is None else self.cpu_s / self.steps * 1000

    @property
    def database_cpu_s_per_1000_steps(self) -> float | None:
        """CPU seconds of the database per 1000 steps."""
        return None if self.database_cpu_s is None else self.database_cpu_s / self.steps * 1000

    @property
    def all_cpu_s_per_1000_steps(self) -> float | None:
        """CPU seconds of the engine and its database per 1000 steps."""
        if self.cpu_s is None:
            return None
        return (self.cpu_s + (self.database_cpu_s or 0.0)) / self.steps * 1000

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

    def median_cpu_s(number: Callable[[Measurement], float | None]) -> float | None:
        values = [value for run in runs if (value := number(run)) is not None]
        return statistics.median(values) if values else None

    first = runs[0]
    return Measurement(
        engine=first.engine,
        workload=first.workload,
        executions=first.executions,
        steps=first.steps,
        elapsed_s=median(lambda run: run.elapsed_s),
        cpu_s=median_cpu_s(lambda run: run.cpu_s),
        p50_ms=median(lambda run: run.p50_ms),
        p95_ms=median(lambda run: run.p95_ms),
        p99_ms=median(lambda run: run.p99_ms),
        counts={name: round(statistics.median(run.counts[name] for run in runs)) for name in first.counts},
        database_cpu_s=median_cpu_s(lambda run: run.database_cpu_s),
    )
