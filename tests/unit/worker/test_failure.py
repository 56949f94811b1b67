"""What becomes of an exception on its way to the server."""

import asyncio
import sqlite3
from collections.abc import Callable

import pytest
from pydantic import BaseModel

from xdb_sdk import NonRetryableError
from xdb_sdk.protocol import WorkerErrorBody
from xdb_sdk.worker._failure import MAX_DETAIL_BYTES, user_failure


class NeedsArguments(Exception):
    def __init__(self, *, order_id: int, reason: str) -> None:
        super().__init__(f"order {order_id}: {reason}")


class BrokenText(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class CardExpired(NonRetryableError):
    pass


class Form(BaseModel):
    age: int


def raise_(error: BaseException) -> None:
    raise error


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def failure_of(raising: Callable[[], object]) -> WorkerErrorBody:
    try:
        raising()
    except BaseException as error:
        body = user_failure(error).body
        assert isinstance(body, WorkerErrorBody)
        return body
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        sqlite3.OperationalError("database is locked"),
        asyncio.CancelledError(),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        MemoryError(),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        NeedsArguments(order_id=4, reason="no stock"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_exception_is_described_by_its_type_message_and_place(error: BaseException) -> None:
    body = failure_of(lambda: raise_(error))

    assert body.error_type == type(error).__name__
    assert body.detail.startswith(str(error) or type(error).__name__)
    assert "in raise_" in body.detail
    assert body.retryable


def test_validation_error_of_a_model_is_described() -> None:
    body = failure_of(lambda: Form.model_validate({"age": "old"}))

    assert body.error_type == "ValidationError"
    assert "age" in body.detail


def test_non_retryable_error_and_its_children_end_the_attempts() -> None:
    body = failure_of(lambda: raise_(CardExpired("expired")))

    assert (body.error_type, body.retryable) == ("CardExpired", False)


def test_stop_iteration_keeps_its_name_when_a_coroutine_has_wrapped_it() -> None:
    async def handler() -> None:
        raise StopIteration

    assert failure_of(lambda: asyncio.run(handler())).error_type == "StopIteration"


def test_runtime_error_about_a_stop_iteration_keeps_its_own_name() -> None:
    def act() -> None:
        try:
            next(iter(()))
        except StopIteration as error:
            raise RuntimeError("nothing left") from error

    assert failure_of(act).error_type == "RuntimeError"


def test_exception_whose_text_cannot_be_made_is_still_a_failure() -> None:
    body = failure_of(lambda: raise_(BrokenText()))

    assert body.error_type == "BrokenText"
    assert "its __str__ raised" in body.detail


def test_characters_that_databases_refuse_are_replaced() -> None:
    body = failure_of(lambda: raise_(ValueError("a\x00b\ud800c")))

    assert body.detail.startswith("a\ufffdb\ufffdc")
    assert b"\\u0000" not in body.to_json()


@pytest.mark.parametrize("prefix", ["", "x", "xx", "xxx"])
def test_long_message_is_cut_on_a_character_boundary(prefix: str) -> None:
    body = failure_of(lambda: raise_(ValueError(prefix + "\N{SNOWMAN}" * 3000)))

    assert MAX_DETAIL_BYTES - 3 < len(body.detail.encode()) <= MAX_DETAIL_BYTES
    assert set(body.detail.removeprefix(prefix)) == {"\N{SNOWMAN}"}


def test_long_traceback_keeps_the_message_and_its_end() -> None:
    def deep(depth: int) -> None:
        if depth <= 0:
            raise ValueError("at the bottom")
        (deep_again if depth % 2 else deep)(depth - 1)

    def deep_again(depth: int) -> None:
        deep(depth - 1)

    body = failure_of(lambda: deep(60))

    assert len(body.detail.encode()) <= MAX_DETAIL_BYTES
    assert body.detail.startswith("at the bottom\n\n")
    assert body.detail.endswith("ValueError: at the bottom")


def test_endless_recursion_is_a_failure_like_others() -> None:
    assert failure_of(recurse).error_type == "RecursionError"
