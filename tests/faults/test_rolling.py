"""Three servers under load that are killed or replaced one after the other, and clients that only see each other."""

import asyncio
import random
import time
from collections.abc import Callable
from itertools import count
from statistics import median

import pytest

from tests.faults.cluster import Cluster, eventually
from tests.faults.load import Caller, Load
from tests.faults.processes import CREATE_LEDGERS, Walker
from tests.simulation.processes import Mailbox
from xdb_sdk import AsyncClient, ProcessTerminated

NewCluster = Callable[..., Cluster]

KILLS = {"postgresql": 20, "mariadb": 6}
"""Very many with one database, enough to meet what is under way with the other."""
CLOSES = 10
LONGEST_S = {"postgresql": 0.2, "mariadb": 1.2}
"""How long a client waits for what was closed through another server, usually at most."""
LONGEST_PASSAGE_S = 3.0
"""How long a process of one step may take through all restarts: on a busy machine a server starts slowly."""
STEP_S = 0.02


@pytest.mark.timeout(300)
async def test_everything_completes_once_and_in_order_while_one_of_three_is_killed_again_and_again(
    new_cluster: NewCluster,
) -> None:
    rng = random.Random(7)

    async def kill_often(load: Load) -> None:
        await eventually(cluster.is_shared_out)
        for _ in range(KILLS[cluster.kind]):
            if rng.random() < 0.5:
                await load.progress()
            await asyncio.sleep(rng.uniform(0, 1))
            victim = rng.choice(cluster.servers)
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(rng.uniform(0, 0.5))
            victim.start()
        await load.progress()

    with new_cluster(servers=3) as cluster:
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=7)
        await load.run(kill_often)

    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()


@pytest.mark.timeout(300)
async def test_rolling_restart_loses_no_call_repeats_none_and_delays_none(
    new_cluster: NewCluster, record_property: Callable[[str, object], None]
) -> None:
    passages_s: list[float] = []

    async def restart_all(load: Load) -> None:
        is_over = asyncio.Event()
        await eventually(cluster.is_shared_out)
        passing = asyncio.create_task(pass_again_and_again(cluster, passages_s, is_over))
        for server in cluster.servers:
            await load.progress()
            assert await asyncio.to_thread(server.stop) == -15
            server.start()
            await asyncio.to_thread(server.wait_until_ready)
            await eventually(cluster.is_shared_out)
        is_over.set()
        await passing

    with new_cluster(servers=3) as cluster:
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=8, users=4)
        await load.run(restart_all)

    record_property("longest_passage_s", round(max(passages_s), 3))
    print(f"longest of {len(passages_s)} passages: {max(passages_s):.3f} s, median {median(passages_s):.3f} s")
    assert load.lost_calls == []
    assert max(passages_s) < LONGEST_PASSAGE_S
    assert sorted(cluster.traces()) == sorted(
        f"pass-{n} {what}" for n in range(len(passages_s)) for what in ("begins", "ends")
    )
    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def pass_again_and_again(cluster: Cluster, passages_s: list[float], is_over: asyncio.Event) -> None:
    """Let one process after the other take a step, through whichever server answers; note how long each took."""
    lost_calls: list[str] = []
    clients = cluster.clients()
    async with clients[0], clients[1], clients[2]:
        for number in count():
            if is_over.is_set():
                break
            began_s = time.monotonic()
            await make_pass(Caller(clients, number, lost_calls), f"pass-{number}")
            passages_s.append(time.monotonic() - began_s)
    assert lost_calls == []


async def make_pass(caller: Caller, process_id: str) -> None:
    """Let a process take its step."""
    await caller.insist(lambda client: client.start_process(process_id, Walker, STEP_S))
    await caller.watch(lambda client: client.wait_for_process_completion(process_id, int))


async def test_wait_is_answered_at_once_whichever_server_closes_the_execution(new_cluster: NewCluster) -> None:
    delays_s = []

    with new_cluster() as cluster:
        await eventually(cluster.is_shared_out)
        async with cluster.client(cluster.servers[0]) as here, cluster.client(cluster.servers[1]) as there:
            for number in range(CLOSES):
                process_id = f"mailbox-{number}"
                await there.start_process(process_id, Mailbox)
                waiting = asyncio.create_task(answered_at(here, process_id))
                await eventually(lambda: cluster.servers[0].metric("xdb_server_long_polls") == 1)
                await there.stop_process(process_id)
                closed_at_s = time.monotonic()
                delays_s.append(await waiting - closed_at_s)

    print(f"delays of answers through another server: median {median(delays_s):.3f} s, longest {max(delays_s):.3f} s")
    assert median(delays_s) < LONGEST_S[cluster.kind]
    cluster.check_logs()


async def answered_at(client: AsyncClient, process_id: str) -> float:
    """Wait until a process is terminated, and say when that was known."""
    with pytest.raises(ProcessTerminated):
        await client.wait_for_process_completion(process_id)
    return time.monotonic()
