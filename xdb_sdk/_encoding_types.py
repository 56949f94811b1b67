"""Everything the encoder works out once per type: validators, serializer, column form, and what is wrong with a type.

pydantic generates the schema of a type. Outside pydantic's own classes, which keep their configuration, the schema is
adjusted so that nothing is lost on the way: bytes of any content, dictionary keys that are numbers, plain data in
`Any`, no unknown keys in a `TypedDict`; and so that a number is read from a number only, a truth value from its own.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import BaseModel, SecretBytes, SecretStr, TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import CoreConfig, CoreSchema, PydanticCustomError, SchemaError, SchemaSerializer, SchemaValidator

MAX_DEPTH = 128
"""Most lists and objects inside one another in a value; JSON parsers stop at about 200, envelopes included."""

TOO_DEEP = f"the value is nested more than {MAX_DEPTH} levels deep, or contains itself"

_CACHED_TYPES = 1024
_CONFIG = CoreConfig(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants", revalidate_instances="always"
)
_WRAPPERS = {"default", "nullable", "function-after", "function-before", "function-wrap", "definitions"}
_SCALARS = {"bool", "int", "float", "str", "bytes", "decimal", "uuid", "date", "time", "datetime", "timedelta"}
_EXACT = {"bool", "int", "float"}
"""Scalars that pydantic would also read from another kind of JSON: true as 1, "1" as 1, 0 as false."""
_UNREADABLE = {
    "callable": "a function",
    "generator": "a one-time iterable; declare a list",
    "is-instance": "an arbitrary class; make it a pydantic model or a dataclass",
    "is-subclass": "a class object",
}
_NOT_SCHEMA = {"serialization", "metadata", "config", "default", "function", "cls", "ref"}
_OTHER_INPUTS = {"json-or-python": "python_schema", "lax-or-strict": "strict_schema"}

_Node = Mapping[str, Any]


class UnsupportedTypeError(Exception):
    """A type whose values cannot be written and read back; the message says why and what to declare instead."""


class ColumnForm(StrEnum):
    """How values of a type travel to a column (see `xdb_sdk.protocol.ColumnValue`)."""

    SCALAR = "scalar"
    BYTES = "bytes"
    DOCUMENT = "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCodec:
    """What the encoder needs of one type.

    Attributes:
        checker: Validates Python values before they are written; use it strictly.
        reader: Validates JSON.
        serializer: Writes JSON.
        column_form: How the values travel to a column.
        scalar_kind: The kind of all values if `column_form` is not a document, such as "int" or "timedelta".
        is_ambiguous: Whether the type has unions, so that a value may come back as another member.
        classes: The models and dataclasses inside; a child class has fields that its parent would lose.
    """

    checker: SchemaValidator
    reader: SchemaValidator
    serializer: SchemaSerializer
    column_form: ColumnForm
    scalar_kind: str | None
    is_ambiguous: bool
    classes: tuple[type, ...]

    @property
    def may_lose(self) -> bool:
        """Whether only reading a value back can tell that it comes back the same."""
        return self.is_ambiguous or any(cls.__subclasses__() for cls in self.classes)


def codec_of(type_hint: Any) -> TypeCodec:
    """Find or build the codec of a type; the cache is bounded, and a type costs about a millisecond to build.

    Raises:
        UnsupportedTypeError: Values of the type cannot be written and read back.
    """
    try:
        return _cached_codec(type_hint)
    except TypeError:  # only hashing raises it: building turns every failure into UnsupportedTypeError
        return _codec_of_unhashable(_Identity(type_hint))


@dataclass(frozen=True, slots=True, eq=False)
class _Identity:
    """An unhashable type as a cache key: by identity, which cannot be reused while the key holds the type."""

    type_hint: Any

    def __hash__(self) -> int:
        return id(self.type_hint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.type_hint is self.type_hint


@lru_cache(maxsize=_CACHED_TYPES)
def _cached_codec(type_hint: Any) -> TypeCodec:
    return _build_codec(type_hint)


@lru_cache(maxsize=_CACHED_TYPES)
def _codec_of_unhashable(key: _Identity) -> TypeCodec:
    return _build_codec(key.type_hint)


def _build_codec(type_hint: Any) -> TypeCodec:
    schema = _schema_of(type_hint)
    problem = next(_problems(schema), None)
    if problem is not None:
        raise UnsupportedTypeError(f"{type_name(type_hint)} cannot be stored: {problem}")

    readable = _adjusted(schema, is_checking=False)
    kind = _scalar_kind(schema, _definitions(schema))
    nodes = [node for node, _ in _nodes(schema)]
    try:
        return TypeCodec(
            checker=SchemaValidator(_adjusted(schema, is_checking=True), _CONFIG),
            reader=SchemaValidator(readable, _CONFIG),
            serializer=SchemaSerializer(readable, _CONFIG),
            column_form=_column_form(kind),
            scalar_kind=kind,
            is_ambiguous=any(node["type"] == "union" for node in nodes),
            classes=tuple({node["cls"]: None for node in nodes if node["type"] in ("model", "dataclass")}),
        )
    except SchemaError as error:
        raise UnsupportedTypeError(f"{type_name(type_hint)} cannot be stored: {error}") from error


def _schema_of(type_hint: Any) -> _Node:
    if isinstance(type_hint, str):
        raise UnsupportedTypeError(f"{type_hint!r} is a string, not a type; resolve it with typing.get_type_hints")
    if _is_open(type_hint):
        raise UnsupportedTypeError(f"{type_name(type_hint)} has an open type variable; write the concrete type")
    try:
        return {**TypeAdapter[Any](type_hint).core_schema}  # unpacking shows whether the schema is complete
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        if isinstance(error, PydanticUndefinedAnnotation) or error.code == "class-not-fully-defined":
            raise UnsupportedTypeError(
                f"{type_name(type_hint)} refers to a name that is not defined where it is used; "
                "import it, or call model_rebuild() once it exists"
            ) from error
        reason = str(error).partition("\n")[0]
        raise UnsupportedTypeError(
            f"{type_name(type_hint)} cannot be stored: {reason} "
            "Declare a pydantic model, a dataclass or a standard type"
        ) from error
    except Exception as error:  # a type hint may run any code of its own while its schema is made
        raise UnsupportedTypeError(f"{type_name(type_hint)} cannot be stored: {error!r}") from error


def _is_open(type_hint: Any) -> bool:
    """Whether a type variable is left in a type; a bare generic class stands for the class with Any."""
    if isinstance(type_hint, TypeVar):
        return True
    return not isinstance(type_hint, type) and bool(getattr(type_hint, "__parameters__", ()))


def type_name(type_hint: Any) -> str:
    return (
        type_hint.__qualname__ if isinstance(type_hint, type) and not hasattr(type_hint, "__args__") else str(type_hint)
    )


# --- inspecting schemas -----------------------------------------------------------------------------------------------


def _nodes(schema: Any, *, in_model: bool = False) -> Iterator[tuple[_Node, bool]]:
    """Yield the parts of a schema that read JSON, and whether each belongs to a pydantic class."""
    if isinstance(schema, (list, tuple)):
        for item in schema:
            yield from _nodes(item, in_model=in_model)
        return
    if not isinstance(schema, Mapping):
        return
    kind = schema.get("type")
    if isinstance(kind, str):
        yield schema, in_model
        in_model = in_model or _is_owned_by_pydantic(schema)
    skipped = _OTHER_INPUTS.get(kind) if isinstance(kind, str) else None
    for key, value in schema.items():
        # In a mapping of fields the keys are the user's names; only in a schema do they have a meaning.
        if not isinstance(kind, str) or (key not in _NOT_SCHEMA and key != skipped):
            yield from _nodes(value, in_model=in_model)


def _is_owned_by_pydantic(node: _Node) -> bool:
    """Whether pydantic has built the validator of this class already: what is inside cannot be adjusted."""
    return node["type"] == "model" or (node["type"] == "dataclass" and "__pydantic_validator__" in vars(node["cls"]))


def _definitions(schema: _Node) -> dict[str, _Node]:
    return {node["ref"]: node for node, _ in _nodes(schema) if "ref" in node}


def _column_form(kind: str | None) -> ColumnForm:
    if kind is None:
        return ColumnForm.DOCUMENT
    return ColumnForm.BYTES if kind == "bytes" else ColumnForm.SCALAR


def _scalar_kind(node: _Node, definitions: Mapping[str, _Node]) -> str | None:
    """Name the one scalar kind that all values other than None have, or say None."""
    kind: str = node["type"]
    if "serialization" in node:
        return None  # written in the user's own way, which may be anything
    if kind in _SCALARS:
        return kind
    if kind in _WRAPPERS:
        return _scalar_kind(node["schema"], definitions)
    if kind == "definition-ref" and node["schema_ref"] in definitions:
        others = {ref: other for ref, other in definitions.items() if ref != node["schema_ref"]}
        return _scalar_kind(definitions[node["schema_ref"]], others)
    if kind == "union":
        kinds = {_scalar_kind(_choice(choice), definitions) for choice in node["choices"]}
        return kinds.pop() if len(kinds) == 1 else None
    return _kind_of_values(_listed_values(node))


def _choice(choice: Any) -> _Node:
    """Take the schema of a union's member, which comes with a label or without."""
    return cast(_Node, choice[0] if isinstance(choice, tuple) else choice)


def _listed_values(node: _Node) -> list[Any]:
    values: list[Any] = list(node.get("members", ()) if node["type"] == "enum" else node.get("expected", ()))
    return [value.value if isinstance(value, enum.Enum) else value for value in values]


def _kind_of_values(values: list[Any]) -> str | None:
    kinds = {type(value).__name__ for value in values if value is not None}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in ("str", "int", "bool") else None


def _problems(schema: _Node) -> Iterator[str]:
    """Say what in a type cannot be written and read back."""
    definitions = _definitions(schema)
    for node, in_model in _nodes(schema):
        kind = node["type"]
        if kind in _UNREADABLE:
            yield f"it contains {_UNREADABLE[kind]}"
        if kind == "function-after" and node["function"]["function"] in (SecretStr, SecretBytes):
            yield "a secret is written as asterisks; declare str or bytes"
        if kind == "literal" and any(_is_plain_member(value) for value in node["expected"]):
            yield "a Literal of enum members is read back only for a StrEnum or IntEnum"
        if kind == "dict":
            yield from _key_problems(node.get("keys_schema", {"type": "any"}), definitions, in_model)
        if isinstance(node.get("fields"), Mapping):
            yield from _alias_problems(node["fields"].items())
        if kind == "dataclass-args":
            yield from _alias_problems((field["name"], field) for field in node["fields"])


def _is_plain_member(value: Any) -> bool:
    return isinstance(value, enum.Enum) and not isinstance(value, str | int)


def _key_problems(keys: _Node, definitions: Mapping[str, _Node], in_model: bool) -> Iterator[str]:
    if keys["type"] == "any":
        return
    if any(node["type"] in ("nullable", "union", "tagged-union") for node, _ in _nodes(keys)) or (
        _scalar_kind(keys, definitions) in (None, "float")
    ):
        yield (
            "dictionary keys must be of one type that has a text form (str, int, bool, Decimal, UUID, date, datetime, "
            "an enum of only str or only int); use a list of pairs for other keys"
        )
    elif in_model and _needs_number_keys(keys):
        yield "number values of a plain Enum or a Literal cannot be keys inside a model; use an IntEnum or int"


def _needs_number_keys(keys: _Node) -> bool:
    """Whether keys are listed numbers, which pydantic does not find again from their text (an IntEnum it does)."""
    listed = keys["members"] if keys["type"] == "enum" else keys["expected"] if keys["type"] == "literal" else ()
    is_int_enum = keys["type"] == "enum" and isinstance(next(iter(listed), None), int)
    return not is_int_enum and _kind_of_values(_listed_values(keys)) in ("int", "bool")


def _alias_problems(fields: Any) -> Iterator[str]:
    for name, field in fields:
        written = field.get("serialization_alias")
        if written is not None and written not in (name, *_read_names(field.get("validation_alias"))):
            yield f"field {name!r} is written as {written!r} but not read by it; give it alias={written!r}"


def _read_names(alias: Any) -> list[Any]:
    """List the plain names of a validation alias: a name, a path, or a list of paths."""
    if alias is None or isinstance(alias, str):
        return [alias]
    paths = alias if alias and isinstance(alias[0], list) else [alias]
    return [path[0] for path in paths if len(path) == 1]


# --- adjusting schemas ------------------------------------------------------------------------------------------------


def _adjusted(schema: _Node, *, is_checking: bool) -> CoreSchema:
    return cast(CoreSchema, _adjust(schema, is_checking))


def _adjust(node: Any, is_checking: bool) -> Any:
    if isinstance(node, (list, tuple)):
        return type(node)(_adjust(item, is_checking) for item in node)
    if not isinstance(node, Mapping):
        return node
    kind = node.get("type")
    if not isinstance(kind, str):
        return {key: _adjust(value, is_checking) for key, value in node.items()}
    if kind == "model" and is_checking:
        return {key: node[key] for key in ("cls", "ref") if key in node} | {"type": "is-instance"}
    if _is_owned_by_pydantic(node):
        return node
    if kind == "dict":
        node = {**node, "keys_schema": _adjusted_keys(node.get("keys_schema", {"type": "any"}))}
    if kind in ("dataclass", "typed-dict"):
        node = {**node, "config": {**_CONFIG, **node.get("config", {})}}
    if kind in _EXACT:
        node = {"strict": True, **node}
    adjusted = {key: value if key in _NOT_SCHEMA else _adjust(value, is_checking) for key, value in node.items()}
    return _checked(adjusted) if is_checking else adjusted


def _adjusted_keys(keys: _Node) -> _Node:
    if keys["type"] == "any":
        return {"type": "str", "strict": True}
    if _needs_number_keys(keys):
        return {"type": "function-before", "function": {"type": "no-info", "function": _number_key}, "schema": keys}
    return keys


def _number_key(key: Any) -> Any:
    """Turn the text of a number or truth value back into it."""
    if key in ("true", "false"):
        return key == "true"
    is_number = isinstance(key, str) and key.removeprefix("-").isdecimal()
    return int(key) if is_number else key


def _checked(node: _Node) -> _Node:
    """Make the checker of Python values refuse what serialization would lose without a word."""
    kind = node["type"]
    if kind == "any":
        return {"type": "function-plain", "function": {"type": "no-info", "function": _check_plain}}
    if kind == "typed-dict" and node.get("extra_behavior", "ignore") == "ignore":
        return {**node, "extra_behavior": "forbid"}
    if kind in ("datetime", "time"):
        return {"type": "function-after", "function": {"type": "no-info", "function": _check_offset}, "schema": node}
    return node


def _check_offset(value: datetime | time) -> datetime | time:
    offset = value.utcoffset()
    if offset is not None and offset % timedelta(minutes=1):
        raise PydanticCustomError("offset", "an offset from UTC of broken minutes cannot be stored; convert it to UTC")
    return value


def _check_plain(value: Any) -> Any:
    _walk_plain(value, ())
    return value


def _walk_plain(value: Any, path: tuple[str | int, ...]) -> None:
    """Refuse what is not plain JSON; the error's context has the rest of the path."""
    if value is None or type(value) in (str, int, float, bool) or isinstance(value, BaseModel):
        return
    if len(path) >= MAX_DEPTH:
        raise PydanticCustomError("depth", "{reason}", {"reason": TOO_DEEP})
    if type(value) is list:
        for index, item in enumerate(value):
            _walk_plain(item, (*path, index))
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                reason = f"a key is of type {type(key).__name__}, not str; declare the type of the keys"
                raise PydanticCustomError("key", "{reason}", {"reason": reason, "path": path})
            _walk_plain(item, (*path, key))
    else:
        reason = f"{type(value).__name__} is not plain JSON; declare its type in the place of Any"
        raise PydanticCustomError("plain", "{reason}", {"reason": reason, "path": path})
