"""Commands: what wait_until asks the server to wait for, and what execute learns of it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar

from xdb_sdk._definition import ProcessDefinition, unknown_name
from xdb_sdk._duration import (
    check_duration,
    check_instant,
    check_seconds,
    seconds_to_milliseconds,
    since_epoch_ms,
    to_milliseconds,
)
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._injected import Injected
from xdb_sdk._names import check_optional_name
from xdb_sdk._schema import InternalQueue, key_name
from xdb_sdk.protocol import (
    CommandRequestBody,
    CommandResultsBody,
    InternalQueueCommandRequest,
    InternalQueueResult,
    QueueCommandStatus,
    TimerCommandRequest,
    TimerStatus,
    WaitingType,
)

T = TypeVar("T")

MAX_MESSAGES_OF_A_COMMAND = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerCommand:
    """Wait for a time: after `duration_ms` from the commit of wait_until, or at `fire_at`.

    Make one with `timer_command_by_duration`, `by_seconds` or `at`.
    """

    command_id: str | None = None
    duration_ms: int | None = None
    fire_at: datetime | None = None

    def __post_init__(self) -> None:
        check_optional_name(self.command_id, "command id")

    @staticmethod
    def timer_command_by_duration(duration: timedelta, *, command_id: str | None = None) -> "TimerCommand":
        """Wait for a duration; one that is not positive fires at once.

        Raises:
            InvalidArgumentError: It is no timedelta, or longer than about 2700 years.
        """
        what = "duration of a timer"
        duration_ms = to_milliseconds(max(check_duration(duration, what), timedelta(0)), what)
        return TimerCommand(command_id=command_id, duration_ms=duration_ms)

    @staticmethod
    def by_seconds(seconds: float, *, command_id: str | None = None) -> "TimerCommand":
        """Wait for a number of seconds; one that is not positive fires at once.

        Raises:
            InvalidArgumentError: It is not a number, or longer than about 2700 years.
        """
        what = "duration of a timer"
        duration_ms = seconds_to_milliseconds(max(check_seconds(seconds, what), 0), what)
        return TimerCommand(command_id=command_id, duration_ms=duration_ms)

    @staticmethod
    def at(fire_at: datetime, *, command_id: str | None = None) -> "TimerCommand":
        """Wait until an instant; one in the past fires at once.

        Raises:
            InvalidArgumentError: It is no datetime, or has no time zone, so that it is not an instant.
        """
        return TimerCommand(command_id=command_id, fire_at=check_instant(fire_at, "the instant of a timer"))

    def to_wire(self) -> TimerCommandRequest:
        """Convert to the wire form."""
        fire_at_ms = None if self.fire_at is None else since_epoch_ms(self.fire_at)
        return TimerCommandRequest(command_id=self.command_id, duration_ms=self.duration_ms, fire_at_ms=fire_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalQueueCommand:
    """Wait for messages of an internal queue. Make one with `by_name`."""

    queue_name: str
    command_id: str | None = None
    count: int = 1
    at_least: int | None = None
    at_most: int | None = None

    def __post_init__(self) -> None:
        check_optional_name(self.command_id, "command id")

    @staticmethod
    def by_name(
        queue: str | InternalQueue[Any],
        count: int = 1,
        *,
        command_id: str | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
    ) -> "InternalQueueCommand":
        """Wait for exactly `count` messages, or for `at_least` and take up to `at_most` of what is there then.

        Args:
            queue: A declared queue.
            count: How many messages; 0 means 1.
            command_id: A name for `CommandResults.by_id`, combinations and skipping.
            at_least: The fewest messages; 1 if only `at_most` is given.
            at_most: The most messages; all that are there if only `at_least` is given.

        Raises:
            InvalidArgumentError: The numbers are negative, too large, or contradict one another.
        """
        if at_least is None and at_most is None:
            _check_message_count(count, "count")
            return InternalQueueCommand(queue_name=key_name(queue), command_id=command_id, count=count or 1)
        if count != 1:
            raise InvalidArgumentError(f"count={count} and at_least or at_most: give one or the other")
        at_least = 1 if at_least is None else at_least
        _check_message_count(at_least, "at_least")
        if at_most is not None:
            _check_message_count(at_most, "at_most")
            if at_most < max(at_least, 1):
                raise InvalidArgumentError(f"at_most={at_most} is less than at_least={max(at_least, 1)}")
        return InternalQueueCommand(
            queue_name=key_name(queue), command_id=command_id, at_least=at_least or 1, at_most=at_most
        )

    def to_wire(self, definition: ProcessDefinition) -> InternalQueueCommandRequest:
        """Convert to the wire form.

        Raises:
            InvalidArgumentError: The process declares no such queue.
        """
        definition.queue(self.queue_name)
        return InternalQueueCommandRequest(
            command_id=self.command_id,
            queue_name=self.queue_name,
            count=self.count,
            at_least=self.at_least,
            at_most=self.at_most,
        )


def _check_message_count(count: int, what: str) -> None:
    if type(count) is not int or not 0 <= count <= MAX_MESSAGES_OF_A_COMMAND:
        raise InvalidArgumentError(f"{what}={count!r}: a queue command takes 1 to {MAX_MESSAGES_OF_A_COMMAND} messages")


Command: TypeAlias = TimerCommand | InternalQueueCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """What wait_until returns: commands, and how many of them must complete before execute is called.

    `combinations` are lists of command ids, for `for_any_command_combination_completed` only.

    Source: semantics 3.1.
    """

    waiting_type: WaitingType
    commands: tuple[Command, ...] = ()
    combinations: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def for_any_command_completed(*commands: Command) -> "CommandRequest":
        """Wait for the first of the commands. It alone takes messages; without commands nothing is waited for."""
        return CommandRequest(waiting_type=WaitingType.ANY if commands else WaitingType.EMPTY, commands=commands)

    @staticmethod
    def for_all_command_completed(*commands: Command) -> "CommandRequest":
        """Wait for all commands; without commands nothing is waited for."""
        return CommandRequest(waiting_type=WaitingType.ALL if commands else WaitingType.EMPTY, commands=commands)

    @staticmethod
    def for_any_command_combination_completed(
        combinations: Iterable[Sequence[str]], *commands: Command
    ) -> "CommandRequest":
        """Wait until every command of one of the lists of command ids has completed.

        An id listed twice in a list needs two completed commands with that id.

        Raises:
            InvalidArgumentError: A command without id, an empty list, an unknown id, or an id that is listed more
                often than there are commands with it: the wait could never end.
        """
        lists = tuple(tuple(ids) for ids in combinations)
        _check_combinations(lists, commands)
        return CommandRequest(waiting_type=WaitingType.ANY_COMBINATION, commands=commands, combinations=lists)

    @staticmethod
    def empty() -> "CommandRequest":
        """Wait for nothing: execute is called at once."""
        return CommandRequest(waiting_type=WaitingType.EMPTY)

    def to_wire(self, definition: ProcessDefinition) -> CommandRequestBody:
        """Convert to the wire form.

        Raises:
            InvalidArgumentError: A command waits for a queue that the process does not declare.
        """
        return CommandRequestBody(
            waiting_type=self.waiting_type,
            timer_commands=tuple(c.to_wire() for c in self.commands if isinstance(c, TimerCommand)),
            internal_queue_commands=tuple(
                c.to_wire(definition) for c in self.commands if isinstance(c, InternalQueueCommand)
            ),
            combinations=self.combinations,
        )


def _check_combinations(combinations: tuple[tuple[str, ...], ...], commands: tuple[Command, ...]) -> None:
    if not combinations:
        raise InvalidArgumentError("no combination is given: list the command ids that must complete together")
    for command in commands:
        if command.command_id is None:
            raise InvalidArgumentError(f"{command} has no command_id, so that no combination can name it: give it one")
    known = Counter(command.command_id for command in commands)
    for ids in combinations:
        if not ids:
            raise InvalidArgumentError("a combination is empty: list at least one command id in each")
        for command_id, needed in Counter(ids).items():
            if needed > known[command_id]:
                raise InvalidArgumentError(
                    f"combination {list(ids)} needs {needed} command(s) with id {command_id!r}, "
                    f"but {known[command_id]} are requested: the wait could never end"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerCommandResult:
    """Where a timer stood when execute was called."""

    status: TimerStatus
    command_id: str | None = None

    @property
    def is_fired(self) -> bool:
        """Whether its time came, or it was skipped."""
        return self.status is not TimerStatus.SCHEDULED


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalQueueCommandResult:
    """What a queue command received. `values` are in the order of the queue, empty while it waits."""

    queue_name: str
    status: QueueCommandStatus
    values: tuple[Any, ...] = ()
    command_id: str | None = None

    @property
    def value(self) -> Any:
        """The first message, None without one."""
        return self.values[0] if self.values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResults(Injected):
    """What execute is told of the commands, one result for each, in the order they were asked, by kind.

    A state that asked for nothing gets empty results.

    Attributes:
        timer_commands: Results of the timers.
        internal_queue_commands: Results of the queue commands, messages decoded to their declared types.
        wait_until_api_succeeded: False if wait_until failed and the options say to go on to execute all the same.

    Source: semantics 3.5.
    """

    timer_commands: tuple[TimerCommandResult, ...] = ()
    internal_queue_commands: tuple[InternalQueueCommandResult, ...] = ()
    wait_until_api_succeeded: bool = True

    def by_id(self, command_id: str) -> TimerCommandResult | InternalQueueCommandResult:
        """Find the first result of the command with this id, timers first.

        Raises:
            InvalidArgumentError: No command had this id.
        """
        results: list[TimerCommandResult | InternalQueueCommandResult] = [
            *self.timer_commands,
            *self.internal_queue_commands,
        ]
        for result in results:
            if result.command_id == command_id:
                return result
        known = [result.command_id for result in results if result.command_id]
        raise InvalidArgumentError(unknown_name(f"no command has the id {command_id!r}", command_id, known))

    def values_of(self, queue: InternalQueue[T]) -> tuple[T, ...]:
        """Give every message received from a queue by any command, typed by the queue's key."""
        return tuple(
            value
            for result in self.internal_queue_commands
            if result.queue_name == queue.name
            for value in result.values
        )

    @staticmethod
    def from_wire(body: CommandResultsBody, definition: ProcessDefinition) -> "CommandResults":
        """Decode the wire form.

        Raises:
            DecodeError: A message does not fit the declared type of its queue.
        """
        return CommandResults(
            timer_commands=tuple(
                TimerCommandResult(status=r.status, command_id=r.command_id) for r in body.timer_results
            ),
            internal_queue_commands=tuple(_queue_result(r, definition) for r in body.internal_queue_results),
            wait_until_api_succeeded=body.wait_until_api_succeeded,
        )


def _queue_result(result: InternalQueueResult, definition: ProcessDefinition) -> InternalQueueCommandResult:
    values: tuple[Any, ...] = ()
    if result.messages:
        type_hint = definition.queue(result.queue_name).type_hint
        where = f"message of queue {result.queue_name!r}"
        values = tuple(definition.encoder.decode(m.payload, type_hint, where) for m in result.messages)
    return InternalQueueCommandResult(
        queue_name=result.queue_name, status=result.status, values=values, command_id=result.command_id
    )
