"""The application locks rows of its own, for long or in another order than the servers do."""

import asyncio
import time
from collections.abc import Callable

from tests.faults.cluster import Cluster, eventually
from tests.faults.processes import CREATE_LEDGERS, Ledger
from xdb_sdk import ProcessStartOptions, ProcessStatus

NewCluster = Callable[..., Cluster]

HELD_S = 4.0
LOCK_TIMEOUT = "1s"
"""How long those wait at most whose events are by chance in one transaction with the first of the held execution."""
LONGEST_PASSAGE_S = 4.0
"""How long a process of four steps may take while another one's row is locked, on a busy machine."""
STARTS = 10
MANY_ROWS = ", ".join(f"('many-{number}', 0)" for number in range(1_000))


async def test_row_that_the_application_has_locked_holds_up_only_its_own_execution(new_cluster: NewCluster) -> None:
    passages_s: list[float] = []

    with new_cluster("--lock-timeout", LOCK_TIMEOUT) as cluster:
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


async def test_deadlock_with_the_application_is_no_concern_of_a_client(new_cluster: NewCluster) -> None:
    initial = ProcessStartOptions(initial_upsert_data_attributes={Ledger.total: 0})
    ids = [f"a-{number}" for number in range(STARTS)] + ["z"]

    with new_cluster("--lock-timeout", "20s", servers=1) as cluster:
        [server] = cluster.servers
        cluster.sql(CREATE_LEDGERS)
        for id_ in ids:
            cluster.sql("INSERT INTO ledgers (id, total) VALUES (?, 0)", id_)
        cluster.sql(f"INSERT INTO ledgers (id, total) VALUES {MANY_ROWS}")
        async with cluster.client(server) as client:
            async with cluster.transaction() as execute:
                # MariaDB ends the transaction that has done less: it shall be the server's.
                await execute("UPDATE ledgers SET total = total + 1 WHERE id LIKE 'many-%'")
                await execute("UPDATE ledgers SET total = total + 1 WHERE id = 'z'")
                starts = [client.start_object_process(id_, Ledger, id_, 1, initial) for id_ in ids]
                starting = asyncio.gather(*starts)
                await cluster.until_lock_waiter()
                await execute("UPDATE ledgers SET total = total + 1 WHERE id LIKE 'a-%'")
            await starting
            for id_ in ids:
                await client.wait_for_process_completion(id_, int)
        retries = server.metric("xdb_server_transaction_retries_total")

    assert retries >= 1, "there was no deadlock"
    cluster.check_nothing_is_left()
    cluster.check_logs()
