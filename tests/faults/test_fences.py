"""Owners that are wrong about what is theirs: frozen, robbed, or on machines with wrong clocks (D.7, D.8)."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from server_stub.core.cluster import Coordinator, Member
from server_stub.storage.opening import open_store
from server_stub.storage.server_store import ServerStore, ServerStoreOptions
from server_stub.storage.sqlite import SqliteOptions
from tests.faults.cluster import LEASE_S, Cluster, eventually
from tests.faults.load import Load
from tests.faults.processes import CREATE_LEDGERS

NewCluster = Callable[..., Cluster]

ROBBERIES = {"postgresql": 400, "mariadb": 120}
"""How many shards change hands: very many with one database, enough to meet calls under way with the other."""
ROBBERY_EVERY_S = 0.05
SKEWS_S = (600, -600)
PATIENT_OPTIONS = ("--lease", "30s", "--heartbeat", "1s", "--member-timeout", "30s")
"""So that not even a busy machine makes a server late, and what changes hands does so for the clocks alone."""


@asynccontextmanager
async def coordinator_of(cluster: Cluster) -> AsyncIterator[Coordinator]:
    """Open the database as a server does, in this process."""
    store = await open_store(cluster.database_url, SqliteOptions(), ServerStoreOptions(max_connections=2))
    assert isinstance(store, ServerStore)
    try:
        yield store
    finally:
        await store.close()


async def give_shards(coordinator: Coordinator, new_owner_id: str, shard_ids: set[int]) -> None:
    """Make a member the owner of shards at once, whoever has them."""
    observer = Member("observer", "", frozenset())
    view = await coordinator.beat(observer, lease_ms=None, member_timeout_ms=60_000)
    await coordinator.leave(observer.member_id)
    seen = [shard for shard in view.shards if shard.shard_id in shard_ids]
    await coordinator.acquire(new_owner_id, seen, lease_ms=round(LEASE_S * 1_000), is_forced=True)


async def test_server_that_was_frozen_past_its_lease_has_no_effect_when_it_goes_on(new_cluster: NewCluster) -> None:
    async def freeze(load: Load) -> None:
        await eventually(cluster.is_shared_out)
        for _ in range(2):
            await load.progress()
            victim.freeze()
            try:
                await eventually(lambda: len(heir.owned_shards()) == 16)
            finally:
                victim.thaw()
            await eventually(cluster.is_shared_out)
        await load.progress()

    with new_cluster() as cluster:
        victim, heir = cluster.servers
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=3)
        await load.run(freeze)

    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs("cannot renew leases")  # for whoever stood still, the database took too long


async def test_owner_that_is_robbed_stops_soon_and_nothing_happens_twice(new_cluster: NewCluster) -> None:
    stopped_after_s = 0.0

    async def rob(load: Load) -> None:
        nonlocal stopped_after_s
        await eventually(cluster.is_shared_out)
        await load.progress()
        async with coordinator_of(cluster) as coordinator:
            await give_shards(coordinator, "thief", victim.owned_shards())
        stopped_after_s = await eventually(lambda: victim.owned_shards() == set())
        await eventually(cluster.is_shared_out)
        await load.progress()

    with new_cluster() as cluster:
        victim = cluster.servers[0]
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=4)
        await load.run(rob)

    assert stopped_after_s < 5
    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_owners_of_whom_no_lease_is_respected_do_everything_once(new_cluster: NewCluster) -> None:
    async def rob_often(load: Load) -> None:
        robberies = 0
        rng = random.Random(5)
        await eventually(cluster.is_shared_out)
        member_ids = [server.cluster_status()["member_id"] for server in cluster.servers]
        async with coordinator_of(cluster) as coordinator:
            while robberies < ROBBERIES[cluster.kind]:
                shard_ids = set(rng.sample(range(16), 4))
                await give_shards(coordinator, rng.choice(member_ids), shard_ids)
                robberies += len(shard_ids)
                await asyncio.sleep(ROBBERY_EVERY_S)

    with new_cluster(servers=3) as cluster:
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=5)
        await load.run(rob_often)

    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_wrong_clocks_of_machines_make_nothing_early_late_or_twice(new_cluster: NewCluster) -> None:
    async def look(load: Load) -> None:
        await eventually(cluster.is_shared_out)
        ranges = await asyncio.to_thread(ranges_of, cluster)
        for _ in range(12):
            await load.progress()
        assert await asyncio.to_thread(ranges_of, cluster) == ranges, "nobody took anything from anybody"

    with new_cluster(*PATIENT_OPTIONS, servers=0) as cluster:
        for skew_s in SKEWS_S:
            cluster.add_server(module="tests.faults.skewed_server", environment={"XDB_TEST_SKEW_S": str(skew_s)})
        cluster.wait_until_ready()
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=6)
        await load.run(look)

    assert load.overslept_s < max(SKEWS_S) / 10
    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()


def ranges_of(cluster: Cluster) -> list[tuple[int, int]]:
    """Give how often each shard has changed hands; the servers themselves know it from their latest heartbeat."""
    return cluster.sql("SELECT shard_id, range_id FROM xdb_sys_shard WHERE kind = 'work' ORDER BY shard_id")
