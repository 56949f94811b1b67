"""The whole server inside a running loop: real database, real worker, no sockets."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from server_stub.app import Server, create_app
from server_stub.config import ServerSettings
from tests.contract.service_api.greeter import app as greeter
from tests.contract.service_api.requests import REQUESTS, path_of
from tests.contract.service_api.test_openapi import check, read
from tests.support.asgi import AsgiTransport
from tests.support.virtual_time import VirtualClock, run
from xdb_sdk.protocol import MAX_LONG_POLL_MS, SERVICE_BATCH_PATH, ErrorBody, ErrorSubType

SETTINGS = ServerSettings(database_url="sqlite://", shutdown_grace=timedelta(seconds=1))
START = {
    "processId": "p-1",
    "processType": "Greeter",
    "workerUrl": "http://worker",
    "startStateId": "Wait",
    "startStateInput": "Hello",
}
PUBLISH = {"processId": "p-1", "messages": [{"queueName": "names", "payload": "Ada"}]}
DOCUMENT = read("openapi-service.json")
HUGE = 10**30


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with (
        AsgiTransport({"http://worker": greeter}) as workers,
        await Server.open(SETTINGS, transport=workers) as made,
    ):
        yield made


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server) as made:
        yield made


def client_of(server: Server) -> httpx.AsyncClient:
    """Give a client of a server."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(server.api), base_url="http://xdb")


async def post(client: httpx.AsyncClient, operation: str, request: dict[str, Any], status: int = 200) -> Any:
    """Call an operation, and check that its answer is as documented."""
    response = await client.post(path_of(operation), json=request)
    assert response.status_code == status, response.text
    check(DOCUMENT, path_of(operation), response)
    return response.json()


async def test_process_runs_from_start_to_completion(client: httpx.AsyncClient) -> None:
    started = await post(client, "start", START)
    assert (await post(client, "rpc", {"processId": "p-1", "rpcName": "echo", "input": "hi"}))["output"] == "hi"
    await post(client, "publish", PUBLISH)

    completed = await post(client, "wait-for-completion", {"processId": "p-1"})

    assert completed["processExecutionId"] == started["processExecutionId"]
    assert completed["status"] == "COMPLETED"
    assert [each["output"] for each in completed["outputs"]] == ["Hello, Ada!"]


async def test_answers_of_a_real_process_are_as_documented(client: httpx.AsyncClient) -> None:
    await post(client, "start", START)
    await post(client, "set-attributes", {"processId": "p-1", "writeLocalAttributes": {"last": "Bob"}})
    attributes = await post(client, "get-attributes", {"processId": "p-1", "allLocalAttributes": True})
    await post(client, "update-config", {"processId": "p-1", "timeoutMs": 3_600_000})
    await post(client, "describe", {"processId": "p-1", "include": ["queues", "closed_states"]})
    await post(client, "rpc", {"processId": "p-1", "rpcName": "echo", "input": "fail"}, status=424)
    await post(client, "rpc", {"processId": "p-1", "rpcName": "sing"}, status=424)
    await post(client, "start", START, status=409)
    await post(client, "skip-timer", {"processId": "p-1", "stateId": "Wait", "index": 7}, status=404)
    await post(client, "stop", {"processId": "p-1", "reason": "enough"})
    await post(client, "wait-for-state-completion", {"processId": "p-1", "stateId": "Wait"})
    await post(client, "publish", PUBLISH, status=409)
    listed = await post(client, "list", {})

    assert attributes["loaded"]["localAttributes"] == {"last": "Bob"}
    assert [each["status"] for each in listed["processes"]] == ["TERMINATED"]


@pytest.mark.parametrize("key", [None, ["a"], {"a": 1}, "1", 1.5], ids=repr)
async def test_key_that_names_no_row_is_refused_and_harms_nobody(tmp_path: Path, key: Any) -> None:
    settings = ServerSettings(database_url=f"sqlite:///{tmp_path}/app.db")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, n INTEGER)")
    read = {"lockType": "EXCLUSIVE_LOCK", "tables": [{"tableName": "items", "columns": ["n"], "lockColumns": ["n"]}]}
    mapped = {
        "tables": [{"tableName": "items", "primaryKey": {"id": key}}],
        "startStateOptions": {"skipWaitUntil": True, "executeRead": read},
    }
    async with (
        AsgiTransport({"http://worker": greeter}) as workers,
        await Server.open(settings, transport=workers) as mapping_server,
        client_of(mapping_server) as caller,
    ):
        refused = await post(caller, "start", START | mapped, status=400)
        await post(caller, "start", START | {"processId": "p-2"})

    assert refused["errorSubType"] == ErrorSubType.INVALID_REQUEST
    assert "'id'" in refused["details"]
    assert repr(key) in refused["details"]


@pytest.mark.parametrize("operation", sorted(REQUESTS.keys() - {"start", "list"}))
async def test_unknown_process_and_execution_are_not_found(client: httpx.AsyncClient, operation: str) -> None:
    await post(client, "start", START)

    for change in ({"processId": "no-such-process"}, {"processExecutionId": "no-such-execution"}):
        error = await post(client, operation, REQUESTS[operation] | change, status=404)
        assert error["errorSubType"] == ErrorSubType.PROCESS_NOT_FOUND


@pytest.mark.parametrize("text", ["'", '"', ";", "--", ") OR 1=1", "%", "_", "\n", "\\", "x" * 255], ids=repr)
@pytest.mark.parametrize("field", ["processId", "processType", "namespace", "nextPageToken"])
async def test_filter_of_a_list_is_taken_literally(client: httpx.AsyncClient, field: str, text: str) -> None:
    await post(client, "start", START)

    response = await client.post(path_of("list"), json={field: text})

    assert response.status_code in (200, 400)
    assert response.json().get("processes", []) == []
    assert "SELECT" not in response.text


@pytest.mark.parametrize(
    ("operation", "change"),
    [
        ("list", {"startedFromMs": HUGE}),
        ("list", {"closedBeforeMs": -HUGE}),
        ("list", {"nextPageToken": "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OmE="}),
        ("wait-for-state-completion", {"number": HUGE}),
        ("skip-timer", {"index": HUGE}),
        ("skip-timer", {"number": HUGE}),
        ("start", {"timeoutMs": HUGE}),
        ("start", {"workerUrl": "ftp://worker"}),
        ("start", {"workerUrl": "worker"}),
        ("update-config", {"workerUrl": "http://worker#top"}),
        ("start", {"tables": [{"tableName": "no_such_table", "primaryKey": {"id": 1}}]}),
        ("start", {"tables": [{"tableName": "x; DROP TABLE y", "primaryKey": {"id": HUGE}}]}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
async def test_value_that_cannot_be_meant_is_refused(
    client: httpx.AsyncClient, operation: str, change: dict[str, Any]
) -> None:
    await post(client, "start", START)

    await post(client, operation, REQUESTS[operation] | change, status=400)


@pytest.mark.parametrize("timeout_ms", [0, 1])
async def test_wait_ends_when_its_time_is_over(client: httpx.AsyncClient, timeout_ms: int) -> None:
    await post(client, "start", START)

    answer = await post(client, "wait-for-completion", {"processId": "p-1", "timeoutMs": timeout_ms})

    assert answer["timeout"]
    assert answer["status"] == "RUNNING"


@pytest.mark.parametrize("asked_ms", [MAX_LONG_POLL_MS - 1, MAX_LONG_POLL_MS, 10 * MAX_LONG_POLL_MS, HUGE])
def test_wait_ends_by_the_cap_whatever_is_asked(asked_ms: int) -> None:
    async def wait_ms() -> int:
        async with AsgiTransport({"http://worker": greeter}) as workers:
            clock = VirtualClock()
            async with (
                await Server.open(SETTINGS, transport=workers, clock=clock) as server,
                client_of(server) as client,
            ):
                await post(client, "start", START)
                began_ms = clock()
                answer = await post(client, "wait-for-completion", {"processId": "p-1", "timeoutMs": asked_ms})
                assert answer["timeout"]
                return clock() - began_ms

    waited_ms = run(wait_ms())

    assert waited_ms == pytest.approx(min(asked_ms, MAX_LONG_POLL_MS), abs=2)


async def test_api_can_be_mounted_below_a_path(server: Server) -> None:
    app = Starlette(routes=[Mount("/xdb", server.api)])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host/xdb") as client:
        listed = await client.post(path_of("list"), json={})
        health = await client.get("/healthz")
        unknown = await client.post(path_of("restart"), json={})

    assert (listed.status_code, health.status_code, unknown.status_code) == (200, 200, 404)
    assert "'restart'" in unknown.text


async def test_stopping_server_answers_those_who_wait_and_refuses_the_rest(
    server: Server, client: httpx.AsyncClient
) -> None:
    await post(client, "start", START)
    waiting = asyncio.create_task(post(client, "wait-for-completion", {"processId": "p-1", "timeoutMs": HUGE}))
    batch = asyncio.create_task(
        client.post(
            SERVICE_BATCH_PATH, json={"callId": 1, "operation": "wait-for-completion", "body": {"processId": "p-1"}}
        )
    )
    await post(client, "describe", {"processId": "p-1"})

    await server.close()

    assert (await waiting)["serverStopping"]
    assert (await batch).json()["body"]["serverStopping"]
    error = await post(client, "publish", PUBLISH, status=503)
    assert ErrorBody.model_validate(error).retry_after_s
    assert (await client.get("/readyz")).status_code == 503
    assert (await client.get("/healthz")).status_code == 200


async def test_next_server_goes_on_with_what_the_database_holds(tmp_path: Path) -> None:
    settings = ServerSettings(database_url=f"sqlite:///{tmp_path}/xdb.db")
    async with AsgiTransport({"http://worker": greeter}) as workers:
        async with await Server.open(settings, transport=workers) as first, client_of(first) as client:
            started = await post(client, "start", START)
        async with await Server.open(settings, transport=workers) as second, client_of(second) as client:
            await post(client, "publish", PUBLISH)
            completed = await post(client, "wait-for-completion", {"processId": "p-1"})

    assert completed["status"] == "COMPLETED"
    assert completed["processExecutionId"] == started["processExecutionId"]


async def test_application_lives_by_lifespan_events(tmp_path: Path) -> None:
    events = iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[str] = []
    application = create_app(ServerSettings(database_url=f"sqlite:///{tmp_path}/xdb.db"))

    async def receive() -> dict[str, Any]:
        return {"type": next(events)}

    async def send(message: Any) -> None:
        sent.append(message["type"])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://xdb") as client:
            assert (await client.get("/healthz")).status_code == 200

    await application({"type": "lifespan"}, receive, send)

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_application_says_why_it_does_not_start(tmp_path: Path) -> None:
    sent: list[Any] = []
    application = create_app(ServerSettings(database_url=f"sqlite:///{tmp_path}/none/xdb.db"))

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await application({"type": "lifespan"}, receive, send)

    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "none/xdb.db" in sent[0]["message"]
