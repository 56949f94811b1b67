"""Many starts at once: what is accepted completes, and what is too much is told to come back."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import httpx

from benchmarks.databases import Databases
from benchmarks.processes import ChainProcess, registry
from benchmarks.report import aligned, number
from benchmarks.scale.memory import MIB
from benchmarks.workloads import run_all
from benchmarks.xdb_engine import Service, running_server, running_worker
from xdb_sdk import AsyncClient, ClientOptions, ProcessNotFoundError, ProcessStillRunningError, UnavailableError
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, SERVICE_BATCH_PATH, AnswerLine, StartRequest

STEPS = 1
CALLS_PER_REQUEST = 250
WAITS_AT_ONCE = 256
COMPLETED_WITHIN = timedelta(minutes=5)
MEMORY_INTERVAL_S = 0.05
OK = 200
REFUSALS = (429, 503)

Answers: TypeAlias = Mapping[str, int]
"""The HTTP status of the last answer to each start, by process id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstResult:
    """What became of a burst.

    Attributes:
        statuses: How many starts were answered last with each HTTP status.
        completed: How many of the accepted executions have completed.
        answered_s: From the first start until the last was answered.
        completed_s: The same until the last accepted execution had completed.
        server_mib: The largest resident memory of the server meanwhile.
    """

    statuses: Mapping[int, int]
    completed: int
    answered_s: float
    completed_s: float
    server_mib: float

    @property
    def accepted(self) -> int:
        """How many starts were accepted."""
        return self.statuses.get(OK, 0)


async def measure_burst(databases: Databases, directory: Path, *, starts: int) -> Mapping[str, BurstResult]:
    """Send that many starts at once, to a new server each time.

    Args:
        databases: Gives the databases.
        directory: Where logs go.
        starts: How many starts.

    Returns:
        What became of them, by who sent them: a client that repeats what is refused, and bare requests.
    """
    return {
        "AsyncClient": await _measure(databases, directory, starts, _start_by_client),
        "bare requests": await _measure(databases, directory, starts, _start_bare),
    }


def burst_table(results: Mapping[str, BurstResult]) -> str:
    """Write one line for each sender."""
    header = ("sent by", "sent", "accepted", "429", "503", "others", "lost", "answered s", "completed s", "server MiB")
    lines = []
    for name, result in results.items():
        sent = sum(result.statuses.values())
        refused = [result.statuses.get(status, 0) for status in REFUSALS]
        lines.append(
            (
                name,
                *map(str, (sent, result.accepted, *refused, sent - result.accepted - sum(refused))),
                str(result.accepted - result.completed),
                number(result.answered_s),
                number(result.completed_s),
                number(result.server_mib),
            )
        )
    return aligned([header, *lines], words=1)


async def _measure(
    databases: Databases,
    directory: Path,
    starts: int,
    start_all: Callable[[AsyncClient, ClientOptions, Sequence[str]], Awaitable[Answers]],
) -> BurstResult:
    process_ids = [f"burst-{uuid4().hex[:12]}-{each}" for each in range(starts)]
    with databases.new() as url:
        async with (
            running_server(url, directory / "server.log") as server,
            running_worker(directory / "worker.log") as worker,
        ):
            options = ClientOptions(server_url=server.url, worker_url=worker.url)
            async with AsyncClient(registry, options) as client, _largest_memory(server) as sizes_bytes:
                began_s = time.perf_counter()
                answers = await start_all(client, options, process_ids)
                answered_s = time.perf_counter() - began_s
                accepted = [process_id for process_id, status in answers.items() if status == OK]
                completed = await run_all(WAITS_AT_ONCE, lambda each: _has_completed(client, each), accepted)
                completed_s = time.perf_counter() - began_s
    return BurstResult(
        statuses=Counter(answers.values()),
        completed=sum(completed),
        answered_s=answered_s,
        completed_s=completed_s,
        server_mib=max(sizes_bytes) / MIB,
    )


async def _start_by_client(client: AsyncClient, _: ClientOptions, process_ids: Sequence[str]) -> Answers:
    async def start(process_id: str) -> int:
        try:
            await client.start_process(process_id, ChainProcess, STEPS)
        except UnavailableError:
            return REFUSALS[-1]  # also after the last attempt; the client does not say by which status
        return OK

    return dict(zip(process_ids, await asyncio.gather(*map(start, process_ids)), strict=True))


async def _start_bare(_: AsyncClient, options: ClientOptions, process_ids: Sequence[str]) -> Answers:
    """Send all in as many requests as they need, all at the same time, and repeat nothing."""
    answers: dict[str, int] = {}
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as http:

        async def send(ids: Sequence[str]) -> None:
            body = b"".join(_start_line(call_id, process_id, options) for call_id, process_id in enumerate(ids))
            url, headers = options.server_url + SERVICE_BATCH_PATH, {"content-type": BATCH_CONTENT_TYPE}
            response = await http.post(url, content=body, headers=headers)
            if response.status_code != OK:
                answers.update(dict.fromkeys(ids, response.status_code))
                return
            for line in map(AnswerLine.model_validate_json, response.content.splitlines()):
                answers[ids[line.call_id]] = line.status

        firsts = range(0, len(process_ids), CALLS_PER_REQUEST)
        await asyncio.gather(*(send(process_ids[first : first + CALLS_PER_REQUEST]) for first in firsts))
    return answers


def _start_line(call_id: int, process_id: str, options: ClientOptions) -> bytes:
    definition = registry.process_of(ChainProcess)
    request = StartRequest(
        process_id=process_id,
        process_type=definition.process_type,
        worker_url=options.worker_url,
        start_state_id=definition.starting_state.state_id if definition.starting_state else None,
        start_state_input=STEPS,
    )
    body = request.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps({"callId": call_id, "operation": "start", "body": body}).encode() + b"\n"


async def _has_completed(client: AsyncClient, process_id: str) -> bool:
    try:
        await client.wait_for_process_completion(process_id, timeout=COMPLETED_WITHIN)
    except (ProcessStillRunningError, ProcessNotFoundError):
        return False
    return True


@asynccontextmanager
async def _largest_memory(server: Service) -> AsyncIterator[list[int]]:
    """Look at the memory of a server again and again, and add each size to the list that is given."""
    sizes_bytes = [server.command.process.memory_info().rss]

    async def look() -> None:
        while True:
            await asyncio.sleep(MEMORY_INTERVAL_S)
            sizes_bytes.append(server.command.process.memory_info().rss)

    task = asyncio.create_task(look())
    try:
        yield sizes_bytes
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
