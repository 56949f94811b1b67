"""The application keeps the write lock of the file for longer than the server waits for it."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.faults.installation import Installation
from tests.faults.load import Load
from tests.faults.processes import CREATE_LEDGERS

BUSY_TIMEOUT_S = 0.3
HOLD_S = 1.5
HOLDS = 3


async def test_everything_goes_on_once_the_application_lets_go_of_its_lock(tmp_path: Path) -> None:
    with Installation(tmp_path, "--busy-timeout", f"{BUSY_TIMEOUT_S}s") as installation:
        installation.sql(CREATE_LEDGERS)
        load = Load(installation, seed=1)
        await load.run(lambda load: lock(installation.database, load))

    load.check_ledgers()
    installation.check_nothing_is_left()
    complaints = installation.server.log_file.read_text().splitlines()
    assert len(complaints) <= HOLDS, "one line is enough for each time"
    assert all("database is locked" in complaint for complaint in complaints)


async def lock(database: Path, load: Load) -> None:
    """Keep everybody else from writing, again and again."""
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        for _ in range(HOLDS):
            await load.progress()
            connection.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(HOLD_S)
            connection.execute("COMMIT")
    await load.progress()
