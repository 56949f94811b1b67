"""Log lines of the command line: one event, its facts, one line."""

import logging
import sys

import pytest

from server_stub.cli._logging import FactFormatter


def record(message: str, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("server_stub.api", logging.INFO, __file__, 1, message, (), None)
    made.created, made.msecs = 1_700_000_000.5, 500
    vars(made).update(facts)
    return made


def test_line_has_the_time_in_utc_the_event_and_its_facts() -> None:
    line = FactFormatter().format(record("request", operation="start", status=200))

    assert line == "2023-11-14T22:13:20.500Z INFO server_stub.api: request operation=start status=200"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("p 1", '"p 1"'),
        ("a\nINFO forged", '"a\\nINFO forged"'),
        ('"', '"\\""'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ("é", "é"),
    ],
    ids=repr,
)
def test_value_that_could_be_mistaken_is_quoted(value: str, shown: str) -> None:
    assert FactFormatter().format(record("request", process_id=value)).endswith(f" process_id={shown}")


def test_traceback_follows_the_line() -> None:
    made = record("operation failed")
    try:
        raise LookupError("gone")
    except LookupError:
        made.exc_info = sys.exc_info()

    lines = FactFormatter().format(made).splitlines()

    assert lines[0].endswith("operation failed")
    assert lines[-1] == "LookupError: gone"
