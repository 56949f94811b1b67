"""What the dispatcher measures of calls (idempotency-and-shards D.12)."""

import time
from collections import Counter, defaultdict
from functools import partial

from server_stub.core.measures import SECONDS, SIZES, Histogram
from server_stub.core.outcomes import CallFailure, Verdict
from server_stub.dispatch.jobs import Job
from server_stub.dispatch.replies import Abandoned, Busy, Reply, Spoiled, Unreached
from xdb_sdk.protocol import ReviseAnswer


class DispatchMeasures:
    """Totals since the server was opened.

    Attributes:
        outcomes: Calls that were answered or have failed, by operation (`wait-until`, `execute`, `rpc`), whether it was
            not the first attempt, and what came of it.
        durations_s: How long calls were at workers, by operation.
        request_calls: Calls in each request to a worker.
        verdicts: What was made of the outcomes of state calls.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, bool, str]] = Counter()
        self.durations_s: defaultdict[str, Histogram] = defaultdict(partial(Histogram, SECONDS))
        self.request_calls = Histogram(SIZES)
        self.verdicts: Counter[Verdict] = Counter()

    def replied(self, job: Job, reply: Reply) -> None:
        """Count the outcome of a call that still counts as sent, if it was."""
        self.outcomes[job.operation, job.attempt > 1, outcome_of(reply)] += 1
        if job.is_sent:
            self.durations_s[job.operation].observe(time.perf_counter() - job.sent_at_s)


def outcome_of(reply: Reply) -> str:
    """Name what came of a call: one of a few words."""
    match reply:
        case CallFailure():
            return reply.kind.value.lower()
        case ReviseAnswer():
            return "asked_for_more_data"
        case Busy():
            return "worker_busy"
        case Spoiled():
            return "sent_again_alone"
        case Unreached():
            return "sent_again_after_restart"
        case Abandoned():
            return "given_up"
        case _:
            return "answered"
