"""Tables of measurements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.measurement import Measurement
from benchmarks.workloads import Workload

NOT_COUNTED = "-"


def table(measurements: Sequence[Measurement]) -> str:
    """Write one line for each measurement."""
    header = (
        "workload",
        "engine",
        "executions/s",
        "steps/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "CPU s/1000 steps",
        "database CPU",
        "statements/step",
        "transactions/step",
        "events/transaction",
        "calls/request",
    )
    return aligned([header, *(_line(measurement) for measurement in measurements)])


def _line(measurement: Measurement) -> tuple[str, ...]:
    is_kill = measurement.cpu_s is None
    return (
        measurement.workload,
        measurement.engine,
        number(None if is_kill else measurement.executions_per_s),
        number(None if is_kill else measurement.steps_per_s),
        number(measurement.p50_ms),
        number(measurement.p95_ms),
        number(measurement.p99_ms),
        number(measurement.cpu_s_per_1000_steps),
        number(measurement.database_cpu_s_per_1000_steps),
        number(measurement.per_step("statements")),
        number(measurement.per_step("transactions")),
        number(_mean(measurement, "events", "transactions")),
        number(_mean(measurement, "batched_calls", "batches")),
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A number that engines are compared by. `less_is_better` as of times and costs."""

    workload: Workload
    what: str
    value: Callable[[Measurement], float | None]
    less_is_better: bool = True

    def ratio(self, ours: Measurement, peer: Measurement) -> str:
        """Say by how much ours is better."""
        our_value, peer_value = self.value(ours), self.value(peer)
        if not our_value or not peer_value:
            return NOT_COUNTED
        return f"{peer_value / our_value if self.less_is_better else our_value / peer_value:.1f}x"


_COMPARISONS = (
    _Comparison(Workload.CHAIN, "executions/s", lambda m: m.executions_per_s, less_is_better=False),
    _Comparison(Workload.CHAIN, "CPU s/1000 steps", lambda m: m.cpu_s_per_1000_steps),
    _Comparison(Workload.CHAIN, "the same with database", lambda m: m.all_cpu_s_per_1000_steps),
    _Comparison(Workload.LATENCY, "p50 ms", lambda m: m.p50_ms),
    _Comparison(Workload.LATENCY, "p99 ms", lambda m: m.p99_ms),
    _Comparison(Workload.SIGNAL, "deliveries/s", lambda m: m.executions_per_s, less_is_better=False),
    _Comparison(Workload.SIGNAL, "p50 ms", lambda m: m.p50_ms),
    _Comparison(Workload.TIMERS, "late p50 ms", lambda m: m.p50_ms),
    _Comparison(Workload.TIMERS, "late p99 ms", lambda m: m.p99_ms),
    _Comparison(Workload.SERVER_KILL, "first progress ms", lambda m: m.p50_ms),
    _Comparison(Workload.WORKER_KILL, "first progress ms", lambda m: m.p50_ms),
)


def comparison(ours: Sequence[Measurement], peers: Sequence[Sequence[Measurement]]) -> str:
    """Write ours beside those of the peers, workload by workload; a ratio above 1 is in our favour."""
    engines = [{measurement.workload: measurement for measurement in of_peer} for of_peer in peers if of_peer]
    header = ["workload", "number", ours[0].engine]
    for engine in engines:
        header += [next(iter(engine.values())).engine, "ratio"]
    of_ours = {measurement.workload: measurement for measurement in ours}
    lines = [
        _compared(compared, of_ours[compared.workload], [engine.get(compared.workload) for engine in engines])
        for compared in _COMPARISONS
        if compared.workload in of_ours
    ]
    return aligned([header, *lines])


def _compared(compared: _Comparison, ours: Measurement, peers: Sequence[Measurement | None]) -> list[str]:
    line = [compared.workload, compared.what, number(compared.value(ours))]
    for peer in peers:
        line += [NOT_COUNTED] * 2 if peer is None else [number(compared.value(peer)), compared.ratio(ours, peer)]
    return line


def _mean(measurement: Measurement, total: str, number: str) -> float | None:
    if not measurement.counts.get(number):
        return None
    return measurement.counts[total] / measurement.counts[number]


def number(value: float | None) -> str:
    """Write a number with as many digits as can mean something; None is something that is not counted."""
    if value is None:
        return NOT_COUNTED
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def aligned(lines: Sequence[Sequence[str]], *, words: int = 2) -> str:
    """Align columns: those of words, which come first, to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
