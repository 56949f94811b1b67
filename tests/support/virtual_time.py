"""An asyncio event loop on virtual time: nothing waits, everything happens in one order.

When nothing is ready to run, time jumps to the next scheduled callback, so that a day of sleeping takes microseconds
and a run is the same every time. Code under test must wait through asyncio only; `run_in_executor` runs its function at
once in the loop's thread. There is no real I/O: sockets, subprocesses and other threads are refused.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

EPOCH_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z, where a `VirtualClock` begins by default."""

_RESOLUTION_S = 1e-5
"""Callbacks closer than this run together. Wide enough that a float of seconds can tell apart a thousand years."""


_PATIENCE_S = 60


class Deadlock(RuntimeError):
    """Every task waits for something that can no longer happen."""

    def __init__(self, waiting: list[str]) -> None:
        self.waiting = waiting
        super().__init__(
            "nothing is ready or scheduled, and the main task is not done; these tasks wait for ever:\n"
            + "\n".join(f"  {task}" for task in waiting)
        )


class Endless(RuntimeError):
    """Something is repeated for ever: a state that always fails, say, whose process nobody ends."""

    def __init__(self, virtual_now_s: float) -> None:
        super().__init__(
            f"the loop has been busy for {_PATIENCE_S} s of real time and is at {virtual_now_s:.0f} s of its own; "
            "give waits a timeout, or processes and retry policies an end"
        )


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Event loop whose `time()` begins at 0.0 and jumps to the next callback whenever nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now_s = 0.0
        self._clock_resolution = _RESOLUTION_S
        self._turns = 0
        self._give_up_at_s = time.monotonic() + _PATIENCE_S
        self._selector = self  # what BaseEventLoop polls for I/O; here polling is what makes time pass

    def time(self) -> float:
        """Give the virtual time in seconds since the loop was made."""
        return self._virtual_now_s

    def block(self, duration_s: float) -> None:
        """Let time pass as blocking code does: nothing else runs meanwhile."""
        self._virtual_now_s += duration_s

    def select(self, timeout_s: float | None) -> list[Any]:
        """Let time pass until the next callback; called by the base class when it has looked for ready ones.

        Raises:
            Deadlock: Nothing is ready and nothing is scheduled.
            Endless: There is always something to do, and has been for a minute of real time.
        """
        self._turns += 1
        if self._turns % 1_000 == 0 and time.monotonic() > self._give_up_at_s:
            raise Endless(self._virtual_now_s)
        if timeout_s is None:
            raise Deadlock(sorted(repr(task) for task in asyncio.all_tasks(self)))
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]  # base class internals
        if timeout_s > 0:
            self._virtual_now_s = max(self._virtual_now_s, scheduled[0].when())
        return []

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run `func` at once, in this thread; the future that is returned is done."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no I/O, hence there are no events."""

    def _write_to_self(self) -> None:
        """Called by `call_soon_threadsafe`: the loop never blocks, so there is nothing to wake."""


class VirtualClock:
    """Wall clock, in whole milliseconds since the epoch, which `jump` sets anew.

    It goes by the time of the loop in which it is made, and may be read from any thread.
    """

    def __init__(self, epoch_ms: int = EPOCH_MS) -> None:
        self._epoch_ms = epoch_ms
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> int:
        return self._epoch_ms + int((self._loop.time() + _RESOLUTION_S) * 1_000)

    def jump(self, delta_ms: int) -> None:
        """Set the clock forwards, or backwards when negative, without any time passing on the loop."""
        self._epoch_ms += delta_ms


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new virtual-time loop.

    Raises:
        Deadlock: `main` waits for something that can no longer happen.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


VIRTUAL_TIME_BACKEND: Final = ("asyncio", {"loop_factory": VirtualTimeLoop})
"""For the `anyio_backend` fixture of a test package: `return VIRTUAL_TIME_BACKEND` puts its tests on virtual time."""
