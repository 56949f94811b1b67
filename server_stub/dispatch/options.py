"""Settings of the dispatcher."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """How workers are called.

    Attributes:
        max_call_timeout: The longest a call may take, whatever the options of its state say.
        max_calls_in_flight: How many state calls one worker URL is working on at most; the rest waits in order.
        max_waiting_calls: How many state calls are kept, with their inputs, that no worker is working on: they wait for
            a worker or a lock, or their outcome is being committed. Others stay in the database for the time being.
        max_batch_calls: Calls in one request at most.
        max_batch_bytes: Size of a request above which no further call is added. A larger call travels alone.
        max_answer_bytes: The largest answer of one call; reading stops there.
        max_value_bytes: The largest value in an answer: an input, payload, attribute or output, as JSON.
        max_json_depth: The deepest nesting of an answer.
        max_lock_conflicts: How often a call is repeated because its read set changed, before that is a failure.
        max_revise_rounds: How often a worker may ask for another read within one attempt (status 406).
        batch_probe_interval: How long a worker without the batch endpoint is called singly before it is asked again.
        initial_busy_wait: How long a worker that said 429 or 503 with Retry-After is given no more than it has, at
            least; doubled each time.
        max_busy_wait: The longest such wait; a worker cannot ask for more.
        restart_patience: How long a worker that answered a short while ago may be away before calls to it fail.
        worker_headers: Sent with every request to a worker.
    """

    max_call_timeout: timedelta = timedelta(minutes=1)
    max_calls_in_flight: int = 1_000
    max_waiting_calls: int = 2_000
    max_batch_calls: int = 64
    max_batch_bytes: int = MIB
    max_answer_bytes: int = 8 * MIB
    max_value_bytes: int = MIB
    max_json_depth: int = 100
    max_lock_conflicts: int = 10
    max_revise_rounds: int = 3
    batch_probe_interval: timedelta = timedelta(minutes=1)
    initial_busy_wait: timedelta = timedelta(milliseconds=100)
    max_busy_wait: timedelta = timedelta(seconds=30)
    restart_patience: timedelta = timedelta(seconds=2)
    worker_headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class DispatchCounters:
    """What the dispatcher has done since it was made; for benchmarks and metrics."""

    calls: int = 0
    batches: int = 0
    batched_calls: int = 0
    largest_batch: int = 0
    failures: int = 0
    in_flight: int = 0
    rpcs_in_flight: int = 0
