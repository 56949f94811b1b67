"""Health, readiness and the documents."""

import httpx
import pytest

from server_stub.api.app import ServiceApi
from server_stub.api.openapi import service_document, worker_document
from tests.contract.service_api.conftest import SMALL_LIMITS, Readiness, error_ids
from tests.contract.service_api.fake_operations import FakeOperations
from xdb_sdk.protocol import ErrorBody, ErrorSubType


async def test_healthz_answers_without_the_database(client: httpx.AsyncClient, readiness: Readiness) -> None:
    readiness.is_ready = False

    response = await client.get("/healthz")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_readyz_tells_whether_the_database_can_be_used(client: httpx.AsyncClient, readiness: Readiness) -> None:
    ready = await client.get("/readyz")
    readiness.is_ready = False
    not_ready = await client.get("/readyz")

    assert ready.status_code == 200
    assert not_ready.status_code == 503
    assert not_ready.headers["retry-after"] == "1"
    error = ErrorBody.model_validate_json(not_ready.content)
    assert error.error_sub_type is ErrorSubType.UNAVAILABLE
    assert "SELECT" not in error.details


async def test_probes_log_each_change_of_readiness_once(
    client: httpx.AsyncClient, readiness: Readiness, caplog: pytest.LogCaptureFixture
) -> None:
    for is_ready in (True, False, False, False, True, True, False):
        readiness.is_ready = is_ready
        await client.get("/readyz")

    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "not ready",
        "ready again",
        "not ready",
    ]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/openapi-worker.json"])
async def test_wrong_method_is_refused_with_the_error_schema(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path)

    assert response.status_code == 405
    assert "GET" in response.headers["allow"]
    assert ErrorBody.model_validate_json(response.content).error_sub_type is ErrorSubType.METHOD_NOT_ALLOWED


async def test_openapi_documents_are_served(client: httpx.AsyncClient) -> None:
    service = await client.get("/openapi.json")
    worker = await client.get("/openapi-worker.json")

    assert service.json() == service_document()
    assert worker.json() == worker_document()


async def test_status_shows_what_the_server_counts(operations: FakeOperations, readiness: Readiness) -> None:
    counted = {"commit": {"transactions": 3}}
    api = ServiceApi(operations, readiness, SMALL_LIMITS, error_ids(), status=lambda: counted)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://xdb") as client:
        response = await client.get("/internal/status")

    assert response.json() == counted
