"""JSON that parsers let pass and databases do not take is found before it is kept."""

import pytest

from server_stub.core.json_text import find_json_problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(rb'{"a": "x\u0000y"}', "NUL", id="NUL in a text"),
        pytest.param(rb'{"x\u0000": 1}', "NUL", id="NUL in a key"),
        pytest.param(rb'{"a": "\\\u0000"}', "NUL", id="NUL after an escaped backslash"),
        pytest.param(b'{"a": NaN}', "NaN", id="NaN"),
        pytest.param(b'{"a": [-Infinity]}', "-Infinity", id="-Infinity"),
        pytest.param(b'{"a": 1e999}', "64-bit", id="huge exponent"),
        pytest.param(b'{"a": -1.5E+0400}', "64-bit", id="huge exponent with a sign and a zero"),
        pytest.param(b'{"a": ' + b"9" * 400 + b".5}", "64-bit", id="huge by its digits"),
        pytest.param(b'{"a": ' + b"9" * 250 + b"e60}", "64-bit", id="huge by digits and exponent together"),
        pytest.param(b"[" * 6 + b"]" * 6, "deeper than 5", id="nested too deep"),
        pytest.param(b'{"a":' * 6 + b"1" + b"}" * 6, "deeper than 5", id="objects nested too deep"),
    ],
)
def test_problem_is_found(text: bytes, problem: str) -> None:
    assert problem in (find_json_problem(text, max_depth=5) or "")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(rb'{"a": "\\u0000"}', id="a backslash before u0000"),
        pytest.param(b'{"a": "NaN and Infinity"}', id="NaN as a text"),
        pytest.param(b'{"a": "b1e999c"}', id="a text like a number"),
        pytest.param(b'{"a": 1e308}', id="the largest exponent"),
        pytest.param(b'{"a": ' + b"9" * 400 + b"}", id="a long integer"),
        pytest.param(b"[" * 5 + b"]" * 5, id="nested as deep as may be"),
        pytest.param(b"[" + b"[[]]," * 20 + b"1]", id="wide and not deep"),
    ],
)
def test_good_json_passes(text: bytes) -> None:
    assert find_json_problem(text, max_depth=5) is None
