"""Awaits what the parts of the server do, and turns what they refuse into what the caller is told."""

from collections.abc import Awaitable
from typing import TypeVar

from server_stub.core.ports import MappingRefused, StoreError
from server_stub.core.refusals import Refused
from server_stub.engine.committer import CommitterFull
from server_stub.engine.errors import of_refused, of_store_error, refusal, too_busy
from xdb_sdk.protocol import ErrorSubType

ResultT = TypeVar("ResultT")


async def answered(awaitable: Awaitable[ResultT]) -> ResultT:
    """Give the result.

    Raises:
        ServiceError: It was refused, or the database did not do it.
    """
    try:
        return await awaitable
    except Refused as refused:
        raise of_refused(refused) from refused
    except MappingRefused as error:
        raise refusal(ErrorSubType.INVALID_REQUEST, str(error)) from error
    except StoreError as error:
        raise of_store_error(error) from error
    except CommitterFull as error:
        raise too_busy() from error
