"""What a caller of the service is told when an operation is not carried out (semantics 1.7, 5.5)."""

from server_stub.core.outcomes import CallFailure, FailureKind
from server_stub.core.ports import (
    CommitOutcomeUnknown,
    ConcurrentStart,
    RowReadFailed,
    RowWriteFailed,
    StoreError,
    StoreUnavailable,
)
from server_stub.core.refusals import Refused
from server_stub.dispatch.dispatcher import RpcNotAnswered, WorkerBusy
from xdb_sdk.protocol import ErrorBody, ErrorSubType

UNAVAILABLE_RETRY_AFTER_S = 1.0

_STATUS = {
    ErrorSubType.INVALID_REQUEST: 400,
    ErrorSubType.PROCESS_NOT_FOUND: 404,
    ErrorSubType.STATE_NOT_FOUND: 404,
    ErrorSubType.TIMER_NOT_FOUND: 404,
    ErrorSubType.PROCESS_ALREADY_STARTED: 409,
    ErrorSubType.PROCESS_NOT_RUNNING: 409,
    ErrorSubType.STATE_NOT_RUNNING: 409,
    ErrorSubType.STATE_NOT_BACKING_OFF: 409,
    ErrorSubType.REQUEST_ID_REUSED: 409,
    ErrorSubType.HISTORY_LIMIT: 409,
    ErrorSubType.HISTORY_INCOMPLETE: 409,
    ErrorSubType.RESET_POINT_NOT_FOUND: 404,
    ErrorSubType.RETRY_LATER: 409,
    ErrorSubType.LOCK_NOT_ACQUIRED: 423,
    ErrorSubType.WORKER_EXECUTION_ERROR: 424,
    ErrorSubType.WORKER_TIMEOUT: 424,
    ErrorSubType.WORKER_UNREACHABLE: 424,
    ErrorSubType.INVALID_WORKER_RESPONSE: 424,
    ErrorSubType.APP_DATABASE_READ_ERROR: 424,
    ErrorSubType.APP_DATABASE_WRITE_ERROR: 424,
    ErrorSubType.INTERNAL: 500,
}

_SUB_TYPE_OF_FAILURE = {
    FailureKind.WORKER_ERROR: ErrorSubType.WORKER_EXECUTION_ERROR,
    FailureKind.UNREACHABLE: ErrorSubType.WORKER_UNREACHABLE,
    FailureKind.TIMEOUT: ErrorSubType.WORKER_TIMEOUT,
    FailureKind.INVALID_RESPONSE: ErrorSubType.INVALID_WORKER_RESPONSE,
    FailureKind.DATABASE_READ: ErrorSubType.APP_DATABASE_READ_ERROR,
    FailureKind.DATABASE_WRITE: ErrorSubType.APP_DATABASE_WRITE_ERROR,
    FailureKind.READ_SET_CHANGED: ErrorSubType.LOCK_NOT_ACQUIRED,
    FailureKind.INTERNAL: ErrorSubType.INTERNAL,
}


class ServiceError(Exception):
    """An operation was refused or failed; `status` and `body` are what the caller is answered (semantics 1.7, 5.5)."""

    def __init__(self, status: int, body: ErrorBody) -> None:
        self.status = status
        self.body = body
        super().__init__(f"{status} {body.error_sub_type}: {body.details}")


def refusal(sub_type: ErrorSubType, details: str, process_execution_id: str | None = None) -> ServiceError:
    """Give the answer to a request that is refused."""
    retry_after_s = UNAVAILABLE_RETRY_AFTER_S if sub_type is ErrorSubType.RETRY_LATER else None
    body = ErrorBody(
        error_sub_type=sub_type,
        details=details,
        process_execution_id=process_execution_id,
        retry_after_s=retry_after_s,
    )
    return ServiceError(_STATUS[sub_type], body)


def of_refused(refused: Refused) -> ServiceError:
    """Give the answer to a request that the rules refuse."""
    return refusal(refused.sub_type, refused.details, refused.process_execution_id)


def of_store_error(error: StoreError) -> ServiceError:
    """Give the answer when the database, the user's or the server's, did not do what it was asked.

    Raises:
        StoreError: `error` itself, when it is the server's own fault.
    """
    match error:
        case RowWriteFailed():
            return _of_row_error(ErrorSubType.APP_DATABASE_WRITE_ERROR, error)
        case RowReadFailed():
            return _of_row_error(ErrorSubType.APP_DATABASE_READ_ERROR, error)
        case CommitOutcomeUnknown():
            return outcome_unknown()
        case StoreUnavailable() | ConcurrentStart():
            return _unavailable("the database is unavailable or busy; nothing was changed, try again")
        case _:
            raise error


def outcome_unknown() -> ServiceError:
    """Give the answer to a call that was on its way into the database when that ceased to answer.

    It says not when to come back: a client that repeats it by itself might have it done twice.
    """
    body = ErrorBody(
        error_sub_type=ErrorSubType.UNKNOWN_OUTCOME,
        details="the database ceased to answer while the call was being committed; repeat it with its request id, and "
        "without one look first whether it was applied",
    )
    return ServiceError(503, body)


def too_busy() -> ServiceError:
    """Give the answer to a call that would make the server fall further behind."""
    body = ErrorBody(
        error_sub_type=ErrorSubType.TOO_MANY_REQUESTS,
        details="too many calls wait for the database; nothing was changed, try again later",
        retry_after_s=UNAVAILABLE_RETRY_AFTER_S,
    )
    return ServiceError(429, body)


def of_unanswered_rpc(error: RpcNotAnswered) -> ServiceError:
    """Give the answer to an RPC that has none. Only if its method cannot have run, it says when to come back."""
    status, sub_type = 503, ErrorSubType.UNAVAILABLE
    if isinstance(error, WorkerBusy):
        status, sub_type = 429, ErrorSubType.TOO_MANY_REQUESTS
    effect = "nothing was changed, but the method may have run" if error.may_have_run else "the method has not run"
    retry_after_s = None if error.may_have_run else UNAVAILABLE_RETRY_AFTER_S
    body = ErrorBody(error_sub_type=sub_type, details=f"{error}; {effect}", retry_after_s=retry_after_s)
    return ServiceError(status, body)


def rpc_not_committed(effect: str) -> ServiceError:
    """Give the answer to an RPC whose method has run and whose changes could not be committed.

    It says not when to come back, so that only a client repeats it by itself whose request has an id (semantics 5.5).

    Args:
        effect: What became of the changes.
    """
    details = f"the database is unavailable or busy; the method of the RPC has run, {effect}"
    return ServiceError(503, ErrorBody(error_sub_type=ErrorSubType.UNAVAILABLE, details=details))


def _unavailable(details: str) -> ServiceError:
    body = ErrorBody(error_sub_type=ErrorSubType.UNAVAILABLE, details=details, retry_after_s=UNAVAILABLE_RETRY_AFTER_S)
    return ServiceError(503, body)


def _of_row_error(sub_type: ErrorSubType, error: RowWriteFailed | RowReadFailed) -> ServiceError:
    cause = error.error
    body = ErrorBody(
        error_sub_type=sub_type,
        details=f"{cause.kind}: {cause.message}" + (f" (code {cause.code})" if cause.code else ""),
        app_error_type=cause.kind,
        app_database_table=cause.table_name,
    )
    return ServiceError(424, body)


def of_call_failure(failure: CallFailure, process_execution_id: str) -> ServiceError:
    """Give the answer to an RPC whose call failed."""
    sub_type = _SUB_TYPE_OF_FAILURE[failure.kind]
    database_error = failure.database_error
    body = ErrorBody(
        error_sub_type=sub_type,
        details=failure.details,
        process_execution_id=process_execution_id,
        app_error_type=failure.error_type,
        worker_error_status=failure.http_status or None,
        app_database_table=database_error.table_name if database_error else None,
    )
    return ServiceError(_STATUS[sub_type], body)
