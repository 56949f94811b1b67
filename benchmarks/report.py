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
        "statements/step",
        "transactions/step",
        "events/transaction",
        "calls/request",
    )
    return _aligned([header, *(_line(measurement) for measurement in measurements)])


def _line(measurement: Measurement) -> tuple[str, ...]:
    return (
        measurement.workload,
        measurement.engine,
        _number(measurement.executions_per_s),
        _number(measurement.steps_per_s),
        _number(measurement.p50_ms),
        _number(measurement.p95_ms),
        _number(measurement.p99_ms),
        _number(measurement.cpu_s_per_1000_steps),
        _number(measurement.per_step("statements")),
        _number(measurement.per_step("transactions")),
        _number(_mean(measurement, "events", "transactions")),
        _number(_mean(measurement, "batched_calls", "batches")),
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A number that engines are compared by. `less_is_better` as of times and costs."""

    workload: Workload
    what: str
    value: Callable[[Measurement], float]
    less_is_better: bool


_COMPARISONS = (
    _Comparison(Workload.CHAIN, "executions/s", lambda m: m.executions_per_s, less_is_better=False),
    _Comparison(Workload.CHAIN, "CPU s/1000 steps", lambda m: m.cpu_s_per_1000_steps, less_is_better=True),
    _Comparison(Workload.LATENCY, "p50 ms", lambda m: m.p50_ms, less_is_better=True),
    _Comparison(Workload.LATENCY, "p99 ms", lambda m: m.p99_ms, less_is_better=True),
    _Comparison(Workload.SIGNAL, "deliveries/s", lambda m: m.executions_per_s, less_is_better=False),
    _Comparison(Workload.SIGNAL, "p50 ms", lambda m: m.p50_ms, less_is_better=True),
    _Comparison(Workload.TIMERS, "late p50 ms", lambda m: m.p50_ms, less_is_better=True),
    _Comparison(Workload.TIMERS, "late p99 ms", lambda m: m.p99_ms, less_is_better=True),
)


def comparison(ours: Sequence[Measurement], peer: Sequence[Measurement]) -> str:
    """Write ours beside a peer's, workload by workload; a ratio above 1 is in our favour."""
    of_ours = {measurement.workload: measurement for measurement in ours}
    of_peer = {measurement.workload: measurement for measurement in peer}
    lines = [("workload", "number", ours[0].engine, peer[0].engine, "ratio")]
    for compared in _COMPARISONS:
        if compared.workload not in of_ours or compared.workload not in of_peer:
            continue
        our_value = compared.value(of_ours[compared.workload])
        peer_value = compared.value(of_peer[compared.workload])
        ratio = peer_value / our_value if compared.less_is_better else our_value / peer_value
        lines.append((compared.workload, compared.what, _number(our_value), _number(peer_value), f"{ratio:.1f}x"))
    return _aligned(lines)


def _mean(measurement: Measurement, total: str, number: str) -> float | None:
    if not measurement.counts.get(number):
        return None
    return measurement.counts[total] / measurement.counts[number]


def _number(value: float | None) -> str:
    if value is None:
        return NOT_COUNTED
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Align columns: words of the first two to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
