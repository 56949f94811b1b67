"""What servers without work ask of their database, as the database counts it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from benchmarks.databases import Databases
from benchmarks.report import aligned, number
from benchmarks.scale.cluster import running_cluster
from benchmarks.scale.postgres_counters import PostgresCounts, watched

STATISTICS_DELAY_S = 11.0
"""After this a session that is idle has told the server what it did."""


async def measure_idle(
    databases: Databases, directory: Path, *, most: int, duration_s: float
) -> Mapping[int, PostgresCounts]:
    """Let 1 to `most` servers, which have just worked, do nothing for some time, each time with an empty database."""
    assert databases.server_url is not None
    found = {}
    for servers in range(1, most + 1):
        with databases.new() as url:
            async with (
                running_cluster(url, directory, number=servers),
                watched(databases.server_url, url) as counters,
            ):
                await asyncio.sleep(STATISTICS_DELAY_S)
                before = await counters.read()
                await asyncio.sleep(duration_s)
                found[servers] = (await counters.read()).since(before)
    return found


def idle_table(found: Mapping[int, PostgresCounts], duration_s: float) -> str:
    """Write one line for each number of servers; rates are of one server."""
    header = ("servers", "statements/s of each", "transactions/s of each", "log bytes/s")
    lines = [
        (
            str(servers),
            number(None if counts.statements is None else counts.statements / servers / duration_s),
            number(counts.transactions / servers / duration_s),
            number(counts.wal_bytes / duration_s),
        )
        for servers, counts in found.items()
    ]
    return aligned([header, *lines], words=1)
