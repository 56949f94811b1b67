"""The clock that follows the database's."""

import logging
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_stub.cluster.clock import SyncedClock

EPOCH_MS = 1_767_225_600_000


@dataclass
class Loop:
    """The event loop's clock, which the test moves."""

    now_s: float = 100.0

    def time(self) -> float:
        return self.now_s


def synced_clock(loop: Loop) -> SyncedClock:
    """Give a clock that has just learnt the time."""
    clock = SyncedClock(loop.time, 0)
    clock.learn(EPOCH_MS, sent_s=loop.now_s, received_s=loop.now_s)
    return clock


def test_first_reading_sets_the_clock_whatever_it_showed_before() -> None:
    loop = Loop()
    clock = SyncedClock(loop.time, EPOCH_MS + 600_000)

    clock.learn(EPOCH_MS, sent_s=loop.now_s - 1, received_s=loop.now_s)

    assert clock() == EPOCH_MS


def test_clock_goes_on_by_itself() -> None:
    loop = Loop()
    clock = synced_clock(loop)

    loop.now_s += 3

    assert clock() == EPOCH_MS + 3_000


def test_reading_that_agrees_within_its_own_uncertainty_changes_nothing() -> None:
    loop = Loop()
    clock = synced_clock(loop)
    loop.now_s += 10

    clock.learn(EPOCH_MS + 9_980, sent_s=loop.now_s - 0.1, received_s=loop.now_s)
    loop.now_s += 1

    assert clock() == EPOCH_MS + 11_000


def test_small_error_is_corrected_little_by_little() -> None:
    loop = Loop()
    clock = synced_clock(loop)

    clock.learn(EPOCH_MS + 500, sent_s=loop.now_s, received_s=loop.now_s)
    at_once_ms = clock() - EPOCH_MS
    loop.now_s += 1
    after_a_second_ms = clock() - EPOCH_MS
    loop.now_s += 9
    after_ten_seconds_ms = clock() - EPOCH_MS

    assert (at_once_ms, after_a_second_ms, after_ten_seconds_ms) == (0, 1_100, 10_500)


def test_clock_that_is_far_behind_is_set_forward_at_once() -> None:
    loop = Loop()
    clock = synced_clock(loop)

    clock.learn(EPOCH_MS + 60_000, sent_s=loop.now_s, received_s=loop.now_s)

    assert clock() == EPOCH_MS + 60_000


def test_clock_that_is_a_little_ahead_goes_slower_and_not_back() -> None:
    loop = Loop()
    clock = synced_clock(loop)
    loop.now_s += 4
    clock.learn(EPOCH_MS, sent_s=loop.now_s, received_s=loop.now_s)

    at_once_ms = clock() - EPOCH_MS
    loop.now_s += 10
    later_ms = clock() - EPOCH_MS

    assert (at_once_ms, later_ms) == (4_000, 13_000)


@pytest.mark.parametrize("change_ms", [-600_000, 600_000], ids=["back", "forward"])
def test_clock_of_the_database_that_was_set_is_followed_at_once_and_said(
    change_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    clock = synced_clock(loop)

    clock.learn(EPOCH_MS + change_ms, sent_s=loop.now_s, received_s=loop.now_s)
    clock.learn(EPOCH_MS + change_ms, sent_s=loop.now_s, received_s=loop.now_s)

    assert clock() == EPOCH_MS + change_ms
    [record] = caplog.records
    assert (record.levelno, record.__dict__["ahead_ms"]) == (logging.WARNING, change_ms)


def test_reading_that_was_answered_late_leaves_a_right_clock_alone() -> None:
    loop = Loop()
    clock = synced_clock(loop)
    sent_s = loop.now_s
    loop.now_s += 6

    clock.learn(EPOCH_MS + 6_000, sent_s=sent_s, received_s=loop.now_s)

    assert clock() == EPOCH_MS + 6_000


round_trips = st.tuples(st.floats(0, 20), st.floats(0, 1))


@given(round_trips, round_trips, st.integers(-5_000, 5_000), st.floats(0, 100))
def test_no_reading_makes_the_clock_worse_however_long_it_took_and_whenever_it_was_made(
    first: tuple[float, float], second: tuple[float, float], change_ms: int, later_s: float
) -> None:
    """The database's clock changes between two readings, each made at some part of its round trip."""
    loop = Loop()
    clock = SyncedClock(loop.time, 0)
    ahead_ms = 0

    def database_ms(at_s: float) -> float:
        return EPOCH_MS + at_s * 1_000 + ahead_ms

    def wrong_by_ms() -> float:
        return abs(clock() - database_ms(loop.now_s))

    def learn(round_trip_s: float, part: float) -> float:
        """Take a reading, and give how wrong the clock would be without it."""
        sent_s = loop.now_s
        loop.now_s += round_trip_s
        before_ms = wrong_by_ms()
        read_ms = round(database_ms(sent_s + part * round_trip_s))
        clock.learn(read_ms, sent_s=sent_s, received_s=loop.now_s)
        return before_ms

    learn(*first)
    ahead_ms = change_ms
    before_ms = learn(*second)
    at_once_ms = wrong_by_ms()
    loop.now_s += later_s

    rounding_ms = 2
    assert at_once_ms <= before_ms + rounding_ms
    assert wrong_by_ms() <= before_ms + rounding_ms


@given(round_trips)
def test_first_reading_never_sets_the_clock_ahead_of_the_database(round_trip: tuple[float, float]) -> None:
    loop = Loop()
    clock = SyncedClock(loop.time, 0)
    round_trip_s, part = round_trip
    sent_s = loop.now_s
    loop.now_s += round_trip_s

    clock.learn(EPOCH_MS + int(part * round_trip_s * 1_000), sent_s=sent_s, received_s=loop.now_s)

    assert clock() <= EPOCH_MS + round_trip_s * 1_000


readings = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5), st.integers(0, 4_000)), max_size=20)


@given(readings)
def test_clock_never_goes_backwards_while_that_of_the_database_is_not_set_back(
    readings: list[tuple[float, float, int]],
) -> None:
    loop = Loop()
    clock = synced_clock(loop)
    shown_ms = [clock()]

    for pause_s, round_trip_s, error_ms in readings:
        loop.now_s += pause_s
        shown_ms.append(clock())
        sent_s = loop.now_s
        loop.now_s += round_trip_s
        clock.learn(EPOCH_MS + round(loop.now_s * 1_000) + error_ms, sent_s=sent_s, received_s=loop.now_s)
        shown_ms.append(clock())

    assert shown_ms == sorted(shown_ms)
