"""The batch endpoint: every line is answered by itself, as soon as it can be."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from server_stub.api.app import ServiceApi
from tests.contract.service_api.conftest import SMALL_LIMITS
from tests.contract.service_api.fake_operations import UNKNOWN_PROCESS, FakeOperations
from tests.contract.service_api.raw_asgi import Conversation
from tests.contract.service_api.requests import REQUESTS
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, SERVICE_BATCH_PATH, AnswerLine, ErrorBody, ErrorSubType


def line(call_id: int, operation: str, **changes: object) -> bytes:
    """Write a line of a batch."""
    body = REQUESTS[operation] | changes
    return json.dumps({"callId": call_id, "operation": operation, "body": body}).encode() + b"\n"


def answers_in(content: bytes) -> dict[int, AnswerLine]:
    """Read the lines of an answer, by call id."""
    lines = [AnswerLine.model_validate_json(text) for text in content.splitlines()]
    assert len({each.call_id for each in lines}) == len(lines)
    return {each.call_id: each for each in lines}


def error_in(answer: AnswerLine) -> ErrorBody:
    """Read the error of a line."""
    return ErrorBody.model_validate(answer.body)


async def answers_to(client: httpx.AsyncClient, *lines: bytes) -> dict[int, AnswerLine]:
    """Send a batch and read its answers."""
    response = await client.post(SERVICE_BATCH_PATH, content=b"".join(lines))
    assert response.status_code == 200
    assert response.headers["content-type"] == BATCH_CONTENT_TYPE
    return answers_in(response.content)


async def test_every_operation_is_carried_out_as_under_its_own_path(client: httpx.AsyncClient) -> None:
    lines = [line(number, operation) for number, operation in enumerate(REQUESTS)]

    answers = await answers_to(client, *lines)

    for number, operation in enumerate(REQUESTS):
        alone = await client.post(f"/api/v1/xdb/service/process-execution/{operation}", json=REQUESTS[operation])
        assert (answers[number].status, answers[number].body) == (alone.status_code, alone.json())


async def test_empty_batch_has_an_empty_answer(client: httpx.AsyncClient) -> None:
    assert await answers_to(client) == {}
    assert await answers_to(client, b"\n \n\r\n") == {}


async def test_last_line_needs_no_line_end(client: httpx.AsyncClient) -> None:
    answers = await answers_to(client, line(1, "stop"), line(2, "stop").rstrip())

    assert answers.keys() == {1, 2}


async def test_lines_may_end_as_on_windows(client: httpx.AsyncClient) -> None:
    answers = await answers_to(client, line(1, "stop").replace(b"\n", b"\r\n"))

    assert answers[1].status == 200


@pytest.mark.parametrize(
    ("text", "call_id", "status"),
    [
        pytest.param(b"garbage", -1, 400, id="no JSON"),
        pytest.param(b"[]", -1, 400, id="no object"),
        pytest.param(b'{"operation": "stop", "body": {"processId": "p-1"}}', -1, 400, id="no call id"),
        pytest.param(b'{"callId": "x", "operation": "stop", "body": {"processId": "p-1"}}', -1, 400, id="no number"),
        pytest.param(b'{"callId": 7, "operation": "stop", "body": {"processId": "p-1"', 7, 400, id="cut off"),
        pytest.param(b'{"callId": 7, "body": {}}', 7, 400, id="no operation"),
        pytest.param(b'{"callId": 7, "operation": 1, "body": {}}', 7, 404, id="operation is a number"),
        pytest.param(b'{"callId": 7, "operation": "restart", "body": {}}', 7, 404, id="unknown operation"),
        pytest.param(b'{"callId": 7, "operation": "stop"}', 7, 400, id="no body"),
        pytest.param(b'{"callId": 7, "operation": "stop", "body": {}}', 7, 400, id="field missing"),
        pytest.param(
            rb'{"callId": 7, "operation": "rpc", "body": {"processId": "p-1", "rpcName": "r", "input": "\u0000"}}',
            7,
            400,
            id="NUL in the payload",
        ),
    ],
)
async def test_bad_line_is_answered_and_the_others_carried_out(
    client: httpx.AsyncClient, text: bytes, call_id: int, status: int
) -> None:
    answers = await answers_to(client, line(1, "stop"), text + b"\n", line(2, "stop"))

    assert answers[call_id].status == status
    assert error_in(answers[call_id]).details
    assert answers[1].status == answers[2].status == 200


async def test_wrong_field_of_a_line_is_named(client: httpx.AsyncClient) -> None:
    answers = await answers_to(client, line(1, "publish", messages=[]))

    assert error_in(answers[1]).details.startswith("body.messages: ")


async def test_refusal_is_answered_in_its_line(client: httpx.AsyncClient) -> None:
    answers = await answers_to(client, line(1, "stop", processId=UNKNOWN_PROCESS), line(2, "stop"))

    assert (answers[1].status, error_in(answers[1]).error_sub_type) == (404, ErrorSubType.PROCESS_NOT_FOUND)
    assert answers[2].status == 200


async def test_fault_of_the_server_is_answered_in_its_line(
    client: httpx.AsyncClient, operations: FakeOperations
) -> None:
    operations.failures["p-2"] = RuntimeError("near SELECT: syntax error")

    answers = await answers_to(client, line(1, "stop", processId="p-2"), line(2, "stop"))

    assert (answers[1].status, error_in(answers[1]).error_sub_type) == (500, ErrorSubType.INTERNAL)
    assert answers[2].status == 200


async def test_large_value_in_a_line_is_named(client: httpx.AsyncClient) -> None:
    answers = await answers_to(client, line(1, "rpc", input="x" * 1_000))

    error = error_in(answers[1])
    assert error.error_sub_type is ErrorSubType.PAYLOAD_TOO_LARGE
    assert error.details.startswith("input is 1002 bytes")


async def test_long_line_is_refused_by_its_call_id(client: httpx.AsyncClient) -> None:
    answers = await answers_to(client, line(1, "rpc", input="x" * 5_000), line(2, "stop"))

    assert error_in(answers[1]).error_sub_type is ErrorSubType.PAYLOAD_TOO_LARGE
    assert answers[2].status == 200


async def test_calls_before_the_limits_of_a_batch_are_carried_out(client: httpx.AsyncClient) -> None:
    count = SMALL_LIMITS.max_batch_calls

    answers = await answers_to(client, *(line(number, "stop") for number in range(count + 5)))

    assert answers.keys() == {*range(count), -1}
    assert "max_batch_calls" in error_in(answers[-1]).details


async def test_batch_without_end_is_read_no_further_than_the_limit(api: ServiceApi) -> None:
    async with Conversation(api, SERVICE_BATCH_PATH) as talk:
        talk.send(line(1, "stop"), more=True)
        for _ in range(100):
            talk.send(b" " * 999 + b"\n", more=True)

        assert await talk.status() == 200
        answers = answers_in(await talk.rest())

    assert answers[1].status == 200
    assert "max_batch_bytes" in error_in(answers[-1]).details


async def test_batch_that_stops_coming_is_ended(api: ServiceApi) -> None:
    async with Conversation(api, SERVICE_BATCH_PATH) as talk:
        talk.send(line(1, "stop") + line(2, "stop")[:20], more=True)

        assert await talk.status() == 200
        answers = answers_in(await talk.rest())

    assert answers.keys() == {1, -1}
    assert "body_timeout" in error_in(answers[-1]).details


async def test_line_that_is_cut_off_is_not_carried_out(api: ServiceApi, operations: FakeOperations) -> None:
    async with Conversation(api, SERVICE_BATCH_PATH) as talk:
        talk.send(line(1, "stop").rstrip(), more=True)
        talk.hang_up()

    assert operations.asked == []


async def test_call_is_answered_before_the_rest_of_the_batch_has_come(api: ServiceApi) -> None:
    async with Conversation(api, SERVICE_BATCH_PATH) as talk:
        talk.send(line(1, "stop"), more=True)
        head = await talk.message()
        assert answers_in(await talk.chunk()).keys() == {1}
        talk.send(line(2, "stop"))

        assert answers_in(await talk.rest()).keys() == {2}
    assert (b"connection", b"close") in head["headers"]


async def test_long_poll_delays_no_other_call(api: ServiceApi, operations: FakeOperations) -> None:
    async with Conversation(api, SERVICE_BATCH_PATH) as talk:
        talk.send(line(1, "wait-for-completion", processId="p-slow") + line(2, "stop") + line(3, "stop"))
        assert await talk.status() == 200
        first = answers_in(await talk.chunk())
        operations.gates["p-slow"].set()
        rest = answers_in(await talk.rest())

    assert first.keys() == {2, 3}
    assert rest.keys() == {1}


async def test_answers_of_one_turn_travel_together(api: ServiceApi, operations: FakeOperations) -> None:
    async with Conversation(api, SERVICE_BATCH_PATH) as talk:
        talk.send(b"".join(line(number, "wait-for-completion", processId="p-slow") for number in range(10)))
        while len(operations.asked) < 10:  # noqa: ASYNC110  # turns of the loop, not a wait
            await asyncio.sleep(0)
        operations.gates["p-slow"].set()

        assert await talk.status() == 200
        assert len(answers_in(await talk.chunk())) == 10


async def test_each_call_of_a_batch_is_one_log_line(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "server_stub")

    await answers_to(client, line(1, "stop"), line(2, "rpc"), b"garbage\n")

    facts: list[Any] = [(vars(record)["operation"], vars(record)["status"]) for record in caplog.records]
    assert sorted(facts) == [("rpc", 200), ("stop", 200), ("unknown", 400)]
