"""What calls are given of a process's data and what becomes of their writes, in a table or not (semantics 5.4, 7)."""

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    CommandRequest,
    Communication,
    DataAttribute,
    EncodeError,
    InternalQueueCommand,
    InvalidArgumentError,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessFailed,
    ProcessNotRunningError,
    ProcessStartOptions,
    RetryPolicy,
    RpcExecutionError,
    StateDecision,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)
from xdb_sdk.protocol import TableWrite

ONE_ATTEMPT = RetryPolicy(maximum_attempts=1)
CONTACT = PersistenceLoadingPolicy.partial(["email", "phone"])
"""A named policy, chosen by a state and by an RPC."""


@pytest.fixture(autouse=True)
def customers(system: System) -> None:
    """Give the application its table."""
    system.sql(
        "CREATE TABLE customer (customer_id VARCHAR(255) PRIMARY KEY, email TEXT, phone TEXT, age INTEGER, name TEXT)"
    )


async def start(system: System, process_class: type[ObjectProcess], input: Any = None, **attributes: Any) -> None:
    """Serve a class and start process "p" of it, mapped to row "c" if it has a table."""
    system.serve(process_class)
    options = ProcessStartOptions(initial_upsert_data_attributes=attributes, timeout=timedelta(days=1))
    if system.registry.process_of(process_class).table is None:
        await system.client.start_process("p", process_class, input, options)
    else:
        await system.client.start_object_process("p", process_class, "c", input, options)


class SetState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute("email", "a@b.c")
        persistence.set_data_attribute("age", (persistence.get_data_attribute("age") or 0) + 1)
        return StateDecision.single_next_state(GetState)


class GetState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(
            [persistence.get_data_attribute("email"), persistence.get_data_attribute("age")]
        )


class CustomerBase(ObjectProcess):
    email = data_attribute(str)
    age = data_attribute(int)

    starting_state = SetState
    states = (GetState,)

    @rpc
    def get(self, persistence: Persistence) -> list[Any]:
        return [persistence.get_data_attribute("email"), persistence.get_data_attribute("age")]


@process(table_name="customer", primary_key="customer_id", primary_key_type=str)
class CustomerProcess(CustomerBase):
    """Its attributes are columns."""


class LocalCustomerProcess(CustomerBase):
    """Its attributes are process-local."""


BOTH_KINDS = pytest.mark.parametrize("process_class", [CustomerProcess, LocalCustomerProcess])


@BOTH_KINDS
async def test_attributes_are_set_at_start_and_in_a_state_and_read_in_the_next_and_in_an_rpc(
    system: System, process_class: type[CustomerBase]
) -> None:
    await start(system, process_class, age=40)

    result = await system.client.wait_for_process_completion("p", list[Any])
    by_rpc = await system.client.invoke_rpc("p", process_class.get)

    assert result == by_rpc == ["a@b.c", 41]


@process(table_name="customer", primary_key="customer_id", primary_key_type=str)
class ColumnsProcess(ObjectProcess):
    email = data_attribute(str)
    phone = data_attribute(str)
    age = data_attribute(int)


class LocalsProcess(ObjectProcess):
    email = data_attribute(str)
    phone = data_attribute(str)
    age = data_attribute(int)


def loaded_names(call: Any) -> set[str]:
    """Give the names of the attributes that a worker was sent."""
    loaded = call["body"].get("loaded", {})
    columns = {name for table in loaded.get("tables", []) for name in table["columns"]}
    return columns | set(loaded.get("localAttributes", {}))


class ReadState(AsyncState[None]):
    """Loads by its policies; its methods only say that they want data."""

    def wait_until(self, persistence: Persistence) -> CommandRequest:
        return CommandRequest.empty()

    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.force_complete_process()


@state(data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["email"]))
class GeneralState(ReadState):
    pass


@state(
    data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["email"]),
    wait_until_api_data_attributes_loading_policy=PersistenceLoadingPolicy.none(),
    execute_api_data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["phone"]).locking(["age"]),
)
class OverridingState(ReadState):
    pass


@state(execute_api_data_attributes_loading_policy=PersistenceLoadingPolicy.all().locking(["age"]))
class LockingAllState(ReadState):
    pass


@state(execute_api_data_attributes_loading_policy=PersistenceLoadingPolicy.none().locking(["age"]))
class LockingOnlyState(ReadState):
    pass


@pytest.mark.parametrize("process_class", [ColumnsProcess, LocalsProcess])
@pytest.mark.parametrize(
    ("state_class", "in_wait_until", "in_execute"),
    [
        (ReadState, {"email", "phone", "age"}, {"email", "phone", "age"}),
        (GeneralState, {"email"}, {"email"}),
        (OverridingState, set(), {"phone", "age"}),
        (LockingAllState, {"email", "phone", "age"}, {"email", "phone", "age"}),
        (LockingOnlyState, {"email", "phone", "age"}, {"age"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_each_method_of_a_state_is_sent_what_its_policy_names(
    system: System,
    process_class: type[ObjectProcess],
    state_class: type[ReadState],
    in_wait_until: set[str],
    in_execute: set[str],
) -> None:
    reading: Any = type("ReadingProcess", (process_class,), {"starting_state": state_class})

    await start(system, reading, email="a@b.c", phone="123", age=40)
    await system.client.wait_for_process_completion("p")

    assert [loaded_names(call) for call in system.worker.calls] == [in_wait_until, in_execute]


@state(execute_api_data_attributes_loading_policy=CONTACT, execute_api_retry_policy=ONE_ATTEMPT)
class ContactState(AsyncState[str]):
    def execute(self, input: str, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(persistence.get_data_attribute(input))


class ContactBase(ObjectProcess):
    email = data_attribute(str)
    phone = data_attribute(str)
    age = data_attribute(int)

    starting_state: ClassVar[Any] = ContactState

    @rpc(data_attribute_loading_policy=CONTACT)
    def read(self, name: str, persistence: Persistence) -> Any:
        return persistence.get_data_attribute(name)

    @rpc(data_attribute_loading_policy=CONTACT)
    def write_unloaded(self, age: int, persistence: Persistence) -> int:
        persistence.set_data_attribute("age", age)
        return int(persistence.get_data_attribute("age"))


@process(table_name="customer", primary_key="customer_id", primary_key_type=str)
class ContactProcess(ContactBase):
    pass


class LocalContactProcess(ContactBase):
    pass


BOTH_CONTACTS = pytest.mark.parametrize("process_class", [ContactProcess, LocalContactProcess])


@BOTH_CONTACTS
async def test_a_named_policy_is_chosen_by_a_state_and_by_an_rpc(
    system: System, process_class: type[ContactBase]
) -> None:
    await start(system, process_class, "phone", email="a@b.c", phone="123", age=40)

    in_state = await system.client.wait_for_process_completion("p", str)
    in_rpc = await system.client.invoke_rpc("p", process_class.read, "phone")

    assert in_state == in_rpc == "123"
    assert [loaded_names(call) for call in system.worker.calls] == [{"email", "phone"}] * 2


@BOTH_CONTACTS
async def test_reading_an_attribute_that_was_not_loaded_is_a_clear_error(
    system: System, process_class: type[ContactBase]
) -> None:
    await start(system, process_class, "age", age=40)

    with pytest.raises(ProcessFailed) as in_state:
        await system.client.wait_for_process_completion("p")
    with pytest.raises(RpcExecutionError) as in_rpc:
        await system.client.invoke_rpc("p", process_class.read, "age")

    problem = "data attribute 'age' is not loaded in"
    assert problem in str(in_state.value)
    assert problem in in_rpc.value.body.details
    assert in_rpc.value.worker_error_type == "AttributeNotLoadedError"


class OpenContactProcess(ContactProcess):
    starting_state = None


async def test_an_attribute_that_was_not_loaded_can_be_written_and_then_read(system: System) -> None:
    await start(system, OpenContactProcess, age=40)

    written = await system.client.invoke_rpc("p", OpenContactProcess.write_unloaded, 41)

    assert written == 41
    assert system.sql("SELECT age FROM customer") == [(41,)]


class OpenBase(ObjectProcess):
    """Open until it is stopped; written from outside."""

    email: DataAttribute[str | None] = data_attribute(str | None)
    age = data_attribute(int)

    @rpc
    def set(self, values: dict[str, Any], persistence: Persistence) -> None:
        for name, value in values.items():
            persistence.set_data_attribute(name, value)

    @rpc
    def get(self, name: str, persistence: Persistence) -> Any:
        return [persistence.has_data_attribute(name), persistence.get_data_attribute(name)]

    @rpc
    def finish(self, communication: Communication) -> None:
        communication.decide(StateDecision.graceful_complete_process())


@process(table_name="customer", primary_key="customer_id", primary_key_type=str)
class OpenProcess(OpenBase):
    pass


class LocalOpenProcess(OpenBase):
    pass


BOTH_OPEN = pytest.mark.parametrize("process_class", [OpenProcess, LocalOpenProcess])

WRONG_VALUES = pytest.mark.parametrize(
    ("name", "value", "error_type"),
    [
        ("agee", 1, InvalidArgumentError),
        ("customer_id", "d", InvalidArgumentError),
        ("age", "forty", EncodeError),
        ("age", 40.5, EncodeError),
        ("age", True, EncodeError),
        ("age", None, EncodeError),
        ("email", 5, EncodeError),
    ],
    ids=str,
)


@BOTH_OPEN
@WRONG_VALUES
async def test_values_that_do_not_fit_the_declaration_are_refused_before_they_are_sent(
    system: System, process_class: type[OpenBase], name: str, value: Any, error_type: type[Exception]
) -> None:
    await start(system, process_class, age=40)
    options = ProcessStartOptions(initial_upsert_data_attributes={name: value})
    is_mapped = process_class is OpenProcess

    with pytest.raises(error_type, match=name):
        await system.client.set_data_attributes("p", process_class, {"email": "new", name: value})
    start_other = system.client.start_object_process("q", process_class, "d", None, options)
    if not is_mapped:
        start_other.close()
        start_other = system.client.start_process("q", process_class, None, options)
    with pytest.raises(error_type, match=name):
        await start_other

    found = await system.client.get_data_attributes("p", process_class)
    assert found == ({"email": None, "age": 40} if is_mapped else {"age": 40})
    assert [each.process_id async for each in system.client.list_processes()] == ["p"]


@BOTH_OPEN
@WRONG_VALUES
async def test_method_that_sets_a_value_that_does_not_fit_fails_and_writes_nothing(
    system: System, process_class: type[OpenBase], name: str, value: Any, error_type: type[Exception]
) -> None:
    await start(system, process_class, age=40)

    with pytest.raises(RpcExecutionError) as failure:
        await system.client.invoke_rpc("p", process_class.set, {"email": "new", name: value})

    assert failure.value.worker_error_type == error_type.__name__
    assert name in failure.value.body.details
    assert await system.client.invoke_rpc("p", process_class.get, "email") == [False, None]


async def test_process_local_none_is_a_value_and_a_column_of_null_is_none(system: System) -> None:
    await start(system, LocalOpenProcess)
    await system.client.invoke_rpc("p", LocalOpenProcess.set, {"email": None})

    stored = await system.client.invoke_rpc("p", LocalOpenProcess.get, "email")
    unset = await system.client.invoke_rpc("p", LocalOpenProcess.get, "age")

    assert (stored, unset) == ([True, None], [False, None])
    assert await system.client.get_data_attributes("p", LocalOpenProcess) == {"email": None}


@BOTH_OPEN
async def test_attributes_are_read_from_outside_all_or_by_key_and_none_is_no_error(
    system: System, process_class: type[OpenBase]
) -> None:
    await start(system, process_class)

    nothing = await system.client.get_data_attributes("p", process_class)
    await system.client.set_data_attributes("p", process_class, {OpenBase.age: 40, "email": "a@b.c"})
    everything = await system.client.get_data_attributes("p", process_class)
    one = await system.client.get_data_attributes("p", process_class, [OpenBase.age])
    none = await system.client.get_data_attributes("p", process_class, [])

    assert nothing == ({"email": None, "age": None} if process_class is OpenProcess else {})
    assert everything == {"email": "a@b.c", "age": 40}
    assert (one, none) == ({"age": 40}, {})


class ReportState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("go"))

    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(persistence.get_data_attribute("age"))


class ReportBase(ObjectProcess):
    age = data_attribute(int)
    go = internal_queue(None)
    starting_state = ReportState


@process(table_name="customer", primary_key="customer_id", primary_key_type=str)
class ReportProcess(ReportBase):
    pass


class LocalReportProcess(ReportBase):
    pass


@pytest.mark.parametrize("process_class", [ReportProcess, LocalReportProcess])
async def test_attribute_that_is_set_from_outside_is_seen_by_the_next_call(
    system: System, process_class: type[ReportBase]
) -> None:
    await start(system, process_class, age=40)
    await asyncio.sleep(1)

    await system.client.set_data_attributes("p", process_class, {"age": 41})
    await system.client.publish_to_internal_queue("p", process_class, ReportBase.go)

    assert await system.client.wait_for_process_completion("p", int) == 41


@BOTH_OPEN
async def test_attributes_of_a_closed_process_can_be_read_and_not_set(
    system: System, process_class: type[OpenBase]
) -> None:
    await start(system, process_class, age=40)
    await system.client.invoke_rpc("p", process_class.finish)

    with pytest.raises(ProcessNotRunningError) as failure:
        await system.client.set_data_attributes("p", process_class, {"age": 41})

    assert failure.value.status == 409
    assert await system.client.get_data_attributes("p", process_class, ["age"]) == {"age": 40}


async def test_unknown_attributes_from_outside_are_refused_by_name(system: System) -> None:
    await start(system, OpenProcess)

    with pytest.raises(InvalidArgumentError, match="agee"):
        await system.client.get_data_attributes("p", OpenProcess, ["agee"])
    with pytest.raises(ClientSideError, match="agee"):
        await system.raw.set_data_attributes("p", {}, tables=[TableWrite(table_name="customer", columns={"agee": 1})])
