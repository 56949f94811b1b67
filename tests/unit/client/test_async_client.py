"""The async client over real HTTP on the loopback, against a small server that speaks the envelope."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.serving import serving
from tests.unit.client.processes import REGISTRY, Bare
from xdb_sdk._errors import ProcessAlreadyStartedError, UnavailableError
from xdb_sdk.client import (
    AsyncClient,
    AsyncUnregisteredClient,
    Client,
    ClientClosedError,
    ClientOptions,
    ClientRetryPolicy,
    UnregisteredClient,
)
from xdb_sdk.protocol import SERVICE_BATCH_PATH, SERVICE_PREFIX


class LoopbackServer:
    """Answers starts at once, and waits when the test lets it. Counts requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.started: list[str] = []
        self.takes_batches = True
        self.closing = asyncio.Event()
        self.waits = 0
        self.app = Starlette(
            routes=[
                Route(SERVICE_BATCH_PATH, self._batch, methods=["POST"]),
                Route(SERVICE_PREFIX + "{operation}", self._single, methods=["POST"]),
            ]
        )

    async def _single(self, request: Request) -> Response:
        operation = request.path_params["operation"]
        self.requests.append(operation)
        status, body = await self._answer(operation, await request.json())
        return JSONResponse(body, status)

    async def _batch(self, request: Request) -> Response:
        if not self.takes_batches:
            return JSONResponse({"errorSubType": "NOT_FOUND"}, 404)
        lines = [json.loads(line) for line in (await request.body()).splitlines()]
        self.requests.append(f"batch of {len(lines)}")
        return StreamingResponse(self._lines(lines), media_type="application/x-ndjson")

    async def _lines(self, lines: list[dict[str, Any]]) -> AsyncIterator[bytes]:
        async def answer(line: dict[str, Any]) -> bytes:
            status, body = await self._answer(line["operation"], line["body"])
            return json.dumps({"callId": line["callId"], "status": status, "body": body}).encode() + b"\n"

        for done in asyncio.as_completed([answer(line) for line in lines]):
            yield await done

    async def _answer(self, operation: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        process_id = body["processId"]
        if operation == "start":
            if process_id in self.started:
                return 409, {"errorSubType": "PROCESS_ALREADY_STARTED", "processExecutionId": f"e-{process_id}"}
            self.started.append(process_id)
            return 200, {"processExecutionId": f"e-{process_id}"}
        self.waits += 1
        await self.closing.wait()
        return 200, {
            "processExecutionId": f"e-{process_id}",
            "status": "COMPLETED",
            "outputs": [{"stateId": "s", "stateExecutionId": "s-1", "output": process_id}],
        }

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.waits < count:  # noqa: ASYNC110  # requests come from another socket; nobody signals them here
                await asyncio.sleep(0.001)


@pytest.fixture
async def server() -> LoopbackServer:
    return LoopbackServer()


@pytest.fixture
async def server_url(server: LoopbackServer) -> AsyncIterator[str]:
    async with serving(server.app) as url:
        yield url
        server.closing.set()


@pytest.fixture
async def client(server_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(REGISTRY, ClientOptions(server_url=server_url)) as client:
        yield client


async def test_many_calls_at_once_need_few_requests(server: LoopbackServer, client: AsyncClient) -> None:
    execution_ids = await asyncio.gather(*(client.start_process(f"p{n}", Bare) for n in range(200)))

    assert execution_ids == [f"e-p{n}" for n in range(200)]
    assert server.requests == ["batch of 200"]


async def test_waits_and_starts_share_requests_and_disturb_each_other_not(
    server: LoopbackServer, client: AsyncClient
) -> None:
    waits = [asyncio.create_task(client.wait_for_process_completion(f"w{n}", str)) for n in range(50)]
    await asyncio.gather(*(client.start_process(f"p{n}", Bare) for n in range(50)))
    await server.until_waiting(50)
    assert not any(wait.done() for wait in waits)

    server.closing.set()

    assert await asyncio.gather(*waits) == [f"w{n}" for n in range(50)]
    assert len(server.requests) <= 2


async def test_an_error_in_a_batch_is_raised_by_its_own_call_alone(server: LoopbackServer, client: AsyncClient) -> None:
    server.started.append("b")

    results = await asyncio.gather(
        *(client.start_process(process_id, Bare) for process_id in "abc"), return_exceptions=True
    )

    assert (results[0], results[2]) == ("e-a", "e-c")
    assert isinstance(results[1], ProcessAlreadyStartedError)


async def test_a_server_without_batches_is_called_one_by_one(server: LoopbackServer, client: AsyncClient) -> None:
    server.takes_batches = False

    execution_ids = await asyncio.gather(*(client.start_process(f"p{n}", Bare) for n in range(20)))

    assert len(set(execution_ids)) == 20
    assert server.requests == ["start"] * 20


async def test_a_cancelled_wait_leaves_the_others_of_its_request_alone(
    server: LoopbackServer, client: AsyncClient
) -> None:
    given_up = asyncio.create_task(client.wait_for_process_completion("a", str))
    kept = asyncio.create_task(client.wait_for_process_completion("b", str))
    await server.until_waiting(2)

    given_up.cancel()
    server.closing.set()

    assert await kept == "b"
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_closing_the_client_ends_open_waits_with_a_clear_error(
    server: LoopbackServer, client: AsyncClient
) -> None:
    waits = [asyncio.create_task(client.wait_for_process_completion(f"w{n}")) for n in range(3)]
    await server.until_waiting(3)

    await client.close()

    for wait in waits:
        with pytest.raises(ClientClosedError):
            await wait
    with pytest.raises(ClientClosedError):
        await client.start_process("p", Bare)


async def test_one_connection_serves_a_sequential_caller(server: LoopbackServer, client: AsyncClient) -> None:
    for n in range(5):
        await client.start_process(f"p{n}", Bare)
    await asyncio.gather(*(client.start_process(f"q{n}", Bare) for n in range(5)))

    assert server.requests == ["start"] * 5 + ["batch of 5"]


async def test_a_server_that_is_not_there_is_unavailable_after_a_few_attempts() -> None:
    options = ClientOptions(server_url="http://127.0.0.1:1", retry=ClientRetryPolicy.none())

    async with AsyncUnregisteredClient(options) as client:
        with pytest.raises(UnavailableError, match="nothing was sent"):
            await client.describe_process("p")


def signatures(face: type) -> dict[str, str]:
    return {
        name: str(inspect.signature(method)).replace("AsyncIterator", "Iterator")
        for name, method in inspect.getmembers(face, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("sync_face", "async_face"), [(Client, AsyncClient), (UnregisteredClient, AsyncUnregisteredClient)]
)
def test_the_async_client_has_the_methods_and_parameters_of_the_sync_one(sync_face: type, async_face: type) -> None:
    assert signatures(async_face) == signatures(sync_face)


@pytest.mark.parametrize("face", [Client, AsyncClient, UnregisteredClient, AsyncUnregisteredClient])
def test_every_public_method_says_what_it_does(face: type) -> None:
    assert all(inspect.getdoc(getattr(face, name)) for name in signatures(face))
