"""Transactions without locks around them: what another has changed meanwhile is noticed, and done again under locks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import asyncpg
import pytest

from server_stub.core.changes import Changes
from server_stub.core.cluster import Member, Role
from server_stub.core.model import LocalAttributeWrite, ProcessKey
from server_stub.core.ports import CommitOutcomeUnknown, ConcurrentStart, Loaded, Needs, StoreBusy
from server_stub.storage.postgres import PostgresStore
from server_stub.storage.postgres_errors import committing
from server_stub.storage.postgres_session import PostgresSession
from server_stub.storage.server_store import ServerStoreOptions
from tests.contract.store.databases import NewDatabase
from tests.contract.store.works import NAMESPACE, Deciding, created, load, load_one, process, state, write
from xdb_sdk.protocol import ProcessStatus

DEADLINE_S = 30
IS_SLEEPING = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'"
LOCKS_WAITED_FOR = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
async def store(new_database: NewDatabase) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(new_database("postgresql"), ServerStoreOptions())
    await write(opened, created(process("e-1"), process("e-2"), state("e-1"), state("e-2")))
    yield opened
    await opened.close()


def step(loaded: Loaded, *execution_ids: str) -> Changes:
    """Count on in the executions, by columns that one writer alone would lose of another's."""
    changes = Changes()
    for execution_id in execution_ids:
        execution = loaded.executions[execution_id]
        execution.process.next_wait_order += 1
        changes.touch_process(execution.process)
        for each in execution.states.values():
            each.attempt += 1
            changes.touch_state(each)
    return changes


def stepping(*execution_ids: str) -> Deciding:
    return Deciding(lambda loaded: step(loaded, *execution_ids), execution_ids=execution_ids)


async def test_a_step_takes_two_statements_and_the_next_of_the_same_one(store: PostgresStore) -> None:
    before = store.counters.statements

    await store.transact(stepping("e-1", "e-2"))
    between = store.counters.statements
    await store.transact(stepping("e-1", "e-2"))

    assert (between - before, store.counters.statements - between) == (2, 1)
    execution = await load_one(store, "e-2")
    assert (execution.process.next_wait_order, execution.process.version) == (3, 3)


async def test_step_reads_only_what_was_not_written_before(store: PostgresStore) -> None:
    await store.transact(stepping("e-1"))

    await store.transact(stepping("e-1", "e-2"))

    executions = (await load(store, "e-1", "e-2")).executions
    assert [executions[each].process.next_wait_order for each in ("e-1", "e-2")] == [3, 2]


async def test_what_another_has_changed_since_it_was_written_is_read_again(store: PostgresStore) -> None:
    await store.transact(stepping("e-1", "e-2"))
    other = await PostgresStore.open(store.url)
    await other.transact(stepping("e-1"))

    await store.transact(stepping("e-1", "e-2"))

    await other.close()
    executions = (await load(store, "e-1", "e-2")).executions
    assert [executions[each].process.next_wait_order for each in ("e-1", "e-2")] == [4, 3]


async def test_decision_to_change_nothing_is_made_on_what_the_database_has(store: PostgresStore) -> None:
    await store.transact(stepping("e-1"))
    other = await PostgresStore.open(store.url)
    await other.transact(stepping("e-1"))
    seen: list[int] = []

    def look(loaded: Loaded) -> Changes:
        seen.append(loaded.executions["e-1"].process.next_wait_order)
        return Changes()

    await store.transact(Deciding(look, execution_ids=["e-1"]))

    await other.close()
    assert seen[-1] == 3


async def test_closed_execution_is_read_again(store: PostgresStore) -> None:
    await store.transact(stepping("e-1"))

    def close(loaded: Loaded) -> Changes:
        changes = step(loaded, "e-1")
        loaded.executions["e-1"].process.status = ProcessStatus.COMPLETED
        return changes

    await store.transact(Deciding(close, execution_ids=["e-1"]))
    before = store.counters.statements
    await store.transact(stepping("e-1"))

    assert store.counters.statements - before == 2


async def test_history_is_read_while_its_execution_is_locked(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlocked: list[Sequence[object]] = []
    find_history = PostgresSession.find_history

    async def look_at_lock(session: PostgresSession, execution_id: str, after: int, limit: int) -> object:
        other = await store.connect()
        unlocked.append(await other.fetch("SELECT 1 FROM xdb_sys_process_execution FOR UPDATE SKIP LOCKED"))
        await other.close()
        return await find_history(session, execution_id, after, limit)

    monkeypatch.setattr(PostgresSession, "find_history", look_at_lock)
    needs = Needs(histories={"e-1"})

    await store.transact(Deciding(lambda loaded: Changes(), execution_ids=["e-1", "e-2"], needs=needs))

    assert unlocked == [[]]


async def test_large_execution_is_not_kept(store: PostgresStore) -> None:
    await write(store, created(process("e-3", process_id="large"), state("e-3", input="x" * 20_000)))
    await store.transact(stepping("e-3"))
    before = store.counters.statements

    await store.transact(stepping("e-3"))

    assert store.counters.statements - before == 2


async def test_failed_transaction_leaves_nothing_behind(store: PostgresStore) -> None:
    await store.transact(stepping("e-1"))

    def fail(loaded: Loaded) -> Changes:
        step(loaded, "e-1")
        raise LookupError

    with pytest.raises(LookupError):
        await store.transact(Deciding(fail, execution_ids=["e-1"]))

    assert (await load_one(store, "e-1")).process.next_wait_order == 2


async def test_a_new_execution_takes_two_statements(store: PostgresStore) -> None:
    new = process("e-3", process_id="p")
    before = store.counters.statements

    await store.transact(
        Deciding(lambda _: created(new, state("e-3")), process_keys=[ProcessKey(NAMESPACE, "p")]),
    )

    assert store.counters.statements - before == 2


async def test_many_writers_of_the_same_executions_lose_nothing(store: PostgresStore) -> None:
    works = [stepping(*ids) for ids in (("e-1", "e-2"), ("e-2", "e-1"), ("e-1",), ("e-2",)) for _ in range(25)]

    async def insist(work: Deciding) -> None:
        while True:
            try:
                await store.transact(work)
            except StoreBusy:
                continue
            return

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(insist(work) for work in works))

    for execution_id in ("e-1", "e-2"):
        execution = await load_one(store, execution_id)
        [only] = execution.states.values()
        assert (execution.process.next_wait_order, only.attempt) == (1 + 75, 1 + 75)


def in_another_process(store: PostgresStore, work: Deciding) -> None:
    """Commit work on a connection of its own, while this event loop stands still."""

    async def commit() -> None:
        other = await PostgresStore.open(store.url)
        await other.transact(work)
        await other.close()

    thread = threading.Thread(target=asyncio.run, args=(commit(),))
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def change_process(loaded: Loaded) -> Changes:
    changes = Changes()
    loaded.executions["e-1"].process.next_wait_order += 1
    changes.touch_process(loaded.executions["e-1"].process)
    return changes


def change_state_alone(loaded: Loaded) -> Changes:
    changes = Changes()
    [only] = loaded.executions["e-1"].states.values()
    only.attempt += 1
    changes.touch_state(only)
    return changes


def write_attribute(loaded: Loaded) -> Changes:
    return Changes(local_attribute_writes=[LocalAttributeWrite("e-1", "name", "1")])


@pytest.mark.parametrize(
    "change", [change_process, change_state_alone, write_attribute], ids=["process", "state", "attribute"]
)
async def test_what_was_changed_since_it_was_read_is_decided_again(
    store: PostgresStore, change: Callable[[Loaded], Changes]
) -> None:
    tries = 0

    def overtaken(loaded: Loaded) -> Changes:
        nonlocal tries
        tries += 1
        if tries == 1:
            in_another_process(store, Deciding(change, execution_ids=["e-1"]))
        return step(loaded, "e-1", "e-2")

    await store.transact(Deciding(overtaken, execution_ids=["e-1", "e-2"]))

    assert tries == 2
    assert (await load_one(store, "e-2")).process.next_wait_order == 2


async def test_what_others_have_left_alone_is_decided_once(store: PostgresStore) -> None:
    tries = 0

    def beside(loaded: Loaded) -> Changes:
        nonlocal tries
        tries += 1
        in_another_process(store, Deciding(lambda other: step(other, "e-2"), execution_ids=["e-2"]))
        return step(loaded, "e-1")

    await store.transact(Deciding(beside, execution_ids=["e-1"]))

    assert tries == 1


async def test_execution_that_another_has_started_meanwhile_is_a_concurrent_start(store: PostgresStore) -> None:
    def start(loaded: Loaded) -> Changes:
        in_another_process(store, Deciding(lambda _: created(process("e-4", process_id="p"))))
        return created(process("e-3", process_id="p"))

    with pytest.raises(ConcurrentStart):
        await store.transact(Deciding(start, process_keys=[ProcessKey(NAMESPACE, "p")]))


async def test_writer_waits_for_the_locks_of_a_transaction_and_sees_what_it_changed(store: PostgresStore) -> None:
    connection = await store.connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT 1 FROM xdb_sys_process_execution WHERE process_execution_id = 'e-1' FOR UPDATE")
    waiting = asyncio.create_task(store.transact(stepping("e-1")))
    async with asyncio.timeout(DEADLINE_S):
        while not await connection.fetchval(LOCKS_WAITED_FOR):  # noqa: ASYNC110  # the database tells nobody
            await asyncio.sleep(0.01)

    await connection.execute(
        "UPDATE xdb_sys_process_execution SET next_wait_order = 7, version = version + 1 "
        "WHERE process_execution_id = 'e-1'"
    )
    await transaction.commit()
    await waiting
    await connection.close()

    assert (await load_one(store, "e-1")).process.next_wait_order == 8


async def test_refusal_of_the_database_is_no_unknown_outcome(store: PostgresStore) -> None:
    connection = await store.connect()
    await connection.execute("SET default_transaction_read_only = on")

    with pytest.raises(asyncpg.ReadOnlySQLTransactionError), committing(connection):
        await connection.execute("UPDATE xdb_sys_process_execution SET version = 9")

    await connection.close()


async def test_connection_that_ends_at_a_write_leaves_its_outcome_unknown(store: PostgresStore) -> None:
    connection, killer = await store.connect(), await store.connect()
    pid = await connection.fetchval("SELECT pg_backend_pid()")

    async def write_slowly() -> None:
        with committing(connection):
            await connection.execute("UPDATE xdb_sys_process_execution SET version = 9 WHERE pg_sleep(30) IS NULL")

    writing = asyncio.create_task(write_slowly())
    async with asyncio.timeout(DEADLINE_S):
        while not await killer.fetchval(IS_SLEEPING, pid):  # noqa: ASYNC110  # the database tells nobody
            await asyncio.sleep(0.01)
    await killer.execute(f"SELECT pg_terminate_backend({pid})")

    with pytest.raises(CommitOutcomeUnknown):
        await writing
    await killer.close()


async def test_reads_that_are_stuck_keep_neither_transactions_nor_the_lease_waiting(new_database: NewDatabase) -> None:
    store = await PostgresStore.open(
        new_database("postgresql"), ServerStoreOptions(max_connections=2, max_transactions=1)
    )
    await write(store, created(process("e-1"), state("e-1")))
    blocker = await store.connect()
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("LOCK TABLE xdb_sys_timer_tasks IN ACCESS EXCLUSIVE MODE")
    reads = [asyncio.create_task(store.find_due_timers([0], 1, limit=1, after=None)) for _ in range(5)]
    await asyncio.sleep(0)

    async with asyncio.timeout(DEADLINE_S / 10):
        await store.transact(stepping("e-1"))
        await store.beat(Member("m", "here", frozenset(Role)), lease_ms=None, member_timeout_ms=10_000)

    await transaction.commit()
    assert await asyncio.gather(*reads) == [[]] * 5
    await blocker.close()
    await store.close()
