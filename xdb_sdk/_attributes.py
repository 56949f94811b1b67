"""Data attributes from outside of a call, by name: to and from what is stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xdb_sdk._definition import ProcessDefinition
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._names import check_name
from xdb_sdk._schema import key_name
from xdb_sdk.protocol import ColumnValue, Json, LoadedData


@dataclass(frozen=True, slots=True)
class AttributeValues:
    """Encoded attributes: of the mapped row by column, and process-local by name."""

    columns: Mapping[str, ColumnValue]
    local: Mapping[str, Json]


def encode_attributes(definition: ProcessDefinition, values: Mapping[Any, Any]) -> AttributeValues:
    """Encode values by name or typed key, each by its declared type.

    Raises:
        InvalidArgumentError: The process declares no such attribute, or it is the primary key.
        EncodeError: A value is not of its declared type.
    """
    columns: dict[str, ColumnValue] = {}
    local: dict[str, Json] = {}
    for key, value in values.items():
        name = check_name(key_name(key), "data attribute name")
        attribute = definition.attribute(name)
        where = _where(definition, name)
        if attribute.column is None:
            local[name] = definition.encoder.encode(value, attribute.type_hint, where)
        elif definition.table and attribute.column == definition.table.primary_key:
            raise InvalidArgumentError(f"{where} is the primary key of its table, which cannot be written")
        else:
            columns[attribute.column] = definition.encoder.encode_column(value, attribute.type_hint, where)
    return AttributeValues(columns, local)


def decode_attributes(definition: ProcessDefinition, loaded: LoadedData) -> dict[str, Any]:
    """Decode the attributes that were read, by name.

    Raises:
        DecodeError: What is stored does not fit the declared type.
    """
    columns = {column: value for table in loaded.tables for column, value in table.columns.items()}
    values = {
        attribute.name: definition.encoder.decode_column(
            columns[attribute.column], attribute.type_hint, _where(definition, attribute.name)
        )
        for attribute in definition.attributes.values()
        if attribute.column in columns
    }
    for name, data in loaded.local_attributes.items():
        values[name] = definition.encoder.decode(data, definition.attribute(name).type_hint, _where(definition, name))
    return values


def _where(definition: ProcessDefinition, attribute_name: str) -> str:
    return f"data attribute {attribute_name!r} of {definition.process_type}"
