"""What `xdb process describe` prints for people."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from server_stub.cli._output import print_process
from xdb_sdk import (
    AttemptFailure,
    ExecuteStatus,
    ProcessError,
    ProcessErrorType,
    ProcessInfo,
    ProcessStatus,
    QueueCommandInfo,
    QueueCommandStatus,
    RetryPolicy,
    StateApi,
    StateExecutionInfo,
    StateStatus,
    TimerInfo,
    TimerStatus,
    WaitUntilStatus,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
SHOWN_NOON = "2026-11-30T12:00:00.000Z"
DETAILS = "no score\n\nTraceback (most recent call last):\n  in execute"
STATE = StateExecutionInfo(
    state_id="Run",
    number=1,
    status=StateStatus.RUNNING,
    wait_until_status=WaitUntilStatus.SKIPPED,
    execute_status=ExecuteStatus.RUNNING,
    attempt=1,
    created_at=NOON,
    closed_at=None,
    running_since=None,
    next_attempt_at=None,
    retry_policy=RetryPolicy(),
    last_failure=None,
    timers=(),
    queue_commands=(),
)
FAILURE = AttemptFailure(
    api=StateApi.EXECUTE, http_status=424, error_type="NoScore", details=DETAILS, attempt=4, failed_at=NOON
)
PROCESS = ProcessInfo(
    namespace="default",
    process_id="p",
    process_execution_id="e",
    process_type="P",
    status=ProcessStatus.RUNNING,
    is_current=True,
    started_at=NOON,
    closed_at=None,
    worker_url="http://worker",
    object_id=None,
    table_name=None,
    timeout_at=None,
    graceful_complete_requested=False,
    reason=None,
    error=None,
    outputs=(),
    states=(),
    omitted_states=0,
    queue_sizes=None,
)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    """Print a process with one state, and give the lines."""

    def show(is_verbose: bool = False, **changes: Any) -> list[str]:
        print_process(replace(PROCESS, states=(replace(STATE, **changes),)), is_verbose=is_verbose)
        return capsys.readouterr().out.splitlines()

    return show


def test_first_attempt_that_runs_is_not_said_to_be_a_repetition(shown: Any) -> None:
    [line] = [line for line in shown(running_since=NOON) if line.startswith("state ")]

    assert line == (f"state Run-1: RUNNING, wait_until SKIPPED, execute RUNNING, attempt 1 running since {SHOWN_NOON}")


@pytest.mark.parametrize(
    ("policy", "limit", "retries"),
    [
        (RetryPolicy(), "no limit", "after 1 s, each time 2 times as long, up to 100 s; no limit of attempts"),
        (
            RetryPolicy(initial_interval_seconds=0.5, backoff_coefficient=1.5, maximum_attempts=10),
            "of 10",
            "after 0.5 s, each time 1.5 times as long, up to 100 s; at most 10 attempts",
        ),
        (
            RetryPolicy(maximum_attempts=3, maximum_attempts_duration_seconds=60),
            "of 3",
            "after 1 s, each time 2 times as long, up to 100 s; at most 3 attempts, for at most 60 s",
        ),
    ],
    ids=["for ever", "attempts", "attempts and time"],
)
def test_state_that_backs_off_tells_the_next_attempt_and_the_limits(
    shown: Any, policy: RetryPolicy, limit: str, retries: str
) -> None:
    lines = shown(attempt=5, next_attempt_at=NOON, retry_policy=policy)

    assert any(line.endswith(f", next attempt 5 ({limit}) at {SHOWN_NOON}") for line in lines)
    assert f"  retries: {retries}" in lines


def test_commands_are_named_and_say_how_much_is_wanted(shown: Any) -> None:
    def queue(name: str, received: int, at_least: int, at_most: int) -> QueueCommandInfo:
        return QueueCommandInfo(
            command_id=None,
            queue_name=name,
            status=QueueCommandStatus.WAITING,
            received_count=received,
            at_least=at_least,
            at_most=at_most,
        )

    lines = shown(
        timers=(
            TimerInfo(command_id="reminder", fire_at=NOON, status=TimerStatus.SCHEDULED),
            TimerInfo(command_id=None, fire_at=NOON, status=TimerStatus.FIRED),
        ),
        queue_commands=(queue("verify", 0, 1, 1), queue("batch", 0, 2, 5)),
    )

    assert lines[-4:] == [
        f"  timer reminder: SCHEDULED, fires at {SHOWN_NOON}",
        "  timer #1: FIRED",
        "  queue verify: WAITING, 0 of 1 received",
        "  queue batch: WAITING, 0 of 2 to 5 received",
    ]


def test_process_without_an_open_state_says_what_it_waits_for(capsys: pytest.CaptureFixture[str], shown: Any) -> None:
    sentence = "no state is open; the process waits for an RPC, a stop or its timeout"

    print_process(PROCESS)

    assert sentence in capsys.readouterr().out
    assert sentence in shown(status=StateStatus.COMPLETED, closed_at=NOON, retry_policy=None)
    assert sentence not in shown()


def test_closed_process_waits_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_process(replace(PROCESS, status=ProcessStatus.COMPLETED, closed_at=NOON))

    assert "no state is open" not in capsys.readouterr().out


def test_traceback_of_a_failed_attempt_is_shown_when_asked_for(shown: Any) -> None:
    brief, verbose = shown(last_failure=FAILURE), shown(is_verbose=True, last_failure=FAILURE)

    assert brief[-1] == "  attempt 4 of EXECUTE failed: NoScore: no score"
    assert verbose[-2:] == ["    Traceback (most recent call last):", "      in execute"]


def test_traceback_of_a_failed_process_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    error = ProcessError(
        error_type=ProcessErrorType.STATE_API,
        details=DETAILS,
        state_execution_id="Run-1",
        api=StateApi.EXECUTE,
        worker_error_type="NoScore",
    )
    failed = replace(PROCESS, status=ProcessStatus.FAILED, closed_at=NOON, error=error)

    print_process(failed)
    brief = capsys.readouterr().out
    print_process(failed, is_verbose=True)
    verbose = capsys.readouterr().out

    assert "error:      STATE_API: no score\n" in brief
    assert "in execute" not in brief
    assert "      in execute\n" in verbose
