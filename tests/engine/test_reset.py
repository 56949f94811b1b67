"""A process goes on from a point of its history, in a new execution of its id (semantics 6.7)."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from server_stub.config import ServerSettings
from server_stub.core.namespaces import Namespaces
from tests.engine.service_http import post
from tests.support.databases import Database
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    CommandRequest,
    CommandResults,
    Communication,
    ErrorSubType,
    HistoryEventType,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    ProcessStartOptions,
    ProcessStatus,
    ResetOptions,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
)

AN_HOUR = timedelta(hours=1)


class BeginState(AsyncState[int]):
    def execute(self, input: int, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Counting.total, input)
        return StateDecision.single_next_state(CountState, 1)


class CountState(AsyncState[int]):
    """Runs five times."""

    def execute(self, input: int, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Counting.total, (persistence.get_data_attribute(Counting.total) or 0) + 1)
        if input < 5:
            return StateDecision.single_next_state(CountState, input + 1)
        result = {"by": ctx.state_execution_id, "total": persistence.get_data_attribute(Counting.total)}
        return StateDecision.graceful_complete_process(result)


class Counting(ObjectProcess):
    total = data_attribute(int)
    starting_state = BeginState
    states = (CountState,)


async def counted(system: System) -> str:
    """Let the counting process run to its end, and give its execution id."""
    system.serve(Counting)
    execution_id = await system.client.start_process("p", Counting, 10)
    await system.client.wait_for_process_completion("p")
    system.worker.calls.clear()
    return execution_id


async def test_a_completed_process_that_is_reset_to_its_beginning_runs_again_and_its_former_execution_stays(
    system: System,
) -> None:
    base = await counted(system)
    before = await system.client.describe_process("p", process_execution_id=base, include={"closed_states"})

    answer = await system.client.reset_process("p", ResetOptions.to_beginning("once more"))
    result = await system.client.wait_for_process_completion("p", dict[str, Any])
    after = await system.client.describe_process("p", process_execution_id=base, include={"closed_states"})

    assert answer.base_process_execution_id == base != answer.process_execution_id
    assert result == {"by": "CountState-5", "total": 15}
    assert dict(system.worker.by_state()) == {"BeginState-1": 1, **{f"CountState-{n}": 1 for n in range(1, 6)}}
    assert (after.status, after.states, after.outputs) == (ProcessStatus.COMPLETED, before.states, before.outputs)
    assert not after.is_current


async def test_a_reset_to_a_state_runs_it_and_all_that_followed_again(system: System) -> None:
    await counted(system)

    await system.client.reset_process("p", ResetOptions.to_state(CountState))
    result = await system.client.wait_for_process_completion("p", dict[str, Any])

    assert result == {"by": "CountState-5", "total": 15}
    assert dict(system.worker.by_state()) == {f"CountState-{n}": 1 for n in range(1, 6)}


async def test_a_reset_to_a_state_execution_runs_it_and_all_that_followed_again(system: System) -> None:
    await counted(system)

    await system.client.reset_process("p", ResetOptions.to_state_execution(CountState, 4))
    result = await system.client.wait_for_process_completion("p", dict[str, Any])

    assert result == {"by": "CountState-5", "total": 15}
    assert dict(system.worker.by_state()) == {"CountState-4": 1, "CountState-5": 1}


async def test_a_reset_execution_can_be_reset_again_also_to_before_its_own_beginning(system: System) -> None:
    await counted(system)
    await system.client.reset_process("p", ResetOptions.to_state_execution(CountState, 4))
    await system.client.wait_for_process_completion("p")
    system.worker.calls.clear()

    await system.client.reset_process("p", ResetOptions.to_state_execution(CountState, 2))
    result = await system.client.wait_for_process_completion("p", dict[str, Any])
    states = (await system.client.describe_process("p", include={"closed_states"})).states

    assert result == {"by": "CountState-5", "total": 15}
    assert dict(system.worker.by_state()) == {f"CountState-{n}": 1 for n in range(2, 6)}
    names = [f"{each.state_id}-{each.number}" for each in states]
    assert names == ["BeginState-1", *(f"CountState-{n}" for n in range(1, 6))]


class AskState(AsyncState[None]):
    """Waits for two messages, or an hour."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            InternalQueueCommand.by_name("answers", 2), TimerCommand.by_seconds(3_600)
        )

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.single_next_state(JudgeState, list(command_results.values_of(Asking.answers)))


class JudgeState(AsyncState[list[str]]):
    def execute(self, input: list[str], persistence: Persistence) -> StateDecision:
        note = persistence.get_data_attribute(Asking.note)
        return StateDecision.graceful_complete_process([*input, note])


class NoteState(AsyncState[str]):
    def execute(self, input: str, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Asking.note, input)
        return StateDecision.dead_end()


class Asking(ObjectProcess):
    note = data_attribute(str)
    answers = internal_queue(str)
    starting_state = AskState
    states = (JudgeState, NoteState)

    @rpc
    def remark(self, text: str, persistence: Persistence, communication: Communication) -> None:
        persistence.set_data_attribute(Asking.note, text)
        communication.publish_to_internal_queue(Asking.answers, f"by {text}")
        communication.trigger_state_execution(NoteState, f"{text}!")


async def asked(system: System) -> None:
    """Let the asking process run to its end by a message and an RPC."""
    system.serve(Asking)
    await system.client.start_process("p", Asking, None, ProcessStartOptions(timeout=AN_HOUR * 3))
    await asyncio.sleep(60)
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "yes", dedup_id="m-1")
    await system.client.invoke_rpc("p", Asking.remark, "noted")
    await system.client.wait_for_process_completion("p")
    system.worker.calls.clear()


async def test_a_reset_applies_later_messages_and_changes_of_rpcs_again_without_calling_the_rpc(
    system: System,
) -> None:
    await asked(system)

    await system.client.reset_process("p", ResetOptions.to_beginning())
    result = await system.client.wait_for_process_completion("p", list[str])

    assert result == ["yes", "by noted", "noted!"]
    assert "rpc" not in {call["operation"] for call in system.worker.calls}
    assert [body["input"] for body in system.worker.bodies("NoteState")] == ["noted!"]


@pytest.mark.parametrize("skip_messages", [False, True], ids=["applied again", "left out"])
async def test_a_publish_that_comes_again_after_a_reset_publishes_nothing(system: System, skip_messages: bool) -> None:
    system.serve(Asking)
    await system.client.start_process("p", Asking)
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "yes", request_id="X")

    await system.client.reset_process("p", ResetOptions.to_beginning(skip_messages=skip_messages))
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "yes", request_id="X")
    described = await system.client.describe_process("p", include={"queues"})

    assert described.queue_sizes == ({} if skip_messages else {"answers": 1})


async def test_a_reset_that_skips_what_came_later_times_out_by_its_own_timeout(system: System) -> None:
    await asked(system)
    began = (await system.client.describe_process("p")).started_at

    await system.client.reset_process("p", ResetOptions.to_beginning(skip_messages=True, skip_rpcs=True))
    result = await system.client.wait_for_process_completion("p", list[str | None])
    described = await system.client.describe_process("p", include={"queues"})

    assert result == [None]
    assert described.timeout_at == described.started_at + 3 * AN_HOUR
    assert described.started_at > began
    assert not system.worker.bodies("NoteState")


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (ResetOptions.to_beginning(skip_messages=True), ["by noted"]),
        (ResetOptions.to_beginning(skip_rpcs=True), ["yes"]),
    ],
    ids=["messages", "rpcs"],
)
async def test_messages_and_rpcs_are_skipped_each_for_itself(
    system: System, options: ResetOptions, left: list[str]
) -> None:
    await asked(system)

    await system.client.reset_process("p", options)
    await asyncio.sleep(60)
    described = await system.client.describe_process("p", include={"queues"})
    queued = system.sql(
        "SELECT payload FROM xdb_sys_internal_queue WHERE process_execution_id = ?", described.process_execution_id
    )

    assert [json.loads(payload) for (payload,) in queued] == left


class TakeState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("first"))

    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(EndState)


class EndState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("last", 2))

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process(list(command_results.values_of(Taking.last)))


class Taking(ObjectProcess):
    first = internal_queue(str)
    last = internal_queue(str)
    starting_state = TakeState
    states = (EndState,)


async def test_messages_that_were_there_before_the_point_are_there_and_known_afterwards(system: System) -> None:
    system.serve(Taking)
    await system.client.start_process("p", Taking)
    await system.client.publish_to_internal_queue("p", Taking, Taking.last, "kept", dedup_id="m-1")
    await system.client.publish_to_internal_queue("p", Taking, Taking.first, "taken", dedup_id="m-2")
    await asyncio.sleep(1)

    await system.client.reset_process("p", ResetOptions.to_state(EndState))
    new = [
        await system.client.publish_to_internal_queue("p", Taking, queue, "again", dedup_id=dedup_id)
        for queue, dedup_id in ((Taking.last, "m-1"), (Taking.first, "m-2"), (Taking.last, "m-3"))
    ]
    result = await system.client.wait_for_process_completion("p", list[str])

    assert new == [False, False, True]
    assert result == ["kept", "again"]


async def test_a_wait_goes_on_with_the_time_that_its_timers_had_left(system: System) -> None:
    system.serve(Asking)
    await system.client.start_process("p", Asking)
    await asyncio.sleep(1)
    began = system.clock()
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "one")
    await asyncio.sleep(1_800)
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "two")
    await system.client.wait_for_process_completion("p")
    await asyncio.sleep(86_400)

    events = [event async for event in system.client.get_history("p")]
    first_message = next(event for event in events if event.event_type is HistoryEventType.PUBLISHED)
    options = ResetOptions.to_event(first_message.event_id, skip_messages=True)
    reset_at = system.clock()
    await system.client.reset_process("p", options)
    await system.client.wait_for_process_completion("p", timeout=AN_HOUR * 2)

    assert first_message.at.timestamp() * 1_000 == pytest.approx(began, abs=1_000)
    assert system.clock() - reset_at == pytest.approx(3_599_000, abs=2_000)


async def test_a_reset_to_an_instant_goes_on_from_how_the_process_was_then(system: System) -> None:
    system.serve(Asking)
    await system.client.start_process("p", Asking)
    await asyncio.sleep(60)
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "one")
    await asyncio.sleep(60)
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "two")
    await system.client.wait_for_process_completion("p")
    started_at = (await system.client.describe_process("p")).started_at

    options = ResetOptions.to_time(started_at + timedelta(seconds=90), skip_messages=True)
    await system.client.reset_process("p", options)
    await system.client.publish_to_internal_queue("p", Asking, Asking.answers, "other")
    result = await system.client.wait_for_process_completion("p", list[str | None])

    assert result == ["one", "other", None]


class SlowState(AsyncState[None]):
    calls = 0

    async def execute(self) -> StateDecision:
        SlowState.calls += 1
        number = SlowState.calls
        await asyncio.sleep(10)
        return StateDecision.graceful_complete_process(number)


class Slow(ObjectProcess):
    starting_state = SlowState


async def test_a_running_process_that_is_reset_closes_and_late_answers_to_it_are_dropped(system: System) -> None:
    SlowState.calls = 0
    system.serve(Slow)
    base = await system.client.start_process("p", Slow)
    await asyncio.sleep(5)

    answer = await system.client.reset_process("p", ResetOptions.to_beginning("stuck"))
    result = await system.client.wait_for_process_completion("p", int)
    former = await system.client.describe_process("p", process_execution_id=base)
    events = [event async for event in system.client.get_history("p", process_execution_id=base)]
    new = [event async for event in system.client.get_history("p")]

    assert result == 2
    assert (former.status, former.reason, former.is_current) == (ProcessStatus.TERMINATED, "reset: stuck", False)
    assert [event.event_type for event in events[-2:]] == [HistoryEventType.RESET, HistoryEventType.TERMINATED]
    assert events[-2].data == {"successor": answer.process_execution_id, "eventId": 2, "reason": "stuck"}
    assert new[2].data == {"base": base, "eventId": 2, "reason": "stuck"}
    assert [event.event_id for event in new] == list(range(1, len(new) + 1))


async def test_a_paused_process_that_is_reset_stays_paused_until_it_is_resumed(system: System) -> None:
    SlowState.calls = 0
    system.serve(Slow)
    base = await system.client.start_process("p", Slow, None, ProcessStartOptions(start_delay=AN_HOUR))
    await system.client.pause_process("p", reason="wrong prices")

    await system.client.reset_process("p", ResetOptions.to_beginning("prices mended"), process_execution_id=base)
    await asyncio.sleep(7_200)
    held = await system.client.describe_process("p")
    events = [event async for event in system.client.get_history("p")]
    calls = system.worker.count("SlowState")
    await system.client.reset_process("p", ResetOptions.to_event(events[-1].event_id))
    await asyncio.sleep(7_200)
    held_again = await system.client.describe_process("p")
    await system.client.resume_process("p")
    result = await system.client.wait_for_process_completion("p", int)

    assert held.process_execution_id != base
    assert calls == 0
    assert held.paused_at is not None
    assert [state.held_due_at is not None for state in held.states] == [True]
    assert (events[-1].event_type, events[-1].data) == (HistoryEventType.PAUSED, {"reason": "prices mended"})
    assert events[-1].cause_id == events[-2].event_id
    assert held_again.paused_at is not None
    assert result == 1


async def test_a_paused_process_that_is_reset_receives_again_what_came_later_but_calls_no_state(
    system: System,
) -> None:
    system.serve(Taking)
    await system.client.start_process("p", Taking)
    await system.client.publish_to_internal_queue("p", Taking, Taking.first, "taken")
    await asyncio.sleep(1)
    system.worker.calls.clear()
    await system.client.pause_process("p")

    await system.client.reset_process("p", ResetOptions.to_beginning())
    await asyncio.sleep(60)
    calls = list(system.worker.calls)
    await system.client.resume_process("p")
    for text in ("one", "two"):
        await system.client.publish_to_internal_queue("p", Taking, Taking.last, text)

    assert calls == []
    assert await system.client.wait_for_process_completion("p", list[str]) == ["one", "two"]


async def test_a_closed_process_that_was_paused_when_it_was_stopped_is_reset_without_the_pause(
    system: System,
) -> None:
    SlowState.calls = 0
    system.serve(Slow)
    await system.client.start_process("p", Slow)
    await system.client.pause_process("p")
    await system.client.stop_process("p")

    await system.client.reset_process("p", ResetOptions.to_beginning())

    await system.client.wait_for_process_completion("p", int)
    assert (await system.client.describe_process("p")).paused_at is None


async def test_a_reset_that_comes_twice_makes_one_execution_and_another_one_makes_another(system: System) -> None:
    await counted(system)

    first, again = [
        await system.client.reset_process("p", ResetOptions.to_beginning(), request_id="X") for _ in range(2)
    ]
    other = await system.client.reset_process("p", ResetOptions.to_beginning(), request_id="Y")
    late = await system.client.reset_process("p", ResetOptions.to_beginning(), request_id="X")

    assert first.process_execution_id == again.process_execution_id == late.process_execution_id
    assert (first.duplicate, again.duplicate, late.duplicate) == (False, True, True)
    assert other.process_execution_id != first.process_execution_id
    assert other.base_process_execution_id == first.process_execution_id
    assert len(system.sql("SELECT * FROM xdb_sys_process_execution")) == 3


@process(table_name="accounts", primary_key="id", primary_key_type=str)
class Account(ObjectProcess):
    total = data_attribute(int)


class DepositState(AsyncState[int]):
    def execute(self, input: int, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Account.total, (persistence.get_data_attribute(Account.total) or 0) + input)
        return StateDecision.graceful_complete_process()


Account.starting_state = DepositState


async def test_rows_of_the_user_are_not_rolled_back(system: System) -> None:
    system.sql("CREATE TABLE accounts (id VARCHAR(255) PRIMARY KEY, total INTEGER)")
    system.serve(Account)
    await system.client.start_object_process("p", Account, "row", 5)
    await system.client.wait_for_process_completion("p")

    await system.client.reset_process("p", ResetOptions.to_beginning())
    await system.client.wait_for_process_completion("p")

    assert system.sql("SELECT total FROM accounts") == [(10,)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ResetOptions.to_state("NoSuchState"),
            "no execution of state 'NoSuchState' to go on from: its history has BeginState-1, CountState-1 to -5",
        ),
        (ResetOptions.to_state_execution("CountState", 6), "no state execution CountState-6 to go on from"),
        (
            ResetOptions.to_time(datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)),
            "no change at or before 2001-02-03T04:05:06.000Z to go on from: its history begins at 20",
        ),
        (ResetOptions.to_event(10_000), "no event 10000 to go on from"),
    ],
    ids=["state", "state execution", "instant", "event"],
)
async def test_a_point_that_there_is_not_is_not_found(system: System, options: ResetOptions, told: str) -> None:
    await counted(system)

    with pytest.raises(ClientSideError, match=told) as refusal:
        await system.client.reset_process("p", options)

    assert (refusal.value.status, refusal.value.error_sub_type) == (404, ErrorSubType.RESET_POINT_NOT_FOUND)


async def test_a_point_at_which_the_process_had_ended_is_none_to_go_on_from(system: System) -> None:
    await counted(system)
    events = [event async for event in system.client.get_history("p")]

    with pytest.raises(ClientSideError, match="it had ended by then") as refusal:
        await system.client.reset_process("p", ResetOptions.to_event(events[-1].event_id))

    assert refusal.value.error_sub_type is ErrorSubType.RESET_POINT_NOT_FOUND


async def test_a_process_without_a_whole_history_cannot_be_reset(database: Database) -> None:
    async with System(database, ServerSettings(history_off=Namespaces.parse("default"))) as system:
        await counted(system)
        with pytest.raises(ClientSideError, match="has no history") as off:
            await system.client.reset_process("p", ResetOptions.to_beginning())
    async with System(database, ServerSettings()) as system:
        system.serve(Counting)
        await system.client.start_process("cut", Counting, 1)
        await system.client.wait_for_process_completion("cut")
        system.sql("DELETE FROM xdb_sys_history WHERE event_id = 1")
        with pytest.raises(ClientSideError, match="does not begin with its start") as cut:
            await system.client.reset_process("cut", ResetOptions.to_state(CountState))

    assert off.value.error_sub_type is cut.value.error_sub_type is ErrorSubType.HISTORY_INCOMPLETE
    assert off.value.status == 409


async def test_a_reset_that_names_its_point_wrongly_is_refused(system: System) -> None:
    await counted(system)

    without = await post(system, "reset", {"processId": "p", "resetType": "STATE_ID"})
    besides = await post(system, "reset", {"processId": "p", "resetType": "BEGINNING", "eventId": 1})

    assert (without.status_code, besides.status_code) == (400, 400)
    assert "needs ['state_id'], but none is given" in without.json()["details"]


async def test_an_execution_is_not_reset_while_another_one_of_its_process_id_runs(system: System) -> None:
    base = await counted(system)
    system.serve(Asking)
    running = await system.client.start_process("p", Asking)

    with pytest.raises(ClientSideError) as refusal:
        await system.client.reset_process("p", ResetOptions.to_beginning(), process_execution_id=base)

    assert refusal.value.error_sub_type is ErrorSubType.PROCESS_ALREADY_STARTED
    assert str(refusal.value).endswith("stop that one first, or reset it")
    assert (await system.client.describe_process("p")).process_execution_id == running
