"""The pages on metrics and traces say what server and worker do."""

import re
from collections.abc import Iterable
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from server_stub.dispatch.measures import outcome_of
from server_stub.dispatch.replies import Abandoned, Busy, Spoiled
from server_stub.metrics import SERVER_METRICS
from tests.docs.pages import ROOT
from tests.unit.worker.processes import Workshop, execute_call, registry_of
from xdb_sdk import WorkerOptions
from xdb_sdk.worker._calls import RunningCalls
from xdb_sdk.worker._metrics import WorkerMetrics

METRICS_PAGE = (ROOT / "docs/reference/metrics.md").read_text()
EXAMPLES = ROOT / "examples/monitoring"
TYPES = {CounterMetricFamily: "counter", GaugeMetricFamily: "gauge", HistogramMetricFamily: "histogram"}


def row(name: str, kind: str, labels: Iterable[str], meaning: str) -> str:
    return f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |"


def server_rows() -> list[str]:
    return [row(metric.name, TYPES[metric.type], metric.labels, metric.meaning) for metric in SERVER_METRICS]


def worker_rows() -> list[str]:
    metrics = WorkerMetrics(registry_of(Workshop()), RunningCalls(WorkerOptions()))
    metrics.answered(execute_call("Echo"), 200, 0.1)
    rows = []
    for family in metrics.collect():
        labels = (label for label in family.samples[0].labels if label != "le")
        suffix = "_total" if family.type == "counter" else ""
        rows.append(row(family.name + suffix, family.type, labels, family.documentation))
    return rows


def test_metrics_page_lists_every_metric_and_no_other() -> None:
    rows = re.findall(r"^\| `xdb_.*$", METRICS_PAGE, re.MULTILINE)

    assert rows == [*server_rows(), *worker_rows()]


@pytest.mark.parametrize(
    "outcome",
    [outcome_of(Busy(1, "")), outcome_of(Spoiled()), outcome_of(Abandoned())],
)
def test_metrics_page_names_outcomes_that_are_no_attempt(outcome: str) -> None:
    assert f"`{outcome}`" in METRICS_PAGE


def known_series() -> set[str]:
    """Name every time series that Prometheus has of a server and a worker."""
    names = {"up"}
    for line in (*server_rows(), *worker_rows()):
        name, kind = re.findall(r"`(xdb_\w+)` \| (\w+)", line)[0]
        names |= {f"{name}_{part}" for part in ("bucket", "count", "sum")} if kind == "histogram" else {name}
    return names


def alert_rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: str(rule["alert"]))
def test_alert_asks_for_series_that_exist_and_says_what_is_wrong(rule: dict[str, Any]) -> None:
    series = set(re.findall(r"\b(?:up|xdb_\w+)\b", rule["expr"]))

    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert series
    assert series <= known_series()
    assert rule["expr"].count("(") == rule["expr"].count(")")
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")


def test_scrape_configuration_has_the_jobs_and_rules_that_alerts_need() -> None:
    configuration = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())

    jobs = {job["job_name"] for job in configuration["scrape_configs"]}
    named = {job for rule in alert_rules() for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert named <= jobs
    assert all((EXAMPLES / name).exists() for name in configuration["rule_files"])
