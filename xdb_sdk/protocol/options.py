"""Options of states and what a call reads, as they are sent and frozen with a state execution (semantics 2.1, 5.4)."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from xdb_sdk.protocol._base import NO_ENTRIES, ColumnValue, Json, WireModel
from xdb_sdk.protocol.enums import ConflictMode, LockType

MAX_ID_BYTES = 255
"""Longest process id, type, state id, queue name, command id, message id or attribute name, in UTF-8 bytes."""


def _check_name(name: str) -> str:
    if len(name) * 4 > MAX_ID_BYTES and (size_bytes := len(name.encode())) > MAX_ID_BYTES:
        raise ValueError(f"is {size_bytes} bytes of UTF-8, more than {MAX_ID_BYTES}")
    if "\0" in name:
        raise ValueError("holds the character NUL, which not every database stores")
    return name


Name = Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES), AfterValidator(_check_name)]
MAX_REQUEST_ID_LENGTH = 128
RequestId = Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID_LENGTH, pattern=r"^[ -~]+$")]
"""Printable ASCII (idempotency-and-shards D.2)."""
T = TypeVar("T")

MAX_ITEMS = 10_000
"""The most next states, messages, attributes or events in one call or answer: what one transaction is to hold."""
MAX_COMMANDS = 1_000
"""The most timer commands, queue commands or combinations of one wait."""
MAX_COLUMNS = 2_000
"""The most columns of a table that a call or answer names; no database has more."""
MAX_TABLES = 16
"""The most tables that a call reads or writes."""
MAX_KEY_COLUMNS = 16
"""The most columns of a primary key."""

Items: TypeAlias = Annotated[tuple[T, ...], Field(max_length=MAX_ITEMS)]
Commands: TypeAlias = Annotated[tuple[T, ...], Field(max_length=MAX_COMMANDS)]
Tables: TypeAlias = Annotated[tuple[T, ...], Field(max_length=MAX_TABLES)]
Columns: TypeAlias = Annotated[tuple[T, ...], Field(max_length=MAX_COLUMNS)]

DurationMs = Annotated[int, Field(ge=0, le=2**53)]
InstantMs = Annotated[int, Field(ge=-(2**53), le=2**53)]


class RetryPolicyConfig(WireModel):
    """When a failed attempt is repeated (semantics 2.5). Intervals in milliseconds; 0 means unlimited."""

    initial_interval_ms: DurationMs = 1_000
    backoff_coefficient: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    maximum_interval_ms: DurationMs = 100_000
    maximum_attempts: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    maximum_attempts_duration_ms: DurationMs = 0

    @property
    def is_bounded(self) -> bool:
        """Whether attempts ever end."""
        return self.maximum_attempts > 0 or self.maximum_attempts_duration_ms > 0


class TableRead(WireModel):
    """Columns of the mapped row that a call is given; `lock_columns` are those its read set is checked on."""

    table_name: Name
    columns: Columns[Name] = ()
    lock_columns: Columns[Name] = ()


class ReadRequest(WireModel):
    """What a call is given of the persistence, and which of it is compared again at commit (semantics 5.4).

    `local_attribute_prefixes` loads every process-local attribute whose name begins so.
    """

    tables: Tables[TableRead] = ()
    local_attributes: Items[Name] = ()
    local_attribute_prefixes: Items[Name] = ()
    lock_local_attributes: Items[Name] = ()
    lock_type: LockType = LockType.NO_LOCKING

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be read."""
        return not (self.tables or self.local_attributes or self.local_attribute_prefixes)


class RecoveryConfig(WireModel):
    """The state that runs instead once the attempts of another are exhausted (semantics 2.7)."""

    state_id: Name
    options: "StateOptionsConfig"


class StateOptionsConfig(WireModel):
    """Options of one state, resolved by the SDK and frozen when the state execution is created (semantics 2.1)."""

    skip_wait_until: bool = False
    wait_until_api_timeout_ms: DurationMs = 30_000
    execute_api_timeout_ms: DurationMs = 30_000
    wait_until_api_retry_policy: RetryPolicyConfig = RetryPolicyConfig()
    execute_api_retry_policy: RetryPolicyConfig = RetryPolicyConfig()
    proceed_to_execute_when_wait_until_retry_exhausted: bool = False
    wait_until_recovery: RecoveryConfig | None = None
    execute_recovery: RecoveryConfig | None = None
    wait_until_read: ReadRequest = ReadRequest()
    execute_read: ReadRequest = ReadRequest()


class TableWrite(WireModel):
    """New values for columns of the mapped row. The row is the execution's own; a worker cannot name another."""

    table_name: Name
    columns: Annotated[Mapping[Name, ColumnValue], Field(max_length=MAX_COLUMNS)]


class TableMapping(WireModel):
    """The user's row that an execution is mapped to, and what to write into it at start (semantics 1.5, 7.1).

    `primary_key` maps each key column to its value. One column for now; the form leaves room for composite keys.
    """

    table_name: Name
    primary_key: Annotated[Mapping[Name, ColumnValue], Field(max_length=MAX_KEY_COLUMNS)]
    initial_write: Annotated[Mapping[Name, ColumnValue], Field(max_length=MAX_COLUMNS)] = NO_ENTRIES
    conflict_mode: ConflictMode = ConflictMode.OVERRIDE_ON_CONFLICT


class LoadedTable(WireModel):
    """Column values of one mapped row. `exists` is false when there is no such row: all columns are then null."""

    table_name: Name
    exists: bool = True
    columns: Mapping[str, ColumnValue]


class LoadedData(WireModel):
    """What the server read for a call. A process-local attribute that was never set is absent, not null.

    `asked_local_attributes` and `asked_local_attribute_prefixes` repeat what was to be read: they tell an attribute
    that is unset from one that nobody asked for.
    """

    tables: tuple[LoadedTable, ...] = ()
    local_attributes: Mapping[str, Json] = NO_ENTRIES
    asked_local_attributes: tuple[str, ...] = ()
    asked_local_attribute_prefixes: tuple[str, ...] = ()
