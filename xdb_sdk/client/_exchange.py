"""One call to the server without doing it: what to send, what the answer means, when to send it again.

Nothing here does I/O. A *plan* is a generator: it yields a `Call` to be sent or a `Pause` to be kept, is sent the
outcome, and returns the result or raises the caller's error. `Client` and `AsyncClient` differ only in how they carry
out what a plan yields.
"""

import logging
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from pydantic import ValidationError

from xdb_sdk._errors import (
    ClientSideError,
    HttpError,
    ProcessAlreadyStartedError,
    ProcessNotFoundError,
    ProcessNotRunningError,
    RpcExecutionError,
    RpcLockNotAcquiredError,
    ServerSideError,
    UnavailableError,
    XdbError,
)
from xdb_sdk.client._options import ClientRetryPolicy
from xdb_sdk.client._transport import Reply, TransportError
from xdb_sdk.protocol import SERVICE_PREFIX, ErrorBody, ErrorSubType, WireModel

Answer = TypeVar("Answer", bound=WireModel)
Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_STRANGER = "the answer is not one of an xdb server of this version; check server_url and proxies"
_EXCERPT_LENGTH = 200
_BUSY = (429, 503)
_FROM_A_PROXY = (502, 504)
_BAD_WORKER = 424
_RPCS = ("rpc", "rpc-or-start")
_CONFLICT = 409


class ClientClosedError(XdbError, RuntimeError):
    """The client was closed before or during the call. A call that was under way may have taken effect."""

    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("this client is closed; make a new one, or keep the `with` block open around its calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Answer]):
    """One request of an operation. Doing it twice is the same as doing it once.

    Attributes:
        operation: Name of the operation, the last part of its path.
        subject: What the call does to which process, for messages.
        body: What is sent, as JSON.
        answer: The model of a good answer.
        timeout_s: How long to wait for the whole answer.
        request_id: By which the server knows a repetition, if the call changes something.
        is_long_poll: Whether the server holds the answer back until something happens.
    """

    operation: str
    subject: str
    body: bytes
    answer: type[Answer]
    timeout_s: float
    request_id: str | None = None
    is_long_poll: bool = False

    @property
    def path(self) -> str:
        """The path of the operation on its own."""
        return SERVICE_PREFIX + self.operation


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    delay_s: float


Outcome: TypeAlias = Reply | TransportError | None
"""Of a call: its reply, or why there is none. Of a pause: None."""

Plan: TypeAlias = Generator[Call[Any] | Pause, Outcome, Result]


class Exchange:
    """Makes calls that are repeated as the policy says.

    Args:
        policy: When to repeat.
        now_s: Monotonic seconds.
    """

    def __init__(self, policy: ClientRetryPolicy, now_s: Callable[[], float]) -> None:
        self._policy = policy
        self._now_s = now_s

    def call(
        self, call: Call[Answer], until_s: float = math.inf, *, make_again: Callable[[], Call[Answer]] | None = None
    ) -> Plan[Answer]:
        """Send one call until it is answered or may not be repeated, and not again after `until_s` of the clock.

        A long poll outlives the limits of the policy while the server is away: its caller waits anyway.

        Args:
            call: The first attempt.
            until_s: When the caller's time is over.
            make_again: Makes each further attempt, for the time that is left then; by default it is the same again.

        Raises:
            HttpError: The server refused the call or failed; the child says how.
            UnavailableError: No answer came, or the server is too busy, also after the last attempt.
        """
        gives_up_at_s = self._now_s() + self._policy.max_total_time.total_seconds()
        attempt = 0
        while True:
            attempt += 1
            outcome = yield call
            if isinstance(outcome, Reply) and 200 <= outcome.status < 300:
                return _read_answer(call, outcome)
            if not _is_passing(outcome):
                raise_error(call, outcome, attempt)
            pause_s = max(self.backoff_s(attempt), _retry_after_s(outcome) or 0.0)
            resumes_at_s = self._now_s() + pause_s
            is_exhausted = attempt >= self._policy.max_attempts or resumes_at_s > gives_up_at_s
            if resumes_at_s > until_s:
                raise_error(call, outcome, attempt)
            if is_exhausted and not self._outlasts(call, outcome):
                raise_error(call, outcome, attempt)
            if attempt % self._policy.max_attempts == 0:
                _log.warning("still waiting for the server", extra={"call": call.subject, "attempts": attempt})
            yield Pause(pause_s)
            call = make_again() if make_again else call

    def backoff_s(self, attempt: int) -> float:
        """How long to wait after the given attempt, from 1: exponential, and jittered so that callers part."""
        policy = self._policy
        # The exponent is bounded so that no number of attempts overflows.
        longest_s = policy.initial_backoff.total_seconds() * policy.backoff_coefficient ** min(attempt - 1, 64)
        return min(longest_s, policy.max_backoff.total_seconds()) * (0.5 + policy.random() / 2)

    def _outlasts(self, call: Call[Any], outcome: Outcome) -> bool:
        """Whether the call goes on after what the policy allows, because the server is only away or busy."""
        if not call.is_long_poll or self._policy.max_attempts == 1:
            return False
        return not isinstance(outcome, Reply) or outcome.status in (*_BUSY, *_FROM_A_PROXY)


def _is_passing(outcome: Outcome) -> bool:
    """Whether the same call may be answered otherwise later."""
    if isinstance(outcome, TransportError):
        return True
    assert outcome is not None, "a call was answered with the outcome of a pause"
    return outcome.status in _BUSY or outcome.status >= 500 or _is_being_carried_out(outcome)


def _is_being_carried_out(reply: Reply) -> bool:
    """Whether another request with this id has come first and is not done."""
    if reply.status != _CONFLICT:
        return False
    body = _error_body(reply)
    return body is not None and body.error_sub_type is ErrorSubType.RETRY_LATER


def _retry_after_s(outcome: Outcome) -> float | None:
    if not isinstance(outcome, Reply):
        return None
    if outcome.retry_after_s is not None:
        return outcome.retry_after_s
    body = _error_body(outcome)
    return None if body is None else body.retry_after_s


def _read_answer(call: Call[Answer], reply: Reply) -> Answer:
    try:
        return reply.parse(call.answer)
    except ValidationError as error:
        body = ErrorBody(
            error_sub_type=ErrorSubType.INTERNAL,
            details=f"{_STRANGER} ({_excerpt(reply)})",
        )
        raise ServerSideError(reply.status, body, call.subject) from error


def raise_error(call: Call[Any], outcome: Outcome, attempts: int = 1) -> NoReturn:
    """Raise what a call that failed for good means to its caller (semantics 1.7, 5.5, 11)."""
    if isinstance(outcome, TransportError):
        effect = "whether it took effect is unknown" if outcome.was_sent else "nothing was sent"
        message = f"{call.subject}: {outcome} ({_times(attempts)}); {effect}{_advice(call)}"
        raise UnavailableError(message, request_id=call.request_id) from outcome
    assert outcome is not None, "a call was answered with the outcome of a pause"
    body = _error_body(outcome)
    is_proxy = body is None and outcome.status in _FROM_A_PROXY
    if outcome.status in _BUSY or is_proxy or _is_being_carried_out(outcome):
        reason = body.details if body else _excerpt(outcome)
        message = f"{call.subject} was answered {outcome.status} ({_times(attempts)}): {reason}{_advice(call)}"
        raise UnavailableError(message, request_id=call.request_id)
    if body is None:
        body = _body_of_stranger(outcome)
    raise _error_type(call, outcome.status, body.error_sub_type)(outcome.status, body, call.subject)


def _advice(call: Call[Any]) -> str:
    """How to make sure of a change that has no answer."""
    return f". Repeated with request_id={call.request_id!r} it is carried out once" if call.request_id else ""


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _error_type(call: Call[Any], status: int, sub_type: ErrorSubType) -> type[HttpError]:
    match sub_type:
        case ErrorSubType.PROCESS_NOT_FOUND:
            return ProcessNotFoundError
        case ErrorSubType.PROCESS_ALREADY_STARTED:
            return ProcessAlreadyStartedError
        case ErrorSubType.PROCESS_NOT_RUNNING:
            return ProcessNotRunningError
        case ErrorSubType.LOCK_NOT_ACQUIRED:
            return RpcLockNotAcquiredError
    if status == _BAD_WORKER and call.operation in _RPCS:
        return RpcExecutionError
    return ServerSideError if status >= 500 else ClientSideError


def _error_body(reply: Reply) -> ErrorBody | None:
    """The body, if it is an error of an xdb server of this version."""
    try:
        return reply.parse(ErrorBody)
    except ValidationError:
        return None


def _body_of_stranger(reply: Reply) -> ErrorBody:
    if 300 <= reply.status < 400:
        advice = "redirects are not followed; give server_url as it is after the redirect"
    else:
        advice = _STRANGER
    sub_type = ErrorSubType.INTERNAL if reply.status >= 500 else ErrorSubType.INVALID_REQUEST
    if reply.status == 404:
        sub_type = ErrorSubType.NOT_FOUND
    return ErrorBody(error_sub_type=sub_type, details=f"{advice} ({_excerpt(reply)})")


def _excerpt(reply: Reply) -> str:
    """The begin of an answer that is not understood, on one line; it comes from a stranger, not from user data."""
    if isinstance(reply.body, bytes):
        text = " ".join(reply.body[: 4 * _EXCERPT_LENGTH].decode(errors="replace").split())
    else:
        text = str(reply.body)
    if len(text) > _EXCERPT_LENGTH:
        text = text[:_EXCERPT_LENGTH] + "..."
    kind = reply.content_type or "no content type"
    return f"{kind}: {text!r}" if text else f"{kind}, empty"
