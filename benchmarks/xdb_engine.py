"""xdb as its users run it: `xdb server` and `xdb worker` with their defaults, and clients in this process.

Calls at the same time are made by an `AsyncClient`, calls one after another by a `Client`, as programs of either kind
do.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.commands import Command, free_ports, running
from benchmarks.processes import ChainProcess, InterruptedProcess, SignalProcess, SleepProcess, registry
from benchmarks.recovery import Part
from benchmarks.workloads import CHAIN_STEPS, Usage
from xdb_sdk import AsyncClient, Client, ClientOptions, WaitUntilStatus

POLL_INTERVAL_S = 0.01

COUNTED = (
    ("commit", "events"),
    ("commit", "transactions"),
    ("dispatch", "batched_calls"),
    ("dispatch", "batches"),
    ("store", "statements"),
)
"""What is taken from the server's /internal/status, by part of the server and name."""


class XdbEngine:
    """A running server and worker, and a client of theirs."""

    name = "xdb"

    def __init__(
        self, client: AsyncClient, sequential: Client, server_url: str, commands: Mapping[Part, Command]
    ) -> None:
        self._client = client
        self._sequential = sequential
        self._server_url = server_url
        self._commands = commands

    async def run_chain(self, process_id: str) -> None:
        await self._client.start_process(process_id, ChainProcess, CHAIN_STEPS)
        await self._client.wait_for_process_completion(process_id)

    async def run_one_step(self, process_id: str) -> None:
        self._sequential.start_process(process_id, ChainProcess, 1)
        self._sequential.wait_for_process_completion(process_id)

    async def start_waiting(self, process_id: str) -> None:
        await self._client.start_process(process_id, SignalProcess)
        while not await is_waiting(self._client, process_id):  # noqa: ASYNC110  # the API does not tell when a wait begins
            await asyncio.sleep(POLL_INTERVAL_S)

    async def send_message(self, process_id: str) -> None:
        await self._client.publish_to_internal_queue(process_id, SignalProcess, SignalProcess.go, None)

    async def message_received(self, process_id: str) -> None:
        await self._client.wait_for_process_completion(process_id)

    async def start_sleeping(self, process_id: str, wake_at_s: float) -> None:
        await self._client.start_process(process_id, SleepProcess, wake_at_s)

    async def woken_at_s(self, process_id: str) -> float:
        return await self._client.wait_for_process_completion(process_id, float)

    async def start_interrupted(self, process_id: str, mark: str) -> None:
        await self._client.start_process(process_id, InterruptedProcess, mark)

    async def kill_and_start(self, part: Part) -> float:
        return self._commands[part].kill_and_start()

    async def usage(self) -> Usage:
        cpu_s = time.process_time() + sum(command.cpu_s for command in self._commands.values())
        return Usage(cpu_s, await counts_of(self._server_url))


async def is_waiting(client: AsyncClient, process_id: str) -> bool:
    """Say whether a process waits for a command."""
    process = await client.describe_process(process_id)
    return any(state.wait_until_status is WaitUntilStatus.WAITING_COMMANDS_COMPLETED for state in process.states)


async def counts_of(server_url: str) -> dict[str, int]:
    """Ask a server for what it has counted since it was started, by the names in `COUNTED`."""
    async with httpx.AsyncClient() as http:
        response = await http.get(f"{server_url}/internal/status")
    counters: Mapping[str, Mapping[str, int]] = response.raise_for_status().json()
    return {name: counters[part][name] for part, name in COUNTED}


@dataclass(frozen=True, slots=True)
class Service:
    """A running server or worker."""

    url: str
    command: Command


@asynccontextmanager
async def running_server(database_url: str, log: Path) -> AsyncIterator[Service]:
    """Run a server until the end of the `async with`, which begins when it is ready.

    Args:
        database_url: Its database.
        log: The file that its log is appended to.

    Raises:
        RuntimeError: It ended or did not become ready; the text has the end of its log.
    """
    async with _running_xdb(["server", "--database-url", database_url], "/readyz", log) as service:
        yield service


@asynccontextmanager
async def running_worker(log: Path) -> AsyncIterator[Service]:
    """Run a worker of the workloads until the end of the `async with`; see `running_server`."""
    async with _running_xdb(["worker", "benchmarks.worker:app"], "/healthz", log) as service:
        yield service


@asynccontextmanager
async def running_engine(database_url: str, directory: Path) -> AsyncIterator[XdbEngine]:
    """Run a server, a worker and a client.

    Args:
        database_url: The database of the server.
        directory: Where their logs go.

    Raises:
        RuntimeError: A process ended or did not become ready; the text has the end of its log.
    """
    async with (
        running_server(database_url, directory / "server.log") as server,
        running_worker(directory / "worker.log") as worker,
    ):
        options = ClientOptions(server_url=server.url, worker_url=worker.url)
        with Client(registry, options) as sequential:
            async with AsyncClient(registry, options) as client:
                commands = {Part.SERVER: server.command, Part.WORKER: worker.command}
                yield XdbEngine(client, sequential, server.url, commands)


@asynccontextmanager
async def _running_xdb(arguments: list[str], ready_path: str, log: Path) -> AsyncIterator[Service]:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", "server_stub.cli", *arguments, "--port", str(port)], log) as command:
        await command.answers(f"{url}{ready_path}")
        yield Service(url, command)
