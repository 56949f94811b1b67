"""Durations and instants of the public API as the integer milliseconds of the wire."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from xdb_sdk._errors import InvalidArgumentError

LONGEST_DURATION = timedelta(days=1_000_000)
"""About 2700 years: anything longer has no instant on the calendar to end at."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_duration(duration: Any, what: str) -> timedelta:
    """Return a duration, if it is one.

    Args:
        duration: Of any sign and length.
        what: What the duration is for; the error message begins with it.

    Raises:
        InvalidArgumentError: It is no timedelta, such as a bare number.
    """
    if isinstance(duration, timedelta):
        return duration
    advice = f"timedelta(seconds={duration!r})" if is_number(duration) else "timedelta(seconds=...)"
    raise InvalidArgumentError(f"{what} must be a timedelta, got {_shown(duration)}; write {advice}")


def is_number(value: Any) -> bool:
    """Whether a value is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """Show a number, and of anything else the type alone: it may be long, or a secret."""
    kind = type(value).__name__
    return f"{value!r} ({kind})" if is_number(value) else kind


def to_milliseconds(duration: timedelta, what: str) -> int:
    """Convert to whole milliseconds, rounding up so that nothing ends early.

    Args:
        duration: Not negative.
        what: What the duration is for; the error message begins with it.

    Raises:
        InvalidArgumentError: It is no timedelta, is negative, or longer than LONGEST_DURATION.
    """
    if check_duration(duration, what) < timedelta(0):
        raise InvalidArgumentError(f"{what} is {duration}: a duration cannot be negative")
    if duration > LONGEST_DURATION:
        raise InvalidArgumentError(f"{what} is {duration}: the longest duration is {LONGEST_DURATION}")
    return -(-duration // timedelta(milliseconds=1))


def seconds_to_milliseconds(seconds: float, what: str) -> int:
    """Convert seconds to whole milliseconds, rounding up.

    Raises:
        InvalidArgumentError: It is negative, not a finite number, or longer than LONGEST_DURATION.
    """
    check_seconds(seconds, what)
    if not math.isfinite(seconds) or seconds > LONGEST_DURATION.total_seconds():
        raise InvalidArgumentError(f"{what} is {seconds} s: give at most {LONGEST_DURATION.total_seconds():.0f} s")
    return to_milliseconds(timedelta(seconds=seconds), what)


def check_seconds(seconds: Any, what: str) -> float:
    """Return a number of seconds, if it is a number.

    Raises:
        InvalidArgumentError: It is no number, such as a timedelta or a text.
    """
    if is_number(seconds):
        number: float = seconds
        return number
    raise InvalidArgumentError(f"{what} must be a number of seconds, got {_shown(seconds)}")


def check_instant(at: Any, what: str) -> datetime:
    """Return an aware datetime.

    Raises:
        InvalidArgumentError: It is no datetime, or has no time zone, so that it is not an instant.
    """
    if not isinstance(at, datetime):
        raise InvalidArgumentError(
            f"{what} must be a datetime, got {_shown(at)}; write datetime.now(UTC), for instance"
        )
    if at.utcoffset() is None:
        raise InvalidArgumentError(f"{what} {at} has no time zone; give an aware datetime, such as datetime.now(UTC)")
    return at


def since_epoch_ms(instant: datetime) -> int:
    """Convert an aware datetime to whole milliseconds since the epoch, rounding up: exact where floats are not.

    Wire instants are whole milliseconds, so one is before the datetime just if it is before the result.
    """
    return -(-(instant - _EPOCH) // timedelta(milliseconds=1))
