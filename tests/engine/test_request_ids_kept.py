"""For how long a request id is known, and what becomes of it when much happens or breaks at once (E 23-27, 61, 63)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import pytest

from server_stub.app import Server
from server_stub.config import ServerSettings
from server_stub.core.changes import Changes
from server_stub.core.ports import CommitOutcomeUnknown, Store, Work
from server_stub.dispatch.transport import WorkerTransport
from tests.engine.orders import (
    REMEMBERED_FOR_S,
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
    stop,
)
from tests.engine.service_http import post
from tests.support.databases import Database
from tests.support.system import System


@pytest.fixture
async def system(database: Database) -> AsyncIterator[System]:
    async with running(database) as system:
        yield system


# --- for how long ---
async def test_forgotten_start_is_still_known_to_the_execution_that_it_made(database: Database) -> None:
    async with running(database, upkeep_interval=timedelta(days=1)) as system:
        first = await call(system, "start", start())
        await asyncio.sleep(REMEMBERED_FOR_S)

        again = await call(system, "start", start())
        await complete(system)
        closed = await call(system, "start", start(idReusePolicy="DISALLOW_REUSE"))

        assert again == {**first, "alreadyStarted": True}
        assert closed["processExecutionId"] == first["processExecutionId"]
        assert executions(system) == [first["processExecutionId"]]


async def test_forgotten_publish_is_known_by_message_ids_and_applied_without(database: Database) -> None:
    async with running(database, upkeep_interval=timedelta(days=1)) as system:
        await call(system, "start", start())
        with_id = {"messages": [{"queueName": "notes", "messageId": "m", "payload": "a"}]}
        await call(system, "publish", notes("X", **with_id))
        await call(system, "publish", notes("Y"))
        await asyncio.sleep(REMEMBERED_FOR_S)

        known, applied = await call(system, "publish", notes("X", **with_id)), await call(system, "publish", notes("Y"))

        assert (known["published"], applied["published"]) == (0, 1)
        assert not known.get("duplicate")
        assert (await describe(system))["queueSizes"] == {"notes": 3}
        assert await call(system, "publish", notes("Y")) == repeated(applied)


async def test_requests_are_deleted_once_they_have_expired(system: System) -> None:
    await call(system, "start", start())
    await asyncio.sleep(REMEMBERED_FOR_S / 2)
    await call(system, "publish", notes())
    kept = remembered(system)
    await asyncio.sleep(REMEMBERED_FOR_S / 2 + 120)

    assert kept == [(1, "X"), (2, "X")]
    assert remembered(system) == [(2, "X")]


async def test_start_of_an_execution_that_was_deleted_starts_nothing_while_it_is_remembered(system: System) -> None:
    first = await call(system, "start", start())
    output = await call(system, "rpc", invoke("add", input=5))
    await complete(system)
    system.sql("DELETE FROM xdb_sys_process_execution")
    system.sql("DELETE FROM xdb_sys_async_state_execution")

    assert await call(system, "start", start()) == repeated(first, alreadyStarted=True)
    assert await call(system, "rpc", invoke("add", input=5)) == repeated(output)
    assert await refused(system, "publish-or-start", or_start(notes())) == (409, "PROCESS_NOT_RUNNING")
    assert executions(system) == []


# --- many at a time, and commits of which nobody knows ---
async def test_of_starts_that_are_committed_together_equal_ones_start_once(system: System) -> None:
    bodies = [start(f"r-{number % 10}", f"p-{number % 10}") for number in range(50)]
    await call(system, "start", start("taken", "p-3"))

    answers = await asyncio.gather(*(post(system, "start", body) for body in bodies))

    told = {
        (body["processId"], answer.json()["processExecutionId"]) for body, answer in zip(bodies, answers, strict=True)
    }
    statuses = {(body["processId"], answer.status_code) for body, answer in zip(bodies, answers, strict=True)}
    assert len(told) == len(executions(system)) == 10
    assert statuses == {(f"p-{number}", 409 if number == 3 else 200) for number in range(10)}
    assert (1, "r-3") not in remembered(system)
    assert len(remembered(system)) == 10


async def test_request_whose_row_is_refused_harms_none_that_is_committed_with_it(system: System) -> None:
    system.sql("CREATE TABLE orders (id VARCHAR(255) PRIMARY KEY, item VARCHAR(255) NOT NULL, CHECK (item <> ''))")
    mapping = {"tableName": "orders", "primaryKey": {"id": "p-5"}, "initialWrite": {"item": ""}}
    bodies = [start(f"r-{number}", f"p-{number}") for number in range(10)]
    bodies[5]["tables"] = [mapping]

    statuses = [answer.status_code for answer in await asyncio.gather(*(post(system, "start", b) for b in bodies))]
    mapping["initialWrite"] = {"item": "cup"}
    corrected = await call(system, "start", bodies[5])

    assert statuses == [200] * 5 + [424] + [200] * 4
    assert "duplicate" not in corrected
    assert len(executions(system)) == 10


class ForgetfulStore:
    """A store whose next commits are kept, or not, without anybody being told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lost: list[bool] = []
        """Whether each of the next commits is kept."""

    async def transact(self, work: Work) -> Changes:
        """See `Store.transact`."""
        if not self.lost:
            return await self._store.transact(work)
        if self.lost.pop(0):
            await self._store.transact(work)
        raise CommitOutcomeUnknown("the connection broke during a commit")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class ForgetfulSystem(System):
    """A system with a `ForgetfulStore`."""

    forgetful: ForgetfulStore

    async def open_server(self, store: Store, transport: WorkerTransport) -> Server:
        self.forgetful = ForgetfulStore(store)
        return await super().open_server(cast(Store, self.forgetful), transport)


@pytest.fixture
async def forgetful(database: Database) -> AsyncIterator[ForgetfulSystem]:
    runs.clear()
    async with ForgetfulSystem(database, ServerSettings()) as system:
        system.serve(OrderProcess)
        yield system


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("start", start()),
        ("publish", notes()),
        ("publish-or-start", or_start(notes())),
        ("stop", stop()),
    ],
    ids=["start", "publish", "publish-or-start", "stop"],
)
async def test_request_whose_commit_nobody_knows_of_is_repeated_without_another_effect(
    forgetful: ForgetfulSystem, operation: str, body: Body, is_kept: bool
) -> None:
    if operation in ("publish", "stop"):
        await call(forgetful, "start", start(None))
    forgetful.forgetful.lost = [is_kept]

    assert await refused(forgetful, operation, body) == (503, "UNKNOWN_OUTCOME")
    again = await call(forgetful, operation, body)

    assert again.get("duplicate", False) is is_kept
    assert len(executions(forgetful)) == 1
    if "publish" in operation:
        assert (await describe(forgetful))["queueSizes"] == {"notes": 1}


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "plain"])
async def test_rpc_whose_commit_nobody_knows_of_is_committed_once(
    forgetful: ForgetfulSystem, is_kept: bool, exclusive: bool
) -> None:
    await call(forgetful, "start", start(None))
    calling = asyncio.create_task(call(forgetful, "rpc", invoke("add", input=5, exclusive=exclusive)))
    await asyncio.sleep(1)
    forgetful.forgetful.lost = [is_kept]

    first = await calling
    again = await call(forgetful, "rpc", invoke("add", input=5, exclusive=exclusive))

    assert (first["output"], again["output"], runs["add"]) == (5, 5, 1)
    assert await forgetful.client.get_data_attributes("p", OrderProcess) == {"total": 5}
