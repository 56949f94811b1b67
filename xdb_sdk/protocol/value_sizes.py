"""How large the user's values in a wire model are."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from xdb_sdk.protocol._base import Json

_OF_USERS = (Any, tuple[Any, ...])
"""Fields of these types hold one value; the data of a recorded event is several that are kept as one."""


def find_large_value(model: BaseModel, max_value_bytes: int) -> str | None:
    """Name the first value of a model that is too large as JSON, and its size; None if there is none.

    Cost: writes every value again. A model that is itself no larger than the limit needs no look.
    """
    for path, value in _values_of(model):
        size_bytes = len(to_json(value))
        if size_bytes > max_value_bytes:
            return f"{path} is {size_bytes} bytes of JSON"
    return None


def _values_of(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Give the user's values in a wire model, each with its path in the JSON."""
    for name, field in type(model).model_fields.items():
        path = f"{prefix}{field.alias or name}"
        value = getattr(model, name)
        if field.annotation in _OF_USERS:
            yield path, value
        elif isinstance(value, BaseModel):
            yield from _values_of(value, f"{path}.")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _values_of(item, f"{path}.{index}.")
        elif isinstance(value, dict):
            for key, item in value.items():
                yield f"{path}.{key}", item
