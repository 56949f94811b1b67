"""What operators do to running executions: hold, mend, move and end them (semantics 3.6, 6.1)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.mailbox import leftovers, timer_count
from tests.engine.service_http import post, start_of
from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    BulkResult,
    ClientSideError,
    CommandRequest,
    Communication,
    ErrorSubType,
    ExecuteStatus,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    ProcessErrorType,
    ProcessFailed,
    ProcessNotFoundError,
    ProcessNotRunningError,
    ProcessStartOptions,
    ProcessStatus,
    ProcessStopType,
    ProcessTerminated,
    ProcessTimeout,
    RetryPolicy,
    StateDecision,
    StateExecutionInfo,
    StateStatus,
    TimerCommand,
    WaitUntilStatus,
    Worker,
    data_attribute,
    internal_queue,
    rpc,
    state,
)

OTHER_URL = "http://other"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TRIES = RetryPolicy(initial_interval_seconds=600, maximum_interval_seconds=600)


class NapState(AsyncState[None]):
    """Waits an hour, or for a message."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(HOUR), InternalQueueCommand.by_name(TaskProcess.wake)
        )

    def execute(self) -> StateDecision:
        return StateDecision.single_next_state(EndState, "woken")


class WorkState(AsyncState[None]):
    """Works for 20 seconds within its call."""

    async def execute(self, persistence: Persistence) -> StateDecision:
        await asyncio.sleep(20)
        persistence.set_data_attribute(TaskProcess.note, "worked")
        return StateDecision.single_next_state(EndState, "worked")


@state(execute_api_retry_policy=TRIES)
class FailState(AsyncState[None]):
    """Fails after a second, until an attribute says otherwise, and is tried again ten minutes later."""

    async def execute(self, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        await asyncio.sleep(1)
        if persistence.get_data_attribute(TaskProcess.note) != "mended":
            raise RuntimeError(f"attempt {ctx.attempt}")
        return StateDecision.graceful_complete_process(ctx.attempt)


class EndState(AsyncState[str | None]):
    def execute(self, input: str | None) -> StateDecision:
        return StateDecision.graceful_complete_process(input)


class TaskProcess(ObjectProcess):
    """Enters the states that it is told to."""

    wake = internal_queue(None)
    note = data_attribute(str)
    states = (NapState, WorkState, FailState, EndState)

    @rpc
    def enter(self, state_id: str, communication: Communication) -> None:
        communication.trigger_state_execution(state_id)

    @rpc
    def mend(self, persistence: Persistence) -> None:
        persistence.set_data_attribute(TaskProcess.note, "mended")


@pytest.fixture(autouse=True)
def served(system: System) -> None:
    """Let the worker know the process."""
    system.serve(TaskProcess)


async def start(
    system: System, state_class: type[AsyncState[Any]], process_id: str = "p", *, wait_s: float = 5, **options: Any
) -> str:
    """Start a task that enters a state, and come back some time later."""
    process_execution_id = await system.raw.start_process(
        process_id,
        "TaskProcess",
        options=ProcessStartOptions(**options) if options else None,
        starting_state_id=state_class.__name__,
        starting_state_options=system.registry.process_of(TaskProcess).states[state_class.__name__].wire_options,
    )
    await asyncio.sleep(wait_s)
    return process_execution_id


async def state_of(system: System, state_class: type[AsyncState[Any]], number: int = 1) -> StateExecutionInfo:
    """Describe a state execution."""
    info = await system.client.describe_process("p", include={"closed_states"})
    [found] = [each for each in info.states if (each.state_id, each.number) == (state_class.__name__, number)]
    return found


def history(system: System, process_execution_id: str) -> list[tuple[str, str | None, dict[str, Any]]]:
    """Give the events of an execution: type, request id, and what more there is to say."""
    rows = system.sql(
        "SELECT event_type, request_id, data FROM xdb_sys_history "
        f"WHERE process_execution_id = '{process_execution_id}' ORDER BY event_id"
    )
    return [(event_type, request_id, json.loads(data) if data else {}) for event_type, request_id, data in rows]


# --- pause and resume ---


async def test_message_wakes_a_state_of_a_paused_process_which_is_called_once_it_is_resumed(system: System) -> None:
    await start(system, NapState)

    await system.client.pause_process("p")
    await system.client.publish_to_internal_queue("p", TaskProcess, TaskProcess.wake)
    await asyncio.sleep(DAY.total_seconds())
    paused = await system.client.describe_process("p")
    calls = system.worker.count("NapState")
    await system.client.resume_process("p")
    output = await system.client.wait_for_process_completion("p", str, HOUR)

    assert calls == 0
    assert paused.status is ProcessStatus.RUNNING
    assert paused.paused_at is not None
    [nap] = paused.states
    assert (nap.wait_until_status, nap.execute_status) == (WaitUntilStatus.COMPLETED, ExecuteStatus.RUNNING)
    assert nap.held_due_at is not None
    assert (nap.running_since, nap.next_attempt_at) == (None, None)
    assert output == "woken"
    assert system.worker.by_state() == {"NapState-1": 1, "EndState-1": 1}


async def test_timer_of_a_paused_process_fires_and_its_state_is_called_once_it_is_resumed(system: System) -> None:
    await start(system, NapState)

    await system.client.pause_process("p")
    await asyncio.sleep(DAY.total_seconds())
    timers, calls = timer_count(system), system.worker.count("NapState")
    await system.client.resume_process("p")

    assert await system.client.wait_for_process_completion("p", str, HOUR) == "woken"
    assert (timers, calls) == (0, 0)


async def test_answer_of_a_call_in_flight_is_applied_while_paused_and_what_follows_waits(system: System) -> None:
    await start(system, WorkState)

    await system.client.pause_process("p")
    await asyncio.sleep(60)
    worked, end = await state_of(system, WorkState), await state_of(system, EndState)
    attributes = await system.client.get_data_attributes("p", TaskProcess)
    calls = system.worker.by_state()
    await system.client.resume_process("p")

    assert await system.client.wait_for_process_completion("p", str, HOUR) == "worked"
    assert worked.status is StateStatus.COMPLETED
    assert (end.status, end.held_due_at is not None) == (StateStatus.RUNNING, True)
    assert attributes == {"note": "worked"}
    assert calls == {"WorkState-1": 1}
    assert system.worker.by_state() == {"WorkState-1": 1, "EndState-1": 1}


async def test_call_in_flight_that_outlasts_a_pause_is_not_made_again(system: System) -> None:
    await start(system, WorkState)

    await system.client.pause_process("p")
    await asyncio.sleep(2)
    await system.client.resume_process("p")

    assert await system.client.wait_for_process_completion("p", str, HOUR) == "worked"
    assert system.worker.by_state() == {"WorkState-1": 1, "EndState-1": 1}


async def test_attempt_that_fails_while_paused_is_repeated_when_it_is_due_after_resumption(system: System) -> None:
    await start(system, FailState, wait_s=0.5)

    await system.client.pause_process("p")
    await asyncio.sleep(60)
    held = await state_of(system, FailState)
    await system.client.resume_process("p")
    await asyncio.sleep(600)

    assert held.last_failure is not None
    assert held.held_due_at == held.last_failure.failed_at + timedelta(minutes=10)
    assert [attempt for attempt, _ in system.worker.attempts("FailState")] == [1, 2]
    assert system.worker.attempts("FailState")[1][1] == pytest.approx(601, abs=0.1)


async def test_attempt_that_waits_for_its_time_is_not_made_while_paused(system: System) -> None:
    await start(system, FailState)

    await system.client.pause_process("p")
    await asyncio.sleep(DAY.total_seconds())
    calls = system.worker.count("FailState")
    await system.client.resume_process("p")
    await asyncio.sleep(5)

    assert calls == 1
    assert [attempt for attempt, _ in system.worker.attempts("FailState")] == [1, 2]


async def test_delayed_start_is_as_late_as_it_was_if_the_process_is_resumed_before(system: System) -> None:
    await start(system, EndState, wait_s=1, start_delay=timedelta(seconds=100))

    await system.client.pause_process("p")
    await asyncio.sleep(50)
    await system.client.resume_process("p")
    await asyncio.sleep(40)
    before = system.worker.count("EndState")
    await asyncio.sleep(20)

    assert (before, system.worker.count("EndState")) == (0, 1)


async def test_paused_process_answers_rpcs_whose_states_wait(system: System) -> None:
    await start(system, NapState)
    await system.client.pause_process("p")

    await system.client.invoke_rpc("p", TaskProcess.enter, "WorkState")
    await asyncio.sleep(60)
    calls = system.worker.count("WorkState")
    await system.client.resume_process("p")
    await asyncio.sleep(60)

    assert (calls, system.worker.count("WorkState")) == (0, 1)


async def test_paused_process_times_out(system: System) -> None:
    await start(system, FailState, timeout=HOUR)
    await system.client.pause_process("p")

    with pytest.raises(ProcessTimeout):
        await system.client.wait_for_process_completion("p", timeout=DAY)

    assert leftovers(system) == {}


async def test_paused_process_is_stopped(system: System) -> None:
    await start(system, FailState)
    await system.client.pause_process("p")

    await system.client.stop_process("p")

    with pytest.raises(ProcessTerminated):
        await system.client.wait_for_process_completion("p")
    assert leftovers(system) == {}
    with pytest.raises(ProcessNotRunningError):
        await system.client.resume_process("p")


async def test_pausing_and_resuming_twice_is_once(system: System) -> None:
    process_execution_id = await start(system, NapState)

    paused = [await system.client.pause_process("p") for _ in range(2)]
    resumed = [await system.client.resume_process("p") for _ in range(2)]

    assert [result.changed for result in (*paused, *resumed)] == [True, False, True, False]
    types = [event_type for event_type, _, _ in history(system, process_execution_id)]
    assert [each for each in types if each in ("PAUSED", "RESUMED")] == ["PAUSED", "RESUMED"]


async def test_pause_that_comes_late_again_does_not_undo_the_resumption(system: System) -> None:
    await start(system, NapState)

    await system.client.pause_process("p", request_id="r")
    await system.client.resume_process("p")
    again = await system.client.pause_process("p", request_id="r")

    assert (again.duplicate, again.changed) == (True, True)
    assert (await system.client.describe_process("p")).paused_at is None


async def test_process_stays_paused_when_the_server_is_restarted(system: System) -> None:
    await start(system, WorkState, wait_s=1)
    await system.client.pause_process("p")

    await system.restart_server(down_s=60)
    await asyncio.sleep(HOUR.total_seconds())
    calls = system.worker.count("WorkState")
    await system.client.resume_process("p")
    await asyncio.sleep(60)

    assert (await system.client.describe_process("p")).status is ProcessStatus.COMPLETED
    assert system.worker.count("WorkState") == calls + 1


# --- retry ---


async def test_state_that_waits_for_its_next_attempt_is_called_at_once_and_its_attempts_are_counted_on(
    system: System,
) -> None:
    await start(system, FailState)
    await system.client.invoke_rpc("p", TaskProcess.mend)

    await system.client.retry_state("p", FailState)

    assert await system.client.wait_for_process_completion("p", int, timedelta(seconds=5)) == 2


async def test_retried_state_may_count_its_attempts_anew(system: System) -> None:
    await start(system, FailState, wait_s=700)
    await system.client.invoke_rpc("p", TaskProcess.mend)

    await system.client.retry_state("p", FailState, reset_attempts=True)

    assert await system.client.wait_for_process_completion("p", int, timedelta(seconds=5)) == 1
    assert [attempt for attempt, _ in system.worker.attempts("FailState")] == [1, 2, 1]


async def test_retried_state_that_fails_again_waits_again(system: System) -> None:
    await start(system, FailState)

    await system.client.retry_state("p", FailState)
    await asyncio.sleep(100)

    failed = await state_of(system, FailState)
    assert (failed.attempt, system.worker.count("FailState")) == (3, 2)
    assert failed.last_failure is not None
    assert failed.next_attempt_at == failed.last_failure.failed_at + timedelta(minutes=10)


async def test_state_whose_start_is_delayed_is_called_at_once(system: System) -> None:
    await start(system, EndState, start_delay=DAY)

    await system.client.retry_state("p", EndState)

    assert await system.client.wait_for_process_completion("p", timeout=timedelta(seconds=5)) is None


async def test_retried_state_of_a_paused_process_is_called_once_it_is_resumed(system: System) -> None:
    await start(system, FailState)
    await system.client.pause_process("p")

    await system.client.retry_state("p", FailState)
    await asyncio.sleep(60)
    before = system.worker.count("FailState")
    await system.client.resume_process("p")
    await asyncio.sleep(5)

    assert (before, system.worker.count("FailState")) == (1, 2)


@pytest.mark.parametrize("state_class", [NapState, WorkState], ids=["waits", "is called"])
async def test_state_that_does_not_wait_for_an_attempt_is_not_retried(
    system: System, state_class: type[AsyncState[Any]]
) -> None:
    await start(system, state_class)
    before = system.database.everything()

    with pytest.raises(ClientSideError) as refused:
        await system.client.retry_state("p", state_class)

    assert (refused.value.status, refused.value.error_sub_type) == (409, ErrorSubType.STATE_NOT_BACKING_OFF)
    assert system.database.everything() == before


Mend = Callable[[System, str, int], Awaitable[Any]]
MENDS: dict[str, Mend] = {
    "retry": lambda system, process_id, number: system.client.retry_state(process_id, NapState, number),
    "complete": lambda system, process_id, number: system.client.complete_state(
        process_id, TaskProcess, NapState, StateDecision.dead_end(), number
    ),
}


@pytest.mark.parametrize("mend", MENDS.values(), ids=MENDS)
async def test_state_that_has_ended_or_never_was_is_not_mended(system: System, mend: Mend) -> None:
    await start(system, NapState)
    await system.client.invoke_rpc("p", TaskProcess.enter, "WorkState")
    await system.client.complete_state("p", TaskProcess, NapState, StateDecision.dead_end())
    before = system.database.everything()

    with pytest.raises(ClientSideError) as ended:
        await mend(system, "p", 1)
    with pytest.raises(ClientSideError) as unknown:
        await mend(system, "p", 2)
    with pytest.raises(ProcessNotFoundError):
        await mend(system, "nobody", 1)

    assert (ended.value.status, ended.value.error_sub_type) == (409, ErrorSubType.STATE_NOT_RUNNING)
    assert (unknown.value.status, unknown.value.error_sub_type) == (404, ErrorSubType.STATE_NOT_FOUND)
    assert system.database.everything() == before


# --- complete ---


async def test_waiting_state_is_completed_by_hand_and_the_process_goes_on_as_decided(system: System) -> None:
    await start(system, NapState)

    result = await system.client.complete_state(
        "p", TaskProcess, NapState, StateDecision.single_next_state(EndState, "by hand")
    )

    assert result.status is ProcessStatus.RUNNING
    assert await system.client.wait_for_process_completion("p", str, HOUR) == "by hand"
    assert timer_count(system) == 0
    nap = await state_of(system, NapState)
    assert (nap.status, nap.execute_status) == (StateStatus.COMPLETED, ExecuteStatus.COMPLETED)
    assert system.worker.count("NapState") == 0


async def test_answer_to_a_call_of_a_state_that_was_completed_meanwhile_is_dropped(system: System) -> None:
    await start(system, WorkState)

    await system.client.complete_state("p", TaskProcess, WorkState, StateDecision.single_next_state(NapState))
    await asyncio.sleep(60)

    info = await system.client.describe_process("p", include={"closed_states"})
    assert [(each.state_id, each.status) for each in info.states] == [
        ("WorkState", StateStatus.COMPLETED),
        ("NapState", StateStatus.RUNNING),
    ]
    assert await system.client.get_data_attributes("p", TaskProcess) == {}


async def test_failing_state_that_is_completed_is_called_no_more(system: System) -> None:
    await start(system, FailState)

    result = await system.client.complete_state(
        "p", TaskProcess, FailState, StateDecision.force_complete_process("given up")
    )
    await asyncio.sleep(DAY.total_seconds())

    assert result.status is ProcessStatus.COMPLETED
    assert await system.client.wait_for_process_completion("p") == "given up"
    assert system.worker.count("FailState") == 1


async def test_other_states_go_on_when_one_is_completed(system: System) -> None:
    await start(system, FailState)
    await system.client.invoke_rpc("p", TaskProcess.enter, "FailState")
    await asyncio.sleep(5)

    await system.client.complete_state("p", TaskProcess, FailState, StateDecision.dead_end())
    await asyncio.sleep(700)

    assert [body["context"]["stateExecutionId"] for body in system.worker.bodies("FailState")] == [
        "FailState-1",
        "FailState-2",
        "FailState-2",
    ]


async def test_wait_for_a_state_ends_when_it_is_completed_by_hand(system: System) -> None:
    await start(system, NapState)
    waiter = asyncio.ensure_future(system.client.wait_for_state_completion("p", NapState))
    await asyncio.sleep(1)

    await system.client.complete_state("p", TaskProcess, NapState, StateDecision.graceful_complete_process(7))

    completion = await waiter
    assert (completion.state_status, completion.output) == (StateStatus.COMPLETED, 7)


async def test_process_may_be_failed_by_the_decision_of_an_operator(system: System) -> None:
    await start(system, NapState)

    await system.client.complete_state("p", TaskProcess, NapState, StateDecision.force_fail_process(message="no use"))

    with pytest.raises(ProcessFailed) as failed:
        await system.client.wait_for_process_completion("p")
    assert (failed.value.error_type, failed.value.error_message) == (ProcessErrorType.STATE_DECISION, "no use")


async def test_state_of_a_paused_process_is_completed_and_what_follows_waits(system: System) -> None:
    await start(system, NapState)
    await system.client.pause_process("p")

    await system.client.complete_state("p", TaskProcess, NapState, StateDecision.single_next_state(EndState, "x"))
    await asyncio.sleep(60)

    assert system.worker.count("EndState") == 0
    assert (await state_of(system, EndState)).held_due_at is not None


async def test_decision_that_says_nothing_is_refused(system: System) -> None:
    await start(system, NapState)
    before = system.database.everything()

    answer = await post(system, "complete-state", {"processId": "p", "stateId": "NapState", "decision": {}})

    assert (answer.status_code, answer.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert system.database.everything() == before


async def test_completion_that_is_said_twice_happens_once(system: System) -> None:
    await start(system, NapState)
    decision = StateDecision.single_next_state(NapState)

    results = [
        await system.client.complete_state("p", TaskProcess, NapState, decision, request_id="r") for _ in range(2)
    ]

    assert [result.duplicate for result in results] == [False, True]
    assert len((await system.client.describe_process("p", include={"closed_states"})).states) == 2


# --- the worker URL ---


async def test_state_that_waits_after_a_failure_is_called_at_once_at_a_new_worker(system: System) -> None:
    await start(system, FailState)
    await system.client.invoke_rpc("p", TaskProcess.mend)
    system.route(OTHER_URL, Worker(system.registry))

    await system.client.update_process_config("p", worker_url=OTHER_URL)

    assert await system.client.wait_for_process_completion("p", int, timedelta(seconds=5)) == 2
    assert system.worker.urls[-1].startswith(OTHER_URL)


async def test_delayed_start_stays_delayed_at_a_new_worker(system: System) -> None:
    await start(system, EndState, start_delay=DAY)

    await system.client.update_process_config("p", worker_url=OTHER_URL)
    await asyncio.sleep(60)

    assert system.worker.urls == []


# --- many at once ---


async def start_many(system: System, count: int, prefix: str = "p") -> list[str]:
    """Start tasks that wait, one a second; give their process ids, newest first."""
    ids = [f"{prefix}-{number}" for number in range(count)]
    for process_id in ids:
        await start(system, NapState, process_id, wait_s=1)
    return ids[::-1]


async def running(system: System) -> list[str]:
    """Give the process ids that run, newest first."""
    return [each.process_id async for each in system.client.list_processes(statuses=[ProcessStatus.RUNNING])]


async def test_many_are_stopped_page_by_page_and_each_keeps_the_reason(system: System) -> None:
    await start_many(system, 5)
    await system.raw.start_process("other", "OtherProcess")
    pages: list[BulkResult] = []

    result = await system.client.stop_processes(
        ProcessStopType.CANCEL, "wrong prices", process_type="TaskProcess", page_size=2, on_page=pages.append
    )

    assert (result.examined, result.matched, result.changed) == (5, 5, 5)
    assert [page.changed for page in pages] == [2, 4, 5]
    assert await running(system) == ["other"]
    for number in range(5):
        info = await system.client.describe_process(f"p-{number}")
        assert (info.status, info.reason) == (ProcessStatus.CANCELED, "wrong prices")


async def test_dry_run_tells_what_would_be_stopped_and_stops_nothing(system: System) -> None:
    ids = await start_many(system, 3)
    before = system.database.everything()

    result = await system.client.stop_processes(dry_run=True, page_size=2)

    assert [process.process_id for process in result.processes] == ids
    assert (result.matched, result.changed) == (3, 0)
    assert system.database.everything() == before


async def test_only_what_all_filters_fit_is_stopped(system: System) -> None:
    await start_many(system, 4, "test")
    await start_many(system, 2, "live")
    started = {each.process_id: each.started_at async for each in system.client.list_processes()}

    result = await system.client.stop_processes(
        process_id_prefix="test-", started_from=started["test-1"], started_before=started["test-3"]
    )

    assert (result.matched, result.changed) == (2, 2)
    assert sorted(await running(system)) == ["live-0", "live-1", "test-0", "test-3"]


async def test_stopping_many_again_stops_nothing_more(system: System) -> None:
    await start_many(system, 3)

    first = await system.client.stop_processes(request_id="r")
    before = system.database.everything()
    second = await system.client.stop_processes(request_id="r")

    assert (first.changed, second.examined, second.changed) == (3, 0, 0)
    assert system.database.everything() == before


async def test_stop_of_many_that_comes_again_leaves_alone_what_has_started_since(system: System) -> None:
    await start_many(system, 3)
    await system.client.stop_processes(request_id="r", page_size=2)
    await asyncio.sleep(1)
    await start_many(system, 2)

    again = await system.client.stop_processes(request_id="r", page_size=3)
    others = await system.client.stop_processes(request_id="s")

    assert (again.examined, again.changed, others.changed) == (0, 0, 2)


async def test_new_worker_url_of_many_that_comes_again_leaves_alone_what_has_started_since(system: System) -> None:
    await start_many(system, 1)
    await system.client.replace_worker_url("http://new", request_id="r")
    await asyncio.sleep(1)
    await system.client.stop_processes()
    await start_many(system, 1)

    again = await system.client.replace_worker_url("http://new", request_id="r")

    assert again.changed == 0


async def test_request_id_of_many_is_refused_for_other_filters(system: System) -> None:
    await start_many(system, 1)
    await system.client.stop_processes(process_type="Other", request_id="r")

    with pytest.raises(ClientSideError) as refusal:
        await system.client.stop_processes(request_id="r")

    assert (refusal.value.status, refusal.value.error_sub_type) == (409, ErrorSubType.REQUEST_ID_REUSED)
    assert len(await running(system)) == 1


async def test_dry_run_uses_no_request_id_up(system: System) -> None:
    await start_many(system, 1)
    await system.client.stop_processes(dry_run=True, request_id="r")
    await asyncio.sleep(1)

    assert (await system.client.stop_processes(request_id="r")).changed == 1


async def test_many_are_stopped_in_one_namespace_only(system: System) -> None:
    await start_many(system, 2)
    body = start_of("TaskProcess", "p-0") | {"namespace": "theirs"}
    await post(system, "start", body)

    await system.client.stop_processes()
    theirs = await post(system, "describe", {"processId": "p-0", "namespace": "theirs"})

    assert theirs.json()["status"] == ProcessStatus.RUNNING
    assert await running(system) == []


async def test_many_get_another_worker_url_and_their_failing_states_are_called_there_at_once(system: System) -> None:
    for number in range(3):
        await start(system, FailState, f"p-{number}", wait_s=2)
        await system.client.invoke_rpc(f"p-{number}", TaskProcess.mend)
    system.route(OTHER_URL, Worker(system.registry))

    tried = await system.client.replace_worker_url(
        OTHER_URL + "/", WORKER_URL, process_type="TaskProcess", dry_run=True
    )
    result = await system.client.replace_worker_url(OTHER_URL + "/", WORKER_URL, process_type="TaskProcess")
    again = await system.client.replace_worker_url(OTHER_URL + "/", WORKER_URL, process_type="TaskProcess")

    assert (len(tried.processes), tried.changed) == (3, 0)
    assert (result.matched, result.changed) == (3, 3)
    assert again.matched == 0
    for number in range(3):
        assert await system.client.wait_for_process_completion(f"p-{number}", int, timedelta(seconds=5)) == 2


async def test_executions_of_other_workers_keep_their_url(system: System) -> None:
    await start(system, NapState, "p")
    await start(system, NapState, "q")
    await system.client.update_process_config("q", worker_url="http://elsewhere")

    result = await system.client.replace_worker_url(OTHER_URL, WORKER_URL)

    assert (result.examined, result.changed) == (2, 1)
    assert (await system.client.describe_process("p")).worker_url == OTHER_URL
    assert (await system.client.describe_process("q")).worker_url == "http://elsewhere"


@pytest.mark.parametrize("url", ["no url", "ftp://worker"])
async def test_what_is_no_worker_url_replaces_none(system: System, url: str) -> None:
    await start(system, NapState)
    before = system.database.everything()

    answer = await post(system, "replace-worker-url", {"newWorkerUrl": url})

    assert (answer.status_code, answer.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert system.database.everything() == before


@pytest.mark.parametrize("operation", ["stop-processes", "replace-worker-url"])
async def test_page_token_that_is_none_is_refused(system: System, operation: str) -> None:
    answer = await post(system, operation, {"newWorkerUrl": OTHER_URL, "nextPageToken": "x"})

    assert (answer.status_code, answer.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)


# --- the history ---

Act = Callable[[System], Awaitable[Any]]
IDS: dict[str, Any] = {"reason": "because", "request_id": "r-1"}
ACTS: dict[str, tuple[Act, type[AsyncState[Any]], str]] = {
    "pause": (lambda s: s.client.pause_process("p", **IDS), NapState, "PAUSED"),
    "retry": (lambda s: s.client.retry_state("p", FailState, **IDS), FailState, "STATE_RETRIED"),
    "complete": (
        lambda s: s.client.complete_state("p", TaskProcess, NapState, StateDecision.dead_end(), **IDS),
        NapState,
        "STATE_COMPLETED_BY_OPERATOR",
    ),
    "skip timer": (lambda s: s.client.skip_timer("p", NapState, index=0, **IDS), NapState, "TIMER_SKIPPED"),
    "remember a skip": (
        lambda s: s.client.skip_timer("p", NapState, 2, index=0, remember=True, **IDS),
        NapState,
        "TIMER_SKIPPED",
    ),
    "update config": (lambda s: s.client.update_process_config("p", timeout=DAY, **IDS), NapState, "CONFIG_UPDATED"),
    "stop": (lambda s: s.client.stop_process("p", **IDS), NapState, "STOP_REQUESTED"),
    "stop many": (lambda s: s.client.stop_processes(**IDS), NapState, "STOP_REQUESTED"),
    "replace worker URL": (lambda s: s.client.replace_worker_url(OTHER_URL, **IDS), NapState, "CONFIG_UPDATED"),
}


@pytest.mark.parametrize("act", ACTS)
async def test_what_an_operator_does_is_in_the_history_with_reason_and_request_id(system: System, act: str) -> None:
    do, state_class, event_type = ACTS[act]
    process_execution_id = await start(system, state_class)

    await do(system)

    [(_, request_id, data)] = [each for each in history(system, process_execution_id) if each[0] == event_type]
    assert (request_id, data["reason"]) == ("r-1", "because")


async def test_resumption_is_in_the_history_with_reason_and_request_id(system: System) -> None:
    process_execution_id = await start(system, NapState)
    await system.client.pause_process("p")

    await system.client.resume_process("p", **IDS)

    assert ("RESUMED", "r-1", {"reason": "because"}) in history(system, process_execution_id)
