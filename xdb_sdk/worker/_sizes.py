"""Refuses answers that are too large, naming the value that is: nothing is ever cut (acceptance 225)."""

from collections.abc import Iterator
from http import HTTPStatus

from pydantic_core import to_json

from xdb_sdk.protocol import ExecuteAnswer, Json, RpcAnswer, StateDecisionBody, WaitUntilAnswer
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
        raise _too_large("the answer", len(encoded), options.max_answer_bytes, "max_answer_bytes")
    for where, value in _values_of(answer):
        size_bytes = len(to_json(value))
        if size_bytes > options.max_value_bytes:
            raise _too_large(where, size_bytes, options.max_value_bytes, "max_value_bytes")
    return encoded


def _values_of(answer: WorkerAnswer) -> Iterator[tuple[str, Json]]:
    for message in answer.publish:
        yield f"the message to queue {message.queue_name!r}", message.payload
    for table in answer.write_tables:
        for column, value in table.columns.items():
            yield f"column {column!r} of table {table.table_name!r}", value
    for name, value in answer.write_local_attributes.items():
        yield f"data attribute {name!r}", value
    for event in answer.recorded_events:
        yield f"the recorded event {event.name!r}", event.data
    if isinstance(answer, WaitUntilAnswer):
        for name, value in answer.state_locals.items():
            yield f"state execution local {name!r}", value
        return
    if isinstance(answer, RpcAnswer):
        yield "the output", answer.output
    yield from _values_of_decision(answer.state_decision)


def _values_of_decision(decision: StateDecisionBody) -> Iterator[tuple[str, Json]]:
    movements = decision.next_states
    for close in (decision.thread_close_decision, decision.conditional_close):
        if close is not None:
            yield "the output of the closing decision", close.close_output
    if decision.conditional_close is not None:
        movements += decision.conditional_close.next_states
    for movement in movements:
        yield f"the input of next state {movement.state_id!r}", movement.input


def _too_large(what: str, size_bytes: int, limit_bytes: int, option: str) -> WorkerCallError:
    detail = (
        f"{what} is {size_bytes} bytes of JSON, more than the {limit_bytes} of WorkerOptions.{option}; "
        "keep large data in your own storage and pass a reference"
    )
    return refusal(HTTPStatus.FAILED_DEPENDENCY, "AnswerTooLarge", detail)
