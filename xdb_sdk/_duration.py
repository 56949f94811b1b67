"""Durations and instants of the public API as the integer milliseconds of the wire."""

import math
from datetime import UTC, datetime, timedelta

from xdb_sdk._errors import InvalidArgumentError

LONGEST_DURATION = timedelta(days=1_000_000)
"""About 2700 years: anything longer has no instant on the calendar to end at."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_milliseconds(duration: timedelta, what: str) -> int:
    """Convert to whole milliseconds, rounding up so that nothing ends early.

    Args:
        duration: Not negative.
        what: What the duration is for; the error message begins with it.

    Raises:
        InvalidArgumentError: It is negative or longer than LONGEST_DURATION.
    """
    if duration < timedelta(0):
        raise InvalidArgumentError(f"{what} is {duration}: a duration cannot be negative")
    if duration > LONGEST_DURATION:
        raise InvalidArgumentError(f"{what} is {duration}: the longest duration is {LONGEST_DURATION}")
    return -(-duration // timedelta(milliseconds=1))


def seconds_to_milliseconds(seconds: float, what: str) -> int:
    """Convert seconds to whole milliseconds, rounding up.

    Raises:
        InvalidArgumentError: It is negative, not a finite number, or longer than LONGEST_DURATION.
    """
    if not math.isfinite(seconds) or seconds > LONGEST_DURATION.total_seconds():
        raise InvalidArgumentError(f"{what} is {seconds} s: give at most {LONGEST_DURATION.total_seconds():.0f} s")
    return to_milliseconds(timedelta(seconds=seconds), what)


def since_epoch_ms(instant: datetime) -> int:
    """Convert an aware datetime to whole milliseconds since the epoch, rounding up: exact where floats are not.

    Wire instants are whole milliseconds, so one is before the datetime just if it is before the result.
    """
    return -(-(instant - _EPOCH) // timedelta(milliseconds=1))
