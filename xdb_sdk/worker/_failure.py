"""What a worker answers when a call fails: a status, and a body that the server keeps with the attempt.

Source: semantics 8 (statuses), 2.5 (what is kept of a failure).
"""

import re
import traceback
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType

from pydantic import ValidationError

from xdb_sdk._errors import NonRetryableError, XdbError
from xdb_sdk.protocol import ReadRequest, ReviseAnswer, WorkerErrorBody

MAX_DETAIL_BYTES = 4096
_MAX_FRAMES = 30
"""More would not fit, and reading the source lines of an endless recursion holds up the event loop."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
_STOP_ITERATION_LEFT_COROUTINE = "coroutine raised StopIteration"
_OWN_MODULES = "xdb_sdk.worker."


class WorkerCallError(XdbError):
    """A call failed. An answer with this `status` and `body` tells the server so.

    Attributes:
        status: HTTP status of the answer.
        body: Its body.
        retry_after_s: When the server may try again, for 429 and 503.
    """

    code = "worker_call"

    def __init__(
        self,
        status: int,
        body: WorkerErrorBody | ReviseAnswer,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s
        super().__init__(f"{status} {self.error_type}")

    @property
    def error_type(self) -> str:
        """Class name of the exception behind it, or what the worker calls this failure."""
        return self.body.error_type if isinstance(self.body, WorkerErrorBody) else "Revise"

    @property
    def error_message(self) -> str:
        """First line of what went wrong."""
        return self.body.detail.partition("\n")[0] if isinstance(self.body, WorkerErrorBody) else ""

    @property
    def detail(self) -> str:
        """What went wrong, with the traceback if user code did; fit for a log and a database."""
        return self.body.detail if isinstance(self.body, WorkerErrorBody) else ""


@dataclass(frozen=True, slots=True)
class WorkerResponse:
    """An answer ready to be sent: `body` is the JSON of the answer's wire model."""

    status: int
    body: bytes
    retry_after_s: float | None = None


def response_of(error: WorkerCallError) -> WorkerResponse:
    """Encode a failure."""
    return WorkerResponse(error.status, error.body.to_json(), error.retry_after_s)


def refusal(status: HTTPStatus, error_type: str, detail: str, *, retry_after_s: float | None = None) -> WorkerCallError:
    """Refuse a call for a reason that is the worker's own, not an exception of user code."""
    body = WorkerErrorBody(error_type=error_type, detail=_cut_end(_storable(detail)))
    return WorkerCallError(status, body, retry_after_s=retry_after_s)


def user_failure(error: BaseException) -> WorkerCallError:
    """Describe what user code raised: 424, whatever class it is, `retryable` unless it is a `NonRetryableError`."""
    return _failure(HTTPStatus.FAILED_DEPENDENCY, _raised_by_user(error))


def request_failure(error: Exception) -> WorkerCallError:
    """Describe why a call cannot be decoded: 400. The way through the SDK to that point helps nobody."""
    return refusal(HTTPStatus.BAD_REQUEST, type(error).__name__, str(error))


def sdk_failure(error: BaseException) -> WorkerCallError:
    """Describe a fault of the SDK itself: 500."""
    return _failure(HTTPStatus.INTERNAL_SERVER_ERROR, error)


def invalid_request(error: ValidationError) -> WorkerCallError:
    """Describe a body that does not fit its wire model: 400, the wrong fields named, their values left out."""
    problems = "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    )
    return refusal(HTTPStatus.BAD_REQUEST, "InvalidRequest", problems)


def revision(read: ReadRequest) -> WorkerCallError:
    """Ask to be called again with more loaded: 406. This is no failed attempt (semantics 7.4)."""
    return WorkerCallError(HTTPStatus.NOT_ACCEPTABLE, ReviseAnswer(read_request=read))


def _failure(status: HTTPStatus, error: BaseException) -> WorkerCallError:
    body = WorkerErrorBody(
        error_type=_storable(type(error).__name__),
        detail=_detail(error),
        retryable=not isinstance(error, NonRetryableError),
    )
    return WorkerCallError(status, body)


def _raised_by_user(error: BaseException) -> BaseException:
    """Undo what Python does to a StopIteration that leaves a coroutine (PEP 479)."""
    cause = error.__cause__
    return cause if isinstance(cause, StopIteration) and str(error) == _STOP_ITERATION_LEFT_COROUTINE else error


def _detail(error: BaseException) -> str:
    """Give the message, then as much of the end of the traceback as fits into `MAX_DETAIL_BYTES`.

    The innermost frames stand at the end of a traceback; they are the ones to keep.
    """
    message = _cut_end(_storable(_message_of(error)))
    separator = "\n\n"
    room = MAX_DETAIL_BYTES - len(message.encode()) - len(separator)
    frames = traceback.format_exception(type(error), error, _user_frames(error.__traceback__), limit=-_MAX_FRAMES)
    tail = _cut_start(_storable("".join(frames).rstrip()), room)
    return f"{message}{separator}{tail}" if tail else message


def _message_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # a broken __str__ must not hide the failure itself
        return f"{type(error).__name__} (its __str__ raised)"


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the worker's own frames above the user's: they are the same in every failure."""
    user_trace = trace
    while user_trace and user_trace.tb_frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
        user_trace = user_trace.tb_next
    return user_trace or trace


def _storable(text: str) -> str:
    """Replace what some database refuses in text: NUL and lone surrogates."""
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def _cut_end(text: str) -> str:
    encoded = text.encode()
    return text if len(encoded) <= MAX_DETAIL_BYTES else encoded[:MAX_DETAIL_BYTES].decode(errors="ignore")


def _cut_start(text: str, room_bytes: int) -> str:
    if room_bytes <= 0:
        return ""
    return text.encode()[-room_bytes:].decode(errors="ignore")
