"""Copies of an execution are executions of their own, older than it."""

import asyncpg

from benchmarks.floor import floor_transactions
from benchmarks.postgres_floor import install_schema, measure_postgres_floor
from benchmarks.scale.copies import copy_execution
from tests.services import shared
from tests.services.server import run_blocking

COPIES = 20
FOUND = """
    SELECT count(DISTINCT process_id) AS processes, count(DISTINCT process_execution_id) AS executions,
        count(DISTINCT shard_id) AS shards, max(process_execution_id) AS newest,
        max(length(process_execution_id)) AS length,
        (SELECT count(*) FROM xdb_sys_async_state_execution WHERE status = 'COMPLETED') AS states,
        (SELECT process_execution_id FROM xdb_sys_process_execution WHERE process_id = $1) AS original
    FROM xdb_sys_process_execution"""


def test_copies_have_ids_shards_and_states_of_their_own_and_are_older(postgresql_server_url: str) -> None:
    process_id = floor_transactions(1, 1)[0].new_keys[0].process_id

    with shared.database("postgresql", postgresql_server_url) as url:
        run_blocking(install_schema(url))
        measure_postgres_floor(url, 1, 1, database_cpu_s=None)
        found = run_blocking(_copy_and_find(url, process_id))

    assert (found["processes"], found["executions"], found["shards"]) == (COPIES + 1, COPIES + 1, 16)
    assert found["states"] == 3 * (COPIES + 1)
    assert found["newest"] == found["original"]
    assert found["length"] == len(found["original"])


async def _copy_and_find(url: str, process_id: str) -> asyncpg.Record:
    await copy_execution(url, process_id, COPIES)
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetchrow(FOUND, process_id)
        assert found is not None
        return found
    finally:
        await connection.close()
