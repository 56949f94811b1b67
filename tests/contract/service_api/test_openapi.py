"""The OpenAPI documents are what the wire models say, and what the API answers is what the documents say."""

import json
from importlib.resources import files
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from server_stub.api.openapi import SERVICE_DOCUMENT, WORKER_DOCUMENT, service_document, worker_document
from server_stub.api.operations import OPERATIONS
from tests.contract.service_api.fake_operations import UNKNOWN_PROCESS
from tests.contract.service_api.requests import OF_A_PROCESS, REQUESTS, path_of
from xdb_sdk.protocol import SERVICE_BATCH_PATH

DOCUMENTS = {SERVICE_DOCUMENT: service_document, WORKER_DOCUMENT: worker_document}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document of the service API, as it is checked in."""
    return read(SERVICE_DOCUMENT)


def read(name: str) -> dict[str, Any]:
    """Read a document that is checked in."""
    text = files("server_stub.api").joinpath(name).read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def check(document: dict[str, Any], path: str, response: httpx.Response, *, method: str = "post") -> None:
    """Check that a status is documented for a path, and that the body fits its schema."""
    responses = document["paths"][path][method]["responses"]
    [(content_type, content)] = responses[str(response.status_code)]["content"].items()
    assert response.headers["content-type"] == content_type
    schema = content["schema"] | {"components": document["components"]}
    for text in response.content.splitlines():
        Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_is_as_it_is_made_from_the_wire_models(name: str) -> None:
    assert read(name) == DOCUMENTS[name](), "run: python -m server_stub.api.openapi"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_valid_and_every_reference_leads_somewhere(name: str) -> None:
    document = read(name)

    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for reference in references_in(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_enum_names_a_value_twice(name: str) -> None:
    for schema in read(name)["components"]["schemas"].values():
        values = schema.get("enum", [])
        assert len(values) == len(set(values)), schema


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_model_and_operation_is_described(name: str) -> None:
    document = read(name)

    for schema in document["components"]["schemas"].values():
        assert schema["description"].endswith((".", ")"))
        assert "semantics" not in schema["description"]
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"].endswith(".")


def references_in(node: Any) -> list[str]:
    """Give all references below a node."""
    if isinstance(node, list):
        return [reference for child in node for reference in references_in(child)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [reference for child in node.values() for reference in references_in(child)]


def test_every_operation_has_its_path(document: dict[str, Any]) -> None:
    assert {path_of(name) for name in OPERATIONS} < document["paths"].keys()


@pytest.mark.parametrize("operation", REQUESTS)
async def test_answer_is_as_documented(client: httpx.AsyncClient, document: dict[str, Any], operation: str) -> None:
    response = await client.post(path_of(operation), json=REQUESTS[operation])

    assert response.status_code == 200
    check(document, path_of(operation), response)


@pytest.mark.parametrize("operation", REQUESTS)
async def test_request_schema_takes_what_the_api_takes(document: dict[str, Any], operation: str) -> None:
    content = document["paths"][path_of(operation)]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"] | {"components": document["components"]}

    Draft202012Validator(schema).validate(REQUESTS[operation])


@pytest.mark.parametrize("operation", REQUESTS)
async def test_refusals_are_as_documented(client: httpx.AsyncClient, document: dict[str, Any], operation: str) -> None:
    check(document, path_of(operation), await client.post(path_of(operation), content=b"{"))
    check(document, path_of(operation), await client.get(path_of(operation)))


@pytest.mark.parametrize("operation", OF_A_PROCESS)
async def test_unknown_process_is_as_documented(
    client: httpx.AsyncClient, document: dict[str, Any], operation: str
) -> None:
    response = await client.post(path_of(operation), json=REQUESTS[operation] | {"processId": UNKNOWN_PROCESS})

    assert response.status_code == 404
    check(document, path_of(operation), response)


async def test_batch_is_as_documented(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    lines = [
        {"callId": number, "operation": name, "body": request}
        for number, (name, request) in enumerate(REQUESTS.items())
    ]
    content = document["paths"][SERVICE_BATCH_PATH]["post"]["requestBody"]["content"]
    schema = content["application/x-ndjson"]["schema"] | {"components": document["components"]}

    response = await client.post(SERVICE_BATCH_PATH, content="\n".join([*map(json.dumps, lines), "garbage"]))

    for line in lines:
        Draft202012Validator(schema).validate(line)
    check(document, SERVICE_BATCH_PATH, response)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_as_documented(client: httpx.AsyncClient, document: dict[str, Any], path: str) -> None:
    check(document, path, await client.get(path), method="get")
