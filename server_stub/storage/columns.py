"""Columns of user tables by family, and what the wire says of their values (semantics 7.2), for every database.

A database's module finds the family of a reflected column, and converts between the Python values of this module and
what its driver binds.
"""

import base64
import math
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Final, TypeAlias
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from server_stub.core.model import json_text
from xdb_sdk.protocol import ColumnValue

BYTES_TAG: Final = "$bytes"
JSON_TAG: Final = "$json"
_INT64: Final = range(-(2**63), 2**63)
_DURATION: Final = TypeAdapter(timedelta)


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
    UUID = "UUID"
    JSON = "JSON"
    ANY = "ANY"
    """No declared type: any value is kept as it is."""


@dataclass(frozen=True, slots=True)
class UserColumn:
    """A reflected column. `max_length` counts characters of text and bytes of binary data, None for no limit."""

    name: str
    family: ColumnFamily
    declared_type: str
    max_length: int | None = None
    scale: int | None = None
    """Digits after the point of a NUMERIC, None when it was declared without."""


@dataclass(frozen=True, slots=True)
class JsonText:
    """A document as text, for a column of the JSON family."""

    text: str


PythonValue: TypeAlias = bool | int | float | str | bytes | Decimal | datetime | date | time | UUID | JsonText


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
    content = _untag(column, value)
    if isinstance(content, str):
        return content
    raise _refuse(column, value)


def _check_int64(column: UserColumn, value: int) -> int:
    if value not in _INT64:
        raise ColumnValueRefused("TYPE", f"column {column.name!r} takes integers of 64 bit, the value is longer")
    return value


def _integer(column: UserColumn, value: ColumnValue) -> PythonValue:
    """An integer; a truth value as 0 or 1; a timedelta, which is an ISO 8601 duration on the wire, as microseconds."""
    if isinstance(value, int):
        return _check_int64(column, int(value))
    if isinstance(value, str) and value.lstrip("+-").startswith("P"):
        try:
            return _check_int64(column, _DURATION.validate_python(value) // timedelta(microseconds=1))
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
    return number


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
    return _decimal(column, value)


def _blob(column: UserColumn, value: ColumnValue) -> PythonValue:
    """Binary data, or a document as JSON text in UTF-8."""
    content = _untag(column, value)
    if isinstance(content, bytes):
        return content
    if isinstance(value, dict) and isinstance(content, str):
        return content.encode()
    raise _refuse(column, value)


def _datetime(column: UserColumn, value: ColumnValue) -> PythonValue:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError as error:
            raise _refuse(column, value) from error
    raise _refuse(column, value)


def _date(column: UserColumn, value: ColumnValue) -> PythonValue:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError as error:
            raise _refuse(column, value) from error
    raise _refuse(column, value)


def _time(column: UserColumn, value: ColumnValue) -> PythonValue:
    if isinstance(value, str):
        try:
            return time.fromisoformat(value)
        except ValueError as error:
            raise _refuse(column, value) from error
    raise _refuse(column, value)


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
        return _check_int64(column, content)
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
    ColumnFamily.UUID: _uuid,
    ColumnFamily.JSON: _json,
    ColumnFamily.ANY: _any,
}
