"""Columns of user tables by family, and what the wire says of their values (semantics 7.2), for every database.

A database's module finds the family of a reflected column, and converts between the Python values of this module and
what its driver binds.
"""

import base64
import math
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from server_stub.core.model import json_text
from xdb_sdk.protocol import ColumnValue

T = TypeVar("T")

BYTES_TAG: Final = "$bytes"
JSON_TAG: Final = "$json"
INT64: Final = range(-(2**63), 2**63)
_DURATION: Final = TypeAdapter(timedelta)
EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Decimal arithmetic that rounds nothing."""


class ColumnFamily(StrEnum):
    """What kind of values a column holds."""

    TEXT = "TEXT"
    INTEGER = "INTEGER"
    BOOLEAN = "BOOLEAN"
    FLOAT = "FLOAT"
    NUMERIC = "NUMERIC"
    BLOB = "BLOB"
    DATETIME = "DATETIME"
    DATE = "DATE"
    TIME = "TIME"
    INTERVAL = "INTERVAL"
    UUID = "UUID"
    JSON = "JSON"
    ANY = "ANY"
    """No declared type: any value is kept as it is."""


@dataclass(frozen=True, slots=True)
class UserColumn:
    """A reflected column, and the bounds within which it gives values back as they were; None is no bound."""

    name: str
    family: ColumnFamily
    declared_type: str
    max_length: int | None = None
    """Characters of text, bytes of binary data."""
    precision: int | None = None
    """Digits of a NUMERIC, of which `scale` are after the point."""
    scale: int | None = None
    """Digits after the point of a NUMERIC, None when it was declared without."""
    integers: range = INT64
    fraction_digits: int | None = None
    """Digits of the fraction of a second that are kept."""
    is_zoned: bool | None = None
    """Whether a date and time, or a time, has a zone; None for either."""
    is_single: bool = False
    """Whether a FLOAT has 32 bits."""
    is_padded: bool = False
    """Whether blanks at the end of text are lost."""


@dataclass(frozen=True, slots=True)
class JsonText:
    """A document as text, for a column of the JSON family."""

    text: str


PythonValue: TypeAlias = (
    bool | int | float | str | bytes | Decimal | datetime | date | time | timedelta | UUID | JsonText
)


class ColumnValueRefused(ValueError):
    """A value does not fit its column. `kind` is that of `DatabaseErrorInfo`."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def _refuse(column: UserColumn, value: ColumnValue) -> ColumnValueRefused:
    """Say that a value is of the wrong type; the value itself, which is the user's, is not repeated."""
    declared = f"column {column.name!r} is {column.declared_type or 'untyped'}"
    tags = value.keys() & {JSON_TAG, BYTES_TAG} if isinstance(value, dict) else set()
    if isinstance(value, dict | list) and not tags:
        what = "object" if isinstance(value, dict) else "list"
        return ColumnValueRefused(
            "TYPE",
            f'{declared} and does not take a bare {what}: write a document as {{"$json": ...}}, '
            'and binary data as {"$bytes": "<base64>"}',
        )
    what = {JSON_TAG: "a document", BYTES_TAG: "binary data"}.get(next(iter(tags), ""), f"a {type(value).__name__}")
    return ColumnValueRefused("TYPE", f"{declared} and does not take {what} of that form")


def converted(column: UserColumn, value: ColumnValue, convert: Callable[[UserColumn, ColumnValue], T]) -> T:
    """Give what `convert` gives.

    Raises:
        ColumnValueRefused: It raises that, or cannot convert.
    """
    try:
        return convert(column, value)
    except ColumnValueRefused:
        raise
    except (ValueError, ArithmeticError) as error:
        # Whatever a conversion cannot do is the value's fault: only a refusal is counted as an attempt of its caller.
        raise ColumnValueRefused("TYPE", f"column {column.name!r} does not take the value: {error}") from error


def from_wire(column: UserColumn, value: ColumnValue) -> PythonValue | None:
    """Give the Python value that a wire value means in this column.

    Raises:
        ColumnValueRefused: It does not fit: kind TYPE or TOO_LONG.
    """
    if value is None:
        return None
    parsed = _PARSERS[column.family](column, value)
    if isinstance(parsed, str | bytes) and column.max_length is not None and len(parsed) > column.max_length:
        raise ColumnValueRefused(
            "TOO_LONG",
            f"column {column.name!r} is {column.declared_type} and the value has length {len(parsed)}",
        )
    return parsed


def bytes_to_wire(value: bytes) -> ColumnValue:
    """Tag binary data."""
    return {BYTES_TAG: base64.b64encode(value).decode()}


def interval_to_wire(value: timedelta) -> ColumnValue:
    """Write a duration as ISO 8601 does."""
    text: str = _DURATION.dump_python(value, mode="json")
    return text


def _untag(column: UserColumn, value: ColumnValue) -> ColumnValue | bytes:
    """Give the content of a tagged value: bytes, or the JSON text of a document."""
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and JSON_TAG in value:
        return json_text(value[JSON_TAG])
    if len(value) == 1 and isinstance(value.get(BYTES_TAG), str):
        try:
            return base64.b64decode(value[BYTES_TAG], validate=True)
        except ValueError as error:
            raise ColumnValueRefused("TYPE", f"column {column.name!r} was given broken base64") from error
    raise _refuse(column, value)


def _text(column: UserColumn, value: ColumnValue) -> PythonValue:
    """Text; a UUID as the 32 digits that fit into CHAR(32), as Django and SQLAlchemy store it."""
    content = _untag(column, value)
    if not isinstance(content, str):
        raise _refuse(column, value)
    if column.max_length == 32 and len(content) == 36:
        with suppress(ValueError):
            return UUID(content).hex
    if column.is_padded and content.endswith(" "):
        raise _changed(column, "does not keep blanks at the end of text")
    return content


def _changed(column: UserColumn, problem: str) -> ColumnValueRefused:
    """Say that the column would give another value back."""
    return ColumnValueRefused("TYPE", f"column {column.name!r} is {column.declared_type}, which {problem}")


def _check_integer(column: UserColumn, value: int) -> int:
    if value not in column.integers:
        is_unsigned = column.integers.start == 0
        bits = (column.integers.stop - 1).bit_length() + (0 if is_unsigned else 1)
        kind = "unsigned integers" if is_unsigned else "integers"
        raise ColumnValueRefused("TYPE", f"column {column.name!r} takes {kind} of {bits} bit, the value is outside")
    return value


def _integer(column: UserColumn, value: ColumnValue) -> PythonValue:
    """An integer; a truth value as 0 or 1; a timedelta, which is an ISO 8601 duration on the wire, as microseconds."""
    if isinstance(value, int):
        return _check_integer(column, int(value))
    if isinstance(value, str) and value.lstrip("+-").startswith("P"):
        try:
            return _check_integer(column, _DURATION.validate_python(value) // timedelta(microseconds=1))
        except ValidationError as error:
            raise _refuse(column, value) from error
    raise _refuse(column, value)


def _boolean(column: UserColumn, value: ColumnValue) -> PythonValue:
    if isinstance(value, bool):
        return value
    raise _refuse(column, value)


def _float(column: UserColumn, value: ColumnValue) -> PythonValue:
    """A float; a whole or decimal number if a float has all its digits."""
    decimal = _decimal(column, value)
    number = float(decimal)
    if Decimal(repr(number)) != decimal:
        raise _refuse(column, value)
    if column.is_single and shortest_single(number) != number:
        raise _changed(column, "keeps 6 digits; the value has more: declare the column with double precision")
    return number


def shortest_single(value: float) -> float:
    """Give the number with the fewest digits that is `value` in 32 bits: what was meant when it was stored as such.

    Raises:
        OverflowError: It is too large for 32 bits.
    """
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    candidates = (float(f"{single:.{digits}g}") for digits in range(6, 10))
    return next(number for number in candidates if struct.pack("<f", number) == struct.pack("<f", single))


def _decimal(column: UserColumn, value: ColumnValue) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _refuse(column, value)
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation as error:
        raise _refuse(column, value) from error
    if not number.is_finite():
        raise _refuse(column, value)
    return number


def _numeric(column: UserColumn, value: ColumnValue) -> PythonValue:
    number = _decimal(column, value)
    if column.precision is None or not number:
        return number
    scale = column.scale or 0
    _, digits, exponent = number.normalize(EXACT).as_tuple()
    assert isinstance(exponent, int)
    if exponent < -scale:
        raise _changed(column, f"keeps {scale} digits after the point; the value has more")
    if len(digits) + exponent > column.precision - scale:
        raise _changed(column, f"keeps {column.precision - scale} digits before the point; the value has more")
    return number


def _blob(column: UserColumn, value: ColumnValue) -> PythonValue:
    """Binary data, or a document as JSON text in UTF-8."""
    content = _untag(column, value)
    if isinstance(content, bytes):
        return content
    if isinstance(value, dict) and isinstance(content, str):
        return content.encode()
    raise _refuse(column, value)


def _datetime(column: UserColumn, value: ColumnValue) -> PythonValue:
    instant = _parsed(column, value, datetime.fromisoformat)
    _check_time(column, instant)
    return instant


def _date(column: UserColumn, value: ColumnValue) -> PythonValue:
    return _parsed(column, value, date.fromisoformat)


def _time(column: UserColumn, value: ColumnValue) -> PythonValue:
    instant = _parsed(column, value, time.fromisoformat)
    _check_time(column, instant)
    return instant


def _interval(column: UserColumn, value: ColumnValue) -> PythonValue:
    duration = _parsed(column, value, _DURATION.validate_python)
    _check_fraction(column, duration.microseconds)
    return duration


def _parsed(column: UserColumn, value: ColumnValue, parse: Callable[[str], T]) -> T:
    if not isinstance(value, str):
        raise _refuse(column, value)
    try:
        return parse(value)
    except ValueError as error:
        raise _refuse(column, value) from error


def _check_time(column: UserColumn, value: datetime | time) -> None:
    """Refuse a zone or a fraction that would be lost, and the lack of a zone that would be made up."""
    if column.is_zoned is not None and column.is_zoned != (value.tzinfo is not None):
        raise _changed(column, "takes only values with a zone" if column.is_zoned else "takes no value with a zone")
    _check_fraction(column, value.microsecond)


def _check_fraction(column: UserColumn, microseconds: int) -> None:
    if column.fraction_digits is not None and microseconds % 10 ** (6 - column.fraction_digits):
        raise _changed(column, f"keeps {column.fraction_digits} digits of a second; the value has more")


def _uuid(column: UserColumn, value: ColumnValue) -> PythonValue:
    content = _untag(column, value)
    try:
        if isinstance(content, bytes):
            return UUID(bytes=content)
        if isinstance(value, str):
            return UUID(value)
    except ValueError as error:
        raise _refuse(column, value) from error
    raise _refuse(column, value)


def _json(column: UserColumn, value: ColumnValue) -> PythonValue:
    """A document; a plain value stands for itself."""
    if not isinstance(value, dict):
        return JsonText(json_text(value))
    content = _untag(column, value)
    if isinstance(content, str):
        return JsonText(content)
    raise _refuse(column, value)


def _any(column: UserColumn, value: ColumnValue) -> PythonValue:
    content = _untag(column, value)
    if isinstance(content, bool | str | bytes):
        return content
    if isinstance(content, int):
        return _check_integer(column, content)
    if isinstance(content, float) and math.isfinite(content):
        return content
    raise _refuse(column, value)


_PARSERS: Final = {
    ColumnFamily.TEXT: _text,
    ColumnFamily.INTEGER: _integer,
    ColumnFamily.BOOLEAN: _boolean,
    ColumnFamily.FLOAT: _float,
    ColumnFamily.NUMERIC: _numeric,
    ColumnFamily.BLOB: _blob,
    ColumnFamily.DATETIME: _datetime,
    ColumnFamily.DATE: _date,
    ColumnFamily.TIME: _time,
    ColumnFamily.INTERVAL: _interval,
    ColumnFamily.UUID: _uuid,
    ColumnFamily.JSON: _json,
    ColumnFamily.ANY: _any,
}
