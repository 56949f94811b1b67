"""Waiting for commands: what a wait needs, and which messages go to which wait (semantics 3)."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from server_stub.core.model import Execution, QueuedMessage, StateExecution, Wait
from server_stub.core.refusals import InvalidAnswer
from xdb_sdk.protocol import (
    CommandRequestBody,
    InternalQueueCommandRequest,
    ReceivedMessage,
    TimerCommandRequest,
    TimerStatus,
    WaitingType,
)

LATEST_INSTANT_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: what every database and language can show as a date."""


def check_commands(request: CommandRequestBody) -> None:
    """Refuse a request that could never be satisfied, or is ambiguous (semantics 3.1).

    Raises:
        InvalidAnswer: A timer with both or neither form, a count range turned round, or a bad combination.
    """
    for timer in request.timer_commands:
        if (timer.duration_ms is None) == (timer.fire_at_ms is None):
            raise InvalidAnswer("a timer command needs exactly one of durationMs and fireAtMs")
    for command in request.internal_queue_commands:
        if command.at_most is not None and command.at_most < (command.at_least or 1):
            raise InvalidAnswer(
                f"the command on queue {command.queue_name!r} asks for at most {command.at_most} messages "
                f"but at least {command.at_least}"
            )
    if request.waiting_type is WaitingType.ANY_COMBINATION:
        _check_combinations(request)


def _check_combinations(request: CommandRequestBody) -> None:
    ids = _command_ids(request)
    if None in ids:
        raise InvalidAnswer("every command of an any-combination wait needs a command id")
    available = Counter(ids)
    if not request.combinations:
        raise InvalidAnswer("an any-combination wait needs at least one combination of command ids")
    for combination in request.combinations:
        if not combination:
            raise InvalidAnswer("a combination of command ids may not be empty")
        for command_id, needed in Counter(combination).items():
            if needed > available[command_id]:
                raise InvalidAnswer(
                    f"a combination asks for command id {command_id!r} {needed} time(s), "
                    f"but the request has it {available[command_id]} time(s)"
                )


def _command_ids(request: CommandRequestBody) -> list[str | None]:
    timers = [command.command_id for command in request.timer_commands]
    return timers + [command.command_id for command in request.internal_queue_commands]


def new_wait(request: CommandRequestBody, *, order: int, now_ms: int) -> Wait:
    """Make a request definite: timers get their instant, queue commands their bounds (semantics 3.1)."""
    timers = tuple(_definite_timer(timer, now_ms) for timer in request.timer_commands)
    queues = tuple(_definite_queue_command(command) for command in request.internal_queue_commands)
    return Wait(
        order=order,
        commands=request.model_copy(update={"timer_commands": timers, "internal_queue_commands": queues}),
        timer_statuses=[TimerStatus.SCHEDULED] * len(timers),
        received=[None] * len(queues),
    )


def _definite_timer(timer: TimerCommandRequest, now_ms: int) -> TimerCommandRequest:
    fire_at_ms = timer.fire_at_ms if timer.duration_ms is None else now_ms + max(timer.duration_ms, 0)
    return TimerCommandRequest(command_id=timer.command_id, fire_at_ms=min(fire_at_ms or 0, LATEST_INSTANT_MS))


def _definite_queue_command(command: InternalQueueCommandRequest) -> InternalQueueCommandRequest:
    exact = max(command.count, 1)
    if command.at_least is None and command.at_most is None:
        return command.model_copy(update={"count": exact, "at_least": exact, "at_most": exact})
    at_least = max(command.at_least if command.at_least is not None else 1, 1)
    at_most = command.at_most if command.at_most is not None else max(at_least, 10_000)
    return command.model_copy(update={"at_least": at_least, "at_most": at_most})


def most_messages(request: CommandRequestBody) -> Counter[str]:
    """Count, by queue, how many messages a request can take at most."""
    most: Counter[str] = Counter()
    for command in request.internal_queue_commands:
        definite = _definite_queue_command(command)
        most[command.queue_name] += definite.at_most or 1
    return most


def is_satisfied(wait: Wait) -> bool:
    """Say whether execute may be called. ANY or ALL of no commands is satisfied at once."""
    timers = [status is not TimerStatus.SCHEDULED for status in wait.timer_statuses]
    queues = [messages is not None for messages in wait.received]
    done = [*timers, *queues]
    match wait.commands.waiting_type:
        case WaitingType.EMPTY:
            return True
        case WaitingType.ANY:
            return any(done) or not done
        case WaitingType.ALL:
            return all(done)
        case WaitingType.ANY_COMBINATION:
            pairs = zip(_command_ids(wait.commands), done, strict=True)
            ids = Counter(command_id for command_id, is_done in pairs if is_done)
            return any(
                all(ids[command_id] >= needed for command_id, needed in Counter(combination).items())
                for combination in wait.commands.combinations
            )


class Taken(NamedTuple):
    """Messages that a queue command of a state took."""

    state: StateExecution
    command_index: int
    messages: list[QueuedMessage]


def match_messages(execution: Execution, waits: Iterable[StateExecution]) -> list[Taken]:
    """Give unclaimed messages to the waits that can use them, and say which command took which (semantics 3.3).

    The oldest wait is served first, and within it commands in their order. A command takes its messages as soon as
    there are enough, also while its wait needs more; a wait that is satisfied takes nothing further.

    Args:
        execution: Its `queues` are emptied of what is taken.
        waits: Waiting state executions, of which satisfied ones are left for the caller to trigger.
    """
    taken: list[Taken] = []
    in_order = sorted(((state.wait.order, state) for state in waits if state.wait is not None), key=_order)
    progress = True
    while progress:
        progress = False
        for _, state in in_order:
            if claimed := _claim(execution, state):
                taken += claimed
                progress = True
    return taken


def _order(entry: tuple[int, StateExecution]) -> int:
    return entry[0]


def _claim(execution: Execution, state: StateExecution) -> list[Taken]:
    claimed: list[Taken] = []
    wait = state.wait
    if wait is None:
        return claimed
    for index, command in enumerate(wait.commands.internal_queue_commands):
        if is_satisfied(wait):
            break
        queue = execution.queues.get(command.queue_name, [])
        if wait.received[index] is not None or len(queue) < (command.at_least or 1):
            continue
        messages = queue[: command.at_most]
        del queue[: len(messages)]
        wait.received[index] = tuple(ReceivedMessage(message_id=m.message_id, payload=m.payload) for m in messages)
        claimed.append(Taken(state, index, messages))
    return claimed
