"""Every error that xdb raises on purpose.

They part by what you do next: `ProcessDefinitionError` and its child: mend the class; `InvalidArgumentError` and
`ClientSideError`: mend the call; `UnavailableError` and `ServerSideError`: try again; `ProcessAbnormalExitError` and
its children: the outcome of your own process.
"""

from typing import Any, ClassVar

from xdb_sdk.protocol import ErrorBody, ErrorSubType, ProcessErrorType, ProcessStatus
from xdb_sdk.protocol.worker import error_message_of


class XdbError(Exception):
    """Base of every error of xdb. `code` is stable and may be tested by programs."""

    code: ClassVar[str] = "xdb_error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and attributes: the message is made of constructor arguments that differ by class."""
        return _unpickled, (type(self), self.args, vars(self))


def _unpickled(error_class: type[XdbError], args: tuple[Any, ...], attributes: dict[str, Any]) -> XdbError:
    error = error_class.__new__(error_class)
    error.args = args
    vars(error).update(attributes)
    return error


class ProcessDefinitionError(XdbError):
    """A process class is not right; the message names the class, what is wrong with it and what to write instead.

    `problems` has one line for each thing that is wrong.
    """

    code = "process_definition"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class NotRegisteredError(ProcessDefinitionError):
    """A process class, process type, state or RPC is used that the registry does not know."""

    code = "not_registered"


class InvalidArgumentError(XdbError, ValueError):
    """A value given to a call cannot be used; nothing was sent or changed."""

    code = "invalid_argument"


class _ValueError(InvalidArgumentError):
    """A value that does not pass between Python and the wire.

    Attributes:
        where: What the value is for, such as "data attribute 'form' of UserSignupProcess".
        path: Where inside the value the trouble is, such as ".items[3].price"; empty for the value itself.
        problem: What is wrong there.
    """

    def __init__(self, where: str, path: str, problem: str) -> None:
        self.where = where
        self.path = path
        self.problem = problem
        super().__init__(f"{where}: at {path}: {problem}" if path else f"{where}: {problem}")


class EncodeError(_ValueError):
    """A Python value does not fit its declared type, or cannot be written as JSON."""

    code = "encode"


class DecodeError(_ValueError):
    """Stored or sent data does not fit the declared type that it is to be read as."""

    code = "decode"


class AttributeNotLoadedError(XdbError, LookupError):
    """A data attribute was read that the loading policy of this call leaves out.

    Source: semantics 5.4. None would be mistaken for a value.
    """

    code = "attribute_not_loaded"

    def __init__(self, attribute_name: str, where: str) -> None:
        self.attribute_name = attribute_name
        super().__init__(
            f"data attribute {attribute_name!r} is not loaded in {where}; name it in the call's "
            "PersistenceLoadingPolicy, or leave the policy out to load everything"
        )


class NonRetryableError(XdbError):
    """Raise it, or a child of it, in a state to end its attempts at once: repeating would not help.

    The recovery that is configured for exhausted attempts then applies (semantics 2.7, 8).
    """

    code = "non_retryable"


class UnavailableError(XdbError, ConnectionError):
    """The server could not be reached or is too busy. Whether the call took effect is unknown unless it says so.

    Attributes:
        request_id: Of a call that changes something: made again with this id, it is carried out once. None of others.
    """

    code = "unavailable"

    def __init__(self, message: str, *, request_id: str | None = None) -> None:
        self.request_id = request_id
        super().__init__(message)


class HttpError(XdbError):
    """The server answered with an error.

    Attributes:
        status: The HTTP status.
        error_sub_type: The stable code of the answer.
        body: The whole answer.
    """

    code = "http"
    advice: ClassVar[str] = ""

    def __init__(self, status: int, body: ErrorBody, operation: str = "request") -> None:
        self.status = status
        self.body = body
        message = f"{operation} was answered {status} {body.error_sub_type}"
        if explanation := self._explanation():
            message += f": {explanation}{self._table()}"
        super().__init__(f"{message.removesuffix('.')}; {self.advice}" if self.advice else message)

    @property
    def error_sub_type(self) -> ErrorSubType:
        """The stable code of the answer."""
        return self.body.error_sub_type

    def _explanation(self) -> str:
        """What the message says besides the code."""
        return self.body.details

    def _table(self) -> str:
        """The user's table that a database error is about, unless the details name it."""
        table = self.body.app_database_table
        return f" (table {table!r})" if table and repr(table) not in self.body.details else ""


class ClientSideError(HttpError):
    """The server refused the call (4xx). Repeating it unchanged gives the same answer."""

    code = "client_side"


class ServerSideError(HttpError):
    """The server failed (5xx), also when the client repeated the call."""

    code = "server_side"


class ProcessAlreadyStartedError(ClientSideError):
    """A process with this id exists and the id reuse policy forbids another."""

    code = "process_already_started"

    @property
    def process_execution_id(self) -> str | None:
        """The current execution of the process id; None if the answer does not name it."""
        return self.body.process_execution_id


class ProcessNotFoundError(ClientSideError):
    """No process with this id was ever started, or its retention is over."""

    code = "process_not_found"
    advice = "check the process id and the namespace"


class ProcessNotRunningError(ClientSideError):
    """The process is closed and the call would have changed it; nothing was changed."""

    code = "process_not_running"
    advice = "a closed process can only be read; start it again under the same id to go on"


class RpcExecutionError(ClientSideError):
    """The RPC method raised, was too slow, or its worker could not be reached; none of its changes were applied.

    Attributes:
        worker_error_type: Class name of the exception in the worker, if it raised.
        worker_error_status: HTTP status of the worker's answer, if it answered.
        error_message: What it said.
        details: The same, and the traceback in the worker if the method raised.
    """

    code = "rpc_execution"

    @property
    def error_message(self) -> str:
        """What the exception said."""
        return error_message_of(self.details)

    @property
    def details(self) -> str:
        """The same, and the traceback in the worker if the method raised."""
        return self.body.details

    @property
    def worker_error_type(self) -> str | None:
        """Class name of the exception in the worker, if it raised."""
        return self.body.app_error_type

    @property
    def worker_error_status(self) -> int | None:
        """HTTP status of the worker's answer, if it answered."""
        return self.body.worker_error_status

    def _explanation(self) -> str:
        """Name the class, unless the code or the message does."""
        error_type, message = self.body.app_error_type, self.error_message
        if not error_type or error_type == self.body.error_sub_type or message.startswith(error_type):
            return message
        return f"{error_type}: {message}"


class RpcLockNotAcquiredError(ClientSideError):
    """Others kept changing the attributes that the RPC locks; nothing was applied, so the call may be repeated."""

    code = "rpc_lock_not_acquired"
    advice = "repeat the call"


class ProcessStillRunningError(XdbError, TimeoutError):
    """The process did not close before the deadline of the wait; it goes on running."""

    code = "process_still_running"

    def __init__(self, process_id: str, process_execution_id: str) -> None:
        self.process_id = process_id
        self.process_execution_id = process_execution_id
        super().__init__(
            f"process {process_id!r} ({process_execution_id}) is still running at the deadline; "
            "wait again, or give a longer timeout"
        )


class ProcessAbnormalExitError(XdbError):
    """The process execution closed in another way than by completing.

    Attributes:
        process_execution_id: Which execution.
        status: Its final status.
        error_type: Why, in one word, if it failed.
        error_message: Why, for people.
        details: The same, and the traceback of the last attempt if user code raised.
        results: What its closing states gave as output before, in commit order.
    """

    code = "process_abnormal_exit"

    def __init__(
        self,
        process_execution_id: str,
        status: ProcessStatus,
        error_type: ProcessErrorType | None = None,
        details: str = "",
        results: tuple[Any, ...] = (),
    ) -> None:
        self.process_execution_id = process_execution_id
        self.status = status
        self.error_type = error_type
        self.error_message = error_message_of(details)
        self.details = details
        self.results = results
        reason = f" ({error_type})" if error_type else ""
        super().__init__(
            f"process execution {process_execution_id} ended as {status}{reason}"
            + (f": {self.error_message}" if details else "")
        )


class ProcessFailed(ProcessAbnormalExitError):  # named as an outcome, beside ProcessTimeout
    """A state failed the process, its attempts were exhausted, or a client stopped it as failed."""

    code = "process_failed"


class ProcessTimeout(ProcessAbnormalExitError):  # named as an outcome
    """The process did not close within its timeout."""

    code = "process_timeout"


class ProcessTerminated(ProcessAbnormalExitError):  # named as an outcome
    """A client stopped the process, or started another under its id with TERMINATE_IF_RUNNING."""

    code = "process_terminated"


class ProcessCanceled(ProcessAbnormalExitError):  # named as an outcome
    """A client canceled the process."""

    code = "process_canceled"
