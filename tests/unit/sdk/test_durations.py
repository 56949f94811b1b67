"""What stands where a duration, a number of seconds or an instant is wanted, and is none."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from xdb_sdk import InternalQueueCommand, InvalidArgumentError, ProcessStartOptions, RetryPolicy, TimerCommand
from xdb_sdk._duration import check_duration, check_instant
from xdb_sdk.client import ClientOptions, ClientRetryPolicy
from xdb_sdk.worker import WorkerOptions

REFUSED: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "timeout of a start": (lambda v: ProcessStartOptions(timeout=v), 5, "timeout must be a timedelta, got 5 (int)"),
    "delay of a start": (lambda v: ProcessStartOptions(start_delay=v), 0, "start_delay must be a timedelta"),
    "timer": (TimerCommand.timer_command_by_duration, 5, "duration of a timer must be a timedelta, got 5 (int)"),
    "timer in seconds": (TimerCommand.by_seconds, "5", "duration of a timer must be a number of seconds, got str"),
    "timer in a timedelta": (TimerCommand.by_seconds, timedelta(1), "must be a number of seconds, got timedelta"),
    "timer at a number": (TimerCommand.at, 5, "the instant of a timer must be a datetime, got 5 (int)"),
    "interval": (lambda v: RetryPolicy(initial_interval_seconds=v), timedelta(1), "initial_interval_seconds must be"),
    "coefficient": (lambda v: RetryPolicy(backoff_coefficient=v), "2", "backoff_coefficient is '2'"),
    "attempts": (lambda v: RetryPolicy(maximum_attempts=v), "3", "maximum_attempts is '3'"),
    "broken attempts": (lambda v: RetryPolicy(maximum_attempts=v), 1.5, "maximum_attempts is 1.5"),
    "true attempts": (lambda v: RetryPolicy(maximum_attempts=v), True, "maximum_attempts is True"),
    "client timeout": (lambda v: ClientOptions(api_timeout=v), 60, "api_timeout must be a timedelta, got 60 (int)"),
    "client backoff": (lambda v: ClientRetryPolicy(max_backoff=v), 2.5, "max_backoff must be a timedelta, got 2.5"),
    "client attempts": (lambda v: ClientRetryPolicy(max_attempts=v), "2", "max_attempts is '2'"),
    "worker grace": (lambda v: WorkerOptions(shutdown_grace=v), 30, "shutdown_grace must be a timedelta, got 30"),
    "worker threads": (lambda v: WorkerOptions(max_threads=v), "4", "max_threads='4'"),
    "messages": (lambda v: InternalQueueCommand.by_name("q", v), "2", "count='2'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_of_another_kind_is_refused_by_name(name: str) -> None:
    make, value, message = REFUSED[name]

    with pytest.raises(InvalidArgumentError) as refusal:
        make(value)

    assert message in str(refusal.value)


def test_a_bare_number_is_told_how_to_become_a_duration() -> None:
    with pytest.raises(InvalidArgumentError, match=r"timeout must be a timedelta, got 1 \(int\); write timedelta\(sec"):
        check_duration(1, "timeout")


def test_a_value_that_is_no_number_is_not_shown() -> None:
    with pytest.raises(InvalidArgumentError, match=r"timeout must be a timedelta, got str; write timedelta\(seconds="):
        check_duration("secret", "timeout")


def test_an_aware_datetime_is_an_instant_and_a_naive_one_is_not() -> None:
    now = datetime.now(UTC)

    with pytest.raises(InvalidArgumentError, match="has no time zone"):
        check_instant(now.replace(tzinfo=None), "start")

    assert check_instant(now, "start") is now
