"""From a status and a body to what a worker meant (semantics 8)."""

from dataclasses import dataclass
from typing import TypeAlias

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from server_stub.core.outcomes import CallFailure, FailureKind
from xdb_sdk.protocol import ExecuteAnswer, Json, ReviseAnswer, RpcAnswer, WaitUntilAnswer, WorkerErrorBody

MAX_DETAILS_BYTES = 4096
MAX_ERROR_TYPE_BYTES = 255
_MAX_EXCERPT_BYTES = 200
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

Answer: TypeAlias = WaitUntilAnswer | ExecuteAnswer | RpcAnswer


@dataclass(frozen=True, slots=True)
class Busy:
    """The worker has no room at the moment, and has not begun with the call: not an attempt."""

    retry_after_s: float
    details: str


@dataclass(frozen=True, slots=True)
class Spoiled:
    """An answer of the batch could not be read, hence this one neither: to be called again by itself, not a failure."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """There was no connection to the worker, or it broke; `was_sent` says whether the call may have been made."""

    failure: CallFailure
    was_sent: bool


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The server is closing."""


Reply: TypeAlias = Answer | ReviseAnswer | Busy | Spoiled | Unreached | Abandoned | CallFailure


def reply_of(answer_type: type[Answer], url: str, status: int, body: Json, retry_after_s: float | None) -> Reply:
    """Read an answer.

    Args:
        answer_type: What status 200 means for the operation.
        url: What was called, for messages.
        status: The status of the call.
        body: The parsed body, or its text when it is no JSON.
        retry_after_s: What the worker asked for, None if it did not ask.
    """
    if status == 200:
        return _parsed(answer_type, status, body)
    if status == 406:
        return _parsed(ReviseAnswer, status, body)
    failure = _worker_failure(url, status, body)
    if status in (429, 503) and retry_after_s is not None:
        return Busy(retry_after_s, failure.details)
    return failure


def reply_of_response(answer_type: type[Answer], url: str, status: int, body: bytes, retry_after: str | None) -> Reply:
    """Read the whole response of a single call. `retry_after` is the header; a date in it counts as 0 s."""
    try:
        parsed = from_json(body)
    except ValueError as error:
        if status == 200:
            return invalid_response(f"the body is no JSON: {error}", status)
        parsed = body[: 2 * MAX_DETAILS_BYTES].decode(errors="replace")
    return reply_of(answer_type, url, status, parsed, parse_retry_after(retry_after))


def parse_retry_after(header: str | None) -> float | None:
    """Give the seconds of a Retry-After header; 0 for a date, which the server's own backoff replaces."""
    if header is None:
        return None
    try:
        return float(header)
    except ValueError:
        return 0.0


def invalid_response(details: str, status: int = 200) -> CallFailure:
    """Give the failure of a call whose answer cannot be understood."""
    kind = FailureKind.INVALID_RESPONSE
    return CallFailure(kind, kind.value, clip_text(details, MAX_DETAILS_BYTES), http_status=status)


def unreached(details: str, *, was_sent: bool) -> Unreached:
    """Give the reply to a call without connection."""
    kind = FailureKind.UNREACHABLE
    return Unreached(CallFailure(kind, kind.value, clip_text(details, MAX_DETAILS_BYTES)), was_sent)


def defective(what: str) -> CallFailure:
    """Give the failure of a call that a defect of the server has ended; `what` says how far it got."""
    kind = FailureKind.INTERNAL
    return CallFailure(kind, kind.value, f"{what}: the server has a defect; its log says which")


def timed_out(timeout_s: float) -> CallFailure:
    """Give the failure of a call that got no answer in time."""
    kind = FailureKind.TIMEOUT
    return CallFailure(kind, kind.value, f"no answer within the timeout of {timeout_s:g} s")


def clip_text(text: str, max_bytes: int) -> str:
    """Cut a text to `max_bytes` in UTF-8 on a character boundary, with what no database stores replaced."""
    data = text[:max_bytes].replace("\0", _REPLACEMENT).encode(errors="replace")
    return data[:max_bytes].decode(errors="ignore")


def _parsed(answer_type: type[Answer] | type[ReviseAnswer], status: int, body: Json) -> Reply:
    try:
        return answer_type.model_validate(body)
    except ValidationError as error:
        return invalid_response(f"invalid {answer_type.__name__}: {problem_of(error)}", status)


def problem_of(error: ValidationError) -> str:
    """Name the first wrong field and what is wrong with it, without its value."""
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    where = ".".join(str(step) for step in first["loc"]) or "the body"
    more = f" (and {len(others)} more)" if others else ""
    return f"{where}: {first['msg']}{more}"


def _worker_failure(url: str, status: int, body: Json) -> CallFailure:
    if 300 <= status < 400:
        return invalid_response(
            f"POST {url} was answered {status}, a redirect; redirects are not followed: "
            "make the worker URL one that answers by itself",
            status,
        )
    try:
        error = WorkerErrorBody.model_validate(body)
    except ValidationError:
        return _no_worker(url, status, body)
    return CallFailure(
        FailureKind.WORKER_ERROR,
        clip_text(error.error_type, MAX_ERROR_TYPE_BYTES),
        clip_text(error.detail, MAX_DETAILS_BYTES),
        http_status=status,
        retryable=error.retryable,
    )


def _no_worker(url: str, status: int, body: Json) -> CallFailure:
    text = body if isinstance(body, str) else to_json(body).decode()
    excerpt = repr(clip_text(text, _MAX_EXCERPT_BYTES)) if body else "no body"
    return invalid_response(
        f"POST {url} was answered {status} with {excerpt}: this is no xdb worker; "
        "check the worker URL and its mount prefix",
        status,
    )
