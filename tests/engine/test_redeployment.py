"""Executions that are under way when their worker is deployed anew (semantics 7.4; stored data of older classes)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from pydantic import AliasChoices, BaseModel, Field

from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    DataAttribute,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessStartOptions,
    Registry,
    StateDecision,
    StateSchema,
    Worker,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)

A_DAY = ProcessStartOptions(timeout=timedelta(days=1))

run_sql: Callable[..., Any]
calls: list[int] = []


@pytest.fixture(autouse=True)
def application(system: System) -> None:
    """Give the application its table."""
    global run_sql
    run_sql = system.sql
    calls.clear()
    system.sql("CREATE TABLE item (item_id VARCHAR(255) PRIMARY KEY, stock INTEGER, place TEXT, note TEXT)")
    system.sql("INSERT INTO item VALUES ('i', 1, 'shelf', NULL)")


def redeploy(system: System, *processes: Any) -> None:
    """Put another version of the worker in the place of the first."""
    registry = Registry()
    registry.add_processes(*processes)
    system.route(WORKER_URL, Worker(registry))


# --- attributes that are added to a definition ---


class Step(AsyncState[None]):
    """Waits until the worker has been deployed anew."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("go"))


@state(state_id="Step", execute_api_data_attributes_loading_policy=PersistenceLoadingPolicy.all().locking(["stock"]))
class OldStep(Step):
    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process()


@state(state_id="Step")
class NewStep(Step):
    """Reads an attribute that its execution was not created to read."""

    def execute(self, persistence: Persistence) -> StateDecision:
        stock, place = persistence.get_data_attribute("stock"), persistence.get_data_attribute("place")
        persistence.set_data_attribute("note", f"{stock} on the {place}")
        return StateDecision.graceful_complete_process(f"{stock} on the {place}")


@state(state_id="Step")
class DisturbedStep(Step):
    """Has the application change what the old version of the state locked, the first time."""

    def execute(self, persistence: Persistence) -> StateDecision:
        stock, place = persistence.get_data_attribute("stock"), persistence.get_data_attribute("place")
        calls.append(stock)
        if len(calls) == 1:
            run_sql("UPDATE item SET stock = 7")
        return StateDecision.graceful_complete_process(f"{stock} on the {place}")


class OldBase(ObjectProcess):
    stock = data_attribute(int)
    go = internal_queue(None)
    starting_state = OldStep

    @rpc
    def where(self, persistence: Persistence) -> str:
        return f"{persistence.get_data_attribute('stock')} somewhere"


class NewBase(ObjectProcess):
    stock = data_attribute(int)
    place: DataAttribute[str | None] = data_attribute(str | None)
    note = data_attribute(str)
    go = internal_queue(None)
    starting_state: ClassVar[Any] = NewStep

    @rpc
    def where(self, persistence: Persistence) -> str:
        return f"{persistence.get_data_attribute('stock')} on the {persistence.get_data_attribute('place')}"


@process(type_name="Item", table_name="item", primary_key="item_id", primary_key_type=str)
class OldItem(OldBase):
    pass


@process(type_name="Item", table_name="item", primary_key="item_id", primary_key_type=str)
class NewItem(NewBase):
    pass


@process(type_name="Item", table_name="item", primary_key="item_id", primary_key_type=str)
class DisturbedItem(NewBase):
    starting_state = DisturbedStep


@process(type_name="LocalItem")
class OldLocalItem(OldBase):
    pass


@process(type_name="LocalItem")
class NewLocalItem(NewBase):
    pass


async def start_old(system: System, process_class: type[OldBase]) -> None:
    system.serve(process_class)
    if process_class is OldItem:
        await system.client.start_object_process("p", process_class, "i", None, A_DAY)
    else:
        await system.client.start_process("p", process_class, None, A_DAY)
        await system.client.set_data_attributes("p", process_class, {"stock": 1})
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [(OldItem, NewItem, "1 on the shelf"), (OldLocalItem, NewLocalItem, "1 on the None")],
    ids=["mapped", "process-local"],
)
async def test_attribute_that_a_new_worker_reads_is_read_for_an_old_execution_without_an_attempt(
    system: System, old: type[OldBase], new: type[NewBase], result: str
) -> None:
    await start_old(system, old)

    redeploy(system, new)
    await system.client.publish_to_internal_queue("p", old, OldBase.go)
    found = await system.client.wait_for_process_completion("p", str)

    assert found == result
    executes = [call for call in system.worker.calls if call["operation"] == "execute"]
    assert [call["body"]["context"]["attempt"] for call in executes] == [1, 1]


async def test_process_local_value_that_an_old_execution_has_is_read_by_a_new_worker(system: System) -> None:
    await start_old(system, OldLocalItem)
    await system.raw.set_data_attributes("p", {"place": "floor"})

    redeploy(system, NewLocalItem)
    await system.client.publish_to_internal_queue("p", OldLocalItem, OldBase.go)

    assert await system.client.wait_for_process_completion("p", str) == "1 on the floor"


async def test_column_that_came_with_the_new_worker_is_read_and_written(system: System) -> None:
    system.sql("ALTER TABLE item DROP COLUMN place")
    system.sql("ALTER TABLE item DROP COLUMN note")
    await start_old(system, OldItem)

    system.sql("ALTER TABLE item ADD COLUMN place TEXT DEFAULT 'floor'")
    system.sql("ALTER TABLE item ADD COLUMN note TEXT")
    redeploy(system, NewItem)
    await system.client.publish_to_internal_queue("p", OldItem, OldBase.go)
    await system.client.wait_for_process_completion("p", str)

    assert system.sql("SELECT * FROM item") == [("i", 1, "floor", "1 on the floor")]


async def test_what_an_old_execution_locks_stays_locked_when_its_worker_asks_for_more(system: System) -> None:
    await start_old(system, OldItem)

    redeploy(system, DisturbedItem)
    await system.client.publish_to_internal_queue("p", OldItem, OldBase.go)
    result = await system.client.wait_for_process_completion("p", str)

    assert calls == [1, 7]
    assert result == "7 on the shelf"


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [(OldItem, NewItem, "1 on the shelf"), (OldLocalItem, NewLocalItem, "1 on the None")],
    ids=["mapped", "process-local"],
)
async def test_rpc_of_an_old_client_is_given_what_a_new_worker_reads(
    system: System, old: type[OldBase], new: type[NewBase], result: str
) -> None:
    await start_old(system, old)
    before = await system.client.invoke_rpc("p", old.where)

    redeploy(system, new)
    after = await system.client.invoke_rpc("p", old.where)

    assert (before, after) == ("1 somewhere", result)


@state(state_id="Step")
class AskingStep(AsyncState[None]):
    """Reads already in wait_until, for which its execution was created to read nothing."""

    def wait_until(self, persistence: Persistence) -> CommandRequest:
        persistence.set_state_execution_local("place", persistence.get_data_attribute("place"))
        return CommandRequest.empty()

    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(persistence.get_state_execution_local("place"))


@process(type_name="Item", table_name="item", primary_key="item_id", primary_key_type=str)
class AskingItem(NewBase):
    starting_state: ClassVar[Any] = AskingStep


async def test_attribute_that_a_new_worker_reads_in_wait_until_is_read_too(system: System) -> None:
    redeploy(system, AskingItem)

    await start_old(system, OldItem)

    assert await system.client.wait_for_process_completion("p", str) == "shelf"
    waits = [call["body"]["context"]["attempt"] for call in system.worker.calls if call["operation"] == "wait-until"]
    assert waits == [1, 1]


@process(type_name="Item", table_name="other", primary_key="item_id", primary_key_type=str)
class StrayItem(NewBase):
    """A worker's mistake: it asks for a row of a table that its executions are not mapped to."""


async def test_worker_that_asks_for_a_row_of_a_stranger_fails_the_attempt(system: System) -> None:
    system.sql("CREATE TABLE other (item_id VARCHAR(255) PRIMARY KEY, stock INTEGER, place TEXT, note TEXT)")
    await start_old(system, OldItem)

    redeploy(system, StrayItem)
    await system.client.publish_to_internal_queue("p", OldItem, OldBase.go)
    await asyncio.sleep(0.5)
    [failed] = (await system.client.describe_process("p")).states
    redeploy(system, NewItem)

    assert failed.last_failure is not None
    assert "not mapped to a row of table 'other'" in failed.last_failure.details
    assert await system.client.wait_for_process_completion("p", str) == "1 on the shelf"


# --- stored data of an older class ---

OrderT = TypeVar("OrderT")


class Ship(AsyncState[OrderT], Generic[OrderT]):
    """Waits with its input stored, and then tells what it reads of it."""

    def get_state_options(self) -> AsyncStateOptions:
        return AsyncStateOptions(state_id="Ship")

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("go"))

    def execute(self, input: OrderT) -> StateDecision:
        return StateDecision.graceful_complete_process(repr(input))


@process(type_name="Shipping")
class Shipping(ObjectProcess):
    go = internal_queue(None)

    def __init__(self, ship: AsyncState[Any]) -> None:
        self._ship = ship

    def get_async_states(self) -> StateSchema:
        return StateSchema.with_starting_state(self._ship)


@dataclass
class Order:
    item: str
    count: int


class OrderModel(BaseModel):
    item: str
    count: int


@dataclass
class WithDefault(Order):
    gift: bool = False


class WithDefaultModel(OrderModel):
    gift: bool = False


@dataclass
class WithOptional(Order):
    note: str | None = None


class WithOptionalModel(OrderModel):
    note: str | None = None


@dataclass
class WithoutCount:
    item: str


class WithoutCountModel(BaseModel):
    item: str


class RenamedModel(BaseModel):
    item: str
    quantity: int = Field(validation_alias=AliasChoices("quantity", "count"))


@dataclass
class WithRequired(Order):
    address: str


class WithRequiredModel(OrderModel):
    address: str


class ShipOrder(Ship[Order]): ...


class ShipOrderModel(Ship[OrderModel]): ...


class ShipWithDefault(Ship[WithDefault]): ...


class ShipWithDefaultModel(Ship[WithDefaultModel]): ...


class ShipWithOptional(Ship[WithOptional]): ...


class ShipWithOptionalModel(Ship[WithOptionalModel]): ...


class ShipWithoutCount(Ship[WithoutCount]): ...


class ShipWithoutCountModel(Ship[WithoutCountModel]): ...


class ShipRenamedModel(Ship[RenamedModel]): ...


class ShipWithRequired(Ship[WithRequired]): ...


class ShipWithRequiredModel(Ship[WithRequiredModel]): ...


async def start_shipping(system: System, ship: AsyncState[Any], order: Any) -> None:
    system.serve(Shipping(ship))
    await system.client.start_process("p", Shipping, order, A_DAY)
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("old", "new", "read"),
    [
        (ShipOrder, ShipWithDefault, WithDefault("screw", 5)),
        (ShipOrderModel, ShipWithDefaultModel, WithDefaultModel(item="screw", count=5)),
        (ShipOrder, ShipWithOptional, WithOptional("screw", 5)),
        (ShipOrderModel, ShipWithOptionalModel, WithOptionalModel(item="screw", count=5)),
        (ShipOrder, ShipWithoutCount, WithoutCount("screw")),
        (ShipOrderModel, ShipWithoutCountModel, WithoutCountModel(item="screw")),
        (ShipOrderModel, ShipRenamedModel, RenamedModel(item="screw", quantity=5)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_input_of_an_older_class_is_read_by_a_newer_one(
    system: System, old: type[AsyncState[Any]], new: type[AsyncState[Any]], read: Any
) -> None:
    order = Order("screw", 5) if old is ShipOrder else OrderModel(item="screw", count=5)
    await start_shipping(system, old(), order)

    redeploy(system, Shipping(new()))
    await system.client.publish_to_internal_queue("p", Shipping, Shipping.go)

    assert await system.client.wait_for_process_completion("p", str) == repr(read)
    assert system.worker.count("Ship") == 1


@pytest.mark.parametrize(
    ("old", "new", "order"),
    [
        (ShipOrder, ShipWithRequired, Order("screw", 5)),
        (ShipOrderModel, ShipWithRequiredModel, OrderModel(item="screw", count=5)),
    ],
    ids=["dataclass", "model"],
)
async def test_input_that_lacks_a_required_field_fails_attempts_by_name_until_the_worker_is_mended(
    system: System, old: type[AsyncState[Any]], new: type[AsyncState[Any]], order: Any
) -> None:
    await start_shipping(system, old(), order)
    redeploy(system, Shipping(new()))
    await system.client.publish_to_internal_queue("p", Shipping, Shipping.go)
    await asyncio.sleep(10)
    [failed] = (await system.client.describe_process("p")).states

    redeploy(system, Shipping(old()))
    result = await system.client.wait_for_process_completion("p", str)

    assert failed.last_failure is not None
    assert failed.last_failure.attempt > 1
    assert (failed.last_failure.error_type, failed.last_failure.http_status) == ("DecodeError", 400)
    assert "input of state 'Ship': at address:" in failed.last_failure.details
    assert result == repr(order)
