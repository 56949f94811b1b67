"""The tokens by which clients ask for the next page of a list of executions."""

import base64
import binascii

from server_stub.core.model import ProcessExecution
from server_stub.engine.errors import refusal
from xdb_sdk.protocol import ErrorSubType


def page_token(last: ProcessExecution) -> str:
    """Give the token of the page that follows an execution."""
    return base64.urlsafe_b64encode(f"{last.started_at_ms}:{last.process_execution_id}".encode()).decode()


def parse_page_token(token: str | None) -> tuple[int, str] | None:
    """Give the start and the id of the execution that a page follows; None for the first page.

    Raises:
        ServiceError: The token is none.
    """
    if token is None:
        return None
    try:
        started_at_ms, _, process_execution_id = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
        if not 0 <= int(started_at_ms) <= 2**53:
            raise ValueError("no instant")
        return int(started_at_ms), process_execution_id
    except (ValueError, binascii.Error) as error:
        raise refusal(
            ErrorSubType.INVALID_REQUEST, "nextPageToken is not one that this server has given out"
        ) from error
