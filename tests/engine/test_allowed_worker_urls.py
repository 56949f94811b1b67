"""A server that is limited to some worker URLs takes no others, and calls no others."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from server_stub.config import ServerSettings
from server_stub.core.allowed_urls import ANY_URL, AllowedUrls
from tests.engine.service_http import nothing_was_started, post, start_of
from tests.support.databases import Database
from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    ErrorSubType,
    ObjectProcess,
    ProcessFailed,
    RpcExecutionError,
    StateDecision,
    Worker,
    rpc,
)

OTHER_URL = "http://other"
HERE_ONLY = AllowedUrls.parse(WORKER_URL)
NAMES_THE_SETTING = "is not among the URLs that this server may call; its setting allowed_worker_urls says which are"


class WorkState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("done")


class WorkProcess(ObjectProcess):
    starting_state = WorkState

    @rpc
    def name(self) -> str:
        return "work"


class IdleProcess(ObjectProcess):
    @rpc
    def name(self) -> str:
        return "idle"


@pytest.fixture
async def limited(database: Database) -> AsyncIterator[System]:
    async with System(database, ServerSettings(allowed_worker_urls=HERE_ONLY)) as system:
        system.serve(WorkProcess, IdleProcess)
        yield system


async def narrow(system: System) -> None:
    """Start the server again with a setting that no longer allows the other URL."""
    system.settings = replace(system.settings, allowed_worker_urls=HERE_ONLY)
    await system.restart_server()


async def test_start_with_a_worker_url_that_is_not_allowed_is_refused(limited: System) -> None:
    response = await post(limited, "start", start_of("WorkProcess") | {"workerUrl": f"{OTHER_URL}/{WORKER_URL}"})

    assert (response.status_code, response.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert f"workerUrl '{OTHER_URL}/{WORKER_URL}' {NAMES_THE_SETTING}" in response.json()["details"]
    assert nothing_was_started(limited)


async def test_start_and_rpc_at_an_allowed_worker_url_are_as_ever(limited: System) -> None:
    await limited.client.start_process("w", WorkProcess)
    await limited.client.start_process("i", IdleProcess)

    assert await limited.client.wait_for_process_completion("w") == "done"
    assert await limited.client.invoke_rpc("i", IdleProcess.name) == "idle"


async def test_change_to_a_worker_url_that_is_not_allowed_is_refused(limited: System) -> None:
    await limited.client.start_process("i", IdleProcess)

    response = await post(limited, "update-config", {"processId": "i", "workerUrl": OTHER_URL, "timeoutMs": 1_000})

    info = await limited.client.describe_process("i")
    assert (response.status_code, response.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert NAMES_THE_SETTING in response.json()["details"]
    assert (info.worker_url, info.timeout_at) == (WORKER_URL, None)


async def test_change_of_the_timeout_alone_asks_for_no_worker_url(database: Database) -> None:
    async with System(database, ServerSettings()) as system:
        system.serve(IdleProcess)
        await post(system, "start", start_of("IdleProcess", "i") | {"workerUrl": OTHER_URL})
        await narrow(system)

        await system.client.update_process_config("i", timeout=timedelta(hours=1))

        assert (await system.client.describe_process("i")).timeout_at is not None


async def test_execution_from_before_the_setting_is_not_called_and_fails_by_its_policy(database: Database) -> None:
    async with System(database, ServerSettings(allowed_worker_urls=ANY_URL)) as system:
        system.serve(WorkProcess)
        await post(system, "start", _delayed_start(OTHER_URL))
        await narrow(system)
        system.route(OTHER_URL, Worker(system.registry))

        with pytest.raises(ProcessFailed) as failed:
            await system.client.wait_for_process_completion("p")

        [state] = (await system.client.describe_process("p", include={"closed_states"})).states
        assert state.last_failure is not None
        assert (state.last_failure.error_type, state.last_failure.attempt) == ("WORKER_UNREACHABLE", 3)
        assert NAMES_THE_SETTING in state.last_failure.details
        assert NAMES_THE_SETTING in failed.value.error_message
        assert system.worker.urls == []


async def test_rpc_of_an_execution_from_before_the_setting_says_why_it_is_not_called(database: Database) -> None:
    async with System(database, ServerSettings()) as system:
        system.serve(IdleProcess)
        await post(system, "start", start_of("IdleProcess", "i") | {"workerUrl": OTHER_URL})
        await narrow(system)
        system.route(OTHER_URL, Worker(system.registry))

        with pytest.raises(RpcExecutionError, match=NAMES_THE_SETTING):
            await system.client.invoke_rpc("i", IdleProcess.name)

        assert system.worker.urls == []


async def test_worker_that_is_not_allowed_any_more_is_not_told_of_closed_executions(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with System(database, ServerSettings()) as system:
        system.serve(IdleProcess)
        await post(system, "start", start_of("IdleProcess", "i") | {"workerUrl": OTHER_URL})
        await narrow(system)

        with caplog.at_level(logging.WARNING):
            await system.client.stop_process("i")
            await asyncio.sleep(10)

        assert system.worker.urls == []
        assert caplog.messages == []


async def test_execution_goes_on_once_its_worker_url_is_one_that_is_allowed(database: Database) -> None:
    async with System(database, ServerSettings()) as system:
        system.serve(WorkProcess)
        await post(system, "start", _delayed_start(OTHER_URL))
        await narrow(system)

        await system.client.update_process_config("p", worker_url=WORKER_URL)

        assert await system.client.wait_for_process_completion("p") == "done"


def _delayed_start(worker_url: str) -> dict[str, Any]:
    options = {"executeApiRetryPolicy": {"maximumAttempts": 3}, "skipWaitUntil": True}
    state: dict[str, Any] = {"startStateId": "WorkState", "startStateOptions": options, "startDelayMs": 60_000}
    return start_of("WorkProcess", **state) | {"workerUrl": worker_url}
