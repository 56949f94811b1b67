"""Which calls share a request, and that no call suffers from another."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.unit.client.doubles import SERVER_LOST, SERVER_REFUSES, HeldServer
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk.client import ClientClosedError, Reply, TransportError
from xdb_sdk.client._envelope import Envelope
from xdb_sdk.client._exchange import Call
from xdb_sdk.protocol import SERVICE_BATCH_PATH, SERVICE_PREFIX, StartAnswer

START_PATH = SERVICE_PREFIX + "start"


def call(key: str, *, timeout_s: float = 30, is_long_poll: bool = False, padding: int = 0) -> Call[StartAnswer]:
    return Call(
        operation="start",
        subject=f"start of process {key!r}",
        body=json.dumps({"processId": key, "input": "x" * padding}).encode(),
        answer=StartAnswer,
        timeout_s=timeout_s,
        is_long_poll=is_long_poll,
    )


@pytest.fixture
def server() -> HeldServer:
    return HeldServer()


@pytest.fixture
async def envelope(server: HeldServer) -> AsyncIterator[Envelope]:
    envelope = Envelope(server, max_calls=100, max_bytes=100_000)
    yield envelope
    await envelope.close()


def send(envelope: Envelope, *keys: str, is_long_poll: bool = False) -> list["asyncio.Task[Reply]"]:
    return [asyncio.create_task(envelope.send(call(key, is_long_poll=is_long_poll))) for key in keys]


async def test_a_call_alone_goes_to_its_own_path(server: HeldServer, envelope: Envelope) -> None:
    server.answer("a")

    reply = await envelope.send(call("a"))

    assert reply.parse(StartAnswer).process_execution_id == "a"
    assert server.requests == [(START_PATH, ["a"])]


async def test_calls_of_one_turn_of_the_loop_share_a_request(server: HeldServer, envelope: Envelope) -> None:
    for key in "abc":
        server.answer(key)

    replies = await asyncio.gather(*send(envelope, "a", "b", "c"))

    assert [reply.parse(StartAnswer).process_execution_id for reply in replies] == ["a", "b", "c"]
    assert server.requests == [(SERVICE_BATCH_PATH, ["a", "b", "c"])]


async def test_each_caller_goes_on_as_soon_as_its_own_line_is_there(server: HeldServer, envelope: Envelope) -> None:
    slow, quick = send(envelope, "slow", "quick", is_long_poll=True)
    server.answer("quick")

    await quick

    assert not slow.done()
    server.answer("slow")
    assert (await slow).status == 200


async def test_an_error_line_is_the_answer_of_its_call_alone(server: HeldServer, envelope: Envelope) -> None:
    good, bad = send(envelope, "good", "bad")
    server.answer("bad", Reply(409, {"errorSubType": "PROCESS_ALREADY_STARTED"}))
    server.answer("good")

    assert ((await good).status, (await bad).status) == (200, 409)


async def test_calls_gather_while_two_requests_are_not_answered(server: HeldServer, envelope: Envelope) -> None:
    tasks = []
    for count, key in enumerate("ab", 1):
        tasks += send(envelope, key)
        await server.until_requests(count)
    tasks += send(envelope, "c")
    await asyncio.sleep(0)
    tasks += send(envelope, "d")
    await asyncio.sleep(0)
    for key in "abcd":
        server.answer(key)

    await asyncio.gather(*tasks)

    assert server.requests[2:] == [(SERVICE_BATCH_PATH, ["c", "d"])]


async def test_a_slow_call_holds_others_back_only_for_a_moment(server: HeldServer, envelope: Envelope) -> None:
    slow = send(envelope, "slow1")
    await server.until_requests(1)
    slow += send(envelope, "slow2")
    await server.until_requests(2)
    server.answer("quick")

    async with asyncio.timeout(5):
        await envelope.send(call("quick"))

    assert not any(task.done() for task in slow)
    server.answer("slow1")
    server.answer("slow2")
    await asyncio.gather(*slow)


async def test_long_polls_hold_nobody_back(server: HeldServer, envelope: Envelope) -> None:
    polls = []
    for count, key in enumerate("abcdef", 1):
        polls += send(envelope, key, is_long_poll=True)
        await server.until_requests(count)

    assert server.requests == [(START_PATH, [key]) for key in "abcdef"]
    assert not any(poll.done() for poll in polls)
    for key in "abcdef":
        server.answer(key)
    await asyncio.gather(*polls)


async def test_a_request_takes_no_more_calls_than_allowed(server: HeldServer) -> None:
    envelope = Envelope(server, max_calls=2, max_bytes=100_000)
    for key in "abcde":
        server.answer(key)

    await asyncio.gather(*send(envelope, *"abcde"))

    assert [keys for _, keys in server.requests] == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_request_takes_no_more_bytes_than_allowed_but_for_a_single_call(server: HeldServer) -> None:
    envelope = Envelope(server, max_calls=100, max_bytes=1000)
    keys = ["small1", "small2", "huge", "small3"]
    for key in keys:
        server.answer(key)

    await asyncio.gather(*(envelope.send(call(key, padding=5000 if key == "huge" else 10)) for key in keys))

    assert [keys for _, keys in server.requests] == [["small1", "small2"], ["huge"], ["small3"]]


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_batches_gets_one_request_a_call_from_then_on(status: int) -> None:
    server = HeldServer(batch_status=status)
    envelope = Envelope(server, max_calls=100, max_bytes=100_000)
    for key in "abcdefgh":
        server.answer(key)

    first = await asyncio.gather(*send(envelope, *"abcd"))
    second = await asyncio.gather(*send(envelope, *"efgh"))

    assert [reply.status for reply in (*first, *second)] == [200] * 8
    assert server.requests[0] == (SERVICE_BATCH_PATH, list("abcd"))
    assert server.requests[1:] == [(START_PATH, [key]) for key in "abcdefgh"]


async def test_a_refusal_of_the_whole_batch_answers_each_of_its_calls() -> None:
    server = HeldServer(batch_status=503)
    envelope = Envelope(server, max_calls=100, max_bytes=100_000)

    replies = await asyncio.gather(*send(envelope, "a", "b"))

    assert [(reply.status, reply.body) for reply in replies] == [(503, b"no batches here")] * 2


async def test_a_stream_that_breaks_fails_only_what_is_not_answered(server: HeldServer, envelope: Envelope) -> None:
    answered, lost1, lost2 = send(envelope, "answered", "lost1", "lost2")
    server.answer("answered")
    await answered

    server.answer("lost1", SERVER_LOST)

    for task in (lost1, lost2):
        with pytest.raises(TransportError) as raised:
            await task
        assert raised.value.was_sent
    assert (await answered).status == 200


async def test_a_connection_that_is_refused_tells_every_call_that_nothing_was_sent() -> None:
    server = HeldServer(single=None)
    envelope = Envelope(server, max_calls=100, max_bytes=100_000)
    server.answer("a", SERVER_REFUSES)

    with pytest.raises(TransportError) as raised:
        await envelope.send(call("a"))

    assert raised.value is SERVER_REFUSES


async def test_a_stream_that_ends_early_fails_the_calls_it_left_out(server: HeldServer, envelope: Envelope) -> None:
    left_out, answered = send(envelope, "left out", "answered")
    stranger = json.dumps({"callId": 99, "status": 200}).encode()
    server.answer("left out", Reply(200, stranger))
    server.answer("answered")

    assert (await answered).status == 200
    with pytest.raises(TransportError, match="ended before this call was answered"):
        await left_out


async def test_a_line_that_is_no_answer_fails_what_is_not_answered(server: HeldServer, envelope: Envelope) -> None:
    a, b = send(envelope, "a", "b")
    server.answer("a", Reply(200, b"<html>"))

    for task in (a, b):
        with pytest.raises(TransportError, match="a line that is no answer"):
            await task


async def test_a_cancelled_call_disturbs_no_other_of_its_request(server: HeldServer, envelope: Envelope) -> None:
    given_up, kept = send(envelope, "given up", "kept")
    await server.until_requests(1)

    given_up.cancel()
    server.answer("given up")
    server.answer("kept")

    assert (await kept).status == 200
    assert given_up.cancelled()


async def test_a_call_cancelled_before_it_departs_is_not_sent(server: HeldServer, envelope: Envelope) -> None:
    given_up, kept = send(envelope, "given up", "kept")
    await asyncio.sleep(0)
    given_up.cancel()
    server.answer("kept")

    await kept

    assert server.requests == [(START_PATH, ["kept"])]


async def test_a_request_whose_callers_all_gave_up_is_ended(server: HeldServer, envelope: Envelope) -> None:
    tasks = send(envelope, "a", "b", is_long_poll=True)
    await server.until_requests(1)

    for task in tasks:
        task.cancel()

    await server.until(lambda: sorted(server.ended) == ["a", "b"])
    assert all(task.cancelled() for task in tasks)


async def test_a_call_that_is_not_answered_in_time_fails_alone(server: HeldServer, envelope: Envelope) -> None:
    hasty = asyncio.create_task(envelope.send(call("hasty", timeout_s=0.01)))
    (patient,) = send(envelope, "patient")

    with pytest.raises(TransportError, match=r"no answer within 0.01 s") as raised:
        await hasty
    server.answer("patient")

    assert raised.value.was_sent
    assert (await patient).status == 200


async def test_closing_fails_open_and_waiting_calls(server: HeldServer, envelope: Envelope) -> None:
    sent = send(envelope, "a", "b", is_long_poll=True)
    await server.until_requests(1)
    waiting = send(envelope, "c")
    await asyncio.sleep(0)

    await envelope.close()

    for task in (*sent, *waiting):
        with pytest.raises(ClientClosedError):
            await task
    with pytest.raises(ClientClosedError):
        await envelope.send(call("d"))
    assert sorted(server.ended) == ["a", "b"]


async def test_an_error_of_a_transport_that_nobody_foresaw_reaches_the_callers() -> None:
    class Broken(HeldServer):
        async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
            raise ZeroDivisionError

    envelope = Envelope(Broken(), max_calls=100, max_bytes=100_000)

    with pytest.raises(ZeroDivisionError):
        await envelope.send(call("a"))


def test_an_event_loop_that_ends_leaves_no_call_hanging() -> None:
    server = HeldServer()
    tasks: list[asyncio.Task[Reply]] = []

    async def leave_calls_open() -> None:
        envelope = Envelope(server, max_calls=100, max_bytes=100_000)
        tasks.extend(send(envelope, "a", "b", is_long_poll=True))
        await server.until_requests(1)

    asyncio.run(leave_calls_open())

    assert all(task.done() for task in tasks)
    assert sorted(server.ended) == ["a", "b"]


def test_a_second_event_loop_is_refused_with_a_clear_error() -> None:
    server = HeldServer(single=Reply(200, b"{}"))
    envelope = Envelope(server, max_calls=100, max_bytes=100_000)
    asyncio.run(envelope.send(call("a")))

    with pytest.raises(InvalidArgumentError, match="another event loop"):
        asyncio.run(envelope.send(call("b")))
