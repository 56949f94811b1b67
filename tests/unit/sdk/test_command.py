"""Commands that wait_until asks for, and results that execute is given."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from tests.unit.sdk.compiling import definition_of
from xdb_sdk import (
    CommandRequest,
    CommandResults,
    DecodeError,
    InternalQueueCommand,
    InvalidArgumentError,
    ObjectProcess,
    QueueCommandStatus,
    TimerCommand,
    TimerStatus,
    internal_queue,
)
from xdb_sdk.protocol import (
    CommandRequestBody,
    CommandResultsBody,
    InternalQueueCommandRequest,
    InternalQueueResult,
    ReceivedMessage,
    TimerCommandRequest,
    TimerResult,
    WaitingType,
)


class Waiter(ObjectProcess):
    """Declares queues."""

    numbers = internal_queue(int)
    plain = internal_queue(None)
    answers = internal_queue(str, prefix="answer_")


WAITER = definition_of(Waiter)


def test_timers_and_queues_are_listed_apart_each_in_its_order() -> None:
    request = CommandRequest.for_all_command_completed(
        TimerCommand.by_seconds(1.5),
        InternalQueueCommand.by_name("plain"),
        TimerCommand.timer_command_by_duration(timedelta(days=1), command_id="day"),
        InternalQueueCommand.by_name(Waiter.numbers, 2, command_id="two"),
    )

    assert request.to_wire(WAITER) == CommandRequestBody(
        waiting_type=WaitingType.ALL,
        timer_commands=(
            TimerCommandRequest(duration_ms=1_500),
            TimerCommandRequest(command_id="day", duration_ms=86_400_000),
        ),
        internal_queue_commands=(
            InternalQueueCommandRequest(queue_name="plain"),
            InternalQueueCommandRequest(queue_name="numbers", count=2, command_id="two"),
        ),
    )


@pytest.mark.parametrize(
    "request_",
    [
        CommandRequest.empty(),
        CommandRequest.for_any_command_completed(),
        CommandRequest.for_all_command_completed(),
    ],
    ids=["empty", "any", "all"],
)
def test_no_commands_wait_for_nothing(request_: CommandRequest) -> None:
    assert request_.to_wire(WAITER) == CommandRequestBody(waiting_type=WaitingType.EMPTY)


def test_a_duration_that_is_not_positive_fires_at_once() -> None:
    for timer in (
        TimerCommand.timer_command_by_duration(timedelta(0)),
        TimerCommand.timer_command_by_duration(timedelta.min),
        TimerCommand.by_seconds(-3),
        TimerCommand.by_seconds(float("-inf")),
    ):
        assert timer.to_wire() == TimerCommandRequest(duration_ms=0)


@pytest.mark.parametrize(
    "duration",
    [
        timedelta(days=24, hours=20, minutes=31, seconds=23),
        timedelta(days=25),
        timedelta(days=400),
        timedelta(days=36_525),
    ],
    ids=str,
)
def test_long_timers_keep_their_length(duration: timedelta) -> None:
    timer = TimerCommand.timer_command_by_duration(duration)

    assert timer.to_wire().duration_ms == duration // timedelta(milliseconds=1)


def test_impossible_durations_are_refused_at_the_call() -> None:
    with pytest.raises(ValueError, match="duration of a timer is"):
        TimerCommand.timer_command_by_duration(timedelta.max)
    for seconds in (float("inf"), float("nan"), 1e300):
        with pytest.raises(ValueError, match="duration of a timer is"):
            TimerCommand.by_seconds(seconds)


def test_a_timer_at_an_instant_counts_from_the_epoch_whatever_the_zone() -> None:
    in_utc = datetime(2030, 1, 1, 12, tzinfo=UTC)
    elsewhere = in_utc.astimezone(timezone(timedelta(hours=5)))

    assert TimerCommand.at(in_utc).to_wire() == TimerCommand.at(elsewhere).to_wire()
    assert TimerCommand.at(in_utc).to_wire().fire_at_ms == int(in_utc.timestamp() * 1000)
    assert TimerCommand.at(datetime(1960, 1, 1, tzinfo=UTC)).to_wire().fire_at_ms == -315_619_200_000


def test_a_timer_in_the_repeated_hour_knows_which_one() -> None:
    once = datetime(2025, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    first, second = (TimerCommand.at(once.replace(fold=fold)).to_wire().fire_at_ms for fold in (0, 1))

    assert first is not None
    assert second is not None
    assert second - first == 3_600_000


def test_a_naive_datetime_is_no_instant() -> None:
    with pytest.raises(InvalidArgumentError, match=r"has no time zone; give an aware datetime"):
        TimerCommand.at(datetime(2030, 1, 1))  # noqa: DTZ001  # the mistake


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (InternalQueueCommand.by_name("plain"), InternalQueueCommandRequest(queue_name="plain", count=1)),
        (InternalQueueCommand.by_name("plain", 0), InternalQueueCommandRequest(queue_name="plain", count=1)),
        (
            InternalQueueCommand.by_name("plain", at_least=2),
            InternalQueueCommandRequest(queue_name="plain", at_least=2),
        ),
        (
            InternalQueueCommand.by_name("plain", at_most=9),
            InternalQueueCommandRequest(queue_name="plain", at_least=1, at_most=9),
        ),
        (InternalQueueCommand.by_name("answer_anna"), InternalQueueCommandRequest(queue_name="answer_anna")),
    ],
    ids=["default", "zero is one", "at least", "at most", "prefix"],
)
def test_a_queue_command_asks_for_a_number_of_messages(
    command: InternalQueueCommand, expected: InternalQueueCommandRequest
) -> None:
    assert command.to_wire(WAITER) == expected


def test_contradicting_numbers_of_messages_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="count=-1"):
        InternalQueueCommand.by_name("plain", -1)
    with pytest.raises(InvalidArgumentError, match="count=20000"):
        InternalQueueCommand.by_name("plain", 20_000)
    with pytest.raises(InvalidArgumentError, match="give one or the other"):
        InternalQueueCommand.by_name("plain", 2, at_least=2)
    with pytest.raises(InvalidArgumentError, match="at_most=1 is less than at_least=2"):
        InternalQueueCommand.by_name("plain", at_least=2, at_most=1)
    with pytest.raises(InvalidArgumentError, match="at_most=0 is less than at_least=1"):
        InternalQueueCommand.by_name("plain", at_least=0, at_most=0)


def test_a_command_id_has_a_length() -> None:
    for command_id in ("", "x" * 256):
        with pytest.raises(InvalidArgumentError, match="command id"):
            TimerCommand.by_seconds(1, command_id=command_id)


@pytest.mark.parametrize("name", ["nubmers", "answer", "unknown"])
def test_waiting_for_an_undeclared_queue_is_refused(name: str) -> None:
    request = CommandRequest.for_any_command_completed(InternalQueueCommand.by_name(name))

    with pytest.raises(InvalidArgumentError, match=f"Waiter declares no internal queue '{name}'"):
        request.to_wire(WAITER)


def test_combinations_travel_with_their_commands() -> None:
    a, b, c = (InternalQueueCommand.by_name("plain", command_id=i) for i in "abc")

    body = CommandRequest.for_any_command_combination_completed([["a", "b"], ["c"]], a, b, c).to_wire(WAITER)

    assert body.waiting_type is WaitingType.ANY_COMBINATION
    assert body.combinations == (("a", "b"), ("c",))
    assert [command.command_id for command in body.internal_queue_commands] == ["a", "b", "c"]


def test_an_id_twice_in_a_combination_needs_two_commands() -> None:
    two = [TimerCommand.by_seconds(1, command_id="a"), TimerCommand.by_seconds(2, command_id="a")]

    request = CommandRequest.for_any_command_combination_completed([["a", "a"]], *two)

    assert request.combinations == (("a", "a"),)
    with pytest.raises(InvalidArgumentError, match=r"needs 2 command\(s\) with id 'a', but 1 are requested"):
        CommandRequest.for_any_command_combination_completed([["a", "a"]], two[0])


@pytest.mark.parametrize(
    ("combinations", "command_id", "problem"),
    [
        ([["a", "zz"]], "a", r"needs 1 command\(s\) with id 'zz', but 0"),
        ([[]], "a", "a combination is empty"),
        ([], "a", "no combination is given"),
        ([["a"]], None, "has no command_id"),
    ],
    ids=["unknown id", "empty list", "no list", "command without id"],
)
def test_a_combination_that_can_never_complete_is_refused(
    combinations: list[list[str]], command_id: str | None, problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        CommandRequest.for_any_command_combination_completed(
            combinations, TimerCommand.by_seconds(1, command_id=command_id)
        )


def test_results_stand_at_the_place_of_their_command_and_are_decoded() -> None:
    body = CommandResultsBody(
        timer_results=(TimerResult(status=TimerStatus.FIRED), TimerResult(status=TimerStatus.SCHEDULED)),
        internal_queue_results=(
            InternalQueueResult(
                queue_name="numbers",
                status=QueueCommandStatus.RECEIVED,
                messages=(ReceivedMessage(payload=1), ReceivedMessage(payload=2)),
            ),
            InternalQueueResult(queue_name="numbers", status=QueueCommandStatus.WAITING, command_id="later"),
            InternalQueueResult(
                queue_name="answer_anna",
                status=QueueCommandStatus.RECEIVED,
                messages=(ReceivedMessage(payload="yes"),),
            ),
            InternalQueueResult(queue_name="plain", status=QueueCommandStatus.RECEIVED, messages=(ReceivedMessage(),)),
        ),
    )

    results = CommandResults.from_wire(body, WAITER)

    assert [timer.is_fired for timer in results.timer_commands] == [True, False]
    two, waiting, answer, plain = results.internal_queue_commands
    assert (two.values, two.value) == ((1, 2), 1)
    assert (waiting.values, waiting.value) == ((), None)
    assert answer.value == "yes"
    assert plain.values == (None,)
    assert results.by_id("later") is waiting
    assert results.values_of(Waiter.numbers) == (1, 2)
    assert results.values_of(Waiter.answers.named("anna")) == ("yes",)
    assert results.wait_until_api_succeeded
    with pytest.raises(InvalidArgumentError, match="no command has the id 'latr'; did you mean 'later'"):
        results.by_id("latr")


def test_a_skipped_timer_counts_as_fired() -> None:
    body = CommandResultsBody(timer_results=(TimerResult(status=TimerStatus.SKIPPED, command_id="t"),))

    (timer,) = CommandResults.from_wire(body, WAITER).timer_commands

    assert timer.is_fired


def test_a_message_of_another_type_is_an_error_that_names_the_queue() -> None:
    body = CommandResultsBody(
        internal_queue_results=(
            InternalQueueResult(
                queue_name="numbers", status=QueueCommandStatus.RECEIVED, messages=(ReceivedMessage(payload="x"),)
            ),
        )
    )

    with pytest.raises(DecodeError, match="message of queue 'numbers'"):
        CommandResults.from_wire(body, WAITER)
