"""Whatever is sent to a real server: it answers as documented, and never with a fault of its own."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from server_stub.app import Server
from server_stub.config import Durability
from tests.contract.service_api.greeter import app
from tests.contract.service_api.requests import REQUESTS, path_of
from tests.contract.service_api.test_openapi import check
from tests.contract.service_api.test_server import DOCUMENT, SETTINGS, START, client_of
from tests.support.asgi import AsgiTransport
from tests.support.virtual_time import VirtualClock, run

SCHEMAS = DOCUMENT["components"]["schemas"]
ACCOUNT: dict[str, Any] = {
    "tableName": "account",
    "primaryKey": {"account_id": "a-1"},
    "initialWrite": {
        "name": "Ada",
        "balance": "1.50",
        "visits": 1,
        "is_open": True,
        "picture": {"$bytes": "AA=="},
        "document": {"$json": {"a": [1]}},
        "opened_at": "2026-01-01T00:00:00",
    },
}
CREATE_ACCOUNT = """
    CREATE TABLE account (
        account_id VARCHAR(20) PRIMARY KEY, name VARCHAR(10) NOT NULL, balance NUMERIC(10, 2), visits INTEGER,
        is_open BOOLEAN, picture BLOB, document JSON, opened_at TIMESTAMP, CHECK (visits < 1000)
    )
"""
FULL_REQUESTS: dict[str, dict[str, Any]] = {
    "start": START
    | {
        "startStateOptions": {"executeApiRetryPolicy": {"maximumAttempts": 1}},
        "tables": [ACCOUNT],
        "localAttributes": {"a": 1},
    },
    "publish": {"processId": "p-1", "messages": [{"queueName": "q", "messageId": "m", "payload": 1}]},
    "rpc": {"processId": "p-1", "rpcName": "echo", "input": "x", "read": {"localAttributes": ["last"]}},
    "get-attributes": {
        "processId": "p-1",
        "read": {"tables": [{"tableName": "account", "columns": ["name", "document"]}]},
    },
    "set-attributes": {
        "processId": "p-1",
        "writeTables": [{"tableName": "account", "columns": ACCOUNT["initialWrite"]}],
        "writeLocalAttributes": {"last": "x"},
    },
    "skip-timer": {"processId": "p-1", "stateId": "Wait", "number": 1, "commandId": "t", "index": 0, "remember": True},
    "update-config": {"processId": "p-1", "workerUrl": "http://worker", "timeoutMs": 1},
    "list": {"pageSize": 1, "statuses": ["RUNNING"], "startedFromMs": 0, "nextPageToken": "MTp4"},
}
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(["", "'", '"; DROP TABLE x', "x" * 300, "é" * 200, "RUNNING", "http://worker", "p-1", "last"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)


def places_in(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Give the path to every value inside."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [place for key, child in items for place in [(*path, key), *places_in(child, (*path, key))]]


def with_value(node: Any, place: Sequence[str | int], value: Any) -> Any:
    """Give the node with another value at a place inside; a place that is not there any more changes nothing."""
    if not place:
        return value
    key, *rest = place
    if isinstance(node, dict):
        return node | {key: with_value(node.get(key), rest, value)}
    if isinstance(node, list) and isinstance(key, int):
        return [with_value(child, rest, value) if index == key else child for index, child in enumerate(node)]
    return node


@st.composite
def spoilt_requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Give an operation, and a request of which one or two values are replaced."""
    operation = draw(st.sampled_from(sorted(REQUESTS)))
    request = FULL_REQUESTS.get(operation, REQUESTS[operation])
    fields = [(name,) for name in SCHEMAS[operation_schema(operation)]["properties"]]
    for _ in range(draw(st.integers(1, 2))):
        request = with_value(request, draw(st.sampled_from([*places_in(request), *fields])), draw(JSON_VALUES))
    return operation, request


def operation_schema(operation: str) -> str:
    """Give the name of the schema of an operation's request."""
    content = DOCUMENT["paths"][path_of(operation)]["post"]["requestBody"]["content"]
    reference: str = content["application/json"]["schema"]["$ref"]
    return reference.rpartition("/")[2]


@settings(max_examples=60, deadline=None)
@given(st.lists(spoilt_requests(), min_size=1, max_size=5))
def test_spoilt_requests_are_carried_out_or_refused(requests: list[tuple[str, dict[str, Any]]]) -> None:
    async def send_all(directory: str) -> None:
        with closing(sqlite3.connect(f"{directory}/app.db")) as database:
            database.execute(CREATE_ACCOUNT)
        on_file = replace(SETTINGS, database_url=f"sqlite:///{directory}/app.db", durability=Durability.NORMAL)
        async with (
            AsgiTransport({"http://worker": app}) as workers,
            await Server.open(on_file, transport=workers, clock=VirtualClock()) as server,
            client_of(server) as client,
        ):
            started = await client.post(path_of("start"), json=FULL_REQUESTS["start"])
            assert started.status_code == 200, started.text
            for operation, request in requests:
                response = await client.post(path_of(operation), json=request)
                assert response.status_code < 500, response.text
                check(DOCUMENT, path_of(operation), response)

    with TemporaryDirectory() as directory:
        run(send_all(directory))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(REQUESTS)),
    st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode(errors="replace")),
)
def test_garbage_is_refused(operation: str, body: bytes) -> None:
    async def send() -> None:
        async with await Server.open(SETTINGS, clock=VirtualClock()) as server, client_of(server) as client:
            response = await client.post(path_of(operation), content=body)
            assert response.status_code < 500, response.text
            check(DOCUMENT, path_of(operation), response)

    run(send())
