"""Restate with its own storage: its server, two hypercorn processes with the services, and an HTTP client here.

Run it in an environment that has `restate-sdk`, `hypercorn`, `aiohttp` and npm's `@restatedev/restate-server`:
python -m benchmarks.peers.restate_workloads chain 2000
"""

import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.commands import Command, free_ports, running
from benchmarks.peers.command import Arguments, main
from benchmarks.recovery import Part
from benchmarks.workloads import Usage

SERVICES = "benchmarks.peers.restate_services:app"
WORKER_PROCESSES = 2
SERVING_FOR_EVER = """
h2_max_concurrent_streams = 2147483647
keep_alive_max_requests = 2147483647
keep_alive_timeout = 2147483647
"""
"""What Restate's documentation recommends for hypercorn, so that it ends no connection under the server's feet."""


class RestateEngine:
    """A running server and its services, and a client of theirs."""

    name = "restate"

    def __init__(self, http: aiohttp.ClientSession, commands: Mapping[Part, Command]) -> None:
        self._http = http
        self._commands = commands

    async def run_chain(self, process_id: str) -> None:
        await self._call(f"Chain/{process_id}/run")

    async def run_one_step(self, process_id: str) -> None:
        await self._call(f"OneStep/{process_id}/run")

    async def start_waiting(self, process_id: str) -> None:
        await self._call(f"Receive/{process_id}/run/send")
        await self._call(f"Receive/{process_id}/waits")

    async def send_message(self, process_id: str) -> None:
        await self._call(f"Receive/{process_id}/go")

    async def message_received(self, process_id: str) -> None:
        await self._attach(f"Receive/{process_id}")

    async def start_sleeping(self, process_id: str, wake_at_s: float) -> None:
        await self._call(f"Sleep/{process_id}/run/send", wake_at_s)

    async def woken_at_s(self, process_id: str) -> float:
        return await self._attach(f"Sleep/{process_id}")

    async def start_interrupted(self, process_id: str, mark: str) -> None:
        await self._call(f"Interrupted/{process_id}/run/send", mark)

    async def kill_and_start(self, part: Part) -> float:
        return self._commands[part].kill_and_start()

    async def usage(self) -> Usage:
        return Usage(time.process_time() + sum(command.cpu_s for command in self._commands.values()), counts={})

    async def _call(self, path: str, value: Any = None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        headers = {} if value is None else {"Content-Type": "application/json"}
        async with self._http.post(f"/{path}", data=body, headers=headers) as response:
            await response.read()

    async def _attach(self, workflow: str) -> Any:
        async with self._http.get(f"/restate/workflow/{workflow}/attach") as response:
            content = await response.read()
            return json.loads(content) if content else None


@asynccontextmanager
async def running_engine(arguments: Arguments) -> AsyncIterator[RestateEngine]:
    ingress, admin, fabric, services = free_ports(4)
    with tempfile.TemporaryDirectory(prefix="bench-restate-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        settings = {
            "RESTATE_BASE_DIR": str(directory),
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{fabric}",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        config = directory / "hypercorn.toml"
        config.write_text(f'bind = "127.0.0.1:{services}"\nworkers = {WORKER_PROCESSES}\n{SERVING_FOR_EVER}')
        hypercorn = [
            sys.executable,
            "-m",
            "hypercorn",
            "--config",
            str(config),
            "benchmarks.peers.restate_services:app",
        ]
        with (
            running([str(_server_binary())], directory / "server.log", settings) as server,
            running(hypercorn, directory / "services.log") as worker,
        ):
            await server.answers(f"http://127.0.0.1:{admin}/health")
            await server.answers(f"http://127.0.0.1:{ingress}/restate/health")
            await worker.answers(f"http://127.0.0.1:{services}/health")
            await _register(f"http://127.0.0.1:{admin}/deployments", f"http://127.0.0.1:{services}")
            async with aiohttp.ClientSession(
                f"http://127.0.0.1:{ingress}",
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                skip_auto_headers=["Content-Type"],  # handlers without an input refuse any
                raise_for_status=True,
            ) as http:
                yield RestateEngine(http, {Part.SERVER: server, Part.WORKER: worker})


async def _register(deployments_url: str, services_url: str) -> None:
    async with (
        aiohttp.ClientSession(raise_for_status=True) as http,
        http.post(deployments_url, json={"uri": services_url}),
    ):
        pass


def _server_binary() -> Path:
    """Find the server in this environment: the program itself, not the Node.js script that would run it."""
    [binary] = Path(sys.prefix).glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    return binary


if __name__ == "__main__":
    main(running_engine)
