"""Options: of states, of what a call loads, of a start. All are immutable; a field left None says nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from xdb_sdk._duration import check_duration, is_number, seconds_to_milliseconds
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._schema import DataAttribute, key_list
from xdb_sdk.protocol import (
    ConflictMode,
    IdReusePolicy,
    LockType,
    ReadRequest,
    RetryPolicyConfig,
    TableRead,
)

if TYPE_CHECKING:
    from xdb_sdk._definition import ProcessDefinition
    from xdb_sdk._state import AsyncState

StateReference: TypeAlias = Union["type[AsyncState[Any]]", "AsyncState[Any]", str]
"""A state, by its class, its instance or its state id."""

AttributeKey: TypeAlias = DataAttribute[Any] | str
"""A data attribute, by its typed key or its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed attempt of wait_until or execute is repeated.

    After attempt n the wait is `initial_interval_seconds * backoff_coefficient ** (n - 1)`, at most
    `maximum_interval_seconds`.

    Attributes:
        initial_interval_seconds: The wait after the first attempt.
        backoff_coefficient: At least 1.
        maximum_interval_seconds: The longest wait.
        maximum_attempts: Attempts in all; 0 is no limit.
        maximum_attempts_duration_seconds: Time for the whole series, the running attempt included; 0 is no limit.

    Raises:
        InvalidArgumentError: A number is out of range.

    Source: semantics 2.5.
    """

    initial_interval_seconds: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval_seconds: float = 100.0
    maximum_attempts: int = 0
    maximum_attempts_duration_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.to_wire()

    @staticmethod
    def from_wire(policy: RetryPolicyConfig) -> "RetryPolicy":
        """Read the wire form."""
        return RetryPolicy(
            initial_interval_seconds=policy.initial_interval_ms / 1_000,
            backoff_coefficient=policy.backoff_coefficient,
            maximum_interval_seconds=policy.maximum_interval_ms / 1_000,
            maximum_attempts=policy.maximum_attempts,
            maximum_attempts_duration_seconds=policy.maximum_attempts_duration_ms / 1_000,
        )

    def to_wire(self) -> RetryPolicyConfig:
        """Convert to the wire form."""
        coefficient, attempts = self.backoff_coefficient, self.maximum_attempts
        if not is_number(coefficient) or not 1 <= coefficient < float("inf"):
            raise InvalidArgumentError(f"backoff_coefficient is {coefficient!r}: give a number, 1 or more")
        if type(attempts) is not int or not 0 <= attempts < 2**31:
            raise InvalidArgumentError(f"maximum_attempts is {attempts!r}: give a whole number, 0 for no limit")
        return RetryPolicyConfig(
            initial_interval_ms=seconds_to_milliseconds(self.initial_interval_seconds, "initial_interval_seconds"),
            backoff_coefficient=self.backoff_coefficient,
            maximum_interval_ms=seconds_to_milliseconds(self.maximum_interval_seconds, "maximum_interval_seconds"),
            maximum_attempts=self.maximum_attempts,
            maximum_attempts_duration_ms=seconds_to_milliseconds(
                self.maximum_attempts_duration_seconds, "maximum_attempts_duration_seconds"
            ),
        )


@dataclass(frozen=True, slots=True)
class PersistenceLoadingPolicy:
    """Which data attributes a call is given, and which of them must not change while it runs.

    Make one with `all`, `partial` or `none`, keep it in a constant to use it in several places, and add a lock with
    `locking`. Without a policy everything is loaded, without locks.

    Attributes:
        keys: The attributes to load; None loads all.
        locking_keys: Attributes that are loaded as well and compared again when the call's changes are committed.
        lock_type: EXCLUSIVE_LOCK also keeps other exclusive calls waiting; SHARE_LOCK lets other readers pass.

    Example:
        `PersistenceLoadingPolicy.partial(["form"]).locking(["count"])`

    Source: semantics 5.4.
    """

    keys: tuple[AttributeKey, ...] | None = None
    locking_keys: tuple[AttributeKey, ...] = ()
    lock_type: LockType = LockType.NO_LOCKING

    @staticmethod
    def all() -> "PersistenceLoadingPolicy":
        """Load every declared attribute."""
        return PersistenceLoadingPolicy()

    @staticmethod
    def partial(keys: Iterable[AttributeKey]) -> "PersistenceLoadingPolicy":
        """Load the attributes named; reading another raises AttributeNotLoadedError."""
        return PersistenceLoadingPolicy(key_list(keys))

    @staticmethod
    def none() -> "PersistenceLoadingPolicy":
        """Load nothing; attributes can still be written."""
        return PersistenceLoadingPolicy(())

    def locking(
        self, keys: Iterable[AttributeKey], lock_type: LockType = LockType.EXCLUSIVE_LOCK
    ) -> "PersistenceLoadingPolicy":
        """Load and lock the attributes named, beside what is loaded anyway.

        If one of them was changed by anyone when the call's changes are to be committed, the changes are thrown away
        and the method is called again with the new values; that uses up no attempt.
        """
        locking_keys = key_list(keys)
        if not locking_keys or lock_type is LockType.NO_LOCKING:
            raise InvalidArgumentError("locking needs the attributes to lock, and SHARE_LOCK or EXCLUSIVE_LOCK")
        return replace(self, locking_keys=locking_keys, lock_type=lock_type)

    def to_wire(self, definition: "ProcessDefinition") -> ReadRequest:
        """Say what the server must read and compare.

        Raises:
            InvalidArgumentError: An attribute is named that the process does not declare.
        """
        keys = tuple(definition.attributes) if self.keys is None else self.keys
        read = definition.attribute_read((*keys, *self.locking_keys))
        if self.lock_type is LockType.NO_LOCKING:
            return read
        locked = definition.attribute_read(self.locking_keys)
        if locked.local_attribute_prefixes:
            raise InvalidArgumentError(
                f"{definition.process_type}: {locked.local_attribute_prefixes[0]!r} is a prefix, which cannot be "
                "locked: lock attributes by their whole names"
            )
        lock_columns = tuple(column for table in locked.tables for column in table.columns)
        return ReadRequest(
            tables=tuple(
                TableRead(table_name=table.table_name, columns=table.columns, lock_columns=lock_columns)
                for table in read.tables
            ),
            local_attributes=read.local_attributes,
            local_attribute_prefixes=read.local_attribute_prefixes,
            lock_local_attributes=locked.local_attributes,
            lock_type=self.lock_type,
        )


@dataclass(frozen=True, slots=True)
class StateRecovery:
    """A recovery state with options of its own: `options_override` wins, field by field, over its class's."""

    state: StateReference
    options_override: "AsyncStateOptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStateOptions:
    """Options of a state. What is left None keeps its default, or in an override what the class says.

    They are frozen into a state execution when it is created: a later deployment changes only later ones.

    Attributes:
        state_id: Its id, by default the name of its class. Not inherited.
        data_attributes_loading_policy: What both methods are given of the data; by default everything.
        wait_until_api_timeout_seconds: Time for one attempt of wait_until; 30 by default.
        wait_until_api_retry_policy: When wait_until is attempted again.
        wait_until_api_data_attributes_loading_policy: Wins over the general policy for wait_until.
        proceed_to_execute_when_wait_until_retry_exhausted: Call execute without results, instead of failing the
            process; `command_results.wait_until_api_succeeded` is false then.
        proceed_to_state_when_wait_until_retry_exhausted: The state that takes over, with the same input.
        execute_api_timeout_seconds: Time for one attempt of execute; 30 by default.
        execute_api_retry_policy: When execute is attempted again.
        execute_api_data_attributes_loading_policy: Wins over the general policy for execute.
        proceed_to_state_when_execute_retry_exhausted: The state that takes over, with the same input.

    Source: semantics 2.1, 2.7.
    """

    state_id: str | None = None
    data_attributes_loading_policy: PersistenceLoadingPolicy | None = None
    wait_until_api_timeout_seconds: float | None = None
    wait_until_api_retry_policy: RetryPolicy | None = None
    wait_until_api_data_attributes_loading_policy: PersistenceLoadingPolicy | None = None
    proceed_to_execute_when_wait_until_retry_exhausted: bool | None = None
    proceed_to_state_when_wait_until_retry_exhausted: StateReference | StateRecovery | None = None
    execute_api_timeout_seconds: float | None = None
    execute_api_retry_policy: RetryPolicy | None = None
    execute_api_data_attributes_loading_policy: PersistenceLoadingPolicy | None = None
    proceed_to_state_when_execute_retry_exhausted: StateReference | StateRecovery | None = None

    def over(self, base: "AsyncStateOptions") -> "AsyncStateOptions":
        """Merge: each field that is set here wins over `base`. Neither object changes."""
        return replace(base, **{f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStartOptions:
    """Options of a start.

    Attributes:
        id_reuse_policy: What happens if the process id has been used before.
        timeout: When the process is closed as TIMEOUT, counted from its start; None is never.
        start_delay: How long the first state waits; the process is RUNNING meanwhile.
        ignore_already_started: Return the running execution instead of raising ProcessAlreadyStartedError. To learn
            which of the two it was, leave this out and catch the error: its `process_execution_id` is the running one.
        initial_upsert_data_attributes: Values by name or typed key, written together with the start.
        conflict_mode: What to do when the mapped row exists already; by default the given columns are updated.
        starting_state_options_override: Wins, field by field, over the options of the starting state.
        namespace: Where the process id is unique; the client's own by default.

    Raises:
        InvalidArgumentError: A duration is no timedelta.

    Source: semantics 1.2 to 1.6.
    """

    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_IF_NO_RUNNING
    timeout: timedelta | None = None
    start_delay: timedelta | None = None
    ignore_already_started: bool = False
    initial_upsert_data_attributes: Mapping[Any, Any] = field(default_factory=dict)
    conflict_mode: ConflictMode = ConflictMode.OVERRIDE_ON_CONFLICT
    starting_state_options_override: AsyncStateOptions | None = None
    namespace: str | None = None

    def __post_init__(self) -> None:
        for name in ("timeout", "start_delay"):
            if getattr(self, name) is not None:
                check_duration(getattr(self, name), name)
