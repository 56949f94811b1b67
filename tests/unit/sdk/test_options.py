"""Options of states and loading policies, from what a class says to what the server freezes."""

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from datetime import timedelta
from typing import Annotated, Any, Optional

import pytest

from tests.unit.sdk.compiling import DoneState, definition_of, problems_of, process_with
from tests.unit.sdk.signup import DecoratedSignup
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    InvalidArgumentError,
    LockType,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    RetryPolicy,
    StateDecision,
    StateRecovery,
    data_attribute,
    process,
    rpc,
    state,
)
from xdb_sdk._duration import LONGEST_DURATION, to_milliseconds
from xdb_sdk.protocol import ReadRequest, RetryPolicyConfig, StateOptionsConfig, TableRead

TRY_ONCE = RetryPolicy(maximum_attempts=1)


def test_a_state_without_options_has_the_defaults() -> None:
    compiled = definition_of(process_with(DoneState)).state_of(DoneState)

    assert compiled.options == AsyncStateOptions()
    assert compiled.wire_options == StateOptionsConfig(skip_wait_until=True)
    assert compiled.wire_options.execute_api_timeout_ms == 30_000
    assert compiled.wire_options.execute_api_retry_policy.maximum_interval_ms == 100_000


def test_each_next_state_has_its_own_options() -> None:
    @state(execute_api_timeout_seconds=1.5)
    class First(DoneState):
        pass

    @state(execute_api_timeout_seconds=2)
    class Second(DoneState):
        pass

    definition = definition_of(process_with(First, Second))

    assert definition.movement(First).options.execute_api_timeout_ms == 1_500
    assert definition.movement(Second).options.execute_api_timeout_ms == 2_000


def test_an_override_of_one_field_keeps_the_others_of_the_class() -> None:
    @state(execute_api_retry_policy=RetryPolicy(maximum_attempts=3), execute_api_timeout_seconds=5)
    class Step(DoneState):
        pass

    definition = definition_of(process_with(Step))

    options = definition.movement(Step, None, AsyncStateOptions(execute_api_timeout_seconds=1)).options

    assert options.execute_api_timeout_ms == 1_000
    assert options.execute_api_retry_policy.maximum_attempts == 3


def test_options_shared_by_two_states_are_not_changed_by_overrides() -> None:
    shared = AsyncStateOptions(execute_api_timeout_seconds=5)

    class Sharing(AsyncState[None]):
        def execute(self) -> StateDecision:
            return StateDecision.dead_end()

        def get_state_options(self) -> AsyncStateOptions:
            return shared

    class AlsoSharing(Sharing):
        pass

    definition = definition_of(process_with(Sharing, AlsoSharing))
    definition.movement(Sharing, None, AsyncStateOptions(execute_api_timeout_seconds=1))

    assert shared == AsyncStateOptions(execute_api_timeout_seconds=5)
    assert definition.movement(AlsoSharing).options.execute_api_timeout_ms == 5_000
    with pytest.raises(FrozenInstanceError):
        shared.state_id = "other"  # type: ignore[misc]  # the mistake


def test_an_override_that_does_not_hold_is_refused() -> None:
    definition = definition_of(process_with(DoneState))

    for override in (
        AsyncStateOptions(state_id="other"),
        AsyncStateOptions(execute_api_timeout_seconds=-1),
        AsyncStateOptions(proceed_to_state_when_execute_retry_exhausted="Nobody"),
    ):
        with pytest.raises(InvalidArgumentError, match="options override: state 'DoneState' of Sample"):
            definition.movement(DoneState, None, override)


@pytest.mark.parametrize(
    ("options", "api"),
    [
        (AsyncStateOptions(proceed_to_state_when_execute_retry_exhausted=DoneState), "execute"),
        (AsyncStateOptions(proceed_to_state_when_wait_until_retry_exhausted=DoneState), "wait_until"),
        (AsyncStateOptions(proceed_to_execute_when_wait_until_retry_exhausted=True), "wait_until"),
    ],
    ids=["execute", "wait_until", "on to execute"],
)
def test_proceeding_needs_a_bounded_retry_policy(options: AsyncStateOptions, api: str) -> None:
    class Proceeds(DoneState):
        def get_state_options(self) -> AsyncStateOptions:
            return options

    problems = problems_of(process_with(DoneState, Proceeds))

    assert f"maximum_attempts or maximum_attempts_duration_seconds in {api}_api_retry_policy" in problems


def test_a_duration_bounds_a_retry_policy_too() -> None:
    @state(
        execute_api_retry_policy=RetryPolicy(maximum_attempts_duration_seconds=0.5),
        proceed_to_state_when_execute_retry_exhausted=DoneState,
    )
    class Proceeds(DoneState):
        pass

    options = definition_of(process_with(DoneState, Proceeds)).state_of(Proceeds).wire_options

    assert options.execute_recovery is not None
    assert options.execute_recovery.state_id == "DoneState"


def test_recovery_states_are_nested_with_their_own_options() -> None:
    @state(
        execute_api_timeout_seconds=1,
        execute_api_retry_policy=TRY_ONCE,
        proceed_to_state_when_execute_retry_exhausted="R1",
    )
    class Step(DoneState):
        pass

    @state(
        execute_api_timeout_seconds=2,
        execute_api_retry_policy=RetryPolicy(maximum_attempts=2),
        proceed_to_state_when_execute_retry_exhausted=StateRecovery(
            DoneState, AsyncStateOptions(execute_api_timeout_seconds=3)
        ),
    )
    class R1(DoneState):
        pass

    recovery = definition_of(process_with(Step, R1, DoneState)).state_of(Step).wire_options.execute_recovery

    assert recovery is not None
    assert recovery.state_id == "R1"
    assert recovery.options.execute_api_timeout_ms == 2_000
    assert recovery.options.execute_api_retry_policy.maximum_attempts == 2
    assert recovery.options.execute_recovery is not None
    assert recovery.options.execute_recovery.state_id == "DoneState"
    assert recovery.options.execute_recovery.options.execute_api_timeout_ms == 3_000


def test_a_circle_of_recovery_states_is_refused() -> None:
    @state(execute_api_retry_policy=TRY_ONCE, proceed_to_state_when_execute_retry_exhausted="Pong")
    class Ping(DoneState):
        pass

    @state(execute_api_retry_policy=TRY_ONCE, proceed_to_state_when_execute_retry_exhausted=Ping)
    class Pong(DoneState):
        pass

    problems = problems_of(process_with(Ping, Pong))

    assert "leads back to itself (Ping -> Pong -> Ping)" in problems


@pytest.mark.parametrize(
    "numbers",
    [
        {"backoff_coefficient": 0.5},
        {"backoff_coefficient": float("nan")},
        {"backoff_coefficient": float("inf")},
        {"initial_interval_seconds": -1},
        {"maximum_interval_seconds": float("inf")},
        {"maximum_attempts": -1},
        {"maximum_attempts": 2**31},
        {"maximum_attempts_duration_seconds": -0.1},
    ],
    ids=str,
)
def test_a_retry_policy_out_of_range_is_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(numbers))):
        RetryPolicy(**numbers)


def test_a_retry_policy_is_sent_in_milliseconds() -> None:
    policy = RetryPolicy(initial_interval_seconds=0.25, maximum_attempts=4, maximum_attempts_duration_seconds=60)

    assert policy.to_wire() == RetryPolicyConfig(
        initial_interval_ms=250, maximum_attempts=4, maximum_attempts_duration_ms=60_000
    )


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")], ids=str)
def test_a_timeout_must_be_positive(seconds: float) -> None:
    @state(execute_api_timeout_seconds=seconds)
    class Step(DoneState):
        pass

    assert "state 'Step' of Sample: execute_api_timeout_seconds is" in problems_of(process_with(Step))


READS_FORM = PersistenceLoadingPolicy.partial(["form"])


@pytest.mark.parametrize(
    ("policy", "columns", "lock_columns"),
    [
        (PersistenceLoadingPolicy.all(), ("form", "status", "came_from"), ()),
        (READS_FORM, ("form",), ()),
        (PersistenceLoadingPolicy.partial([DecoratedSignup.form, "source"]), ("form", "came_from"), ()),
        (READS_FORM.locking(["status"]), ("form", "status"), ("status",)),
        (READS_FORM.locking(["form"]), ("form",), ("form",)),
        (PersistenceLoadingPolicy.all().locking(["source"]), ("form", "status", "came_from"), ("came_from",)),
        (PersistenceLoadingPolicy.none().locking(["source"]), ("came_from",), ("came_from",)),
    ],
    ids=["all", "partial", "typed key", "lock another", "lock the same", "all and lock", "lock only"],
)
def test_a_loading_policy_names_columns(
    policy: PersistenceLoadingPolicy, columns: tuple[str, ...], lock_columns: tuple[str, ...]
) -> None:
    read = policy.to_wire(definition_of(DecoratedSignup))

    table = TableRead(table_name="user_sign_up", columns=columns, lock_columns=lock_columns)
    lock_type = LockType.EXCLUSIVE_LOCK if lock_columns else LockType.NO_LOCKING
    assert read == ReadRequest(tables=(table,), lock_type=lock_type)


class Scores(ObjectProcess):
    """Process-local attributes, some by prefix."""

    total = data_attribute(int)
    scores = data_attribute(int, prefix="score_")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            PersistenceLoadingPolicy.all(),
            ReadRequest(local_attributes=("total",), local_attribute_prefixes=("score_",)),
        ),
        (PersistenceLoadingPolicy.none(), ReadRequest()),
        (
            PersistenceLoadingPolicy.partial(["score_anna"]).locking(["total"], LockType.SHARE_LOCK),
            ReadRequest(
                local_attributes=("score_anna", "total"),
                lock_local_attributes=("total",),
                lock_type=LockType.SHARE_LOCK,
            ),
        ),
    ],
    ids=["all", "none", "partial and share lock"],
)
def test_a_loading_policy_names_process_local_attributes(
    policy: PersistenceLoadingPolicy, expected: ReadRequest
) -> None:
    assert policy.to_wire(definition_of(Scores)) == expected


def test_a_prefix_cannot_be_locked() -> None:
    policy = PersistenceLoadingPolicy.all().locking(["score_"])

    with pytest.raises(InvalidArgumentError, match="'score_' is a prefix, which cannot be locked"):
        policy.to_wire(definition_of(Scores))


def test_a_policy_that_says_nothing_useful_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="locking needs the attributes"):
        PersistenceLoadingPolicy.all().locking([])
    with pytest.raises(InvalidArgumentError, match="locking needs the attributes"):
        PersistenceLoadingPolicy.all().locking(["total"], LockType.NO_LOCKING)
    with pytest.raises(InvalidArgumentError, match=r"give a list of attributes, \['total'\]"):
        PersistenceLoadingPolicy.partial("total")


def test_policies_are_general_or_for_one_method_and_methods_without_persistence_read_nothing() -> None:
    @state(
        data_attributes_loading_policy=READS_FORM,
        execute_api_data_attributes_loading_policy=PersistenceLoadingPolicy.partial(["status"]),
    )
    class Reads(AsyncState[None]):
        def wait_until(self, persistence: Persistence) -> Any:
            raise NotImplementedError

        def execute(self, persistence: Persistence) -> StateDecision:
            return StateDecision.dead_end()

    @process(table_name="t", primary_key="id", primary_key_type=int)
    class Sample(ObjectProcess):
        form = data_attribute(str)
        status = data_attribute(str)
        states = (Reads, DoneState)

        @rpc(data_attribute_loading_policy=READS_FORM)
        def named_policy(self, persistence: Persistence) -> str:
            return ""

        @rpc(data_attribute_loading_policy=READS_FORM)
        def without_persistence(self) -> str:
            return ""

    definition = definition_of(Sample)
    options = definition.state_of(Reads).wire_options

    assert options.wait_until_read.tables == (TableRead(table_name="t", columns=("form",)),)
    assert options.execute_read.tables == (TableRead(table_name="t", columns=("status",)),)
    assert definition.state_of(DoneState).wire_options.execute_read.is_empty
    assert definition.rpcs["named_policy"].wire_read.tables == options.wait_until_read.tables
    assert definition.rpcs["without_persistence"].wire_read.is_empty


def test_durations_round_up_and_have_an_end() -> None:
    assert to_milliseconds(timedelta(microseconds=1), "x") == 1
    assert to_milliseconds(LONGEST_DURATION, "x") == 86_400_000_000_000
    for impossible in (timedelta.max, timedelta(microseconds=-1)):
        with pytest.raises(InvalidArgumentError, match="x is"):
            to_milliseconds(impossible, "x")


@dataclass(frozen=True)
class Order:
    item: str


@dataclass(frozen=True)
class GiftOrder(Order):
    card: str


def recovering(given: Any, taken: Any) -> type[ObjectProcess]:
    """A process in which a state that is given one type recovers to one that takes another."""

    class Mend(AsyncState[taken]):
        def execute(self, input: Any) -> StateDecision:
            return StateDecision.dead_end()

    @state(execute_api_retry_policy=TRY_ONCE, proceed_to_state_when_execute_retry_exhausted=Mend)
    class Fail(AsyncState[given]):
        def execute(self, input: Any) -> StateDecision:
            return StateDecision.dead_end()

    return process_with(Fail, Mend)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (str, str),
        (str, Any),
        (Any, str),
        (str, str | None),
        (str, Optional[str]),  # noqa: UP045  # the older form is another class
        (str | None, str),
        (int, int | str),
        (int, float),
        (GiftOrder, Order),
        (Order, GiftOrder),
        (Order, dict[str, Any]),
        (list[int], Sequence[int]),
        (Annotated[str, "note"], str),
    ],
    ids=str,
)
def test_recovery_state_may_take_the_input_of_the_failed_state(given: Any, taken: Any) -> None:
    recovery = definition_of(recovering(given, taken)).state_of("Fail").wire_options.execute_recovery

    assert recovery is not None
    assert recovery.state_id == "Mend"


@pytest.mark.parametrize(
    ("given", "taken"),
    [(str, int), (str, Order), (int | None, str), (None, str), (list[str], str), (Order, list[Order]), (float, int)],
    ids=str,
)
def test_recovery_state_that_takes_another_input_is_refused(given: Any, taken: Any) -> None:
    problems = problems_of(recovering(given, taken))

    assert "recovery state 'Mend' is given the same input" in problems


def test_recovery_state_without_an_input_parameter_takes_any_input() -> None:
    @state(execute_api_retry_policy=TRY_ONCE, proceed_to_state_when_execute_retry_exhausted=DoneState)
    class Fail(AsyncState[str]):
        def execute(self, input: str) -> StateDecision:
            return StateDecision.dead_end()

    recovery = definition_of(process_with(Fail, DoneState)).state_of(Fail).wire_options.execute_recovery

    assert recovery is not None
