"""What goes wrong with a call is named, ends at its deadline, and harms no other call."""

import asyncio
import json
import logging
from datetime import timedelta

import pytest
from starlette.types import Receive, Scope, Send

from server_stub.core.outcomes import CallFailure, FailureKind, StateAnswered, StateOutcome
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import (
    DONE,
    WORKER_URL,
    Answer,
    Handler,
    answer_done,
    answer_line,
    dispatching,
    make_call,
    respond,
    response_start,
)
from tests.support.virtual_time import EPOCH_MS
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, ExecuteAnswer, Json, RetryPolicyConfig, StateApi, StateOptionsConfig


def answering(answer: Json) -> Handler:
    async def handler(body: Json) -> Json:
        return answer

    return handler


async def outcome_of(handler: Handler, *, has_batch_endpoint: bool = True) -> StateOutcome:
    async with dispatching(handler, has_batch_endpoint=has_batch_endpoint) as world:
        world.dispatcher.dispatch([make_call(1)])
        [outcome] = await world.sink.wait_for(1)
        return outcome


@pytest.mark.parametrize("has_batch_endpoint", [True, False], ids=["batch", "single"])
async def test_worker_error_keeps_status_type_detail_and_whether_to_repeat(has_batch_endpoint: bool) -> None:
    answer = Answer(424, {"errorType": "ValueError", "detail": "no such user", "retryable": False})

    outcome = await outcome_of(answering(answer), has_batch_endpoint=has_batch_endpoint)

    assert outcome == CallFailure(FailureKind.WORKER_ERROR, "ValueError", "no such user", 424, retryable=False)


@pytest.mark.parametrize("has_batch_endpoint", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("status", [201, 400, 404, 429, 500, 502, 503])
async def test_any_other_status_is_a_failed_attempt(status: int, has_batch_endpoint: bool) -> None:
    answer = Answer(status, {"errorType": "Oops", "detail": "oh no"})

    outcome = await outcome_of(answering(answer), has_batch_endpoint=has_batch_endpoint)

    assert outcome == CallFailure(FailureKind.WORKER_ERROR, "Oops", "oh no", status)


@pytest.mark.parametrize("has_batch_endpoint", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [None, "moved", {"errorType": "Oops", "detail": "oh no"}], ids=["no", "text", "error"])
async def test_redirect_is_a_failed_attempt_that_says_that_it_is_not_followed(
    body: Json, status: int, has_batch_endpoint: bool
) -> None:
    outcome = await outcome_of(answering(Answer(status, body)), has_batch_endpoint=has_batch_endpoint)

    assert isinstance(outcome, CallFailure)
    assert (outcome.kind, outcome.http_status) == (FailureKind.INVALID_RESPONSE, status)
    assert outcome.details.startswith(f"POST {WORKER_URL}/api/v1/xdb/worker/")
    assert f"was answered {status}, a redirect; redirects are not followed" in outcome.details


@pytest.mark.parametrize("has_batch_endpoint", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("status", [404, 500, 502, 503])
@pytest.mark.parametrize(
    ("body", "excerpt"),
    [
        ("Not Found", "'Not Found'"),
        ({"errorSubType": "NOT_FOUND"}, '{"errorSubType":"NOT_FOUND"}'),
        (None, "no body"),
        ("<p>" * 100_000, "<p><p>"),
    ],
    ids=["text", "json", "nothing", "long"],
)
async def test_answer_of_something_else_than_a_worker_names_url_status_and_body(
    body: Json, excerpt: str, status: int, has_batch_endpoint: bool
) -> None:
    outcome = await outcome_of(answering(Answer(status, body)), has_batch_endpoint=has_batch_endpoint)

    assert isinstance(outcome, CallFailure)
    assert (outcome.kind, outcome.http_status) == (FailureKind.INVALID_RESPONSE, status)
    assert outcome.details.startswith(f"POST {WORKER_URL}/api/v1/xdb/worker/")
    assert f"was answered {status} with " in outcome.details
    assert excerpt in outcome.details
    assert outcome.details.endswith("this is no xdb worker; check the worker URL and its mount prefix")


@pytest.mark.parametrize("has_batch_endpoint", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (None, "Input should be"),
        ([], "Input should be"),
        ({}, "stateDecision: Field required"),
        (
            {"stateDecision": {"nextStates": [{"input": "secret"}]}},
            "stateDecision.nextStates.0.stateId: Field required",
        ),
        ({"stateDecision": {"threadCloseDecision": {"closeType": "secret"}}}, "closeType: Input should be"),
        ({**DONE, "publish": [{"queueName": "q", "payload": "secret\0"}]}, "NUL"),
        ({**DONE, "publish": [{"queueName": "q", "payload": float("nan")}]}, "NaN is not a JSON number"),
    ],
)
async def test_answer_that_is_none_is_named_without_its_values(
    body: Json, problem: str, has_batch_endpoint: bool
) -> None:
    outcome = await outcome_of(answering(body), has_batch_endpoint=has_batch_endpoint)

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.INVALID_RESPONSE
    assert problem in outcome.details
    assert "secret" not in outcome.details


@pytest.mark.parametrize("length", [4_095, 4_096, 5_000, 100_000])
async def test_details_are_cut_on_a_character_boundary(length: int) -> None:
    outcome = await outcome_of(answering(Answer(500, {"errorType": "E", "detail": "x" + "€" * length})))

    assert isinstance(outcome, CallFailure)
    size_bytes = len(outcome.details.encode())
    assert 4_094 <= size_bytes <= 4_096
    assert outcome.details == "x" + "€" * ((size_bytes - 1) // 3)


async def test_details_hold_nothing_that_a_database_refuses() -> None:
    outcome = await outcome_of(answering(Answer(500, {"errorType": "E\0", "detail": "a\0b"})))

    assert isinstance(outcome, CallFailure)
    assert (outcome.error_type, outcome.details) == ("E\ufffd", "a\ufffdb")


async def test_call_without_answer_ends_at_its_own_deadline() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(3_600)

    slow = StateOptionsConfig(execute_api_timeout_ms=20_000)
    quick = StateOptionsConfig(execute_api_timeout_ms=5_000)
    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(1, options=slow), make_call(2, options=quick)])
        outcomes = await world.sink.wait_for(2)

    assert world.sink.states_at() == {"e-2": 5, "e-1": 20}
    assert outcomes[0] == CallFailure(FailureKind.TIMEOUT, "WORKER_TIMEOUT", "no answer within the timeout of 5 s")


@pytest.mark.parametrize(
    ("options", "first_attempt_ago_ms", "expected_ms"),
    [
        (StateOptionsConfig(), 0, 30_000),
        (StateOptionsConfig(execute_api_timeout_ms=600_000), 0, 60_000),
        (
            StateOptionsConfig(execute_api_retry_policy=RetryPolicyConfig(maximum_attempts_duration_ms=9_000)),
            2_000,
            7_000,
        ),
        (
            StateOptionsConfig(execute_api_retry_policy=RetryPolicyConfig(maximum_attempts_duration_ms=9_000)),
            8_900,
            1_000,
        ),
    ],
    ids=["api", "cap", "time-left", "least"],
)
async def test_timeout_is_the_least_of_what_bounds_it(
    options: StateOptionsConfig, first_attempt_ago_ms: int, expected_ms: int
) -> None:
    call = make_call(1, options=options)
    first_attempt_at_ms = (call.first_attempt_at_ms or 0) - first_attempt_ago_ms
    async with dispatching() as world:
        world.dispatcher.dispatch([make_call(1, options=options, first_attempt_at_ms=first_attempt_at_ms)])
        await world.sink.wait_for(1)

    assert world.worker.calls[0]["context"]["timeoutMs"] == expected_ms


LIMITED = StateOptionsConfig(execute_api_retry_policy=RetryPolicyConfig(maximum_attempts_duration_ms=9_000))


async def test_time_of_the_policy_begins_when_a_worker_takes_the_first_attempt() -> None:
    async def handler(body: Json) -> Json:
        if asyncio.get_running_loop().time() < 20:
            return Answer(429, None, retry_after_s=1)
        return Answer(500)

    call = make_call(1, options=LIMITED, first_attempt_at_ms=None)
    async with dispatching(handler) as world:
        world.dispatcher.dispatch([call])
        [outcome] = await world.sink.wait_for(1)

    context = world.worker.calls[-1]["context"]
    assert isinstance(outcome, CallFailure)
    assert outcome.first_attempt_at_ms == context["firstAttemptAtMs"] >= EPOCH_MS + 20_000
    assert context["timeoutMs"] == 9_000


async def test_later_attempt_does_not_move_the_beginning_of_the_first() -> None:
    call = make_call(1, options=LIMITED, attempt=2, first_attempt_at_ms=EPOCH_MS - 2_000)

    async with dispatching(answering(Answer(500))) as world:
        world.dispatcher.dispatch([call])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, CallFailure)
    assert outcome.first_attempt_at_ms is None
    assert world.worker.calls[0]["context"]["firstAttemptAtMs"] == EPOCH_MS - 2_000


async def test_answer_after_the_deadline_is_ignored() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(7)
        return DONE

    quick, slow = (StateOptionsConfig(execute_api_timeout_ms=each) for each in (5_000, 10_000))
    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(1, options=quick), make_call(2, options=slow)])
        await asyncio.sleep(100)

    kinds = [type(outcome) for _, outcome in world.sink.outcomes]
    assert kinds == [CallFailure, StateAnswered]


async def start_batch(receive: Receive, send: Send) -> list[int]:
    lines = (await receive())["body"].splitlines()
    await send(response_start(200, {"content-type": BATCH_CONTENT_TYPE}))
    return [json.loads(line)["callId"] for line in lines]


async def test_broken_connection_fails_only_what_was_not_answered() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        first, *_ = await start_batch(receive, send)
        await send({"type": "http.response.body", "body": answer_line(first, Answer(200, DONE)), "more_body": True})
        raise ConnectionResetError

    async with dispatching(app=app, options=DispatchOptions(restart_patience=timedelta(0))) as world:
        world.dispatcher.dispatch([make_call(number) for number in (1, 2, 3)])
        outcomes = await world.sink.wait_for(3)

    kinds = [outcome.kind if isinstance(outcome, CallFailure) else None for outcome in outcomes]
    assert kinds == [None, FailureKind.UNREACHABLE, FailureKind.UNREACHABLE]


async def test_second_answer_and_answer_to_nothing_are_ignored() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        [call_id] = await start_batch(receive, send)
        for other_id in (call_id + 1, -1, call_id, call_id):
            line = answer_line(other_id, Answer(200, DONE) if other_id == call_id else Answer(400))
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body"})

    async with dispatching(app=app) as world:
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(100)

    [(_, outcome)] = world.sink.outcomes
    assert isinstance(outcome, StateAnswered)


async def test_response_that_ends_too_early_is_invalid() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start_batch(receive, send)
        await send({"type": "http.response.body"})

    async with dispatching(app=app) as world:
        world.dispatcher.dispatch([make_call(1)])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.INVALID_RESPONSE
    assert "without an answer to this call" in outcome.details


async def test_last_answer_needs_no_line_end() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        [call_id] = await start_batch(receive, send)
        await send({"type": "http.response.body", "body": answer_line(call_id, Answer(200, DONE)).strip()})

    async with dispatching(app=app) as world:
        world.dispatcher.dispatch([make_call(1)])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, StateAnswered)


@pytest.mark.parametrize(
    "spoiler", [b"<html>\n", b"x" * 3_000, b"x" * 3_000 + b"\n"], ids=["garbage", "huge", "huge-line"]
)
async def test_answer_that_cannot_be_read_fails_only_its_own_call(spoiler: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        calls = [json.loads(line) for line in (await receive())["body"].splitlines()]
        await send(response_start(200, {"content-type": BATCH_CONTENT_TYPE}))
        for call in calls:
            is_bad = call["body"]["context"]["processId"] == "p-2"
            line = spoiler if is_bad else answer_line(call["callId"], Answer(200, DONE))
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body"})

    async with dispatching(app=app, options=DispatchOptions(max_answer_bytes=2_000)) as world:
        world.dispatcher.dispatch([make_call(number) for number in (1, 2, 3, 4)])
        await world.sink.wait_for(4)

    failures = {key.state.number: outcome for key, outcome in world.sink.outcomes if isinstance(outcome, CallFailure)}
    assert list(failures) == [2]
    assert failures[2].kind is FailureKind.INVALID_RESPONSE
    assert "too large" in failures[2].details or "cannot be read" in failures[2].details


async def test_value_over_the_limit_is_named_and_harms_no_other_call() -> None:
    large = DONE | {"publish": [{"queueName": "q", "payload": "x" * 2_000}]}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        first, second = await start_batch(receive, send)
        body = answer_line(first, Answer(200, large)) + answer_line(second, Answer(200, DONE))
        await send({"type": "http.response.body", "body": body})

    async with dispatching(app=app, options=DispatchOptions(max_value_bytes=1_000)) as world:
        world.dispatcher.dispatch([make_call(1), make_call(2)])
        await world.sink.wait_for(2)

    failure, answered = (outcome for _, outcome in sorted(world.sink.outcomes, key=lambda entry: entry[0].state.number))
    assert isinstance(failure, CallFailure)
    assert failure.kind is FailureKind.INVALID_RESPONSE
    assert failure.details == "publish.0.payload is 2002 bytes of JSON; the limit is 1000 bytes a value"
    assert isinstance(answered, StateAnswered)


async def test_endless_answer_ends_at_the_size_limit() -> None:
    sent_bytes = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent_bytes
        await start_batch(receive, send)
        while True:
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
            sent_bytes += 10_000

    async with dispatching(app=app, options=DispatchOptions(max_answer_bytes=100_000)) as world:
        world.dispatcher.dispatch([make_call(1)])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, CallFailure)
    assert "response too large" in outcome.details
    assert sent_bytes < 200_000


async def test_response_that_never_ends_after_its_answers_is_cut_off() -> None:
    is_cut_off = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        [call_id] = await start_batch(receive, send)
        await send({"type": "http.response.body", "body": answer_line(call_id, Answer(200, DONE)), "more_body": True})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"\n", "more_body": True})
                await asyncio.sleep(0.1)
        except OSError:
            is_cut_off.set()

    async with dispatching(app=app) as world:
        world.dispatcher.dispatch([make_call(1)])
        await is_cut_off.wait()

    assert len(world.sink.outcomes) == 1


async def test_busy_worker_is_left_alone_for_a_while_and_no_attempt_is_used() -> None:
    tries: list[float] = []

    async def handler(body: Json) -> Json:
        tries.append(asyncio.get_running_loop().time())
        return DONE if len(tries) > 4 else Answer(429, {"detail": "full"}, retry_after_s=0.3)

    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(1)])
        outcomes = await world.sink.wait_for(1)

    assert isinstance(outcomes[0], StateAnswered)
    assert tries == pytest.approx([0, 0.3, 0.6, 1.0, 1.8])


async def test_worker_that_is_full_is_kept_full() -> None:
    running = 0

    async def handler(body: Json) -> Json:
        nonlocal running
        if running == 5:
            return Answer(429, {"detail": "full"}, retry_after_s=1)
        running += 1
        await asyncio.sleep(0.1)
        running -= 1
        return DONE

    async with dispatching(handler) as world:
        world.dispatcher.dispatch(make_call(number) for number in range(20))
        outcomes = await world.sink.wait_for(20)

    assert all(isinstance(outcome, StateAnswered) for outcome in outcomes)
    assert world.sink.at_s[-1] == pytest.approx(0.4)


async def test_slow_call_does_not_keep_a_worker_that_was_busy_from_others() -> None:
    async def handler(body: Json) -> Json:
        now_s = asyncio.get_running_loop().time()
        if body["context"]["processId"] == "p-0":
            await asyncio.sleep(25)
        elif now_s < 1:
            return Answer(503, None, retry_after_s=1)
        return DONE

    async with dispatching(handler) as world:
        world.dispatcher.dispatch(make_call(number) for number in range(10))
        await world.sink.wait_for(10)

    assert world.sink.at_s == [1] * 9 + [25]


@pytest.mark.parametrize("retry_after_s", [-5.0, 0.0, 1e9, float("inf"), float("nan")])
async def test_no_worker_can_ask_for_a_pause_beyond_the_limit(retry_after_s: float) -> None:
    async def handler(body: Json) -> Json:
        return DONE if len(world.worker.calls) > 1 else Answer(503, None, retry_after_s)

    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(1)])
        await world.sink.wait_for(1)

    assert 0.1 <= world.sink.at_s[0] <= 30


async def test_busy_worker_as_a_whole_is_left_alone_too() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if asyncio.get_running_loop().time() < 2:
            await respond(send, 503, b"deploying", {"retry-after": "2"})
        else:
            await world.worker(scope, receive, send)

    async with dispatching(answer_done, app=app) as world:
        world.dispatcher.dispatch([make_call(number) for number in range(10)])
        outcomes = await world.sink.wait_for(10)

    assert all(isinstance(outcome, StateAnswered) for outcome in outcomes)
    assert [body["context"]["processId"] for body in world.worker.calls] == [f"p-{number}" for number in range(10)]
    assert set(world.sink.at_s) == {2}


async def test_failed_request_fails_all_its_calls() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 502, b"<h1>Bad gateway</h1>")

    async with dispatching(app=app) as world:
        world.dispatcher.dispatch([make_call(1), make_call(2)])
        outcomes = await world.sink.wait_for(2)

    assert len(set(outcomes)) == 1
    assert isinstance(outcomes[0], CallFailure)
    assert (outcomes[0].kind, outcomes[0].http_status) == (FailureKind.INVALID_RESPONSE, 502)
    assert "<h1>Bad gateway</h1>" in outcomes[0].details


async def test_success_that_is_no_batch_means_that_there_is_no_batch_endpoint() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/batch"):
            await respond(send, 200, b"<h1>Welcome</h1>", {"content-type": "text/html"})
        else:
            await respond(send, 200, json.dumps(DONE).encode())

    async with dispatching(app=app) as world:
        world.dispatcher.dispatch([make_call(1), make_call(2)])
        outcomes = await world.sink.wait_for(2)

    assert outcomes == [StateAnswered(ExecuteAnswer.model_validate(DONE))] * 2


async def test_failed_attempt_is_logged_with_ids_and_without_payloads(caplog: pytest.LogCaptureFixture) -> None:
    answer = Answer(500, {"errorType": "Oops", "detail": "secret"})
    with caplog.at_level(logging.DEBUG, logger="server_stub"):
        async with dispatching(answering(answer)) as world:
            world.dispatcher.dispatch([make_call(1, attempt=3, input='"secret"')])
            await world.sink.wait_for(1)

    [record] = caplog.records
    facts = record.__dict__
    assert (facts["process_id"], facts["process_type"]) == ("p-1", "P")
    assert (facts["process_execution_id"], facts["state_execution_id"], facts["attempt"]) == ("e-1", "S-1", 3)
    assert (facts["api"], facts["error_type"], facts["http_status"]) == (StateApi.EXECUTE, "Oops", 500)
    assert "secret" not in str(facts)
    assert world.dispatcher.counters.failures == 1


async def test_failure_that_no_user_code_worded_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    await outcome_of(answering(Answer(404, "Not Found")))

    [record] = caplog.records
    assert "check the worker URL" in vars(record)["error_message"]


async def test_call_that_cannot_be_written_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with dispatching() as world:
        world.dispatcher.dispatch([make_call(1, input="{broken"), make_call(2)])
        await world.sink.wait_for(2)

    kinds = {
        key.state.number: outcome.kind if isinstance(outcome, CallFailure) else None
        for key, outcome in world.sink.outcomes
    }
    assert kinds == {1: FailureKind.INTERNAL, 2: None}
    assert [record.message for record in caplog.records] == ["call cannot be written", "call of worker failed"]
    assert world.dispatcher.counters.in_flight == 0
