"""What a start writes into the application's row and into the process, and what it refuses to (semantics 1.5)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.service_http import nothing_was_started, post, start_of
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    ConflictMode,
    ErrorSubType,
    IdReusePolicy,
    ObjectProcess,
    Persistence,
    ProcessAlreadyStartedError,
    ProcessStartOptions,
    StateDecision,
    data_attribute,
    process,
)

seen: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    """Begin with nothing seen by any state."""
    seen.clear()


class ReadState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        seen.append({name: persistence.get_data_attribute(name) for name in ("owner", "age")})
        return StateDecision.graceful_complete_process()


class LocalPetProcess(ObjectProcess):
    owner = data_attribute(str)
    age = data_attribute(int)
    starting_state = ReadState


@process(table_name="pet", primary_key="name", primary_key_type=str)
class PetProcess(ObjectProcess):
    owner = data_attribute(str)
    age = data_attribute(int)
    starting_state = ReadState


@pytest.fixture
def pets(system: System) -> System:
    """Give a system whose application has a table of pets with one row."""
    system.serve(PetProcess)
    system.sql("CREATE TABLE pet (name VARCHAR(255) PRIMARY KEY, owner TEXT, age INTEGER CHECK (age < 100))")
    system.sql("INSERT INTO pet VALUES ('rex', 'Ann', 3)")
    return system


def all_pets(system: System) -> Sequence[Any]:
    """Give the application's rows."""
    return system.sql("SELECT name, owner, age FROM pet ORDER BY name")


def writing(mode: ConflictMode = ConflictMode.OVERRIDE_ON_CONFLICT, **values: Any) -> ProcessStartOptions:
    """Give options with initial attributes."""
    return ProcessStartOptions(initial_upsert_data_attributes=values, conflict_mode=mode)


async def test_initial_attributes_are_there_for_the_first_state(pets: System) -> None:
    pets.serve(LocalPetProcess)
    options = writing(owner="Bob", age=5)

    await pets.client.start_object_process("mapped", PetProcess, "tom", None, options)
    await pets.client.start_process("local", LocalPetProcess, None, options)
    await asyncio.sleep(1)

    assert seen == [{"owner": "Bob", "age": 5}] * 2
    assert ("tom", "Bob", 5) in all_pets(pets)


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (ConflictMode.IGNORE_CONFLICT, ("rex", "Ann", 3)),
        (ConflictMode.OVERRIDE_ON_CONFLICT, ("rex", "Bob", 3)),
    ],
    ids=str,
)
async def test_start_over_an_existing_row_writes_as_its_conflict_mode_says(
    pets: System, mode: ConflictMode, found: tuple[str, str, int]
) -> None:
    await pets.client.start_object_process("p", PetProcess, "rex", None, writing(mode, owner="Bob"))
    await pets.client.wait_for_process_completion("p")

    assert all_pets(pets) == [found]
    assert seen == [{"owner": found[1], "age": found[2]}]


async def test_start_over_an_existing_row_is_refused_if_asked_so(pets: System) -> None:
    options = writing(ConflictMode.RETURN_ERROR_ON_CONFLICT, owner="Bob")

    with pytest.raises(ClientSideError) as failure:
        await pets.client.start_object_process("p", PetProcess, "rex", None, options)
    await pets.client.start_object_process("q", PetProcess, "tom", None, options)

    assert (failure.value.status, failure.value.error_sub_type) == (424, ErrorSubType.APP_DATABASE_WRITE_ERROR)
    assert failure.value.body.app_database_table == "pet"
    assert all_pets(pets) == [("rex", "Ann", 3), ("tom", "Bob", None)]
    assert pets.sql("SELECT process_id FROM xdb_sys_process_execution") == [("q",)]


async def test_initial_value_that_the_database_refuses_starts_nothing(pets: System) -> None:
    mapping = {"tableName": "pet", "primaryKey": {"name": "rex"}, "initialWrite": {"age": 100}}

    response = await post(pets, "start", start_of("PetProcess", tables=[mapping]))

    assert (response.status_code, response.json()["errorSubType"]) == (424, ErrorSubType.APP_DATABASE_WRITE_ERROR)
    assert response.json()["appDatabaseTable"] == "pet"
    assert all_pets(pets) == [("rex", "Ann", 3)]
    assert nothing_was_started(pets)


async def test_completed_process_is_restarted_over_the_same_object(pets: System) -> None:
    runs = []

    for owner in ("Bob", "Cleo"):
        runs.append(await pets.client.start_object_process("p", PetProcess, "rex", None, writing(owner=owner)))
        await pets.client.wait_for_process_completion("p")

    assert len(set(runs)) == 2
    assert seen == [{"owner": "Bob", "age": 3}, {"owner": "Cleo", "age": 3}]


async def test_start_that_the_reuse_policy_refuses_leaves_the_row_alone(pets: System) -> None:
    await pets.client.start_object_process("p", PetProcess, "rex")
    await pets.client.wait_for_process_completion("p")
    options = ProcessStartOptions(
        id_reuse_policy=IdReusePolicy.DISALLOW_REUSE, initial_upsert_data_attributes={"owner": "Bob"}
    )

    with pytest.raises(ProcessAlreadyStartedError):
        await pets.client.start_object_process("p", PetProcess, "rex", None, options)

    assert all_pets(pets) == [("rex", "Ann", 3)]


@pytest.mark.parametrize(
    ("mapping", "named"),
    [
        pytest.param({"tableName": "cat", "primaryKey": {"name": "rex"}}, "cat", id="unknown table"),
        pytest.param({"tableName": "pet", "primaryKey": {"id": 1}}, "id", id="unknown key column"),
        pytest.param(
            {"tableName": "pet", "primaryKey": {"name": "rex"}, "initialWrite": {"colour": "red"}},
            "colour",
            id="unknown column",
        ),
        pytest.param({"tableName": "pet", "primaryKey": {}}, "primary key", id="no key value"),
        pytest.param(
            {"tableName": "pet", "primaryKey": {"name": "rex", "age": 3}}, "primary key", id="too many key values"
        ),
        pytest.param({"tableName": "xdb_sys_cluster", "primaryKey": {"name": "x"}}, "xdb_sys", id="system table"),
    ],
)
async def test_mapping_that_does_not_fit_the_table_starts_nothing(
    pets: System, mapping: dict[str, Any], named: str
) -> None:
    response = await post(pets, "start", start_of("PetProcess", tables=[mapping]))

    assert (response.status_code, response.json()["errorSubType"]) == (400, ErrorSubType.INVALID_REQUEST)
    assert named in response.json()["details"]
    assert nothing_was_started(pets)
    assert all_pets(pets) == [("rex", "Ann", 3)]
