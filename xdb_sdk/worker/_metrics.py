"""What `GET /metrics` of the worker shows, for Prometheus.

Process types, state ids and RPC names are labels only as far as they are registered here; any other is `unknown`. So
their number is bounded, whatever a server asks for.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from http import HTTPStatus
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from xdb_sdk._errors import NotRegisteredError
from xdb_sdk._registry import Registry
from xdb_sdk.protocol import ExecuteCall, RpcCall, WaitUntilCall
from xdb_sdk.worker._calls import RunningCalls

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

UserCall: TypeAlias = WaitUntilCall | ExecuteCall | RpcCall
"""The calls that run user code."""

_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_UNKNOWN: Final = "unknown"
_OUTCOMES: Final[Mapping[int, str]] = {
    HTTPStatus.OK: "answered",
    HTTPStatus.NOT_ACCEPTABLE: "asked_for_more_data",
    HTTPStatus.FAILED_DEPENDENCY: "failed",
    HTTPStatus.TOO_MANY_REQUESTS: "busy",
    HTTPStatus.SERVICE_UNAVAILABLE: "busy",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal_error",
}
"""What came of a call, by its status; any other status is a call that was refused."""

_CALLS = "Calls that were answered: by user code (answered, failed), or without it being reached or done."
_DURATION = "From the arrival of a call to its answer; a wait for a thread counts."
_IN_FLIGHT = "Calls that run or wait for a thread."
_THREADS = "Threads that run `def` methods; at most WorkerOptions.max_threads."
_WAITING = "Calls of `def` methods that wait for a thread."


class _Series:
    """The calls of one method: how many took how long, and what came of them."""

    __slots__ = ("counts", "outcomes", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.total_s = 0.0
        self.outcomes: Counter[str] = Counter()

    def buckets(self) -> list[tuple[str, float]]:
        bounds = [*map(str, _BOUNDS_S), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


class WorkerMetrics:
    """The metrics of one worker, and those of its process. Belongs to the worker's event loop.

    The metrics library is imported at the first scrape: whoever imports the SDK for its client needs it not.

    Args:
        processes: What is registered.
        calls: The calls that run.
    """

    def __init__(self, processes: Registry, calls: RunningCalls) -> None:
        self._processes = processes
        self._calls = calls
        self._series: dict[tuple[str, str, str], _Series] = {}

    def answered(self, call: UserCall, status: int, duration_s: float) -> None:
        """Count a call that has been answered."""
        series = self._series_of(call)
        series.counts[bisect_left(_BOUNDS_S, duration_s)] += 1
        series.total_s += duration_s
        series.outcomes[_OUTCOMES.get(status, "refused")] += 1

    def render(self, accept: str) -> tuple[bytes, str]:
        """Write all metrics in a format that a scraper accepts, by its Accept header; give the content type too."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> "Iterator[Metric]":
        """Read every metric; the registry asks for it at each scrape."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = ("operation", "process_type", "name")
        outcomes = CounterMetricFamily("xdb_worker_calls_total", _CALLS, labels=(*labels, "outcome"))
        durations = HistogramMetricFamily("xdb_worker_call_duration_seconds", _DURATION, labels=labels)
        for names, series in self._series.items():
            durations.add_metric(names, series.buckets(), series.total_s)
            for outcome, count in series.outcomes.items():
                outcomes.add_metric((*names, outcome), count)
        yield outcomes
        yield durations
        yield GaugeMetricFamily("xdb_worker_calls_in_flight", _IN_FLIGHT, self._calls.count)
        yield GaugeMetricFamily("xdb_worker_threads_busy", _THREADS, self._calls.busy_threads)
        yield GaugeMetricFamily("xdb_worker_calls_waiting_for_thread", _WAITING, self._calls.waiting_for_thread)

    @cached_property
    def _registry(self) -> "CollectorRegistry":
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        registry.register(cast("Collector", self))  # it is one but for its base class, which a client need not import
        ProcessCollector(registry=registry)
        return registry

    def _series_of(self, call: UserCall) -> _Series:
        match call:
            case ExecuteCall():
                names = ("execute", call.process_type, call.state_id)
            case WaitUntilCall():
                names = ("wait-until", call.process_type, call.state_id)
            case RpcCall():
                names = ("rpc", call.process_type, call.rpc_name)
        found = self._series.get(names)
        if found is None:
            found = self._series.setdefault(self._known(*names), _Series())
        return found

    def _known(self, operation: str, process_type: str, name: str) -> tuple[str, str, str]:
        """Give the labels of a call, with `unknown` in place of what is not registered."""
        try:
            process = self._processes.process_of_type(process_type)
        except NotRegisteredError:
            return operation, _UNKNOWN, _UNKNOWN
        known = process.rpcs if operation == "rpc" else process.states
        return operation, process_type, name if name in known else _UNKNOWN
