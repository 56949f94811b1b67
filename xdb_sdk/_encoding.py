"""The encoder between Python values and JSON, directed by the declared type, the same at every boundary."""

import base64
import binascii
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, SchemaValidator, from_json, to_json, to_jsonable_python

from xdb_sdk._encoding_types import (
    MAX_DEPTH,
    TOO_DEEP,
    ColumnForm,
    TypeCodec,
    UnsupportedTypeError,
    codec_of,
    type_name,
)
from xdb_sdk._errors import DecodeError, EncodeError, InvalidArgumentError
from xdb_sdk.protocol import ColumnValue, Json

_UNEXPECTED = re.compile(r"Expected `(.+?)`.*?(?:field_name='(\w+)'|input_type)", re.DOTALL)
_MAX_INTEGER_BITS = 13_288  # 4000 digits; JSON parsers refuse to read more than 4300
_LENIENT: Mapping[str | None, SchemaValidator] = {
    "bool": SchemaValidator({"type": "bool"}),
    "int": SchemaValidator({"type": "int"}),
    "float": SchemaValidator({"type": "float"}),
}
"""How bare columns of these kinds are read, because a column's type may give them back as another scalar."""
_TO_URL_SAFE = str.maketrans("+/", "-_")


class ObjectEncoder:
    """Encode values by their declared type to plain JSON, and decode them again.

    Writing is strict: a value must be of its type (an int will do for a float, a bool will not do for an int), and what
    would not come back the same is refused. Reading is tolerant of types that have changed since: unknown fields are
    ignored and absent ones take their default; a renamed field is read by its alias. It does not guess between scalars:
    true is no int, "1" no number, 1 no text. Fields of a pydantic model are read as the model is configured.

    Derive from it to treat some types in another way, and give the instance to the `Registry` of
    client and workers. Override `encode` and `decode` together: the column methods call them. It is safe to
    share between threads.

    Source: semantics 7.2.
    """

    def encode(self, value: Any, type_hint: Any, where: str) -> Json:
        """Write a value as JSON.

        Args:
            value: A value of the declared type. In `Any` or `object`: plain JSON, or a pydantic model, which comes
                back as a dict.
            type_hint: The declared type, with string annotations resolved; None stands for `type(None)`.
            where: What the value is for, to begin an error message with: "input of state 'verify'".

        Returns:
            None, bool, int, float, str, list or dict with string keys; numbers finite, texts valid UTF-8 without NUL.

        Raises:
            EncodeError: The value is not of its type or cannot be stored; names `where` and the path inside the value.
        """
        try:
            codec = codec_of(type_hint)
        except UnsupportedTypeError as error:
            raise EncodeError(where, "", str(error)) from error

        data = _written(codec, value, where)
        _check_storable(data, (), where)
        if codec.may_lose:
            try:
                read = self.decode(data, type_hint, where)
            except DecodeError as error:
                raise EncodeError(where, error.path, f"could not be read back: {error.problem}") from error
            _check_comes_back(value, read, (), where)
        return data

    def encode_undeclared(self, value: Any, where: str) -> Json:
        """Write a value whose type nobody has declared, by the types it has: outputs, state locals, recorded events.

        Whoever reads it says the type. Lists, tuples, sets and dicts with text keys are gone into.

        Raises:
            EncodeError: As from `encode`.
        """
        return self._encode_by_its_types(value, (), where)

    def _encode_by_its_types(self, value: Any, path: tuple[str | int, ...], where: str) -> Json:
        kind = type(value)
        if kind not in (list, tuple, set, frozenset, dict):
            by = Any if value is None or kind in (bool, int, float, str) else kind
            return self.encode(value, by, f"{where}: {_path(path)}" if path else where)
        if len(path) >= MAX_DEPTH:
            raise EncodeError(where, _path(path[:3]), TOO_DEEP)
        if kind is not dict:
            return [self._encode_by_its_types(child, (*path, index), where) for index, child in enumerate(value)]
        for key in value:
            if type(key) is not str:
                raise EncodeError(where, _path(path), f"the key {key!r} of a dict is no text; declare or convert it")
        _check_storable(dict.fromkeys(value), path, where)
        return {key: self._encode_by_its_types(child, (*path, key), where) for key, child in value.items()}

    def decode(self, data: Json, type_hint: Any, where: str) -> Any:
        """Read a value that `encode` wrote, perhaps for an earlier version of its type.

        Args:
            data: What a JSON parser gave.
            type_hint: The declared type, as for `encode`.
            where: What the value is for, to begin an error message with.

        Raises:
            DecodeError: The data does not fit the type; names `where` and the path. Decoding again after the type has
                been mended will do.
        """
        try:
            return codec_of(type_hint).reader.validate_json(to_json(data), by_alias=True, by_name=True)
        except UnsupportedTypeError as error:
            raise DecodeError(where, "", str(error)) from error
        except ValidationError as error:
            raise DecodeError(where, *_first_problem(error, data)) from error
        except PydanticSerializationError as error:
            raise DecodeError(where, "", f"the data is not valid JSON: {error}") from error

    def encode_column(self, value: Any, type_hint: Any, where: str) -> ColumnValue:
        """Write a value for a column of a user's table.

        Returns:
            None for None. For a type whose values are all of one scalar kind, the bare truth value, number or string;
            for bytes `{"$bytes": "<base64>"}`; for every other type the document `{"$json": <as encode writes it>}`.

        Raises:
            EncodeError: As from `encode`.
        """
        data = self.encode(value, type_hint, where)
        if data is None:
            return None
        match codec_of(type_hint).column_form:
            case ColumnForm.SCALAR:
                return data
            case ColumnForm.BYTES:
                return {"$bytes": base64.b64encode(base64.urlsafe_b64decode(data)).decode()}
            case ColumnForm.DOCUMENT:
                return {"$json": data}

    def decode_column(self, data: ColumnValue, type_hint: Any, where: str) -> Any:
        """Read a column of a user's table, in whatever form the column's own type gives the value back.

        SQL NULL is None, whatever the type. A document may come as JSON, as text, or as text in bytes; a truth value as
        0 or 1; a number for a Decimal or float as a number or text; a timedelta as ISO 8601 or whole microseconds;
        a UUID as text or its 16 bytes.

        Raises:
            DecodeError: The data does not fit the type; names `where` and the path.
        """
        if data is None:
            return None
        try:
            codec = codec_of(type_hint)
            form = _from_document(data) if codec.column_form is ColumnForm.DOCUMENT else _from_scalar(data, codec)
        except UnsupportedTypeError as error:
            raise DecodeError(where, "", str(error)) from error
        except (ValueError, OverflowError) as error:
            raise DecodeError(where, "", f"the column's value cannot be read: {error}") from error
        return self.decode(form, type_hint, where)

    def check_type_hint(self, type_hint: Any, where: str) -> None:
        """Check at definition time that values of a type can be written and read back.

        Raises:
            InvalidArgumentError: They cannot; says what in the type is wrong and what to declare instead.
        """
        _checked_codec(type_hint, where)

    def check_key_type_hint(self, type_hint: Any, where: str) -> None:
        """Check at definition time that values of a type can be the primary key of a row.

        Raises:
            InvalidArgumentError: They cannot be stored, or not in a column that finds a row by them.
        """
        codec = _checked_codec(type_hint, where)
        if codec.column_form is ColumnForm.DOCUMENT or codec.scalar_kind in ("bool", "float"):
            raise InvalidArgumentError(
                f"{where}: {type_name(type_hint)} cannot be a key: declare int, str, bytes, UUID, Decimal, an enum of "
                "texts or whole numbers, or a date or time"
            )


DEFAULT_ENCODER = ObjectEncoder()
"""The encoder that clients and workers use unless they are given another."""


def _checked_codec(type_hint: Any, where: str) -> TypeCodec:
    try:
        return codec_of(type_hint)
    except UnsupportedTypeError as error:
        raise InvalidArgumentError(f"{where}: {error}") from error


def _written(codec: TypeCodec, value: Any, where: str) -> Json:
    try:
        codec.checker.validate_python(value, strict=True)
        return codec.serializer.to_python(value, mode="json", by_alias=True, warnings="error")
    except ValidationError as error:
        raise EncodeError(where, *_first_problem(error, value)) from error
    except (ValueError, TypeError, RecursionError) as error:  # pydantic's own errors are of the first kind
        raise EncodeError(where, *_unwritable(error, value)) from error


def _unwritable(error: Exception, value: Any) -> tuple[str, str]:
    """Find path and reason of a failed serialization, whose text has no path and may quote the user's value."""
    text = str(error)
    if isinstance(error, RecursionError) or "Circular reference" in text:
        return "", TOO_DEEP
    part = _unwritable_part(value) or ()
    unexpected = _UNEXPECTED.search(text)
    if unexpected is not None:
        expected, field = unexpected.groups()
        path = _path((*part, field) if field else part)
        return path, f"the value is not of the declared type {expected}; a model was changed without validation"

    path = _path(part)
    if isinstance(error, UnicodeDecodeError) or "invalid utf-8" in text:
        return path, (
            "bytes that are not UTF-8 text cannot be stored in this model; "
            "set ser_json_bytes and val_json_bytes to 'base64' in its model_config"
        )
    return path, f"cannot be written as JSON: {error}"


def _unwritable_part(value: Any, depth: int = 0) -> tuple[str | int, ...] | None:
    """Find the innermost part of a value that cannot be written by itself."""
    if depth < MAX_DEPTH:
        for label, child in _children(value):
            part = _unwritable_part(child, depth + 1)
            if part is not None:
                return (label, *part)
    try:
        if isinstance(value, BaseModel):
            value.model_dump(mode="json", warnings="error")
        else:
            to_jsonable_python(value)
    except (ValueError, TypeError, RecursionError):
        return ()
    return None


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    """Yield the labelled parts of a container; nothing for a plain value. Sets have no labels."""
    if isinstance(value, BaseModel):
        excluded = {name for name, field in type(value).model_fields.items() if field.exclude}
        yield from ((name, child) for name, child in value if name not in excluded)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, tuple) and (as_dict := getattr(value, "_asdict", None)):
        yield from as_dict().items()
    elif isinstance(value, Mapping):
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from enumerate(value)


def _check_storable(data: Json, path: tuple[str | int, ...], where: str) -> None:
    """Refuse what JSON or a database cannot hold: NaN and infinity, NUL and lone surrogates, bottomless nesting."""
    kind = type(data)
    if kind is str:
        problem = _text_problem(data)
        if problem is not None:
            raise EncodeError(where, _path(path), problem)
    elif kind is float:
        if not math.isfinite(data):
            name = "NaN" if math.isnan(data) else "an infinite number"
            raise EncodeError(where, _path(path), f"{name} cannot be stored; use None or a Decimal")
    elif kind is dict or kind is list:
        if len(path) >= MAX_DEPTH:
            raise EncodeError(where, _path(path[:3]), TOO_DEEP)
        for label, child in data.items() if kind is dict else enumerate(data):
            problem = _key_problem(label) if isinstance(label, str) else None
            if problem is not None:
                raise EncodeError(where, _path((*path, label)), f"in a key: {problem}")
            _check_storable(child, (*path, label), where)
    elif kind is int:
        if data.bit_length() > _MAX_INTEGER_BITS:
            raise EncodeError(where, _path(path), "an integer of more than 4000 digits cannot be stored; use bytes")
    elif data is not None and kind is not bool:
        raise EncodeError(where, _path(path), f"a serializer gave {kind.__name__}, which is not JSON")


def _key_problem(key: str) -> str | None:
    if "\ufffd" in key:  # pydantic puts it for a surrogate, in keys only
        return "a lone surrogate or the replacement character U+FFFD cannot be stored; repair the text"
    return _text_problem(key)


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "the character NUL (U+0000) cannot be stored; remove it, or use bytes"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "a lone surrogate is not text and cannot be stored; repair the text, or use bytes"
    return None


def _check_comes_back(value: Any, read: Any, path: tuple[str | int, ...], where: str) -> None:
    """Refuse a value that would be read back as another member of a union, or as a parent class without its fields."""
    is_same_kind = type(value) is type(read) or (type(value) is int and type(read) is float)
    if not is_same_kind:
        raise EncodeError(
            where,
            _path(path),
            f"{type(value).__name__} would be read back as {type(read).__name__}; "
            f"declare {type(value).__name__}, or tell the members of the union apart by a discriminator",
        )
    if isinstance(value, set | frozenset) and isinstance(read, set | frozenset):
        if {type(item) for item in value} != {type(item) for item in read}:
            raise EncodeError(where, _path(path), "items would be read back as another type; declare one type of item")
        return
    parts = dict(_children(read))
    for label, child in _children(value):
        _check_comes_back(child, parts.get(label), (*path, label), where)


def _from_document(data: ColumnValue) -> Json:
    """Take the JSON out of a column of JSON, text or bytes."""
    if isinstance(data, str):
        return from_json(data, allow_inf_nan=False)
    if isinstance(data, dict) and data.keys() == {"$bytes"}:
        return from_json(base64.b64decode(data["$bytes"], validate=True), allow_inf_nan=False)
    return _untagged(data)


def _from_scalar(data: ColumnValue, codec: TypeCodec) -> Json:
    """Bring what a database gave for a scalar into the form that `encode` writes."""
    kind = codec.scalar_kind
    if isinstance(data, dict) and data.keys() == {"$bytes"}:
        encoded: str = data["$bytes"]
        if kind == "bytes":
            return encoded.translate(_TO_URL_SAFE)
        raw = base64.b64decode(encoded, validate=True)
        return str(UUID(bytes=raw)) if kind == "uuid" and len(raw) == 16 else raw.decode()
    scalar = _untagged(data)
    if kind == "bytes":
        raise binascii.Error("binary data was expected")
    if kind == "timedelta" and type(scalar) is int:
        return to_jsonable_python(timedelta(microseconds=scalar))
    if kind in _LENIENT:
        with suppress(ValidationError):  # then decoding says what is wrong
            lenient: Json = _LENIENT[kind].validate_python(scalar)
            return lenient
    return scalar


def _untagged(data: ColumnValue) -> Json:
    return data["$json"] if isinstance(data, dict) and data.keys() == {"$json"} else data


def _first_problem(error: ValidationError, value: Any) -> tuple[str, str]:
    """Take path and reason of the first of a validation's errors; the user's values stay out of it."""
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    reason = first["msg"]
    if first["type"].endswith("_type") or first["type"] == "is_instance_of":
        reason += f", not {type(first['input']).__name__}"
    if error.error_count() > 1:
        reason += f" (and {error.error_count() - 1} more)"
    return _path((*_located(first["loc"], value, first["type"] == "missing"), *context.get("path", ()))), reason


def _located(location: tuple[str | int, ...], value: Any, is_missing: bool) -> Iterator[str | int]:
    """Keep the labels of a location that lead into the value: pydantic also names the members of unions."""
    for position, label in enumerate(location):
        if is_missing and position == len(location) - 1:
            yield label
        for index, (name, child) in enumerate(_children(value)):
            # Fields of a named tuple are located by name or by index, which depends on the version of pydantic.
            if str(name) == str(label) or (index == label and isinstance(value, tuple)):
                yield name if isinstance(value, tuple) else label
                value = child
                break


def _path(labels: Sequence[str | int]) -> str:
    """Write labels as Python would: `items[3].price`, and `['a key']` for what is no name."""
    parts = (f".{label}" if isinstance(label, str) and label.isidentifier() else f"[{label!r}]" for label in labels)
    return "".join(parts).removeprefix(".")
