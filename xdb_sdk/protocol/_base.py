"""What every wire model shares: immutable, camelCase on the wire, unknown fields ignored in both directions."""

from collections.abc import Mapping
from typing import Any, Final, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

PROTOCOL_VERSION = 1
"""Version of the wire models; sent in every context so that an older peer can tell what it is talking to."""

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys. Opaque to the server."""

ColumnValue: TypeAlias = Any
"""A value of a user's column on the wire (semantics 7.2).

null, true/false, a number or a string stand for themselves; `{"$bytes": "<base64>"}` is binary data, and
`{"$json": <any>}` a document: native JSON in a json column, JSON text in a text or blob column.
"""


class _NoEntries(dict[str, Any]):
    """A mapping without entries. Pydantic shares a default that has a hash, and copies others for each new model."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none
        return 0

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Have it written as a dict where it is the default in a JSON Schema."""
        return core_schema.dict_schema()


NO_ENTRIES: Final[Mapping[str, Any]] = _NoEntries()
"""The default of fields that are mappings."""


class WireModel(BaseModel):
    """Base of every model that crosses HTTP. Field names are snake_case here and camelCase on the wire."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        ser_json_inf_nan="constants",
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Give the model itself: nobody changes it, and pydantic copies each default for each new model otherwise."""
        return self

    def to_json(self) -> bytes:
        """Write the model as wire JSON, without the fields that hold their default."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True).encode()
