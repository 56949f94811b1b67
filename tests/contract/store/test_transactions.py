"""Executions and their states: what is written is what is loaded, all of it or nothing."""

import asyncio
import copy
from typing import Any

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import (
    HistoryEvent,
    LocalAttributeWrite,
    ProcessKey,
    RememberedSkip,
    RowWrite,
    Wait,
    json_text,
)
from server_stub.core.ports import ConcurrentStart, Loaded, RowWriteFailed, Store
from tests.contract.store.databases import Database
from tests.contract.store.works import (
    NAMESPACE,
    Deciding,
    created,
    event,
    load,
    load_one,
    message,
    process,
    row_key,
    state,
    timer,
    write,
)
from xdb_sdk.protocol import (
    AttemptFailureInfo,
    CommandRequestBody,
    CommandResultsBody,
    DatabaseErrorInfo,
    ExecuteStatus,
    HistoryEventType,
    InternalQueueCommandRequest,
    InternalQueueResult,
    ProcessErrorInfo,
    ProcessErrorType,
    ProcessStatus,
    QueueCommandStatus,
    ReadRequest,
    ReceivedMessage,
    RecoverFrom,
    RecoveryConfig,
    RetryPolicyConfig,
    StateApi,
    StateOptionsConfig,
    StateOutput,
    StateStatus,
    TableMapping,
    TableRead,
    TimerCommandRequest,
    TimerResult,
    TimerStatus,
    WaitingType,
    WaitUntilStatus,
)

BIG = 2**80 + 1
ODD_TEXT = "quotes ' \" `, % _ \\, ünïcödé 漢字 🦉, line\nbreak"


def full_process() -> dict[str, Any]:
    """Give every field of a process execution a value that is not its default."""
    return {
        "object_id": {"$bytes": "AAE="},
        "tables": (TableMapping(table_name="users", primary_key={"id": BIG}),),
        "status": ProcessStatus.FAILED,
        "timeout_at_ms": 5_000,
        "closed_at_ms": 4_000,
        "reason": ODD_TEXT,
        "error": ProcessErrorInfo(error_type=ProcessErrorType.STATE_API, message=ODD_TEXT, api=StateApi.EXECUTE),
        "graceful_complete_requested": True,
        "outputs": (StateOutput(state_id="S", state_execution_id="S-1", output={"n": BIG, "none": None}),),
        "state_counters": {"S": 3, "other-state": 1},
        "remembered_skips": (RememberedSkip("S", 4, None, 0), RememberedSkip("S", 4, "reminder", None)),
        "next_sequence_id": 8,
        "next_wait_order": 9,
        "paused_at_ms": 1_700,
        "version": 7,
    }


def full_state() -> dict[str, Any]:
    """Give every field of a state execution a value that is not its default."""
    return {
        "input": '{"n":1208925819614629174706177}',
        "options": StateOptionsConfig(
            skip_wait_until=True,
            execute_api_retry_policy=RetryPolicyConfig(maximum_attempts=3),
            execute_recovery=RecoveryConfig(state_id="R", options=StateOptionsConfig(skip_wait_until=True)),
            execute_read=ReadRequest(tables=(TableRead(table_name="users", columns=("form",)),)),
        ),
        "wait_until_status": WaitUntilStatus.WAITING_COMMANDS_COMPLETED,
        "execute_status": ExecuteStatus.RUNNING,
        "wait_for_key": ODD_TEXT,
        "recover_from": RecoverFrom(state_execution_id="S-1", api=StateApi.EXECUTE, details=ODD_TEXT, attempts=3),
        "attempt": 4,
        "first_attempt_at_ms": 1_500,
        "due_at_ms": 2_000,
        "held_due_at_ms": 1_900,
        "wait": Wait(
            order=2,
            commands=CommandRequestBody(
                waiting_type=WaitingType.ALL,
                timer_commands=(TimerCommandRequest(command_id="t", fire_at_ms=9_000),),
                internal_queue_commands=(
                    InternalQueueCommandRequest(queue_name="a", at_least=1, at_most=2),
                    InternalQueueCommandRequest(queue_name="b"),
                ),
            ),
            timer_statuses=[TimerStatus.FIRED],
            received=[(ReceivedMessage(message_id="m", payload=BIG), ReceivedMessage(payload=False)), None],
        ),
        "command_results": CommandResultsBody(
            timer_results=(TimerResult(command_id="t", status=TimerStatus.SKIPPED),),
            internal_queue_results=(
                InternalQueueResult(
                    queue_name="a",
                    status=QueueCommandStatus.RECEIVED,
                    messages=(ReceivedMessage(payload={"n": BIG}),),
                ),
            ),
            wait_until_api_succeeded=False,
        ),
        "state_locals": {"big": BIG, "none": None, "text": ODD_TEXT},
        "last_failure": AttemptFailureInfo(
            api=StateApi.EXECUTE, http_status=424, error_type="E", details=ODD_TEXT, attempt=3, at_ms=1_900
        ),
        "last_database_error": DatabaseErrorInfo(operation="WRITE", kind="UNIQUE", message=ODD_TEXT),
        "output": "false",
        "closed_at_ms": 3_000,
        "version": 5,
    }


async def test_a_new_process_is_loaded_as_it_was_written(store: Store) -> None:
    written = process(**full_process())

    await write(store, created(copy.deepcopy(written)))

    assert (await load_one(store)).process == written


async def test_a_new_state_is_loaded_as_it_was_written(store: Store) -> None:
    written = state(**full_state())

    await write(store, created(process(), copy.deepcopy(written)))

    assert list((await load_one(store)).states.values()) == [written]


async def test_a_changed_process_is_loaded_as_it_was_changed(store: Store) -> None:
    await write(store, created(process()))
    changed = process(**{**full_process(), "object_id": None, "tables": ()}, worker_url="http://moved")

    await write(store, Changes(changed_processes={"e-1": copy.deepcopy(changed)}))

    assert (await load_one(store)).process == changed


async def test_a_changed_state_is_loaded_as_it_was_changed_with_its_frozen_input_and_options(store: Store) -> None:
    frozen = {name: full_state()[name] for name in ("input", "options", "wait_for_key", "recover_from")}
    await write(store, created(process(), state(**frozen)))
    changed = state(**full_state())

    await write(store, Changes(changed_states={changed.key: copy.deepcopy(changed)}))

    assert list((await load_one(store)).states.values()) == [changed]


async def test_only_open_states_are_loaded_in_order_of_creation(store: Store) -> None:
    states = [state(state_id=name) for name in ("Z", "M", "closed", "A")]
    states[2].status = StateStatus.COMPLETED

    await write(store, created(process(), *states))

    assert [key.state_id for key in (await load_one(store)).states] == ["Z", "M", "A"]


async def test_a_closed_execution_is_loaded_without_states(store: Store) -> None:
    await write(store, created(process(status=ProcessStatus.COMPLETED), state(status=StateStatus.COMPLETED)))

    execution = await load_one(store)

    assert execution.process.status is ProcessStatus.COMPLETED
    assert execution.states == {}


async def test_an_unknown_execution_is_absent(store: Store) -> None:
    loaded = await load(store, "nobody", process_keys=[ProcessKey(NAMESPACE, "nobody")])

    assert (loaded.executions, loaded.current) == ({}, {})


async def test_a_process_key_finds_the_current_execution_with_its_states(store: Store) -> None:
    await write(store, created(process(process_id="p"), state()))

    loaded = await load(store, "e-1", process_keys=[ProcessKey(NAMESPACE, "p")])

    assert loaded.current == {ProcessKey(NAMESPACE, "p"): "e-1"}
    assert list(loaded.executions) == ["e-1"]
    assert len(loaded.executions["e-1"].states) == 1


@pytest.mark.parametrize("other", ["P", "p ", " p", "ṕ", "p\u0301"], ids=ascii)
async def test_ids_compare_byte_by_byte(store: Store, other: str) -> None:
    await write(store, created(process("e-1", process_id="p"), process("E-1", process_id=other)))

    loaded = await load(store, process_keys=[ProcessKey(NAMESPACE, "p"), ProcessKey(NAMESPACE, other)])

    assert loaded.current == {ProcessKey(NAMESPACE, "p"): "e-1", ProcessKey(NAMESPACE, other): "E-1"}


async def test_namespaces_have_process_ids_of_their_own(store: Store) -> None:
    await write(store, created(process("e-1", process_id="p"), process("e-2", process_id="p", namespace="other")))

    loaded = await load(store, process_keys=[ProcessKey("other", "p")])

    assert loaded.current == {ProcessKey("other", "p"): "e-2"}


async def test_the_current_flag_moves_in_one_transaction(store: Store) -> None:
    old = process("e-1", process_id="p", status=ProcessStatus.COMPLETED)
    await write(store, created(copy.deepcopy(old)))
    old.is_current = False
    changes = created(process("e-2", process_id="p"))
    changes.touch_process(old)

    await write(store, changes)

    loaded = await load(store, "e-1", process_keys=[ProcessKey(NAMESPACE, "p")])
    assert loaded.current == {ProcessKey(NAMESPACE, "p"): "e-2"}
    assert not loaded.executions["e-1"].process.is_current


async def test_a_process_id_has_any_number_of_former_executions(store: Store) -> None:
    former = [process(f"e-{n}", process_id="p", is_current=False) for n in range(1, 5)]

    await write(store, created(*former, process("e-5", process_id="p")))

    assert len((await load(store, "e-1", "e-2", "e-3", "e-4", "e-5")).executions) == 5


async def test_a_second_current_execution_is_refused_and_nothing_is_kept(store: Store) -> None:
    await write(store, created(process("e-1", process_id="p")))

    with pytest.raises(ConcurrentStart):
        await write(store, created(process("e-2", process_id="p"), state("e-2"), process("e-3")))

    assert list((await load(store, "e-1", "e-2", "e-3")).executions) == ["e-1"]


async def test_more_executions_than_any_statement_lists_are_loaded_together(store: Store) -> None:
    ids = [f"e-{n}" for n in range(1_100)]
    await write(store, created(*[process(id_) for id_ in ids], *[state(id_) for id_ in ids]))

    loaded = await load(store, *ids)

    assert {id_: len(execution.states) for id_, execution in loaded.executions.items()} == dict.fromkeys(ids, 1)


async def test_an_error_while_deciding_keeps_nothing_and_leaves_the_store_usable(store: Store) -> None:
    def fail(loaded: Loaded) -> Changes:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await store.transact(Deciding(fail))

    await write(store, created(process()))
    assert (await load_one(store)).process.process_execution_id == "e-1"


async def test_a_refused_row_write_leaves_nothing_of_the_transaction(database: Database) -> None:
    store = database.store
    await database.run("CREATE TABLE users (id INTEGER PRIMARY KEY, name VARCHAR(10) NOT NULL)")
    changes = created(process(), state(), message(1), timer(1_000))
    changes.local_attribute_writes.append(LocalAttributeWrite("e-1", "a", "1"))
    changes.history.append(event(1))

    changes.row_writes += [
        RowWrite(row_key("users", 1), {"name": "ada"}),
        RowWrite(row_key("users", 2), {"name": None}),
    ]

    with pytest.raises(RowWriteFailed):
        await write(store, changes)

    assert (await load(store, "e-1")).executions == {}
    assert await store.find_states("e-1", latest=9) == []
    assert await store.count_messages("e-1") == {}
    assert await store.find_due_timers([0], 10_000, limit=10, after=None) == []
    assert await database.run("SELECT count(*) FROM users") == [(0,)]
    assert await database.run("SELECT count(*) FROM xdb_sys_local_attribute") == [(0,)]
    assert await database.run("SELECT count(*) FROM xdb_sys_history") == [(0,)]


async def test_transactions_at_the_same_time_lose_no_update(store: Store) -> None:
    await write(store, created(process(state_counters={"S": 0})))

    def count(loaded: Loaded) -> Changes:
        changes = Changes()
        counted = loaded.executions["e-1"].process
        counted.state_counters["S"] += 1
        changes.touch_process(counted)
        return changes

    await asyncio.gather(*(store.transact(Deciding(count, execution_ids=["e-1"])) for _ in range(50)))

    counted = (await load_one(store)).process
    assert (counted.state_counters, counted.version) == ({"S": 50}, 51)


async def test_what_is_committed_is_what_is_returned(store: Store) -> None:
    changes = created(process())

    committed = await store.transact(Deciding(lambda _: changes))

    assert committed is changes


async def test_events_of_a_history_come_back_as_they_were(store: Store) -> None:
    text = json_text(ODD_TEXT)
    first = HistoryEvent("e-1", 1, 1_000, HistoryEventType.STARTED, None, "r-1", None)
    second = HistoryEvent("e-1", 2, 2**45, HistoryEventType.USER_EVENT, 1, None, text)

    await write(store, Changes(history=[second, event(1, "e-2"), first]))

    assert await store.find_history("e-1", after=0, limit=9) == [first, second]
    assert await store.find_history("e-1", after=1, limit=9) == [second]
    assert await store.find_history("e-1", after=0, limit=1) == [first]


async def test_a_state_of_a_megabyte_comes_back_whole(store: Store) -> None:
    text = '"' + "é漢🦉" * 100_000 + '"'

    await write(store, created(process(), state(input=text)))

    [loaded] = (await load_one(store)).states.values()
    assert loaded.input == text
