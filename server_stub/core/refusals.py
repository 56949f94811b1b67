"""Why an operation is not carried out: the caller's mistake or the state of things, never the server's fault."""

from xdb_sdk.protocol import ErrorSubType, ProcessRequest


class Refused(Exception):
    """An operation that changes nothing, with what the caller is told."""

    def __init__(self, sub_type: ErrorSubType, details: str, process_execution_id: str | None = None) -> None:
        self.sub_type = sub_type
        self.details = details
        self.process_execution_id = process_execution_id
        super().__init__(details)


class InvalidAnswer(Exception):
    """A worker's answer that breaks the rules: a failed attempt, since a redeployed worker can mend it."""


def process_not_found(request: ProcessRequest) -> Refused:
    """Refuse because the process id, or the execution asked for, never existed."""
    execution = f"execution {request.process_execution_id!r} of " if request.process_execution_id else ""
    return Refused(
        ErrorSubType.PROCESS_NOT_FOUND,
        f"there is no {execution}process {request.process_id!r} in namespace {request.namespace!r}",
    )
