"""What the OpenAPI documents lead a stranger to send is answered as documented, and never with 500 (C-057).

Real processes on loopback, SQLite, and requests that schemathesis makes from the documents: values at and beyond every
bound, of every other type, with fields left out and added. The seed is fixed, so that each run sends the same.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
import requests
import schemathesis
from jsonschema import Draft202012Validator

from server_stub.api.openapi import SERVICE_DOCUMENT, WORKER_DOCUMENT
from tests.contract.cli.conftest import GREETER
from tests.contract.service_api.requests import path_of
from tests.contract.service_api.test_fuzz import CREATE_ACCOUNT, FULL_REQUESTS
from tests.contract.service_api.test_openapi import read
from tests.support.real_processes import RunningCommand, free_port
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, SERVICE_PREFIX

CONFIG = {
    "seed": 20_261_130,
    "generation": {"deterministic": True, "max-examples": 20, "allow-x00": False, "database": "none"},
    "checks": {
        # An RPC that is given a millisecond may be answered 503: nothing was called.
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
        # Readers are lenient: a 1 is taken for true. And not all that is refused can be said by a schema.
        "negative_data_rejection": {"enabled": False},
        "positive_data_acceptance": {"enabled": False},
    },
    # What these repeat is tried at its bounds where it stands by itself.
    "operations": [
        {"include-operation-id": operation_id, "phases": {"coverage": {"enabled": False}}}
        for operation_id in ("batch", "publish_or_start", "rpc_or_start")
    ],
}
LONGEST_WAIT_MS = 20
START = FULL_REQUESTS["start"]


def fuzz_of(document: str) -> schemathesis.BaseSchema:
    """Make requests from a document."""
    return schemathesis.openapi.from_dict(read(document), config=schemathesis.Config.from_dict(CONFIG))


SERVICE = fuzz_of(SERVICE_DOCUMENT)
WORKER = fuzz_of(WORKER_DOCUMENT)


@schemathesis.serializer(BATCH_CONTENT_TYPE)
def one_line(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Write a batch of one call."""
    return json.dumps(value).encode() + b"\n"


@pytest.fixture(scope="module")
def worker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("worker")
    with RunningCommand("worker", GREETER, "--port", str(free_port()), directory=directory) as running:
        yield running.url


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory, worker_url: str) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("server")
    with closing(sqlite3.connect(directory / "xdb.db")) as database:
        database.execute(CREATE_ACCOUNT)
    options = ("--durability", "NORMAL", "--allowed-worker-urls", worker_url)  # lest it calls what is made up
    with RunningCommand("server", "--port", "0", *options, directory=directory) as running:
        yield running.url


def is_odd(value: Any) -> bool:
    """Say of about half of all texts that they are to be replaced by a name that there is; the others stay made up."""
    return isinstance(value, str) and len(value) % 2 == 1


def as_list(value: Any) -> list[Any]:
    """Give a list as it is, and nothing for what is none."""
    return value if isinstance(value, list) else []


def aim_at(body: Any, names: Mapping[str, str]) -> None:
    """Replace some names in a body, by key, by those that there are."""
    if isinstance(body, dict):
        body.update({key: name for key, name in names.items() if is_odd(body.get(key))})


def aim_at_service(operation: str, body: Any, worker_url: str) -> None:
    """Name the worker and, often, the process that there is, and wait for nothing."""
    if not isinstance(body, dict):
        return
    if "callId" in body:
        aim_at_service(str(body.get("operation")), body.get("body"), worker_url)
        return
    if isinstance(body.get("workerUrl"), str):
        body["workerUrl"] = worker_url
    aim_at_service("start", body.get("start"), worker_url)
    if operation.startswith("wait-for"):
        body["timeoutMs"] = LONGEST_WAIT_MS
    if operation != "start" and is_odd(body.get("processId")):
        body.pop("namespace", None)
        body["processId"] = START["processId"]
    aim_at(body, {"rpcName": "echo", "stateId": "Wait", "queueName": "names"})
    for mapped in (body, body.get("read")):
        if isinstance(mapped, dict):
            for table in (*as_list(mapped.get("tables")), *as_list(mapped.get("writeTables"))):
                aim_at(table, {"tableName": "account"})


def aim_at_worker(body: Any) -> None:
    """Name what the worker has, often."""
    if not isinstance(body, dict):
        return
    aim_at_worker(body.get("body"))
    aim_at(body, {"processType": "Greeter", "rpcName": "echo", "stateId": "Wait"})


def check(schema: schemathesis.BaseSchema, case: schemathesis.Case[Any], response: schemathesis.Response) -> None:
    """Check an answer, and each line of one that has many."""
    case.validate_response(response)
    if case.media_type == BATCH_CONTENT_TYPE and response.status_code == 200:
        line_schema = {"$ref": "#/components/schemas/AnswerLine", "components": schema.raw_schema["components"]}
        for line in response.content.splitlines():
            answer = json.loads(line)
            Draft202012Validator(line_schema).validate(answer)
            assert answer["status"] != 500, answer


@SERVICE.parametrize()
def test_server_answers_as_documented_whatever_the_document_allows(
    case: schemathesis.Case[Any], server_url: str, worker_url: str, session: requests.Session
) -> None:
    operation = case.path.removeprefix(SERVICE_PREFIX)
    aim_at_service(operation, case.body, worker_url)
    if operation != "start":
        running = START | {"workerUrl": worker_url, "ignoreAlreadyStarted": True}
        assert session.post(server_url + path_of("start"), json=running, timeout=30).status_code == 200

    check(SERVICE, case, case.call(base_url=server_url, session=session))


@WORKER.parametrize()
def test_worker_answers_as_documented_whatever_the_document_allows(
    case: schemathesis.Case[Any], worker_url: str, session: requests.Session
) -> None:
    aim_at_worker(case.body)

    check(WORKER, case, case.call(base_url=worker_url, session=session))
