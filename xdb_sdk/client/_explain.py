"""Says in sentences why an execution stands where it does."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from xdb_sdk.client._results import AttemptFailure, ProcessInfo, QueueCommandInfo, StateExecutionInfo, TimerInfo
from xdb_sdk.protocol import (
    ErrorSubType,
    ProcessStatus,
    QueueCommandStatus,
    StateApi,
    StateStatus,
    TimerStatus,
    WaitUntilStatus,
)


def explain(info: ProcessInfo) -> list[str]:
    """Say in sentences why an execution does not go on, or that it has closed and why.

    Args:
        info: A description. With `include={"queues"}` the messages that are there are explained as well.

    Returns:
        A few sentences about the execution, then some for each open state in order of creation, then about queues.

    Example:
        for sentence in explain(client.describe_process("signup-7", include={"queues"})):
            print(sentence)
    """
    return [*_of_process(info), *_of_states(info), *_of_queues(info)]


def _of_process(info: ProcessInfo) -> Iterator[str]:
    if info.status is not ProcessStatus.RUNNING:
        yield f"The execution has closed as {info.status}{_closing(info)}."
        return
    if info.paused_at is not None:
        yield f"It is paused since {_instant(info.paused_at)}: its states are not called until it is resumed."
    if info.graceful_complete_requested:
        yield "It completes as soon as no state is open."
    if not _open_states(info):
        yield "No state is open: it waits for an RPC, a stop or its timeout."
    if info.timeout_at is not None:
        yield f"It times out at {_instant(info.timeout_at)}."


def _closing(info: ProcessInfo) -> str:
    at = f" at {_instant(info.closed_at)}" if info.closed_at is not None else ""
    why = info.error.error_message if info.error is not None else info.reason
    return f"{at}: {_first_line(why)}" if why else at


def _of_states(info: ProcessInfo) -> Iterator[str]:
    for state in _open_states(info):
        yield f"State {state.state_id}-{state.number} {_doing(state, info)}."
        if state.last_failure is not None:
            yield _failure(state.last_failure, state, info)


def _doing(state: StateExecutionInfo, info: ProcessInfo) -> str:
    if state.wait_until_status is WaitUntilStatus.WAITING_COMMANDS_COMPLETED:
        return f"waits for {_commands(state, info.queue_sizes)}"
    attempt = f"attempt {_of_most(state)} of {_method(state)}"
    if state.running_since is not None:
        return f"is being called, or waits for a worker to take the call: {attempt} is due since " + _instant(
            state.running_since
        )
    if state.next_attempt_at is not None:
        return f"waits for {attempt}, which is made at {_instant(state.next_attempt_at)}"
    if state.held_due_at is not None:
        return f"is held: {attempt} would be made at {_instant(state.held_due_at)}, were the execution not paused"
    return "goes on"


def _of_most(state: StateExecutionInfo) -> str:
    most = state.retry_policy.maximum_attempts if state.retry_policy is not None else 0
    return f"{state.attempt} of at most {most}" if most else str(state.attempt)


def _method(state: StateExecutionInfo) -> str:
    api = StateApi.WAIT_UNTIL if state.wait_until_status is WaitUntilStatus.RUNNING else StateApi.EXECUTE
    return api.lower()


def _commands(state: StateExecutionInfo, queue_sizes: Mapping[str, int] | None) -> str:
    waits = [
        *(_timer(index, timer) for index, timer in enumerate(state.timers) if timer.status is TimerStatus.SCHEDULED),
        *(
            _queue_command(command, queue_sizes)
            for command in state.queue_commands
            if command.status is QueueCommandStatus.WAITING
        ),
    ]
    return "; ".join(waits) or "its commands"


def _timer(index: int, timer: TimerInfo) -> str:
    name = f"timer {timer.command_id!r}" if timer.command_id is not None else f"timer number {index}"
    return f"{name}, which fires at {_instant(timer.fire_at)}"


def _queue_command(command: QueueCommandInfo, queue_sizes: Mapping[str, int] | None) -> str:
    messages = "a message" if command.at_least == 1 else f"{command.at_least} messages"
    there = "" if queue_sizes is None else f", which has {queue_sizes.get(command.queue_name, 0)}"
    return f"{messages} in queue {command.queue_name!r}{there}"


def _failure(failure: AttemptFailure, state: StateExecutionInfo, info: ProcessInfo) -> str:
    attempt = f"Attempt {failure.attempt} of {failure.api.lower()} failed at {_instant(failure.failed_at)}"
    remedy = "deploy a worker that does, or give the execution another worker URL"
    match (failure.http_status, failure.error_type):
        case (404, "ProcessTypeNotFound"):
            cause = f"no worker at {info.worker_url} knows process type {info.process_type!r}; {remedy}"
        case (404, "StateNotFound"):
            cause = f"no worker at {info.worker_url} knows this state; {remedy}"
        case (404, _):
            cause = f"what answers at {info.worker_url} is no worker of xdb, or not at this path"
        case (_, ErrorSubType.WORKER_UNREACHABLE):
            cause = f"the worker at {info.worker_url} cannot be reached: {_first_line(failure.error_message)}"
        case _:
            cause = f"{failure.error_type}: {_first_line(failure.error_message)}"
    return f"{attempt}: {cause}."


def _of_queues(info: ProcessInfo) -> Iterator[str]:
    awaited = {command.queue_name for state in _open_states(info) for command in state.queue_commands}
    for name, size in sorted((info.queue_sizes or {}).items()):
        if size and name not in awaited:
            yield f"Queue {name!r} has {size} message{'s' if size > 1 else ''} that no state waits for now."


def _open_states(info: ProcessInfo) -> list[StateExecutionInfo]:
    return [state for state in info.states if state.status is StateStatus.RUNNING]


def _first_line(text: str) -> str:
    return text.partition("\n")[0].rstrip(".")


def _instant(instant: datetime) -> str:
    """Write an instant in UTC with milliseconds."""
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
