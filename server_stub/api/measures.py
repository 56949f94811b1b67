"""What the service API measures of requests (idempotency-and-shards D.12)."""

import time
from collections import Counter, defaultdict
from functools import partial

from server_stub.core.measures import SECONDS, SIZES, Histogram


class RequestMeasures:
    """Totals since the server was opened. Only operations are counted: health and documents are not, nor unknown paths.

    Attributes:
        answers: Calls that were answered, by operation and status; `unknown` is the operation of a line that names
            none, `batch` that of a batch request that was refused as a whole.
        durations_s: From the arrival of a call to its answer, by operation; for a wait, that is what it waited for.
        batch_calls: Calls in each batch request.
    """

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.durations_s: defaultdict[str, Histogram] = defaultdict(partial(Histogram, SECONDS))
        self.batch_calls = Histogram(SIZES)

    def answered(self, operation: str, status: int, began_s: float) -> None:
        """Count a call that has been answered; `began_s` is from `time.perf_counter`."""
        self.answers[operation, status] += 1
        self.durations_s[operation].observe(time.perf_counter() - began_s)
