"""kill -9 in the middle of transactions: each is there as a whole or not at all."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from server_stub.storage.sqlite import SqliteStore

ROOT = Path(__file__).parents[3]

# Each transaction moves one of five executions on by a state, with a message, a timer and a row of the user's.
WRITER = """
import asyncio, sys
from server_stub.core.model import RowWrite
from server_stub.storage.sqlite import SqliteStore
from tests.contract.store.works import Deciding, created, message, process, row_key, state, timer, write

IDS = [f"e-{n}" for n in range(5)]

async def main():
    store = SqliteStore.open(sys.argv[1])
    count = int(sys.argv[2])
    if not count:
        await store.run_sql("CREATE TABLE counters (id VARCHAR(9) PRIMARY KEY, n INTEGER)")
        await write(store, created(*[process(id_, state_counters={"S": 0}) for id_ in IDS]))
    while True:
        id_ = IDS[count % 5]
        def step(loaded):
            moved = loaded.executions[id_].process
            moved.state_counters["S"] += 1
            n = moved.state_counters["S"]
            changes = created(state(id_, number=n, due_at_ms=n), timer(n, id_, number=n))
            changes.row_writes.append(RowWrite(row_key("counters", id_), {"n": n}))
            changes.touch_process(moved)
            return changes
        await store.transact(Deciding(step, execution_ids=[id_]))
        count += 1
        print(count, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_server_leaves_whole_transactions_and_none_that_was_acknowledged_is_lost(
    tmp_path: Path, seed: int
) -> None:
    path, chance = tmp_path / "xdb.db", random.Random(seed)
    acknowledged = 0

    for _ in range(2):
        acknowledged = _write_and_kill(path, acknowledged, chance.randint(1, 150))
        written = _check(path)
        assert acknowledged <= written <= acknowledged + 1
        acknowledged = written


def _write_and_kill(path: Path, count: int, more: int) -> int:
    """Write until `more` transactions are acknowledged, kill the writer, and give the number of the last."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(count)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            count = int(line)
            more -= 1
            if not more:
                writer.send_signal(signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    return count


def _check(path: Path) -> int:
    """Check that every row agrees with every other, and give how many transactions there are."""
    asyncio.run(SqliteStore.open(path).close())
    with closing(sqlite3.connect(path)) as connection:
        [(integrity,)] = connection.execute("PRAGMA integrity_check")
        counters = dict(connection.execute("SELECT id, n FROM counters"))
        processes = dict(
            connection.execute(
                "SELECT process_execution_id, state_counters ->> 'S' FROM xdb_sys_process_execution "
                "WHERE state_counters ->> 'S' > 0"
            )
        )
        states, timers = (
            dict(connection.execute(f"SELECT process_execution_id, count(*) FROM {table} GROUP BY 1"))
            for table in ("xdb_sys_async_state_execution", "xdb_sys_timer_tasks")
        )
    assert integrity == "ok"
    assert counters == processes == states == timers
    return sum(counters.values())
