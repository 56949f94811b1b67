"""Every family of columns from the client through worker and server to the table and back (semantics 7.2)."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.support.databases import KINDS, Kind
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    ObjectProcess,
    Persistence,
    PersistenceField,
    PersistenceSchema,
    ProcessFailed,
    ProcessStartOptions,
    RetryPolicy,
    RpcExecutionError,
    StateDecision,
    StateSchema,
    data_attribute,
    process,
    rpc,
    state,
)

UNIQUE_ID = UUID("0190e4b2-7c1a-7000-8000-000000000001")
NASTY_TEXT = '\'; DROP TABLE thing; -- " \\ % _ ? :name $1 \r\n\t é 漢字 🙂 \u202e {"$json": 1}'


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Address(BaseModel):
    city: str
    lines: list[str] = []


@dataclass
class Form:
    name: str
    born: date
    tags: set[str] = field(default_factory=set)


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    size: int
    note: str | None


@dataclass(frozen=True)
class Case:
    """A column, the declared type of the attribute in it, a value, and what the application finds in the table."""

    column_type: str
    type_hint: Any
    value: Any
    stored: Any

    def __str__(self) -> str:
        hint = getattr(self.type_hint, "__name__", str(self.type_hint))
        return f"{hint} {self.value!r:.20} in {self.column_type}"


NAIVE = datetime(2026, 2, 28, 23, 59, 59, 1)  # noqa: DTZ001  # naive stays naive

DAY_IN_INDIA = datetime(2026, 2, 28, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
ADDRESS = Address(city="Köln", lines=["a", ""])
ADDRESS_TEXT = '{"city":"Köln","lines":["a",""]}'

CASES = [
    Case("TEXT", str, NASTY_TEXT, NASTY_TEXT),
    Case("TEXT", str, "", ""),
    Case("TEXT", str, "12.50", "12.50"),
    Case("VARCHAR(5)", str, "é漢字🙂x", "é漢字🙂x"),
    Case("CHAR(3)", str, "abc", "abc"),
    Case("TEXT", Color, Color.RED, "red"),
    Case("TEXT", Literal["a", "b"], "b", "b"),
    Case("INTEGER", int, 0, 0),
    Case("BIGINT", int, 2**53 + 1, 2**53 + 1),
    Case("BIGINT", int, -(2**63), -(2**63)),
    Case("SMALLINT", Level, Level.HIGH, 3),
    Case("BOOLEAN", bool, True, 1),
    Case("BOOLEAN", bool, False, 0),
    Case("INTEGER", bool, False, 0),
    Case("DOUBLE PRECISION", float, 0.1, 0.1),
    Case("DOUBLE PRECISION", float, -1.5e300, -1.5e300),
    Case("TEXT", Decimal, Decimal("0.10000000000000000000000000001"), "0.10000000000000000000000000001"),
    Case("TEXT", datetime, NAIVE, "2026-02-28T23:59:59.000001"),
    Case("BIGINT", timedelta, timedelta(days=-1, microseconds=1), -86_399_999_999),
    Case("TEXT", timedelta, timedelta(hours=1), "PT1H"),
    Case("CHAR(36)", UUID, UNIQUE_ID, str(UNIQUE_ID)),
    Case("CHAR(32)", UUID, UNIQUE_ID, UNIQUE_ID.hex),
    Case("JSON", Address, ADDRESS, ADDRESS_TEXT),
    Case("TEXT", Form, Form("Ann", date(2000, 1, 1)), '{"name":"Ann","born":"2000-01-01","tags":[]}'),
    Case("JSON", list[int], [], "[]"),
    Case("JSON", dict[int, Decimal], {1: Decimal("0.5")}, '{"1":"0.5"}'),
    Case("JSON", tuple[int, str], (1, "x"), '[1,"x"]'),
    Case("JSON", Point, Point(1, 2.0), "[1,2.0]"),
    Case("JSON", Options, {"size": 1, "note": None}, '{"size":1,"note":null}'),
    Case("JSON", int | str, "5", '"5"'),
    Case("JSON", list[int], [2**70], "[1180591620717411303424]"),
    Case("TEXT", str | None, "x", "x"),
    Case("INTEGER", int | None, 0, 0),
]
"""Each database has a column of such a type and keeps the value so."""

OWN_CASES: dict[Kind, list[Case]] = {
    "sqlite": [
        Case("CLOB", str, "null", "null"),
        Case("INTEGER", int, 2**53 + 1, 2**53 + 1),
        Case("TINYINT(1)", bool, True, 1),
        Case("REAL", float, 0.1, 0.1),
        Case("FLOAT", float, 3.0, 3.0),
        Case("NUMERIC(12,2)", Decimal, Decimal("12345678.90"), 12345678.9),
        Case("DECIMAL(10,3)", Decimal, Decimal("-0.125"), -0.125),
        Case("NUMERIC", Decimal, Decimal(7), 7),
        Case("BLOB", bytes, b"\x00\xff'\n", b"\x00\xff'\n"),
        Case("BLOB", bytes, b"", b""),
        Case("VARBINARY(4)", bytes, b"\xf0\x9f\x99\x82", b"\xf0\x9f\x99\x82"),
        Case("DATETIME", datetime, NAIVE, "2026-02-28 23:59:59.000001"),
        Case("TIMESTAMP", datetime, DAY_IN_INDIA, "2026-02-28 06:30:00.000000+00:00"),
        Case("TIMESTAMP", datetime, datetime(9999, 12, 31, tzinfo=UTC), "9999-12-31 00:00:00.000000+00:00"),
        Case("DATE", date, date(2024, 2, 29), "2024-02-29"),
        Case("TIME", time, time(23, 59, 59, 999999), "23:59:59.999999"),
        Case("UUID", UUID, UNIQUE_ID, str(UNIQUE_ID)),
        Case("BINARY(16)", UUID, UNIQUE_ID, UNIQUE_ID.bytes),
        Case("JSONB", Address, ADDRESS, ADDRESS_TEXT),
        Case("BLOB", Address, ADDRESS, ADDRESS_TEXT.encode()),
        Case("JSON", int | str, 5, 5),
        Case("JSON", int, 2**63 - 1, 2**63 - 1),
        Case("", str, "untyped", "untyped"),
        Case("", bytes, b"\x01", b"\x01"),
    ],
    "postgresql": [
        Case("REAL", float, 0.5, 0.5),
        Case("NUMERIC(12,2)", Decimal, Decimal("12345678.90"), Decimal("12345678.90")),
        Case("NUMERIC", Decimal, Decimal("7.0000000000000000000000000000000001"), Decimal(f"7.{'0' * 33}1")),
        Case("BYTEA", bytes, b"\x00\xff'\n", b"\x00\xff'\n"),
        Case("BYTEA", bytes, b"", b""),
        Case("TIMESTAMP", datetime, NAIVE, NAIVE),
        Case("TIMESTAMPTZ", datetime, DAY_IN_INDIA, DAY_IN_INDIA),
        Case("TIMESTAMPTZ", datetime, datetime(9999, 12, 31, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)),
        Case("DATE", date, date(2024, 2, 29), date(2024, 2, 29)),
        Case("TIME", time, time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
        Case("INTERVAL", timedelta, timedelta(days=1, microseconds=1), timedelta(days=1, microseconds=1)),
        Case("UUID", UUID, UNIQUE_ID, UNIQUE_ID),
        Case("JSONB", Address, ADDRESS, '{"city": "Köln", "lines": ["a", ""]}'),
        Case("BYTEA", Address, ADDRESS, ADDRESS_TEXT.encode()),
        Case("JSON", int | str, 5, "5"),
        Case("JSON", int, 2**63 - 1, str(2**63 - 1)),
    ],
    "mariadb": [
        Case("LONGTEXT", str, "null", "null"),
        Case("TINYINT(1)", bool, True, 1),
        Case("FLOAT", float, 0.5, 0.5),
        Case("DECIMAL(12,2)", Decimal, Decimal("12345678.90"), Decimal("12345678.90")),
        Case("DECIMAL(65,30)", Decimal, Decimal("7.000000000000000000000000000001"), Decimal(f"7.{'0' * 29}1")),
        Case("BLOB", bytes, b"\x00\xff'\n", b"\x00\xff'\n"),
        Case("BLOB", bytes, b"", b""),
        Case("VARBINARY(4)", bytes, b"\xf0\x9f\x99\x82", b"\xf0\x9f\x99\x82"),
        Case("DATETIME(6)", datetime, NAIVE, NAIVE),
        Case("TIMESTAMP(6) NULL", datetime, DAY_IN_INDIA, datetime(2026, 2, 28, 6, 30)),  # noqa: DTZ001  # in UTC
        Case("DATE", date, date(2024, 2, 29), date(2024, 2, 29)),
        Case("TIME(6)", time, time(23, 59, 59, 999999), timedelta(days=1, microseconds=-1)),
        Case("UUID", UUID, UNIQUE_ID, str(UNIQUE_ID)),
        Case("BINARY(16)", UUID, UNIQUE_ID, UNIQUE_ID.bytes),
        Case("BLOB", Address, ADDRESS, ADDRESS_TEXT.encode()),
        Case("JSON", int | str, 5, "5"),
        Case("JSON", int, 2**63 - 1, str(2**63 - 1)),
        Case("ENUM('red')", Color, Color.RED, "red"),
    ],
}
ALL_CASES = [(kind, case) for kind in KINDS for case in (*CASES, *OWN_CASES[kind])]

found_in_state: list[Any] = []


class CopyState(AsyncState[None]):
    """Writes what it reads."""

    def execute(self, persistence: Persistence) -> StateDecision:
        value = persistence.get_data_attribute("given")
        found_in_state.append(value)
        persistence.set_data_attribute("copy", value)
        return StateDecision.graceful_complete_process()


class ThingProcess(ObjectProcess):
    """A process whose attributes have any one type."""

    def __init__(self, type_hint: Any) -> None:
        self._type_hint = type_hint

    def get_async_states(self) -> StateSchema:
        return StateSchema.with_starting_state(CopyState())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.create(
            PersistenceField.data_attribute_def("given", self._type_hint),
            PersistenceField.data_attribute_def("copy", self._type_hint),
            table_name="thing",
            primary_key="thing_id",
            primary_key_type=int,
        )

    @rpc
    def is_copy_right(self, persistence: Persistence) -> bool:
        given, copy = (persistence.get_data_attribute(name) for name in ("given", "copy"))
        return bool(given == copy and type(given) is type(copy) and given == found_in_state[-1])


async def start_thing(system: System, column_type: str, type_hint: Any, **attributes: Any) -> None:
    system.sql(f"CREATE TABLE thing (thing_id INTEGER PRIMARY KEY, given {column_type}, copy {column_type})")
    system.serve(ThingProcess(type_hint))
    options = ProcessStartOptions(initial_upsert_data_attributes=attributes, timeout=timedelta(days=1))
    await system.client.start_object_process("p", ThingProcess, 7, None, options)
    await system.client.wait_for_process_completion("p")


@pytest.mark.parametrize(("database", "case"), ALL_CASES, indirect=["database"], ids=str)
async def test_value_of_each_column_family_comes_back_equal_everywhere(system: System, case: Case) -> None:
    await start_thing(system, case.column_type, case.type_hint, given=case.value)

    outside = await system.client.get_data_attributes("p", ThingProcess)

    assert found_in_state[-1] == case.value
    assert type(found_in_state[-1]) is type(case.value)
    assert await system.client.invoke_rpc("p", ThingProcess.is_copy_right)
    assert outside == {"given": case.value, "copy": case.value}
    [(given, copy)] = system.sql("SELECT given, copy FROM thing")
    assert (given, copy) == (case.stored, case.stored)
    assert isinstance(given, type(case.stored))


@pytest.mark.parametrize(
    ("database", "column_type", "type_hint"),
    [
        (*column, hint)
        for column, hint in {(kind, case.column_type): case.type_hint for kind, case in ALL_CASES}.items()
    ],
    indirect=["database"],
    ids=str,
)
async def test_null_of_each_column_family_reads_as_none(system: System, column_type: str, type_hint: Any) -> None:
    await start_thing(system, column_type, type_hint | None)

    assert found_in_state[-1] is None
    assert system.sql("SELECT given IS NULL, copy IS NULL FROM thing") == [(1, 1)]
    assert await system.client.get_data_attributes("p", ThingProcess) == {"given": None, "copy": None}


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
class FillState(AsyncState[str]):
    def execute(self, input: str, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(BoundedProcess.text, input)
        return StateDecision.graceful_complete_process()


@process(table_name="bounded", primary_key="bounded_id", primary_key_type=str)
class BoundedProcess(ObjectProcess):
    text = data_attribute(str)
    data = data_attribute(bytes)
    document = data_attribute(list[str])

    starting_state: ClassVar[Any] = FillState


class OpenBoundedProcess(BoundedProcess):
    starting_state = None

    @rpc
    def fill(self, size: int, persistence: Persistence) -> None:
        persistence.set_data_attribute(BoundedProcess.data, b"\xe6" * size)

    @rpc
    def write_document(self, size: int, persistence: Persistence) -> None:
        persistence.set_data_attribute(BoundedProcess.document, ["é" * (size - 4)])


async def start_bounded(system: System, text: str) -> None:
    binary = "BYTEA CHECK (length(data) <= 10)" if system.database.kind == "postgresql" else "VARBINARY(10)"
    system.sql(
        "CREATE TABLE bounded"
        f" (bounded_id VARCHAR(255) PRIMARY KEY, text VARCHAR(10), data {binary}, document VARCHAR(10))"
    )
    system.serve(BoundedProcess, OpenBoundedProcess)
    options = ProcessStartOptions(timeout=timedelta(days=1))
    await system.client.start_object_process("p", BoundedProcess, "b", text, options)


@pytest.mark.parametrize("character", ["x", "é", "漢", "🙂"])
@pytest.mark.parametrize("size", [9, 10])
async def test_value_up_to_the_bound_of_its_column_is_kept_whole(system: System, character: str, size: int) -> None:
    await start_bounded(system, character * size)

    await system.client.wait_for_process_completion("p")

    assert system.sql("SELECT text FROM bounded") == [(character * size,)]


@pytest.mark.parametrize("character", ["x", "é", "漢", "🙂"])
async def test_value_beyond_the_bound_of_its_column_is_refused_and_never_cut(system: System, character: str) -> None:
    await start_bounded(system, character * 11)

    with pytest.raises(ProcessFailed, match=r"bounded: TOO_LONG: column 'text' is .*\(10\)"):
        await system.client.wait_for_process_completion("p")

    assert system.sql("SELECT * FROM bounded") == []


@pytest.mark.parametrize("size", [9, 10, 11])
async def test_binary_data_and_documents_are_bounded_as_well(system: System, size: int) -> None:
    await start_bounded(system, "x")
    await system.client.wait_for_process_completion("p")
    await system.client.start_object_process("open", OpenBoundedProcess, "b")
    refused = []

    for method in (OpenBoundedProcess.fill, OpenBoundedProcess.write_document):
        try:
            await system.client.invoke_rpc("open", method, size)
        except RpcExecutionError as error:
            refused.append(error.body.details)

    kept = system.sql("SELECT data, document FROM bounded")
    if size <= 10:
        assert (kept, refused) == ([(b"\xe6" * size, f'["{"é" * (size - 4)}"]')], [])
    else:
        assert kept == [(None, None)]
        assert ["TOO_LONG" in details or "CHECK" in details for details in refused] == [True, True]


async def test_number_beyond_the_column_is_refused(system: System) -> None:
    system.sql("CREATE TABLE thing (thing_id INTEGER PRIMARY KEY, given BIGINT, copy BIGINT)")
    system.serve(ThingProcess(int))
    options = ProcessStartOptions(initial_upsert_data_attributes={"given": 2**63})

    with pytest.raises(ClientSideError, match="takes integers of 64 bit") as failure:
        await system.client.start_object_process("p", ThingProcess, 7, None, options)

    assert failure.value.status == 424
    assert system.sql("SELECT * FROM thing") == []


MEGABYTE = NASTY_TEXT.ljust(1_000, "m") * 999


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
class GrowState(AsyncState[int]):
    def execute(self, input: int, persistence: Persistence) -> StateDecision:
        if input == 5:
            return StateDecision.graceful_complete_process()
        persistence.set_data_attribute(f"text{input}", f"{input}{MEGABYTE}")
        return StateDecision.single_next_state(GrowState, input + 1)


@process(table_name="large", primary_key="large_id", primary_key_type=str)
class LargeProcess(ObjectProcess):
    text0 = data_attribute(str)
    text1 = data_attribute(str)
    text2 = data_attribute(str)
    text3 = data_attribute(str)
    text4 = data_attribute(str)

    starting_state = GrowState

    @rpc
    def are_right(self, persistence: Persistence) -> list[bool]:
        return [persistence.get_data_attribute(f"text{n}") == f"{n}{MEGABYTE}" for n in range(5)]


LARGE_TEXTS: dict[Kind, list[str]] = {
    "sqlite": ["", "TEXT", "CLOB", "TEXT", "TEXT"],
    "postgresql": ["TEXT"] * 5,
    "mariadb": ["LONGTEXT", "MEDIUMTEXT", "LONGTEXT", "LONGTEXT", "LONGTEXT"],
}


async def test_texts_of_a_megabyte_each_come_back_equal(system: System) -> None:
    columns = ", ".join(f"text{number} {column}" for number, column in enumerate(LARGE_TEXTS[system.database.kind]))
    system.sql(f"CREATE TABLE large (large_id VARCHAR(255) PRIMARY KEY, {columns})")
    system.serve(LargeProcess)

    options = ProcessStartOptions(timeout=timedelta(days=1))
    await system.client.start_object_process("p", LargeProcess, "'; DROP TABLE large; --", 0, options)
    await system.client.wait_for_process_completion("p")

    assert await system.client.invoke_rpc("p", LargeProcess.are_right) == [True] * 5
    [row] = system.sql("SELECT * FROM large")
    assert row == ("'; DROP TABLE large; --", *(f"{number}{MEGABYTE}" for number in range(5)))


@process(table_name='odd "table" name', primary_key="the key", primary_key_type=str)
class OddNamesProcess(ObjectProcess):
    quoted = data_attribute(str, column='a "quoted" column')
    reserved = data_attribute(str, column="select")

    @rpc
    def swap(self, persistence: Persistence) -> None:
        quoted = persistence.get_data_attribute(OddNamesProcess.quoted)
        persistence.set_data_attribute(OddNamesProcess.quoted, persistence.get_data_attribute(OddNamesProcess.reserved))
        persistence.set_data_attribute(OddNamesProcess.reserved, quoted)


async def test_names_of_tables_and_columns_are_quoted(system: System) -> None:
    system.sql(
        'CREATE TABLE "odd ""table"" name"'
        ' ("the key" VARCHAR(255) PRIMARY KEY, "a ""quoted"" column" TEXT, "select" TEXT)'
    )
    system.serve(OddNamesProcess)
    options = ProcessStartOptions(initial_upsert_data_attributes={"quoted": "q", "reserved": "r"})

    await system.client.start_object_process("p", OddNamesProcess, NASTY_TEXT, None, options)
    await system.client.invoke_rpc("p", OddNamesProcess.swap)

    assert system.sql('SELECT * FROM "odd ""table"" name"') == [(NASTY_TEXT, "r", "q")]
