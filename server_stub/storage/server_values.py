"""Values of the user's columns between the wire and a database server, as far as the servers agree."""

import math
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic_core import from_json

from server_stub.storage.columns import (
    EXACT,
    JSON_TAG,
    ColumnFamily,
    UserColumn,
    bytes_to_wire,
    interval_to_wire,
    shortest_single,
)
from xdb_sdk.protocol import ColumnValue


def canonical_number(column: UserColumn, value: Decimal) -> Decimal:
    """Give a number the digits of its column, or only those that it needs."""
    if column.scale is not None:
        return value.quantize(Decimal(1).scaleb(-column.scale), context=EXACT)
    return value.normalize(EXACT) if value else Decimal(0)


def to_wire(column: UserColumn, value: Any) -> ColumnValue:
    """Give the wire value of what a driver gives; what Python or JSON cannot express, as the database writes it.

    Documents, dates and times come as text, which says more than Python's own types do.
    """
    match value:
        case None | bool() | int():
            return value
        case float():
            return _float_to_wire(column, value)
        case str():
            return _text_to_wire(column, value)
        case bytes():
            return bytes_to_wire(value)
        case Decimal():
            return f"{value:f}" if value.is_finite() else str(value)
        case timedelta():
            return interval_to_wire(value)
    return str(value)


def _float_to_wire(column: UserColumn, value: float) -> ColumnValue:
    if not math.isfinite(value):
        return str(value)
    return shortest_single(value) if column.is_single else value


def _text_to_wire(column: UserColumn, value: str) -> ColumnValue:
    with suppress(ValueError, OverflowError):
        match column.family:
            case ColumnFamily.JSON:
                return {JSON_TAG: from_json(value)}
            case ColumnFamily.DATETIME:
                instant = datetime.fromisoformat(value)
                return (_in_utc(instant) if column.is_zoned else instant).isoformat()
            case ColumnFamily.DATE:
                return date.fromisoformat(value).isoformat()
            case ColumnFamily.TIME:
                return time.fromisoformat(value).isoformat()
            case ColumnFamily.UUID:
                return str(UUID(value))
    return value.rstrip(" ") if column.is_padded else value


def _in_utc(instant: datetime) -> datetime:
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
