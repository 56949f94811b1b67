"""A description of an execution in sentences: what it waits for, what fails, what to do about it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

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
    explain,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
SHOWN = "2026-11-30T12:00:00.000Z"
CHARGE = StateExecutionInfo(
    state_id="Charge",
    number=2,
    status=StateStatus.RUNNING,
    wait_until_status=WaitUntilStatus.SKIPPED,
    execute_status=ExecuteStatus.RUNNING,
    attempt=3,
    created_at=NOON,
    closed_at=None,
    running_since=None,
    next_attempt_at=None,
    retry_policy=RetryPolicy(),
    last_failure=None,
    timers=(),
    queue_commands=(),
)
ORDER = ProcessInfo(
    namespace="default",
    process_id="order-7",
    process_execution_id="e",
    process_type="Order",
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
    states=(CHARGE,),
    omitted_states=0,
    queue_sizes=None,
)


def explained(state: StateExecutionInfo | None = None, **changes: Any) -> list[str]:
    """Explain the order, with one state or as it is changed."""
    return explain(replace(ORDER, **{"states": (state,) if state is not None else (CHARGE,), **changes}))


def failed(http_status: int, error_type: str, details: str = "no money\n\nTraceback") -> StateExecutionInfo:
    failure = AttemptFailure(
        api=StateApi.EXECUTE,
        http_status=http_status,
        error_type=error_type,
        details=details,
        attempt=2,
        failed_at=NOON,
    )
    return replace(CHARGE, next_attempt_at=NOON, last_failure=failure)


def test_call_that_is_being_made_is_told_since_when() -> None:
    [sentence] = explained(replace(CHARGE, running_since=NOON))

    assert sentence == (
        "State Charge-2 is being called, or waits for a worker to take the call: "
        f"attempt 3 of execute is due since {SHOWN}."
    )


def test_state_that_backs_off_tells_its_next_attempt_and_what_went_wrong() -> None:
    state = replace(failed(424, "CardRefused"), retry_policy=RetryPolicy(maximum_attempts=5))

    assert explained(state) == [
        f"State Charge-2 waits for attempt 3 of at most 5 of execute, which is made at {SHOWN}.",
        f"Attempt 2 of execute failed at {SHOWN}: CardRefused: no money.",
    ]


@pytest.mark.parametrize(
    ("http_status", "error_type", "cause"),
    [
        (404, "StateNotFound", "no worker at http://worker knows this state; deploy"),
        (404, "ProcessTypeNotFound", "no worker at http://worker knows process type 'Order'; deploy"),
        (404, "PathNotFound", "what answers at http://worker is no worker of xdb"),
        (0, "WORKER_UNREACHABLE", "the worker at http://worker cannot be reached: no money"),
        (0, "WORKER_TIMEOUT", "WORKER_TIMEOUT: no money"),
    ],
    ids=["state", "process type", "path", "unreachable", "timeout"],
)
def test_fault_of_the_deployment_is_a_plain_sentence(http_status: int, error_type: str, cause: str) -> None:
    _, sentence = explained(failed(http_status, error_type))

    assert sentence.startswith(f"Attempt 2 of execute failed at {SHOWN}: {cause}")


def waiting(**commands: Any) -> StateExecutionInfo:
    return replace(CHARGE, wait_until_status=WaitUntilStatus.WAITING_COMMANDS_COMPLETED, **commands)


def queue_command(name: str, at_least: int, status: QueueCommandStatus) -> QueueCommandInfo:
    return QueueCommandInfo(
        command_id=None, queue_name=name, status=status, received_count=0, at_least=at_least, at_most=at_least
    )


def test_waiting_state_names_what_it_has_not_got() -> None:
    state = waiting(
        timers=(
            TimerInfo(command_id="reminder", fire_at=NOON, status=TimerStatus.SCHEDULED),
            TimerInfo(command_id=None, fire_at=NOON, status=TimerStatus.FIRED),
            TimerInfo(command_id=None, fire_at=NOON, status=TimerStatus.SCHEDULED),
        ),
        queue_commands=(
            queue_command("paid", 1, QueueCommandStatus.WAITING),
            queue_command("parts", 3, QueueCommandStatus.WAITING),
            queue_command("done", 1, QueueCommandStatus.RECEIVED),
        ),
    )

    of_state, of_queue = explained(state, queue_sizes={"parts": 2, "refunds": 1, "empty": 0})

    assert of_state == (
        f"State Charge-2 waits for timer 'reminder', which fires at {SHOWN}; timer number 2, which fires at {SHOWN}; "
        "a message in queue 'paid', which has 0; 3 messages in queue 'parts', which has 2."
    )
    assert of_queue == "Queue 'refunds' has 1 message that no state waits for now."


def test_paused_execution_says_so_and_what_it_holds() -> None:
    assert explained(replace(CHARGE, held_due_at=NOON), paused_at=NOON) == [
        f"It is paused since {SHOWN}: its states are not called until it is resumed.",
        f"State Charge-2 is held: attempt 3 of execute would be made at {SHOWN}, were the execution not paused.",
    ]


def test_execution_without_open_states_says_what_can_happen_to_it() -> None:
    closed = replace(CHARGE, status=StateStatus.COMPLETED, closed_at=NOON)

    assert explained(closed, timeout_at=NOON, graceful_complete_requested=False) == [
        "No state is open: it waits for an RPC, a stop or its timeout.",
        f"It times out at {SHOWN}.",
    ]


def test_graceful_completion_is_told() -> None:
    assert explained(replace(CHARGE, running_since=NOON), graceful_complete_requested=True)[0] == (
        "It completes as soon as no state is open."
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"reason": "wrong prices"}, ": wrong prices"),
        (
            {
                "error": ProcessError(
                    error_type=ProcessErrorType.STATE_API,
                    details="no money\n\nTraceback",
                    state_execution_id="Charge-2",
                    api=StateApi.EXECUTE,
                    worker_error_type="CardRefused",
                )
            },
            ": no money",
        ),
    ],
    ids=["no reason", "reason", "error"],
)
def test_closed_execution_says_how_it_ended(changes: dict[str, Any], why: str) -> None:
    assert explained(status=ProcessStatus.FAILED, closed_at=NOON, states=(), **changes) == [
        f"The execution has closed as FAILED at {SHOWN}{why}."
    ]
