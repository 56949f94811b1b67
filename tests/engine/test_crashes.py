"""A server that is killed at any commit, before or after it: nothing is lost and nothing happens twice (semantics 9.4).

What two servers make of one shard is for when there can be two.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from server_stub.config import ServerSettings
from tests.engine.mailbox import leftovers
from tests.engine.mortal import MortalSystem
from tests.support.databases import Database
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    StateDecision,
    TimerCommand,
    UnavailableError,
    data_attribute,
    internal_queue,
    process,
)


@pytest.fixture
async def system(database: Database) -> AsyncIterator[MortalSystem]:
    async with MortalSystem(database, ServerSettings()) as system:
        system.sql("CREATE TABLE journeys (id VARCHAR(255) PRIMARY KEY, total INTEGER)")
        system.serve(Journey)
        yield system


def add(persistence: Persistence, amount: int) -> int:
    total = (persistence.get_data_attribute(Journey.total) or 0) + amount
    persistence.set_data_attribute(Journey.total, total)
    persistence.record_event("added", amount)
    return total


class DepartState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        add(persistence, 1)
        return StateDecision.multi_next_states(SleepState, ListenState)


class SleepState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(5))

    def execute(self, persistence: Persistence, communication: Communication) -> StateDecision:
        add(persistence, 10)
        communication.publish_to_internal_queue(Journey.woken, "up")
        communication.publish_to_internal_queue(Journey.woken, "and away")
        return StateDecision.dead_end()


class ListenState(AsyncState[None]):
    """Fails once before it ends the journey."""

    def wait_until(self, persistence: Persistence) -> CommandRequest:
        add(persistence, 100)
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("woken", 2))

    def execute(self, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return StateDecision.graceful_complete_process(add(persistence, 1_000))


@process(table_name="journeys", primary_key="id", primary_key_type=str)
class Journey(ObjectProcess):
    total = data_attribute(int)
    woken = internal_queue(str)
    starting_state = DepartState
    states = (SleepState, ListenState)


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
async def test_process_completes_with_every_effect_once_whichever_commit_the_server_dies_at(
    system: MortalSystem, after: bool
) -> None:
    deaths = 0
    while await _live_through(system, f"journey-{deaths}", deaths + 1, after=after):
        deaths += 1

        assert len(system.sql("SELECT * FROM xdb_sys_history WHERE event_type = 'USER_EVENT'")) == 4 * deaths
        assert leftovers(system) == {}
        assert histories_that_disagree(system) == []

    assert deaths >= 6


def histories_that_disagree(system: MortalSystem) -> list[str]:
    """Name the executions whose history has gaps, or does not tell what the rows of their states tell."""
    executions = system.sql("SELECT process_execution_id, status, next_event_id FROM xdb_sys_process_execution")
    return [
        process_execution_id
        for process_execution_id, status, next_event_id in executions
        if not _agrees(system, process_execution_id, status, next_event_id)
    ]


def _agrees(system: MortalSystem, process_execution_id: str, status: str, next_event_id: int) -> bool:
    of_execution = "WHERE process_execution_id = ? ORDER BY"
    events = system.sql(
        f"SELECT event_id, event_type, data FROM xdb_sys_history {of_execution} event_id", process_execution_id
    )
    states = system.sql(
        f"SELECT state_id, number, status FROM xdb_sys_async_state_execution {of_execution} row_id",
        process_execution_id,
    )
    told = {
        kind: [json.loads(data)["stateExecutionId"] for _, event_type, data in events if event_type == kind]
        for kind in ("STATE_SCHEDULED", "STATE_EXECUTED")
    }
    return (
        [event_id for event_id, *_ in events] == list(range(1, next_event_id))
        and events[-1][1] == status
        and told["STATE_SCHEDULED"] == [f"{state_id}-{number}" for state_id, number, _ in states]
        and sorted(told["STATE_EXECUTED"]) == sorted(f"{i}-{n}" for i, n, status in states if status == "COMPLETED")
    )


async def _live_through(system: MortalSystem, process_id: str, commit: int, *, after: bool) -> bool:
    """Complete a journey although the server dies at one of its commits; say whether it had that many."""
    await system.client.start_object_process(process_id, Journey, process_id)
    system.doom(commit, after=after)
    await asyncio.sleep(30)
    if system.life.is_alive:
        return False
    await system.rise()
    result = await system.client.wait_for_process_completion(process_id, int)
    assert result == 1_111
    assert system.sql("SELECT total FROM journeys WHERE id = ?", process_id) == [(1_111,)]
    return True


async def test_call_whose_answer_died_with_the_server_is_repeated_as_the_same_attempt(system: MortalSystem) -> None:
    await system.client.start_object_process("p", Journey, "row")
    system.doom(1, after=False)
    await asyncio.sleep(1)
    lost = system.sql("SELECT * FROM journeys")

    await system.rise()
    await system.client.wait_for_process_completion("p")

    assert lost == []
    first, second = ({**body["context"]} for body in system.worker.bodies("DepartState"))
    # Nothing was kept of the first sending, so its instant is that of the second.
    assert second.pop("firstAttemptAtMs") > first.pop("firstAttemptAtMs")
    assert first == second
    assert [attempt for attempt, _ in system.worker.attempts("DepartState")] == [1, 1]


async def test_start_whose_answer_died_with_the_server_goes_on_without_its_client(system: MortalSystem) -> None:
    system.doom(1, after=True)
    starting = asyncio.create_task(system.client.start_object_process("p", Journey, "row"))
    await asyncio.sleep(60)
    calls_before = list(system.worker.calls)

    await system.rise()
    await asyncio.sleep(60)

    assert calls_before == []
    assert system.sql("SELECT total FROM journeys") == [(1_111,)]
    with pytest.raises(UnavailableError):
        await starting


async def test_start_that_died_with_the_server_before_its_commit_has_not_happened(system: MortalSystem) -> None:
    system.doom(1, after=False)
    with pytest.raises(UnavailableError):
        await system.client.start_object_process("p", Journey, "row")

    await system.rise()
    await system.client.start_object_process("p", Journey, "row")
    result = await system.client.wait_for_process_completion("p", int)

    assert result == 1_111
    assert len(system.sql("SELECT * FROM xdb_sys_process_execution")) == 1
