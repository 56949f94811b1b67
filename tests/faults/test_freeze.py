"""A worker or a server that hangs and comes back (C-041): calls end in time, and late answers change nothing."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.faults.installation import Installation
from tests.faults.load import Load
from tests.faults.processes import CALL_TIMEOUT_S, CREATE_LEDGERS

FREEZES = 4
FREEZE_S = 1.5 * CALL_TIMEOUT_S
"""Longer than the calls may take, so that those under way are given up while their answers are still to come."""


@pytest.mark.parametrize("victim", ["server", "worker"])
async def test_freezing_under_load_loses_nothing_and_nothing_happens_twice(tmp_path: Path, victim: str) -> None:
    with Installation(tmp_path) as installation:
        installation.sql(CREATE_LEDGERS)
        load = Load(installation, seed=1)
        pid = installation.server.pid if victim == "server" else installation.worker.pid
        await load.run(lambda load: freeze(pid, load))

    load.check_ledgers()
    installation.check_nothing_is_left()
    installation.check_logs()


async def freeze(pid: int, load: Load) -> None:
    """Stop a process in the middle of what it does, and let it go on."""
    for _ in range(FREEZES):
        await load.progress()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(FREEZE_S)
        finally:
            os.kill(pid, signal.SIGCONT)
    await load.progress()
