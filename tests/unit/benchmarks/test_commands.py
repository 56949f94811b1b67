"""The processes of an engine: started, killed, started again and stopped."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.commands import running

WITH_A_CHILD = "import os, time; os.fork(); print(os.getpid()); time.sleep(600)"
BUSY_CHILD = "import os\nif os.fork() == 0:\n    while True: pass\nos.wait()"
FAILING = "raise SystemExit('no such database')"


def test_stop_ends_children_too(tmp_path: Path) -> None:
    log = tmp_path / "log"

    with running([sys.executable, "-c", WITH_A_CHILD], log):
        process_ids = _printed_ids(log, 2)

    assert not any(_runs(process_id) for process_id in process_ids)


def test_kill_replaces_the_process_and_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"

    with running([sys.executable, "-c", WITH_A_CHILD], log) as command:
        before = _printed_ids(log, 2)
        restarted_at_s = command.kill_and_start()
        after = _printed_ids(log, 4)[2:]

        assert not any(_runs(process_id) for process_id in before)
        assert all(_runs(process_id) for process_id in after)
        assert psutil.Process(after[0]).create_time() >= restarted_at_s - 1


def test_cpu_of_children_counts(tmp_path: Path) -> None:
    with running([sys.executable, "-c", BUSY_CHILD], tmp_path / "log") as command:
        deadline_s = time.monotonic() + 30
        while command.cpu_s < 0.5:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


async def test_command_that_ended_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    ended = pytest.raises(RuntimeError, match=r"ended with status 1; its log ends:\nno such database")

    with running([sys.executable, "-c", FAILING], tmp_path / "log") as command, ended:
        await command.answers("http://127.0.0.1:9/")


def _runs(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _printed_ids(log: Path, count: int) -> list[int]:
    deadline_s = time.monotonic() + 30
    while len(lines := log.read_text().split()) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return [int(line) for line in lines]
