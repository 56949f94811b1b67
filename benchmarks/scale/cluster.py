"""Servers, workers and clients on one database, each its own process, and the load of the chain on them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.measurement import percentile
from benchmarks.scale.chain_client import ChainClient, Order, running_client
from benchmarks.workloads import CHAIN_STEPS
from benchmarks.xdb_engine import Service, counts_of, running_server, running_worker

SHARED_WITHIN_S = 60.0
POLL_INTERVAL_S = 0.1
WARM_UP_EXECUTIONS = 64


class Party(StrEnum):
    """Whose CPU time it is."""

    CLIENTS = "clients"
    SERVERS = "servers"
    WORKERS = "workers"
    DATABASE = "database"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLoad:
    """What a load of the chain has shown.

    Attributes:
        executions: How many executions ran.
        elapsed_s: From the first start until the last client knew of its last end.
        times_ms: The same of each execution.
        cpu_s: CPU time of each party; the database only if it runs here.
        counts: What the servers counted together, see `COUNTED`.
    """

    executions: int
    elapsed_s: float
    times_ms: Sequence[float]
    cpu_s: Mapping[Party, float]
    counts: Mapping[str, int]

    @property
    def steps(self) -> int:
        """Steps of user code."""
        return self.executions * CHAIN_STEPS

    @property
    def executions_per_s(self) -> float:
        """Executions per second."""
        return self.executions / self.elapsed_s

    @property
    def p50_ms(self) -> float:
        """Median of `times_ms`."""
        return percentile(self.times_ms, 50)

    @property
    def p99_ms(self) -> float:
        """99th percentile of `times_ms`."""
        return percentile(self.times_ms, 99)

    @property
    def busy_cores(self) -> float:
        """How many cores all parties kept busy."""
        return sum(self.cpu_s.values()) / self.elapsed_s

    def cpu_ms_per_step(self, party: Party | None = None) -> float | None:
        """Give the CPU time of a step, in milliseconds: of one party, which may not be known, or of all together."""
        if party is None:
            return sum(self.cpu_s.values()) / self.steps * 1000
        return self.cpu_s[party] / self.steps * 1000 if party in self.cpu_s else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running servers, as many workers, and as many clients, each with a server and a worker.

    Attributes:
        database_cpu_s: Tells the CPU time of the database so far; None if it runs elsewhere.
    """

    servers: Sequence[Service]
    workers: Sequence[Service]
    clients: Sequence[ChainClient]
    database_cpu_s: Callable[[], float] | None

    async def run_chains(self, executions: int, concurrency: int) -> ChainLoad:
        """Run the chain `executions` times, `concurrency` at a time, both in equal parts on the clients.

        What cannot be divided evenly is left out, but each client runs at least one execution.
        """
        number = len(self.clients)
        order = Order(f"scale-{uuid4().hex[:12]}", max(executions // number, 1), max(concurrency // number, 1))
        orders = [Order(f"{order.prefix}-{client}", order.executions, order.concurrency) for client in range(number)]
        cpu_before_s, counts_before = self._cpu_s(), await self._counts()
        began_s = time.perf_counter()
        reports = await asyncio.gather(
            *(client.run(each) for client, each in zip(self.clients, orders, strict=True)),
        )
        elapsed_s = time.perf_counter() - began_s
        cpu_s = {party: after_s - cpu_before_s[party] for party, after_s in self._cpu_s().items()}
        counts = await self._counts()
        counts.subtract(counts_before)
        return ChainLoad(
            executions=order.executions * number,
            elapsed_s=elapsed_s,
            times_ms=[time_ms for report in reports for time_ms in report.times_ms],
            cpu_s={Party.CLIENTS: sum(report.cpu_s for report in reports), **cpu_s},
            counts=counts,
        )

    def _cpu_s(self) -> dict[Party, float]:
        cpu_s = {
            Party.SERVERS: sum(server.command.cpu_s for server in self.servers),
            Party.WORKERS: sum(worker.command.cpu_s for worker in self.workers),
        }
        if self.database_cpu_s is not None:
            cpu_s[Party.DATABASE] = self.database_cpu_s()
        return cpu_s

    async def _counts(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for server in self.servers:
            total.update(await counts_of(server.url))
        return total


@asynccontextmanager
async def running_cluster(
    database_url: str,
    directory: Path,
    database_cpu_s: Callable[[], float] | None = None,
    *,
    number: int = 1,
) -> AsyncIterator[Cluster]:
    """Run servers, workers and clients, wait until each server has its part of the shards, and warm everything up.

    Args:
        database_url: The database of the servers.
        directory: Where their logs go.
        database_cpu_s: See `Cluster`.
        number: How many of each.

    Raises:
        RuntimeError: A process ended or did not become ready; the text has the end of its log.
        TimeoutError: The servers did not come to share the shards.
    """
    async with AsyncExitStack() as opened:
        servers = [
            await opened.enter_async_context(running_server(database_url, directory / f"server-{each}.log"))
            for each in range(number)
        ]
        workers = [
            await opened.enter_async_context(running_worker(directory / f"worker-{each}.log")) for each in range(number)
        ]
        clients = [
            await opened.enter_async_context(running_client(server.url, worker.url))
            for server, worker in zip(servers, workers, strict=True)
        ]
        async with asyncio.timeout(SHARED_WITHIN_S):
            await _shared(servers)
        cluster = Cluster(servers, workers, clients, database_cpu_s)
        await cluster.run_chains(WARM_UP_EXECUTIONS * number, WARM_UP_EXECUTIONS)
        yield cluster


async def _shared(servers: Sequence[Service]) -> None:
    """Wait until every shard has one owner, and every server about as many."""
    async with httpx.AsyncClient() as http:
        while True:
            shards = [await _shards(http, server) for server in servers]
            owned = [[shard["shard_id"] for shard in of_server if shard["is_mine"]] for of_server in shards]
            fair = len(shards[0]) // len(servers)
            every_one = {shard["shard_id"] for shard in shards[0]}
            if set().union(*owned) == every_one and all(len(ids) in (fair, fair + 1) for ids in owned):
                return
            await asyncio.sleep(POLL_INTERVAL_S)


async def _shards(http: httpx.AsyncClient, server: Service) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = (await http.get(f"{server.url}/internal/status")).json()["cluster"]["shards"]
    return shards
