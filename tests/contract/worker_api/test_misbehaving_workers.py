"""The dispatcher over real sockets against workers that do not keep the contract (C-041, C-045, C-046)."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

import pytest

from server_stub.core.outcomes import CallFailure, FailureKind, StateAnswered, StateOutcome
from server_stub.core.ports import Store
from server_stub.dispatch.dispatcher import Dispatcher
from server_stub.dispatch.http import HttpTransport
from server_stub.dispatch.options import DispatchOptions
from tests.contract.worker_api.raw_worker import Misbehaviour, RawRequest, head, raw_worker
from tests.support.dispatching import DONE, Answer, RecordingSink, RowsStore, answer_line, make_call
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, EXECUTE_PATH, WORKER_BATCH_PATH, StateOptionsConfig, normal_url

TIMEOUT_MS = 400
QUICK = StateOptionsConfig(execute_api_timeout_ms=TIMEOUT_MS)
CHUNKED_BATCH = head(200, f"content-type: {BATCH_CONTENT_TYPE}", "transfer-encoding: chunked")


def system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def dispatching(options: DispatchOptions | None = None) -> AsyncIterator[tuple[Dispatcher, RecordingSink]]:
    transport = HttpTransport()
    sink = RecordingSink()
    dispatcher = Dispatcher(transport, cast(Store, RowsStore()), sink, options or DispatchOptions(), system_clock_ms)
    try:
        yield dispatcher, sink
    finally:
        await dispatcher.close(grace_s=0)
        await transport.close()


async def outcomes_of(
    behave: Misbehaviour, *, calls: int = 1, options: DispatchOptions | None = None
) -> list[StateOutcome]:
    async with raw_worker(behave) as worker, dispatching(options) as (dispatcher, sink):
        dispatcher.dispatch(make_call(number, worker_url=worker.url, options=QUICK) for number in range(calls))
        async with asyncio.timeout(30):
            return await sink.wait_for(calls)


async def failure_of(behave: Misbehaviour, *, options: DispatchOptions | None = None) -> CallFailure:
    [outcome] = await outcomes_of(behave, options=options)
    assert isinstance(outcome, CallFailure), outcome
    return outcome


async def test_worker_that_accepts_and_never_answers_times_out_and_is_hung_up_on() -> None:
    is_hung_up = asyncio.Event()

    async def behave(request: RawRequest) -> None:
        await request.wait_for_hang_up()
        is_hung_up.set()

    async with raw_worker(behave) as worker, dispatching() as (dispatcher, sink):
        began_s = time.monotonic()
        dispatcher.dispatch([make_call(1, worker_url=worker.url, options=QUICK)])
        async with asyncio.timeout(30):
            [outcome] = await sink.wait_for(1)
            took_s = time.monotonic() - began_s
            await is_hung_up.wait()

    assert isinstance(outcome, CallFailure)
    assert (outcome.kind, outcome.http_status) == (FailureKind.TIMEOUT, 0)
    assert TIMEOUT_MS / 1_000 <= took_s < 5


async def test_worker_that_sends_byte_by_byte_times_out() -> None:
    async def behave(request: RawRequest) -> None:
        await request.write(CHUNKED_BATCH)
        for byte in answer_line(1, Answer(200, DONE)):
            await request.write_chunk(bytes([byte]))
            await asyncio.sleep(0.05)

    assert (await failure_of(behave)).kind is FailureKind.TIMEOUT


async def test_worker_that_sends_its_head_byte_by_byte_times_out() -> None:
    async def behave(request: RawRequest) -> None:
        for byte in CHUNKED_BATCH:
            await request.write(bytes([byte]))
            await asyncio.sleep(0.05)

    assert (await failure_of(behave)).kind is FailureKind.TIMEOUT


async def test_port_without_worker_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with dispatching() as (dispatcher, sink):
            dispatcher.dispatch([make_call(1, worker_url=url)])
            [outcome] = await sink.wait_for(1)

    assert isinstance(outcome, CallFailure)
    assert (outcome.kind, outcome.http_status) == (FailureKind.UNREACHABLE, 0)


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
        head(200, "content-length: many"),
        head(200, "transfer-encoding: chunked") + b"zz\r\n",
        head(200, "x: " + "y" * 1_000_000),
        head(500, "content-length: 1000") + b"half",
    ],
    ids=["nothing", "no-http", "bad-header", "bad-length", "bad-chunk", "huge-header", "cut-off"],
)
async def test_response_that_is_no_http_is_a_broken_connection(response: bytes) -> None:
    async def behave(request: RawRequest) -> None:
        await request.write(response)
        request.writer.close()

    failure = await failure_of(behave)

    assert failure.kind in (FailureKind.UNREACHABLE, FailureKind.INVALID_RESPONSE)
    assert failure.details


async def test_connection_that_breaks_fails_only_what_was_not_answered() -> None:
    async def behave(request: RawRequest) -> None:
        await request.write(CHUNKED_BATCH)
        await request.write_chunk(
            answer_line(2, Answer(200, DONE)) + answer_line(1, Answer(200, DONE)) + b'{"callId":3,'
        )
        request.writer.close()

    outcomes = await outcomes_of(behave, calls=4, options=DispatchOptions(restart_patience=timedelta(0)))

    kinds = [outcome.kind if isinstance(outcome, CallFailure) else None for outcome in outcomes]
    assert kinds == [None, None, FailureKind.UNREACHABLE, FailureKind.UNREACHABLE]


async def test_answers_are_handled_while_the_response_goes_on() -> None:
    first_is_handled = asyncio.Event()

    async def behave(request: RawRequest) -> None:
        await request.write(CHUNKED_BATCH)
        await request.write_chunk(answer_line(1, Answer(200, DONE)))
        await first_is_handled.wait()
        await request.write_chunk(answer_line(2, Answer(200, DONE)))
        await request.write_chunk(b"")

    async with raw_worker(behave) as worker, dispatching() as (dispatcher, sink):
        dispatcher.dispatch(make_call(number, worker_url=worker.url) for number in (1, 2))
        async with asyncio.timeout(30):
            await sink.wait_for(1)
            first_is_handled.set()
            await sink.wait_for(2)

    assert [key.state.number for key, _ in sink.outcomes] == [1, 2]


async def test_huge_answer_is_not_read_to_its_end() -> None:
    sent_bytes = 0

    async def behave(request: RawRequest) -> None:
        nonlocal sent_bytes
        await request.write(CHUNKED_BATCH)
        while True:
            await request.write_chunk(b"x" * 65_536)
            sent_bytes += 65_536

    failure = await failure_of(behave, options=DispatchOptions(max_answer_bytes=200_000))

    assert failure.kind is FailureKind.INVALID_RESPONSE
    assert "response too large" in failure.details
    assert sent_bytes < 20_000_000


async def test_huge_answer_of_a_single_call_is_not_read_to_its_end() -> None:
    async def behave(request: RawRequest) -> None:
        if request.path == WORKER_BATCH_PATH:
            await request.write(head(405, "content-length: 0"))
            return
        await request.write(head(200, "content-length: 300000000"))
        while True:
            await request.write(b" " * 65_536)

    failure = await failure_of(behave, options=DispatchOptions(max_answer_bytes=200_000))

    assert failure.kind is FailureKind.INVALID_RESPONSE
    assert "response too large" in failure.details


async def test_length_that_promises_more_than_comes_is_a_broken_connection() -> None:
    async def behave(request: RawRequest) -> None:
        if request.path == WORKER_BATCH_PATH:
            await request.write(head(404, "content-length: 0"))
            return
        await request.write(head(200, "content-length: 1000") + json.dumps(DONE).encode())
        request.writer.close()

    assert (await failure_of(behave)).kind is FailureKind.UNREACHABLE


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed_and_the_failure_says_so(status: int) -> None:
    paths: list[str] = []
    elsewhere: list[str] = []

    async def lure(request: RawRequest) -> None:
        elsewhere.append(request.path)
        await request.answer_all()

    async with raw_worker(lure) as target:

        async def behave(request: RawRequest) -> None:
            paths.append(request.path)
            location = f"location: {target.url}{WORKER_BATCH_PATH}"
            await request.write(head(status, location, "content-length: 5") + b"moved")

        failure = await failure_of(behave)

    assert (failure.kind, failure.http_status) == (FailureKind.INVALID_RESPONSE, status)
    assert f"{WORKER_BATCH_PATH} was answered {status}, a redirect; redirects are not followed" in failure.details
    assert paths == [WORKER_BATCH_PATH]
    assert elsewhere == []


async def test_redirect_of_a_worker_without_batches_is_not_followed() -> None:
    paths: list[str] = []

    async def behave(request: RawRequest) -> None:
        paths.append(request.path)
        if request.path == WORKER_BATCH_PATH:
            await request.write(head(404, "content-length: 0"))
        else:
            await request.write(head(302, "location: /elsewhere", "content-length: 0"))

    failure = await failure_of(behave)

    assert (failure.kind, failure.http_status) == (FailureKind.INVALID_RESPONSE, 302)
    assert "redirects are not followed" in failure.details
    assert paths == [WORKER_BATCH_PATH, EXECUTE_PATH]


async def test_compressed_answer_is_not_unpacked() -> None:
    async def behave(request: RawRequest) -> None:
        assert request.headers["accept-encoding"] == "identity"
        await request.begin_batch("content-encoding: gzip")
        await request.write_chunk(b"\x1f\x8b\x08\x00garbage\n")
        await request.write_chunk(b"")

    assert (await failure_of(behave)).kind is FailureKind.INVALID_RESPONSE


@pytest.mark.parametrize("status", [404, 405, 415])
async def test_worker_without_batch_endpoint_gets_one_request_a_call(status: int) -> None:
    paths: list[str] = []

    async def behave(request: RawRequest) -> None:
        paths.append(request.path)
        body = json.dumps(DONE).encode()
        if request.path == WORKER_BATCH_PATH:
            await request.write(head(status, "content-length: 0"))
        else:
            await request.write(head(200, f"content-length: {len(body)}") + body)

    outcomes = await outcomes_of(behave, calls=3)

    assert all(isinstance(outcome, StateAnswered) for outcome in outcomes)
    assert paths == [WORKER_BATCH_PATH, EXECUTE_PATH, EXECUTE_PATH, EXECUTE_PATH]


async def test_connection_is_used_again() -> None:
    async with raw_worker(RawRequest.answer_all) as worker, dispatching() as (dispatcher, sink):
        for number in range(20):
            dispatcher.dispatch([make_call(number, worker_url=worker.url)])
            await sink.wait_for(number + 1)

    assert len(worker.requests) == 20
    assert worker.connections == 1


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("", WORKER_BATCH_PATH),
        ("/", WORKER_BATCH_PATH),
        ("/api", "/api" + WORKER_BATCH_PATH),
        ("/api/", "/api" + WORKER_BATCH_PATH),
        ("/api/?token=a/b&c=", f"/api{WORKER_BATCH_PATH}?token=a/b&c="),
    ],
)
async def test_worker_url_may_end_in_a_slash_and_have_a_prefix_and_a_query(suffix: str, path: str) -> None:
    async with raw_worker(RawRequest.answer_all) as worker, dispatching() as (dispatcher, sink):
        dispatcher.dispatch([make_call(1, worker_url=normal_url(worker.url + suffix))])
        [outcome] = await sink.wait_for(1)

    assert isinstance(outcome, StateAnswered)
    assert worker.requests[0].path == path


@pytest.mark.parametrize("url", [f"http://{'a' * 70}.example", "http://a..b", "http://."], ids=["long", "empty", "dot"])
async def test_host_that_cannot_be_looked_up_is_an_unreachable_worker(url: str) -> None:
    async with dispatching() as (dispatcher, sink):
        dispatcher.dispatch([make_call(1, worker_url=url)])
        [outcome] = await sink.wait_for(1)

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.UNREACHABLE


async def test_worker_is_reached_over_ipv6() -> None:
    try:
        async with raw_worker(RawRequest.answer_all, host="::1") as worker, dispatching() as (dispatcher, sink):
            dispatcher.dispatch([make_call(1, worker_url=normal_url(worker.url))])
            [outcome] = await sink.wait_for(1)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")

    assert isinstance(outcome, StateAnswered)


async def test_headers_of_the_settings_are_sent_and_the_environment_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    options = DispatchOptions(worker_headers={"Authorization": "Bearer t"})

    async with raw_worker(RawRequest.answer_all) as worker, dispatching(options) as (dispatcher, sink):
        dispatcher.dispatch([make_call(1, worker_url=worker.url)])
        [outcome] = await sink.wait_for(1)

    assert isinstance(outcome, StateAnswered)
    headers = worker.requests[0].headers
    assert headers["authorization"] == "Bearer t"
    assert headers["content-type"] == BATCH_CONTENT_TYPE
