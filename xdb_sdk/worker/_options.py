"""Limits of a worker."""

from dataclasses import dataclass
from datetime import timedelta

from xdb_sdk._duration import check_duration, is_number
from xdb_sdk._errors import InvalidArgumentError

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How much a worker takes on at once, how large things may be, and how patiently it stops.

    Args:
        max_concurrent_calls: Calls running at once, of both kinds. One more is answered 429.
        max_threads: Threads for `def` methods. `async def` methods run on the event loop and need none.
        max_calls_waiting_for_thread: Calls of `def` methods that may wait for a thread. One more is answered 429.
        retry_after: What an answer 429 or 503 asks the server to wait before it tries again.
        max_value_bytes: The largest encoded value in an answer: an input, payload, attribute or output.
        max_answer_bytes: The largest encoded answer. A larger one is a failed attempt, never cut.
        max_call_bytes: The largest call: the body of a request, or a line of a batch.
        max_batch_bytes: The largest body of a batch request.
        shutdown_grace: How long running calls may go on once the worker stops. Afterwards `async def` methods are
            cancelled; a thread cannot be, so a `def` method that outlives this holds up the end of the process. It
            can look at `ctx.is_stopped()`.
        blocked_loop_warning: An `async def` method that holds the event loop longer than this between two awaits is
            named in a warning, once.

    Raises:
        InvalidArgumentError: A limit or a time is out of its range.
    """

    max_concurrent_calls: int = 1_000
    max_threads: int = 40
    max_calls_waiting_for_thread: int = 200
    retry_after: timedelta = timedelta(seconds=1)
    max_value_bytes: int = 1 * _MIB
    max_answer_bytes: int = 4 * _MIB
    max_call_bytes: int = 8 * _MIB
    max_batch_bytes: int = 64 * _MIB
    shutdown_grace: timedelta = timedelta(seconds=30)
    blocked_loop_warning: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        sizes = ("max_value_bytes", "max_answer_bytes", "max_call_bytes", "max_batch_bytes")
        for name in ("max_concurrent_calls", "max_threads", *sizes):
            self._require(name, 1)
        self._require("max_calls_waiting_for_thread", 0)
        for name in ("retry_after", "shutdown_grace", "blocked_loop_warning"):
            duration = check_duration(getattr(self, name), f"WorkerOptions: {name}")
            if duration < timedelta(0):
                raise InvalidArgumentError(f"WorkerOptions({name}={duration}): give at least {timedelta(0)}")

    def _require(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not is_number(value) or value < least:
            raise InvalidArgumentError(f"WorkerOptions({name}={value!r}): give a number, at least {least}")


DEFAULT_WORKER_OPTIONS = WorkerOptions()
