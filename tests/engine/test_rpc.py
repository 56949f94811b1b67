"""RPCs: what they are given and give back, what they change, and what their callers are told (semantics 5)."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    Communication,
    ErrorSubType,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessNotFoundError,
    ProcessNotRunningError,
    ProcessStatus,
    RpcExecutionError,
    StateDecision,
    Worker,
    data_attribute,
    internal_queue,
    process,
    rpc,
)

ResultT = TypeVar("ResultT")

heard: list[str] = []


async def timed(awaitable: Awaitable[ResultT]) -> tuple[float, ResultT | Exception]:
    """Give the seconds that a call takes, and its result or error."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    result: ResultT | Exception
    try:
        result = await awaitable
    except Exception as error:
        result = error
    return loop.time() - begun_s, result


async def failure_of(awaitable: Awaitable[Any]) -> RpcExecutionError:
    """Give the error that an RPC ends with."""
    with pytest.raises(RpcExecutionError) as failure:
        await awaitable
    return failure.value


class GreeterProcess(ObjectProcess):
    """Answers from outside, and never does anything by itself."""

    @rpc
    def ping(self) -> None:
        heard.append("ping")

    @rpc
    def name(self) -> str:
        return "greeter"

    @rpc
    async def hear(self, text: str) -> None:
        heard.append(text)

    @rpc
    async def greet(self, name: str) -> str:
        return f"hello {name}"


async def test_rpc_may_have_an_input_and_an_output_or_not(system: System) -> None:
    system.serve(GreeterProcess)
    heard.clear()
    await system.client.start_process("p", GreeterProcess)

    outputs = [
        await system.raw.invoke_rpc("p", "ping"),
        await system.client.invoke_rpc("p", GreeterProcess.name),
        await system.raw.invoke_rpc("p", "hear", "news"),
        await system.client.invoke_rpc("p", GreeterProcess.greet, "Ann"),
    ]

    assert outputs == [None, "greeter", None, "hello Ann"]
    assert heard == ["ping", "news"]


async def test_rpc_is_named_by_class_attribute_or_by_a_bound_method(system: System) -> None:
    system.serve(GreeterProcess)
    await system.client.start_process("p", GreeterProcess)

    by_class = await system.client.invoke_rpc("p", GreeterProcess.greet, "Ann")
    by_instance = await system.client.invoke_rpc("p", GreeterProcess().greet, "Ann")

    assert by_class == by_instance == "hello Ann"


class ShipState(AsyncState[str]):
    async def execute(self, input: str) -> StateDecision:
        await asyncio.sleep(1)
        return StateDecision.graceful_complete_process(f"shipped to {input}")


class OrderProcess(ObjectProcess):
    address = data_attribute(str)
    note = data_attribute(str)
    changes = internal_queue(str)

    states = (ShipState,)

    @rpc
    def order(self, address: str, persistence: Persistence, communication: Communication) -> str:
        persistence.set_data_attribute(OrderProcess.address, address)
        communication.publish_to_internal_queue(OrderProcess.changes, "address")
        communication.trigger_state_execution(ShipState, address)
        return "ordered"

    @rpc
    def set_note(self, text: str, persistence: Persistence) -> None:
        persistence.set_data_attribute(OrderProcess.note, text)

    @rpc
    def get_note(self, persistence: Persistence) -> str | None:
        return persistence.get_data_attribute(OrderProcess.note)

    @rpc(read_only=True)
    def peek_note(self, persistence: Persistence) -> str | None:
        return persistence.get_data_attribute(OrderProcess.note)

    @rpc(read_only=True)
    def forbidden_note(self, text: str, persistence: Persistence) -> None:
        persistence.set_data_attribute(OrderProcess.note, text)

    @rpc
    def queue_size(self, communication: Communication) -> int:
        communication.publish_to_internal_queue(OrderProcess.changes, "size asked")
        return communication.get_internal_queue_size(OrderProcess.changes)

    @rpc
    def finish(self, output: str, persistence: Persistence, communication: Communication) -> None:
        persistence.set_data_attribute(OrderProcess.note, "finished")
        communication.decide(StateDecision.graceful_complete_process(output))

    @rpc
    def blind(self) -> str:
        return "seen nothing"


async def test_what_an_rpc_changes_is_visible_when_its_call_returns(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)

    answer = await system.client.invoke_rpc("p", OrderProcess.order, "Berlin")
    attributes = await system.client.get_data_attributes("p", OrderProcess)
    info = await system.client.describe_process("p", include={"queues", "closed_states"})
    result = await system.client.wait_for_process_completion("p", str)

    assert answer == "ordered"
    assert attributes == {"address": "Berlin"}
    assert info.queue_sizes == {"changes": 1}
    assert [(state.state_id, state.number) for state in info.states] == [("ShipState", 1)]
    assert result == "shipped to Berlin"
    assert system.worker.count("ShipState") == 1


async def test_rpc_after_an_rpc_sees_what_it_has_set(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)
    found = []

    for text in ("first", "second"):
        await system.client.invoke_rpc("p", OrderProcess.set_note, text)
        found.append(await system.client.invoke_rpc("p", OrderProcess.get_note))

    assert found == ["first", "second"]


async def test_rpc_counts_its_own_messages_in_the_size_of_a_queue(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)

    sizes = [await system.client.invoke_rpc("p", OrderProcess.queue_size) for _ in range(3)]

    assert sizes == [1, 2, 3]


@pytest.mark.parametrize("method", [OrderProcess.get_note, OrderProcess.peek_note], ids=["found out", "declared"])
async def test_rpc_that_changes_nothing_writes_nothing(system: System, method: Any) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)
    await system.client.invoke_rpc("p", OrderProcess.set_note, "here")
    everything = "SELECT * FROM xdb_sys_process_execution"
    before, commits_before = system.sql(everything), system.server.committer.counters.transactions

    found = await system.client.invoke_rpc("p", method)

    assert found == "here"
    assert system.sql(everything) == before
    assert system.server.committer.counters.transactions == commits_before


async def test_rpc_that_is_declared_read_only_cannot_write(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)

    error = await failure_of(system.client.invoke_rpc("p", OrderProcess.forbidden_note, "x"))

    assert error.worker_error_type == "InvalidArgumentError"
    assert "declared read_only" in str(error)
    assert await system.client.get_data_attributes("p", OrderProcess) == {}


async def test_completed_process_answers_rpcs_that_change_nothing_and_refuses_others(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)
    await system.client.invoke_rpc("p", OrderProcess.set_note, "kept")
    await system.client.invoke_rpc("p", OrderProcess.order, "Berlin")
    await system.client.wait_for_process_completion("p", str)
    tables = ("xdb_sys_process_execution", "xdb_sys_local_attribute", "xdb_sys_internal_queue")
    before = [system.sql(f"SELECT * FROM {table}") for table in tables]

    found = await system.client.invoke_rpc("p", OrderProcess.get_note)
    peeked = await system.client.invoke_rpc("p", OrderProcess.peek_note)
    for call in (
        system.client.invoke_rpc("p", OrderProcess.set_note, "changed"),
        system.client.invoke_rpc("p", OrderProcess.order, "Rome"),
        system.client.invoke_rpc("p", OrderProcess.finish, "again"),
        system.client.invoke_rpc("p", OrderProcess.queue_size),
    ):
        with pytest.raises(ProcessNotRunningError):
            await call

    assert [found, peeked] == ["kept", "kept"]
    assert [system.sql(f"SELECT * FROM {table}") for table in tables] == before


async def test_rpc_of_an_unknown_process_is_refused_without_a_call(system: System) -> None:
    system.serve(OrderProcess)

    with pytest.raises(ProcessNotFoundError) as failure:
        await system.client.invoke_rpc("nobody", OrderProcess.get_note)

    assert failure.value.status == 404
    assert system.worker.calls == []


async def test_rpc_that_the_worker_does_not_know_is_named(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)

    error = await failure_of(system.raw.invoke_rpc("p", "vanished"))

    assert (error.worker_error_status, error.worker_error_type) == (404, "RpcNotFound")
    assert "vanished" in error.body.details


async def test_rpc_without_persistence_parameter_is_sent_no_attributes(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)
    await system.client.invoke_rpc("p", OrderProcess.set_note, "here")

    await system.client.invoke_rpc("p", OrderProcess.get_note)
    await system.client.invoke_rpc("p", OrderProcess.blind)

    with_persistence, without = (call["body"] for call in system.worker.calls[-2:])
    assert with_persistence["loaded"]["localAttributes"] == {"note": "here"}
    assert "loaded" not in without


async def test_rpc_completes_a_process_with_nothing_pending_at_once_and_waiters_are_told(system: System) -> None:
    system.serve(OrderProcess)
    await system.client.start_process("p", OrderProcess)
    waiters = [asyncio.create_task(timed(system.client.wait_for_process_completion("p", str))) for _ in range(3)]
    await asyncio.sleep(5)

    await system.client.invoke_rpc("p", OrderProcess.finish, "by hand")
    status = (await system.client.describe_process("p")).status

    assert status is ProcessStatus.COMPLETED
    for waited_s, result in await asyncio.gather(*waiters):
        assert result == "by hand"
        assert waited_s == pytest.approx(5, abs=0.01)
    assert await system.client.get_data_attributes("p", OrderProcess) == {"note": "finished"}


class HoldState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("go"))

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class HeldProcess(ObjectProcess):
    go = internal_queue(None)
    starting_state = HoldState

    @rpc
    def finish(self, communication: Communication) -> None:
        communication.decide(StateDecision.graceful_complete_process("by hand"))


async def test_rpc_that_completes_gracefully_waits_for_pending_states(system: System) -> None:
    system.serve(HeldProcess)
    await system.client.start_process("p", HeldProcess)

    await system.client.invoke_rpc("p", HeldProcess.finish)
    held = await system.client.describe_process("p")
    await system.client.publish_to_internal_queue("p", HeldProcess, HeldProcess.go)
    result = await system.client.wait_for_process_completion("p", str)

    assert (held.status, held.graceful_complete_requested) == (ProcessStatus.RUNNING, True)
    assert result == "by hand"


class OutOfStockError(Exception):
    pass


class FailingProcess(ObjectProcess):
    note = data_attribute(str)
    queue = internal_queue(str)

    states = (ShipState,)

    @rpc
    def fail(self, text: str, persistence: Persistence, communication: Communication) -> None:
        persistence.set_data_attribute(FailingProcess.note, text)
        communication.publish_to_internal_queue(FailingProcess.queue, text)
        communication.trigger_state_execution(ShipState, text)
        raise OutOfStockError("no more screws")

    @rpc(timeout_seconds=2)
    async def dawdle(self, text: str, persistence: Persistence) -> str:
        persistence.set_data_attribute(FailingProcess.note, text)
        await asyncio.sleep(60)
        return text

    @rpc
    def mistake(self) -> int:
        wrong: Any = "three"
        return wrong  # type: ignore[no-any-return]  # what this is about


async def test_rpc_that_raises_changes_nothing_and_its_caller_gets_the_error(system: System) -> None:
    system.serve(FailingProcess)
    await system.client.start_process("p", FailingProcess)

    error = await failure_of(system.client.invoke_rpc("p", FailingProcess.fail, "x"))
    await asyncio.sleep(60)
    info = await system.client.describe_process("p", include={"queues", "closed_states"})

    assert (error.status, error.error_sub_type) == (424, ErrorSubType.WORKER_EXECUTION_ERROR)
    assert (error.worker_error_status, error.worker_error_type) == (424, "OutOfStockError")
    assert error.body.details.startswith("no more screws")
    assert "in fail" in error.body.details
    assert (info.status, info.states, info.queue_sizes) == (ProcessStatus.RUNNING, (), {})
    assert await system.client.get_data_attributes("p", FailingProcess) == {}
    assert len(system.worker.calls) == 1


async def test_rpc_that_is_slower_than_its_timeout_is_given_up_and_changes_nothing(system: System) -> None:
    system.serve(FailingProcess)
    await system.client.start_process("p", FailingProcess)

    waited_s, error = await timed(system.client.invoke_rpc("p", FailingProcess.dawdle, "late"))
    await asyncio.sleep(120)

    assert waited_s == pytest.approx(2, abs=0.05)
    assert isinstance(error, RpcExecutionError)
    assert (error.status, error.error_sub_type) == (424, ErrorSubType.WORKER_TIMEOUT)
    assert await system.client.get_data_attributes("p", FailingProcess) == {}
    assert len(system.worker.calls) == 1


async def test_rpc_whose_worker_is_down_is_told_so_and_the_server_goes_on(system: System) -> None:
    system.serve(FailingProcess, GreeterProcess)
    await system.client.start_process("p", GreeterProcess)
    system.route(WORKER_URL, None)

    error = await failure_of(system.client.invoke_rpc("p", GreeterProcess.name))
    system.route(WORKER_URL, Worker(system.registry))

    assert (error.status, error.error_sub_type) == (424, ErrorSubType.WORKER_UNREACHABLE)
    assert await system.client.invoke_rpc("p", GreeterProcess.name) == "greeter"


async def test_rpc_that_returns_another_type_than_it_declares_fails(system: System) -> None:
    system.serve(FailingProcess)
    await system.client.start_process("p", FailingProcess)

    error = await failure_of(system.client.invoke_rpc("p", FailingProcess.mistake))

    assert error.worker_error_type == "EncodeError"
    assert "output of RPC 'mistake'" in error.body.details


class Price(BaseModel):
    amount: int
    currency: str = "EUR"


@dataclass
class Offer:
    price: Price
    valid_for: timedelta


class ShopProcess(ObjectProcess):
    @rpc
    def offer(self, price: Price) -> Offer:
        return Offer(price, timedelta(days=2))

    @rpc
    async def offers(self, prices: list[Price]) -> dict[str, Offer]:
        return {price.currency: Offer(price, timedelta(days=1)) for price in prices}


async def test_models_and_dataclasses_are_decoded_by_annotation_on_both_sides(system: System) -> None:
    system.serve(ShopProcess)
    await system.client.start_process("p", ShopProcess)

    one = await system.client.invoke_rpc("p", ShopProcess.offer, Price(amount=5))
    many = await system.client.invoke_rpc("p", ShopProcess.offers, [Price(amount=1), Price(amount=2, currency="USD")])

    assert one == Offer(Price(amount=5), timedelta(days=2))
    assert many == {
        "EUR": Offer(Price(amount=1), timedelta(days=1)),
        "USD": Offer(Price(amount=2, currency="USD"), timedelta(days=1)),
    }


class ShortState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(0.1)
        return StateDecision.force_complete_process("done")


@process(table_name="account", primary_key="account_id", primary_key_type=str)
class RacedProcess(ObjectProcess):
    debit = data_attribute(str)
    credit = data_attribute(str)

    starting_state = ShortState

    @rpc
    async def book(self, delay_ms: int, persistence: Persistence) -> None:
        await asyncio.sleep(delay_ms / 1_000)
        persistence.set_data_attribute(RacedProcess.debit, "booked")
        persistence.set_data_attribute(RacedProcess.credit, "booked")


async def test_rpc_that_races_with_the_completion_is_applied_as_a_whole_or_not_at_all(system: System) -> None:
    system.sql("CREATE TABLE account (account_id VARCHAR(255) PRIMARY KEY, debit TEXT, credit TEXT)")
    system.serve(RacedProcess)

    async def race(number: int) -> bool:
        await system.client.start_object_process(f"p-{number}", RacedProcess, f"a-{number}")
        try:
            await system.client.invoke_rpc(f"p-{number}", RacedProcess.book, number)
        except ProcessNotRunningError:
            return False
        return True

    booked = await asyncio.gather(*(race(number) for number in range(80, 121)))

    rows = dict(system.sql("SELECT account_id, debit || '/' || credit FROM account"))
    assert rows == {f"a-{80 + index}": "booked/booked" for index, applied in enumerate(booked) if applied}
    assert booked[0] is True
    assert booked[-1] is False
