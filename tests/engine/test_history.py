"""The event history of an execution: what is in it, that nothing is missing, and when it is full (D.10)."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from server_stub.config import ServerSettings
from server_stub.core.namespaces import Namespaces
from tests.engine.service_http import post, request, start_of
from tests.support.databases import Database
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    CommandRequest,
    Communication,
    ErrorSubType,
    HistoryEvent,
    HistoryEventType,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessError,
    ProcessErrorType,
    ProcessStatus,
    RetryPolicy,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)
from xdb_sdk.protocol import SERVICE_PREFIX

T = HistoryEventType


class FirstState(AsyncState[str]):
    def execute(self, input: str, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Tour.note, input)
        persistence.record_event("went", input, 1)
        return StateDecision.single_next_state(WaitingState)


class WaitingState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("go"), TimerCommand.by_seconds(60))

    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(LastState)


@state(execute_api_retry_policy=RetryPolicy(initial_interval_seconds=1, backoff_coefficient=1, maximum_attempts=40))
class LastState(AsyncState[None]):
    failures = 1

    def execute(self) -> StateDecision:
        if LastState.failures > 0:
            LastState.failures -= 1
            raise ConnectionError("down")
        return StateDecision.graceful_complete_process("done")


class Tour(ObjectProcess):
    note = data_attribute(str)
    go = internal_queue(int)
    starting_state = FirstState
    states = (WaitingState, LastState)

    @rpc
    def annotate(self, text: str, persistence: Persistence, communication: Communication) -> None:
        persistence.set_data_attribute(Tour.note, text)
        communication.publish_to_internal_queue(Tour.go, 7)


@pytest.fixture(autouse=True)
def one_failure() -> None:
    LastState.failures = 1


async def history(system: System, process_id: str = "p", **options: Any) -> list[HistoryEvent]:
    return [event async for event in system.client.get_history(process_id, **options)]


def in_short(events: list[HistoryEvent]) -> list[tuple[HistoryEventType, dict[str, Any]]]:
    return [(event.event_type, dict(event.data)) for event in events]


def gap_free(events: list[HistoryEvent]) -> bool:
    return [event.event_id for event in events] == list(range(1, len(events) + 1))


async def test_the_history_of_a_process_tells_all_that_happened_in_order(system: System) -> None:
    system.serve(Tour)

    await system.client.start_process("p", Tour, "out", request_id="r-start")
    await asyncio.sleep(1)
    await system.client.invoke_rpc("p", Tour.annotate, "noted", request_id="r-rpc")
    await system.client.wait_for_process_completion("p")
    events = await history(system)

    assert in_short(events) == [
        (T.STARTED, {}),
        (T.STATE_SCHEDULED, {"stateExecutionId": "FirstState-1"}),
        (T.STATE_EXECUTED, {"stateExecutionId": "FirstState-1", "decision": "NEXT_STATES"}),
        (T.ATTRIBUTES_WRITTEN, {"localAttributes": {"note": "out"}}),
        (T.USER_EVENT, {"name": "went", "values": ["out", 1]}),
        (T.STATE_SCHEDULED, {"stateExecutionId": "WaitingState-1"}),
        (T.WAIT_UNTIL_COMPLETED, events[6].data),
        (T.RPC_APPLIED, {"rpcName": "annotate"}),
        (T.ATTRIBUTES_WRITTEN, {"localAttributes": {"note": "noted"}}),
        (T.PUBLISHED, {"messages": [{"queueName": "go", "sequenceId": 1, "payload": 7}]}),
        (T.COMMAND_COMPLETED, {"stateExecutionId": "WaitingState-1", "queueCommand": 0, "sequenceIds": [1]}),
        (T.COMMAND_COMPLETED, {"stateExecutionId": "WaitingState-1", "timerCommand": 0, "status": "FIRED"}),
        (T.STATE_EXECUTED, {"stateExecutionId": "WaitingState-1", "decision": "NEXT_STATES"}),
        (T.STATE_SCHEDULED, {"stateExecutionId": "LastState-1"}),
        (T.ATTEMPT_FAILED, events[14].data),
        (T.STATE_EXECUTED, {"stateExecutionId": "LastState-1", "decision": "GRACEFUL_COMPLETE_PROCESS"}),
        (T.COMPLETED, {}),
    ]
    assert gap_free(events)
    causes = [event.cause_id for event in events]
    assert causes == [None, 1, None, 3, 3, 3, None, None, 8, 8, 8, None, None, 13, None, None, 16]
    assert {event.request_id for event in events[:2]} == {"r-start"}
    assert {event.request_id for event in events[7:11]} == {"r-rpc"}
    assert (events[14].data["attempt"], events[14].data["errorType"]) == (1, "ConnectionError")
    assert events[11].at - events[6].at == timedelta(seconds=60)


async def test_a_history_is_read_page_by_page_also_of_a_closed_execution_that_was_replaced(system: System) -> None:
    system.serve(Tour)
    first = await system.client.start_process("p", Tour, "out")
    await system.client.stop_process("p", reason="enough")
    await system.client.start_process("p", Tour, "again")

    whole = await history(system, process_execution_id=first)
    paged = await history(system, process_execution_id=first, page_size=2)
    rest = await history(system, process_execution_id=first, after_event_id=2)

    assert paged == whole
    assert rest == whole[2:]
    assert in_short(whole[-2:]) == [
        (T.STOP_REQUESTED, {"stopType": "TERMINATE", "reason": "enough"}),
        (T.TERMINATED, {"error": {"errorType": "CLIENT_STOP", "message": "enough"}}),
    ]


async def test_the_history_of_a_process_that_is_not_there_is_not_found(system: System) -> None:
    system.serve(Tour)

    with pytest.raises(ClientSideError) as refusal:
        await history(system, "nobody")

    assert refusal.value.error_sub_type is ErrorSubType.PROCESS_NOT_FOUND


async def test_a_history_can_be_read_by_its_path(system: System) -> None:
    system.serve(Tour)
    await system.client.start_process("a/b c", Tour, "out")
    await asyncio.sleep(1)

    path = f"{SERVICE_PREFIX}default/a/b%20c/history"
    by_path = await request(system, "GET", f"{path}?afterEventId=1&pageSize=2")
    by_body = await post(system, "get-history", {"processId": "a/b c", "afterEventId": 1, "pageSize": 2})
    nonsense = await request(system, "GET", f"{path}?pageSize=many")

    assert by_path.json() == by_body.json()
    assert [event["eventId"] for event in by_path.json()["events"]] == [2, 3]
    assert (nonsense.status_code, nonsense.json()["errorSubType"]) == (400, "INVALID_REQUEST")


async def test_a_thousand_messages_that_are_published_at_once_are_a_thousand_events_without_gaps(
    system: System, database: Database
) -> None:
    system.serve(Tour)
    await system.client.start_process("p", Tour, "out")
    await asyncio.sleep(1)
    count = database.some_of(1_000)

    await asyncio.gather(*(system.client.publish_to_internal_queue("p", Tour, Tour.go, n) for n in range(count)))
    events = await history(system, page_size=1_000)

    assert gap_free(events)
    published = [message for event in events if event.event_type is T.PUBLISHED for message in event.data["messages"]]
    assert [message["sequenceId"] for message in published] == list(range(1, count + 1))
    assert sorted(message["payload"] for message in published) == list(range(count))


async def test_of_many_failed_attempts_the_first_ten_and_then_every_tenth_are_told(system: System) -> None:
    system.serve(Tour)
    LastState.failures = 40

    await system.client.start_process("p", Tour, "out")
    await system.client.publish_to_internal_queue("p", Tour, Tour.go, 1)
    await asyncio.sleep(600)
    failed = [event for event in await history(system) if event.event_type is T.ATTEMPT_FAILED]

    assert [event.data["attempt"] for event in failed] == [*range(1, 11), 20, 30, 40]
    assert [event.data["then"] for event in failed] == [*["RETRY"] * 12, "FAIL"]


class SaveState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Person.name, "secret")
        return StateDecision.graceful_complete_process()


@process(table_name="people", primary_key="id", primary_key_type=str)
class Person(ObjectProcess):
    name = data_attribute(str)
    starting_state = SaveState


@pytest.mark.parametrize("values_in", ["", "default", "*"])
async def test_values_of_the_users_columns_are_recorded_only_where_that_is_asked_for(
    database: Database, values_in: str
) -> None:
    async with System(database, ServerSettings(history_values=Namespaces.parse(values_in))) as system:
        system.sql("CREATE TABLE people (id VARCHAR(255) PRIMARY KEY, name VARCHAR(255))")
        system.serve(Person)

        await system.client.start_object_process("p", Person, "row")
        await system.client.wait_for_process_completion("p")
        written = [event.data for event in await history(system) if event.event_type is T.ATTRIBUTES_WRITTEN]

    assert written == [{"tables": {"people": {"name": "secret"} if values_in else ["name"]}}]


async def test_an_execution_that_starts_where_histories_are_off_has_none_for_ever(database: Database) -> None:
    async with System(database, ServerSettings(history_off=Namespaces.parse("*"))) as system:
        system.serve(Tour)
        await system.client.start_process("p", Tour, "out")
    async with System(database, ServerSettings()) as system:
        system.serve(Tour)
        await system.client.publish_to_internal_queue("p", Tour, Tour.go, 1)
        await system.client.wait_for_process_completion("p")
        answer = await post(system, "get-history", {"processId": "p"})

        assert answer.json()["hasHistory"] is False
        assert system.sql("SELECT * FROM xdb_sys_history") == []


async def test_publish_that_starts_an_execution_is_never_refused_once_it_is_started(database: Database) -> None:
    async with System(database, ServerSettings(max_history_events=1)) as system:
        system.serve(Tour)
        body = {"start": start_of("Tour"), "messages": [{"queueName": "other", "payload": 1}]}

        answer = await post(system, "publish-or-start", body)

        assert (answer.status_code, answer.json()["started"], answer.json()["published"]) == (200, True, 1)


async def test_a_full_history_refuses_changes_of_clients_but_a_stop(database: Database) -> None:
    async with System(database, ServerSettings(max_history_events=20)) as system:
        system.serve(Tour)
        await system.client.start_process("p", Tour, "out")
        await asyncio.sleep(1)
        for n in range(13):
            await system.raw.publish_to_internal_queue("p", "other", n)
        with pytest.raises(ClientSideError) as refusal:
            await system.raw.publish_to_internal_queue("p", "other", 13)
        with pytest.raises(ClientSideError) as rpc_refusal:
            await system.client.invoke_rpc("p", Tour.annotate, "noted")
        stopped = await system.client.stop_process("p")
        events = await history(system)

    assert refusal.value.error_sub_type is rpc_refusal.value.error_sub_type is ErrorSubType.HISTORY_LIMIT
    assert (refusal.value.status, stopped.status) == (409, ProcessStatus.TERMINATED)
    assert gap_free(events)
    assert [event.event_type for event in events[19:]] == [T.PUBLISHED, T.STOP_REQUESTED, T.TERMINATED]


async def test_an_execution_with_a_full_history_fails_after_its_next_step(database: Database) -> None:
    async with System(database, ServerSettings(max_history_events=7)) as system:
        system.serve(Tour)
        await system.client.start_process("p", Tour, "out")
        await asyncio.sleep(1)
        failed = await system.client.describe_process("p")
        events = await history(system)

    assert failed.status is ProcessStatus.FAILED
    assert isinstance(failed.error, ProcessError)
    assert failed.error.error_type is ProcessErrorType.HISTORY_LIMIT
    assert "a history of 7 events" in failed.error.details
    assert gap_free(events)
    assert events[-1].event_type is T.FAILED


async def test_a_history_that_becomes_long_is_warned_of_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with System(database, ServerSettings(max_history_events=100)) as system:
        system.serve(Tour)
        await system.client.start_process("p", Tour, "out")
        await asyncio.sleep(1)
        for n in range(40):
            await system.raw.publish_to_internal_queue("p", "other", n)

    warnings = [record.message for record in caplog.records if "long history" in record.message]
    assert len(warnings) == 1
    assert "has a history of 20 events" in warnings[0]
