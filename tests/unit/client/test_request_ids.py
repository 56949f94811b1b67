"""One id for each logical call, kept over its repetitions, and what the callers learn of it."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.unit.client.doubles import SERVER_LOST, HandClock, Outcome, ScriptedTransport, error, good
from tests.unit.client.processes import Bare, Form, Kit, SignUp, WaitState
from xdb_sdk import IdReusePolicy, InvalidArgumentError, NotRegisteredError, ProcessStartOptions, StateDecision
from xdb_sdk.client import (
    Client,
    ClientOptions,
    PublishOrStartResult,
    QueueMessage,
    ResetOptions,
    RpcOrStartResult,
    StartResult,
    StopResult,
    UnregisteredClient,
)
from xdb_sdk.client._request_ids import new_request_id
from xdb_sdk.protocol import (
    BulkAnswer,
    CloseType,
    CompleteStateAnswer,
    DoneAnswer,
    PauseAnswer,
    ProcessStatus,
    PublishAnswer,
    PublishOrStartAnswer,
    ResetAnswer,
    RpcOrStartAnswer,
    RpcServiceAnswer,
    StartAnswer,
    StateDecisionBody,
    StopAnswer,
    TableMapping,
    ThreadCloseDecision,
    WireModel,
)

OF: dict[str, Any] = {"process_execution_id": "e-1"}
STARTED, DONE = StartAnswer(**OF), DoneAnswer(**OF)
STOPPED = StopAnswer(**OF, status=ProcessStatus.TERMINATED)
PAUSED, STATE_COMPLETED = PauseAnswer(**OF), CompleteStateAnswer(**OF, status=ProcessStatus.RUNNING)
CHANGED_MANY, END = BulkAnswer(examined=1, matched=1, changed=1), ThreadCloseDecision(close_type=CloseType.DEAD_END)
RESET = ResetAnswer(**OF, base_process_execution_id="e-0", event_id=1)
PUBLISHED = PublishAnswer(**OF, published=1)
PUBLISHED_OR_STARTED = PublishOrStartAnswer(**OF, published=1, started=True)
RETURNED, RETURNED_OR_STARTED = RpcServiceAnswer(**OF), RpcOrStartAnswer(**OF, started=True)
FORM = {"email": "a@b.c", "age": 7}

TypedCall = tuple[Callable[..., Any], WireModel]
OF_MANY: dict[str, TypedCall] = {
    "stop_processes": (lambda c, **ids: c.stop_processes(**ids), CHANGED_MANY),
    "replace_worker_url": (lambda c, **ids: c.replace_worker_url("http://new", **ids), CHANGED_MANY),
}
"""About many executions: one id for all pages, by which the server bounds what they change."""
OF_OPERATORS: dict[str, TypedCall] = {
    "pause_process": (lambda c, **ids: c.pause_process("p", **ids), PAUSED),
    "resume_process": (lambda c, **ids: c.resume_process("p", **ids), PAUSED),
    "reset_process": (lambda c, **ids: c.reset_process("p", ResetOptions.to_beginning(), **ids), RESET),
    **OF_MANY,
}
TYPED: dict[str, TypedCall] = {
    "start_process": (lambda c, **ids: c.start_process("p", Bare, **ids), STARTED),
    "start_object_process": (lambda c, **ids: c.start_object_process("p", SignUp, 7, 5, **ids), STARTED),
    "start": (lambda c, **ids: c.start("p", SignUp, 5, object_id=7, **ids), STARTED),
    "invoke_rpc": (lambda c, **ids: c.invoke_rpc("p", SignUp.backlog, **ids), RpcServiceAnswer(**OF, output=1)),
    "publish_to_internal_queue": (
        lambda c, **ids: c.publish_to_internal_queue("p", SignUp, SignUp.numbers, 1, **ids),
        PUBLISHED,
    ),
    "publish_messages": (
        lambda c, **ids: c.publish_messages("p", SignUp, [QueueMessage(queue="verify")], **ids),
        PUBLISHED,
    ),
    "publish_or_start": (
        lambda c, **ids: c.publish_or_start("p", SignUp, SignUp.numbers, 1, object_id=7, start_input=5, **ids),
        PUBLISHED_OR_STARTED,
    ),
    "rpc_or_start": (
        lambda c, **ids: c.rpc_or_start("p", SignUp, SignUp.backlog, object_id=7, start_input=5, **ids),
        RpcOrStartAnswer(**OF, started=True, output=1),
    ),
    "set_data_attributes": (lambda c, **ids: c.set_data_attributes("p", Bare, {"note": "n"}, **ids), DONE),
    "skip_timer": (lambda c, **ids: c.skip_timer("p", WaitState, index=0, **ids), DONE),
    "stop_process": (lambda c, **ids: c.stop_process("p", **ids), STOPPED),
    "update_process_config": (lambda c, **ids: c.update_process_config("p", timeout=timedelta(1), **ids), DONE),
    "retry_state": (lambda c, **ids: c.retry_state("p", WaitState, **ids), DONE),
    "complete_state": (
        lambda c, **ids: c.complete_state("p", SignUp, WaitState, StateDecision.dead_end(), **ids),
        STATE_COMPLETED,
    ),
    **OF_OPERATORS,
}
BY_NAMES: dict[str, TypedCall] = {
    "start_process": (lambda c, **ids: c.start_process("p", "T", **ids), STARTED),
    "start": (lambda c, **ids: c.start("p", "T", **ids), STARTED),
    "invoke_rpc": (lambda c, **ids: c.invoke_rpc("p", "r", **ids), RETURNED),
    "call_rpc": (lambda c, **ids: c.call_rpc("p", "r", **ids), RETURNED),
    "publish": (lambda c, **ids: c.publish("p", "q", **ids), PUBLISHED),
    "publish_to_internal_queue": (lambda c, **ids: c.publish_to_internal_queue("p", "q", **ids), PUBLISHED),
    "publish_messages": (lambda c, **ids: c.publish_messages("p", [QueueMessage(queue="q")], **ids), PUBLISHED),
    "publish_or_start": (lambda c, **ids: c.publish_or_start("p", "T", "q", **ids), PUBLISHED_OR_STARTED),
    "rpc_or_start": (lambda c, **ids: c.rpc_or_start("p", "T", "r", **ids), RETURNED_OR_STARTED),
    "set_data_attributes": (lambda c, **ids: c.set_data_attributes("p", {"note": "n"}, **ids), DONE),
    "skip_timer": (lambda c, **ids: c.skip_timer("p", "S", index=0, **ids), DONE),
    "stop_process": (lambda c, **ids: c.stop_process("p", **ids), STOPPED),
    "update_process_config": (lambda c, **ids: c.update_process_config("p", timeout=timedelta(1), **ids), DONE),
    "retry_state": (lambda c, **ids: c.retry_state("p", "S", **ids), DONE),
    "complete_state": (
        lambda c, **ids: c.complete_state("p", "S", StateDecisionBody(thread_close_decision=END), **ids),
        STATE_COMPLETED,
    ),
    **OF_OPERATORS,
}


class NameKit:
    """An UnregisteredClient on a scripted transport."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.transport = ScriptedTransport(*outcomes)
        options = ClientOptions(worker_url="http://worker")
        self.client = UnregisteredClient(options, transport=self.transport, clock=HandClock())


CHANGING = [(Kit, name) for name in TYPED] + [(NameKit, name) for name in BY_NAMES]
EVERY_CHANGE = pytest.mark.parametrize(
    ("kit_type", "name"), CHANGING, ids=[f"{kit.__name__} {name}" for kit, name in CHANGING]
)


def change(kit_type: type[Any], name: str) -> TypedCall:
    return (TYPED if kit_type is Kit else BY_NAMES)[name]


@EVERY_CHANGE
def test_a_change_whose_first_two_answers_are_lost_is_repeated_with_one_id(kit_type: type[Any], name: str) -> None:
    call, answer = change(kit_type, name)
    kit = kit_type(SERVER_LOST, error(503, "UNKNOWN_OUTCOME"), good(answer))

    call(kit.client)

    first, *others = kit.transport.request_ids
    assert others == [first, first]
    assert UUID(first).version == 7


@EVERY_CHANGE
def test_two_calls_have_two_ids(kit_type: type[Any], name: str) -> None:
    call, answer = change(kit_type, name)
    kit = kit_type(good(answer), good(answer))

    call(kit.client)
    call(kit.client)

    assert len(set(kit.transport.request_ids)) == 2


@EVERY_CHANGE
def test_an_id_of_the_callers_own_is_sent_as_it_is(kit_type: type[Any], name: str) -> None:
    call, answer = change(kit_type, name)
    kit = kit_type(good(answer))

    call(kit.client, request_id=" order-7~")

    assert kit.transport.request_ids == [" order-7~"]


@EVERY_CHANGE
@pytest.mark.parametrize(
    ("request_id", "hint"),
    [
        ("", "request id is empty"),
        ("x" * 129, "129 characters long; at most 128"),
        ("a\nb", "not printable ASCII"),
        ("ä", "not printable ASCII"),
        (7, "is a int; it must be a string"),
    ],
    ids=["empty", "long", "newline", "umlaut", "number"],
)
def test_an_id_that_no_server_takes_is_refused_before_anything_is_sent(
    kit_type: type[Any], name: str, request_id: Any, hint: str
) -> None:
    call, _ = change(kit_type, name)
    kit = kit_type()

    with pytest.raises(InvalidArgumentError, match=hint):
        call(kit.client, request_id=request_id)

    assert kit.transport.requests == []


@pytest.mark.parametrize(("client", "calls"), [(Client, TYPED), (UnregisteredClient, BY_NAMES)])
def test_these_are_all_calls_that_take_a_request_id(client: type, calls: dict[str, TypedCall]) -> None:
    methods = inspect.getmembers(client, inspect.isfunction)

    assert {name for name, method in methods if "request_id" in inspect.signature(method).parameters} == set(calls)


def test_a_read_only_rpc_has_no_id_of_its_own() -> None:
    kit = Kit(SERVER_LOST, good(RpcServiceAnswer(**OF, output="pong")))

    kit.client.invoke_rpc("p", SignUp.ping)

    assert kit.transport.request_ids == [None, None]


def test_ids_that_are_made_later_sort_later() -> None:
    earlier, later = new_request_id(), new_request_id()

    assert UUID(earlier).int >> 80 <= UUID(later).int >> 80
    assert UUID(later).variant == UUID(int=0x8000 << 48).variant


def test_a_start_tells_what_came_of_it() -> None:
    answer = StartAnswer(**OF, already_started=True, duplicate=True, mismatch=True)

    result = Kit(good(answer)).client.start("p", Bare)

    assert result == StartResult(process_execution_id="e-1", already_started=True, duplicate=True, mismatch=True)


def test_a_stop_tells_that_it_was_made_before() -> None:
    answer = StopAnswer(**OF, status=ProcessStatus.TERMINATED, duplicate=True)

    result = Kit(good(answer)).client.stop_process("p")

    assert result == StopResult(
        process_execution_id="e-1", status=ProcessStatus.TERMINATED, changed=True, duplicate=True, mismatch=False
    )


@pytest.mark.parametrize(
    ("kit_type", "name"),
    [(kit, name) for kit, name in CHANGING if name not in OF_MANY],
    ids=[f"{kit.__name__} {name}" for kit, name in CHANGING if name not in OF_MANY],
)
def test_an_id_that_was_used_for_something_else_is_logged_with_the_call(
    kit_type: type[Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    call, answer = change(kit_type, name)
    kit = kit_type(good(answer.model_copy(update={"duplicate": True, "mismatch": True})))

    call(kit.client, request_id="order-7")

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "asked for something else" in record.getMessage()
    assert record.getMessage().startswith(f"{vars(record)['call']}: request id 'order-7' ")
    assert "process 'p'" in vars(record)["call"]
    assert vars(record)["request_id"] == "order-7"


# publish_or_start and rpc_or_start


def test_publishing_or_starting_sends_the_message_and_the_whole_start() -> None:
    kit = Kit(good(PUBLISHED_OR_STARTED))
    options = ProcessStartOptions(
        id_reuse_policy=IdReusePolicy.DISALLOW_REUSE,
        timeout=timedelta(seconds=3),
        initial_upsert_data_attributes={SignUp.form: Form("a@b.c", 7)},
        namespace="other",
    )

    result = kit.client.publish_or_start(
        "p", SignUp, SignUp.numbers, 1, "d", object_id=42, start_input=5, start_options=options
    )

    assert result == PublishOrStartResult(
        process_execution_id="e-1", started=True, is_new=True, duplicate=False, mismatch=False
    )
    start = kit.body["start"]
    assert kit.transport.operations == ["publish-or-start"]
    assert kit.body["messages"] == [{"queueName": "numbers", "messageId": "d", "payload": 1}]
    assert (start["namespace"], start["processId"], start["processType"]) == ("other", "p", "SignUp")
    assert (start["objectId"], start["startStateId"], start["startStateInput"]) == (42, "submit", 5)
    assert (start["idReusePolicy"], start["timeoutMs"]) == ("DISALLOW_REUSE", 3000)
    assert start["tables"][0]["initialWrite"] == {"form_json": {"$json": FORM}}
    assert "requestId" not in start


def test_calling_or_starting_sends_the_rpc_and_the_whole_start_and_decodes_the_output() -> None:
    kit = Kit(good(RpcOrStartAnswer(**OF, started=False, output=FORM)))

    result = kit.client.rpc_or_start("p", SignUp, SignUp.verify, "email", object_id=42, start_input=5)

    assert result == RpcOrStartResult(
        process_execution_id="e-1", started=False, output=Form("a@b.c", 7), duplicate=False, mismatch=False
    )
    ((operation, body, timeout_s),) = kit.transport.requests
    assert (operation, body["rpcName"], body["input"], body["timeoutMs"]) == ("rpc-or-start", "verify", "email", 5000)
    assert (body["start"]["processType"], body["start"]["objectId"]) == ("SignUp", 42)
    assert timeout_s > 5


def test_an_rpc_of_another_class_than_is_started_is_refused() -> None:
    kit = Kit()

    with pytest.raises(NotRegisteredError, match=r"SignUp\.ping is no RPC of Bare"):
        kit.client.rpc_or_start("p", Bare, SignUp.ping)

    assert kit.transport.requests == []


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.start("p", Bare, object_id=7),
        lambda c: c.publish_or_start("p", SignUp, SignUp.numbers, 1),
        lambda c: c.publish_or_start("p", SignUp, SignUp.numbers, 1, object_id="seven"),
        lambda c: c.publish_or_start("p", SignUp, "unknown", 1, object_id=7),
        lambda c: c.publish_or_start("p", SignUp, "numbers", "one", object_id=7),
        lambda c: c.rpc_or_start("p", SignUp, SignUp.verify, 7, object_id=7),
        lambda c: c.rpc_or_start("p", SignUp, SignUp.ping, "input", object_id=7),
    ],
    ids=["no table", "no key", "wrong key", "unknown queue", "wrong message", "wrong input", "no input"],
)
def test_what_does_not_fit_the_class_is_refused_before_anything_is_sent(call: Callable[[Client], Any]) -> None:
    kit = Kit()

    with pytest.raises(InvalidArgumentError):
        call(kit.client)

    assert kit.transport.requests == []


def test_publishing_or_starting_by_names_sends_state_and_row() -> None:
    kit = NameKit(good(PUBLISHED_OR_STARTED))

    kit.client.publish_or_start(
        "p",
        "SignUp",
        "q",
        {"n": 1},
        start_input=5,
        starting_state_id="submit",
        table=TableMapping(table_name="t", primary_key={"id": 7}),
    )

    assert kit.transport.bodies == [
        {
            "start": {
                "processId": "p",
                "processType": "SignUp",
                "workerUrl": "http://worker",
                "startStateId": "submit",
                "startStateInput": 5,
                "objectId": 7,
                "tables": [{"tableName": "t", "primaryKey": {"id": 7}}],
            },
            "messages": [{"queueName": "q", "payload": {"n": 1}}],
        }
    ]


def test_an_exclusive_rpc_says_so() -> None:
    kit = NameKit(good(RETURNED), good(RETURNED_OR_STARTED))

    kit.client.invoke_rpc("p", "r", exclusive=True)
    kit.client.rpc_or_start("p", "T", "r", exclusive=True)

    assert [body["exclusive"] for body in kit.transport.bodies] == [True, True]
