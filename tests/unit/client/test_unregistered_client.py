"""The raw client: names and JSON values, without classes."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.client.doubles import HandClock, Outcome, ScriptedTransport, good
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._options import AsyncStateOptions, ProcessStartOptions
from xdb_sdk.client import ClientOptions, QueueMessage, UnregisteredClient
from xdb_sdk.protocol import (
    DoneAnswer,
    GetAttributesAnswer,
    LoadedData,
    ProcessStatus,
    PublishAnswer,
    ReadRequest,
    RpcServiceAnswer,
    StartAnswer,
    StateOptionsConfig,
    TableMapping,
    TableWrite,
    WaitForStateAnswer,
)

STARTED = good(StartAnswer(process_execution_id="e-1"))


def make_client(*outcomes: Outcome) -> tuple[UnregisteredClient, ScriptedTransport]:
    transport = ScriptedTransport(*outcomes)
    options = ClientOptions(worker_url="http://worker")
    return UnregisteredClient(options, transport=transport, clock=HandClock()), transport


def test_a_start_needs_only_names() -> None:
    client, transport = make_client(STARTED)

    assert client.start_process("p", "SignUp", {"a": [1, None]}, starting_state_id="submit") == "e-1"

    assert transport.bodies == [
        {
            "processId": "p",
            "processType": "SignUp",
            "workerUrl": "http://worker",
            "startStateId": "submit",
            "startStateInput": {"a": [1, None]},
        }
    ]


def test_a_start_takes_options_and_a_row_as_they_are_sent() -> None:
    client, transport = make_client(STARTED)

    client.start_process(
        "p",
        "SignUp",
        options=ProcessStartOptions(timeout=timedelta(seconds=1), initial_upsert_data_attributes={"note": "n"}),
        starting_state_id="submit",
        starting_state_options=StateOptionsConfig(skip_wait_until=True),
        table=TableMapping(table_name="t", primary_key={"id": 7}, initial_write={"status": "s"}),
    )

    (body,) = transport.bodies
    assert body["timeoutMs"] == 1000
    assert body["startStateOptions"] == {"skipWaitUntil": True}
    assert body["objectId"] == 7
    assert body["tables"] == [{"tableName": "t", "primaryKey": {"id": 7}, "initialWrite": {"status": "s"}}]
    assert body["localAttributes"] == {"note": "n"}


def test_options_that_need_a_class_are_refused() -> None:
    client, _ = make_client()
    override = AsyncStateOptions(execute_api_timeout_seconds=9)

    with pytest.raises(InvalidArgumentError, match="starting_state_options"):
        client.start_process("p", "SignUp", options=ProcessStartOptions(starting_state_options_override=override))


@pytest.mark.parametrize(
    "value",
    [float("nan"), "a\0b", "\ud800", object(), {"k": set}],
    ids=["NaN", "NUL", "surrogate", "object", "class"],
)
def test_a_value_that_is_no_storable_json_is_refused(value: Any) -> None:
    client, transport = make_client()

    with pytest.raises(InvalidArgumentError):
        client.start_process("p", "SignUp", value)
    with pytest.raises(InvalidArgumentError):
        client.set_data_attributes("p", {"note": value})
    with pytest.raises(InvalidArgumentError, match="message to internal queue 'q'"):
        client.publish_messages("p", [QueueMessage(queue="q", value=value)])

    assert transport.requests == []


def test_an_rpc_without_a_read_set_lets_the_worker_say_what_it_needs() -> None:
    client, transport = make_client(good(RpcServiceAnswer(process_execution_id="e-1", output=[1])))

    assert client.invoke_rpc("p", "verify", "email", timeout=timedelta(seconds=3)) == [1]

    assert transport.bodies == [{"processId": "p", "rpcName": "verify", "input": "email", "timeoutMs": 3000}]
    assert transport.requests[0][2] > 3


def test_messages_go_to_queues_by_name() -> None:
    client, transport = make_client(good(PublishAnswer(process_execution_id="e-1", published=1)))

    assert client.publish_to_internal_queue("p", "q", {"n": 1}, "d") is True

    assert transport.bodies[0]["messages"] == [{"queueName": "q", "messageId": "d", "payload": {"n": 1}}]


def test_attributes_are_read_and_written_as_json() -> None:
    loaded = LoadedData(local_attributes={"note": "n"})
    client, transport = make_client(
        good(GetAttributesAnswer(process_execution_id="e-1", loaded=loaded)),
        good(GetAttributesAnswer(process_execution_id="e-1")),
        good(DoneAnswer(process_execution_id="e-1")),
    )

    assert client.get_data_attributes("p") == loaded
    client.get_data_attributes("p", ReadRequest(local_attributes=("note",)))
    client.set_data_attributes("p", {"note": "m"}, tables=[TableWrite(table_name="t", columns={"c": 1})])

    assert transport.bodies == [
        {"processId": "p", "allLocalAttributes": True},
        {"processId": "p", "read": {"localAttributes": ["note"]}},
        {
            "processId": "p",
            "writeTables": [{"tableName": "t", "columns": {"c": 1}}],
            "writeLocalAttributes": {"note": "m"},
        },
    ]


def test_states_are_named_by_id() -> None:
    answer = WaitForStateAnswer(process_execution_id="e-1", process_status=ProcessStatus.RUNNING, output={"a": 1})
    client, transport = make_client(good(answer), good(DoneAnswer(process_execution_id="e-1")))

    completion = client.wait_for_state_completion("p", "submit", 3, process_execution_id="e-1")
    client.skip_timer("p", "submit", 3, index=0)

    assert completion.output == {"a": 1}
    assert [(body["stateId"], body["number"]) for body in transport.bodies] == [("submit", 3)] * 2
