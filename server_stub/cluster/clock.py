"""The time of the database, known without asking it."""

import logging
from collections.abc import Callable
from math import copysign

logger = logging.getLogger(__name__)

_LARGEST_SLEWED_MS = 1_000.0
"""A clock that is surely further behind is set forward at once: what has become due meanwhile is late enough."""
_LARGEST_LEAD_MS = 5_000.0
"""A clock that is surely further ahead is set back: going slower, it would hold up for long what other servers make."""
_SLEW = 0.1
"""By how much of the time that passes a clock is corrected."""


class SyncedClock:
    """A wall clock in milliseconds that agrees with the database's. It goes backwards only when that was set back.

    What several servers compare, such as due times, is so by one clock, however theirs are set (invariant I12).

    Args:
        time: The event loop's clock, in seconds; safe to call on any thread.
        initial_ms: What to go by until the first `learn`, in milliseconds since the epoch.

    Source: idempotency-and-shards D.1.
    """

    def __init__(self, time: Callable[[], float], initial_ms: int) -> None:
        self._time = time
        self._is_learnt = False
        # Where the clock was last set, and how wrong it was there: one object, since other threads read the clock too.
        self._line = (time(), float(initial_ms), 0.0)

    def __call__(self) -> int:
        """Give the time in milliseconds since the epoch."""
        return int(self._read(self._time()))

    def learn(self, database_ms: int, *, sent_s: float, received_s: float) -> None:
        """Take a reading of the database's clock into account.

        It was made at some time between request and answer, so the middle is wrong by half of that at most. Only what
        the clock is wrong by beyond that is corrected, so that no reading makes it worse, however late it was answered.
        Small corrections are made little by little: a clock that is up to 5 s ahead goes slower for a while. One that
        is further ahead is set back, since the database's was, perhaps by a failover to another host; what was planned
        before then waits until its time comes again. The first reading counts as made when it was answered: nothing
        becomes due too early.

        Args:
            database_ms: What the database said, in milliseconds since the epoch.
            sent_s: When it was asked, by the event loop's clock.
            received_s: When it had answered.
        """
        if not self._is_learnt:
            self._is_learnt = True
            self._line = (received_s, float(database_ms), 0.0)
            return
        uncertainty_ms = (received_s - sent_s) * 500
        shown_ms = self._read(received_s)
        error_ms = database_ms + uncertainty_ms - shown_ms
        sure_ms = copysign(max(abs(error_ms) - uncertainty_ms, 0.0), error_ms)
        if -_LARGEST_LEAD_MS <= sure_ms <= _LARGEST_SLEWED_MS:
            self._line = (received_s, shown_ms, sure_ms)
            return
        self._line = (received_s, shown_ms + sure_ms, 0.0)
        logger.warning(
            "the clock of the database has jumped; the server follows it", extra={"ahead_ms": round(sure_ms)}
        )

    def _read(self, at_s: float) -> float:
        set_at_s, set_to_ms, error_ms = self._line
        elapsed_ms = (at_s - set_at_s) * 1_000
        most_ms = elapsed_ms * _SLEW
        return set_to_ms + elapsed_ms + min(max(error_ms, -most_ms), most_ms)
