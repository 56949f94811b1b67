"""What comes of a call to a worker, told to the engine by the dispatcher."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from server_stub.core.model import ReadSet
from xdb_sdk.protocol import DatabaseErrorInfo, ExecuteAnswer, RpcAnswer, WaitUntilAnswer


class FailureKind(StrEnum):
    """Where a call failed: told to the caller of an RPC, kept with a failed attempt of a state (semantics 4.1, 5.5)."""

    WORKER_ERROR = "WORKER_ERROR"
    UNREACHABLE = "WORKER_UNREACHABLE"
    TIMEOUT = "WORKER_TIMEOUT"
    INVALID_RESPONSE = "INVALID_WORKER_RESPONSE"
    DATABASE_READ = "DATABASE_READ"
    DATABASE_WRITE = "DATABASE_WRITE"
    READ_SET_CHANGED = "READ_SET_CHANGED"
    INTERNAL = "INTERNAL"
    """The server could not apply the answer: its own defect, bounded by the retry policy all the same."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A failed attempt (semantics 2.5). `http_status` is 0 when there was no response."""

    kind: FailureKind
    error_type: str
    details: str
    http_status: int = 0
    retryable: bool = True
    database_error: DatabaseErrorInfo | None = None
    first_attempt_at_ms: int | None = None
    """When the first attempt of the API was sent, if that was this one: waits for locks and downtime do not count."""


@dataclass(frozen=True, slots=True)
class StateAnswered:
    """The worker answered; `read_set` is what a locking call must find unchanged, None without locks."""

    answer: WaitUntilAnswer | ExecuteAnswer
    read_set: ReadSet | None = None


@dataclass(frozen=True, slots=True)
class RpcAnswered:
    """The worker answered an RPC."""

    answer: RpcAnswer
    read_set: ReadSet | None = None


StateOutcome: TypeAlias = StateAnswered | CallFailure
RpcOutcome: TypeAlias = RpcAnswered | CallFailure


class Verdict(StrEnum):
    """What the engine made of an outcome."""

    APPLIED = "APPLIED"
    OBSOLETE = "OBSOLETE"
    """The execution or the attempt is over; nothing was applied."""
    READ_SET_CHANGED = "READ_SET_CHANGED"
    """Nothing was applied: read again and call again (semantics 5.4)."""
