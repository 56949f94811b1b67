"""Absurd on PostgreSQL: its workers are processes of their own, its client is here, and all of them ask the database.

Run it in an environment that has `absurd-sdk`, and `absurdctl` of the same version, which brings the schema:
python -m benchmarks.peers.absurd_workloads chain 2000 --database-url postgresql://postgres@127.0.0.1:5432/new
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.commands import Command, running
from benchmarks.peers.absurd_worker import WORKER_PROCESSES
from benchmarks.peers.command import Arguments, main
from benchmarks.workloads import Usage

CLIENTS = 8
"""Each has one connection, on which its calls wait for each other; with one, signal takes at least twice as long."""

POLL_INTERVAL_S = 0.01


class AbsurdEngine:
    """Running workers, and a client of their queue."""

    name = "absurd"

    def __init__(self, clients: Sequence[AsyncAbsurd], workers: Sequence[Command]) -> None:
        self._clients = cycle(clients)
        self._workers = workers
        self._task_ids: dict[str, str] = {}

    async def run_chain(self, process_id: str) -> None:
        await self._spawn(process_id, "chain")
        await self._result(process_id)

    async def run_one_step(self, process_id: str) -> None:
        await self._spawn(process_id, "one_step")
        await self._result(process_id)

    async def start_waiting(self, process_id: str) -> None:
        await self._spawn(process_id, "receive", process_id)
        while not await self._is_waiting(process_id):  # noqa: ASYNC110  # the API does not tell when a wait begins
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _is_waiting(self, process_id: str) -> bool:
        task = await self._client.fetch_task_result(self._task_ids[process_id])
        return task is not None and task.state == "sleeping"

    async def send_message(self, process_id: str) -> None:
        await self._client.emit_event(process_id, True)

    async def message_received(self, process_id: str) -> None:
        await self._result(process_id)

    async def start_sleeping(self, process_id: str, wake_at_s: float) -> None:
        await self._spawn(process_id, "sleep", wake_at_s)

    async def woken_at_s(self, process_id: str) -> float:
        return await self._result(process_id)

    @property
    def _client(self) -> AsyncAbsurd:
        return next(self._clients)

    async def usage(self) -> Usage:
        return Usage(time.process_time() + sum(worker.cpu_s for worker in self._workers), counts={})

    async def _spawn(self, process_id: str, task: str, params: Any = None) -> None:
        spawned = await self._client.spawn(task, params, queue="default", idempotency_key=process_id)
        self._task_ids[process_id] = spawned["task_id"]

    async def _result(self, process_id: str) -> Any:
        result = await self._client.await_task_result(self._task_ids[process_id])
        if result.state != "completed":
            raise RuntimeError(f"{process_id} is {result.state}: {result.failure}")
        return result.result


@asynccontextmanager
async def running_engine(arguments: Arguments) -> AsyncIterator[AbsurdEngine]:
    async with await psycopg.AsyncConnection.connect(arguments.database_url, autocommit=True) as connection:
        await connection.execute(BUNDLED_SCHEMA_SQL)
    command = [sys.executable, "-m", "benchmarks.peers.absurd_worker", arguments.database_url]
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-absurd-")))
        clients = [AsyncAbsurd(arguments.database_url) for _ in range(CLIENTS)]
        for client in clients:
            stack.push_async_callback(client.close)
            await client.list_queues()  # which connects
        await clients[0].create_queue()
        workers = [
            stack.enter_context(running(command, directory / f"worker-{number}.log"))
            for number in range(WORKER_PROCESSES)
        ]
        yield AbsurdEngine(clients, workers)


if __name__ == "__main__":
    main(running_engine)
