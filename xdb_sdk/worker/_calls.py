"""The calls that run now: how many there may be, whose they are, and how they end when the worker stops."""

import asyncio
import contextvars
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar, cast

from xdb_sdk.protocol import CallContext
from xdb_sdk.worker._failure import WorkerCallError, refusal
from xdb_sdk.worker._options import WorkerOptions

T = TypeVar("T")

_CANCELLATION_S = 1.0
"""How long a cancelled `async def` method may take to clean up before the worker stops without it."""


class RunningCall:
    """One admitted call.

    Args:
        process_execution_id: Whose call it is.
        needs_thread: Whether it runs a `def` method.
        deadline_s: When the server stops waiting for the answer, on the clock `now`.
        now: The clock of the event loop; any thread may read it.
    """

    __slots__ = ("_deadline_s", "_is_stopped", "_now", "needs_thread", "process_execution_id")

    def __init__(
        self, process_execution_id: str, *, needs_thread: bool, deadline_s: float, now: Callable[[], float]
    ) -> None:
        self.process_execution_id = process_execution_id
        self.needs_thread = needs_thread
        self._deadline_s = deadline_s
        self._now = now
        self._is_stopped = False

    def remaining(self) -> timedelta:
        """Time until the deadline; negative after it."""
        return timedelta(seconds=self._deadline_s - self._now())

    def is_stopped(self) -> bool:
        """Whether its process execution has closed, or the worker gives up on it."""
        return self._is_stopped

    def stop(self) -> None:
        """Tell the user's method, should it ask, that its result is not wanted any more."""
        self._is_stopped = True


class RunningCalls:
    """Admits calls up to the limits, lends them threads, and lets them finish on shutdown.

    Belongs to one event loop from the first call to the end of `stop`; afterwards it can be started again on another.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._by_execution: defaultdict[str, set[RunningCall]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._executor: ThreadPoolExecutor | None = None
        self._threaded_count = 0
        self.count = 0
        self.is_stopping = False

    @property
    def busy_threads(self) -> int:
        """How many threads run a method."""
        return min(self._threaded_count, self._options.max_threads)

    @property
    def waiting_for_thread(self) -> int:
        """How many calls wait for a thread."""
        return self._threaded_count - self.busy_threads

    def start(self) -> None:
        """Accept calls, again if `stop` was called before."""
        self.is_stopping = False

    def admit(self, context: CallContext, *, needs_thread: bool) -> RunningCall:
        """Count a call in, its deadline counted from now. Whoever is admitted must `leave`.

        Raises:
            WorkerCallError: 503 while the worker stops, 429 when it is full; the call has not begun.
        """
        options = self._options
        if self.is_stopping:
            raise self.stopping()
        if self.count >= options.max_concurrent_calls:
            detail = f"{self.count} calls are running; the limit is WorkerOptions.max_concurrent_calls"
            raise self._busy(HTTPStatus.TOO_MANY_REQUESTS, "WorkerFull", detail)
        if needs_thread and self._threaded_count >= options.max_threads + options.max_calls_waiting_for_thread:
            detail = (
                f"{self._threaded_count} calls of `def` methods have or await a thread; the limits are "
                "WorkerOptions.max_threads and max_calls_waiting_for_thread"
            )
            raise self._busy(HTTPStatus.TOO_MANY_REQUESTS, "WorkerFull", detail)
        now = asyncio.get_running_loop().time
        call = RunningCall(
            context.process_execution_id,
            needs_thread=needs_thread,
            deadline_s=now() + context.timeout_ms / 1000,
            now=now,
        )
        self.count += 1
        self._threaded_count += needs_thread
        self._by_execution[call.process_execution_id].add(call)
        return call

    def leave(self, call: RunningCall) -> None:
        """Count an admitted call out."""
        self.count -= 1
        self._threaded_count -= call.needs_thread
        siblings = self._by_execution[call.process_execution_id]
        siblings.discard(call)
        if not siblings:
            del self._by_execution[call.process_execution_id]

    def mark_stopped(self, process_execution_id: str) -> None:
        """Tell the running calls of an execution that it has closed."""
        for call in self._by_execution.get(process_execution_id, ()):
            call.stop()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a call in a task of its own, so that it outlives the request that brought it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run_in_thread(self, call: RunningCall, function: Callable[[], T]) -> T:
        """Run blocking code in the worker's own threads, with the caller's context variables.

        Whatever it raises is raised here. If the deadline passes before a thread is free, it is not run at all: the
        server has given this attempt up and may have begun the next.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._options.max_threads, thread_name_prefix="xdb-worker")
        outcome = partial(contextvars.copy_context().run, partial(self._outcome_of, call, function))
        result, error = await asyncio.get_running_loop().run_in_executor(self._executor, outcome)
        if error is not None:
            raise error
        return cast(T, result)

    def _outcome_of(self, call: RunningCall, function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        """Call a function and return what it raised: a future takes no StopIteration, a SystemExit ends the loop."""
        if call.remaining() <= timedelta(0):
            detail = "no thread was free before the deadline of the call; see WorkerOptions.max_threads"
            return None, self._busy(HTTPStatus.SERVICE_UNAVAILABLE, "CallExpired", detail)
        try:
            return function(), None
        except BaseException as error:
            return None, error

    async def stop(self) -> None:
        """Refuse new calls, let the running ones finish for `shutdown_grace`, then cancel what can be cancelled."""
        self.is_stopping = True
        await self._finish(self._options.shutdown_grace.total_seconds())
        is_thread_busy = self._threaded_count > 0
        for calls in self._by_execution.values():
            for call in calls:
                call.stop()
        for task in self._tasks:
            task.cancel()
        await self._finish(_CANCELLATION_S)
        if self._executor is not None:
            # A thread that is still busy cannot be stopped and must not hold up the shutdown.
            self._executor.shutdown(wait=not is_thread_busy, cancel_futures=True)
            self._executor = None

    async def _finish(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def stopping(self) -> WorkerCallError:
        """Say that the worker takes no calls any more."""
        return self._busy(HTTPStatus.SERVICE_UNAVAILABLE, "WorkerStopping", "the worker is shutting down")

    def _busy(self, status: HTTPStatus, error_type: str, detail: str) -> WorkerCallError:
        return refusal(status, error_type, detail, retry_after_s=self._options.retry_after.total_seconds())
