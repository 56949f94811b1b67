"""Rules of the encoder that hold for all values, checked on generated ones."""

import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from types import GenericAlias
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from xdb_sdk._encoding import DEFAULT_ENCODER
from xdb_sdk._encoding_types import codec_of
from xdb_sdk._errors import DecodeError, EncodeError


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    name: str
    price: Decimal | None
    colors: frozenset[Color]


@dataclass(frozen=True)
class Line:
    item: Item | None
    content: bytes
    counts: dict[int, timedelta]


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
KEY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufffd"))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
TIMEDELTAS = st.timedeltas()
ITEMS = st.builds(Item, name=TEXT, price=st.none() | DECIMALS, colors=st.frozensets(st.sampled_from(Color)))
LINES = st.builds(
    Line, item=st.none() | ITEMS, content=st.binary(), counts=st.dictionaries(st.integers(), TIMEDELTAS, max_size=3)
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=10,
)

SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (None, st.none()),
    (bool, st.booleans()),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, TEXT),
    (bytes, st.binary()),
    (Decimal, DECIMALS),
    (UUID, st.uuids()),
    (date, st.dates()),
    (time, st.times()),
    (datetime, st.datetimes()),
    (datetime, st.datetimes(timezones=st.just(UTC))),
    (timedelta, TIMEDELTAS),
    (Color, st.sampled_from(Color)),
]
HASHABLE_KEYS = [(hint, values) for hint, values in SCALARS if hint not in (None, float, str)] + [(str, KEY)]


LIST: Any = list
TUPLE: Any = tuple
DICT: Any = dict
TypedValues = tuple[Any, st.SearchStrategy[Any]]


def _containers(inner: st.SearchStrategy[TypedValues]) -> st.SearchStrategy[TypedValues]:
    keys = st.sampled_from(HASHABLE_KEYS)
    return st.one_of(
        inner.map(lambda pair: (LIST[pair[0]], st.lists(pair[1], max_size=3))),
        inner.map(lambda pair: (pair[0] | None, st.none() | pair[1])),
        inner.map(lambda pair: (TUPLE[pair[0], ...], st.lists(pair[1], max_size=3).map(tuple))),
        st.tuples(keys, inner).map(
            lambda pair: (DICT[pair[0][0], pair[1][0]], st.dictionaries(pair[0][1], pair[1][1], max_size=3))
        ),
    )


LEAVES = st.sampled_from([*SCALARS, (Item, ITEMS), (Line, LINES), (Any, PLAIN)])
TYPES = st.recursive(LEAVES.filter(lambda pair: pair[0] is not None), _containers, max_leaves=3)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw a type and a value of it."""
    type_hint, values = draw(TYPES)
    return type_hint, draw(values)


@given(typed_values())
def test_value_survives_strict_json(typed_value: tuple[Any, Any]) -> None:
    type_hint, value = typed_value

    data = DEFAULT_ENCODER.encode(value, type_hint, "input")
    text = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    back = DEFAULT_ENCODER.decode(json.loads(text), type_hint, "input")

    assert b"\\u0000" not in text.replace(b"\\\\", b"")
    assert json.loads(text) == data
    assert back == value


@given(typed_values())
def test_column_value_survives_and_is_tagged(typed_value: tuple[Any, Any]) -> None:
    type_hint, value = typed_value

    data = DEFAULT_ENCODER.encode_column(value, type_hint, "attribute")

    assert not isinstance(data, list)
    assert not isinstance(data, dict) or data.keys() in ({"$json"}, {"$bytes"})
    assert DEFAULT_ENCODER.decode_column(data, type_hint, "attribute") == value


@given(typed_values())
def test_document_is_read_back_from_text(typed_value: tuple[Any, Any]) -> None:
    type_hint, value = typed_value

    data = DEFAULT_ENCODER.encode_column(value, type_hint, "attribute")
    if not isinstance(data, dict) or "$json" not in data:
        return

    assert DEFAULT_ENCODER.decode_column(json.dumps(data["$json"]), type_hint, "attribute") == value


@pytest.mark.parametrize(("type_hint", "values"), SCALARS, ids=lambda part: str(part)[:30])
@given(data=st.data())
def test_scalar_comes_back_from_its_bare_column(
    type_hint: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)

    column = DEFAULT_ENCODER.encode_column(value, type_hint, "attribute")

    assert isinstance(column, dict) == (type_hint is bytes)
    assert DEFAULT_ENCODER.decode_column(column, type_hint, "attribute") == value


KINDS = {bool: st.booleans(), int: st.integers(), float: st.floats(allow_nan=False, allow_infinity=False), str: TEXT}
AROUND: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda hint: hint, lambda data: data),
    (lambda hint: hint | None, lambda data: data),
    (lambda hint: GenericAlias(list, (hint,)), lambda data: [data]),
    (lambda hint: GenericAlias(dict, (str, hint)), lambda data: {"a": data}),
    (lambda hint: GenericAlias(tuple, (str, hint)), lambda data: ["a", data]),
]


@given(st.sampled_from(list(KINDS)), st.sampled_from(list(KINDS)), st.sampled_from(AROUND), st.data())
def test_a_scalar_is_read_only_from_its_own_kind(
    declared: Any, written: Any, around: tuple[Callable[[Any], Any], Callable[[Any], Any]], data: st.DataObject
) -> None:
    type_around, data_around = around
    value = data_around(data.draw(KINDS[written]))
    is_readable = declared is written or (declared, written) == (float, int)

    with nullcontext() if is_readable else pytest.raises(DecodeError, match="output"):
        DEFAULT_ENCODER.decode(value, type_around(declared), "output")


@pytest.mark.parametrize(
    ("declared", "data"),
    [(int, "1"), (int, 1.0), (float, "1.5"), (bool, 1), (bool, 0), (bool, "true"), (str, 1), (int | str, True)],
    ids=repr,
)
def test_a_scalar_that_looks_like_another_is_not_taken_for_it(declared: Any, data: Any) -> None:
    with pytest.raises(DecodeError, match="output"):
        DEFAULT_ENCODER.decode(data, declared, "output")


@given(st.timedeltas(min_value=timedelta(days=-100_000), max_value=timedelta(days=100_000)))
def test_timedelta_is_read_from_microseconds(value: timedelta) -> None:
    microseconds = value // timedelta(microseconds=1)

    assert DEFAULT_ENCODER.decode_column(microseconds, timedelta, "attribute") == value


@given(PLAIN, st.sampled_from(["a\0", "\ud800", float("nan"), float("inf"), object(), b"", (1,), {1: 2}]))
def test_bad_part_is_refused_wherever_it_is(value: Any, bad: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        DEFAULT_ENCODER.encode({"good": value, "list": [value, {"bad": bad}]}, Any, "input")

    assert caught.value.path == "list[1].bad"


@given(PLAIN, TYPES)
def test_any_value_is_written_or_refused_by_name(value: Any, typed: tuple[Any, Any]) -> None:
    with suppress(EncodeError):
        json.dumps(DEFAULT_ENCODER.encode(value, typed[0], "input"), allow_nan=False)


@given(PLAIN, TYPES)
def test_any_data_is_read_or_refused_by_name(data: Any, typed: tuple[Any, Any]) -> None:
    with suppress(DecodeError):
        value = DEFAULT_ENCODER.decode(data, typed[0], "input")
        codec_of(typed[0]).checker.validate_python(value, strict=True)
