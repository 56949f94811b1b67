"""What `GET /metrics` of the server shows, for Prometheus (idempotency-and-shards D.12).

Nothing is counted here: each metric is read at the scrape from the part of the server that knows it. Every label has a
bounded number of values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from server_stub.api.measures import RequestMeasures
from server_stub.cluster.keeper import ShardKeeper
from server_stub.core.measures import Histogram
from server_stub.core.model import RequestType
from server_stub.core.ports import Clock, Store
from server_stub.delivery.delivery import Delivery
from server_stub.dispatch.dispatcher import Dispatcher
from server_stub.engine.claims import Claims
from server_stub.engine.committer import Committer
from server_stub.engine.waiters import Waiters
from server_stub.upkeep.upkeep import Upkeep

_Value: TypeAlias = float | Histogram
_Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The parts of a server that are asked; `keeper` is None where it has its database to itself."""

    requests: RequestMeasures
    claims: Claims
    committer: Committer
    dispatcher: Dispatcher
    delivery: Delivery
    waiters: Waiters
    store: Store
    upkeep: Upkeep
    clock: Clock
    keeper: ShardKeeper | None


@dataclass(frozen=True, slots=True)
class ServerMetric:
    """One metric: its type in Prometheus, name, meaning and labels, and how it is read, by the values of its labels."""

    type: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    meaning: str
    labels: _Labels
    read: Callable[[Sources], Iterable[tuple[_Labels, _Value]]]

    def family(self, sources: Sources) -> Family:
        """Read it now."""
        family = self.type(self.name, self.meaning, labels=self.labels)
        for labels, value in self.read(sources):
            if isinstance(family, HistogramMetricFamily):
                assert isinstance(value, Histogram)
                family.add_metric(labels, _buckets(value), value.total)
            else:
                assert not isinstance(value, Histogram)
                family.add_metric(labels, value)
        return family


class ServerMetrics(Collector):
    """The metrics of one server, and those of its process.

    Args:
        sources: The parts of the server.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Family]:
        """Read every metric."""
        return (metric.family(self._sources) for metric in SERVER_METRICS)

    def describe(self) -> Iterator[Family]:
        """Name every metric without reading it, as the registry asks when the server is being put together."""
        return (metric.type(metric.name, metric.meaning, labels=metric.labels) for metric in SERVER_METRICS)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Write all metrics in a format that a scraper accepts, by its Accept header; give the content type too."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*histogram.bounds, float("inf")]
    return list(zip(map(floatToGoString, bounds), accumulate(histogram.counts), strict=True))


def _one(read: Callable[[Sources], _Value]) -> Callable[[Sources], Iterable[tuple[_Labels, _Value]]]:
    return lambda sources: [((), read(sources))]


def _by_operation(histograms: Mapping[str, Histogram]) -> Iterable[tuple[_Labels, _Value]]:
    return [((operation,), histogram) for operation, histogram in histograms.items()]


def _requests(sources: Sources) -> Iterable[tuple[_Labels, _Value]]:
    totals: dict[_Labels, int] = {}
    for (operation, status), count in sources.requests.answers.items():
        labels = (operation, f"{status // 100}xx")
        totals[labels] = totals.get(labels, 0) + count
    return totals.items()


def _by_type(counts: Mapping[RequestType, int]) -> Iterable[tuple[_Labels, _Value]]:
    return [((request_type.name.lower(),), count) for request_type, count in counts.items()]


def _worker_calls(sources: Sources) -> Iterable[tuple[_Labels, _Value]]:
    for (operation, is_repeated, outcome), count in sources.dispatcher.measures.outcomes.items():
        yield (operation, "repeated" if is_repeated else "first", outcome), count


def _in_flight(sources: Sources) -> Iterable[tuple[_Labels, _Value]]:
    counters = sources.dispatcher.counters
    return [(("state",), counters.in_flight - counters.rpcs_in_flight), (("rpc",), counters.rpcs_in_flight)]


def _oldest_due(sources: Sources) -> Iterable[tuple[_Labels, _Value]]:
    now_ms = sources.clock()
    in_memory = sources.dispatcher.oldest_due_at_ms()
    in_database = sources.delivery.oldest_left_behind_ms()
    for shard_id in sources.delivery.shard_ids:
        due_at_ms = min(in_memory.get(shard_id, now_ms), in_database.get(shard_id, now_ms))
        yield (str(shard_id),), (now_ms - due_at_ms) / 1_000


def _is_database_up(sources: Sources) -> bool:
    is_alive = sources.keeper is None or not sources.keeper.is_down
    return is_alive and not sources.committer.is_down and sources.delivery.is_healthy


def _transfers(sources: Sources) -> Iterable[tuple[_Labels, _Value]]:
    if sources.keeper is None:
        return []
    counters = sources.keeper.counters
    return [
        (("gained",), counters.gained),
        (("taken_over",), counters.taken_over),
        (("given_up",), counters.given_up),
        (("lost",), counters.lost),
        (("lease_expired",), counters.expired),
    ]


def _members(sources: Sources) -> Iterable[tuple[_Labels, _Value]]:
    return [] if sources.keeper is None else [((), len(sources.keeper.view.members))]


def _shards_without_owner(sources: Sources) -> Iterable[tuple[_Labels, _Value]]:
    if sources.keeper is None:
        return []
    view = sources.keeper.view
    alive = {member.member_id for member in view.members}
    return [((), sum(shard.owner_id not in alive for shard in view.shards))]


_COUNTER: Final = CounterMetricFamily
_GAUGE: Final = GaugeMetricFamily
_HISTOGRAM: Final = HistogramMetricFamily

SERVER_METRICS: Sequence[ServerMetric] = (
    ServerMetric(
        _COUNTER,
        "xdb_server_requests_total",
        "Calls of clients that were answered, single and in batches.",
        ("operation", "status"),
        _requests,
    ),
    ServerMetric(
        _HISTOGRAM,
        "xdb_server_request_duration_seconds",
        "From the arrival of a client's call to its answer; long polls last as long as what they wait for.",
        ("operation",),
        lambda sources: _by_operation(sources.requests.durations_s),
    ),
    ServerMetric(
        _HISTOGRAM,
        "xdb_server_request_calls",
        "Calls in each batch request of a client.",
        (),
        _one(lambda sources: sources.requests.batch_calls),
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_request_duplicates_total",
        "Calls of clients that were answered by their request id: they had been carried out before.",
        ("type",),
        lambda sources: _by_type(sources.claims.duplicates),
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_request_mismatches_total",
        "Those among the duplicates that asked for something else than the first call with their request id.",
        ("type",),
        lambda sources: _by_type(sources.claims.mismatches),
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_requests_forgotten_total",
        "Request ids that had expired and were deleted.",
        (),
        _one(lambda sources: sources.upkeep.forgotten_requests),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_long_polls",
        "Calls of clients that wait for an execution or a state execution.",
        (),
        _one(lambda sources: sources.waiters.count),
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_worker_calls_total",
        "Calls to workers that were answered or have failed, by attempt (first or repeated) and outcome.",
        ("operation", "attempt", "outcome"),
        _worker_calls,
    ),
    ServerMetric(
        _HISTOGRAM,
        "xdb_server_worker_call_duration_seconds",
        "How long calls were at workers, until the answer or the timeout.",
        ("operation",),
        lambda sources: _by_operation(sources.dispatcher.measures.durations_s),
    ),
    ServerMetric(
        _HISTOGRAM,
        "xdb_server_worker_request_calls",
        "Calls in each request to a worker.",
        (),
        _one(lambda sources: sources.dispatcher.measures.request_calls),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_worker_calls_in_flight",
        "Calls that are being read for or are at workers.",
        ("kind",),
        _in_flight,
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_worker_calls_waiting",
        "Due calls of states in memory that no worker has: they wait for room, a lock, or the commit of their outcome.",
        (),
        _one(lambda sources: sources.dispatcher.waiting_calls),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_workers",
        "Worker URLs that are called, or were within the last minutes.",
        (),
        _one(lambda sources: len(sources.dispatcher.worker_urls)),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_workers_held_back",
        "Worker URLs that get no further calls for a while, since the worker said that it is busy.",
        (),
        _one(lambda sources: sources.dispatcher.held_back_workers),
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_verdicts_total",
        "Outcomes of calls of states by what was made of them: applied, obsolete because the attempt was no longer the "
        "current one or another server had claimed it, or to be repeated because what was read had changed.",
        ("verdict",),
        lambda sources: [((v.value.lower(),), n) for v, n in sources.dispatcher.measures.verdicts.items()],
    ),
    ServerMetric(
        _HISTOGRAM,
        "xdb_server_commit_duration_seconds",
        "How long each committed transaction took, waits for locks included.",
        (),
        _one(lambda sources: sources.committer.measures.durations_s),
    ),
    ServerMetric(
        _HISTOGRAM,
        "xdb_server_commit_events",
        "Events in each committed transaction.",
        (),
        _one(lambda sources: sources.committer.measures.batch_events),
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_commit_failures_total",
        "Transactions that were not committed, or perhaps not (CommitOutcomeUnknown), by the class of the error.",
        ("error",),
        lambda sources: [((error,), n) for error, n in sources.committer.measures.failures.items()],
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_transaction_retries_total",
        "Transactions begun again at once, because of a deadlock or another conflict with others.",
        (),
        _one(lambda sources: sources.store.counters.retries),
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_statements_total",
        "SQL statements; one over many rows counts once.",
        (),
        _one(lambda sources: sources.store.counters.statements),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_pending_events",
        "Events that wait for a transaction; at the setting max_pending_events clients are answered 429.",
        (),
        _one(lambda sources: sources.committer.pending),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_planned_calls",
        "Calls in memory that become due within the setting look_ahead.",
        (),
        _one(lambda sources: sources.delivery.planned_calls),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_planned_timers",
        "Timers in memory that fire within the setting look_ahead.",
        (),
        _one(lambda sources: sources.delivery.count_planned_timers()),
    ),
    ServerMetric(
        _HISTOGRAM,
        "xdb_server_timer_lag_seconds",
        "How late timers were when they were handed to a transaction; downtime counts.",
        (),
        _one(lambda sources: sources.delivery.timer_lag_s),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_oldest_due_task_seconds",
        "For how long the oldest call of each shard of this server has been due that no worker has; 0 without one.",
        ("shard",),
        _oldest_due,
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_database_up",
        "1 if the latest transaction, search for due work and heartbeat reached the database, else 0.",
        (),
        _one(_is_database_up),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_members",
        "Servers of the database that are alive, this one included. Absent on SQLite.",
        (),
        _members,
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_shards_owned",
        "Shards that are this server's.",
        (),
        _one(lambda sources: len(sources.delivery.shard_ids)),
    ),
    ServerMetric(
        _GAUGE,
        "xdb_server_shards_without_owner",
        "Shards that no living server owns, as this one last saw it. Absent on SQLite.",
        (),
        _shards_without_owner,
    ),
    ServerMetric(
        _COUNTER,
        "xdb_server_shard_transfers_total",
        "Shards gained (of which taken_over: from a server that was gone), given_up to another server, lost to another "
        "server, or lost because the lease_expired. Absent on SQLite.",
        ("event",),
        _transfers,
    ),
)
"""Every metric, in the order in which they are shown."""
