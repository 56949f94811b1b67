"""How processes end from outside their states: by their timeout, or by a stop (semantics 1.6, 6.1)."""

import asyncio
from datetime import timedelta

import pytest

from tests.engine.mailbox import leftovers, timer_count
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    IdReusePolicy,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessCanceled,
    ProcessErrorType,
    ProcessFailed,
    ProcessInfo,
    ProcessNotFoundError,
    ProcessStartOptions,
    ProcessStatus,
    ProcessStopType,
    ProcessTerminated,
    ProcessTimeout,
    RetryPolicy,
    StateDecision,
    StateMovement,
    StateStatus,
    TimerCommand,
    data_attribute,
    internal_queue,
    state,
)

SECOND = timedelta(seconds=1)


class WaitState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            InternalQueueCommand.by_name(TaskProcess.go), TimerCommand.timer_command_by_duration(timedelta(days=1))
        )

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("gone")


class FailState(AsyncState[None]):
    def execute(self) -> StateDecision:
        raise RuntimeError("again and again")


class WorkState(AsyncState[None]):
    async def execute(self, persistence: Persistence) -> StateDecision:
        await asyncio.sleep(20)
        persistence.set_data_attribute(TaskProcess.note, "too late")
        return StateDecision.single_next_state(WaitState)


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
class LastAttemptState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(5)
        raise RuntimeError("for the last time")


class EnterState(AsyncState[list[str]]):
    def execute(self, input: list[str]) -> StateDecision:
        if not input:
            return StateDecision.dead_end()
        return StateDecision.multi_next_states(*map(StateMovement.create, input))


class TaskProcess(ObjectProcess):
    """Does at once all that it is told to at its start."""

    go = internal_queue(None)
    note = data_attribute(str)
    starting_state = EnterState
    states = (WaitState, FailState, WorkState, LastAttemptState)


@pytest.fixture(autouse=True)
def served(system: System) -> None:
    """Let the worker know the process."""
    system.serve(TaskProcess)


async def start(
    system: System,
    *states: str,
    timeout: timedelta | None = None,
    policy: IdReusePolicy = IdReusePolicy.ALLOW_IF_NO_RUNNING,
) -> str:
    """Start a task that enters states, and come back when it has; give its process execution id."""
    options = ProcessStartOptions(timeout=timeout, id_reuse_policy=policy)
    process_execution_id = await system.client.start_process("p", TaskProcess, list(states), options)
    await system.client.wait_for_state_completion("p", EnterState)
    return process_execution_id


async def describe(system: System, process_execution_id: str | None = None) -> ProcessInfo:
    """Describe a task with all the states that it has entered."""
    return await system.client.describe_process(
        "p", process_execution_id=process_execution_id, include={"closed_states"}
    )


def lifetime(info: ProcessInfo) -> timedelta:
    """Give the time between start and close."""
    assert info.closed_at is not None
    return info.closed_at - info.started_at


def entered(info: ProcessInfo) -> dict[str, StateStatus]:
    """Give the status of each state that a task has entered."""
    return {state.state_id: state.status for state in info.states if state.state_id != "EnterState"}


@pytest.mark.parametrize(
    "states",
    [
        pytest.param(["WaitState"], id="waiting"),
        pytest.param(["FailState"], id="in backoff"),
        pytest.param(["WorkState"], id="executing"),
        pytest.param([], id="no state"),
        pytest.param(["WaitState", "FailState", "WorkState"], id="all together"),
    ],
)
async def test_process_times_out_whatever_its_states_do(system: System, states: list[str]) -> None:
    await start(system, *states, timeout=10 * SECOND)

    with pytest.raises(ProcessTimeout) as failure:
        await system.client.wait_for_process_completion("p")
    calls_then = len(system.worker.calls)
    await asyncio.sleep(100)

    info = await describe(system)
    assert (failure.value.status, failure.value.error_type) == (ProcessStatus.TIMEOUT, ProcessErrorType.TIMEOUT)
    assert "10000 ms" in failure.value.error_message
    assert lifetime(info) == 10 * SECOND
    assert entered(info) == dict.fromkeys(states, StateStatus.ABORTED)
    told = [call for call in system.worker.calls[calls_then:] if call["operation"] != "process-closed"]
    assert told == []
    assert await system.client.get_data_attributes("p", TaskProcess) == {}
    assert leftovers(system) == {}


async def test_timeout_keeps_milliseconds(system: System) -> None:
    await start(system, "WaitState", timeout=timedelta(milliseconds=1_234))

    await asyncio.sleep(5)

    assert lifetime(await describe(system)) == timedelta(milliseconds=1_234)


@pytest.mark.parametrize("policy", list(IdReusePolicy), ids=str)
async def test_timeout_ends_a_process_started_under_any_reuse_policy(system: System, policy: IdReusePolicy) -> None:
    await start(system, "WaitState", timeout=SECOND, policy=policy)

    await asyncio.sleep(5)

    info = await describe(system)
    assert (info.status, lifetime(info)) == (ProcessStatus.TIMEOUT, SECOND)


async def test_timeout_of_a_replaced_execution_does_not_end_the_new_one(system: System) -> None:
    old_id = await start(system, "WaitState", timeout=10 * SECOND)
    await asyncio.sleep(5)
    new_id = await start(system, "WaitState", timeout=10 * SECOND, policy=IdReusePolicy.TERMINATE_IF_RUNNING)

    await asyncio.sleep(7)
    meanwhile = await describe(system)
    await asyncio.sleep(7)

    old, new = await describe(system, old_id), await describe(system, new_id)
    assert meanwhile.status is ProcessStatus.RUNNING
    assert (old.status, new.status) == (ProcessStatus.TERMINATED, ProcessStatus.TIMEOUT)
    assert lifetime(new) == 10 * SECOND


async def test_completed_process_does_not_time_out(system: System) -> None:
    await start(system, "WaitState", timeout=10 * SECOND)
    await system.client.publish_to_internal_queue("p", TaskProcess, TaskProcess.go)
    await system.client.wait_for_process_completion("p")
    timers_left = timer_count(system)

    await asyncio.sleep(60)

    info = await describe(system)
    assert timers_left == 0
    assert (info.status, info.error) == (ProcessStatus.COMPLETED, None)


@pytest.mark.parametrize("restarts", [False, True], ids=["server stays", "server is down at the time"])
async def test_timeout_outlives_the_server(system: System, restarts: bool) -> None:
    await start(system, "WaitState", timeout=10 * SECOND)

    if restarts:
        await system.stop_server()
        await asyncio.sleep(60)
        await system.start_server()
    await asyncio.sleep(60)

    info = await describe(system)
    assert info.status is ProcessStatus.TIMEOUT
    assert lifetime(info) == pytest.approx(60 * SECOND if restarts else 10 * SECOND, abs=SECOND)


STOPS = {
    ProcessStopType.TERMINATE: (ProcessStatus.TERMINATED, ProcessTerminated),
    ProcessStopType.FAIL: (ProcessStatus.FAILED, ProcessFailed),
    ProcessStopType.CANCEL: (ProcessStatus.CANCELED, ProcessCanceled),
}


@pytest.mark.parametrize("stop_type", STOPS, ids=str)
async def test_stop_closes_the_process_as_asked_and_aborts_its_states(
    system: System, stop_type: ProcessStopType
) -> None:
    status, error_type = STOPS[stop_type]
    process_execution_id = await start(system, "WaitState", "WorkState", "FailState")

    stopped = await system.client.stop_process("p", stop_type, "customer left")
    with pytest.raises(error_type) as failure:
        await system.client.wait_for_process_completion("p")

    info = await describe(system)
    assert (stopped.process_execution_id, stopped.status, stopped.changed) == (process_execution_id, status, True)
    assert (failure.value.status, failure.value.error_type) == (status, ProcessErrorType.CLIENT_STOP)
    assert failure.value.error_message == "customer left"
    assert (info.status, info.reason) == (status, "customer left")
    assert entered(info) == dict.fromkeys(("WaitState", "WorkState", "FailState"), StateStatus.ABORTED)
    assert leftovers(system) == {}


async def test_stop_terminates_unless_it_says_otherwise(system: System) -> None:
    await start(system, "WaitState")

    stopped = await system.client.stop_process("p")

    assert stopped.status is ProcessStatus.TERMINATED
    assert (await describe(system)).reason is None


async def test_second_stop_changes_nothing(system: System) -> None:
    await start(system, "WaitState")
    await system.client.stop_process("p", ProcessStopType.CANCEL, "first")
    before = await describe(system)
    await asyncio.sleep(1)

    again = await system.client.stop_process("p", ProcessStopType.FAIL, "second")

    assert (again.status, again.changed) == (ProcessStatus.CANCELED, False)
    assert await describe(system) == before


async def test_stop_of_an_unknown_process_is_refused(system: System) -> None:
    await start(system, "WaitState")

    for process_id, process_execution_id in (("nobody", None), ("p", "never-was")):
        with pytest.raises(ProcessNotFoundError) as failure:
            await system.client.stop_process(process_id, process_execution_id=process_execution_id)
        assert failure.value.status == 404

    assert (await describe(system)).status is ProcessStatus.RUNNING


async def test_stop_means_the_current_execution_unless_another_is_named(system: System) -> None:
    old_id = await start(system, "WaitState")
    new_id = await start(system, "WaitState", policy=IdReusePolicy.TERMINATE_IF_RUNNING)

    of_old = await system.client.stop_process("p", process_execution_id=old_id)
    meanwhile = await describe(system)
    of_current = await system.client.stop_process("p")

    assert (of_old.process_execution_id, of_old.changed) == (old_id, False)
    assert meanwhile.status is ProcessStatus.RUNNING
    assert (of_current.process_execution_id, of_current.changed) == (new_id, True)


@pytest.mark.parametrize("stop_type", STOPS, ids=str)
async def test_last_failure_of_a_state_changes_nothing_after_a_stop(system: System, stop_type: ProcessStopType) -> None:
    await start(system, "LastAttemptState")
    await system.client.stop_process("p", stop_type, "enough")
    before = await describe(system)

    await asyncio.sleep(60)

    assert await describe(system) == before
    assert before.status is STOPS[stop_type][0]
    assert system.worker.count("LastAttemptState") == 1


async def test_late_answer_of_a_state_changes_nothing_after_a_stop(system: System) -> None:
    await start(system, "WorkState")
    await system.client.stop_process("p")
    before = await describe(system)

    await asyncio.sleep(60)

    assert await describe(system) == before
    assert await system.client.get_data_attributes("p", TaskProcess) == {}
    assert system.worker.count("WorkState") == 1
