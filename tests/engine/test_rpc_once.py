"""An RPC whose method may have run is made again only for a client that repeats its request, and is applied once.

Source: semantics 5.5, 6.9, 9.5, and idempotency-and-shards D.2.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from server_stub.config import ServerSettings
from tests.engine.service_http import post
from tests.engine.test_database_away import RemoteSystem
from tests.support.databases import Database
from tests.support.system import WORKER_URL
from xdb_sdk import (
    AsyncState,
    ObjectProcess,
    Persistence,
    RpcExecutionError,
    StateDecision,
    UnavailableError,
    Worker,
    WorkerOptions,
    data_attribute,
    rpc,
)

charged: list[float] = []


class WorkState(AsyncState[None]):
    """Keeps a worker occupied."""

    async def execute(self) -> StateDecision:
        await asyncio.sleep(20)
        return StateDecision.dead_end()


class AccountProcess(ObjectProcess):
    """Is charged by RPCs."""

    starting_state = WorkState
    total = data_attribute(int)

    @rpc(timeout_seconds=8)
    async def charge(self, persistence: Persistence) -> str:
        charged.append(asyncio.get_running_loop().time())
        await asyncio.sleep(2)
        persistence.set_data_attribute("total", len(charged))
        return "charged"

    @rpc(timeout_seconds=40)
    async def charge_slowly(self) -> str:
        charged.append(asyncio.get_running_loop().time())
        await asyncio.sleep(15 if len(charged) == 1 else 0)
        return "charged"

    @rpc
    async def greet(self) -> str:
        return "hello"


@pytest.fixture
async def account(database: Database) -> AsyncIterator[RemoteSystem]:
    charged.clear()
    async with RemoteSystem(database, ServerSettings(shutdown_grace=timedelta(seconds=5))) as system:
        system.serve(AccountProcess)
        await system.client.start_process("p", AccountProcess)
        await asyncio.sleep(0.1)
        yield system


async def test_answer_outlasts_an_absence_of_the_database(account: RemoteSystem) -> None:
    charging = asyncio.create_task(account.client.invoke_rpc("p", AccountProcess.charge))
    await asyncio.sleep(1)
    async with account.database_away():
        await asyncio.sleep(4)
        assert not charging.done()

    assert await charging == "charged"
    assert len(charged) == 1


async def test_answer_that_cannot_be_committed_is_told_once_its_time_is_over(account: RemoteSystem) -> None:
    charging = asyncio.create_task(account.client.invoke_rpc("p", AccountProcess.charge))
    await asyncio.sleep(1)
    async with account.database_away():
        with pytest.raises(UnavailableError, match="Repeated with request_id=") as failure:
            await charging
    charged_before = len(charged)
    await asyncio.sleep(60)

    assert len(charged) == charged_before == 1
    assert await account.client.get_data_attributes("p", AccountProcess) == {}
    assert failure.value.request_id is not None


async def test_answer_that_could_not_be_committed_is_given_by_a_repetition(account: RemoteSystem) -> None:
    charging = asyncio.create_task(account.client.invoke_rpc("p", AccountProcess.charge))
    await asyncio.sleep(1)
    async with account.database_away():
        await asyncio.sleep(10)

    assert await charging == "charged"
    assert len(charged) == 2
    assert await account.client.get_data_attributes("p", AccountProcess) == {"total": 2}


async def test_answer_that_cannot_be_committed_names_no_time_to_come_back(account: RemoteSystem) -> None:
    body = {"processId": "p", "rpcName": "charge", "timeoutMs": 3_000}
    charging = asyncio.create_task(post(account, "rpc", body))
    await asyncio.sleep(1)
    async with account.database_away():
        response = await charging

    assert (response.status_code, response.json()["errorSubType"]) == (503, "UNAVAILABLE")
    assert "retry-after" not in response.headers
    assert response.json().get("retryAfterS") is None
    assert len(charged) == 1


async def test_rpc_that_a_restart_has_cut_off_is_repeated_by_its_client_alone(account: RemoteSystem) -> None:
    charging = asyncio.create_task(account.client.invoke_rpc("p", AccountProcess.charge_slowly))
    await asyncio.sleep(1)
    await account.restart_server()

    assert await charging == "charged"
    assert len(charged) == 2


async def test_rpc_without_a_request_id_that_a_restart_has_cut_off_is_not_made_again(account: RemoteSystem) -> None:
    body = {"processId": "p", "rpcName": "charge_slowly", "timeoutMs": 40_000}
    charging = asyncio.create_task(post(account, "rpc", body))
    await asyncio.sleep(1)
    await account.restart_server()
    response = await charging
    await asyncio.sleep(60)

    assert (response.status_code, response.json()["errorSubType"]) == (503, "UNAVAILABLE")
    assert "the method may have run" in response.json()["details"]
    assert len(charged) == 1


async def test_rpc_waits_for_room_at_a_busy_worker(account: RemoteSystem) -> None:
    account.route(WORKER_URL, Worker(account.registry, WorkerOptions(max_concurrent_calls=3)))
    for number in range(10):
        await account.client.start_process(f"p{number}", AccountProcess)

    answers: list[str] = []
    for _ in range(20):
        await asyncio.sleep(5)
        try:
            answers.append(await account.client.invoke_rpc("p", AccountProcess.greet))
        except RpcExecutionError as error:
            answers.append(str(error))

    assert set(answers) == {"hello"}
