"""One value through every boundary: it comes out the same everywhere, or is refused with one clear message."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from server_stub.config import ServerSettings
from tests.engine.relay import BOUNDARIES, pass_through, relay_of
from tests.support.databases import BINARY_TYPE, Database
from tests.support.system import System
from xdb_sdk import DecodeError, ObjectEncoder, Registry


class Color(Enum):
    RED = 1


class Nothing(BaseModel):
    pass


class Line(BaseModel):
    article: str
    price: Decimal
    amount: int = 1


class Parcel(BaseModel):
    sender: str | None
    lines: list[Line]
    sent_at: datetime
    weights: dict[int, float] = {}


@dataclass
class Label:
    code: UUID
    color: Color
    parts: tuple[int, str]
    tags: set[str] = field(default_factory=set)


@dataclass
class Counts:
    by_number: dict[int, str]
    by_id: dict[UUID, int]
    by_color: dict[Color, int]
    by_day: dict[date, int]
    by_answer: dict[bool, str]


COUNTS = Counts(
    by_number={1: "a", -1: "b"},
    by_id={UUID(int=1): 1},
    by_color={Color.RED: 1},
    by_day={date(2024, 2, 29): 1},
    by_answer={True: "a", False: "b"},
)
PARCEL = Parcel(
    sender=None,
    lines=[Line(article="screw", price=Decimal("0.10")), Line(article="é漢🙂", price=Decimal(0), amount=0)],
    sent_at=datetime(2026, 2, 28, 23, 59, 59, 999999, UTC),
    weights={1: 0.5, -2: 3.0},
)
LABEL = Label(UUID(int=1), Color.RED, (1, "x"), {"a", "b"})

VALUES: dict[str, tuple[Any, Any]] = {
    "model": (Parcel, PARCEL),
    "dataclass": (Label, LABEL),
    "list of models": (list[Parcel], [PARCEL, PARCEL]),
    "union": (Parcel | Label, LABEL),
    "bytes": (bytes, b"\0\xff"),
    # digits of large integers
    "2**53 + 1": (int, 2**53 + 1),
    "2**63": (int, 2**63),
    "-2**63 - 1": (int, -(2**63) - 1),
    "10**400": (int, 10**400),
    "large in a list": (list[int], [2**64 + 1]),
    # what is false is not nothing
    "zero": (int, 0),
    "false": (bool, False),
    "empty text": (str, ""),
    "empty list": (list[int], []),
    "decimal zero": (Decimal, Decimal(0)),
    "no time": (timedelta, timedelta(0)),
    "empty model": (Nothing, Nothing()),
    "zero of an option": (int | None, 0),
    "keys that are no text": (Counts, COUNTS),
}
"""Type and value by name."""


@pytest.mark.parametrize(("type_hint", "value"), VALUES.values(), ids=VALUES)
async def test_value_comes_out_of_every_boundary_as_it_went_in(system: System, type_hint: Any, value: Any) -> None:
    found: dict[str, Any] = {}

    await pass_through(system, relay_of(type_hint, found), value, found)

    assert found == dict.fromkeys(BOUNDARIES, value)
    assert {type(each) for each in found.values()} == {type(value)}


@pytest.mark.parametrize(
    "name", ["model", "dataclass", "list of models", "union", "empty list", "keys that are no text"]
)
async def test_document_comes_out_of_every_boundary_when_its_attributes_are_columns(system: System, name: str) -> None:
    binary = BINARY_TYPE[system.database.kind]
    system.sql(f"CREATE TABLE relay (relay_id VARCHAR(255) PRIMARY KEY, given JSON, copy TEXT, outside {binary})")
    type_hint, value = VALUES[name]
    found: dict[str, Any] = {}

    await pass_through(system, relay_of(type_hint, found, is_mapped=True), value, found)

    assert found == dict.fromkeys(BOUNDARIES, value)


class SealingEncoder(ObjectEncoder):
    """Turns every text around, so that nothing on the way can read it, and refuses what was not sealed."""

    def encode(self, value: Any, type_hint: Any, where: str) -> Any:
        data = super().encode(value, type_hint, where)
        return {"sealed": data[::-1]} if isinstance(data, str) else data

    def decode(self, data: Any, type_hint: Any, where: str) -> Any:
        if isinstance(data, str):
            raise DecodeError(where, "", "not sealed")
        return super().decode(data["sealed"][::-1] if isinstance(data, dict) else data, type_hint, where)


@pytest.fixture
async def sealed_system(database: Database) -> AsyncIterator[System]:
    registry = Registry(SealingEncoder())
    async with System(database, ServerSettings(), registry=registry) as system:
        yield system


async def test_every_boundary_uses_the_encoder_of_the_application(sealed_system: System) -> None:
    found: dict[str, Any] = {}

    await pass_through(sealed_system, relay_of(str, found), "confidential", found)

    assert found == dict.fromkeys(BOUNDARIES, "confidential")
    assert "confidential" not in str(sealed_system.worker.calls)
    stored = str(sealed_system.database.everything())
    assert "laitnedifnoc" in stored
    assert "confidential" not in stored
