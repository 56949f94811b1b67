"""Servers that come, go and die: who owns which shard, and what becomes of its work (idempotency-and-shards D.7)."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from itertools import chain

import pytest

from tests.faults.cluster import LEASE_S, NUM_SHARDS, Cluster, eventually
from tests.faults.load import ONCE, Load
from tests.faults.processes import ATTEMPTS, CREATE_LEDGERS, Failure, Ledger, Walker
from tests.support.real_processes import RunningCommand
from xdb_sdk import (
    AsyncClient,
    ClientSideError,
    ProcessAlreadyStartedError,
    ProcessFailed,
    ProcessStartOptions,
)

ALL_SHARDS = set(range(NUM_SHARDS))
SERVERS_AT_ONCE = 10
WALKERS = 8
STARTS = 50
STEP_S = 1.5

NewCluster = Callable[..., Cluster]


async def test_two_servers_share_the_shards_out(new_cluster: NewCluster) -> None:
    with new_cluster() as cluster:
        await eventually(cluster.is_shared_out, within_s=20)
        counts = [len(server.owned_shards()) for server in cluster.servers]

    assert sum(counts) == NUM_SHARDS
    assert all(5 <= count <= 11 for count in counts)
    cluster.check_logs()


async def test_ten_servers_that_start_at_once_on_an_empty_database_own_each_shard_once(new_cluster: NewCluster) -> None:
    with new_cluster(servers=SERVERS_AT_ONCE) as cluster:
        await eventually(cluster.is_shared_out)
        await eventually(lambda: has_each_range_one_owner(cluster))

    cluster.check_logs()


def has_each_range_one_owner(cluster: Cluster) -> bool:
    """Whether the range of each shard has grown by one with each server that gained it."""
    gained = sum(server.metric('xdb_server_shard_transfers_total{event="gained"}') for server in cluster.servers)
    shards = cluster.servers[0].cluster_status()["shards"]
    return bool(gained == sum(shard["range_id"] for shard in shards))


async def test_server_set_to_another_number_of_shards_is_refused(new_cluster: NewCluster) -> None:
    with new_cluster(servers=1) as cluster:
        options = ("--port", "0", "--database-url", cluster.database_url, "--num-shards", "8")
        refused = RunningCommand("server", *options, directory=cluster.directory)
        status = await asyncio.to_thread(refused.wait)

    assert status == 1
    [message] = refused.log_file.read_text().splitlines()
    assert message.startswith("Error: ")
    assert "16" in message
    assert "8" in message


async def test_each_id_is_started_once_though_all_are_started_through_two_servers_at_once(
    new_cluster: NewCluster,
) -> None:
    process_ids = [f"walk-{number}" for number in range(STARTS)]

    with new_cluster() as cluster:
        first, second = (cluster.client(server) for server in cluster.servers)
        async with first, second:
            starts = [
                started(client, process_id)
                for client in (first, second)
                for process_id in random.sample(process_ids, STARTS)
            ]
            outcomes = Counter(await asyncio.gather(*starts))
            attempts = [await first.wait_for_process_completion(id_, int) for id_ in process_ids]

    assert outcomes == {"started": STARTS, "already started": STARTS}
    assert attempts == [1] * STARTS
    assert sorted(cluster.traces()) == sorted(f"{id_} {what}" for id_ in process_ids for what in ("begins", "ends"))
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def started(client: AsyncClient, process_id: str) -> str:
    """Start a process, and say what came of it."""
    try:
        await client.start_process(process_id, Walker, 0.0, ONCE)
    except ProcessAlreadyStartedError:
        return "already started"
    return "started"


async def test_start_whose_row_is_refused_harms_none_that_is_committed_with_it_and_its_id_stays_free(
    new_cluster: NewCluster,
) -> None:
    initial, refused = (
        ProcessStartOptions(initial_upsert_data_attributes={Ledger.total: total}) for total in (0, 1_000)
    )

    with new_cluster() as cluster:
        cluster.sql(CREATE_LEDGERS)
        cluster.sql("ALTER TABLE ledgers ADD CONSTRAINT few CHECK (total < 1000)")
        async with cluster.client(cluster.servers[0]) as client:
            bad = asyncio.create_task(client.start_object_process("bad", Ledger, "row", 1, refused))
            good = [client.start_object_process(f"good-{n}", Ledger, f"row-{n}", 1, initial) for n in range(STARTS)]
            await asyncio.gather(*good)
            with pytest.raises(ClientSideError, match="APP_DATABASE_WRITE_ERROR"):
                await bad
            await client.start_process("bad", Walker, 0.0)
            for process_id in ("bad", *(f"good-{number}" for number in range(STARTS))):
                await client.wait_for_process_completion(process_id, int)

    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_killed_servers_shards_are_taken_over_and_its_work_is_done_once(new_cluster: NewCluster) -> None:
    taken_over_after_s = 0.0

    async def kill_one(load: Load) -> None:
        nonlocal taken_over_after_s
        await eventually(cluster.is_shared_out)
        for _ in range(3):
            await load.progress()
        await asyncio.to_thread(victim.kill)
        taken_over_after_s = await eventually(lambda: heir.owned_shards() == ALL_SHARDS)

    with new_cluster() as cluster:
        victim, heir = cluster.servers
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=1)
        await load.run(kill_one)

    assert taken_over_after_s < LEASE_S + 5
    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_stopped_server_gives_its_shards_up_at_once_and_each_call_finishes_once(new_cluster: NewCluster) -> None:
    process_ids = [f"walk-{number}" for number in range(WALKERS)]

    with new_cluster() as cluster:
        victim, heir = cluster.servers
        await eventually(cluster.is_shared_out)
        async with cluster.client(heir) as client:
            for process_id in process_ids:
                await client.start_process(process_id, Walker, STEP_S)
            await eventually(lambda: len(cluster.traces()) == WALKERS)
            stopping = asyncio.create_task(asyncio.to_thread(victim.stop))
            taken_over_after_s = await eventually(lambda: heir.owned_shards() == ALL_SHARDS)
            attempts = await asyncio.gather(*(client.wait_for_process_completion(id_, int) for id_ in process_ids))
            await stopping

    assert taken_over_after_s < 3
    assert attempts == [1] * WALKERS
    assert sorted(cluster.traces()) == sorted(chain(*((f"{id_} begins", f"{id_} ends") for id_ in process_ids)))
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_attempts_are_counted_on_when_their_server_dies(new_cluster: NewCluster) -> None:
    process_ids = [f"failure-{number}" for number in range(WALKERS)]

    with new_cluster() as cluster:
        victim, heir = cluster.servers
        await eventually(cluster.is_shared_out)
        async with cluster.client(heir) as client:
            for process_id in process_ids:
                await client.start_process(process_id, Failure)
            await eventually(lambda: len(cluster.traces()) > 2 * WALKERS)
            await asyncio.to_thread(victim.kill)
            for process_id in process_ids:
                with pytest.raises(ProcessFailed, match="nobody is there"):
                    await client.wait_for_process_completion(process_id)

    for process_id in process_ids:
        attempts = [int(line.split()[2]) for line in cluster.traces() if line.startswith(f"{process_id} ")]
        assert sorted(set(attempts)) == list(range(1, ATTEMPTS + 1))
        assert len(attempts) <= ATTEMPTS + 1, "only the one that was under way is made again"
    cluster.check_nothing_is_left()
