"""What a call reads and writes of the data."""

from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

from tests.unit.sdk.compiling import definition_of
from xdb_sdk import (
    AttributeNotLoadedError,
    DataAttribute,
    DecodeError,
    EncodeError,
    InvalidArgumentError,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    data_attribute,
    process,
)
from xdb_sdk._persistence import missing_read
from xdb_sdk.protocol import Json, LoadedData, LoadedTable, ReadRequest, RecordedEvent, TableRead, TableWrite


class Color(StrEnum):
    """For a column."""

    RED = "red"


class Address(BaseModel):
    """For a document."""

    city: str


@process(table_name="people", primary_key="id", primary_key_type=int)
class Mapped(ObjectProcess):
    """Attributes in columns."""

    id = data_attribute(int)
    name = data_attribute(str, column="full_name")
    age = data_attribute(int)
    color = data_attribute(Color)
    address = data_attribute(Address)
    nickname: DataAttribute[str | None] = data_attribute(str | None)


class Local(ObjectProcess):
    """Process-local attributes."""

    count = data_attribute(int)
    note: DataAttribute[str | None] = data_attribute(str | None)
    scores = data_attribute(int, prefix="score_")


MAPPED, LOCAL = definition_of(Mapped), definition_of(Local)


def mapped(**columns: Any) -> Persistence:
    table = LoadedTable(table_name="people", columns=columns)
    return Persistence(MAPPED, LoadedData(tables=(table,)), where="Step.execute")


def local(
    values: Mapping[str, Json] | None = None,
    *,
    policy: PersistenceLoadingPolicy | None = None,
    state_locals: Mapping[str, Json] | None = None,
    read_only: bool = False,
) -> Persistence:
    read = (policy or PersistenceLoadingPolicy.all()).to_wire(LOCAL)
    loaded = LoadedData(
        local_attributes=values or {},
        asked_local_attributes=read.local_attributes,
        asked_local_attribute_prefixes=read.local_attribute_prefixes,
    )
    return Persistence(
        LOCAL,
        loaded,
        where="Local.call",
        state_locals=state_locals,
        read_only=read_only,
    )


def test_columns_are_read_by_attribute_name_and_typed_key() -> None:
    persistence = mapped(id=7, full_name="Ann", color="red", address={"$json": {"city": "Oslo"}})

    assert persistence.get_data_attribute("name") == "Ann"
    assert persistence.get_data_attribute(Mapped.name) == "Ann"
    assert persistence.get_data_attribute(Mapped.id) == 7
    assert persistence.get_data_attribute(Mapped.color) is Color.RED
    assert persistence.get_data_attribute(Mapped.address) == Address(city="Oslo")


def test_null_reads_as_none_whatever_the_type_and_none_is_written_as_null() -> None:
    persistence = mapped(age=None, nickname="Bee")

    assert persistence.get_data_attribute(Mapped.age) is None
    assert not persistence.has_data_attribute("age")
    persistence.set_data_attribute(Mapped.nickname, None)
    assert persistence.get_data_attribute(Mapped.nickname) is None
    assert persistence.effects().write_tables == (TableWrite(table_name="people", columns={"nickname": None}),)


def test_a_deleted_row_reads_as_none_and_can_be_written() -> None:
    table = LoadedTable(table_name="people", exists=False, columns={"full_name": None})
    persistence = Persistence(MAPPED, LoadedData(tables=(table,)), where="Step.execute")

    assert persistence.get_data_attribute(Mapped.name) is None
    persistence.set_data_attribute(Mapped.name, "Ann")
    assert persistence.effects().write_tables == (TableWrite(table_name="people", columns={"full_name": "Ann"}),)


def test_a_call_reads_its_own_writes_and_sends_only_them() -> None:
    persistence = mapped(full_name="Ann", age=30)
    address = Address(city="Oslo")

    persistence.set_data_attribute(Mapped.age, 31)
    persistence.set_data_attribute(Mapped.address, address)
    address.city = "changed after it was set"

    assert persistence.get_data_attribute(Mapped.age) == 31
    assert persistence.get_data_attribute(Mapped.address) == Address(city="Oslo")
    (write,) = persistence.effects().write_tables
    assert write.columns == {"age": 31, "address": {"$json": {"city": "Oslo"}}}


def test_an_attribute_that_was_not_loaded_is_an_error_until_it_is_written() -> None:
    persistence = mapped(full_name="Ann")

    for read in (persistence.get_data_attribute, persistence.has_data_attribute):
        with pytest.raises(AttributeNotLoadedError, match=r"'age' is not loaded in Step\.execute") as caught:
            read("age")
        assert caught.value.attribute_name == "age"
    persistence.set_data_attribute("age", 1)
    assert persistence.get_data_attribute("age") == 1


def test_an_undeclared_attribute_is_an_error_that_names_the_nearest() -> None:
    persistence = mapped()

    with pytest.raises(InvalidArgumentError, match="Mapped declares no data attribute 'nmae'; did you mean 'name'"):
        persistence.get_data_attribute("nmae")
    with pytest.raises(InvalidArgumentError, match="Mapped declares no data attribute 'zzz'; there are 'address'"):
        persistence.set_data_attribute("zzz", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("age", "30"), ("age", True), ("age", None), ("name", 5), ("name", "a\0b"), ("color", "blue"), ("nickname", 1)],
    ids=str,
)
def test_a_value_of_a_wrong_type_is_refused(name: str, value: Any) -> None:
    persistence = mapped()

    with pytest.raises(EncodeError, match=f"data attribute '{name}' of Mapped"):
        persistence.set_data_attribute(name, value)

    assert persistence.effects().write_tables == ()


def test_the_primary_key_is_never_written() -> None:
    with pytest.raises(InvalidArgumentError, match="is the primary key"):
        mapped(id=7).set_data_attribute(Mapped.id, 8)


def test_stored_data_of_another_type_is_an_error_that_names_the_attribute() -> None:
    with pytest.raises(DecodeError, match="data attribute 'color' of Mapped"):
        mapped(color="blue").get_data_attribute(Mapped.color)


def test_process_local_values_tell_unset_from_none() -> None:
    persistence = local({"note": None})

    assert persistence.get_data_attribute(Local.note) is None
    assert persistence.has_data_attribute(Local.note)
    assert persistence.get_data_attribute(Local.count) is None
    assert not persistence.has_data_attribute(Local.count)


@pytest.mark.parametrize("value", [0, 1, -(2**70)], ids=str)
def test_falsy_and_large_local_values_stay_what_they_are(value: int) -> None:
    persistence = local({"count": value})

    assert persistence.get_data_attribute(Local.count) == value
    assert persistence.has_data_attribute(Local.count)


def test_process_local_values_are_written_by_name() -> None:
    persistence = local()

    persistence.set_data_attribute(Local.count, 0)
    persistence.set_data_attribute(Local.scores.named("ann"), 5)

    assert persistence.get_data_attribute("score_ann") == 5
    assert persistence.effects().write_local_attributes == {"count": 0, "score_ann": 5}
    assert persistence.effects().write_tables == ()


def test_prefix_attributes_are_loaded_by_prefix() -> None:
    persistence = local({"score_ann": 5})

    assert persistence.get_data_attribute(Local.scores.named("ann")) == 5
    assert persistence.get_data_attribute("score_bob") is None
    with pytest.raises(InvalidArgumentError, match="no data attribute 'sco_ann'"):
        persistence.get_data_attribute("sco_ann")


def test_process_local_values_that_were_not_asked_for_are_an_error() -> None:
    persistence = local(policy=PersistenceLoadingPolicy.partial(["note"]))

    assert persistence.get_data_attribute("note") is None
    for name in ("count", "score_ann"):
        with pytest.raises(AttributeNotLoadedError):
            persistence.get_data_attribute(name)


def test_state_locals_are_read_written_and_collected() -> None:
    persistence = local(state_locals={"sent_at": "noon"})

    persistence.set_state_execution_local("address", Address(city="Oslo"))

    assert persistence.get_state_execution_local("sent_at") == "noon"
    assert persistence.get_state_execution_local("address") == {"city": "Oslo"}
    assert persistence.get_state_execution_local("address", Address) == Address(city="Oslo")
    assert persistence.get_state_execution_local("never") is None
    assert persistence.effects().state_locals == {"address": {"city": "Oslo"}}


def test_state_local_is_written_as_its_type_hint_says() -> None:
    persistence = local(state_locals={})

    persistence.set_state_execution_local("when", {date(2026, 3, 1): "party"}, dict[date, str])

    assert persistence.effects().state_locals == {"when": {"2026-03-01": "party"}}
    assert persistence.get_state_execution_local("when", dict[date, str]) == {date(2026, 3, 1): "party"}
    with pytest.raises(EncodeError, match="state local 'when'"):
        persistence.set_state_execution_local("when", "noon", dict[date, str])


def test_an_rpc_has_no_state_locals() -> None:
    persistence = local()

    with pytest.raises(InvalidArgumentError, match=r"Local\.call is an RPC.*use a data attribute"):
        persistence.get_state_execution_local("x")
    with pytest.raises(InvalidArgumentError, match="is an RPC"):
        persistence.set_state_execution_local("x", 1)


def test_events_keep_their_order_and_values() -> None:
    persistence = local()

    persistence.record_event("paid", 3, {"by": "card"}, None)
    persistence.record_event("sent")

    assert persistence.effects().recorded_events == (
        RecordedEvent(name="paid", data=(3, {"by": "card"}, None)),
        RecordedEvent(name="sent"),
    )
    with pytest.raises(InvalidArgumentError, match="event name is empty"):
        persistence.record_event("")


def test_a_read_only_call_writes_nothing() -> None:
    persistence = local({"count": 1}, read_only=True)

    assert persistence.get_data_attribute(Local.count) == 1
    with pytest.raises(InvalidArgumentError, match=r"Local\.call is declared read_only and cannot set data attribute"):
        persistence.set_data_attribute(Local.count, 2)
    with pytest.raises(InvalidArgumentError, match="cannot record event 'x'"):
        persistence.record_event("x")


READ = ReadRequest(tables=(TableRead(table_name="people", columns=("full_name", "age")),))


@pytest.mark.parametrize(
    ("columns", "is_missing"),
    [
        ({"full_name": "A", "age": 1, "more": 2}, False),
        ({"full_name": None, "age": None}, False),
        ({"full_name": "A"}, True),
        ({}, True),
    ],
    ids=["all there", "no row", "one is missing", "none"],
)
def test_columns_that_an_older_definition_did_not_ask_for_are_missing(
    columns: dict[str, Any], is_missing: bool
) -> None:
    loaded = LoadedData(tables=(LoadedTable(table_name="people", columns=columns),))

    assert missing_read(READ, loaded) == (READ if is_missing else None)


def test_a_table_that_an_older_definition_did_not_map_is_missing() -> None:
    assert missing_read(READ, LoadedData()) is READ


def test_unset_local_attribute_that_was_asked_for_is_not_missing() -> None:
    read = ReadRequest(local_attributes=("count",), local_attribute_prefixes=("item_",))
    loaded = LoadedData(asked_local_attributes=("count", "old"), asked_local_attribute_prefixes=("item_",))

    assert missing_read(read, loaded) is None


@pytest.mark.parametrize(
    "loaded",
    [
        LoadedData(),
        LoadedData(asked_local_attributes=("count",)),
        LoadedData(asked_local_attribute_prefixes=("item_",)),
    ],
    ids=["nothing asked", "prefix not asked", "name not asked"],
)
def test_local_attribute_that_nobody_asked_for_is_missing(loaded: LoadedData) -> None:
    read = ReadRequest(local_attributes=("count",), local_attribute_prefixes=("item_",))

    assert missing_read(read, loaded) is read


def test_nothing_to_read_is_never_missing() -> None:
    assert missing_read(ReadRequest(), LoadedData()) is None
