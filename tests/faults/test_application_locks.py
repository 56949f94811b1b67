"""The application locks rows of its own, for long or in another order than the servers do."""

import asyncio
import random
import time
from collections.abc import Callable

import asyncmy.errors
import asyncpg

from tests.faults.cluster import Cluster, eventually
from tests.faults.load import Load
from tests.faults.processes import CREATE_LEDGERS, Ledger
from xdb_sdk import ProcessStatus

NewCluster = Callable[..., Cluster]

HELD_S = 8.0
LONGEST_PASSAGE_S = 4.0
"""How long a process of four steps may take while another one's row is locked, on a busy machine."""
LEAST_RETRIES = 3
DEADLOCKS = (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError, asyncmy.errors.OperationalError)


async def test_row_that_the_application_has_locked_holds_up_only_its_own_execution(new_cluster: NewCluster) -> None:
    passages_s: list[float] = []

    with new_cluster() as cluster:
        cluster.sql(CREATE_LEDGERS)
        cluster.sql("INSERT INTO ledgers (id, total, entries) VALUES ('held', 0, '[]')")
        await eventually(cluster.is_shared_out)
        async with cluster.client(cluster.servers[0]) as client:
            async with cluster.transaction() as execute:
                await execute("UPDATE ledgers SET total = 0 WHERE id = 'held'")
                await client.start_object_process("held", Ledger, "held", 1)
                ends_at_s = time.monotonic() + HELD_S
                while (began_s := time.monotonic()) < ends_at_s:
                    process_id = f"free-{len(passages_s)}"
                    await client.start_object_process(process_id, Ledger, process_id, 1)
                    await client.wait_for_process_completion(process_id, int)
                    passages_s.append(time.monotonic() - began_s)
                held = await client.describe_process("held")
            await client.wait_for_process_completion("held", int)

    print(f"longest of {len(passages_s)} passages: {max(passages_s):.3f} s")
    assert held.status == ProcessStatus.RUNNING
    assert max(passages_s) < LONGEST_PASSAGE_S
    cluster.check_nothing_is_left()


async def test_deadlocks_with_the_application_never_reach_a_client(new_cluster: NewCluster) -> None:
    async def lock_in_any_order(load: Load) -> None:
        rng = random.Random(11)
        while retries(cluster) < LEAST_RETRIES:
            await load.progress()
            ids = [id_ for (id_,) in cluster.sql("SELECT id FROM ledgers")]
            for _ in range(10):
                await lock_two(cluster, rng.sample(ids[-4:], min(2, len(ids))))

    with new_cluster("--lock-timeout", "10s") as cluster:
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=11)
        await load.run(lock_in_any_order)

    assert load.lost_calls == []
    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def lock_two(cluster: Cluster, ids: list[str]) -> None:
    """Lock rows one after the other in a transaction, which may itself be the victim."""
    try:
        async with cluster.transaction() as execute:
            for id_ in ids:
                await execute(f"UPDATE ledgers SET total = total WHERE id = '{id_}'")
                await asyncio.sleep(0.03)
    except DEADLOCKS:
        return


def retries(cluster: Cluster) -> float:
    """Count the transactions of the servers that were begun again because they lost to others."""
    return sum(server.metric("xdb_server_transaction_retries_total") for server in cluster.servers)
