"""Refuses answers that are too large, naming the value that is: nothing is ever cut (acceptance 225)."""

from http import HTTPStatus

from xdb_sdk.protocol import ExecuteAnswer, RpcAnswer, WaitUntilAnswer, find_large_value
from xdb_sdk.worker._failure import WorkerCallError, refusal
from xdb_sdk.worker._options import WorkerOptions

WorkerAnswer = WaitUntilAnswer | ExecuteAnswer | RpcAnswer


def encode_within_limits(answer: WorkerAnswer, options: WorkerOptions) -> bytes:
    """Write an answer as JSON.

    Raises:
        WorkerCallError: 424, the answer or a value in it is too large.
    """
    encoded = answer.to_json()
    if len(encoded) <= min(options.max_value_bytes, options.max_answer_bytes):
        return encoded  # no value is larger than the whole
    if len(encoded) > options.max_answer_bytes:
        raise _too_large(f"the answer is {len(encoded)} bytes of JSON", options.max_answer_bytes, "max_answer_bytes")
    if large := find_large_value(answer, options.max_value_bytes):
        raise _too_large(large, options.max_value_bytes, "max_value_bytes")
    return encoded


def _too_large(what: str, limit_bytes: int, option: str) -> WorkerCallError:
    detail = (
        f"{what}, more than the {limit_bytes} of WorkerOptions.{option}; "
        "keep large data in your own storage and pass a reference"
    )
    return refusal(HTTPStatus.FAILED_DEPENDENCY, "AnswerTooLarge", detail)
