"""Answers to calls that are not carried out: one schema, whatever went wrong."""

from collections.abc import Sequence
from http import HTTPStatus

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from server_stub.api.operations import OPERATIONS
from server_stub.engine.errors import UNAVAILABLE_RETRY_AFTER_S, ServiceError
from xdb_sdk.protocol import ErrorBody, ErrorSubType

_MAX_PROBLEMS = 5
_MAX_SHOWN = 100


def refusal(status: HTTPStatus, sub_type: ErrorSubType, details: str) -> ServiceError:
    """Refuse for a reason that lies in the HTTP layer."""
    return ServiceError(status, ErrorBody(error_sub_type=sub_type, details=details))


def invalid_request(details: str) -> ServiceError:
    """Refuse a call that cannot be understood: 400."""
    return refusal(HTTPStatus.BAD_REQUEST, ErrorSubType.INVALID_REQUEST, details)


def unknown_operation(name: str) -> ServiceError:
    """Refuse a call of an operation that does not exist: 404."""
    return refusal(
        HTTPStatus.NOT_FOUND,
        ErrorSubType.NOT_FOUND,
        f"there is no operation {name[:_MAX_SHOWN]!r}; there are {', '.join(OPERATIONS)}",
    )


def too_large(what: str, limit: str, setting: str) -> ServiceError:
    """Refuse a call for its size: 400."""
    return refusal(
        HTTPStatus.BAD_REQUEST, ErrorSubType.PAYLOAD_TOO_LARGE, f"{what}; at most {limit} are allowed ({setting})"
    )


def unavailable(details: str) -> ServiceError:
    """Ask to repeat the call later, because the database cannot be used: 503."""
    body = ErrorBody(error_sub_type=ErrorSubType.UNAVAILABLE, details=details, retry_after_s=UNAVAILABLE_RETRY_AFTER_S)
    return ServiceError(HTTPStatus.SERVICE_UNAVAILABLE, body)


def internal_error(error_id: str) -> ServiceError:
    """Tell of a fault of the server; the cause is in its log, under the id, and nowhere else: 500."""
    details = f"the server has failed; its log says why, with error_id={error_id}"
    return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorSubType.INTERNAL, details)


def invalid_fields(error: ValidationError, *, skip: int = 0) -> ServiceError:
    """Refuse a body that does not fit its wire model: 400, with the wrong fields named and their values left out.

    Args:
        error: What the parser found.
        skip: Leading elements of each location that are not in the JSON.
    """
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    shown = "; ".join(_describe(problem, skip) for problem in problems[:_MAX_PROBLEMS])
    if len(problems) > _MAX_PROBLEMS:
        shown += f"; and {len(problems) - _MAX_PROBLEMS} more"
    return invalid_request(shown)


def _describe(problem: ErrorDetails, skip: int) -> str:
    location: Sequence[str | int] = problem["loc"][skip:]
    message = problem["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, location)) or 'body'}: {message}"
