"""What a worker answers is what the OpenAPI document of the worker API says."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from server_stub.api.openapi import WORKER_DOCUMENT
from tests.contract.service_api.greeter import app
from tests.contract.service_api.test_openapi import check, read
from xdb_sdk.protocol import (
    EXECUTE_PATH,
    PROCESS_CLOSED_PATH,
    RPC_PATH,
    WAIT_UNTIL_PATH,
    WORKER_BATCH_PATH,
    CallContext,
    CommandResultsBody,
    ExecuteCall,
    InternalQueueResult,
    LoadedData,
    ProcessClosedCall,
    QueueCommandStatus,
    ReceivedMessage,
    RpcCall,
    TimerResult,
    TimerStatus,
    WaitUntilCall,
    WireModel,
)

CONTEXT = CallContext(
    namespace="default",
    process_id="g-1",
    process_execution_id="0190a8e0-0000-7000-8000-000000000001",
    process_type="Greeter",
    process_started_at_ms=1,
    state_execution_id="Wait-1",
    attempt=1,
    first_attempt_at_ms=1,
    timeout_ms=10_000,
)
WAIT_UNTIL = WaitUntilCall(context=CONTEXT, process_type="Greeter", state_id="Wait", input="Hello")
EXECUTE = ExecuteCall(
    context=CONTEXT,
    process_type="Greeter",
    state_id="Wait",
    input="Hello",
    command_results=CommandResultsBody(
        timer_results=(TimerResult(status=TimerStatus.SCHEDULED),),
        internal_queue_results=(
            InternalQueueResult(
                queue_name="names", status=QueueCommandStatus.RECEIVED, messages=(ReceivedMessage(payload="Ada"),)
            ),
        ),
    ),
    loaded=LoadedData(asked_local_attributes=("last",)),
)
RPC = RpcCall(context=CONTEXT, process_type="Greeter", rpc_name="echo", input="hello")
CALLS = {
    "wait-until": (WAIT_UNTIL_PATH, WAIT_UNTIL),
    "execute": (EXECUTE_PATH, EXECUTE),
    "rpc": (RPC_PATH, RPC),
    "process-closed": (PROCESS_CLOSED_PATH, ProcessClosedCall(process_execution_id=CONTEXT.process_execution_id)),
}
DOCUMENT = read(WORKER_DOCUMENT)


@pytest.fixture
async def worker() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as made:
        yield made


@pytest.mark.parametrize(
    ("path", "call", "status"),
    [
        *(pytest.param(path, call, 200, id=name) for name, (path, call) in CALLS.items()),
        pytest.param(RPC_PATH, RPC.model_copy(update={"input": "fail"}), 424, id="user code raised"),
        pytest.param(RPC_PATH, RPC.model_copy(update={"input": 7}), 400, id="input of another type"),
        pytest.param(RPC_PATH, RPC.model_copy(update={"rpc_name": "sing"}), 404, id="unknown RPC"),
        pytest.param(EXECUTE_PATH, EXECUTE.model_copy(update={"state_id": "Rest"}), 404, id="unknown state"),
        pytest.param(EXECUTE_PATH, EXECUTE.model_copy(update={"process_type": "Other"}), 404, id="unknown process"),
    ],
)
async def test_answer_is_as_documented(worker: httpx.AsyncClient, path: str, call: WireModel, status: int) -> None:
    response = await worker.post(path, content=call.to_json())

    assert response.status_code == status, response.text
    check(DOCUMENT, path, response)


async def test_call_that_is_no_json_is_refused_as_documented(worker: httpx.AsyncClient) -> None:
    response = await worker.post(EXECUTE_PATH, content=b"{")

    assert response.status_code == 400
    check(DOCUMENT, EXECUTE_PATH, response)


async def test_batch_is_as_documented(worker: httpx.AsyncClient) -> None:
    lines: list[dict[str, Any]] = [
        {"callId": number, "operation": name, "body": json.loads(call.to_json())}
        for number, (name, (_, call)) in enumerate(CALLS.items())
    ]

    response = await worker.post(WORKER_BATCH_PATH, content="\n".join(map(json.dumps, lines)))

    assert len(response.text.splitlines()) == len(CALLS)
    check(DOCUMENT, WORKER_BATCH_PATH, response)


async def test_health_is_as_documented(worker: httpx.AsyncClient) -> None:
    check(DOCUMENT, "/healthz", await worker.get("/healthz"), method="get")
