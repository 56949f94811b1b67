"""JSON that a parser lets pass, but a database or the next parser would not take."""

import json
import math
import re

from xdb_sdk.protocol import Json

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS = b"0" * 200


def find_json_problem(text: bytes, *, max_depth: int) -> str | None:
    """Say what is wrong with JSON that has been parsed without complaint; None if nothing is.

    Refused are the character NUL, which PostgreSQL does not store; NaN, Infinity and numbers beyond a float, which are
    no JSON once written again; and nesting deeper than `max_depth`, since a value is nested deeper on its way on.

    Cost: a few searches for bytes, milliseconds for a megabyte; a second parse only of texts that hold something
    suspicious.
    """
    if b"\\u0000" in text and _NUL.search(text):
        return "a text holds the character NUL (\\u0000)"
    if b"NaN" in text or b"Infinity" in text or _may_be_huge(text):
        try:
            json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        except ValueError as error:
            return str(error)
    if text.count(b"[") + text.count(b"{") > max_depth and _is_deeper(json.loads(text), max_depth):
        return f"the JSON is nested deeper than {max_depth} levels"
    return None


def _may_be_huge(text: bytes) -> bool:
    """Say whether a number may not fit a float (309 digits); some texts look so too, hence the second look."""
    alike = text.translate(_DIGITS_ALIKE)
    return b"0e000" in alike or b"0e+000" in alike or _MANY_DIGITS in alike


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large for a 64-bit float")
    return value


def _is_deeper(value: Json, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [child for node in level for child in _containers_in(node)]
    return bool(level)


def _containers_in(node: Json) -> list[Json]:
    children = node.values() if isinstance(node, dict) else node
    return [child for child in children if isinstance(child, (dict, list))]
