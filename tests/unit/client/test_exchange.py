"""What answers mean and when calls are repeated, without any I/O."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.client.doubles import SERVER_LOST, SERVER_REFUSES, HandClock, Outcome, error, good
from xdb_sdk import _errors as errors
from xdb_sdk.client import ClientRetryPolicy, Reply
from xdb_sdk.client._exchange import Call, Exchange, Pause
from xdb_sdk.protocol import StartAnswer

STARTED = StartAnswer(process_execution_id="e-1")
START = Call(
    operation="start",
    subject="start of process 'p'",
    body=b"{}",
    answer=StartAnswer,
    timeout_s=60,
    request_id="r-1",
)
READ = replace(START, operation="describe", subject="describe of process 'p'", request_id=None)
RPC = replace(START, operation="rpc", subject="RPC 'r' of process 'p'")
WAIT = replace(READ, operation="wait-for-completion", subject="wait for process 'p'", is_long_poll=True)
NO_JITTER = ClientRetryPolicy(random=lambda: 1.0)
ONCE = ClientRetryPolicy.none()


def drive(
    call: Call[StartAnswer],
    *outcomes: Outcome,
    policy: ClientRetryPolicy = NO_JITTER,
    clock: HandClock | None = None,
    until_s: float = float("inf"),
) -> tuple[StartAnswer, list[float]]:
    """Give each attempt the next outcome; return the answer and the pauses between."""
    clock = clock or HandClock()
    plan = Exchange(policy, clock.now_s).call(call, until_s)
    remaining = list(outcomes)
    outcome: Any = None
    while True:
        try:
            step = plan.send(outcome)
        except StopIteration as end:
            assert not remaining, "not every outcome was asked for"
            return end.value, clock.sleeps
        if isinstance(step, Pause):
            clock.sleep(step.delay_s)
            outcome = None
        else:
            outcome = remaining.pop(0)


@pytest.mark.parametrize(
    ("call", "status", "sub_type", "expected"),
    [
        (READ, 404, "PROCESS_NOT_FOUND", errors.ProcessNotFoundError),
        (START, 409, "PROCESS_ALREADY_STARTED", errors.ProcessAlreadyStartedError),
        (RPC, 409, "PROCESS_NOT_RUNNING", errors.ProcessNotRunningError),
        (RPC, 423, "LOCK_NOT_ACQUIRED", errors.RpcLockNotAcquiredError),
        (RPC, 424, "WORKER_EXECUTION_ERROR", errors.RpcExecutionError),
        (RPC, 424, "WORKER_TIMEOUT", errors.RpcExecutionError),
        (RPC, 424, "WORKER_UNREACHABLE", errors.RpcExecutionError),
        (RPC, 424, "INVALID_WORKER_RESPONSE", errors.RpcExecutionError),
        (RPC, 424, "APP_DATABASE_WRITE_ERROR", errors.RpcExecutionError),
        (replace(RPC, operation="rpc-or-start"), 424, "WORKER_EXECUTION_ERROR", errors.RpcExecutionError),
        (START, 409, "REQUEST_ID_REUSED", errors.ClientSideError),
        (START, 424, "APP_DATABASE_WRITE_ERROR", errors.ClientSideError),
        (START, 400, "INVALID_REQUEST", errors.ClientSideError),
        (START, 413, "PAYLOAD_TOO_LARGE", errors.ClientSideError),
        (START, 404, "TIMER_NOT_FOUND", errors.ClientSideError),
        (START, 404, "NOT_FOUND", errors.ClientSideError),
        (START, 405, "METHOD_NOT_ALLOWED", errors.ClientSideError),
        (START, 500, "INTERNAL", errors.ServerSideError),
    ],
)
def test_each_error_of_the_server_has_its_exception(
    call: Call[StartAnswer], status: int, sub_type: str, expected: type[errors.HttpError]
) -> None:
    with pytest.raises(errors.HttpError) as raised:
        drive(call, error(status, sub_type, details="what happened"), policy=ONCE)

    assert type(raised.value) is expected
    assert (raised.value.status, raised.value.error_sub_type) == (status, sub_type)
    assert call.subject in str(raised.value)
    assert "what happened" in str(raised.value)


def test_the_error_of_a_worker_reaches_the_caller_of_the_rpc() -> None:
    answer = error(424, "WORKER_EXECUTION_ERROR", appErrorType="CardDeclined", workerErrorStatus=500)

    with pytest.raises(errors.RpcExecutionError) as raised:
        drive(RPC, answer)

    assert (raised.value.worker_error_type, raised.value.worker_error_status) == ("CardDeclined", 500)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_unavailable_once_attempts_are_used_up(status: int) -> None:
    with pytest.raises(errors.UnavailableError, match=f"{status}.*1 attempt.*come back later"):
        drive(START, error(status, "UNAVAILABLE", details="come back later"), policy=ONCE)


@pytest.mark.parametrize("status", [502, 504])
def test_a_proxy_that_does_not_reach_the_server_makes_it_unavailable(status: int) -> None:
    page = Reply(status, b"<html><h1>Bad Gateway</h1></html>", "text/html")

    with pytest.raises(errors.UnavailableError, match=r"text/html.*Bad Gateway"):
        drive(START, page, policy=ONCE)


@pytest.mark.parametrize(
    ("reply", "expected", "hint"),
    [
        (Reply(404, b"<html>nginx</html>", "text/html"), errors.ClientSideError, "check server_url"),
        (Reply(403, b"", ""), errors.ClientSideError, "empty"),
        (Reply(500, b"\xff\xfe", "text/plain"), errors.ServerSideError, "check server_url"),
        (Reply(302, b"", "text/html"), errors.ClientSideError, "redirects are not followed"),
        (Reply(200, b"<html>login</html>", "text/html"), errors.ServerSideError, "text/html.*login"),
        (Reply(200, b'{"processExecutionId": 7}', "application/json"), errors.ServerSideError, "check server_url"),
        (Reply(200, b'{"processExecutionId": "e', "application/json"), errors.ServerSideError, "not one of an xdb"),
        (Reply(200, b"", "application/json"), errors.ServerSideError, "empty"),
        (Reply(200, None), errors.ServerSideError, "not one of an xdb server"),
    ],
    ids=["404 page", "403 empty", "500 bytes", "redirect", "200 page", "wrong type", "cut", "empty", "null line"],
)
def test_an_answer_that_is_not_one_of_an_xdb_server_says_what_came_instead(
    reply: Reply, expected: type[errors.HttpError], hint: str
) -> None:
    with pytest.raises(expected, match=hint):
        drive(START, reply, policy=ONCE)


def test_a_long_page_is_cut_in_the_message() -> None:
    with pytest.raises(errors.ClientSideError) as raised:
        drive(START, Reply(404, b"x" * 1_000_000, "text/html"))

    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("call", [START, READ], ids=["start", "read"])
@pytest.mark.parametrize("outcome", [SERVER_REFUSES, SERVER_LOST], ids=["refused", "lost"])
def test_a_call_that_is_not_answered_is_repeated(call: Call[StartAnswer], outcome: Outcome) -> None:
    answer, pauses = drive(call, outcome, outcome, good(STARTED))

    assert answer == STARTED
    assert pauses == [0.1, 0.2]


@pytest.mark.parametrize("call", [START, READ], ids=["start", "read"])
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_call_is_repeated_when_the_server_is_busy_or_broken(call: Call[StartAnswer], status: int) -> None:
    answer, _ = drive(call, Reply(status, b""), good(STARTED))

    assert answer == STARTED


def test_a_call_whose_outcome_the_server_does_not_know_is_repeated() -> None:
    answer, _ = drive(START, error(503, "UNKNOWN_OUTCOME"), good(STARTED))

    assert answer == STARTED


@pytest.mark.parametrize(
    "later",
    [
        Reply(409, b'{"errorSubType": "RETRY_LATER"}', retry_after_s=3.0),
        Reply(409, b'{"errorSubType": "RETRY_LATER", "retryAfterS": 3.0}'),
        Reply(409, {"errorSubType": "RETRY_LATER", "retryAfterS": 3.0}),
    ],
    ids=["header", "body", "line of a batch"],
)
def test_a_request_that_is_being_carried_out_is_repeated_when_the_server_says(later: Reply) -> None:
    answer, pauses = drive(RPC, later, good(STARTED))

    assert answer == STARTED
    assert pauses == [3.0]


def test_a_request_that_is_carried_out_for_too_long_is_unavailable() -> None:
    later = error(409, "RETRY_LATER", details="request 'r-1' is being carried out")

    with pytest.raises(errors.UnavailableError, match=r"10 attempts.*is being carried out.*request_id='r-1'"):
        drive(RPC, *[later] * 10)


@pytest.mark.parametrize("outcome", [SERVER_LOST, error(503, "UNKNOWN_OUTCOME")], ids=["lost", "unknown"])
def test_a_change_without_an_answer_tells_the_id_to_repeat_it_with(outcome: Outcome) -> None:
    with pytest.raises(
        errors.UnavailableError, match="Repeated with request_id='r-1' it is carried out once"
    ) as raised:
        drive(START, outcome, policy=ONCE)

    assert raised.value.request_id == "r-1"


def test_a_read_without_an_answer_has_no_request_id() -> None:
    with pytest.raises(errors.UnavailableError, match=r"whether it took effect is unknown$") as raised:
        drive(READ, SERVER_LOST, policy=ONCE)

    assert raised.value.request_id is None


@pytest.mark.parametrize("call", [START, READ], ids=["start", "read"])
@pytest.mark.parametrize("status", [400, 404, 409, 413, 424])
def test_a_refused_call_is_not_repeated(call: Call[StartAnswer], status: int) -> None:
    with pytest.raises(errors.ClientSideError):
        drive(call, Reply(status, b""))


@pytest.mark.parametrize("status", [429, 503])
def test_a_start_is_repeated_when_the_server_says_when_to_come_back(status: int) -> None:
    answer, pauses = drive(START, Reply(status, b"", retry_after_s=3.0), good(STARTED))

    assert answer == STARTED
    assert pauses == [3.0]


def test_the_time_to_come_back_may_stand_in_the_body() -> None:
    _, pauses = drive(START, error(429, "TOO_MANY_REQUESTS", retryAfterS=2.5), good(STARTED))

    assert pauses == [2.5]


def test_a_short_time_to_come_back_does_not_shorten_the_pause() -> None:
    _, pauses = drive(READ, Reply(503, b"", retry_after_s=0.0), good(STARTED))

    assert pauses == [0.1]


def test_pauses_grow_up_to_their_limit() -> None:
    outcomes = [SERVER_REFUSES] * 7

    _, pauses = drive(READ, *outcomes, good(STARTED))

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_pauses_are_drawn_between_half_their_length_and_all_of_it() -> None:
    _, shortest = drive(READ, SERVER_REFUSES, good(STARTED), policy=ClientRetryPolicy(random=lambda: 0.0))

    assert shortest == [0.05]


def test_no_number_of_attempts_overflows_the_pause() -> None:
    exchange = Exchange(NO_JITTER, HandClock().now_s)

    assert exchange.backoff_s(100_000) == 2.0


def test_attempts_are_bounded_and_the_last_error_says_how_many_there_were() -> None:
    policy = replace(NO_JITTER, max_attempts=3)

    with pytest.raises(errors.UnavailableError, match=r"connection refused.*3 attempts.*nothing was sent") as raised:
        drive(READ, *[SERVER_REFUSES] * 3, policy=policy)

    assert raised.value.__cause__ is SERVER_REFUSES


def test_no_attempt_begins_after_the_total_time() -> None:
    policy = replace(NO_JITTER, max_total_time=timedelta(seconds=1))

    with pytest.raises(errors.UnavailableError, match="4 attempts"):
        drive(READ, *[SERVER_REFUSES] * 4, policy=policy)


def test_no_attempt_begins_after_the_callers_deadline() -> None:
    clock = HandClock()

    with pytest.raises(errors.UnavailableError, match="2 attempts"):
        drive(READ, *[SERVER_REFUSES] * 2, clock=clock, until_s=clock.now_s() + 0.2)


def test_a_server_that_asks_to_come_back_too_late_is_given_up_at_once() -> None:
    with pytest.raises(errors.UnavailableError, match="1 attempt"):
        drive(READ, Reply(503, b"", retry_after_s=3600))


def test_the_policy_none_repeats_nothing() -> None:
    with pytest.raises(errors.UnavailableError, match="1 attempt"):
        drive(READ, SERVER_REFUSES, policy=ONCE)


@pytest.mark.parametrize(
    "outage",
    [SERVER_LOST, SERVER_REFUSES, error(503, "UNAVAILABLE"), error(429, "UNAVAILABLE"), Reply(502, b"bad gateway")],
    ids=["lost", "refused", "503", "429", "proxy"],
)
def test_a_wait_outlasts_an_outage_of_any_length(outage: Outcome, caplog: pytest.LogCaptureFixture) -> None:
    _, pauses = drive(WAIT, *[outage] * 1000, good(STARTED))

    assert (len(pauses), max(pauses)) == (1000, 2.0)
    assert "still waiting for the server" in caplog.messages


def test_a_wait_gives_up_at_its_own_deadline() -> None:
    clock = HandClock()

    with pytest.raises(errors.UnavailableError):
        drive(WAIT, *[SERVER_REFUSES] * 1000, clock=clock, until_s=clock.now_s() + 60)

    assert sum(clock.sleeps) == pytest.approx(60, abs=2)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(error(404, "PROCESS_NOT_FOUND"), errors.ProcessNotFoundError), (error(500, "INTERNAL"), errors.ServerSideError)],
    ids=["refused", "defect"],
)
def test_a_wait_does_not_outlast_what_is_no_outage(outcome: Outcome, expected: type[errors.HttpError]) -> None:
    with pytest.raises(expected):
        drive(WAIT, *[outcome] * 10)


def test_a_wait_is_not_repeated_when_nothing_is() -> None:
    with pytest.raises(errors.UnavailableError, match="1 attempt"):
        drive(WAIT, SERVER_REFUSES, policy=ONCE)
