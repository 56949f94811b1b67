"""Failed attempts: when the next one comes, when no other does, and what is told of them (semantics 2.5, 2.7)."""

import asyncio
from datetime import timedelta
from itertools import combinations, pairwise

import pytest

from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    CommandRequest,
    InternalQueueCommand,
    NonRetryableError,
    ObjectProcess,
    ProcessContext,
    ProcessErrorType,
    ProcessFailed,
    ProcessStartOptions,
    ProcessStatus,
    RetryPolicy,
    RpcExecutionError,
    StateApi,
    StateDecision,
    StateMovement,
    StateStatus,
    Worker,
    internal_queue,
    rpc,
    state,
)


class OutOfStock(Exception):
    """What the user's code raises here."""


class FlakyState(AsyncState[int]):
    """Fails as often as its input says; a negative number is for ever."""

    def execute(self, ctx: ProcessContext, input: int) -> StateDecision:
        assert ctx.attempt is not None
        if input < 0 or ctx.attempt <= input:
            raise OutOfStock(f"attempt {ctx.attempt}")
        return StateDecision.graceful_complete_process(ctx.attempt)


class Flaky(ObjectProcess):
    starting_state = FlakyState


def with_policy(policy: RetryPolicy) -> ProcessStartOptions:
    return ProcessStartOptions(starting_state_options_override=AsyncStateOptions(execute_api_retry_policy=policy))


async def start_flaky(system: System, failures: int, policy: RetryPolicy | None = None) -> str:
    system.serve(Flaky)
    return await system.client.start_process("p", Flaky, failures, with_policy(policy) if policy else None)


def waits_s(system: System) -> list[float]:
    attempts = system.worker.attempts("FlakyState")
    return [round(after - before, 3) for (_, before), (_, after) in pairwise(attempts)]


# When the next attempt comes


async def test_state_without_options_is_repeated_after_waits_that_double_from_one_second(system: System) -> None:
    await start_flaky(system, 3)

    result = await system.client.wait_for_process_completion("p", int)

    assert result == 4
    assert system.worker.attempts("FlakyState") == [(1, 0), (2, 1), (3, 3), (4, 7)]
    contexts = [body["context"] for body in system.worker.bodies("FlakyState")]
    assert {context["timeoutMs"] for context in contexts} == {30_000}
    assert {context["firstAttemptAtMs"] for context in contexts} == {contexts[0]["processStartedAtMs"]}
    assert {context["idempotencyKey"] for context in contexts} == {
        f"{contexts[0]['processExecutionId']}/FlakyState-1/EXECUTE"
    }


async def test_waits_double_from_the_initial_interval(system: System) -> None:
    await start_flaky(system, 3, RetryPolicy(initial_interval_seconds=2))

    await system.client.wait_for_process_completion("p")

    assert system.worker.attempts("FlakyState") == [(1, 0), (2, 2), (3, 6), (4, 14)]


async def test_waits_grow_no_longer_than_the_maximum_interval(system: System) -> None:
    await start_flaky(system, 5, RetryPolicy(maximum_interval_seconds=3))

    await system.client.wait_for_process_completion("p")

    assert system.worker.attempts("FlakyState") == [(1, 0), (2, 1), (3, 3), (4, 6), (5, 9), (6, 12)]


async def test_short_wait_is_not_stretched_to_the_interval_of_the_scans(system: System) -> None:
    await start_flaky(system, 2, RetryPolicy(initial_interval_seconds=0.1))

    await system.client.wait_for_process_completion("p")

    assert system.settings.rescan_interval == timedelta(seconds=30)
    assert system.worker.attempts("FlakyState") == [(1, 0), (2, 0.1), (3, 0.3)]


async def test_waits_end_at_the_maximum_and_stay_there_however_many_attempts_fail(system: System) -> None:
    await start_flaky(system, 99, RetryPolicy(backoff_coefficient=1e9, maximum_interval_seconds=60))

    result = await system.client.wait_for_process_completion("p", int)

    assert result == 100
    assert [attempt for attempt, _ in system.worker.attempts("FlakyState")] == list(range(1, 101))
    assert waits_s(system) == [1] + [60] * 98


POLICY_FIELDS = {
    "initial_interval_seconds": 0.5,
    "backoff_coefficient": 3.0,
    "maximum_interval_seconds": 1.25,
    "maximum_attempts": 9,
    "maximum_attempts_duration_seconds": 60.0,
}


@pytest.mark.parametrize(
    "left_out",
    [*combinations(POLICY_FIELDS, 1), *combinations(POLICY_FIELDS, 2), tuple(POLICY_FIELDS)],
    ids=lambda names: "+".join(names),
)
async def test_field_that_a_policy_leaves_out_has_its_default(system: System, left_out: tuple[str, ...]) -> None:
    given = {name: value for name, value in POLICY_FIELDS.items() if name not in left_out}
    initial_s = given.get("initial_interval_seconds", 1)
    coefficient = given.get("backoff_coefficient", 2)
    maximum_s = given.get("maximum_interval_seconds", 100)
    first_s, second_s = min(initial_s, maximum_s), min(initial_s * coefficient, maximum_s)

    await start_flaky(system, 2, RetryPolicy(**given))  # type: ignore[arg-type]  # one field is an int
    await system.client.wait_for_process_completion("p")

    assert system.worker.attempts("FlakyState") == [(1, 0), (2, first_s), (3, first_s + second_s)]


@state(
    wait_until_api_retry_policy=RetryPolicy(initial_interval_seconds=3, backoff_coefficient=1),
    execute_api_retry_policy=RetryPolicy(initial_interval_seconds=1, backoff_coefficient=1),
)
class FlakyTwiceState(AsyncState[None]):
    def wait_until(self, ctx: ProcessContext) -> CommandRequest:
        if ctx.attempt != 3:
            raise OutOfStock
        return CommandRequest.empty()

    async def execute(self, ctx: ProcessContext) -> StateDecision:
        if ctx.attempt != 3:
            raise OutOfStock
        return StateDecision.graceful_complete_process()


class FlakyTwice(ObjectProcess):
    starting_state = FlakyTwiceState


async def test_each_method_has_its_own_policy_and_counts_its_own_attempts(system: System) -> None:
    system.serve(FlakyTwice)

    await system.client.start_process("p", FlakyTwice)
    await system.client.wait_for_process_completion("p")

    assert system.worker.attempts("FlakyTwiceState", "wait-until") == [(1, 0), (2, 3), (3, 6)]
    assert system.worker.attempts("FlakyTwiceState") == [(1, 0), (2, 1), (3, 2)]
    waited, executed = system.worker.bodies("FlakyTwiceState", "wait-until"), system.worker.bodies("FlakyTwiceState")
    started_at_ms = waited[0]["context"]["processStartedAtMs"]
    assert {body["context"]["firstAttemptAtMs"] - started_at_ms for body in waited} == {0}
    assert {body["context"]["firstAttemptAtMs"] - started_at_ms for body in executed} == {6_000}


@state(execute_api_retry_policy=RetryPolicy(initial_interval_seconds=5))
class SlowlyRepeatedState(FlakyState):
    """Waits 5 s after its first failure."""


@state(execute_api_retry_policy=RetryPolicy(initial_interval_seconds=2))
class QuicklyRepeatedState(FlakyState):
    """Waits 2 s after its first failure."""


class BothState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(
            StateMovement.create(SlowlyRepeatedState, 1), StateMovement.create(QuicklyRepeatedState, 1)
        )


class Both(ObjectProcess):
    starting_state = BothState
    states = (SlowlyRepeatedState, QuicklyRepeatedState)


async def test_states_that_back_off_are_called_in_the_order_of_their_due_times(system: System) -> None:
    system.serve(Both)

    await system.client.start_process("p", Both)
    await system.client.get_process_results("p")

    calls = [(call["body"]["stateId"], call["body"]["context"]["attempt"]) for call in system.worker.calls[1:]]
    assert calls == [
        ("SlowlyRepeatedState", 1),
        ("QuicklyRepeatedState", 1),
        ("QuicklyRepeatedState", 2),
        ("SlowlyRepeatedState", 2),
    ]


@pytest.mark.parametrize(
    ("down_s", "repeated_at_s"), [(5, 60), (300, 310)], ids=["back before it is due", "back after it is due"]
)
async def test_wait_for_the_next_attempt_outlives_a_restart_of_the_server(
    system: System, down_s: int, repeated_at_s: int
) -> None:
    await start_flaky(system, 3, RetryPolicy(initial_interval_seconds=60, backoff_coefficient=1))
    await asyncio.sleep(10)

    await system.restart_server(down_s=down_s)
    await system.client.wait_for_process_completion("p")

    later = [repeated_at_s + 60 * count for count in range(3)]
    assert system.worker.attempts("FlakyState") == [(1, 0), *zip((2, 3, 4), later, strict=True)]
    first_attempts = {body["context"]["firstAttemptAtMs"] for body in system.worker.bodies("FlakyState")}
    assert len(first_attempts) == 1


async def test_no_attempt_comes_sooner_than_its_interval_whatever_restarts_in_between(system: System) -> None:
    await start_flaky(system, 59, RetryPolicy(initial_interval_seconds=60, backoff_coefficient=1))
    await asyncio.sleep(10 * 60 + 30)

    await system.restart_server()
    await asyncio.sleep(10 * 60)
    system.route(WORKER_URL, None)
    await asyncio.sleep(70)
    system.route(WORKER_URL, Worker(system.registry))
    await asyncio.sleep(10)
    await system.restart_server(down_s=90)
    await system.client.wait_for_process_completion("p", timeout=timedelta(hours=2))

    *others_s, longest_s = sorted(waits_s(system))
    assert others_s == [60] * 58
    assert longest_s >= 60


# When no other attempt comes


class BrokenWaitState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        raise OutOfStock("no apples")

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class BrokenWait(ObjectProcess):
    starting_state = BrokenWaitState

    @rpc
    def fail(self) -> None:
        raise OutOfStock("no pears")


ONCE = RetryPolicy(maximum_attempts=1)


async def test_one_attempt_is_one_call_of_execute(system: System) -> None:
    await start_flaky(system, -1, ONCE)

    with pytest.raises(ProcessFailed):
        await system.client.wait_for_process_completion("p")
    await asyncio.sleep(3600)

    assert system.worker.attempts("FlakyState") == [(1, 0)]


async def test_one_attempt_is_one_call_of_wait_until(system: System) -> None:
    system.serve(BrokenWait)
    override = AsyncStateOptions(wait_until_api_retry_policy=ONCE)

    await system.client.start_process(
        "p", BrokenWait, None, ProcessStartOptions(starting_state_options_override=override)
    )
    with pytest.raises(ProcessFailed):
        await system.client.wait_for_process_completion("p")
    await asyncio.sleep(3600)

    assert [call["operation"] for call in system.worker.calls] == ["wait-until"]


async def test_rpc_that_raises_is_called_once(system: System) -> None:
    system.serve(BrokenWait)
    await system.client.start_process("p", BrokenWait, None, ProcessStartOptions(start_delay=timedelta(days=1)))

    with pytest.raises(RpcExecutionError, match="no pears"):
        await system.client.invoke_rpc("p", BrokenWait.fail)
    await asyncio.sleep(3600)

    assert [call["operation"] for call in system.worker.calls] == ["rpc"]


async def test_duration_that_ends_before_the_next_attempt_allows_no_other(system: System) -> None:
    await start_flaky(system, -1, RetryPolicy(initial_interval_seconds=10, maximum_attempts_duration_seconds=5))

    with pytest.raises(ProcessFailed) as failed:
        await system.client.wait_for_process_completion("p")

    assert system.worker.attempts("FlakyState") == [(1, 0)]
    assert "status 424, OutOfStock: attempt 1" in failed.value.error_message


class CardExpired(NonRetryableError):
    """A child of the error of the SDK."""


class ExpiredState(AsyncState[None]):
    def execute(self) -> StateDecision:
        raise CardExpired("card 1234 has expired")


class Expired(ObjectProcess):
    starting_state = ExpiredState


async def test_error_that_cannot_be_retried_exhausts_the_attempts_at_once(system: System) -> None:
    system.serve(Expired)

    await system.client.start_process("p", Expired)
    with pytest.raises(ProcessFailed, match="card 1234") as failed:
        await system.client.wait_for_process_completion("p")

    assert system.worker.attempts("ExpiredState") == [(1, 0)]
    assert failed.value.error_type is ProcessErrorType.STATE_API


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=2))
class DoomedState(FlakyState):
    """Gives up after two attempts."""


class SleepyState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("wake"))

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class ForkState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(
            SleepyState, StateMovement.create(FlakyState, -1), StateMovement.create(DoomedState, -1)
        )


class Fork(ObjectProcess):
    wake = internal_queue(None)
    starting_state = ForkState
    states = (SleepyState, FlakyState, DoomedState)


async def test_exhausted_attempts_fail_the_process_and_abort_its_other_states(system: System) -> None:
    system.serve(Fork)

    process_execution_id = await system.client.start_process("p", Fork)
    with pytest.raises(ProcessFailed) as failed:
        await system.client.wait_for_process_completion("p")

    error = failed.value
    assert error.process_execution_id == process_execution_id
    assert error.error_type is ProcessErrorType.STATE_API
    assert "execute of state execution DoomedState-1 failed after 2 attempt(s)" in error.error_message
    assert "status 424, OutOfStock: attempt 2" in error.error_message
    info = await system.client.describe_process("p", include={"closed_states"})
    assert info.error is not None
    assert (info.error.state_execution_id, info.error.api) == ("DoomedState-1", StateApi.EXECUTE)
    assert info.error.worker_error_type == "OutOfStock"
    assert {state.state_id: state.status for state in info.states} == {
        "ForkState": StateStatus.COMPLETED,
        "SleepyState": StateStatus.ABORTED,
        "FlakyState": StateStatus.ABORTED,
        "DoomedState": StateStatus.FAILED,
    }


# What is told of a failed attempt


async def test_last_failure_and_the_next_attempt_are_described_while_a_state_backs_off(system: System) -> None:
    await start_flaky(system, -1, RetryPolicy(initial_interval_seconds=60))
    await asyncio.sleep(10)

    info = await system.client.describe_process("p")

    [flaky] = info.states
    failure = flaky.last_failure
    assert info.status is ProcessStatus.RUNNING
    assert (flaky.attempt, flaky.next_attempt_at) == (2, info.started_at + timedelta(seconds=60))
    assert flaky.running_since is None
    assert flaky.retry_policy == RetryPolicy(initial_interval_seconds=60)
    assert failure is not None
    assert (failure.api, failure.http_status, failure.error_type) == (StateApi.EXECUTE, 424, "OutOfStock")
    assert (failure.attempt, failure.failed_at) == (1, info.started_at)
    assert failure.details.startswith("attempt 1\n")
    assert "in execute" in failure.details


class LongState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(20)
        return StateDecision.graceful_complete_process("late")


class Long(ObjectProcess):
    starting_state = LongState


async def test_attempt_that_runs_is_described_by_its_beginning(system: System) -> None:
    system.serve(Long)
    delayed = ProcessStartOptions(start_delay=timedelta(seconds=30))
    await system.client.start_process("p", Long, None, delayed)

    await asyncio.sleep(10)
    [before] = (await system.client.describe_process("p")).states
    await asyncio.sleep(30)
    info = await system.client.describe_process("p")
    await system.client.wait_for_process_completion("p")
    [after] = (await system.client.describe_process("p", include={"closed_states"})).states

    begins_at = info.started_at + timedelta(seconds=30)
    assert (before.running_since, before.next_attempt_at) == (None, begins_at)
    assert [(each.running_since, each.next_attempt_at) for each in info.states] == [(begins_at, None)]
    assert (after.running_since, after.next_attempt_at, after.retry_policy) == (None, None, None)


async def test_worker_that_is_down_at_first_is_called_again_until_it_is_up(system: System) -> None:
    system.route(WORKER_URL, None)
    await start_flaky(system, 0)
    await asyncio.sleep(5)
    [down] = (await system.client.describe_process("p")).states

    system.route(WORKER_URL, Worker(system.registry))
    result = await system.client.wait_for_process_completion("p", int)

    assert down.last_failure is not None
    assert (down.last_failure.http_status, down.last_failure.error_type) == (0, "WORKER_UNREACHABLE")
    assert result == 4
    assert system.worker.attempts("FlakyState") == [(1, 0), (2, 1), (3, 3), (4, 7)]


async def test_failing_process_leaves_others_alone(system: System) -> None:
    await start_flaky(system, -1)
    await asyncio.sleep(20)

    await system.client.start_process("other", Flaky, 0)
    result = await system.client.wait_for_process_completion("other", int)

    assert result == 1
