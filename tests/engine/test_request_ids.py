"""A request with an id is carried out once, however often it is sent (idempotency-and-shards E 1 to 22)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from server_stub.config import MismatchRule
from server_stub.core.allowed_urls import AllowedUrls
from tests.engine.orders import (
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
    start,
    stop,
)
from tests.engine.service_http import post
from tests.support.databases import Database
from tests.support.system import WORKER_URL, System


@pytest.fixture
async def system(database: Database) -> AsyncIterator[System]:
    async with running(database) as system:
        yield system


# --- start ---
async def test_start_that_comes_again_is_the_same_execution(system: System) -> None:
    first = await call(system, "start", start())

    assert await call(system, "start", start()) == repeated(first, alreadyStarted=True)
    assert executions(system) == [first["processExecutionId"]]


async def test_start_that_comes_again_after_completion_starts_nothing(system: System) -> None:
    first = await call(system, "start", start())
    await complete(system)

    assert await call(system, "start", start()) == repeated(first, alreadyStarted=True)
    assert executions(system) == [first["processExecutionId"]]


async def test_start_that_comes_again_after_another_one_touches_neither(system: System) -> None:
    first = await call(system, "start", start())
    await complete(system)
    second = await call(system, "start", start("Y"))

    assert await call(system, "start", start(idReusePolicy="TERMINATE_IF_RUNNING")) == repeated(
        first, alreadyStarted=True, mismatch=True
    )
    assert executions(system) == [first["processExecutionId"], second["processExecutionId"]]
    assert (await describe(system))["status"] == "RUNNING"


async def test_start_that_was_refused_has_not_used_its_id_up(system: System) -> None:
    await call(system, "start", start("other"))
    assert await refused(system, "start", start()) == (409, "PROCESS_ALREADY_STARTED")
    await complete(system)

    answer = await call(system, "start", start())

    assert "duplicate" not in answer
    assert (await describe(system))["processExecutionId"] == answer["processExecutionId"]
    assert remembered(system) == [(1, "X"), (1, "other")]


async def test_start_whose_row_is_refused_leaves_nothing_and_may_be_corrected(system: System) -> None:
    system.sql("CREATE TABLE orders (id VARCHAR(255) PRIMARY KEY, item VARCHAR(255) NOT NULL, CHECK (item <> ''))")
    mapping = {"tableName": "orders", "primaryKey": {"id": "p"}, "initialWrite": {"item": ""}}

    assert await refused(system, "start", start(tables=[mapping])) == (424, "APP_DATABASE_WRITE_ERROR")
    assert (executions(system), remembered(system)) == ([], [])
    answer = await call(system, "start", start(tables=[{**mapping, "initialWrite": {"item": "cup"}}]))

    assert "duplicate" not in answer
    assert system.sql("SELECT id, item FROM orders") == [("p", "cup")]


async def test_replacing_start_that_comes_again_replaces_nothing(system: System) -> None:
    old = await call(system, "start", start("old"))
    new = await call(system, "start", start(idReusePolicy="TERMINATE_IF_RUNNING"))

    again = await call(system, "start", start(idReusePolicy="TERMINATE_IF_RUNNING"))

    assert again == repeated(new, alreadyStarted=True)
    assert executions(system) == [old["processExecutionId"], new["processExecutionId"]]
    assert (await describe(system))["status"] == "RUNNING"
    assert (await describe(system, processExecutionId=old["processExecutionId"]))["status"] == "TERMINATED"


async def test_start_that_ignores_a_running_execution_is_answered_the_same_after_it_has_closed(system: System) -> None:
    running = await call(system, "start", start("other"))
    first = await call(system, "start", start(ignoreAlreadyStarted=True))
    await complete(system)

    again = await call(system, "start", start(ignoreAlreadyStarted=True))

    assert first == {"processExecutionId": running["processExecutionId"], "alreadyStarted": True}
    assert again == repeated(first)
    assert executions(system) == [running["processExecutionId"]]


async def test_request_that_was_right_then_is_answered_although_it_would_be_refused_now(system: System) -> None:
    move = {"processId": "p", "requestId": "X", "workerUrl": WORKER_URL}
    bodies = {"start": start(), "publish-or-start": or_start(notes("Y")), "update-config": move}
    answers = {operation: await call(system, operation, body) for operation, body in bodies.items()}
    system.settings = replace(system.settings, allowed_worker_urls=AllowedUrls.parse("http://elsewhere"))
    await system.restart_server()

    for operation, body in bodies.items():
        more = {"alreadyStarted": True} if operation == "start" else {}
        assert await call(system, operation, body) == repeated(answers[operation], **more)
        assert await refused(system, operation, {**body, "requestId": "Z"}) == (400, "INVALID_REQUEST")


# --- publish ---
async def test_publish_that_comes_again_appends_nothing_also_after_the_execution_has_closed(system: System) -> None:
    await call(system, "start", start())
    first = await call(system, "publish", notes("X", "a", "b"))

    assert await call(system, "publish", notes("X", "a", "b")) == repeated(first)
    assert (await describe(system))["queueSizes"] == {"notes": 2}
    await complete(system)
    assert await call(system, "publish", notes("X", "a", "b")) == repeated(first)
    assert first["sequenceIds"] == [1, 2]


async def test_publish_to_a_closed_execution_is_refused_and_leaves_no_trace_of_its_id(system: System) -> None:
    await call(system, "start", start(None))
    await complete(system)

    assert await refused(system, "publish", notes()) == (409, "PROCESS_NOT_RUNNING")
    assert remembered(system) == []


async def test_publish_of_which_one_message_is_bad_appends_nothing_and_leaves_no_trace(system: System) -> None:
    await call(system, "start", start(None))
    body = notes("X", "good")
    body["messages"].append({"queueName": ""})

    assert await refused(system, "publish", body) == (400, "INVALID_REQUEST")
    assert ((await describe(system))["queueSizes"], remembered(system)) == ({}, [])


async def test_id_of_a_publish_is_another_one_to_a_stop(system: System) -> None:
    await call(system, "start", start())
    published = await call(system, "publish", notes())
    stopped = await call(system, "stop", stop())

    assert "duplicate" not in published
    assert stopped["status"] == "TERMINATED"
    assert await call(system, "publish", notes()) == repeated(published)
    assert await call(system, "stop", stop()) == repeated(stopped)
    assert remembered(system) == [(1, "X"), (2, "X"), (3, "X")]


# --- stop ---
async def test_stop_that_comes_again_is_answered_the_same(system: System) -> None:
    await call(system, "start", start())
    first = await call(system, "stop", stop(stopType="FAIL"))

    assert first["status"] == "FAILED"
    assert await call(system, "stop", stop(stopType="FAIL")) == repeated(first)


async def test_stop_of_a_closed_execution_never_stops_the_next_one(system: System) -> None:
    await call(system, "start", start())
    await complete(system)
    first = await call(system, "stop", stop())
    await call(system, "start", start("Y"))

    again = await call(system, "stop", stop())

    assert (first["status"], first["changed"]) == ("COMPLETED", False)
    assert again == repeated(first)
    assert (await describe(system))["status"] == "RUNNING"


async def test_stop_that_meets_the_completion_is_answered_the_same_later(system: System) -> None:
    answers = []
    for number in range(system.database.some_of(20)):
        await call(system, "start", start(f"start-{number}"))
        paid = {"processId": "p", "messages": [{"queueName": "paid"}]}
        paying = asyncio.create_task(post(system, "publish", paid))
        for _ in range(number):
            await asyncio.sleep(0)  # a little further each time
        first = await call(system, "stop", stop(f"stop-{number}"))
        await paying
        answers.append((first, await call(system, "stop", stop(f"stop-{number}"))))

    assert all(again == repeated(first) for first, again in answers)
    assert set(system.sql("SELECT count(*) FROM xdb_sys_process_execution WHERE status = 'RUNNING'")) == {(0,)}


# --- what the same request is ---
async def test_another_request_with_the_id_is_answered_as_the_first_and_told_apart(system: System) -> None:
    await call(system, "start", start())
    first = await call(system, "publish", notes("X", "a"))

    assert await call(system, "publish", notes("X", "b")) == repeated(first, mismatch=True)
    assert (await describe(system))["queueSizes"] == {"notes": 1}


async def test_another_request_with_the_id_is_refused_where_that_is_set(database: Database) -> None:
    async with running(database, on_request_mismatch=MismatchRule.REJECT) as system:
        await call(system, "start", start())
        first = await call(system, "publish", notes("X", "a"))

        assert await refused(system, "publish", notes("X", "b")) == (409, "REQUEST_ID_REUSED")
        assert await call(system, "publish", notes("X", "a")) == repeated(first)


async def test_what_says_how_to_ask_is_no_other_request(system: System) -> None:
    first = await call(system, "start", start(timeoutMs=600_000))
    output = await call(system, "rpc", invoke("add", input=5))

    assert await call(system, "start", start(ignoreAlreadyStarted=True)) == repeated(first, alreadyStarted=True)
    assert await call(system, "rpc", invoke("add", input=5, timeoutMs=9_000, exclusive=True)) == repeated(output)


async def test_another_timeout_in_update_config_is_another_request(system: System) -> None:
    await call(system, "start", start())
    body = {"processId": "p", "requestId": "X", "timeoutMs": 60_000}
    first = await call(system, "update-config", body)

    assert await call(system, "update-config", body) == repeated(first)
    assert await call(system, "update-config", {**body, "timeoutMs": 1}) == repeated(first, mismatch=True)


async def test_ids_of_other_processes_and_namespaces_are_others(system: System) -> None:
    bodies = [start(), start(process_id="q"), start(namespace="other")]

    answers = [await call(system, "start", body) for body in bodies]

    assert len({answer["processExecutionId"] for answer in answers}) == 3
    assert not any(answer.get("duplicate") for answer in answers)


@pytest.mark.parametrize("other", ["ABC", "abc ", " abc"])
async def test_ids_are_compared_byte_by_byte(system: System, other: str) -> None:
    await call(system, "start", start())

    first, second = [await call(system, "publish", notes(id_)) for id_ in ("abc", other)]

    assert second["sequenceIds"] != first["sequenceIds"]
    assert not second.get("duplicate")


@pytest.mark.parametrize("id_", ["", "x" * 129, "ü", "tab\t", "nul\0"], ids=ascii)
async def test_what_is_no_id_is_refused(system: System, id_: str) -> None:
    assert await refused(system, "start", start(id_)) == (400, "INVALID_REQUEST")
    assert executions(system) == []


@pytest.mark.parametrize("id_", ["!", "x" * 128, "~ 1\"'%_\\"])
async def test_any_printable_text_of_up_to_128_characters_is_an_id(system: System, id_: str) -> None:
    first = await call(system, "start", start(id_))

    assert await call(system, "start", start(id_)) == repeated(first, alreadyStarted=True)


async def test_requests_without_an_id_are_not_remembered(system: System) -> None:
    await call(system, "start", start(None))
    answers = [await call(system, "publish", notes(None)) for _ in range(2)]
    await call(system, "rpc", invoke("add", None, input=5))
    await call(system, "set-attributes", {"processId": "p", "writeLocalAttributes": {"total": 1}})
    await call(system, "stop", {"processId": "p"})

    assert [answer["sequenceIds"] for answer in answers] == [[1], [2]]
    assert remembered(system) == []


async def test_publish_that_is_known_and_starts_another_execution_tells_that_one(system: System) -> None:
    first = await call(system, "start", start("other"))
    await call(system, "publish", notes("X"))
    await call(system, "stop", {"processId": "p"})

    answer = await call(system, "publish-or-start", or_start(notes("X")))

    current = (await describe(system))["processExecutionId"]
    assert current != first["processExecutionId"]
    assert (answer["processExecutionId"], answer["started"], answer["duplicate"]) == (current, True, True)
