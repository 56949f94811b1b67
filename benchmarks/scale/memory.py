"""Whether the memory of a server and a worker stays the same, however many executions have passed through them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.databases import Databases
from benchmarks.report import aligned, number
from benchmarks.scale.cluster import Cluster, running_cluster

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory after so many executions, and how fast the last of them ran."""

    executions: int
    server_mib: float
    worker_mib: float
    executions_per_s: float | None


async def measure_memory(
    databases: Databases, directory: Path, *, executions: int, every: int, concurrency: int
) -> Sequence[MemorySample]:
    """Run the chain, and look at the memory before, and after `every` executions.

    Args:
        databases: Gives the database.
        directory: Where logs go.
        executions: Executions in all.
        every: Executions between two looks.
        concurrency: How many of them at a time.
    """
    with databases.new() as url:
        async with running_cluster(url, directory, databases.cpu_s) as cluster:
            samples = [_sample(cluster, 0, None)]
            while samples[-1].executions < executions:
                load = await cluster.run_chains(every, concurrency)
                samples.append(_sample(cluster, samples[-1].executions + load.executions, load.executions_per_s))
    return samples


def growth_mib(samples: Sequence[MemorySample]) -> float | None:
    """Say by how much the server grew between two looks, on average after the first; None without a second one.

    Until the first look it fills its caches and pools.
    """
    warm = samples[1:]
    if len(warm) < 2:
        return None
    return (warm[-1].server_mib - warm[0].server_mib) / (len(warm) - 1)


def memory_table(samples: Sequence[MemorySample]) -> str:
    """Write one line for each look, and the growth below."""
    header = ("executions", "server MiB", "worker MiB", "executions/s")
    lines = [
        (str(each.executions), number(each.server_mib), number(each.worker_mib), number(each.executions_per_s))
        for each in samples
    ]
    every = samples[-1].executions // (len(samples) - 1)
    growth = number(growth_mib(samples))
    return (
        f"{aligned([header, *lines], words=0)}\nserver: {growth} MiB more for each {every} executions after the first"
    )


def _sample(cluster: Cluster, executions: int, executions_per_s: float | None) -> MemorySample:
    [server], [worker] = cluster.servers, cluster.workers
    return MemorySample(
        executions,
        server.command.process.memory_info().rss / MIB,
        worker.command.process.memory_info().rss / MIB,
        executions_per_s,
    )
