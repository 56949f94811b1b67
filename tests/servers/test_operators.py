"""An operator may ask any server: the one that has the calls of the execution in memory acts on it soon."""

import asyncio

import pytest

from tests.servers.processes import (
    FailProcess,
    FailState,
    HeldProcess,
    NapProcess,
    StepState,
    StuckProcess,
    StuckState,
    gate,
    runs,
)
from tests.servers.test_sharing import SOON, process_id_of, two
from tests.support.servers import Servers, eventually
from xdb_sdk import ProcessStatus, StateDecision

LATER_S = 2.5
"""When the second attempt of `FailState` would have been made, which comes a second after the first."""

HINTED = pytest.mark.parametrize("notify", [True, False], ids=["notify", "no-notify"])


@HINTED
async def test_planned_call_is_not_made_while_another_server_has_paused_its_execution(
    servers: Servers, notify: bool
) -> None:
    first, second = await two(servers, notify=notify)
    process_id = process_id_of(second)
    gate.open()
    await first.client.start_process(process_id, FailProcess)
    await eventually(lambda: runs[process_id, 1] == 1)

    await first.client.pause_process(process_id)
    await asyncio.sleep(LATER_S)
    made = runs[process_id, 2]
    await first.client.resume_process(process_id)

    assert await second.client.wait_for_process_completion(process_id, int, SOON) == 2
    assert made == 0


@HINTED
async def test_planned_call_of_a_state_that_another_server_has_completed_is_not_made(
    servers: Servers, notify: bool
) -> None:
    first, second = await two(servers, notify=notify)
    process_id = process_id_of(second)
    gate.open()
    await first.client.start_process(process_id, FailProcess)
    await eventually(lambda: runs[process_id, 1] == 1)

    # One that leaves the execution running, since of one that closes the owner is told in any case.
    decision = StateDecision.single_next_state(FailState)
    await first.client.complete_state(process_id, FailProcess, FailState, decision)
    await asyncio.sleep(LATER_S)

    info = await second.client.describe_process(process_id, include={"closed_states"})
    assert info.status is ProcessStatus.COMPLETED
    assert (runs[process_id, 1], runs[process_id, 2]) == (2, 1)


@HINTED
async def test_state_that_another_server_retries_is_called_within_a_second_and_a_half(
    servers: Servers, notify: bool
) -> None:
    first, second = await two(servers, notify=notify)
    process_id = process_id_of(second)
    await first.client.start_process(process_id, StuckProcess)
    await eventually(lambda: runs[process_id, 1] == 1)
    await asyncio.sleep(1.1)

    await first.client.retry_state(process_id, StuckState)
    took_s = await eventually(lambda: runs[process_id, 2] == 1)

    assert took_s < 1.5


async def test_message_of_another_server_wakes_no_paused_execution_until_it_is_resumed(servers: Servers) -> None:
    first, second = await two(servers)
    process_id = process_id_of(second)
    await first.client.start_process(process_id, NapProcess, 60.0)
    await asyncio.sleep(0.5)

    await first.client.pause_process(process_id)
    await second.client.publish_to_internal_queue(process_id, NapProcess, "wake", "x")
    await asyncio.sleep(1.5)
    paused = await first.client.describe_process(process_id)
    await first.client.resume_process(process_id)
    await second.client.wait_for_process_completion(process_id, timeout=SOON)

    assert paused.status is ProcessStatus.RUNNING
    assert paused.states[0].held_due_at is not None


@HINTED
async def test_call_that_waits_at_its_server_for_a_place_is_dropped_when_another_server_pauses_it(
    servers: Servers, notify: bool
) -> None:
    first, second = await two(servers, max_worker_calls=1, notify=notify)
    holding, waiting = process_id_of(second, seed="holding"), process_id_of(second, seed="waiting")
    await second.client.start_process(holding, HeldProcess)
    await eventually(lambda: runs[holding, 1] == 1)
    await second.client.start_process(waiting, HeldProcess)
    await eventually(lambda: second.server.dispatcher.waiting_calls == 1)

    await first.client.pause_process(waiting)
    await eventually(lambda: second.server.dispatcher.waiting_calls == 0)
    gate.open()
    await second.client.wait_for_process_completion(holding, int, SOON)
    made = runs[waiting, 1]
    await first.client.resume_process(waiting)
    await second.client.wait_for_process_completion(waiting, int, SOON)

    assert made == 0


async def test_call_in_flight_at_one_server_is_applied_while_another_has_paused_its_execution(
    servers: Servers,
) -> None:
    first, second = await two(servers)
    process_id = process_id_of(second)
    await first.client.start_process(process_id, HeldProcess)
    await eventually(lambda: runs[process_id, 1] == 1)

    await first.client.pause_process(process_id)
    gate.open()
    await asyncio.sleep(1)
    info = await first.client.describe_process(process_id, include={"closed_states"})
    await first.client.resume_process(process_id)
    await second.client.wait_for_process_completion(process_id, int, SOON)

    assert [(each.state_id, each.closed_at is not None) for each in info.states] == [
        ("HeldState", True),
        (StepState.__name__, False),
    ]
    assert runs[process_id, 1] == 1
