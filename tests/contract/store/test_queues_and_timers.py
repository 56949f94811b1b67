"""Messages and timers: kept in order, removed once, gone with their execution."""

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import QueuedMessage, StateKey, Timer, TimerKey, call_of
from server_stub.core.ports import Loaded, Needs, Store
from tests.contract.store.databases import Database
from tests.contract.store.works import Deciding, created, load, message, process, state, timer, write
from xdb_sdk.protocol import ExecuteStatus, Json, StateStatus, WaitUntilStatus


async def oldest(store: Store, limit: int = 100, queue: str = "q") -> list[QueuedMessage]:
    """Give the oldest unclaimed messages of a queue of e-1."""
    loaded = await load(store, "e-1", needs=Needs(messages={("e-1", queue): limit}))
    return loaded.executions["e-1"].queues[queue]


async def known_ids(store: Store, *asked: tuple[str, str]) -> set[tuple[str, str]]:
    """Give those of the asked (queue, message id) pairs that e-1 has seen."""
    needs = Needs(message_ids={("e-1", queue, message_id) for queue, message_id in asked})
    return (await load(store, "e-1", needs=needs)).executions["e-1"].known_message_ids


async def claim(store: Store, *messages: QueuedMessage) -> None:
    """Take messages out of their queue."""
    changes = Changes()
    for claimed in messages:
        changes.claim_message(claimed)
    await write(store, changes)


def closing(execution_id: str = "e-1") -> Changes:
    """Give the changes of a close."""
    return Changes(closed_processes={execution_id: process(execution_id)})


async def test_messages_are_loaded_oldest_first_by_queue(store: Store) -> None:
    await write(store, created(process(), message(3), message(1), message(2, queue="other"), message(10)))

    assert [m.sequence_id for m in await oldest(store)] == [1, 3, 10]
    assert [m.sequence_id for m in await oldest(store, queue="other")] == [2]


async def test_only_as_many_messages_as_needed_are_loaded(store: Store) -> None:
    await write(store, created(process(), *[message(n) for n in range(1, 10)]))

    assert [m.sequence_id for m in await oldest(store, 3)] == [1, 2, 3]


async def test_an_empty_queue_is_loaded_as_empty(store: Store) -> None:
    await write(store, created(process()))

    assert await oldest(store) == []


@pytest.mark.parametrize(
    "payload",
    [
        None,
        False,
        0,
        "",
        [],
        {},
        2**100 + 1,
        -(2**64),
        0.1,
        1e300,
        "q'\"; DROP TABLE x; -- 漢🦉",
        {"a": [1, {"b": None}]},
        "x" * 1_000_000,
    ],
    ids=lambda payload: repr(payload)[:20],
)
async def test_a_payload_comes_back_as_it_was_sent(store: Store, payload: Json) -> None:
    sent = message(1, payload, message_id="m-1")

    await write(store, created(process(), sent))

    [received] = await oldest(store)
    assert received == sent
    assert type(received.payload) is type(payload)


async def test_a_claimed_message_is_gone_from_its_queue(store: Store) -> None:
    messages = [message(1), message(2, message_id="m-2"), message(3)]
    await write(store, created(process(), *messages))

    await claim(store, *messages[:2])

    assert await oldest(store) == [messages[2]]
    assert await store.count_messages("e-1") == {"q": 1}


async def test_a_message_id_is_known_also_after_the_message_was_claimed(store: Store) -> None:
    sent = message(1, "payload", message_id="m-1")
    await write(store, created(process(), sent))

    await claim(store, sent)

    assert await known_ids(store, ("q", "m-1"), ("q", "m-2")) == {("q", "m-1")}


async def test_a_message_id_is_known_in_its_own_queue_and_execution_only(store: Store) -> None:
    await write(store, created(process(), message(1, message_id="m-1"), process("e-2")))

    assert await known_ids(store, ("q", "m-1"), ("other", "m-1"), ("q", "M-1")) == {("q", "m-1")}
    other = await load(store, "e-2", needs=Needs(message_ids={("e-2", "q", "m-1")}))
    assert other.executions["e-2"].known_message_ids == set()


async def test_a_message_claimed_in_the_transaction_that_brings_it_is_only_known(store: Store) -> None:
    changes = created(process(), message(1, message_id="m-1"), message(2))
    changes.claim_message(message(1, message_id="m-1"))
    changes.claim_message(message(2))

    await write(store, changes)

    assert await oldest(store) == []
    assert await known_ids(store, ("q", "m-1")) == {("q", "m-1")}


async def test_what_is_remembered_of_a_claimed_message_has_no_payload(database: Database) -> None:
    sent = message(1, "payload", message_id="m-1")
    await write(database.store, created(process(), sent, message(2, "other")))

    await claim(database.store, sent, message(2, "other"))

    rows = await database.run("SELECT message_id, payload FROM xdb_sys_internal_queue")
    assert rows == [("m-1", None)]


async def test_a_close_deletes_messages_message_ids_and_timers(database: Database) -> None:
    store = database.store
    sent = message(1, message_id="m-1")
    await write(store, created(process(), sent, message(2), timer(1_000), Timer(TimerKey.of_timeout("e-1"), 2_000)))
    await claim(store, sent)

    await write(store, closing())

    assert await store.count_messages("e-1") == {}
    assert await known_ids(store, ("q", "m-1")) == set()
    assert await database.run("SELECT count(*) FROM xdb_sys_timer_tasks") == [(0,)]
    assert await database.run("SELECT count(*) FROM xdb_sys_internal_queue") == [(0,)]


async def test_a_close_leaves_other_executions_alone(store: Store) -> None:
    await write(store, created(process(), message(1), process("e-2"), timer(1_000, "e-2")))

    await write(store, closing("e-2"))

    assert await store.count_messages("e-1") == {"q": 1}


async def test_messages_and_timers_of_the_transaction_that_closes_are_not_kept(database: Database) -> None:
    changes = created(process(), message(1, message_id="m-1"), message(2), timer(1_000))
    changes.set_timer(Timer(TimerKey.of_timeout("e-1"), 2_000))
    changes.claim_message(message(3, message_id="m-3"))
    changes.closed_processes["e-1"] = process()

    await write(database.store, changes)

    assert await database.run("SELECT count(*) FROM xdb_sys_internal_queue") == [(0,)]
    assert await database.run("SELECT count(*) FROM xdb_sys_timer_tasks") == [(0,)]


async def test_needs_are_answered_from_what_the_transaction_has_loaded(store: Store) -> None:
    await write(store, created(process(), message(1), message(2)))
    seen: list[int] = []

    class TakesOne(Deciding):
        def needs(self, loaded: Loaded) -> Needs:
            return Needs(messages={(execution_id, "q"): 1 for execution_id in loaded.executions})

    def look(loaded: Loaded) -> Changes:
        seen.append(len(loaded.executions["e-1"].queues["q"]))
        return Changes()

    await store.transact(TakesOne(look, execution_ids=["e-1"]))

    assert seen == [1]


# --- timers ---


async def test_due_timers_come_earliest_first(store: Store) -> None:
    timers = [timer(3_000), timer(1_000, "e-2"), timer(2_000, state_id="T")]
    await write(store, created(*timers))

    due = await store.find_due_timers([0], 3_001, limit=10, after=None)

    assert [t.fire_at_ms for t in due] == [1_000, 2_000, 3_000]
    assert set(due) == set(timers)


async def test_a_timer_is_due_before_the_instant_not_at_it(store: Store) -> None:
    await write(store, created(timer(1_000), timer(999, index=1)))

    due = await store.find_due_timers([0], 1_000, limit=10, after=None)

    assert [t.fire_at_ms for t in due] == [999]


async def test_pages_of_due_timers_miss_and_repeat_none_even_at_one_instant(store: Store) -> None:
    timers = [timer(1_000 + n % 2, f"e-{n % 3}", f"S{n % 2}", number=n % 5 + 1, index=n) for n in range(57)]
    await write(store, created(*timers))
    found: list[Timer] = []

    while page := await store.find_due_timers([0], 2_000, limit=5, after=found[-1] if found else None):
        found += page

    assert len(found) == len(timers)
    assert set(found) == set(timers)


async def test_a_timer_set_again_moves(store: Store) -> None:
    await write(store, created(timer(1_000)))

    await write(store, created(timer(9_000)))

    assert await store.find_due_timers([0], 10_000, limit=10, after=None) == [timer(9_000)]


async def test_a_deleted_timer_is_gone_and_deleting_none_is_no_error(store: Store) -> None:
    await write(store, created(timer(1_000)))
    changes = Changes()
    changes.delete_timer(timer(1_000).key)
    changes.delete_timer(timer(1_000, "nobody").key)

    await write(store, changes)

    assert await store.find_due_timers([0], 10_000, limit=10, after=None) == []


async def test_a_timer_moved_and_deleted_in_one_transaction_is_gone(store: Store) -> None:
    await write(store, created(timer(1_000)))
    changes = Changes()
    changes.set_timer(timer(5_000))
    changes.delete_timer(timer(5_000).key)

    await write(store, changes)

    assert await store.find_due_timers([0], 10_000, limit=10, after=None) == []


async def test_a_timer_deleted_and_set_in_one_transaction_stays(store: Store) -> None:
    await write(store, created(timer(1_000)))
    changes = Changes()
    changes.delete_timer(timer(1_000).key)
    changes.set_timer(timer(5_000))

    await write(store, changes)

    assert await store.find_due_timers([0], 10_000, limit=10, after=None) == [timer(5_000)]


# --- due calls ---


async def test_due_calls_tell_what_their_state_and_process_say(store: Store) -> None:
    due_process, due_state = process(object_id="u-1"), state(due_at_ms=1_000, attempt=3, state_locals={"a": 1})
    await write(store, created(due_process, due_state))

    due = await store.find_due_calls([0], 2_000, limit=10, after=None)

    assert due == [call_of(due_process, due_state)]


async def test_states_that_wait_are_closed_or_due_later_are_no_due_calls(store: Store) -> None:
    await write(
        store,
        created(
            process(),
            state(state_id="waits"),
            state(state_id="closed", status=StateStatus.COMPLETED),
            state(state_id="later", due_at_ms=2_000),
        ),
    )

    assert await store.find_due_calls([0], 2_000, limit=10, after=None) == []


async def test_pages_of_due_calls_miss_and_repeat_none_even_at_one_instant(store: Store) -> None:
    states = [state(f"e-{n % 3}", f"S{n % 2}", n + 1, due_at_ms=1_000 + n % 2) for n in range(57)]
    await write(store, created(*[process(f"e-{n}") for n in range(3)], *states))
    found = await store.find_due_calls([0], 2_000, limit=5, after=None)

    while page := await store.find_due_calls([0], 2_000, limit=5, after=(found[-1].due_at_ms, found[-1].key)):
        found += page

    assert len(found) == len(states)
    assert {call.key.state for call in found} == {s.key for s in states}
    assert [call.due_at_ms for call in found] == sorted(call.due_at_ms for call in found)


async def test_calls_that_states_are_due_for_are_named_whenever_that_is(store: Store) -> None:
    waits = state(state_id="asks", due_at_ms=9_000, attempt=3, claim_range=7)
    runs = state(state_id="runs", due_at_ms=1, execute_status=ExecuteStatus.RUNNING)
    runs.wait_until_status = WaitUntilStatus.COMPLETED
    held, other = state(state_id="held", held_due_at_ms=1), state(state_id="other", due_at_ms=1)
    await write(store, created(process(), waits, runs, held, other))

    found = await store.find_due_keys([waits.key, runs.key, held.key, StateKey("e-1", "runs", 99)])

    assert found == {waits.call_key, runs.call_key}
    assert await store.find_due_keys([]) == set()


async def test_a_call_made_is_no_longer_due(store: Store) -> None:
    called = state(due_at_ms=1_000)
    await write(store, created(process(), called))
    called.due_at_ms = None

    await write(store, Changes(changed_states={called.key: called}))

    assert await store.find_due_calls([0], 2_000, limit=10, after=None) == []
