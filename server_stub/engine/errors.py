"""What a caller of the service is told when an operation is not carried out."""

from xdb_sdk.protocol import ErrorBody


class ServiceError(Exception):
    """An operation was refused or failed; `status` and `body` are what the caller is answered (semantics 1.7, 5.5)."""

    def __init__(self, status: int, body: ErrorBody) -> None:
        self.status = status
        self.body = body
        super().__init__(f"{status} {body.error_sub_type}: {body.details}")
