"""Retries, exhaustion and recovery (semantics 2.5, 2.7)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_stub.core.retry import attempt_timeout_ms, interval_ms
from tests.support.core_bench import CoreBench
from tests.unit.core.drive import (
    COMPLETE,
    DEAD_END,
    any_of,
    execute,
    executed,
    failed,
    next_states,
    started,
    wait,
)
from xdb_sdk.protocol import (
    ExecuteStatus,
    ProcessErrorType,
    ProcessStatus,
    RecoveryConfig,
    RetryPolicyConfig,
    StateApi,
    StateOptionsConfig,
    StateStatus,
    WaitUntilStatus,
)


@pytest.fixture
def bench() -> CoreBench:
    return CoreBench()


def options(policy: RetryPolicyConfig | None = None, **changes: object) -> StateOptionsConfig:
    policy = policy or RetryPolicyConfig(maximum_attempts=1)
    base = StateOptionsConfig(execute_api_retry_policy=policy, wait_until_api_retry_policy=policy, skip_wait_until=True)
    return base.model_copy(update=changes)


def fail_at_due_times(bench: CoreBench, state: str, times: int) -> list[int]:
    """Let attempts fail as soon as they are due; give the waits between them in ms."""
    waits = []
    for _ in range(times):
        failed_at_ms = bench.now_ms
        bench.commit_one(failed(bench, state))
        due_at_ms = bench.state(state).due_at_ms
        assert due_at_ms is not None
        waits.append(due_at_ms - failed_at_ms)
        bench.now_ms = due_at_ms
    return waits


def test_waits_double_from_one_second_up_to_the_maximum(bench: CoreBench) -> None:
    started(bench)

    waits = fail_at_due_times(bench, "S-1", 9)

    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000, 100_000]


def test_waits_start_at_the_initial_interval(bench: CoreBench) -> None:
    started(bench, start_state_options=options(RetryPolicyConfig(initial_interval_ms=2_000)))

    assert fail_at_due_times(bench, "S-1", 3) == [2_000, 4_000, 8_000]


def test_attempt_and_first_attempt_time_are_kept_over_backoffs(bench: CoreBench) -> None:
    started(bench)
    sent_at_ms = bench.now_ms + 500
    bench.now_ms += 700
    bench.commit_one(failed(bench, "S-1", first_attempt_at_ms=sent_at_ms))

    fail_at_due_times(bench, "S-1", 2)

    state = bench.state("S-1")
    assert (state.attempt, state.first_attempt_at_ms) == (4, sent_at_ms)


def test_duration_counts_from_the_first_sending_not_from_the_creation(bench: CoreBench) -> None:
    started(bench, start_state_options=options(RetryPolicyConfig(maximum_attempts_duration_ms=5_000)))
    bench.now_ms += 60_000

    bench.commit_one(failed(bench, "S-1", first_attempt_at_ms=bench.now_ms - 100))

    assert bench.state("S-1").due_at_ms == bench.now_ms + 1_000


def test_answer_that_the_server_cannot_apply_is_a_failed_attempt(bench: CoreBench) -> None:
    started(bench)

    replacement = executed(bench, "S-1", DEAD_END).on_store_error(ZeroDivisionError())
    assert replacement is not None
    bench.commit_one(replacement)

    failure = bench.state("S-1").last_failure
    assert failure is not None
    assert failure.error_type == "INTERNAL"
    assert replacement.on_store_error(ZeroDivisionError()) is None


def test_one_attempt_is_one_attempt(bench: CoreBench) -> None:
    started(bench, start_state_options=options())

    bench.commit_one(failed(bench, "S-1"))

    process = bench.current("p")
    assert process.status is ProcessStatus.FAILED
    assert bench.state("S-1").status is StateStatus.FAILED
    assert process.error is not None
    assert process.error.error_type is ProcessErrorType.STATE_API
    assert (process.error.state_execution_id, process.error.api) == ("S-1", StateApi.EXECUTE)
    for part in ("424", "ValueError", "boom", "S-1"):
        assert part in process.error.message


def test_duration_shorter_than_the_first_wait_allows_one_attempt(bench: CoreBench) -> None:
    started(bench, start_state_options=options(RetryPolicyConfig(maximum_attempts_duration_ms=900)))

    bench.commit_one(failed(bench, "S-1"))

    assert bench.current("p").status is ProcessStatus.FAILED


def test_final_error_exhausts_the_attempts_at_once(bench: CoreBench) -> None:
    started(bench)

    bench.commit_one(failed(bench, "S-1", retryable=False))

    assert bench.current("p").status is ProcessStatus.FAILED


def test_other_states_are_aborted_when_one_is_exhausted(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states("A", "B", options=options()))

    bench.commit_one(failed(bench, "A-1"))

    assert bench.state("A-1").status is StateStatus.FAILED
    assert bench.state("B-1").status is StateStatus.ABORTED


def test_execute_counts_its_attempts_anew_after_wait_until(bench: CoreBench) -> None:
    started(bench, start_state_options=StateOptionsConfig())
    fail_at_due_times(bench, "S-1", 2)

    wait(bench, "S-1", any_of())

    state = bench.state("S-1")
    assert (state.api, state.attempt, state.first_attempt_at_ms) == (StateApi.EXECUTE, 1, None)


def recovering(api: StateApi, **changes: object) -> StateOptionsConfig:
    target = RecoveryConfig(state_id="R", options=options(RetryPolicyConfig(maximum_attempts=2)))
    field = "execute_recovery" if api is StateApi.EXECUTE else "wait_until_recovery"
    return options(None, **{field: target, **changes})


@pytest.mark.parametrize("api", list(StateApi))
def test_exhausted_state_is_recovered_with_its_input_and_the_reason(bench: CoreBench, api: StateApi) -> None:
    skip = api is StateApi.EXECUTE
    started(bench, start_state_options=recovering(api, skip_wait_until=skip), start_state_input={"x": 1})

    bench.commit_one(failed(bench, "S-1"))

    recovery = bench.state("R-1")
    assert bench.state("S-1").status is StateStatus.FAILED
    assert bench.current("p").status is ProcessStatus.RUNNING
    assert recovery.input == '{"x":1}'
    origin = recovery.recover_from
    assert origin is not None
    assert (origin.state_execution_id, origin.api, origin.error_type, origin.attempts) == ("S-1", api, "ValueError", 1)
    execute(bench, "R-1", COMPLETE)
    assert bench.current("p").status is ProcessStatus.COMPLETED


def test_recovery_state_has_its_own_options_and_does_not_recover_to_itself(bench: CoreBench) -> None:
    started(bench, start_state_options=recovering(StateApi.EXECUTE))
    bench.commit_one(failed(bench, "S-1"))

    bench.commit_one(failed(bench, "R-1"))
    assert bench.state("R-1").attempt == 2
    bench.commit_one(failed(bench, "R-1"))

    assert bench.current("p").status is ProcessStatus.FAILED
    assert {key.state_id for key in bench.states} == {"S", "R"}


def test_recovery_chain_runs_in_order(bench: CoreBench) -> None:
    second = RecoveryConfig(state_id="R2", options=options())
    first = RecoveryConfig(state_id="R1", options=options(execute_recovery=second))
    started(bench, start_state_options=options(execute_recovery=first))

    bench.commit_one(failed(bench, "S-1"))
    bench.commit_one(failed(bench, "R1-1"))

    origin = bench.state("R2-1").recover_from
    assert origin is not None
    assert origin.state_execution_id == "R1-1"


def test_two_parallel_states_recover_into_numbered_executions_while_others_go_on(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states("A", "B", "Other", options=recovering(StateApi.EXECUTE)))

    bench.commit(failed(bench, "A-1"), failed(bench, "B-1"))

    assert [bench.state(s).is_open for s in ("R-1", "R-2", "Other-1")] == [True, True, True]


def test_exhausted_wait_until_proceeds_to_execute_of_the_same_state(bench: CoreBench) -> None:
    proceeding = options(skip_wait_until=False, proceed_to_execute_when_wait_until_retry_exhausted=True)
    started(bench, start_state_options=proceeding)

    bench.commit_one(failed(bench, "S-1"))

    state = bench.state("S-1")
    assert (state.wait_until_status, state.execute_status) == (WaitUntilStatus.COMPLETED, ExecuteStatus.RUNNING)
    assert state.command_results is not None
    assert not state.command_results.wait_until_api_succeeded
    execute(bench, "S-1", DEAD_END)


def test_options_of_each_next_state_are_its_own(bench: CoreBench) -> None:
    started(bench, start_state_options=options())

    execute(bench, "S-1", next_states("A", options=options(RetryPolicyConfig(maximum_attempts=4))))

    assert bench.state("A-1").options.execute_api_retry_policy.maximum_attempts == 4


@pytest.mark.parametrize("coefficient", [1.0, 1.01, 2.0, 10.0, 1e9])
@pytest.mark.parametrize("maximum_ms", [0, 60_000])
def test_waits_never_shrink_overflow_or_exceed_the_maximum(coefficient: float, maximum_ms: int) -> None:
    policy = RetryPolicyConfig(backoff_coefficient=coefficient, maximum_interval_ms=maximum_ms, initial_interval_ms=1)

    waits = [interval_ms(policy, attempt) for attempt in range(1, 5_001)]

    assert waits == sorted(waits)
    assert waits[0] >= 1
    assert maximum_ms == 0 or waits[-1] <= maximum_ms


@given(
    initial_ms=st.integers(1, 86_400_000),
    coefficient=st.floats(1, 1e12),
    maximum_ms=st.integers(1, 10**12),
    attempt=st.integers(1, 2**31),
)
def test_any_policy_waits_between_one_ms_and_the_maximum(
    initial_ms: int, coefficient: float, maximum_ms: int, attempt: int
) -> None:
    policy = RetryPolicyConfig(
        initial_interval_ms=initial_ms, backoff_coefficient=coefficient, maximum_interval_ms=maximum_ms
    )

    wait_ms = interval_ms(policy, attempt)

    assert 1 <= wait_ms <= maximum_ms
    assert math.isfinite(wait_ms)


def test_attempt_is_cut_by_the_time_left_of_the_duration_but_gets_a_second() -> None:
    policy = RetryPolicyConfig(maximum_attempts_duration_ms=10_000)

    def timeout_after(elapsed_ms: int) -> int:
        return attempt_timeout_ms(
            policy, api_timeout_ms=30_000, cap_ms=60_000, first_attempt_at_ms=0, now_ms=elapsed_ms
        )

    assert [timeout_after(ms) for ms in (0, 4_000, 9_900)] == [10_000, 6_000, 1_000]
