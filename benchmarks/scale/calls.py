"""Many calls in flight at one worker, and a slow one beside them."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benchmarks.databases import Databases
from benchmarks.measurement import percentile
from benchmarks.processes import NapProcess, registry
from benchmarks.report import aligned, number
from benchmarks.workloads import timed_ms
from benchmarks.xdb_engine import running_server, running_worker
from xdb_sdk import AsyncClient, ClientOptions

NAP_S, LONG_NAP_S = 1.0, 10.0
WARM_UP_CALLS = 64


@dataclass(frozen=True, slots=True)
class CallsResult:
    """How long calls took that sleep `NAP_S`: each from its start until the client knew of the end, and together."""

    times_ms: list[float]
    elapsed_s: float


async def measure_calls(databases: Databases, directory: Path, *, calls: int) -> Mapping[str, CallsResult]:
    """Start that many executions of one step that sleeps; then the same while one sleeps for long.

    Args:
        databases: Gives the database.
        directory: Where logs go.
        calls: How many executions.
    """
    with databases.new() as url:
        async with (
            running_server(url, directory / "server.log") as server,
            running_worker(directory / "worker.log") as worker,
            AsyncClient(registry, ClientOptions(server_url=server.url, worker_url=worker.url)) as client,
        ):
            await _nap_all(client, WARM_UP_CALLS, 0.0)
            alone = await _nap_all(client, calls, NAP_S)
            slow = asyncio.create_task(_nap(client, f"slow-{uuid4().hex[:12]}", LONG_NAP_S))
            beside_slow = await _nap_all(client, calls, NAP_S)
            if slow.done():
                raise RuntimeError(f"the slow call of {LONG_NAP_S:g} s ended first; take fewer calls than {calls}")
            await slow
    return {"nothing": alone, f"a call of {LONG_NAP_S:g} s": beside_slow}


def calls_table(results: Mapping[str, CallsResult]) -> str:
    """Write one line for each case."""
    header = ("beside", "calls", "all done s", "first ms", "p50 ms", "p99 ms", "last ms")
    lines = [
        (
            name,
            str(len(result.times_ms)),
            number(result.elapsed_s),
            *(number(percentile(result.times_ms, percent)) for percent in (0, 50, 99, 100)),
        )
        for name, result in results.items()
    ]
    return aligned([header, *lines], words=1)


async def _nap_all(client: AsyncClient, calls: int, nap_s: float) -> CallsResult:
    process_ids = [f"nap-{uuid4().hex[:12]}" for _ in range(calls)]
    began_s = time.perf_counter()
    times_ms = await asyncio.gather(*(timed_ms(_nap(client, process_id, nap_s)) for process_id in process_ids))
    return CallsResult(times_ms, time.perf_counter() - began_s)


async def _nap(client: AsyncClient, process_id: str, nap_s: float) -> None:
    await client.start_process(process_id, NapProcess, nap_s)
    await client.wait_for_process_completion(process_id)
