"""The same load on one, two and more servers that share a database."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.databases import Databases
from benchmarks.report import aligned, number
from benchmarks.scale.cluster import ChainLoad, Party, running_cluster


async def measure_servers(
    databases: Databases, directory: Path, *, most: int, executions: int, concurrency: int
) -> Mapping[int, ChainLoad]:
    """Run the chain on 1 to `most` servers, each time with as many workers and clients and an empty database.

    Args:
        databases: Gives the databases.
        directory: Where logs go.
        most: The largest number of servers.
        executions: Executions on each number of servers.
        concurrency: How many of them at a time, on all servers together.
    """
    loads = {}
    for servers in range(1, most + 1):
        with databases.new() as url:
            async with running_cluster(url, directory, databases.cpu_s, number=servers) as cluster:
                loads[servers] = await cluster.run_chains(executions, concurrency)
    return loads


def servers_table(loads: Mapping[int, ChainLoad]) -> str:
    """Write one line for each number of servers. CPU is in milliseconds a step."""
    first = loads[1]
    header = ("servers", "executions/s", "to one", "p50 ms", "p99 ms", "CPU ms/step", *Party, "busy cores")
    lines = [
        (
            str(servers),
            number(load.executions_per_s),
            f"{load.executions_per_s / first.executions_per_s:.2f}x",
            number(load.p50_ms),
            number(load.p99_ms),
            number(load.cpu_ms_per_step()),
            *(number(load.cpu_ms_per_step(party)) for party in Party),
            number(load.busy_cores),
        )
        for servers, load in loads.items()
    ]
    return aligned([header, *lines], words=1)
