"""Single calls: what is refused is a 4xx with one error schema and changes nothing."""

import json
import logging
from typing import Any

import httpx
import pytest

from server_stub.api.app import ServiceApi
from server_stub.engine.errors import ServiceError
from tests.contract.service_api.conftest import SMALL_LIMITS, Readiness, error_ids
from tests.contract.service_api.fake_operations import EXECUTION_ID, UNKNOWN_PROCESS, FakeOperations
from tests.contract.service_api.requests import OF_A_PROCESS, REQUESTS, path_of
from xdb_sdk.protocol import ErrorBody, ErrorSubType, RpcRequest, StartRequest

NOT_JSON = [
    pytest.param(b"", id="empty"),
    pytest.param(b"{", id="cut off"),
    pytest.param(b'{"processId": "p-1"} x', id="trailing text"),
    pytest.param(b"\xff\xfe", id="no UTF-8"),
    pytest.param(b"'p-1'", id="no JSON"),
]


def error_of(response: httpx.Response, status: int, sub_type: ErrorSubType) -> ErrorBody:
    """Check that an answer is an error as it should be, and give it."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    body = ErrorBody.model_validate_json(response.content)
    assert body.error_sub_type is sub_type
    assert body.details
    return body


@pytest.mark.parametrize("operation", REQUESTS)
async def test_smallest_request_of_each_operation_is_carried_out(client: httpx.AsyncClient, operation: str) -> None:
    response = await client.post(path_of(operation), json=REQUESTS[operation])

    assert response.status_code == 200
    assert EXECUTION_ID in response.text


@pytest.mark.parametrize("body", NOT_JSON)
@pytest.mark.parametrize("operation", REQUESTS)
async def test_body_that_is_no_json_is_refused(
    client: httpx.AsyncClient, operations: FakeOperations, operation: str, body: bytes
) -> None:
    response = await client.post(path_of(operation), content=body)

    error_of(response, 400, ErrorSubType.INVALID_REQUEST)
    assert operations.asked == []


@pytest.mark.parametrize("body", [b"null", b"[]", b'"p-1"', b"7"])
@pytest.mark.parametrize("operation", REQUESTS)
async def test_json_that_is_no_object_is_refused(client: httpx.AsyncClient, operation: str, body: bytes) -> None:
    response = await client.post(path_of(operation), content=body)

    assert "body: " in error_of(response, 400, ErrorSubType.INVALID_REQUEST).details


@pytest.mark.parametrize(
    ("operation", "field"), [(operation, field) for operation, request in REQUESTS.items() for field in request]
)
async def test_missing_field_is_named(
    client: httpx.AsyncClient, operations: FakeOperations, operation: str, field: str
) -> None:
    request = {name: value for name, value in REQUESTS[operation].items() if name != field}

    response = await client.post(path_of(operation), json=request)

    assert f"{field}: Field required" in error_of(response, 400, ErrorSubType.INVALID_REQUEST).details
    assert operations.asked == []


@pytest.mark.parametrize("process_id", ["", "x" * 256, "é" * 128, "a\0b", 7, None, ["p-1"]], ids=repr)
@pytest.mark.parametrize("operation", OF_A_PROCESS)
async def test_malformed_process_id_is_refused_by_name(
    client: httpx.AsyncClient, operations: FakeOperations, operation: str, process_id: object
) -> None:
    response = await client.post(path_of(operation), json=REQUESTS[operation] | {"processId": process_id})

    assert "processId: " in error_of(response, 400, ErrorSubType.INVALID_REQUEST).details
    assert operations.asked == []


@pytest.mark.parametrize("operation", OF_A_PROCESS)
async def test_unknown_process_is_not_found(client: httpx.AsyncClient, operation: str) -> None:
    response = await client.post(path_of(operation), json=REQUESTS[operation] | {"processId": UNKNOWN_PROCESS})

    error_of(response, 404, ErrorSubType.PROCESS_NOT_FOUND)


@pytest.mark.parametrize(
    ("operation", "change", "field"),
    [
        pytest.param("start", {"idReusePolicy": "SOMETIMES"}, "idReusePolicy", id="unknown policy"),
        pytest.param("start", {"timeoutMs": -1}, "timeoutMs", id="negative timeout"),
        pytest.param("start", {"startStateId": ""}, "startStateId", id="empty state id"),
        pytest.param("start", {"localAttributes": {"": 1}}, "localAttributes", id="empty attribute name"),
        pytest.param("start", {"tables": [{}]}, "tables.0.tableName", id="mapping without a table"),
        pytest.param("publish", {"messages": []}, "messages", id="no messages"),
        pytest.param("publish", {"messages": [{"payload": 1}]}, "messages.0.queueName", id="message without a queue"),
        pytest.param("list", {"pageSize": 1001}, "pageSize", id="large page"),
        pytest.param("list", {"pageSize": 0}, "pageSize", id="empty page"),
        pytest.param("list", {"statuses": ["DONE"]}, "statuses.0", id="unknown status"),
        pytest.param("wait-for-completion", {"timeoutMs": -1}, "timeoutMs", id="negative wait"),
        pytest.param("stop", {"reason": "x" * 1001}, "reason", id="long reason"),
    ],
)
async def test_wrong_field_is_named(
    client: httpx.AsyncClient, operation: str, change: dict[str, Any], field: str
) -> None:
    response = await client.post(path_of(operation), json=REQUESTS[operation] | change)

    assert field in error_of(response, 400, ErrorSubType.INVALID_REQUEST).details


async def test_many_wrong_fields_are_named_up_to_a_few(client: httpx.AsyncClient) -> None:
    messages = [{"queueName": "q"}] + [{"payload": 1}] * 30

    response = await client.post(path_of("publish"), json={"processId": "p-1", "messages": messages})

    details = error_of(response, 400, ErrorSubType.INVALID_REQUEST).details
    assert "messages.5.queueName" in details
    assert details.endswith("; and 25 more")


async def test_refused_value_is_not_repeated_in_the_answer(client: httpx.AsyncClient) -> None:
    response = await client.post(path_of("start"), json=REQUESTS["start"] | {"timeoutMs": "my secret"})

    assert "my secret" not in response.text


async def test_unknown_fields_are_ignored(client: httpx.AsyncClient, operations: FakeOperations) -> None:
    response = await client.post(path_of("start"), json=REQUESTS["start"] | {"requestColour": "blue"})

    assert response.status_code == 200
    assert operations.asked == [StartRequest.model_validate(REQUESTS["start"])]


@pytest.mark.parametrize(
    ("input_text", "problem"),
    [
        pytest.param(rb'"a\u0000b"', "NUL", id="NUL"),
        pytest.param(rb'{"deep": [{"x": "\u0000"}]}', "NUL", id="NUL deep inside"),
        pytest.param(rb'"\ud800"', "", id="lone surrogate"),
        pytest.param(b"NaN", "NaN", id="NaN"),
        pytest.param(b"[1, -Infinity]", "-Infinity", id="-Infinity"),
        pytest.param(b"1e999", "float", id="number beyond a float"),
        pytest.param(b"9" * 5_000, "", id="endless digits"),
        pytest.param(b"[" * 150 + b"]" * 150, "nested deeper", id="deep"),
        pytest.param(b"[" * 1_000 + b"]" * 1_000, "recursion", id="deeper"),
    ],
)
async def test_payload_that_cannot_be_stored_is_refused(
    operations: FakeOperations, input_text: bytes, problem: str, client: httpx.AsyncClient
) -> None:
    response = await client.post(
        path_of("rpc"), content=b'{"processId": "p-1", "rpcName": "r", "input": %b}' % input_text
    )

    body = ErrorBody.model_validate_json(response.content)
    assert response.status_code == 400
    assert problem in body.details
    assert operations.asked == []


@pytest.mark.parametrize(
    "value",
    [None, 0, False, "", [], {}, 2**60, -1.5, "é😀", {"a": [None, {"b": "\u2028"}]}, "NaN", "1e999"],
    ids=repr,
)
async def test_payload_reaches_the_operation_as_it_was_sent(
    client: httpx.AsyncClient, operations: FakeOperations, value: object
) -> None:
    response = await client.post(path_of("rpc"), json=REQUESTS["rpc"] | {"input": value})

    asked = operations.asked[0]
    assert isinstance(asked, RpcRequest)
    assert json.dumps(asked.input) == json.dumps(value)
    assert response.json().get("output") == value


@pytest.mark.parametrize(
    ("operation", "change", "where"),
    [
        pytest.param("start", {"startStateInput": "x" * 999}, "startStateInput", id="input"),
        pytest.param("start", {"localAttributes": {"a": "x" * 999}}, "localAttributes.a", id="local attribute"),
        pytest.param(
            "start",
            {"tables": [{"tableName": "t", "primaryKey": {"id": 1}, "initialWrite": {"c": "x" * 999}}]},
            "tables.0.initialWrite.c",
            id="column",
        ),
        pytest.param(
            "publish",
            {"messages": [{"queueName": "q"}, {"queueName": "q", "payload": ["x" * 997]}]},
            "messages.1.payload",
            id="message",
        ),
        pytest.param("rpc", {"input": {"a": "x" * 999}}, "input", id="RPC input"),
        pytest.param("set-attributes", {"writeLocalAttributes": {"a": "é" * 500}}, "writeLocalAttributes.a", id="set"),
    ],
)
async def test_value_over_the_limit_is_named(
    client: httpx.AsyncClient, operations: FakeOperations, operation: str, change: dict[str, Any], where: str
) -> None:
    response = await client.post(path_of(operation), json=REQUESTS[operation] | change)

    details = error_of(response, 400, ErrorSubType.PAYLOAD_TOO_LARGE).details
    assert f"{where} is 1" in details
    assert "max_value_bytes" in details
    assert operations.asked == []


async def test_value_of_the_limit_is_taken(client: httpx.AsyncClient) -> None:
    response = await client.post(path_of("rpc"), json=REQUESTS["rpc"] | {"input": "x" * 998})

    assert response.status_code == 200


async def test_many_values_below_the_limit_are_taken_together(client: httpx.AsyncClient) -> None:
    messages = [{"queueName": "q", "payload": "x" * 900}] * 4

    response = await client.post(path_of("publish"), json=REQUESTS["publish"] | {"messages": messages})

    assert response.status_code == 200


async def test_call_over_the_limit_is_refused(client: httpx.AsyncClient, operations: FakeOperations) -> None:
    response = await client.post(path_of("start"), content=b"x" * (SMALL_LIMITS.max_call_bytes + 1))

    assert "max_call_bytes" in error_of(response, 400, ErrorSubType.PAYLOAD_TOO_LARGE).details
    assert response.headers["connection"] == "close"
    assert operations.asked == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("operation", REQUESTS)
async def test_wrong_method_is_refused_and_the_right_one_named(
    client: httpx.AsyncClient, operation: str, method: str
) -> None:
    response = await client.request(method, path_of(operation))

    assert response.headers["allow"] == "POST"
    error_of(response, 405, ErrorSubType.METHOD_NOT_ALLOWED)


async def test_operation_that_does_not_exist_is_not_found_and_the_others_named(client: httpx.AsyncClient) -> None:
    response = await client.post(path_of("restart"), json={})

    details = error_of(response, 404, ErrorSubType.NOT_FOUND).details
    assert "'restart'" in details
    assert "wait-for-state-completion" in details


@pytest.mark.parametrize("path", ["/", "/nowhere", "/api/v1/xdb/service/process-execution/start/", "/api/v2", "//"])
async def test_unknown_path_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path, json={})

    error_of(response, 404, ErrorSubType.NOT_FOUND)


async def test_refusal_of_an_operation_is_passed_on(client: httpx.AsyncClient, operations: FakeOperations) -> None:
    body = ErrorBody(
        error_sub_type=ErrorSubType.PROCESS_ALREADY_STARTED, details="is running", process_execution_id="e"
    )
    operations.failures["p-1"] = ServiceError(409, body)

    response = await client.post(path_of("start"), json=REQUESTS["start"])

    assert error_of(response, 409, ErrorSubType.PROCESS_ALREADY_STARTED) == body


async def test_retry_after_is_a_header_in_whole_seconds(client: httpx.AsyncClient, operations: FakeOperations) -> None:
    body = ErrorBody(error_sub_type=ErrorSubType.UNAVAILABLE, details="busy", retry_after_s=1.5)
    operations.failures["p-1"] = ServiceError(503, body)

    response = await client.post(path_of("start"), json=REQUESTS["start"])

    error_of(response, 503, ErrorSubType.UNAVAILABLE)
    assert response.headers["retry-after"] == "2"


async def test_fault_of_the_server_is_logged_under_an_id_and_not_told(
    client: httpx.AsyncClient, operations: FakeOperations, caplog: pytest.LogCaptureFixture
) -> None:
    operations.failures["p-1"] = RuntimeError("near SELECT: syntax error")

    responses = [await client.post(path_of("describe"), json=REQUESTS["describe"]) for _ in range(2)]

    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    for record, response, error_id in zip(records, responses, ("fault-1", "fault-2"), strict=True):
        details = error_of(response, 500, ErrorSubType.INTERNAL).details
        assert "SELECT" not in details
        assert details.endswith(f"error_id={error_id}")
        assert vars(record)["error_id"] == error_id
    assert "near SELECT: syntax error" in caplog.text


async def test_fault_behind_another_path_is_logged_under_an_id_too(
    operations: FakeOperations, readiness: Readiness, caplog: pytest.LogCaptureFixture
) -> None:
    def count() -> dict[str, dict[str, int]]:
        raise RuntimeError("no counters")

    api = ServiceApi(operations, readiness, SMALL_LIMITS, error_ids(), status=count)
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://xdb") as client:
        response = await client.get("/internal/status")

    assert error_of(response, 500, ErrorSubType.INTERNAL).details.endswith("error_id=fault-1")
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert vars(record)["error_id"] == "fault-1"


async def test_each_request_is_one_log_line_without_payload(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "server_stub")

    await client.post(path_of("rpc"), json=REQUESTS["rpc"] | {"input": "my secret"})

    [record] = caplog.records
    facts = vars(record)
    assert record.getMessage() == "request"
    assert (facts["operation"], facts["status"], facts["process_id"]) == ("rpc", 200, "p-1")
    assert facts["duration_ms"] >= 0
    assert "my secret" not in str(facts)


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/api/v1/xdb/service/process-execution/start"])
async def test_other_requests_are_logged_too(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.INFO, "server_stub")

    response = await client.get(path)

    [record] = caplog.records
    assert vars(record)["operation"] == f"GET {path}"
    assert vars(record)["status"] == response.status_code
