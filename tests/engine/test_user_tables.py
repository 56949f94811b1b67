"""The application's own table under a process: its rows, its constraints, its changes of the schema (semantics 7)."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from tests.support.databases import Kind
from tests.support.system import System
from tests.support.virtual_time import EPOCH_MS
from xdb_sdk import (
    AsyncState,
    ClientSideError,
    CommandRequest,
    Communication,
    DataAttribute,
    ErrorSubType,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    ProcessErrorType,
    ProcessFailed,
    ProcessStartOptions,
    ProcessStatus,
    RetryPolicy,
    RpcExecutionError,
    StateDecision,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)

A_DAY = timedelta(days=1)

contexts: list[ProcessContext] = []


@pytest.fixture(autouse=True)
def people(system: System) -> None:
    """Give the application its table."""
    contexts.clear()
    system.sql(
        "CREATE TABLE person (person_id VARCHAR(255) PRIMARY KEY, name TEXT, email VARCHAR(255) UNIQUE,"
        " age INTEGER CHECK (age >= 0), team TEXT NOT NULL DEFAULT 'none')"
    )


class TakeState(AsyncState[None]):
    """Waits, and then counts the age up."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("go"))

    def execute(self, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        contexts.append(ctx)
        age = persistence.get_data_attribute(PersonProcess.age)
        persistence.set_data_attribute(PersonProcess.age, (age or 0) + 1)
        return StateDecision.single_next_state(TakeState)


@process(table_name="person", primary_key="person_id", primary_key_type=str)
class PersonProcess(ObjectProcess):
    name: DataAttribute[str | None] = data_attribute(str | None)
    email = data_attribute(str)
    age = data_attribute(int)
    go = internal_queue(None)

    starting_state: ClassVar[Any] = TakeState

    @rpc
    def get_name(self, persistence: Persistence) -> list[Any]:
        return [persistence.has_data_attribute("name"), persistence.get_data_attribute("name")]

    @rpc
    def set(self, values: dict[str, Any], persistence: Persistence, communication: Communication) -> None:
        for name, value in values.items():
            persistence.set_data_attribute(name, value)
        communication.publish_to_internal_queue(PersonProcess.go)


async def start(system: System, process_class: type[ObjectProcess] = PersonProcess, **attributes: Any) -> None:
    """Serve a class and start process "p" of it on the row of "ann"."""
    system.serve(process_class)
    options = ProcessStartOptions(initial_upsert_data_attributes=attributes, timeout=A_DAY)
    await system.client.start_object_process("p", process_class, "ann", None, options)


async def go(system: System, number: int) -> None:
    """Let the waiting state run, and wait until it has."""
    await system.client.publish_to_internal_queue("p", PersonProcess, PersonProcess.go)
    await system.client.wait_for_state_completion("p", TakeState, number)


async def test_null_reads_as_none_and_none_is_stored_as_null(system: System) -> None:
    await start(system, name=None, age=1)
    found = [await system.client.invoke_rpc("p", PersonProcess.get_name)]

    await system.client.invoke_rpc("p", PersonProcess.set, {"name": "Ann"})
    found.append(await system.client.invoke_rpc("p", PersonProcess.get_name))
    await system.client.invoke_rpc("p", PersonProcess.set, {"name": None})
    found.append(await system.client.invoke_rpc("p", PersonProcess.get_name))

    assert found == [[False, None], [True, "Ann"], [False, None]]
    assert system.sql("SELECT name, team FROM person") == [(None, "none")]


async def test_what_the_application_changes_between_steps_is_seen_by_the_next(system: System) -> None:
    await start(system, age=1)
    await go(system, 1)

    system.sql("UPDATE person SET age = 40, team = 'blue'")
    await go(system, 2)

    assert system.sql("SELECT age, team FROM person") == [(41, "blue")]


async def test_row_that_was_deleted_reads_as_none_and_is_inserted_by_the_next_write(system: System) -> None:
    await start(system, name="Ann", age=40)
    system.sql("DELETE FROM person")

    deleted = await system.client.invoke_rpc("p", PersonProcess.get_name)
    outside = await system.client.get_data_attributes("p", PersonProcess)
    await go(system, 1)

    assert deleted == [False, None]
    assert outside == {"name": None, "email": None, "age": None}
    assert system.sql("SELECT * FROM person") == [("ann", None, None, 1, "none")]


async def test_row_that_cannot_be_inserted_without_other_columns_is_a_write_error(system: System) -> None:
    system.sql("DROP TABLE person")
    system.sql(
        "CREATE TABLE person (person_id VARCHAR(255) PRIMARY KEY,"
        " name TEXT, email TEXT, age INTEGER, team TEXT NOT NULL)"
    )
    system.sql("INSERT INTO person VALUES ('ann', 'Ann', NULL, 40, 'blue')")
    await start(system)
    await go(system, 1)
    system.sql("DELETE FROM person")

    with pytest.raises(RpcExecutionError) as failure:
        await system.client.invoke_rpc("p", PersonProcess.set, {"age": 5})

    assert failure.value.error_sub_type is ErrorSubType.APP_DATABASE_WRITE_ERROR
    assert "team" in failure.value.body.details
    assert system.sql("SELECT * FROM person") == []


@state(execute_api_retry_policy=RetryPolicy(initial_interval_seconds=2, maximum_attempts=3))
class ClaimState(AsyncState[None]):
    """Takes an address that must be unique, and leaves other traces on the way."""

    async def execute(
        self, ctx: ProcessContext, persistence: Persistence, communication: Communication
    ) -> StateDecision:
        contexts.append(ctx)
        persistence.set_data_attribute(ClaimProcess.name, "claimed")
        persistence.set_data_attribute(ClaimProcess.email, "taken@x.y")
        communication.publish_to_internal_queue(ClaimProcess.go)
        return StateDecision.single_next_state(AfterState)


class AfterState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("claimed")


@state(
    execute_api_retry_policy=RetryPolicy(initial_interval_seconds=1, maximum_attempts=2),
    proceed_to_state_when_execute_retry_exhausted=AfterState,
)
class RecoveringClaimState(ClaimState):
    pass


@process(table_name="person", primary_key="person_id", primary_key_type=str)
class ClaimProcess(ObjectProcess):
    name = data_attribute(str)
    email = data_attribute(str)
    go = internal_queue(None)

    starting_state: ClassVar[Any] = ClaimState
    states = (AfterState,)


class RecoveringClaimProcess(ClaimProcess):
    starting_state = RecoveringClaimState


def seconds(at: datetime | None) -> float:
    """Give the time since the test began."""
    assert at is not None
    return (at - datetime.fromtimestamp(EPOCH_MS / 1_000, UTC)).total_seconds()


async def test_unique_violation_in_the_write_of_a_state_is_a_failed_attempt_that_is_backed_off(system: System) -> None:
    system.sql("INSERT INTO person (person_id, email) VALUES ('bob', 'taken@x.y')")
    await start(system, ClaimProcess)

    with pytest.raises(ProcessFailed) as failure:
        await system.client.wait_for_process_completion("p")
    info = await system.client.describe_process("p", include={"closed_states", "queues"})

    assert [ctx.attempt for ctx in contexts] == [1, 2, 3]
    assert seconds(info.closed_at) == pytest.approx(2 + 4, abs=0.01)
    assert failure.value.error_type is ProcessErrorType.STATE_API
    assert "person: UNIQUE:" in failure.value.error_message
    assert info.queue_sizes == {}
    assert [each.state_id for each in info.states] == ["ClaimState"]
    assert system.sql("SELECT person_id, name FROM person") == [("bob", None)]


UNIQUE_VIOLATION: dict[Kind, str] = {
    "sqlite": "SQLITE_CONSTRAINT_UNIQUE",
    "postgresql": "23505",
    "mariadb": "1062",
}


async def test_next_attempt_is_told_what_the_database_said(system: System) -> None:
    system.sql("INSERT INTO person (person_id, email) VALUES ('bob', 'taken@x.y')")
    await start(system, ClaimProcess)
    await asyncio.sleep(1)
    failed = await system.client.describe_process("p")
    system.sql("DELETE FROM person")

    result = await system.client.wait_for_process_completion("p", str)

    first, second = (ctx.last_database_error for ctx in contexts)
    assert first is None
    assert second is not None
    assert (second.operation, second.kind, second.table_name) == ("WRITE", "UNIQUE", "person")
    assert second.code == UNIQUE_VIOLATION[system.database.kind]
    [state_info] = failed.states
    assert state_info.last_failure is not None
    assert state_info.last_failure.error_type == "APP_DATABASE_WRITE_ERROR"
    assert seconds(state_info.next_attempt_at) == pytest.approx(2, abs=0.01)
    assert result == "claimed"
    assert system.sql("SELECT * FROM person") == [("ann", "claimed", "taken@x.y", None, "none")]


async def test_unique_violation_that_goes_on_leads_to_the_recovery_state(system: System) -> None:
    system.sql("INSERT INTO person (person_id, email) VALUES ('bob', 'taken@x.y')")
    await start(system, RecoveringClaimProcess)

    result = await system.client.wait_for_process_completion("p", str)

    assert result == "claimed"
    assert [ctx.attempt for ctx in contexts] == [1, 2]
    assert system.worker.count("AfterState") == 1


async def test_failing_write_of_one_process_hurts_no_other(system: System) -> None:
    system.sql("INSERT INTO person (person_id, email) VALUES ('bob', 'taken@x.y')")
    system.serve(ClaimProcess, PersonProcess)
    options = ProcessStartOptions(timeout=A_DAY)
    others = [f"other-{number}" for number in range(20)]

    await asyncio.gather(
        system.client.start_object_process("p", ClaimProcess, "ann", None, options),
        *(system.client.start_object_process(each, PersonProcess, each, None, options) for each in others),
    )
    await asyncio.gather(
        *(system.client.publish_to_internal_queue(each, PersonProcess, PersonProcess.go) for each in others)
    )
    for each in others:
        await system.client.wait_for_state_completion(each, TakeState)
    await asyncio.sleep(10)

    assert len([ctx for ctx in contexts if ctx.process_type == "PersonProcess"]) == 20
    assert system.sql("SELECT count(*) FROM person WHERE age = 1") == [(20,)]
    assert (await system.client.describe_process("p")).status is ProcessStatus.FAILED


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"name": "Bea", "email": "taken@x.y"}, "UNIQUE"),
        ({"name": "Bea", "age": -1}, "CHECK"),
        ({"age": -1, "name": "Bea"}, "CHECK"),
    ],
    ids=str,
)
async def test_of_two_attributes_that_are_written_both_are_kept_or_none(
    system: System, values: dict[str, Any], kind: str
) -> None:
    system.sql("INSERT INTO person (person_id, email) VALUES ('bob', 'taken@x.y')")
    await start(system, name="Ann", age=40)
    before = system.sql("SELECT * FROM person ORDER BY person_id")

    with pytest.raises(RpcExecutionError) as by_rpc:
        await system.client.invoke_rpc("p", PersonProcess.set, values)
    with pytest.raises(ClientSideError) as from_outside:
        await system.client.set_data_attributes("p", PersonProcess, values)

    for error in (by_rpc.value, from_outside.value):
        assert (error.status, error.error_sub_type) == (424, ErrorSubType.APP_DATABASE_WRITE_ERROR)
        assert error.body.app_database_table == "person"
        assert kind in error.body.details
    assert system.sql("SELECT * FROM person ORDER BY person_id") == before
    assert (await system.client.describe_process("p", include={"queues"})).queue_sizes == {}


async def test_start_whose_first_write_is_refused_starts_nothing(system: System) -> None:
    with pytest.raises(ClientSideError) as failure:
        await start(system, name="Ann", age=-1)

    assert (failure.value.status, failure.value.error_sub_type) == (424, ErrorSubType.APP_DATABASE_WRITE_ERROR)
    assert [each async for each in system.client.list_processes()] == []
    assert system.sql("SELECT * FROM person") == []


@pytest.mark.parametrize(
    ("breaking", "mending", "kind"),
    [
        ("ALTER TABLE person DROP COLUMN age", "ALTER TABLE person ADD COLUMN age INTEGER", "UNKNOWN_COLUMN"),
        ("ALTER TABLE person RENAME COLUMN name TO n", "ALTER TABLE person RENAME COLUMN n TO name", "UNKNOWN_COLUMN"),
        ("ALTER TABLE person RENAME TO persons", "ALTER TABLE persons RENAME TO person", "UNKNOWN_TABLE"),
    ],
    ids=["column dropped", "column renamed", "table renamed"],
)
async def test_read_that_fails_before_execute_is_a_failed_attempt_and_the_next_is_told(
    system: System, breaking: str, mending: str, kind: str
) -> None:
    system.sql("DROP TABLE person")
    system.sql("CREATE TABLE person (person_id VARCHAR(255) PRIMARY KEY, name TEXT, email TEXT, age INTEGER)")
    await start(system, name="Ann")
    system.sql(breaking)
    await system.client.publish_to_internal_queue("p", PersonProcess, PersonProcess.go)
    await asyncio.sleep(0.5)
    broken = await system.client.describe_process("p")
    executed = system.worker.count("TakeState")

    system.sql(mending)
    await system.client.wait_for_state_completion("p", TakeState)

    assert executed == 0
    [failed] = broken.states
    assert failed.last_failure is not None
    assert (failed.last_failure.error_type, failed.last_failure.attempt) == ("APP_DATABASE_READ_ERROR", 1)
    assert kind in failed.last_failure.details
    [context] = contexts
    assert context.attempt == 2
    assert context.last_database_error is not None
    assert (context.last_database_error.operation, context.last_database_error.kind) == ("READ", kind)
    assert system.sql("SELECT name, age FROM person") == [("Ann", 1)]


async def test_read_that_fails_before_an_rpc_is_told_to_its_caller(system: System) -> None:
    await start(system, name="Ann")
    system.sql("ALTER TABLE person RENAME COLUMN name TO full_name")
    calls = len(system.worker.calls)

    with pytest.raises(RpcExecutionError) as failure:
        await system.client.invoke_rpc("p", PersonProcess.get_name)

    assert (failure.value.status, failure.value.error_sub_type) == (424, ErrorSubType.APP_DATABASE_READ_ERROR)
    assert failure.value.body.app_database_table == "person"
    assert len(system.worker.calls) == calls


AUDIT = "INSERT INTO audit VALUES (old.age || ' to ' || new.age)"
SQLITE_TRIGGER = f"""
    CREATE TRIGGER audited AFTER UPDATE ON person
    BEGIN {AUDIT}; SELECT RAISE(ABORT, 'too old') WHERE new.age > 41; END"""
POSTGRES_FUNCTION = f"""
    CREATE OR REPLACE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN {AUDIT}; IF new.age > 41 THEN RAISE 'too old'; END IF; RETURN NULL; END $$"""
POSTGRES_TRIGGER = "CREATE TRIGGER audited AFTER UPDATE ON person FOR EACH ROW EXECUTE FUNCTION audit()"
MARIADB_TRIGGER = f"""
    CREATE TRIGGER audited AFTER UPDATE ON person FOR EACH ROW
    BEGIN {AUDIT}; IF new.age > 41 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too old'; END IF; END"""
AUDITING: dict[Kind, list[str]] = {
    "sqlite": [SQLITE_TRIGGER],
    "postgresql": [POSTGRES_FUNCTION, POSTGRES_TRIGGER],
    "mariadb": [MARIADB_TRIGGER],
}


async def test_trigger_of_the_application_acts_with_the_write(system: System) -> None:
    system.sql("CREATE TABLE audit (entry TEXT)")
    for statement in AUDITING[system.database.kind]:
        system.sql(statement)
    await start(system, age=40)
    await go(system, 1)

    with pytest.raises(RpcExecutionError, match="too old"):
        await system.client.invoke_rpc("p", PersonProcess.set, {"age": 90})

    assert system.sql("SELECT * FROM audit") == [("40 to 41",)]
    assert system.sql("SELECT age FROM person") == [(41,)]
