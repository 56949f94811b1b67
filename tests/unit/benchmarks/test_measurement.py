"""What the benchmarks make of what they measure."""

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks
from benchmarks.measurement import Measurement, from_json, median_of, percentile
from benchmarks.recovery import Part
from benchmarks.report import comparison, table
from benchmarks.workloads import Usage, Workload, measure

RUN = Measurement(
    engine="xdb",
    workload=Workload.CHAIN,
    executions=100,
    steps=300,
    elapsed_s=2.0,
    cpu_s=0.6,
    p50_ms=10.0,
    p95_ms=20.0,
    p99_ms=30.0,
    counts={"statements": 600},
)


class InstantEngine:
    """Does everything at once, wakes 5 ms late, and counts what it is asked."""

    name = "instant"

    def __init__(self) -> None:
        self.calls = 0
        self._wake_at_s: dict[str, float] = {}

    async def run_chain(self, process_id: str) -> None:
        self.calls += 1

    run_one_step = start_waiting = send_message = message_received = run_chain

    async def start_sleeping(self, process_id: str, wake_at_s: float) -> None:
        self.calls += 1
        self._wake_at_s[process_id] = wake_at_s

    async def woken_at_s(self, process_id: str) -> float:
        return self._wake_at_s[process_id] + 0.005

    async def start_interrupted(self, process_id: str, mark: str) -> None:
        raise AssertionError("nothing is killed here")

    async def kill_and_start(self, part: Part) -> float:
        raise AssertionError("nothing is killed here")

    async def usage(self) -> Usage:
        return Usage(cpu_s=self.calls * 0.001, counts={"calls": self.calls})


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 50), (95, 95), (99, 99), (100, 100)])
def test_percentile_is_a_measured_value(percent: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_measurement_survives_the_way_from_another_process() -> None:
    assert from_json(RUN.to_json()) == RUN


def test_costs_are_given_per_step() -> None:
    assert RUN.cpu_s_per_1000_steps == pytest.approx(2.0)
    assert RUN.per_step("statements") == 2
    assert RUN.per_step("batches") is None


def test_median_is_taken_of_each_number() -> None:
    runs = [replace(RUN, elapsed_s=1.0, p50_ms=30.0), replace(RUN, elapsed_s=9.0, p50_ms=10.0), RUN]

    united = median_of(runs)

    assert (united.elapsed_s, united.p50_ms) == (2.0, 10.0)


def test_cpu_that_is_not_counted_has_no_median() -> None:
    united = median_of([replace(RUN, database_cpu_s=seconds) for seconds in (0.1, 0.5, 0.2)])

    assert united.database_cpu_s == 0.2
    assert median_of([replace(RUN, cpu_s=None)]).cpu_s is None


def test_ratio_above_one_means_better_for_rates_and_for_costs() -> None:
    peer = replace(RUN, engine="peer", elapsed_s=4.0, cpu_s=1.8)

    lines = [line.split() for line in comparison([RUN], [[peer]]).splitlines()]

    assert lines[1] == ["chain", "executions/s", "50.00", "25.00", "2.0x"]
    assert lines[2] == ["chain", "CPU", "s/1000", "steps", "2.00", "6.00", "3.0x"]


def test_cpu_of_the_database_is_compared_with_that_of_the_engine() -> None:
    ours = replace(RUN, database_cpu_s=0.3)
    peer = replace(RUN, engine="peer", cpu_s=1.8)

    line = comparison([ours], [[peer]]).splitlines()[3].split()

    assert line == ["chain", "the", "same", "with", "database", "3.00", "6.00", "2.0x"]


def test_peers_stand_side_by_side_and_leave_open_what_they_do_not_run() -> None:
    kill = replace(RUN, workload=Workload.SERVER_KILL, cpu_s=None)
    first = replace(RUN, engine="first")
    second = replace(kill, engine="second", p50_ms=50.0)

    lines = [line.split() for line in comparison([RUN, kill], [[first], [second]]).splitlines()]

    assert lines[0][2:] == ["xdb", "first", "ratio", "second", "ratio"]
    assert lines[1][2:] == ["50.00", "50.00", "1.0x", "-", "-"]
    assert lines[-1][-5:] == ["10.00", "-", "-", "50.00", "5.0x"]


def test_what_an_engine_does_not_count_is_left_open() -> None:
    line = table([replace(RUN, counts={})]).splitlines()[1].split()

    assert line[-4:] == ["-"] * 4


@pytest.mark.parametrize(
    ("workload", "calls"), [(Workload.CHAIN, 10), (Workload.LATENCY, 10), (Workload.TIMERS, 10)], ids=str
)
async def test_only_the_measured_executions_count(workload: Workload, calls: int) -> None:
    measured = await measure(InstantEngine(), workload, executions=10)

    assert measured.counts == {"calls": calls}
    assert measured.cpu_s == pytest.approx(calls * 0.001)


async def test_timers_are_measured_by_how_late_they_wake() -> None:
    measured = await measure(InstantEngine(), Workload.TIMERS, executions=10)

    assert (measured.p50_ms, measured.p99_ms) == pytest.approx((5, 5), abs=0.1)


async def test_cpu_of_the_database_counts_while_the_workload_is_measured() -> None:
    engine = InstantEngine()

    measured = await measure(engine, Workload.CHAIN, executions=10, database_cpu_s=lambda: engine.calls * 0.01)

    assert measured.database_cpu_s == pytest.approx(0.1)


@pytest.mark.parametrize("module", ["commands", "measurement", "peers/command", "recovery", "workloads"])
def test_what_peers_share_needs_the_standard_library_and_psutil_alone(module: str) -> None:
    tree = ast.parse((Path(benchmarks.__path__[0]) / f"{module}.py").read_text())

    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}

    shared = {f"benchmarks.{name}" for name in ("commands", "measurement", "recovery", "workloads")}
    outside = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names | {"psutil"}}
    assert outside <= shared
