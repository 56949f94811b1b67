"""The tree of errors."""

import pickle
from collections import Counter
from datetime import UTC, datetime

import pytest

import xdb_sdk
from xdb_sdk import (
    AttemptFailure,
    ClientSideError,
    EncodeError,
    ErrorSubType,
    InvalidArgumentError,
    NotRegisteredError,
    ProcessAbnormalExitError,
    ProcessAlreadyStartedError,
    ProcessDefinitionError,
    ProcessError,
    ProcessErrorType,
    ProcessFailed,
    ProcessNotFoundError,
    ProcessStatus,
    ProcessStillRunningError,
    RecoverFrom,
    RpcExecutionError,
    ServerSideError,
    StateApi,
    UnavailableError,
    XdbError,
)
from xdb_sdk.protocol import ErrorBody

ERRORS: list[type[XdbError]] = [
    value
    for name in xdb_sdk.__all__
    if isinstance(value := getattr(xdb_sdk, name), type) and issubclass(value, XdbError)
]


def test_every_error_has_a_code_of_its_own() -> None:
    assert len(ERRORS) > 20
    assert {code: count for code, count in Counter(error.code for error in ERRORS).items() if count > 1} == {}


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (InvalidArgumentError, ValueError),
        (EncodeError, InvalidArgumentError),
        (ProcessStillRunningError, TimeoutError),
        (UnavailableError, ConnectionError),
        (NotRegisteredError, ProcessDefinitionError),
        (ProcessAlreadyStartedError, ClientSideError),
        (ProcessFailed, ProcessAbnormalExitError),
    ],
    ids=lambda error: error.__name__,
)
def test_errors_can_be_caught_by_what_they_mean(error: type[Exception], base: type[Exception]) -> None:
    assert issubclass(error, base)


def test_an_answer_of_the_server_keeps_its_facts() -> None:
    body = ErrorBody(
        error_sub_type=ErrorSubType.WORKER_EXECUTION_ERROR,
        details="boom",
        app_error_type="KeyError",
        worker_error_status=424,
    )

    error = RpcExecutionError(424, body, "RPC 'verify'")

    assert str(error) == "RPC 'verify' was answered 424 WORKER_EXECUTION_ERROR: KeyError: boom"
    assert error.error_sub_type is ErrorSubType.WORKER_EXECUTION_ERROR
    assert (error.worker_error_type, error.worker_error_status) == ("KeyError", 424)


@pytest.mark.parametrize(
    ("error_type", "details"),
    [("WORKER_TIMEOUT", "no answer"), ("UNIQUE", "UNIQUE: the name is taken"), (None, "no worker")],
)
def test_an_rpc_error_says_the_type_once(error_type: str | None, details: str) -> None:
    body = ErrorBody(error_sub_type=ErrorSubType.WORKER_TIMEOUT, details=details, app_error_type=error_type)

    assert (
        str(RpcExecutionError(424, body, "RPC 'verify'")) == f"RPC 'verify' was answered 424 WORKER_TIMEOUT: {details}"
    )


DETAILS = "no score\nfor 7\n\nTraceback (most recent call last):\n  in execute"
FAILURES = [
    RpcExecutionError(424, ErrorBody(error_sub_type=ErrorSubType.WORKER_EXECUTION_ERROR, details=DETAILS)),
    ProcessFailed("e-1", ProcessStatus.FAILED, ProcessErrorType.STATE_API, DETAILS),
    RecoverFrom(state_execution_id="S-1", api=StateApi.EXECUTE, details=DETAILS),
    AttemptFailure(
        api=StateApi.EXECUTE,
        http_status=424,
        error_type="E",
        details=DETAILS,
        attempt=1,
        failed_at=datetime(2023, 1, 1, tzinfo=UTC),
    ),
    ProcessError(
        error_type=ProcessErrorType.STATE_API,
        details=DETAILS,
        state_execution_id=None,
        api=None,
        worker_error_type=None,
    ),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_every_failure_has_its_message_apart_from_the_traceback(
    failure: RpcExecutionError | ProcessFailed | RecoverFrom | AttemptFailure | ProcessError,
) -> None:
    assert (failure.error_message, failure.details) == ("no score\nfor 7", DETAILS)


@pytest.mark.parametrize("error", FAILURES[:2], ids=lambda failure: type(failure).__name__)
def test_the_text_of_an_error_leaves_the_workers_traceback_out(error: Exception) -> None:
    assert str(error).endswith("no score\nfor 7")


def test_an_answer_with_advice_says_what_to_try() -> None:
    error = ProcessNotFoundError(404, ErrorBody(error_sub_type=ErrorSubType.PROCESS_NOT_FOUND))

    assert "check the process id" in str(error)


def test_advice_follows_a_sentence_without_its_full_stop() -> None:
    body = ErrorBody(error_sub_type=ErrorSubType.PROCESS_NOT_FOUND, details="there is no process 'p'.")

    assert "there is no process 'p'; check the process id" in str(ProcessNotFoundError(404, body))


@pytest.mark.parametrize("error_type", [ClientSideError, RpcExecutionError])
def test_a_database_error_names_its_table_once(error_type: type[ClientSideError]) -> None:
    def told(details: str) -> str:
        sub_type = ErrorSubType.APP_DATABASE_WRITE_ERROR
        return str(error_type(424, ErrorBody(error_sub_type=sub_type, details=details, app_database_table="loan")))

    assert told("TYPE: column 'n' takes integers").endswith("takes integers (table 'loan')")
    assert told("OTHER: no table 'loan'").endswith("OTHER: no table 'loan'")


def test_an_abnormal_exit_says_why() -> None:
    error = ProcessFailed("e-1", ProcessStatus.FAILED, ProcessErrorType.STATE_API, "card declined", ("x",))

    assert str(error) == "process execution e-1 ended as FAILED (STATE_API): card declined"
    assert error.results == ("x",)


@pytest.mark.parametrize(
    "error",
    [
        EncodeError("input", ".a", "no"),
        ProcessDefinitionError("a", "b"),
        ProcessStillRunningError("p", "e"),
        ServerSideError(500, ErrorBody(error_sub_type=ErrorSubType.INTERNAL)),
        ProcessFailed("e-1", ProcessStatus.FAILED),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_boundaries(error: XdbError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
