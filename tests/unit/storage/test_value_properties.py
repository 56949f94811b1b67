"""Whatever is written into whatever column is either refused or comes back the same."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from server_stub.core.model import RowRead, RowWrite
from server_stub.core.ports import RowWriteFailed
from server_stub.storage.columns import JsonText, from_wire
from server_stub.storage.sqlite_user_tables import UserTables, column_of
from tests.contract.store.works import row_key

DECLARED_TYPES = (
    "",
    "TEXT",
    "VARCHAR(5)",
    "CHAR(32)",
    "INTEGER",
    "BIGINT",
    "BOOLEAN",
    "REAL",
    "NUMERIC",
    "NUMERIC(10,2)",
    "BLOB",
    "VARBINARY(5)",
    "BINARY(16)",
    "DATETIME",
    "DATE",
    "TIME",
    "UUID",
    "JSON",
    "STRING",
    "MONEY",
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBER_LIKE = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.from_regex(r"[ ]?[+-]?0{0,3}[0-9]{1,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,3})?[ ]?", fullmatch=True),
)
TEMPORAL = st.one_of(
    st.datetimes().map(lambda value: value.isoformat()),
    st.dates().map(lambda value: value.isoformat()),
    st.times().map(lambda value: value.isoformat()),
    st.uuids().map(str),
)
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT, NUMBER_LIKE, TEMPORAL)
DOCUMENT = st.recursive(SCALAR, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=5)
BYTES = st.sampled_from(["", "AA==", "AP8B", "AAAAAAAAAAAAAAAAAAAAAA==", "A", "?", "ääää"])
WIRE = st.one_of(
    SCALAR,
    DOCUMENT.map(lambda value: {"$json": value}),
    BYTES.map(lambda value: {"$bytes": value}),
    DOCUMENT,
)


@pytest.fixture(scope="module")
def tables() -> Iterator[UserTables]:
    """Give tables `t0`, `t1` and so on, with a column `v` of each declared type."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for number, declared_type in enumerate(DECLARED_TYPES):
            connection.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, v {declared_type})")
        yield UserTables(connection)


@given(st.integers(0, len(DECLARED_TYPES) - 1), WIRE)
def test_a_value_is_refused_or_comes_back_the_same(tables: UserTables, number: int, value: Any) -> None:
    row = row_key(f"t{number}", 1)

    try:
        tables.write(RowWrite(row, {"v": value}))
    except RowWriteFailed as failure:
        assert failure.error.kind in ("TYPE", "TOO_LONG")  # noqa: PT017  # a refusal is one of the two outcomes
        return
    found = tables.read(RowRead(row, ("v",)))

    assert found is not None
    assert _meaning(DECLARED_TYPES[number], found["v"]) == _meaning(DECLARED_TYPES[number], value)


def _meaning(declared_type: str, value: Any) -> Any:
    """Give what a wire value says in a column of the type, whichever of its forms it has."""
    if declared_type == "CHAR(32)" and isinstance(value, str) and len(value) == 36:
        value = UUID(value).hex
    meaning = from_wire(column_of("v", declared_type), value)
    return from_json(meaning.text) if isinstance(meaning, JsonText) else meaning
