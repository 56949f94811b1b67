"""Calls are given fresh attributes, and locking ones go one after another until the read set holds."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from server_stub.core.model import ReadSet, RowKey, RowRead
from server_stub.core.outcomes import CallFailure, FailureKind, StateAnswered, Verdict
from server_stub.core.ports import RowReadFailed, StoreUnavailable
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import DONE, USER_ROW, WORKER_URL, Answer, dispatching, locking_options, make_call
from xdb_sdk.protocol import DatabaseErrorInfo, Json, ReadRequest, RetryPolicyConfig, StateOptionsConfig, TableMapping

COLUMNS = {"name": "Ann", "age": 7}


def reading_options(**request: Any) -> StateOptionsConfig:
    return StateOptionsConfig(execute_read=ReadRequest.model_validate(request))


def reading_call(number: int, **request: Any) -> Any:
    return make_call(number, options=reading_options(**request), tables=(USER_ROW,))


USER_NAME = {"tables": [{"table_name": "user", "columns": ["name"]}]}


async def test_call_is_given_what_it_asks_for() -> None:
    call = reading_call(1, **USER_NAME, local_attributes=["a", "unset"], local_attribute_prefixes=["p."])

    async with dispatching() as world:
        world.store.rows["user"] = COLUMNS
        world.store.local_attributes["e-1"] = {"a": "1", "b": "2", "p.x": '{"y":null}'}
        world.dispatcher.dispatch([call])
        await world.sink.wait_for(1)

    loaded = world.worker.calls[0]["loaded"]
    assert loaded["tables"] == [{"tableName": "user", "columns": {"name": "Ann"}}]
    assert loaded["localAttributes"] == {"a": 1, "p.x": {"y": None}}


async def test_missing_row_is_told_and_its_columns_are_null() -> None:
    async with dispatching() as world:
        world.dispatcher.dispatch([reading_call(1, **USER_NAME)])
        await world.sink.wait_for(1)

    assert world.worker.calls[0]["loaded"]["tables"] == [
        {"tableName": "user", "exists": False, "columns": {"name": None}}
    ]


async def test_calls_of_one_turn_are_read_for_together_and_a_row_once() -> None:
    async with dispatching() as world:
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch([reading_call(number, **USER_NAME) for number in range(100)])
        await world.sink.wait_for(100)

    assert world.store.reads == [1]


async def test_nothing_is_read_when_nothing_is_asked_for() -> None:
    async with dispatching() as world:
        world.dispatcher.dispatch([make_call(1)])
        await world.sink.wait_for(1)

    assert world.store.reads == []


async def test_refused_read_fails_only_the_call_that_asked_for_it() -> None:
    bad = reading_call(1, tables=[{"table_name": "user", "columns": ["age"]}])
    info = DatabaseErrorInfo(operation="READ", kind="UNKNOWN_COLUMN", message="no such column", table_name="user")

    def refuse(row: RowRead) -> Exception | None:
        return RowReadFailed(row.row, info) if "age" in row.columns else None

    async with dispatching() as world:
        world.store.refused = refuse
        world.dispatcher.dispatch([bad, reading_call(2, **USER_NAME), make_call(3)])
        await world.sink.wait_for(3)

    failures = {key.state.number: outcome for key, outcome in world.sink.outcomes if isinstance(outcome, CallFailure)}
    assert failures == {
        1: CallFailure(
            FailureKind.DATABASE_READ,
            "APP_DATABASE_READ_ERROR",
            "user: UNKNOWN_COLUMN: no such column",
            database_error=info,
        )
    }


def row_of(number: int) -> TableMapping:
    return TableMapping(table_name="user", primary_key={"id": number})


@pytest.mark.parametrize(
    ("kind", "bad", "most_reads"),
    [("UNKNOWN_COLUMN", range(500), 1), ("TYPE", range(137, 138), 20), ("TYPE", range(100, 108), 40)],
    ids=["dropped-column", "one-bad-key", "some-bad-keys"],
)
async def test_refused_reads_are_found_with_few_reads(kind: str, bad: range, most_reads: int) -> None:
    info = DatabaseErrorInfo(operation="READ", kind=kind, message="no", table_name="user")

    def refuse(row: RowRead) -> Exception | None:
        [(_, number)] = row.row.primary_key
        return RowReadFailed(row.row, info) if number in bad else None

    options = reading_options(**USER_NAME)
    async with dispatching() as world:
        world.store.rows["user"] = COLUMNS
        world.store.refused = refuse
        world.dispatcher.dispatch(make_call(number, options=options, tables=(row_of(number),)) for number in range(500))
        await world.sink.wait_for(500)

    failed = {key.state.number for key, outcome in world.sink.outcomes if isinstance(outcome, CallFailure)}
    assert failed == set(bad)
    assert len(world.store.reads) <= most_reads


async def test_table_that_the_execution_is_not_mapped_to_is_a_failed_attempt() -> None:
    async with dispatching() as world:
        world.dispatcher.dispatch([make_call(1, options=reading_options(**USER_NAME))])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.DATABASE_READ
    assert "not mapped to a row of table 'user'" in outcome.details


async def test_trouble_of_the_server_with_its_database_is_no_failed_attempt() -> None:
    async with dispatching() as world:
        world.store.errors = [StoreUnavailable("busy")] * 8
        world.dispatcher.dispatch([reading_call(1, **USER_NAME)])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, StateAnswered)
    assert 5 < world.sink.at_s[0] < 30


async def test_worker_may_ask_for_other_data_without_using_an_attempt() -> None:
    async def handler(body: Json) -> Json:
        if not body.get("loaded"):
            return Answer(406, {"readRequest": {"tables": [{"tableName": "user", "columns": ["name"]}]}})
        return DONE

    async with dispatching(handler) as world:
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch([make_call(1, tables=(USER_ROW,))])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, StateAnswered)
    assert [body["context"].get("attempt") for body in world.worker.calls] == [1, 1]
    assert world.worker.calls[1]["loaded"]["tables"][0]["columns"] == {"name": "Ann"}


async def test_worker_that_never_stops_asking_fails() -> None:
    async def handler(body: Json) -> Json:
        return Answer(406, {"readRequest": {}})

    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(1)])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, CallFailure)
    assert (outcome.error_type, outcome.http_status) == ("TooManyRevisions", 406)
    assert len(world.worker.calls) == 4


async def test_locking_call_hands_over_what_it_saw() -> None:
    call = make_call(1, options=locking_options("age"), tables=(USER_ROW,))

    async with dispatching() as world:
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch([call])
        [outcome] = await world.sink.wait_for(1)

    assert isinstance(outcome, StateAnswered)
    row = RowKey("user", (("id", 7),))
    assert outcome.read_set == ReadSet(((RowRead(row, ("age",)), {"age": 7}),), "e-1", {})


async def test_changed_read_set_repeats_the_call_with_fresh_values_and_the_same_attempt() -> None:
    async with dispatching() as world:
        world.sink.verdicts = [Verdict.READ_SET_CHANGED]
        world.store.rows["user"] = {"age": 1}
        world.dispatcher.dispatch([make_call(1, options=locking_options("age"), tables=(USER_ROW,))])
        await world.sink.wait_for(1)
        world.store.rows["user"] = {"age": 2}
        await world.sink.wait_for(2)

    seen = [(body["context"]["attempt"], body["loaded"]["tables"][0]["columns"]["age"]) for body in world.worker.calls]
    assert seen == [(1, 1), (1, 2)]


async def test_read_set_that_keeps_changing_is_a_failed_attempt() -> None:
    async with dispatching(options=DispatchOptions(max_lock_conflicts=3)) as world:
        world.sink.verdicts = [Verdict.READ_SET_CHANGED] * 4
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch([make_call(1, options=locking_options("age"), tables=(USER_ROW,))])
        outcomes = await world.sink.wait_for(5)

    assert isinstance(outcomes[-1], CallFailure)
    assert outcomes[-1].kind is FailureKind.READ_SET_CHANGED
    assert len(world.worker.calls) == 4


@pytest.mark.parametrize(
    ("lock_type", "columns", "ends_at_s"),
    [
        ("EXCLUSIVE_LOCK", ("age", "age", "age"), [1, 2, 3]),
        ("SHARE_LOCK", ("age", "age", "age"), [1, 1, 1]),
        ("EXCLUSIVE_LOCK", ("age", "name", "age"), [1, 1, 2]),
    ],
)
async def test_calls_that_lock_the_same_go_one_after_another(
    lock_type: str, columns: tuple[str, ...], ends_at_s: list[float]
) -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(1)
        return DONE

    async with dispatching(handler) as world:
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch(
            make_call(number, options=locking_options(column, lock_type=lock_type), tables=(USER_ROW,))
            for number, column in enumerate(columns)
        )
        await world.sink.wait_for(3)

    assert world.sink.at_s == ends_at_s


async def test_call_that_waits_for_a_lock_goes_to_the_url_that_it_is_given_with_last() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(4)
        return DONE

    options = locking_options("age")
    calls = [make_call(number, options=options, tables=(USER_ROW,)) for number in (1, 2)]
    async with dispatching(handler) as world:
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch(calls)
        await asyncio.sleep(1)
        world.dispatcher.dispatch([replace(calls[1], worker_url=f"{WORKER_URL}/moved")])
        await world.sink.wait_for(2)

    assert world.worker.requests[-1][0].startswith("/moved/")
    assert world.sink.at_s == [4, 8]


async def test_lock_is_held_until_the_verdict() -> None:
    options = locking_options("age")
    async with dispatching() as world:
        world.sink.delay_s = 4
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch(make_call(number, options=options, tables=(USER_ROW,)) for number in (1, 2))
        await world.sink.wait_for(2)

    assert world.sink.at_s == [0, 4]


async def test_waiting_for_a_lock_uses_up_no_timeout() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(4)
        return DONE

    policy = RetryPolicyConfig(maximum_attempts_duration_ms=10_000)
    options = locking_options("age").model_copy(
        update={"execute_api_timeout_ms": 5_000, "execute_api_retry_policy": policy}
    )
    async with dispatching(handler) as world:
        world.store.rows["user"] = COLUMNS
        world.dispatcher.dispatch(
            make_call(number, options=options, tables=(USER_ROW,), first_attempt_at_ms=None) for number in range(10)
        )
        outcomes = await world.sink.wait_for(10)

    assert all(isinstance(outcome, StateAnswered) for outcome in outcomes)
    assert {body["context"]["timeoutMs"] for body in world.worker.calls} == {5_000}


async def test_failed_call_holds_no_lock() -> None:
    async def handler(body: Json) -> Json:
        return Answer(500) if body["context"]["processId"] == "p-1" else DONE

    async with dispatching(handler) as world:
        world.store.rows["user"] = COLUMNS
        options = locking_options("age")
        world.dispatcher.dispatch(make_call(number, options=options, tables=(USER_ROW,)) for number in (1, 2))
        outcomes = await world.sink.wait_for(2)

    assert [type(outcome) for outcome in outcomes] == [CallFailure, StateAnswered]
