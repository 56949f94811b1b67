"""The histogram that the rooms of the server measure with."""

from hypothesis import given
from hypothesis import strategies as st

from server_stub.core.measures import Histogram

BOUNDS = (1, 2, 4)


@given(st.lists(st.integers(0, 6)))
def test_each_value_falls_into_the_first_bucket_whose_bound_it_does_not_exceed(values: list[int]) -> None:
    histogram = Histogram(BOUNDS)

    for value in values:
        histogram.observe(value)

    smaller = [sum(value <= bound for value in values) for bound in (*BOUNDS, float("inf"))]
    assert [sum(histogram.counts[: n + 1]) for n in range(len(smaller))] == smaller
    assert histogram.total == sum(values)
