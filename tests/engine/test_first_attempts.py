"""The time of a retry policy begins with the first call, not with what came before it (semantics 2.4, 5.4)."""

import asyncio
from datetime import timedelta

from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessStartOptions,
    RetryPolicy,
    StateDecision,
    Worker,
    WorkerOptions,
    data_attribute,
    state,
)

LIMITED = RetryPolicy(maximum_attempts_duration_seconds=4)
LOCK = PersistenceLoadingPolicy.all().locking(["total"])


@state(data_attributes_loading_policy=LOCK)
class HoldState(AsyncState[None]):
    async def execute(self, persistence: Persistence) -> StateDecision:
        await asyncio.sleep(20)
        persistence.set_data_attribute("total", 1)
        return StateDecision.dead_end()


@state(data_attributes_loading_policy=LOCK, execute_api_retry_policy=LIMITED)
class AddState(AsyncState[None]):
    async def execute(self, persistence: Persistence) -> StateDecision:
        await asyncio.sleep(2)
        return StateDecision.graceful_complete_process(persistence.get_data_attribute("total"))


class BeginState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(HoldState, AddState)


class LockingProcess(ObjectProcess):
    """Has a state that waits for the lock of another for longer than its policy lets it fail."""

    total = data_attribute(int)
    starting_state = BeginState
    states = (HoldState, AddState)


@state(execute_api_retry_policy=LIMITED)
class SlowState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(2)
        return StateDecision.graceful_complete_process("done")


class SlowProcess(ObjectProcess):
    """Needs more than the least time of a call."""

    starting_state = SlowState


async def test_wait_for_a_lock_uses_up_no_time_of_the_policy(system: System) -> None:
    system.serve(LockingProcess)
    await system.client.start_process("p", LockingProcess)

    result = await system.client.wait_for_process_completion("p", int)

    assert result == 1
    [context] = [body["context"] for body in system.worker.bodies("AddState")]
    assert context["firstAttemptAtMs"] - context["processStartedAtMs"] == 20_000
    assert context["timeoutMs"] == 4_000


async def test_downtime_before_the_first_call_uses_up_no_time_of_the_policy(system: System) -> None:
    system.serve(SlowProcess)
    options = ProcessStartOptions(start_delay=timedelta(seconds=5))
    await system.client.start_process("p", SlowProcess, None, options)
    await system.restart_server(down_s=60)

    result = await system.client.wait_for_process_completion("p", str)

    assert result == "done"
    assert [attempt for attempt, _ in system.worker.attempts("SlowState")] == [1]


async def test_wait_for_a_busy_worker_uses_up_no_time_of_the_policy(system: System) -> None:
    system.serve(SlowProcess)
    system.route(WORKER_URL, Worker(system.registry, WorkerOptions(max_concurrent_calls=1)))
    for number in range(10):
        await system.client.start_process(f"p{number}", SlowProcess)

    results = [await system.client.wait_for_process_completion(f"p{number}", str) for number in range(10)]

    assert results == ["done"] * 10
    assert {body["context"]["timeoutMs"] for body in system.worker.bodies("SlowState")} == {4_000}
