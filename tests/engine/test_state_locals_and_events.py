"""What else a call may keep: locals of its state execution, and events in the history (semantics 2.8, 7.3)."""

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    ObjectProcess,
    Persistence,
    ProcessStartOptions,
    RpcExecutionError,
    StateDecision,
    rpc,
)

A_DAY = ProcessStartOptions(timeout=timedelta(days=1))

seen: list[Any] = []


class RememberState(AsyncState[int]):
    """Leaves a value in wait_until for its execute, and runs once more."""

    def wait_until(self, input: int, persistence: Persistence) -> CommandRequest:
        seen.append(("wait_until", input, persistence.get_state_execution_local("note")))
        if input == 1:
            persistence.set_state_execution_local("note", {"from": input})
        return CommandRequest.empty()

    def execute(self, input: int, persistence: Persistence) -> StateDecision:
        seen.append(("execute", input, persistence.get_state_execution_local("note")))
        persistence.set_state_execution_local("note", "late")
        if input == 2:
            return StateDecision.graceful_complete_process()
        return StateDecision.single_next_state(RememberState, 2)


class RememberProcess(ObjectProcess):
    starting_state = RememberState


async def test_state_local_goes_from_wait_until_to_execute_and_not_to_the_next_execution(system: System) -> None:
    system.serve(RememberProcess)
    seen.clear()

    await system.client.start_process("p", RememberProcess, 1, A_DAY)
    await system.client.wait_for_process_completion("p")

    assert seen == [
        ("wait_until", 1, None),
        ("execute", 1, {"from": 1}),
        ("wait_until", 2, None),
        ("execute", 2, None),
    ]


class RecordState(AsyncState[None]):
    def wait_until(self, persistence: Persistence) -> CommandRequest:
        persistence.record_event("waits")
        return CommandRequest.empty()

    def execute(self, persistence: Persistence) -> StateDecision:
        persistence.record_event("done", 1, "two", None)
        persistence.record_event("done", {"again": True})
        persistence.record_event("over", [0, False])
        return StateDecision.dead_end()


class RecordProcess(ObjectProcess):
    starting_state = RecordState

    @rpc
    def note(self, text: str, persistence: Persistence) -> None:
        persistence.record_event("noted", text)
        if text == "wrong":
            raise ValueError(text)


async def test_recorded_events_are_all_kept_in_order(system: System) -> None:
    system.serve(RecordProcess)

    await system.client.start_process("p", RecordProcess, None, A_DAY)
    await system.client.wait_for_state_completion("p", RecordState)
    await system.client.invoke_rpc("p", RecordProcess.note, "right")
    with pytest.raises(RpcExecutionError):
        await system.client.invoke_rpc("p", RecordProcess.note, "wrong")

    recorded = system.sql("SELECT data FROM xdb_sys_history WHERE event_type = 'USER_EVENT' ORDER BY event_id")
    assert [json.loads(data) for (data,) in recorded] == [
        {"name": "waits"},
        {"name": "done", "values": [1, "two", None]},
        {"name": "done", "values": [{"again": True}]},
        {"name": "over", "values": [[0, False]]},
        {"name": "noted", "values": ["right"]},
    ]
