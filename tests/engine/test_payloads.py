"""Awkward payloads: what no database stores, nothing at all, false values, and very much of it."""

import asyncio
import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.support.asgi import AsgiTransport
from tests.support.system import SERVER_URL, System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    CommandRequest,
    CommandResults,
    Communication,
    DataAttribute,
    EncodeError,
    InternalQueueCommand,
    InvalidArgumentError,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessFailed,
    ProcessStartOptions,
    ProcessStatus,
    QueueCommandStatus,
    QueueMessage,
    RetryPolicy,
    RpcExecutionError,
    StateDecision,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)

A_DAY = ProcessStartOptions(timeout=timedelta(days=1))
ONE_ATTEMPT = RetryPolicy(maximum_attempts=1)
UNSTORABLE = {"NUL": "a\0b", "lone surrogate": "a\ud800b"}
BY_UNSTORABLE = pytest.mark.parametrize("text", UNSTORABLE.values(), ids=UNSTORABLE)


# --- text that no database stores ---


@state(execute_api_retry_policy=ONE_ATTEMPT)
class SpoilState(AsyncState[str]):
    """Lets unstorable text out by the way that its input names."""

    def execute(self, input: str, persistence: Persistence, communication: Communication) -> StateDecision:
        way, _, name = input.partition(" ")
        text = UNSTORABLE[name]
        match way:
            case "attribute":
                persistence.set_data_attribute("note", text)
            case "state-local":
                persistence.set_state_execution_local("x", text)
            case "event":
                persistence.record_event("x", text)
            case "message":
                communication.publish_to_internal_queue("queue", text)
            case "input":
                return StateDecision.single_next_state(SpoilState, text)
            case "error":
                raise ValueError(text)
        return StateDecision.graceful_complete_process(text)


@process(table_name="note", primary_key="note_id", primary_key_type=str)
class SpoilProcess(ObjectProcess):
    note = data_attribute(str)
    queue = internal_queue(str)
    starting_state = SpoilState


class EchoProcess(ObjectProcess):
    note = data_attribute(str)
    queue = internal_queue(str)

    @rpc
    def echo(self, text: str) -> str:
        return text

    @rpc
    def spoil(self, name: str) -> str:
        return UNSTORABLE[name]


@BY_UNSTORABLE
async def test_client_refuses_text_that_no_database_stores_before_it_is_sent(system: System, text: str) -> None:
    system.sql("CREATE TABLE note (note_id VARCHAR(255) PRIMARY KEY, note TEXT)")
    system.serve(SpoilProcess, EchoProcess)
    client = system.client
    await client.start_process("echo", EchoProcess, None, A_DAY)
    initial = ProcessStartOptions(initial_upsert_data_attributes={"note": text})

    for call, error_type in (
        (client.start_object_process("p", SpoilProcess, "n", text), EncodeError),
        (client.start_object_process("p", SpoilProcess, text, "x"), EncodeError),
        (client.start_object_process("p", SpoilProcess, "n", "x", initial), EncodeError),
        (client.start_object_process(text, SpoilProcess, "n", "x"), InvalidArgumentError),
        (client.invoke_rpc("echo", EchoProcess.echo, text), EncodeError),
        (client.publish_to_internal_queue("echo", EchoProcess, "queue", text), EncodeError),
        (client.publish_to_internal_queue("echo", EchoProcess, text, "x"), InvalidArgumentError),
        (client.set_data_attributes("echo", EchoProcess, {"note": text}), EncodeError),
        (client.set_data_attributes("echo", EchoProcess, {text: "x"}), InvalidArgumentError),
        (client.describe_process(text), InvalidArgumentError),
    ):
        with pytest.raises(error_type):
            await call

    assert [each.process_id async for each in client.list_processes()] == ["echo"]
    assert system.worker.calls == []
    assert system.sql("SELECT * FROM note") == []


@pytest.mark.parametrize("name", UNSTORABLE)
@pytest.mark.parametrize("way", ["attribute", "state-local", "event", "message", "input", "output"])
async def test_worker_refuses_text_that_no_database_stores_by_the_place_it_is_for(
    system: System, way: str, name: str
) -> None:
    system.sql("CREATE TABLE note (note_id VARCHAR(255) PRIMARY KEY, note TEXT)")
    system.serve(SpoilProcess)
    await system.client.start_object_process("p", SpoilProcess, "n", f"{way} {name}", A_DAY)

    with pytest.raises(ProcessFailed) as failure:
        await system.client.wait_for_process_completion("p")

    place = {
        "attribute": "data attribute 'note' of SpoilProcess",
        "state-local": "state local 'x'",
        "event": "event 'x'",
        "message": "message of queue 'queue'",
        "input": "input of state 'SpoilState'",
        "output": "output",
    }
    assert place[way] in failure.value.error_message
    assert "cannot be stored" in failure.value.error_message


@pytest.mark.parametrize("name", UNSTORABLE)
async def test_unstorable_text_in_an_error_is_replaced(system: System, name: str) -> None:
    system.sql("CREATE TABLE note (note_id VARCHAR(255) PRIMARY KEY, note TEXT)")
    system.serve(SpoilProcess)
    await system.client.start_object_process("p", SpoilProcess, "n", f"error {name}", A_DAY)

    with pytest.raises(ProcessFailed, match="a\ufffdb"):
        await system.client.wait_for_process_completion("p")

    info = await system.client.describe_process("p")
    assert info.error is not None
    assert (info.error.worker_error_type, "a\ufffdb" in info.error.details) == ("ValueError", True)


@pytest.mark.parametrize("name", UNSTORABLE)
async def test_unstorable_output_of_an_rpc_fails_the_call(system: System, name: str) -> None:
    system.serve(EchoProcess)
    await system.client.start_process("p", EchoProcess, None, A_DAY)

    with pytest.raises(RpcExecutionError, match=r"output of RPC 'spoil': .*cannot be stored") as failure:
        await system.client.invoke_rpc("p", EchoProcess.spoil, name)

    assert failure.value.worker_error_type == "EncodeError"


@pytest.mark.parametrize("escape", [r"\u0000", r"\ud800"], ids=UNSTORABLE)
@pytest.mark.parametrize("field", ["processId", "processType", "stateId"])
async def test_server_refuses_names_that_no_database_stores(system: System, escape: str, field: str) -> None:
    fields = {"processId": "p", "processType": "T", "workerUrl": "http://worker"}
    start: dict[str, Any] = fields | {"startingState": {"stateId": "S", "input": None}}
    (start if field in start else start["startingState"])[field] = "REPLACED"
    body = json.dumps(start).replace("REPLACED", f"a{escape}b").encode()

    async with (
        AsgiTransport({SERVER_URL: system.server.api}) as transport,
        transport.post(f"{SERVER_URL}/api/v1/xdb/service/process-execution/start", body, {}, 10) as answer,
    ):
        content = b"".join([chunk async for chunk in answer.chunks()])

    assert (answer.status, json.loads(content)["errorSubType"]) == (400, "INVALID_REQUEST")
    assert [each async for each in system.raw.list_processes()] == []


# --- nothing ---


class NothingState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(
            InternalQueueCommand.by_name("bell"), InternalQueueCommand.by_name("maybe", 2)
        )

    def execute(self, input: None, command_results: CommandResults) -> StateDecision:
        bell, maybe = command_results.internal_queue_commands
        assert bell.status is QueueCommandStatus.RECEIVED
        return StateDecision.graceful_complete_process([input, bell.value, *maybe.values])


class NothingProcess(ObjectProcess):
    note: DataAttribute[str | None] = data_attribute(str | None)
    bell = internal_queue(None)
    maybe: Any = internal_queue(int | None)

    starting_state = NothingState

    @rpc
    def get(self, missing: int | None, persistence: Persistence) -> list[Any]:
        return [missing, persistence.has_data_attribute("note"), persistence.get_data_attribute("note")]

    @rpc
    def nothing(self) -> None:
        return None


async def test_none_is_a_message_a_value_and_an_input(system: System) -> None:
    system.serve(NothingProcess)
    client = system.client
    await client.start_process("p", NothingProcess, None, A_DAY)

    await client.publish_to_internal_queue("p", NothingProcess, NothingProcess.bell)
    await client.publish_to_internal_queue("p", NothingProcess, NothingProcess.maybe, None)
    unset = await client.invoke_rpc("p", NothingProcess.get, None)
    await client.set_data_attributes("p", NothingProcess, {"note": None})
    set_to_none = await client.invoke_rpc("p", NothingProcess.get, None)
    empty = await system.raw.invoke_rpc("p", "nothing")
    await client.publish_to_internal_queue("p", NothingProcess, NothingProcess.maybe, 0)

    assert (unset, set_to_none, empty) == ([None, False, None], [None, True, None], None)
    assert await client.wait_for_process_completion("p", list[Any]) == [None, None, None, 0]


async def test_what_another_client_leaves_out_decodes_as_none(system: System) -> None:
    system.serve(NothingProcess)
    await system.client.start_process("p", NothingProcess, None, A_DAY)
    path = f"{SERVER_URL}/api/v1/xdb/service/process-execution"

    async def call(name: str, body: Any) -> Any:
        data = json.dumps({"processId": "p"} | body).encode()
        async with (
            AsgiTransport({SERVER_URL: system.server.api}) as transport,
            transport.post(f"{path}/{name}", data, {}, 10) as answer,
        ):
            return answer.status, json.loads(b"".join([chunk async for chunk in answer.chunks()]))

    found = await call("rpc", {"rpcName": "get"})
    published = [
        await call("publish", {"messages": [{"queueName": "bell"}]}),
        await call("publish", {"messages": [{"queueName": "maybe"}, {"queueName": "maybe", "payload": None}]}),
    ]

    assert (found[0], found[1]["output"]) == (200, [None, False, None])
    assert [status for status, _ in published] == [200, 200]
    assert await system.client.wait_for_process_completion("p", list[Any]) == [None, None, None, None]


# --- what is false ---

FALSE_VALUES: dict[str, Any] = {
    "number": 0,
    "answer": False,
    "text": "",
    "items": [],
    "amount": Decimal(0),
    "time": timedelta(0),
}


class FalseBase(ObjectProcess):
    number = data_attribute(int)
    answer = data_attribute(bool)
    text = data_attribute(str)
    items = data_attribute(list[int])
    amount = data_attribute(Decimal)
    time = data_attribute(timedelta)

    @rpc
    def set(self, persistence: Persistence) -> None:
        for name, value in FALSE_VALUES.items():
            persistence.set_data_attribute(name, value)

    @rpc
    def are_there(self, persistence: Persistence) -> list[bool]:
        return [
            persistence.has_data_attribute(name)
            and persistence.get_data_attribute(name) == value
            and type(persistence.get_data_attribute(name)) is type(value)
            for name, value in FALSE_VALUES.items()
        ]


@process(table_name="falsy", primary_key="falsy_id", primary_key_type=str)
class FalseProcess(FalseBase):
    pass


class LocalFalseProcess(FalseBase):
    pass


@pytest.mark.parametrize("process_class", [FalseProcess, LocalFalseProcess])
async def test_false_values_are_present_for_every_accessor(system: System, process_class: type[FalseBase]) -> None:
    system.sql(
        "CREATE TABLE falsy (falsy_id VARCHAR(255) PRIMARY KEY, number INTEGER, answer BOOLEAN, text TEXT, items JSON,"
        " amount NUMERIC(6,2), time INTEGER)"
    )
    system.serve(process_class)
    if process_class is FalseProcess:
        await system.client.start_object_process("p", process_class, "f", None, A_DAY)
    else:
        await system.client.start_process("p", process_class, None, A_DAY)
    before = await system.client.invoke_rpc("p", process_class.are_there)

    await system.client.invoke_rpc("p", process_class.set)

    assert before == [False] * 6
    assert await system.client.invoke_rpc("p", process_class.are_there) == [True] * 6
    assert await system.client.get_data_attributes("p", process_class) == FALSE_VALUES
    for name, value in FALSE_VALUES.items():
        assert await system.client.get_data_attributes("p", process_class, [name]) == {name: value}


# --- very much ---


@state(execute_api_data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["item.7"]))
class PickState(AsyncState[None]):
    """Takes two of many messages, and looks at one of many attributes."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("queue", 2))

    def execute(self, command_results: CommandResults, persistence: Persistence) -> StateDecision:
        first, second = command_results.internal_queue_commands[0].values
        return StateDecision.graceful_complete_process(
            [first[:3], second[:3], persistence.get_data_attribute("item.7")]
        )


class HoardProcess(ObjectProcess):
    items = data_attribute(str, prefix="item.")
    queue = internal_queue(str)

    states = (PickState,)

    @rpc(data_attribute_loading_policy=PersistenceLoadingPolicy.none())
    def begin(self, communication: Communication) -> None:
        communication.trigger_state_execution(PickState)


async def test_process_with_much_data_goes_on_and_is_sent_only_what_it_asks_for(system: System) -> None:
    system.serve(HoardProcess)
    await system.client.start_process("p", HoardProcess, None, A_DAY)
    for start in range(0, 10_000, 2_000):
        messages = [QueueMessage(queue="queue", value=f"{n:<1000}") for n in range(start, start + 2_000)]
        await system.client.publish_messages("p", HoardProcess, messages)
    for start in range(0, 2_000, 1_000):
        items = {f"item.{n}": f"{n:<2000}" for n in range(start, start + 1_000)}
        await system.client.set_data_attributes("p", HoardProcess, items)
    info = await system.client.describe_process("p", include={"queues"})

    await system.client.invoke_rpc("p", HoardProcess.begin)
    result = await system.client.wait_for_process_completion("p", list[str])

    assert info.queue_sizes == {"queue": 10_000}
    assert result == ["0  ", "1  ", f"{7:<2000}"]
    assert max(len(json.dumps(call)) for call in system.worker.calls) < 10_000
    assert system.sql("SELECT count(*) FROM xdb_sys_internal_queue") == [(0,)]


async def test_integer_too_long_for_any_parser_is_refused_by_name(system: System) -> None:
    class NumberProcess(ObjectProcess):
        number = data_attribute(int)

    system.serve(NumberProcess)
    await system.client.start_process("p", NumberProcess, None, A_DAY)

    with pytest.raises(EncodeError, match=r"data attribute 'number'.*4000 digits"):
        await system.client.set_data_attributes("p", NumberProcess, {"number": 10**5_000})


class AddOneState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        return StateDecision.graceful_complete_process(input + 1)


class DigitsProcess(ObjectProcess):
    starting_state = AddOneState


async def test_digits_of_a_large_integer_are_the_same_in_a_description(system: System) -> None:
    system.serve(DigitsProcess)

    await system.client.start_process("p", DigitsProcess, 10**400, A_DAY)
    await asyncio.sleep(1)
    info = await system.client.describe_process("p")

    assert info.status is ProcessStatus.COMPLETED
    assert info.outputs[0].output == 10**400 + 1


@pytest.mark.parametrize("character", ["x", "é", "漢", "🙂"])
async def test_process_id_is_kept_whole_up_to_its_bound_in_bytes_and_refused_above(
    system: System, character: str
) -> None:
    system.serve(EchoProcess)
    filled = character * (255 // len(character.encode()))
    longest = filled + "x" * (255 - len(filled.encode()))

    for process_id in (longest[:-1], longest):
        await system.client.start_process(process_id, EchoProcess, None, A_DAY)
    with pytest.raises(InvalidArgumentError, match="255"):
        await system.client.start_process(longest + "x", EchoProcess, None, A_DAY)

    assert {each.process_id async for each in system.client.list_processes()} == {longest[:-1], longest}
    assert await system.client.invoke_rpc(longest, EchoProcess.echo, "x") == "x"


async def test_value_above_the_limit_is_refused_and_never_cut(system: System) -> None:
    system.serve(EchoProcess)
    await system.client.start_process("p", EchoProcess, None, A_DAY)

    with pytest.raises(ClientSideError) as failure:
        await system.client.set_data_attributes("p", EchoProcess, {"note": "x" * 2**20})

    assert failure.value.status == 400
    assert await system.client.get_data_attributes("p", EchoProcess) == {}
