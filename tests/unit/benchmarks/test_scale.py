"""What the commands that measure growth make of what they have seen."""

from collections import Counter

import pytest

from benchmarks.scale.burst import BurstResult, burst_table
from benchmarks.scale.cluster import ChainLoad, Party
from benchmarks.scale.history import NOTHING, HistoryResult, history_table
from benchmarks.scale.idle import idle_table
from benchmarks.scale.memory import MemorySample, growth_mib
from benchmarks.scale.postgres_counters import PostgresCounts
from benchmarks.scale.profile import statement_label
from benchmarks.scale.sampling import FunctionShare, shares_of
from benchmarks.scale.servers import servers_table


def load(elapsed_s: float) -> ChainLoad:
    return ChainLoad(
        executions=100,
        elapsed_s=elapsed_s,
        times_ms=[10.0, 20.0, 30.0],
        cpu_s={Party.SERVERS: 0.3, Party.WORKERS: 0.6},
        counts={},
    )


def cells(table: str, line: int) -> list[str]:
    return table.splitlines()[line].split()


def test_cpu_of_a_load_is_given_per_step_and_party() -> None:
    measured = load(2.0)

    assert measured.cpu_ms_per_step(Party.SERVERS) == pytest.approx(1.0)
    assert measured.cpu_ms_per_step() == pytest.approx(3.0)
    assert measured.cpu_ms_per_step(Party.DATABASE) is None
    assert measured.busy_cores == pytest.approx(0.45)


def test_servers_are_compared_with_one() -> None:
    table = servers_table({1: load(2.0), 2: load(1.0)})

    assert cells(table, 2)[:3] == ["2", "100", "2.00x"]


def test_full_tables_are_compared_with_empty_ones() -> None:
    table = history_table(
        {NOTHING: HistoryResult(0, [load(1.0), load(2.0), load(4.0)]), "much": HistoryResult(0, [load(2.5)])}
    )

    assert cells(table, 2)[:4] == ["much", "0.00", "40.00", "0.80x"]


def test_growth_of_memory_leaves_out_the_first_look() -> None:
    samples = [MemorySample(executions, mib, 1.0, None) for executions, mib in ((0, 50), (10, 80), (20, 81), (30, 84))]

    assert growth_mib(samples) == pytest.approx(2.0)
    assert growth_mib(samples[:2]) is None


def test_accepted_starts_that_did_not_complete_are_lost() -> None:
    result = BurstResult(
        statuses=Counter({200: 7, 429: 2, 503: 1}), completed=6, answered_s=1.0, completed_s=2.0, server_mib=80.0
    )

    assert cells(burst_table({"client": result}), 1)[1:7] == ["10", "7", "2", "1", "0", "1"]


def test_idle_servers_are_counted_each() -> None:
    table = idle_table({2: PostgresCounts(transactions=120, wal_bytes=600, statements=60)}, 60.0)

    assert cells(table, 1) == ["2", "0.50", "1.00", "10.00"]


def test_what_a_server_does_not_count_stays_unknown() -> None:
    counts = PostgresCounts(5, 500, None).since(PostgresCounts(2, 200, None))

    assert counts == PostgresCounts(3, 300, None)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        pytest.param(
            "WITH w0 AS (UPDATE xdb_sys_a t SET x = 1), w1 AS (INSERT INTO xdb_sys_b (x) SELECT 1) SELECT",
            "UPDATE a, INSERT b",
            id="writes",
        ),
        pytest.param("SELECT p.x FROM xdb_sys_a p JOIN xdb_sys_b b ON true", "SELECT a, b", id="reads"),
        pytest.param("COMMIT", "COMMIT", id="neither"),
    ],
)
def test_statement_is_named_by_the_tables_that_it_is_about(text: str, label: str) -> None:
    assert statement_label(text) == label


def test_samples_are_shared_out_to_functions_and_their_callers() -> None:
    shares = shares_of(["main;work 3", "main;work;helper 1"])

    assert shares[0] == FunctionShare("work", 0.75, 1.0)
    assert {share.name: share.with_callees for share in shares} == {"work": 1.0, "helper": 0.25}
