"""xdb as its users run it: `xdb server` and `xdb worker` with their defaults, and clients in this process.

Calls at the same time are made by an `AsyncClient`, calls one after another by a `Client`, as programs of either kind
do.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import psutil

from benchmarks.processes import ChainProcess, SignalProcess, SleepProcess, registry
from benchmarks.workloads import CHAIN_STEPS, Usage
from xdb_sdk import AsyncClient, Client, ClientOptions, WaitUntilStatus

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.01
LOG_TAIL_CHARACTERS = 4000

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
        self, client: AsyncClient, sequential: Client, status_url: str, processes: list[psutil.Process]
    ) -> None:
        self._client = client
        self._sequential = sequential
        self._status_url = status_url
        self._processes = processes

    async def run_chain(self, process_id: str) -> None:
        await self._client.start_process(process_id, ChainProcess, CHAIN_STEPS)
        await self._client.wait_for_process_completion(process_id)

    async def run_one_step(self, process_id: str) -> None:
        self._sequential.start_process(process_id, ChainProcess, 1)
        self._sequential.wait_for_process_completion(process_id)

    async def start_waiting(self, process_id: str) -> None:
        await self._client.start_process(process_id, SignalProcess)
        while not await self._is_waiting(process_id):  # noqa: ASYNC110  # the API does not tell when a wait begins
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _is_waiting(self, process_id: str) -> bool:
        process = await self._client.describe_process(process_id)
        return any(state.wait_until_status is WaitUntilStatus.WAITING_COMMANDS_COMPLETED for state in process.states)

    async def send_message(self, process_id: str) -> None:
        await self._client.publish_to_internal_queue(process_id, SignalProcess, SignalProcess.go, None)

    async def message_received(self, process_id: str) -> None:
        await self._client.wait_for_process_completion(process_id)

    async def start_sleeping(self, process_id: str, wake_at_s: float) -> None:
        await self._client.start_process(process_id, SleepProcess, wake_at_s)

    async def woken_at_s(self, process_id: str) -> float:
        return await self._client.wait_for_process_completion(process_id, float)

    async def usage(self) -> Usage:
        cpu_s = time.process_time() + sum(_cpu_s(process) for process in self._processes)
        async with httpx.AsyncClient() as http:
            response = await http.get(self._status_url)
        counters: Mapping[str, Mapping[str, int]] = response.raise_for_status().json()
        return Usage(cpu_s, {name: counters[part][name] for part, name in COUNTED})


@asynccontextmanager
async def running_engine(database_url: str, directory: Path) -> AsyncIterator[XdbEngine]:
    """Run a server, a worker and a client.

    Args:
        database_url: The database of the server.
        directory: Where their logs go.

    Raises:
        RuntimeError: A process ended or did not become ready; the text has the end of its log.
    """
    server_url, worker_url = (f"http://127.0.0.1:{port}" for port in _free_ports(2))
    server_arguments = ["server", "--database-url", database_url, "--port", server_url.rpartition(":")[2]]
    worker_arguments = ["worker", "benchmarks.worker:app", "--port", worker_url.rpartition(":")[2]]
    with (
        _command(server_arguments, directory / "server.log") as server,
        _command(worker_arguments, directory / "worker.log") as worker,
    ):
        await _until_answered(f"{server_url}/readyz", server, directory / "server.log")
        await _until_answered(f"{worker_url}/healthz", worker, directory / "worker.log")
        options = ClientOptions(server_url=server_url, worker_url=worker_url)
        with Client(registry, options) as sequential:
            async with AsyncClient(registry, options) as client:
                yield XdbEngine(client, sequential, f"{server_url}/internal/status", [server, worker])


@contextmanager
def _command(arguments: list[str], log: Path) -> Iterator[psutil.Popen]:
    """Run an `xdb` command, and stop it at the end."""
    with log.open("ab") as output:
        process = psutil.Popen(
            [sys.executable, "-m", "server_stub.cli", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_answered(url: str, process: psutil.Popen, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    async with httpx.AsyncClient() as http:
        while time.monotonic() < deadline_s and process.poll() is None:
            try:
                if (await http.get(url)).is_success:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            await asyncio.sleep(0.05)
    state = "is not ready" if process.poll() is None else f"ended with status {process.returncode}"
    raise RuntimeError(f"{url} {state}; its log ends:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text()[-LOG_TAIL_CHARACTERS:]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _cpu_s(process: psutil.Process) -> float:
    """Give the CPU time of a process and its children, those that have ended included."""
    times = process.cpu_times()
    own_s = times.user + times.system + times.children_user + times.children_system
    return own_s + sum(_cpu_s(child) for child in process.children())
