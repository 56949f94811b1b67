"""Reads metrics as a scraper does."""

from typing import TypeAlias

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

Samples: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def get(app: ASGIApp, accept: str) -> tuple[str, str]:
    """Get /metrics of an application; give the text and its content type."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        response = await client.get("/metrics", headers={"accept": accept})
    assert response.status_code == 200
    return response.text, response.headers["content-type"]


async def scrape(app: ASGIApp) -> Samples:
    """Read all samples of an application, by name and labels."""
    text, _ = await get(app, "text/plain;version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def openmetrics_names(text: str) -> set[str]:
    """Name the metric families of a text, which must be OpenMetrics to the letter."""
    return {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]  # the library lacks it


def of(name: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """Name one sample."""
    return name, frozenset(labels.items())
