"""Where PostgreSQL keeps the versions of a row that is changed again and again."""

import time
from typing import Any

import psycopg

from benchmarks.postgres_floor import install_schema, measure_postgres_floor
from tests.services import shared
from tests.services.server import run_blocking

EXECUTIONS, BATCH_SIZE = 200, 50
CHANGES = 3 * EXECUTIONS
"""Of three steps the last changes the status, which has an index."""

DEADLINE_S = 20
UPDATES = b"""
    SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'xdb_sys_process_execution'"""


def test_most_changes_of_running_executions_touch_no_index(postgresql_server_url: str) -> None:
    with shared.database("postgresql", postgresql_server_url) as url:
        run_blocking(install_schema(url))
        measure_postgres_floor(url, EXECUTIONS, BATCH_SIZE, database_cpu_s=None)

        without_index = updates_without_index(url)

    assert without_index > CHANGES / 3


def updates_without_index(url: str) -> int:
    """Say how many updates of executions needed no entry in an index, once all are counted."""
    deadline_s = time.monotonic() + DEADLINE_S
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            counted: tuple[Any, ...] | None = connection.execute(UPDATES).fetchone()
            assert counted is not None
            updates, without_index = counted
            if updates == CHANGES:
                return int(without_index)
            assert time.monotonic() < deadline_s, f"{updates} updates are counted"
            time.sleep(0.05)
