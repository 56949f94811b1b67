"""The kit that users test their processes with."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pytest

from xdb_sdk import (
    AsyncState,
    AttributeNotLoadedError,
    CommandRequest,
    CommandResults,
    Communication,
    EncodeError,
    InternalQueueCommand,
    InternalQueueCommandResult,
    InvalidArgumentError,
    NotRegisteredError,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessContext,
    QueueCommandStatus,
    Registry,
    StateDecision,
    TimerCommand,
    TimerCommandResult,
    TimerStatus,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)
from xdb_sdk.client import QueueMessage
from xdb_sdk.protocol import DatabaseErrorInfo, RecoverFrom, StateApi
from xdb_sdk.testing import CallConditions, ProcessTester


@dataclass(frozen=True)
class Parcel:
    """A document."""

    to: str
    due: date


PARCEL = Parcel("Ann", date(2026, 3, 1))


class PackState(AsyncState[Parcel]):
    """Waits for the boxes, and leaves a note for itself."""

    def wait_until(self, input: Parcel, persistence: Persistence) -> CommandRequest:
        persistence.set_state_execution_local("to", input.to)
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(timedelta(days=1)), InternalQueueCommand.by_name(Shipping.boxes)
        )

    def execute(
        self,
        input: Parcel,
        command_results: CommandResults,
        persistence: Persistence,
        communication: Communication,
    ) -> StateDecision:
        to = persistence.get_state_execution_local("to")
        if command_results.timer_commands and command_results.timer_commands[0].is_fired:
            return StateDecision.force_fail_process(f"no box for {to}")
        boxes = sum(command_results.values_of(Shipping.boxes))
        persistence.set_data_attribute(Shipping.parcel, input)
        persistence.set_data_attribute(Shipping.box_count, (persistence.get_data_attribute("box_count") or 0) + boxes)
        communication.publish_to_internal_queue(Shipping.boxes, boxes, dedup_id="again")
        persistence.record_event("packed", to)
        return StateDecision.single_next_state(SendState, boxes)


@state(data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["parcel"]))
class SendState(AsyncState[int]):
    """Is loaded less than there is, and reports what it knows of its call."""

    async def execute(self, ctx: ProcessContext, input: int, persistence: Persistence) -> StateDecision:
        if input == 0:
            persistence.get_data_attribute(Shipping.box_count)
        if input < 0:
            persistence.set_data_attribute(Shipping.parcel, PARCEL)
            raise OSError("no van")
        await asyncio.sleep(0)
        known = [ctx.process_id, ctx.object_id, ctx.state_execution_id, ctx.attempt, ctx.recover_from is not None]
        return StateDecision.graceful_complete_process([*known, ctx.is_stopped(), ctx.deadline > timedelta(minutes=1)])


@process(table_name="shipping", primary_key="number", primary_key_type=int)
class Shipping(ObjectProcess):
    """Mapped to a table."""

    number = data_attribute(int)
    parcel = data_attribute(Parcel)
    box_count = data_attribute(int)
    boxes = internal_queue(int)

    starting_state = PackState
    states = (SendState,)

    @rpc
    def box(self, size: int, persistence: Persistence, communication: Communication) -> str:
        if communication.get_internal_queue_size(Shipping.boxes) > 2:
            return "enough"
        communication.publish_to_internal_queue(Shipping.boxes, size)
        communication.trigger_state_execution(SendState, size)
        return f"box {size} for {persistence.get_data_attribute(Shipping.parcel).to}"

    @rpc(read_only=True)
    async def cause(self, ctx: ProcessContext) -> str | None:
        return ctx.last_database_error.kind if ctx.last_database_error else None


class Diary(ObjectProcess):
    """Without a table."""

    page = data_attribute(str)
    notes = data_attribute(int, prefix="note_")

    @rpc
    def write(self, text: str, persistence: Persistence) -> str | None:
        before = persistence.get_data_attribute(Diary.page)
        persistence.set_data_attribute(Diary.page, text)
        persistence.set_data_attribute(Diary.notes.named("one"), 1)
        return before


REGISTRY = Registry()
REGISTRY.add_processes(Shipping, Diary)


def shipping(attributes: Mapping[Any, Any] | None = None) -> ProcessTester:
    return ProcessTester(REGISTRY, Shipping, object_id=7, attributes=attributes, process_id="shipping-7")


def received(*sizes: int) -> CommandResults:
    return CommandResults(
        internal_queue_commands=(
            InternalQueueCommandResult(queue_name="boxes", status=QueueCommandStatus.RECEIVED, values=sizes),
        )
    )


def test_wait_until_gives_its_commands_and_what_it_leaves_for_execute() -> None:
    report = shipping().wait_until(PackState, PARCEL)

    assert report.returned == CommandRequest.for_any_command_completed(
        TimerCommand.timer_command_by_duration(timedelta(days=1)), InternalQueueCommand.by_name(Shipping.boxes)
    )
    assert report.state_locals == {"to": "Ann"}


def test_execute_gives_its_decision_its_writes_and_its_messages() -> None:
    tester = shipping({Shipping.box_count: 1})

    report = tester.execute(PackState, PARCEL, received(2, 3), state_locals={"to": "Ann"})

    assert report.returned == StateDecision.single_next_state(SendState, 5)
    assert report.next_state_ids == ("SendState",)
    assert report.attributes == {"parcel": PARCEL, "box_count": 6}
    assert report.messages == (QueueMessage(queue="boxes", value=5, dedup_id="again"),)
    assert report.answer.recorded_events[0].name == "packed"
    assert tester.attributes == {"number": 7, "parcel": PARCEL, "box_count": 6}


def test_execute_is_told_of_fired_timers() -> None:
    fired = CommandResults(timer_commands=(TimerCommandResult(status=TimerStatus.FIRED),))

    report = shipping().execute(PackState, PARCEL, fired, state_locals={"to": "Ann"})

    assert report.returned == StateDecision.force_fail_process("no box for Ann")
    assert report.attributes == {}


def test_call_learns_of_its_conditions() -> None:
    stands_in_for = RecoverFrom(state_execution_id="PackState-1", api=StateApi.EXECUTE, attempts=2)
    conditions = CallConditions(
        number=2, attempt=3, timeout=timedelta(hours=1), is_stopped=True, recover_from=stands_in_for
    )

    report = shipping().execute(SendState, 1, conditions=conditions)

    assert report.returned.output == ["shipping-7", 7, "SendState-2", 3, True, True, True]


async def test_async_method_is_tested_from_a_thread_in_an_async_test() -> None:
    report = await asyncio.to_thread(shipping().execute, SendState, 1)

    assert report.returned.output == ["shipping-7", 7, "SendState-1", 1, False, False, False]


def test_loading_policy_holds() -> None:
    with pytest.raises(AttributeNotLoadedError, match="box_count"):
        shipping({"box_count": 1}).execute(SendState, 0)


def test_method_that_raises_has_written_nothing() -> None:
    tester = shipping()

    with pytest.raises(OSError, match="no van"):
        tester.execute(SendState, -1)

    assert tester.attributes == {"number": 7}


def test_rpc_gives_its_result_and_what_it_starts() -> None:
    report = shipping({"parcel": PARCEL}).invoke_rpc(Shipping.box, 3)

    assert report.returned == "box 3 for Ann"
    assert report.messages == (QueueMessage(queue="boxes", value=3),)
    assert report.next_state_ids == ("SendState",)


def test_rpc_is_told_the_sizes_of_queues() -> None:
    assert shipping().invoke_rpc(Shipping.box, 3, queue_sizes={Shipping.boxes: 3}).returned == "enough"


def test_rpc_learns_what_the_database_said() -> None:
    conditions = CallConditions(last_database_error=DatabaseErrorInfo(operation="WRITE", kind="UNIQUE"))

    assert shipping().invoke_rpc(Shipping.cause, conditions=conditions).returned == "UNIQUE"


def test_process_without_a_table_keeps_its_attributes_between_calls() -> None:
    tester = ProcessTester(REGISTRY, Diary, attributes={Diary.page: "Monday", "note_two": 2})

    reports = [tester.invoke_rpc(Diary.write, text) for text in ("Tuesday", "Wednesday")]

    assert [report.returned for report in reports] == ["Monday", "Tuesday"]
    assert reports[0].attributes == {"page": "Tuesday", "note_one": 1}
    assert tester.attributes == {"page": "Wednesday", "note_one": 1, "note_two": 2}


def test_values_of_another_type_than_declared_are_refused() -> None:
    with pytest.raises(EncodeError, match="input of state 'SendState'"):
        shipping().execute(SendState, "one")
    with pytest.raises(EncodeError, match="box_count"):
        shipping({"box_count": "one"})
    with pytest.raises(EncodeError, match="object id of Shipping"):
        ProcessTester(REGISTRY, Shipping, object_id="seven")
    with pytest.raises(EncodeError, match="message of queue 'boxes'"):
        shipping().execute(PackState, PARCEL, received("one"))  # type: ignore[arg-type]  # what is refused


def test_what_the_process_does_not_have_cannot_be_called() -> None:
    with pytest.raises(InvalidArgumentError, match="'SendState' has no wait_until"):
        shipping().wait_until(SendState, 1)
    with pytest.raises(InvalidArgumentError, match="RPC 'write' is of Diary"):
        shipping().invoke_rpc(Diary.write, "Monday")
    with pytest.raises(InvalidArgumentError, match="Diary maps no table"):
        ProcessTester(REGISTRY, Diary, object_id=7)
    with pytest.raises(NotRegisteredError):
        ProcessTester(Registry(), Shipping, object_id=7)
