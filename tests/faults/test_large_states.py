"""Much data and answers without end: only what is asked for travels, and memory is bounded (C-033, C-046)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.contract.worker_api.raw_worker import Misbehaviour, RawRequest, head, raw_worker
from tests.support.real_processes import RunningCommand
from tests.support.serving import serving
from xdb_sdk import (
    AsyncClient,
    AsyncState,
    AttributeNotLoadedError,
    ClientOptions,
    CommandRequest,
    CommandResults,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessFailed,
    QueueMessage,
    Registry,
    RetryPolicy,
    StateDecision,
    Worker,
    data_attribute,
    internal_queue,
    state,
)
from xdb_sdk.protocol import WORKER_BATCH_PATH

MESSAGES = 10_000
MESSAGE = "m" * 1_000
NOTES = 2_000
NOTE = "n" * 2_000
BATCH = 500

PIECE = b"x" * 65_536
MEMORY_LIMIT_BYTES = 64 * 1024 * 1024
"""An answer may have 8 MiB, and is held once or twice while it is read."""


@state(data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["wanted"]))
class UseOne(AsyncState[None]):
    """Needs a single attribute and a single message."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(Hoard.go))

    def execute(self, persistence: Persistence) -> StateDecision:
        with pytest.raises(AttributeNotLoadedError):
            persistence.get_data_attribute("note_7")
        persistence.set_data_attribute(Hoard.found, persistence.get_data_attribute(Hoard.wanted))
        return StateDecision.single_next_state(Clear)


@state(data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["count"]))
class Clear(AsyncState[None]):
    """Takes the messages, as many at once as fit well into a call."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(
            InternalQueueCommand.by_name(Hoard.pile, at_least=1, at_most=BATCH)
        )

    def execute(self, command_results: CommandResults, persistence: Persistence) -> StateDecision:
        messages = command_results.values_of(Hoard.pile)
        assert all(message.endswith(MESSAGE) for message in messages)
        count = (persistence.get_data_attribute(Hoard.count) or 0) + len(messages)
        persistence.set_data_attribute(Hoard.count, count)
        if count < MESSAGES:
            return StateDecision.single_next_state(Clear)
        return StateDecision.graceful_complete_process(count)


class Hoard(ObjectProcess):
    """Has far more data than any of its states needs."""

    notes = data_attribute(str, prefix="note_")
    wanted = data_attribute(str)
    found = data_attribute(str)
    count = data_attribute(int)
    pile = internal_queue(str)
    go = internal_queue(None)

    starting_state = UseOne
    states = (Clear,)


@state(execute_api_timeout_seconds=2, execute_api_retry_policy=RetryPolicy(maximum_attempts=2))
class Ask(AsyncState[None]):
    """Is never answered properly."""

    def execute(self) -> StateDecision:
        raise AssertionError("the worker of this test is another one")


class Question(ObjectProcess):
    """Fails because of its worker."""

    starting_state = Ask


REGISTRY = Registry()
REGISTRY.add_processes(Hoard, Question)


class Metered:
    """Passes everything on, and counts the bytes of requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.received_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_and_count() -> Message:
            message = await receive()
            self.received_bytes += len(message.get("body", b""))
            return message

        await self._app(scope, receive_and_count, send)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningCommand]:
    with RunningCommand("server", "--port", "0", "--log-level", "ERROR", directory=tmp_path) as running:
        yield running


def client_of(server: RunningCommand, worker_url: str) -> AsyncClient:
    """Make a client that names this worker."""
    return AsyncClient(REGISTRY, ClientOptions(server_url=server.url, worker_url=worker_url))


async def test_state_is_sent_only_what_it_asks_for_however_much_there_is(server: RunningCommand) -> None:
    worker = Metered(Worker(REGISTRY))
    async with serving(worker) as worker_url, client_of(server, worker_url) as client:
        await client.start_process("hoard", Hoard)
        await fill(client)
        await client.publish_to_internal_queue("hoard", Hoard, Hoard.go, None)
        await client.wait_for_state_completion("hoard", UseOne)
        read_for_one_bytes = worker.received_bytes

        assert await client.wait_for_process_completion("hoard", int) == MESSAGES
        assert await client.get_data_attributes("hoard", Hoard, [Hoard.found]) == {"found": "the one"}

    assert read_for_one_bytes < 10_000 + BATCH * (len(MESSAGE) + 100)  # the first call of Clear may be there already


async def fill(client: AsyncClient) -> None:
    """Set the attributes and publish the messages."""
    await client.set_data_attributes("hoard", Hoard, {Hoard.wanted: "the one"})
    for first in range(0, NOTES, BATCH):
        notes = {f"note_{number}": NOTE for number in range(first, first + BATCH)}
        await client.set_data_attributes("hoard", Hoard, notes)
    for first in range(0, MESSAGES, BATCH):
        numbers = range(first, first + BATCH)
        messages = [QueueMessage(queue=Hoard.pile, value=f"{number} {MESSAGE}") for number in numbers]
        assert await client.publish_messages("hoard", Hoard, messages) == BATCH


async def endless_line(request: RawRequest) -> None:
    """Begin to answer a batch, and never come to the end of the first line."""
    await request.begin_batch()
    while True:
        await request.write_chunk(PIECE)


async def endless_blank_lines(request: RawRequest) -> None:
    """Answer a batch with lines that hold nothing."""
    await request.begin_batch()
    while True:
        await request.write_chunk(b"\n" * len(PIECE))


async def endless_error(request: RawRequest) -> None:
    """Say at length that something went wrong."""
    await request.write(head(500, "transfer-encoding: chunked"))
    while True:
        await request.write_chunk(PIECE)


async def huge_single_answer(request: RawRequest) -> None:
    """Know no batches, and answer a call with 300 MB."""
    if request.path == WORKER_BATCH_PATH:
        await request.write(head(404, "content-length: 0"))
        return
    await request.write(head(200, "content-type: application/json", f"content-length: {4_800 * len(PIECE)}"))
    for _ in range(4_800):
        await request.write(PIECE)


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        (endless_line, "response too large"),
        (endless_blank_lines, "no answer within the timeout of 2 s"),
        (endless_error, "500"),
        (huge_single_answer, "response too large"),
    ],
)
async def test_answer_without_end_fails_the_attempt_and_costs_little_memory(
    server: RunningCommand, behave: Misbehaviour, message: str
) -> None:
    async with (
        raw_worker(behave) as worker,
        client_of(server, worker.url) as client,
        peak_memory(server.pid) as peak,
    ):
        await client.start_process("question", Question)
        with pytest.raises(ProcessFailed, match=message):
            await client.wait_for_process_completion("question")

    assert len(worker.requests) >= 2
    assert peak.grown_by_bytes < MEMORY_LIMIT_BYTES


class Peak:
    """The most memory that a process has had, measured often."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._at_first_bytes = self._most_bytes = self._process.memory_info().rss

    @property
    def grown_by_bytes(self) -> int:
        """By how much it has been more than at first."""
        return self._most_bytes - self._at_first_bytes

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            self._most_bytes = max(self._most_bytes, self._process.memory_info().rss)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def peak_memory(pid: int) -> AsyncIterator[Peak]:
    """Measure the memory of a process while the block runs."""
    peak = Peak(pid)
    watching = asyncio.create_task(peak.watch())
    try:
        yield peak
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
