"""Servers are replaced one after the other under load, and nobody notices."""

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import count

import pytest

from tests.servers.processes import STEPS, ChainProcess, runs
from tests.support.servers import Node, Servers, eventually

SOON = timedelta(seconds=20)
LONGEST_S = 5.0
"""Of a whole execution, on a machine that is busy with other tests; less than a lease or a rescan would cost."""


class Load:
    """Clients that start executions by one server and wait for them by another, in turn by all there are."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.latencies_s: list[float] = []
        self.is_over = False
        self._used: Counter[Node] = Counter()

    async def run(self, name: str) -> None:
        """Do one execution after the other."""
        loop = asyncio.get_running_loop()
        for number in count():
            if self.is_over:
                return
            starter, waiter = self.nodes[number % len(self.nodes)], self.nodes[(number + 1) % len(self.nodes)]
            self._used.update((starter, waiter))
            began_s = loop.time()
            process_id = f"{name}-{number}"
            await starter.client.start_process(process_id, ChainProcess, 1)
            assert await waiter.client.wait_for_process_completion(process_id, int, SOON) == STEPS
            self.latencies_s.append(loop.time() - began_s)
            self._used.subtract((starter, waiter))

    async def leave_alone(self, node: Node) -> None:
        """Send no more to a server, as a load balancer does before it is stopped."""
        self.nodes.remove(node)
        await eventually(lambda: self._used[node] == 0)


@pytest.mark.parametrize("notify", [True, False], ids=["notify", "no-notify"])
async def test_rolling_restart_under_load_repeats_no_call_and_delays_none_by_a_second(
    servers: Servers, notify: bool
) -> None:
    load = Load([await servers.start(notify=notify) for _ in range(2)])
    clients = [asyncio.create_task(load.run(f"c{number}")) for number in range(4)]

    for _ in range(3):
        joined = await servers.start(notify=notify)
        await eventually(lambda node=joined: len(node.shard_ids) >= 5)  # type: ignore[misc]  # bound now
        load.nodes.append(joined)
        left = load.nodes[0]
        await load.leave_alone(left)
        await left.server.close()
    load.is_over = True
    await asyncio.gather(*clients)

    assert set(runs.values()) == {1}
    assert len(load.latencies_s) > 5
    assert max(load.latencies_s) < LONGEST_S
