"""A client in a process of its own, so that its CPU is counted apart, and several load more than one core.

Each line of its input is an `Order`, each line of its output the `Report` on one; the first line says that it is ready.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from benchmarks.commands import ROOT
from benchmarks.processes import ChainProcess, registry
from benchmarks.workloads import CHAIN_STEPS, run_all, timed_ms
from xdb_sdk import AsyncClient, ClientOptions

READY = "ready"
LINE_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: executions of the chain whose process ids begin with `prefix`, `concurrency` at a time."""

    prefix: str
    executions: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Report:
    """How long each execution took, from its start until the client knew of the end, and CPU time of the client."""

    times_ms: list[float]
    cpu_s: float


class ChainClient:
    """A client process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, order: Order) -> Report:
        """Carry out an order.

        Raises:
            RuntimeError: The client failed; its error output says why.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        await self._process.stdin.drain()
        return Report(**json.loads(await self.read_line()))

    async def read_line(self) -> str:
        """Read a line of its output."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client ended with status {await self._process.wait()}; see its error output above")
        return line.decode().rstrip()


@asynccontextmanager
async def running_client(server_url: str, worker_url: str) -> AsyncIterator[ChainClient]:
    """Run a client until the end of the `async with`, which begins when it is ready.

    Args:
        server_url: The server that it calls.
        worker_url: The worker of its processes.
    """
    arguments = ["-m", "benchmarks.scale.chain_client", server_url, worker_url]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_LIMIT_BYTES,
    )
    try:
        client = ChainClient(process)
        assert await client.read_line() == READY
        yield client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _carry_out(client: AsyncClient, order: Order) -> Report:
    async def run(process_id: str) -> None:
        await client.start_process(process_id, ChainProcess, CHAIN_STEPS)
        await client.wait_for_process_completion(process_id)

    process_ids = [f"{order.prefix}-{number}" for number in range(order.executions)]
    began_s = time.process_time()
    times_ms = await run_all(order.concurrency, lambda process_id: timed_ms(run(process_id)), process_ids)
    return Report(times_ms, time.process_time() - began_s)


async def _main(server_url: str, worker_url: str) -> None:
    async with AsyncClient(registry, ClientOptions(server_url=server_url, worker_url=worker_url)) as client:
        print(READY, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            report = await _carry_out(client, Order(**json.loads(line)))
            print(json.dumps(asdict(report)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
