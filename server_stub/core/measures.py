"""What the rooms of the server measure of themselves; `server_stub.metrics` shows it."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds for durations: from a commit on a fast disk to the longest call."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Bounds for how much is done together."""


class Histogram:
    """Counts values by size; for one thread at a time.

    It costs a quarter of one of a metrics library, whose are safe to use by many threads, and it lets the rooms know
    no such library.

    Args:
        bounds: Upper bounds of the buckets, each inclusive, increasing. Larger values have a bucket of their own.

    Attributes:
        counts: How many values fell into each bucket, the one without bound last.
        total: The sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
