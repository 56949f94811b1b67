"""Where workers are reached, what is sent along, and what is kept of their errors (semantics 1.1, 2.5)."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from server_stub.config import ServerSettings
from tests.engine.service_http import nothing_was_started, post, start_of
from tests.support.databases import Database
from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    ErrorSubType,
    InternalQueueCommand,
    ObjectProcess,
    ProcessFailed,
    ProcessNotRunningError,
    ProcessStartOptions,
    RetryPolicy,
    RpcExecutionError,
    StateDecision,
    Worker,
    internal_queue,
    rpc,
    state,
)

OTHER_URL = "http://other"


class PingState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(PingProcess.again))

    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(PingState)


class PingProcess(ObjectProcess):
    """Calls its worker for every message."""

    again = internal_queue(None)
    starting_state = PingState

    @rpc
    def name(self) -> str:
        return "ping"


class Listener:
    """A worker at some URL that notes the requests it gets."""

    def __init__(self, system: System) -> None:
        self._worker: ASGIApp = Worker(system.registry)
        self.requests: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(scope)
        await self._worker(scope, receive, send)

    def headers(self) -> dict[str, str]:
        """Give the headers of the latest request."""
        return {name.decode(): value.decode() for name, value in self.requests[-1]["headers"]}


async def ping(system: System) -> None:
    """Let the process call its worker, and come back when it has."""
    await system.client.publish_to_internal_queue("p", PingProcess, PingProcess.again)
    await asyncio.sleep(0.1)


async def test_calls_go_to_the_worker_url_that_was_set_last(system: System) -> None:
    system.serve(PingProcess)
    other = Listener(system)
    system.route(OTHER_URL, other)
    await system.client.start_process("p", PingProcess)
    await asyncio.sleep(1)

    await system.client.update_process_config("p", worker_url=OTHER_URL + "/")
    urls_before = len(system.worker.urls)
    await ping(system)
    answer = await system.client.invoke_rpc("p", PingProcess.name)

    info = await system.client.describe_process("p")
    assert info.worker_url == OTHER_URL
    assert answer == "ping"
    assert len(other.requests) == len(system.worker.urls) - urls_before > 0
    assert all(url.startswith(OTHER_URL) for url in system.worker.urls[urls_before:])


async def test_process_whose_worker_has_moved_goes_on_at_its_new_url(system: System) -> None:
    system.serve(PingProcess)
    await system.client.start_process("p", PingProcess)
    await asyncio.sleep(1)
    system.route(WORKER_URL, None)
    await ping(system)
    await asyncio.sleep(10)
    stuck = await system.client.describe_process("p")

    system.route(OTHER_URL, Listener(system))
    await system.client.update_process_config("p", worker_url=OTHER_URL)
    await asyncio.sleep(60)

    info = await system.client.describe_process("p")
    assert [state.number for state in stuck.states] == [1]
    assert stuck.states[0].attempt > 1
    assert [state.number for state in info.states] == [2]


async def test_attempt_that_waits_for_its_time_goes_to_a_worker_that_has_moved_meanwhile(system: System) -> None:
    system.serve(PingProcess)
    system.route(WORKER_URL, None)
    moved = Listener(system)
    system.route(OTHER_URL, moved)
    await system.client.start_process("p", PingProcess)
    await asyncio.sleep(10)

    await system.client.update_process_config("p", worker_url=OTHER_URL)
    before = len(system.worker.urls)
    await asyncio.sleep(10)

    assert len(moved.requests) == 1
    assert all(url.startswith(OTHER_URL) for url in system.worker.urls[before:])


async def test_update_of_one_setting_keeps_the_others(system: System) -> None:
    system.serve(PingProcess)
    hour, day = timedelta(hours=1), timedelta(days=1)
    await system.client.start_process("p", PingProcess, None, ProcessStartOptions(timeout=hour))

    found = []
    changes: list[dict[str, Any]] = [
        {"worker_url": OTHER_URL},
        {"timeout": day},
        {"worker_url": WORKER_URL},
        {"timeout": timedelta(0)},
    ]
    for change in changes:
        await system.client.update_process_config("p", **change)
        info = await system.client.describe_process("p")
        found.append((info.worker_url, info.timeout_at and info.timeout_at - info.started_at))

    assert found == [(OTHER_URL, hour), (OTHER_URL, day), (WORKER_URL, day), (WORKER_URL, None)]


async def test_timeout_that_was_changed_is_the_one_that_ends_the_process(system: System) -> None:
    system.serve(PingProcess)
    await system.client.start_process("p", PingProcess, None, ProcessStartOptions(timeout=timedelta(seconds=10)))

    await system.client.update_process_config("p", timeout=timedelta(seconds=25))
    await asyncio.sleep(60)

    info = await system.client.describe_process("p")
    assert info.closed_at is not None
    assert info.closed_at - info.started_at == timedelta(seconds=25)
    with pytest.raises(ProcessNotRunningError):
        await system.client.update_process_config("p", timeout=timedelta(seconds=90))


async def test_headers_of_the_settings_arrive_at_the_worker(database: Database) -> None:
    settings = ServerSettings(worker_headers={"Authorization": "Bearer sesame", "X-Tenant": "blue"})
    async with System(database, settings) as system:
        system.serve(PingProcess)
        listener = Listener(system)
        system.route(WORKER_URL, listener)

        await system.client.start_process("p", PingProcess)
        await asyncio.sleep(1)
        of_state = listener.headers()
        await system.client.invoke_rpc("p", PingProcess.name)
        of_rpc = listener.headers()
        await ping(system)
        await system.client.stop_process("p")

    for headers in (of_state, of_rpc):
        assert (headers["authorization"], headers["x-tenant"]) == ("Bearer sesame", "blue")


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        pytest.param("http://h:1/", "http://h:1", id="slash at the end"),
        pytest.param("http://h:1/api", "http://h:1/api", id="prefix"),
        pytest.param("http://h:1/api//", "http://h:1/api", id="prefix and slashes"),
        pytest.param("http://[::1]:8803/", "http://[::1]:8803", id="IPv6"),
        pytest.param("HTTP://Worker.Example:80", "http://worker.example", id="upper case"),
        pytest.param("http://h:1?token=a/b", "http://h:1?token=a/b", id="query"),
        pytest.param("http://h:1/api/?a=b&c=", "http://h:1/api?a=b&c=", id="prefix and query"),
    ],
)
async def test_worker_url_leads_to_the_paths_of_the_worker(system: System, given: str, stored: str) -> None:
    system.serve(PingProcess)
    listener = Listener(system)
    origin, prefix, query = _parts(stored)
    system.route(origin, _mounted(prefix, listener))

    response = await post(system, "start", start_of("PingProcess", startStateId="PingState") | {"workerUrl": given})
    await ping(system)
    answer = await system.client.invoke_rpc("p", PingProcess.name)
    info = await system.client.describe_process("p")
    await system.client.stop_process("p")

    assert response.status_code == 200
    assert answer == "ping"
    assert info.worker_url == stored
    assert [state.number for state in info.states] == [2]
    assert {url.partition("?")[2] for url in system.worker.urls} == {query}


def _parts(url: str) -> tuple[str, str, str]:
    """Divide a URL into origin, path and query."""
    rest, _, query = url.partition("?")
    scheme, _, rest = rest.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path, query


def _mounted(prefix: str, app: ASGIApp) -> ASGIApp:
    """Serve an app below a path, and nothing beside it."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith(prefix + "/")
        await app(dict(scope, path=scope["path"].removeprefix(prefix)), receive, send)

    return serve


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("h:1", "does not begin with http"),
        ("//h:1", "does not begin with http"),
        ("file:///etc/passwd", "does not begin with http"),
        ("http://", "names no host"),
        ("http://a..b", "cannot be looked up"),
        ("http://h:1/#top", "fragment"),
        ("http://h:99999", "ort"),
        ("http://ann:secret@h:1", "user name"),
        ("http://h 1", "spaces"),
    ],
)
async def test_worker_url_that_cannot_be_called_is_refused_at_the_start(system: System, url: str, problem: str) -> None:
    response = await post(system, "start", start_of("PingProcess") | {"workerUrl": url})

    assert (response.status_code, response.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert "workerUrl" in response.json()["details"]
    assert problem in response.json()["details"]
    assert "secret" not in response.text
    assert nothing_was_started(system)


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
class ComplainState(AsyncState[str]):
    def execute(self, input: str) -> StateDecision:
        raise RuntimeError(input * 5_000)


class ComplainProcess(ObjectProcess):
    starting_state = ComplainState

    @rpc
    def complain(self, text: str) -> None:
        raise RuntimeError(text * 5_000)


def complaining(text: str) -> ASGIApp:
    """Make a worker without SDK that answers every call with a long error."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = json.dumps({"detail": text * 5_000, "errorType": text * 5_000}, ensure_ascii=False).encode()
        status = 404 if scope["path"].endswith("/batch") else 500
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.parametrize("text", ["x", "é", "☃", "\U0001f4a1", "a\U0001f4a1"], ids=ascii)
@pytest.mark.parametrize("worker", [None, complaining], ids=["SDK", "foreign worker"])
async def test_long_error_of_a_worker_is_cut_between_characters(
    system: System, worker: Callable[[str], ASGIApp] | None, text: str
) -> None:
    system.serve(ComplainProcess)
    if worker is not None:
        system.route(WORKER_URL, worker(text))
    await system.client.start_process("p", ComplainProcess, text)

    with pytest.raises(ProcessFailed) as failure:
        await system.client.wait_for_process_completion("p")
    with pytest.raises(RpcExecutionError) as of_rpc:
        await system.raw.invoke_rpc("p", "complain", text)

    [state] = (await system.client.describe_process("p", include={"closed_states"})).states
    assert state.last_failure is not None
    for details in (state.last_failure.details, of_rpc.value.body.details):
        assert 4_000 < len(details.encode()) <= 4_096
        assert text * (3_500 // len(text.encode())) in details
        assert "\N{REPLACEMENT CHARACTER}" not in details
    assert len(state.last_failure.error_type.encode()) <= 255
    assert text * 100 in failure.value.error_message
