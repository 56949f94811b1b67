"""An RPC with a request id counts once, and so does each half of a request of two (E 12 to 17)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from server_stub.config import ServerSettings
from tests.engine.orders import (
    Body,
    OrderProcess,
    call,
    complete,
    describe,
    executions,
    invoke,
    notes,
    or_start,
    refused,
    remembered,
    repeated,
    running,
    runs,
    start,
)
from tests.engine.service_http import post
from tests.engine.test_database_away import RemoteSystem
from tests.support.databases import Database
from tests.support.system import System


@pytest.fixture
async def system(database: Database) -> AsyncIterator[System]:
    async with running(database) as system:
        yield system


# --- RPC ---
async def test_rpc_that_comes_again_is_answered_without_the_worker(system: System) -> None:
    await call(system, "start", start())
    first = await call(system, "rpc", invoke("add", input=5))
    await complete(system)

    assert await call(system, "rpc", invoke("add", input=5)) == repeated(first)
    assert (first["output"], runs["add"]) == (5, 1)


async def test_rpcs_that_come_at_the_same_time_are_applied_once_and_answered_alike(system: System) -> None:
    await call(system, "start", start())

    answers = await asyncio.gather(*(call(system, "rpc", invoke("add", input=5)) for _ in range(2)))
    attributes = await system.client.get_data_attributes("p", OrderProcess)

    assert [answer["output"] for answer in answers] == [5, 5]
    assert Counter(answer.get("duplicate", False) for answer in answers) == {False: 1, True: 1}
    assert runs["add"] <= 2
    assert attributes == {"total": 5}


async def test_exclusive_rpc_is_at_the_worker_once_and_others_are_told_to_come_back(system: System) -> None:
    await call(system, "start", start())
    body = invoke("add", input=5, exclusive=True)
    first = asyncio.create_task(call(system, "rpc", body))
    await asyncio.sleep(1)

    early = await post(system, "rpc", body)
    again = (await first, await call(system, "rpc", body))

    assert (early.status_code, early.json()["errorSubType"]) == (409, "RETRY_LATER")
    assert float(early.headers["retry-after"]) > 0
    assert again[1] == repeated(again[0])
    assert (again[0]["output"], runs["add"]) == (5, 1)


async def test_exclusive_rpc_whose_server_died_may_be_made_again_once_its_reservation_is_over(system: System) -> None:
    await call(system, "start", start())
    body = invoke("add", input=5, exclusive=True, timeoutMs=10_000)
    first = asyncio.create_task(post(system, "rpc", body))
    await asyncio.sleep(1)
    reserved = system.sql("SELECT * FROM xdb_sys_request WHERE request_type = 5")
    await first
    columns = "namespace, process_id, request_type, request_id, shard_id, process_execution_id, fingerprint, result, "
    columns += "created_at_ms, expires_at_ms, version"
    system.sql("DELETE FROM xdb_sys_request WHERE request_type = 5")
    for row in reserved:
        system.sql(f"INSERT INTO xdb_sys_request ({columns}) VALUES ({', '.join('?' * len(row))})", *row)

    assert await refused(system, "rpc", body) == (409, "RETRY_LATER")
    await asyncio.sleep(15)
    answer = await call(system, "rpc", body)

    assert "duplicate" not in answer
    assert runs["add"] == 2


async def test_exclusive_rpc_that_fails_or_changes_nothing_leaves_its_id_free(system: System) -> None:
    await call(system, "start", start(None))

    assert await refused(system, "rpc", invoke("fail", exclusive=True)) == (424, "WORKER_EXECUTION_ERROR")
    assert remembered(system) == []
    await call(system, "rpc", invoke("look", exclusive=True))
    assert remembered(system) == []
    assert "duplicate" not in await call(system, "rpc", invoke("fail", exclusive=True))


async def test_exclusive_rpc_fails_in_time_although_its_reservation_cannot_be_given_up(database: Database) -> None:
    runs.clear()
    async with RemoteSystem(database, ServerSettings()) as system:
        system.serve(OrderProcess)
        await call(system, "start", start())
        calling = asyncio.create_task(post(system, "rpc", invoke("add", input=5, exclusive=True, timeoutMs=5_000)))
        await asyncio.sleep(1)
        async with system.database_away():
            await asyncio.sleep(30)
            assert calling.done()

        assert calling.result().status_code == 503
        assert (await call(system, "rpc", invoke("add", input=5, exclusive=True)))["output"] == 5


async def test_read_only_rpc_cannot_be_exclusive(system: System) -> None:
    await call(system, "start", start())

    response = await post(system, "rpc", invoke("look", exclusive=True, readOnly=True))

    assert (response.status_code, response.json()["errorSubType"]) == (400, "INVALID_REQUEST")
    assert "read-only" in response.json()["details"]


async def test_exclusive_rpc_needs_an_id(system: System) -> None:
    await call(system, "start", start())

    response = await post(system, "rpc", invoke("add", None, input=5, exclusive=True))

    assert (response.status_code, response.json()["errorSubType"]) == (400, "INVALID_REQUEST")
    assert "request id" in response.json()["details"]
    assert runs["add"] == 0


async def test_rpc_that_has_failed_is_called_again(system: System) -> None:
    await call(system, "start", start(None))

    assert await refused(system, "rpc", invoke("fail")) == (424, "WORKER_EXECUTION_ERROR")
    assert remembered(system) == []
    answer = await call(system, "rpc", invoke("fail"))

    assert "duplicate" not in answer
    assert runs["fail"] == 2
    assert remembered(system) == [(5, "X")]


@pytest.mark.parametrize("fields", [{}, {"readOnly": True}], ids=["changes nothing", "read-only"])
async def test_rpc_that_only_reads_is_made_each_time(system: System, fields: Body) -> None:
    await call(system, "start", start(None))

    outputs = [(await call(system, "rpc", invoke("look", **fields)))["output"] for _ in range(2)]

    assert outputs == [1, 2]
    assert remembered(system) == []


# --- requests of two halves ---
async def test_publish_or_start_starts_and_publishes_once_and_its_id_is_that_of_both(system: System) -> None:
    first = await call(system, "publish-or-start", or_start(notes()))

    assert first["started"]
    assert await call(system, "publish-or-start", or_start(notes())) == repeated(first)
    started, published = await call(system, "start", start()), await call(system, "publish", notes())
    assert started == {
        "processExecutionId": first["processExecutionId"],
        "alreadyStarted": True,
        "duplicate": True,
    }
    assert published == repeated({name: value for name, value in first.items() if name != "started"})
    assert executions(system) == [first["processExecutionId"]]
    assert (await describe(system))["queueSizes"] == {"notes": 1}


async def test_publish_or_start_publishes_to_what_its_id_has_started(system: System) -> None:
    started = await call(system, "start", start())

    answer = await call(system, "publish-or-start", or_start(notes()))

    assert (answer["processExecutionId"], answer["published"]) == (started["processExecutionId"], 1)
    assert answer["started"]
    assert not answer.get("mismatch")
    assert (await describe(system))["queueSizes"] == {"notes": 1}


async def test_publish_or_start_is_refused_once_what_its_id_has_started_has_closed(system: System) -> None:
    started = await call(system, "start", start())
    await complete(system)
    await call(system, "start", start("Y"))

    response = await post(system, "publish-or-start", or_start(notes()))

    assert (response.status_code, response.json()["errorSubType"]) == (409, "PROCESS_NOT_RUNNING")
    assert response.json()["processExecutionId"] == started["processExecutionId"]
    assert (await describe(system))["queueSizes"] == {}
    assert remembered(system) == [(1, "X"), (1, "Y")]


async def test_publish_or_start_without_an_id_publishes_each_time_to_one_execution(system: System) -> None:
    first = await call(system, "publish-or-start", or_start(notes(None)))
    second = await call(system, "publish-or-start", or_start(notes(None)))

    assert (first["started"], second["started"]) == (True, False)
    assert (await describe(system))["queueSizes"] == {"notes": 2}
    assert remembered(system) == []


async def test_publish_or_start_whose_row_is_refused_does_neither(system: System) -> None:
    system.sql("CREATE TABLE orders (id VARCHAR(255) PRIMARY KEY, item VARCHAR(255) NOT NULL, CHECK (item <> ''))")
    mapping = {"tableName": "orders", "primaryKey": {"id": "p"}, "initialWrite": {"item": ""}}

    refusal = await refused(system, "publish-or-start", or_start(notes(), tables=[mapping]))

    assert refusal == (424, "APP_DATABASE_WRITE_ERROR")
    assert (executions(system), remembered(system)) == ([], [])


async def test_rpc_or_start_starts_and_calls_once_and_its_id_is_that_of_both(system: System) -> None:
    first = await call(system, "rpc-or-start", or_start(invoke("add", input=5)))

    assert (first["started"], first["output"]) == (True, 5)
    assert await call(system, "rpc-or-start", or_start(invoke("add", input=5))) == repeated(first)
    started, called = await call(system, "start", start()), await call(system, "rpc", invoke("add", input=5))
    assert (started["processExecutionId"], started["duplicate"]) == (first["processExecutionId"], True)
    assert not started.get("mismatch")
    assert called == repeated({name: value for name, value in first.items() if name != "started"})
    assert runs["add"] == 1


async def test_rpc_or_start_is_refused_once_what_its_id_has_started_has_closed(system: System) -> None:
    started = await call(system, "start", start())
    await complete(system)
    await call(system, "start", start("Y"))

    response = await post(system, "rpc-or-start", or_start(invoke("add", input=5)))

    assert (response.status_code, response.json()["errorSubType"]) == (409, "PROCESS_NOT_RUNNING")
    assert response.json()["processExecutionId"] == started["processExecutionId"]
    assert remembered(system) == [(1, "X"), (1, "Y")]


async def test_or_start_cannot_replace_and_has_one_id(system: System) -> None:
    replacing = or_start(notes(), idReusePolicy="TERMINATE_IF_RUNNING")
    with_two_ids = {**or_start(notes()), "start": start("Y")}

    assert await refused(system, "publish-or-start", replacing) == (400, "INVALID_REQUEST")
    assert await refused(system, "rpc-or-start", {**or_start(invoke("add")), "start": start("Y")}) == (
        400,
        "INVALID_REQUEST",
    )
    assert await refused(system, "publish-or-start", with_two_ids) == (400, "INVALID_REQUEST")
