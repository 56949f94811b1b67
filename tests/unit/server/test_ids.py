"""Ids of process executions are UUIDs of version 7 that only grow."""

from itertools import pairwise
from uuid import UUID

import pytest

from server_stub.engine.ids import Uuid7Source

NOW_MS = 1_700_000_000_123


def test_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    next_id = Uuid7Source(lambda: NOW_MS, lambda size: b"\xa5" * size)

    made = UUID(next_id())

    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert made.int >> 80 == NOW_MS


@pytest.mark.parametrize(
    "times_ms",
    [
        pytest.param([NOW_MS] * 50, id="one millisecond"),
        pytest.param([NOW_MS, NOW_MS + 1, NOW_MS + 1, NOW_MS + 9], id="clock goes on"),
        pytest.param([NOW_MS, NOW_MS - 5_000, NOW_MS + 1], id="clock steps back"),
    ],
)
def test_each_id_is_greater_than_the_one_before(times_ms: list[int]) -> None:
    clock = iter(times_ms)
    next_id = Uuid7Source(lambda: next(clock), lambda size: b"\x42" * size)

    made = [next_id() for _ in times_ms]

    assert all(earlier < later for earlier, later in pairwise(made))


def test_id_borrows_the_next_millisecond_when_the_random_part_overflows() -> None:
    next_id = Uuid7Source(lambda: NOW_MS, lambda size: b"\xff" * size)

    first, second = UUID(next_id()), UUID(next_id())

    assert second > first
    assert second.int >> 80 == NOW_MS + 1
    assert second.version == 7
