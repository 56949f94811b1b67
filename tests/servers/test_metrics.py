"""What /metrics of each of several servers says of all of them."""

import asyncio
from collections.abc import Sequence

from tests.servers.processes import ChainProcess
from tests.servers.test_sharing import two
from tests.support.scraping import of, scrape
from tests.support.servers import DEADLINE_S, Node, Servers


async def all_see_every_shard_owned(nodes: Sequence[Node]) -> None:
    """Wait until each server has seen what the others have acquired, which may take a beat."""
    async with asyncio.timeout(DEADLINE_S):
        for node in nodes:
            while (await scrape(node.server.api))[of("xdb_server_shards_without_owner")]:  # noqa: ASYNC110  # a scrape
                await asyncio.sleep(0.02)


async def test_each_server_shows_the_members_and_its_own_shards(servers: Servers) -> None:
    nodes = await two(servers)
    await all_see_every_shard_owned(nodes)

    scraped = [await scrape(node.server.api) for node in nodes]

    assert [samples[of("xdb_server_members")] for samples in scraped] == [2, 2]
    assert [samples[of("xdb_server_shards_owned")] for samples in scraped] == [8, 8]
    assert [samples[of("xdb_server_shards_without_owner")] for samples in scraped] == [0, 0]
    assert scraped[0][of("xdb_server_shard_transfers_total", event="given_up")] == 8


async def test_server_shows_the_oldest_due_task_of_its_own_shards_alone(servers: Servers) -> None:
    first, second = await two(servers)

    scraped = [await scrape(node.server.api) for node in (first, second)]

    shown = [
        {dict(labels)["shard"] for name, labels in samples if name == "xdb_server_oldest_due_task_seconds"}
        for samples in scraped
    ]
    assert shown == [{str(shard_id) for shard_id in node.shard_ids} for node in (first, second)]


async def test_server_without_the_role_async_shows_shards_that_nobody_owns(servers: Servers) -> None:
    alone = await servers.start(roles=frozenset({"api"}))

    samples = await scrape(alone.server.api)

    assert samples[of("xdb_server_shards_without_owner")] == 16
    assert samples[of("xdb_server_shards_owned")] == 0


async def test_work_of_each_server_is_counted_by_itself(servers: Servers) -> None:
    first, second = await two(servers)
    await first.client.start_process("p", ChainProcess, 1)
    await second.client.wait_for_process_completion("p", int)

    starts = [
        (await scrape(node.server.api)).get(of("xdb_server_requests_total", operation="start", status="2xx"), 0)
        for node in (first, second)
    ]

    assert starts == [1, 0]
