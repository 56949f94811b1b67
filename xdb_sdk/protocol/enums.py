"""Closed sets of the wire."""

from enum import StrEnum


class ProcessStatus(StrEnum):
    """Status of a process execution; every one but RUNNING is final (semantics 4.7)."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    TERMINATED = "TERMINATED"
    CANCELED = "CANCELED"


class StateStatus(StrEnum):
    """Overall status of a state execution (semantics 2.3)."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"


class WaitUntilStatus(StrEnum):
    """Where a state execution's wait_until stands (semantics 2.3)."""

    SKIPPED = "SKIPPED"
    RUNNING = "RUNNING"
    WAITING_COMMANDS_COMPLETED = "WAITING_COMMANDS_COMPLETED"
    COMPLETED = "COMPLETED"


class ExecuteStatus(StrEnum):
    """Where a state execution's execute stands (semantics 2.3)."""

    NOT_STARTED = "NOT_STARTED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"


class StateApi(StrEnum):
    """The two methods of a state."""

    WAIT_UNTIL = "WAIT_UNTIL"
    EXECUTE = "EXECUTE"


class IdReusePolicy(StrEnum):
    """What a start does when the process id has been used before (semantics 1.3)."""

    ALLOW_IF_NO_RUNNING = "ALLOW_IF_NO_RUNNING"
    ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY = "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY"
    DISALLOW_REUSE = "DISALLOW_REUSE"
    TERMINATE_IF_RUNNING = "TERMINATE_IF_RUNNING"
    # The spellings that users of iWF know.
    ALLOW_IF_PREVIOUS_EXITS_ABNORMALLY = "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY"
    ALLOW_TERMINATE_IF_RUNNING = "TERMINATE_IF_RUNNING"


class ConflictMode(StrEnum):
    """What the initial write does when the user's row exists already (semantics 1.5)."""

    OVERRIDE_ON_CONFLICT = "OVERRIDE_ON_CONFLICT"
    IGNORE_CONFLICT = "IGNORE_CONFLICT"
    RETURN_ERROR_ON_CONFLICT = "RETURN_ERROR_ON_CONFLICT"


class ProcessStopType(StrEnum):
    """Which final status a stop gives (semantics 6.1)."""

    TERMINATE = "TERMINATE"
    FAIL = "FAIL"
    CANCEL = "CANCEL"


class WaitingType(StrEnum):
    """How the commands of one wait are joined (semantics 3.1)."""

    EMPTY = "EMPTY"
    ANY = "ANY"
    ALL = "ALL"
    ANY_COMBINATION = "ANY_COMBINATION"


class TimerStatus(StrEnum):
    """Status of a timer command when execute is called (semantics 3.5)."""

    SCHEDULED = "SCHEDULED"
    FIRED = "FIRED"
    SKIPPED = "SKIPPED"


class QueueCommandStatus(StrEnum):
    """Status of an internal queue command when execute is called (semantics 3.5)."""

    WAITING = "WAITING"
    RECEIVED = "RECEIVED"


class CloseType(StrEnum):
    """How a decision ends its thread of states (semantics 4.3)."""

    GRACEFUL_COMPLETE_PROCESS = "GRACEFUL_COMPLETE_PROCESS"
    FORCE_COMPLETE_PROCESS = "FORCE_COMPLETE_PROCESS"
    FORCE_FAIL_PROCESS = "FORCE_FAIL_PROCESS"
    DEAD_END = "DEAD_END"


class LockType(StrEnum):
    """How the attributes of a locking policy are guarded (semantics 5.4)."""

    NO_LOCKING = "NO_LOCKING"
    SHARE_LOCK = "SHARE_LOCK"
    EXCLUSIVE_LOCK = "EXCLUSIVE_LOCK"


class ProcessErrorType(StrEnum):
    """Why a process execution did not complete (semantics 4.7)."""

    STATE_DECISION = "STATE_DECISION"
    CLIENT_STOP = "CLIENT_STOP"
    STATE_API = "STATE_API"
    TIMEOUT = "TIMEOUT"
    HISTORY_LIMIT = "HISTORY_LIMIT"
    """Its history was full."""


class HistoryEventType(StrEnum):
    """What an event of a process execution's history says (idempotency-and-shards D.10).

    Events of one change follow each other; the first one says what happened, the others what came of it.
    """

    STARTED = "STARTED"
    STATE_SCHEDULED = "STATE_SCHEDULED"
    WAIT_UNTIL_COMPLETED = "WAIT_UNTIL_COMPLETED"
    COMMAND_COMPLETED = "COMMAND_COMPLETED"
    """A timer fired or was skipped, or a queue command got its messages."""
    STATE_EXECUTED = "STATE_EXECUTED"
    ATTEMPT_FAILED = "ATTEMPT_FAILED"
    ATTRIBUTES_WRITTEN = "ATTRIBUTES_WRITTEN"
    PUBLISHED = "PUBLISHED"
    RPC_APPLIED = "RPC_APPLIED"
    USER_EVENT = "USER_EVENT"
    """User code has recorded it."""
    OUTPUT_GIVEN = "OUTPUT_GIVEN"
    """An RPC has added to the outputs of the execution."""
    COMPLETION_REQUESTED = "COMPLETION_REQUESTED"
    """The execution completes when no state is left."""
    STOP_REQUESTED = "STOP_REQUESTED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    STATE_RETRIED = "STATE_RETRIED"
    """The next call of a state, which waited for its time, is made now."""
    STATE_COMPLETED_BY_OPERATOR = "STATE_COMPLETED_BY_OPERATOR"
    TIMER_SKIPPED = "TIMER_SKIPPED"
    CONFIG_UPDATED = "CONFIG_UPDATED"
    RESET = "RESET"
    """Another execution goes on from a point of this one, or this one goes on from there."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    TERMINATED = "TERMINATED"
    CANCELED = "CANCELED"


class ResetType(StrEnum):
    """From which point a reset goes on (semantics 6.7)."""

    BEGINNING = "BEGINNING"
    """From the start, with its initial attributes and its starting state."""
    STATE_ID = "STATE_ID"
    """From where a state was first scheduled."""
    STATE_EXECUTION_ID = "STATE_EXECUTION_ID"
    """From where a state execution was scheduled."""
    TIME = "TIME"
    """From how the execution was at an instant."""
    EVENT_ID = "EVENT_ID"
    """From after an event, and what came of the same change."""


class ErrorSubType(StrEnum):
    """The stable code in the body of every error of the service API (semantics 1.7, 5.5)."""

    INVALID_REQUEST = "INVALID_REQUEST"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    PROCESS_NOT_FOUND = "PROCESS_NOT_FOUND"
    STATE_NOT_FOUND = "STATE_NOT_FOUND"
    TIMER_NOT_FOUND = "TIMER_NOT_FOUND"
    PROCESS_ALREADY_STARTED = "PROCESS_ALREADY_STARTED"
    PROCESS_NOT_RUNNING = "PROCESS_NOT_RUNNING"
    HISTORY_INCOMPLETE = "HISTORY_INCOMPLETE"
    RESET_POINT_NOT_FOUND = "RESET_POINT_NOT_FOUND"
    STATE_NOT_RUNNING = "STATE_NOT_RUNNING"
    STATE_NOT_BACKING_OFF = "STATE_NOT_BACKING_OFF"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    HISTORY_LIMIT = "HISTORY_LIMIT"
    RETRY_LATER = "RETRY_LATER"
    LOCK_NOT_ACQUIRED = "LOCK_NOT_ACQUIRED"
    WORKER_EXECUTION_ERROR = "WORKER_EXECUTION_ERROR"
    WORKER_TIMEOUT = "WORKER_TIMEOUT"
    WORKER_UNREACHABLE = "WORKER_UNREACHABLE"
    INVALID_WORKER_RESPONSE = "INVALID_WORKER_RESPONSE"
    APP_DATABASE_READ_ERROR = "APP_DATABASE_READ_ERROR"
    APP_DATABASE_WRITE_ERROR = "APP_DATABASE_WRITE_ERROR"
    TOO_MANY_REQUESTS = "TOO_MANY_REQUESTS"
    UNAVAILABLE = "UNAVAILABLE"
    UNKNOWN_OUTCOME = "UNKNOWN_OUTCOME"
    INTERNAL = "INTERNAL"
