"""How large a request may be."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from xdb_sdk.protocol import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Limits of the service API; what exceeds one is answered 400. Their defaults stand with the settings.

    Args:
        max_value_bytes: The largest value: an input, payload, attribute or output, as JSON.
        max_call_bytes: The largest call: the body of a request, or a line of a batch.
        max_batch_bytes: The largest body of a batch request.
        max_batch_calls: The most calls in a batch request.
        max_json_depth: The deepest nesting of a call, its own levels included.
        body_timeout: How long the next piece of a body may take to arrive.
    """

    max_value_bytes: int
    max_call_bytes: int
    max_batch_bytes: int
    max_batch_calls: int
    max_json_depth: int
    body_timeout: timedelta


def find_large_value(request: BaseModel, max_value_bytes: int) -> str | None:
    """Name the first value of a request that is too large as JSON, and its size; None if there is none.

    Cost: writes every value again. A request that is itself no larger than the limit needs no look.
    """
    for path, value in _values_of(request):
        size_bytes = len(to_json(value))
        if size_bytes > max_value_bytes:
            return f"{path} is {size_bytes} bytes of JSON"
    return None


def _values_of(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Give the user's values in a wire model, each with its path in the JSON."""
    for name, field in type(model).model_fields.items():
        path = f"{prefix}{field.alias or name}"
        value = getattr(model, name)
        if field.annotation is Any:
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
