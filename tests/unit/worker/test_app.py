"""The HTTP contract of a worker, malformed requests included."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.unit.worker.asgi import Exchange, request
from tests.unit.worker.processes import (
    EXECUTION_ID,
    Workshop,
    execute_call,
    registry_of,
    rpc_call,
    wait_until_call,
)
from xdb_sdk.protocol import (
    EXECUTE_PATH,
    PROCESS_CLOSED_PATH,
    RPC_PATH,
    WAIT_UNTIL_PATH,
    WORKER_BATCH_PATH,
    AnswerLine,
    ExecuteAnswer,
    ExecuteLine,
    ProcessClosedCall,
    ProcessClosedLine,
    RpcAnswer,
    RpcLine,
    WaitUntilAnswer,
    WaitUntilLine,
    WorkerErrorBody,
)
from xdb_sdk.worker import Worker, WorkerOptions


def worker_of(workshop: Workshop | None = None, **options: Any) -> Worker:
    return Worker(registry_of(workshop or Workshop()), WorkerOptions(**options))


def line_of(model: BaseModel) -> bytes:
    return model.model_dump_json(by_alias=True).encode() + b"\n"


def execute_line(call_id: int, state_id: str, input: Any = None) -> bytes:
    return line_of(ExecuteLine(operation="execute", call_id=call_id, body=execute_call(state_id, input)))


async def error_of(exchange: Exchange) -> WorkerErrorBody:
    body = await exchange.read()
    assert set(json.loads(body)) <= {"errorType", "detail", "retryable"}
    return WorkerErrorBody.model_validate_json(body)


@pytest.mark.parametrize(
    ("path", "call", "answer_type"),
    [
        (WAIT_UNTIL_PATH, wait_until_call("Trade", "an apple"), WaitUntilAnswer),
        (EXECUTE_PATH, execute_call("Echo", "hi"), ExecuteAnswer),
        (RPC_PATH, rpc_call("begin", "hi"), RpcAnswer),
    ],
    ids=["wait_until", "execute", "rpc"],
)
async def test_each_call_is_answered_on_its_own_path(path: str, call: BaseModel, answer_type: type[BaseModel]) -> None:
    exchange = await request(worker_of(), "POST", path, line_of(call))

    body = await exchange.read()

    assert exchange.status == 200
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.headers["content-length"] == str(len(body))
    answer_type.model_validate_json(body)


async def test_closed_notice_is_answered_with_an_empty_object() -> None:
    call = ProcessClosedCall(process_execution_id=EXECUTION_ID)

    exchange = await request(worker_of(), "POST", PROCESS_CLOSED_PATH, line_of(call))

    assert (exchange.status, await exchange.read()) == (200, b"{}")


async def test_worker_may_be_mounted_under_a_path() -> None:
    body = line_of(execute_call("Echo", "hi"))

    exchange = await request(worker_of(), "POST", "/api" + EXECUTE_PATH, body, root_path="/api")

    assert exchange.status == 200


async def test_health_names_the_process_types_and_the_running_calls() -> None:
    exchange = await request(worker_of(), "GET", "/healthz")

    assert exchange.status == 200
    assert json.loads(await exchange.read()) == {
        "status": "ok",
        "runningCalls": 0,
        "processTypes": ["Shelf", "Workshop"],
    }


@pytest.mark.parametrize("path", ["/", "/api/v1/xdb/worker", EXECUTE_PATH + "/", "/favicon.ico"])
async def test_unknown_path_is_404(path: str) -> None:
    exchange = await request(worker_of(), "POST", path)

    assert (exchange.status, (await error_of(exchange)).error_type) == (404, "PathNotFound")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", EXECUTE_PATH, "POST"), ("PUT", WORKER_BATCH_PATH, "POST"), ("POST", "/healthz", "GET")],
)
async def test_wrong_method_is_405_and_names_the_right_one(method: str, path: str, allowed: str) -> None:
    exchange = await request(worker_of(), method, path)

    assert (exchange.status, exchange.headers["allow"]) == (405, allowed)
    assert (await error_of(exchange)).error_type == "MethodNotAllowed"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"\xff\xfe\x00", "Invalid JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"{}", "context"),
        (b'{"context": {"processId": 7}, "processType": "Workshop", "stateId": "Echo"}', "context.processId"),
        (b"[" * 100_000, "recursion"),
    ],
    ids=["empty", "cut short", "no text", "list", "null", "nothing in it", "wrong type", "deep nesting"],
)
async def test_malformed_request_is_400_and_says_what_is_wrong(body: bytes, named: str) -> None:
    exchange = await request(worker_of(), "POST", EXECUTE_PATH, body)

    error = await error_of(exchange)

    assert (exchange.status, error.error_type) == (400, "InvalidRequest")
    assert named in error.detail


async def test_values_of_a_malformed_request_stay_out_of_the_error() -> None:
    exchange = await request(worker_of(), "POST", EXECUTE_PATH, b'{"context": "my secret", "input": "my secret"}')

    assert b"my secret" not in await exchange.read()


async def test_unknown_fields_of_a_request_are_ignored() -> None:
    body = json.loads(line_of(execute_call("Echo", "hi"))) | {"fromTheFuture": {"x": 1}}

    exchange = await request(worker_of(), "POST", EXECUTE_PATH, json.dumps(body).encode())

    assert exchange.status == 200


async def test_request_larger_than_the_limit_is_413_before_it_is_all_read() -> None:
    async with Exchange(worker_of(max_call_bytes=1000), "POST", EXECUTE_PATH) as exchange:
        exchange.send(b"x" * 1001, more=True)

        assert (await error_of(exchange)).error_type == "CallTooLarge"
        assert exchange.status == 413


async def test_client_that_leaves_before_the_end_of_its_request_gets_no_answer() -> None:
    async with Exchange(worker_of(), "POST", EXECUTE_PATH) as exchange:
        exchange.send(b"{", more=True)
        exchange.hang_up()

    assert exchange.status == 0


async def test_full_worker_answers_429_with_a_time_to_come_back() -> None:
    release = asyncio.Event()
    workshop = Workshop()
    workshop.action = lambda ctx: release.wait()
    worker = worker_of(workshop, max_concurrent_calls=1)
    async with Exchange(worker, "POST", EXECUTE_PATH) as first:
        first.send(line_of(execute_call("Act", "")))
        await asyncio.sleep(0)

        second = await request(worker, "POST", EXECUTE_PATH, line_of(execute_call("Echo", "hi")))
        release.set()

    assert (second.status, second.headers["retry-after"]) == (429, "1")
    assert (await error_of(second)).error_type == "WorkerFull"
    assert first.status == 200


async def test_batch_answers_every_line_with_the_status_and_body_of_its_own_path() -> None:
    lines = [
        line_of(WaitUntilLine(operation="wait-until", call_id=1, body=wait_until_call("Trade", "an apple"))),
        execute_line(2, "Echo", "hi"),
        line_of(RpcLine(operation="rpc", call_id=3, body=rpc_call("begin", "hi"))),
        line_of(
            ProcessClosedLine(
                operation="process-closed", call_id=4, body=ProcessClosedCall(process_execution_id=EXECUTION_ID)
            )
        ),
        execute_line(5, "NoSuchState"),
    ]

    exchange = await request(worker_of(), "POST", WORKER_BATCH_PATH, b"".join(lines))

    answers = {a.call_id: a for a in map(AnswerLine.model_validate_json, (await exchange.read()).splitlines())}
    assert exchange.headers["content-type"] == "application/x-ndjson"
    assert {call_id: answer.status for call_id, answer in answers.items()} == {1: 200, 2: 200, 3: 200, 4: 200, 5: 404}
    WaitUntilAnswer.model_validate(answers[1].body)
    ExecuteAnswer.model_validate(answers[2].body)
    assert answers[3].body["output"] == "HI"
    assert answers[4].body == {}
    assert answers[5].body["errorType"] == "StateNotFound"


async def test_line_is_called_before_the_rest_of_the_batch_has_come() -> None:
    async with Exchange(worker_of(), "POST", WORKER_BATCH_PATH) as exchange:
        line = execute_line(2, "Echo", "b")
        exchange.send(execute_line(1, "Echo", "a") + line[:10], more=True)
        early = await exchange.lines()
        exchange.send(line[10:])
        late = await exchange.lines()

    assert [a["callId"] for a in early] == [1]
    assert [a["callId"] for a in late] == [2]


async def test_slow_call_delays_no_other_in_its_batch() -> None:
    release = asyncio.Event()
    workshop = Workshop()
    workshop.action = lambda ctx: release.wait()
    async with Exchange(worker_of(workshop), "POST", WORKER_BATCH_PATH) as exchange:
        exchange.send(execute_line(1, "Act", "") + execute_line(2, "Echo", "hi"))
        before = await exchange.lines()
        release.set()
        after = await exchange.lines()

    assert [a["callId"] for a in before] == [2]
    assert [a["callId"] for a in after] == [1]


async def test_answers_that_are_ready_together_travel_in_one_chunk() -> None:
    async with Exchange(worker_of(), "POST", WORKER_BATCH_PATH) as exchange:
        exchange.send(b"".join(execute_line(call_id, "Echo", "hi") for call_id in range(50)))
        answers = await exchange.lines()

    assert sorted(a["callId"] for a in answers) == list(range(50))


@pytest.mark.parametrize(
    ("line", "call_id"),
    [
        (b"nonsense", -1),
        (b'{"callId": 8, "operation": "juggle", "body": {}}', 8),
        (b'{"callId": 8, "operation": "execute", "body": {}}', 8),
        (b'{"callId": 8, "body": {}}', 8),
        (b'{"callId": "x", "operation": "execute", "body": {}}', -1),
    ],
    ids=["no JSON", "unknown operation", "wrong body", "no operation", "wrong id"],
)
async def test_malformed_line_is_answered_400_and_spoils_no_other(line: bytes, call_id: int) -> None:
    exchange = await request(worker_of(), "POST", WORKER_BATCH_PATH, line + b"\n\n" + execute_line(1, "Echo", "hi"))

    answers = {a["callId"]: a for a in map(json.loads, (await exchange.read()).splitlines())}

    assert {key: a["status"] for key, a in answers.items()} == {call_id: 400, 1: 200}
    assert answers[call_id]["body"]["errorType"] == "InvalidRequest"


async def test_empty_batch_is_answered_with_no_lines() -> None:
    exchange = await request(worker_of(), "POST", WORKER_BATCH_PATH, b"\n")

    assert (exchange.status, await exchange.read()) == (200, b"")


async def test_line_larger_than_the_limit_is_answered_413_and_spoils_no_other() -> None:
    worker = worker_of(max_call_bytes=1000)
    body = execute_line(1, "Echo", "x" * 1000) + execute_line(2, "Echo", "hi")

    exchange = await request(worker, "POST", WORKER_BATCH_PATH, body)

    assert {a["callId"]: a["status"] for a in map(json.loads, (await exchange.read()).splitlines())} == {1: 413, 2: 200}


async def test_batch_larger_than_the_limit_is_cut_off_and_what_came_before_is_answered() -> None:
    async with Exchange(worker_of(max_batch_bytes=2000), "POST", WORKER_BATCH_PATH) as exchange:
        exchange.send(execute_line(1, "Echo", "hi"), more=True)
        exchange.send(b"x" * 2000, more=True)
        answers = list(map(json.loads, (await exchange.read()).splitlines()))

    assert {a["callId"]: a["status"] for a in answers} == {1: 200, -1: 413}


async def test_calls_over_the_limit_of_a_batch_are_refused_one_by_one() -> None:
    release = asyncio.Event()
    workshop = Workshop()
    workshop.action = lambda ctx: release.wait()
    async with Exchange(worker_of(workshop, max_concurrent_calls=2), "POST", WORKER_BATCH_PATH) as exchange:
        exchange.send(b"".join(execute_line(call_id, "Act", "") for call_id in range(3)))
        refused = await exchange.lines()
        release.set()
        answered = await exchange.lines()

    assert [(a["status"], a["retryAfterS"]) for a in refused] == [(429, 1.0)]
    assert [a["status"] for a in answered] == [200, 200]


async def test_calls_of_a_batch_go_on_when_the_server_hangs_up() -> None:
    release, done = asyncio.Event(), asyncio.Event()

    async def wait_and_tell() -> None:
        await release.wait()
        done.set()

    workshop = Workshop()
    workshop.action = lambda ctx: wait_and_tell()
    async with Exchange(worker_of(workshop), "POST", WORKER_BATCH_PATH) as exchange:
        exchange.send(execute_line(1, "Act", ""))
        exchange.hang_up()

    release.set()

    await asyncio.wait_for(done.wait(), 10)


async def test_call_goes_on_when_the_task_of_its_request_is_cancelled() -> None:
    began, release, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait_and_tell() -> None:
        began.set()
        await release.wait()
        done.set()

    workshop = Workshop()
    workshop.action = lambda ctx: wait_and_tell()
    served = asyncio.ensure_future(request(worker_of(workshop), "POST", EXECUTE_PATH, line_of(execute_call("Act", ""))))
    await began.wait()

    served.cancel()
    release.set()

    await asyncio.wait_for(done.wait(), 10)


async def test_lifespan_stops_the_service_and_may_start_it_again() -> None:
    worker = worker_of()
    body = line_of(execute_call("Echo", "hi"))
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await worker({"type": "lifespan"}, receive, send)
    stopped = await request(worker, "POST", EXECUTE_PATH, body)
    worker.service.start()
    restarted = await request(worker, "POST", EXECUTE_PATH, body)

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert (stopped.status, (await error_of(stopped)).error_type) == (503, "WorkerStopping")
    assert "retry-after" in stopped.headers
    assert restarted.status == 200


def test_app_of_a_worker_is_the_worker() -> None:
    worker = worker_of()

    assert worker.app is worker
