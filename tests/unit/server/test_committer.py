"""Group commit: what a failing event does to others, and what happens while the database is away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from server_stub.core.changes import Changes
from server_stub.core.client_events import PublishMessages, StartProcess
from server_stub.core.model import TimerKey
from server_stub.core.ports import (
    CommitOutcomeUnknown,
    ConcurrentStart,
    Loaded,
    RowWriteFailed,
    SoleOwnership,
    Store,
    StoreBusy,
    StoreUnavailable,
    Work,
)
from server_stub.core.refusals import Refused
from server_stub.core.timer_events import TimerFired
from server_stub.engine.committer import OVERLAP_AFTER_S, Committer, CommitterFull
from server_stub.storage.sqlite import SqliteOptions, SqliteStore, Synchronous
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND, VirtualClock
from xdb_sdk.protocol import DatabaseErrorInfo, Message, PublishRequest, StartAnswer, StartRequest, TableMapping


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND


class FailingStore:
    """A store that raises what the test says instead of some transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failures: list[Exception] = []
        self.failures_after_commit: list[Exception] = []
        self.durations_s: list[float] = []
        """How long the next transactions take, each; those after them take no time."""
        self.pauses_after_commit_s: list[float] = []
        """How long the answers to the next commits are on their way."""
        self.transactions = 0
        self.batches: list[list[str]] = []
        """The process ids of each transaction, in the order in which they began."""

    async def transact(self, work: Work) -> Changes:
        """See `Store.transact`."""
        self.transactions += 1
        self.batches.append(sorted(key.process_id for key in work.selection().process_keys))
        if self.durations_s:
            await asyncio.sleep(self.durations_s.pop(0))
        if self.failures:
            raise self.failures.pop(0)
        changes = await self._store.transact(work)
        if self.pauses_after_commit_s:
            await asyncio.sleep(self.pauses_after_commit_s.pop(0))
        if self.failures_after_commit:
            raise self.failures_after_commit.pop(0)
        return changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FailingStore]:
    inner = SqliteStore.open(tmp_path / "xdb.db", SqliteOptions(synchronous=Synchronous.OFF))
    await inner.run_sql("CREATE TABLE users (id TEXT PRIMARY KEY, name TEXT UNIQUE)")
    yield FailingStore(inner)
    await inner.close()


@pytest.fixture
async def make_committer(store: FailingStore) -> AsyncIterator[Callable[..., Committer]]:
    made: list[Committer] = []

    def make(**options: Any) -> Committer:
        committer = Committer(
            cast(Store, store), VirtualClock(), lambda changes: None, ownership=SoleOwnership(), **options
        )
        made.append(committer)
        return committer

    yield make
    for committer in made:
        await committer.close()


def start(process_id: str, *, name: str | None = None) -> StartProcess:
    tables: tuple[TableMapping, ...] = ()
    if name is not None:
        tables = (TableMapping(table_name="users", primary_key={"id": process_id}, initial_write={"name": name}),)
    request = StartRequest(process_id=process_id, process_type="T", worker_url="http://worker", tables=tables)
    return StartProcess(request, f"execution-of-{process_id}")


async def test_events_that_arrive_together_share_a_transaction(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    committer = make_committer()
    futures = [committer.submit(start(f"p-{i}")) for i in range(50)]

    committer.start()
    answers = await asyncio.gather(*futures)

    assert len({answer.process_execution_id for answer in answers}) == 50
    assert store.transactions == 1
    assert committer.counters.largest_batch == 50


async def test_row_that_the_database_refuses_hurts_nobody_else(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    committer = make_committer()
    futures = [committer.submit(start(f"p-{i}", name="taken" if i in (3, 7) else f"name-{i}")) for i in range(10)]

    committer.start()
    results = await asyncio.gather(*futures, return_exceptions=True)

    assert [isinstance(result, StartAnswer) for result in results].count(True) == 9
    (failure,) = [result for result in results if not isinstance(result, StartAnswer)]
    assert isinstance(failure, RowWriteFailed)
    assert failure.error.kind == "UNIQUE"


async def test_refused_event_is_answered_while_the_others_are_committed(
    make_committer: Callable[..., Committer],
) -> None:
    committer = make_committer()
    futures = [committer.submit(start("p")), committer.submit(start("p")), committer.submit(start("q"))]

    committer.start()
    first, second, third = await asyncio.gather(*futures, return_exceptions=True)

    assert isinstance(first, StartAnswer)
    assert isinstance(second, Refused)
    assert isinstance(third, StartAnswer)


async def test_patient_event_is_kept_until_the_database_is_back_and_others_are_told(
    store: FailingStore, make_committer: Callable[..., Committer], caplog: pytest.LogCaptureFixture
) -> None:
    store.failures = [StoreUnavailable("locked") for _ in range(20)]
    committer = make_committer()
    patient = committer.submit(start("patient"), is_patient=True)
    impatient = committer.submit(start("impatient"))

    committer.start()
    results = await asyncio.gather(patient, impatient, return_exceptions=True)

    assert isinstance(results[0], StartAnswer)
    assert isinstance(results[1], StoreUnavailable)
    assert 10 < asyncio.get_running_loop().time() < 60
    assert [record.message for record in caplog.records] == [
        "database unavailable: locked",
        "database available again",
    ]


async def test_concurrent_start_is_tried_again_at_once(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    store.failures = [ConcurrentStart("unique")]
    committer = make_committer()
    committer.start()

    answer = await committer.submit(start("p"))

    assert answer.process_execution_id == "execution-of-p"
    assert store.transactions == 2


async def test_event_with_a_bug_fails_alone(
    store: FailingStore, make_committer: Callable[..., Committer], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(StartProcess):
        def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> StartAnswer:
            raise ZeroDivisionError

    committer = make_committer()
    futures = [committer.submit(start("p")), committer.submit(Broken(start("b").request, "e"))]

    committer.start()
    good, broken = await asyncio.gather(*futures, return_exceptions=True)

    assert isinstance(good, StartAnswer)
    assert isinstance(broken, ZeroDivisionError)
    assert "event failed: Broken" in caplog.text


async def test_full_committer_takes_answers_of_workers_but_no_calls_of_clients(
    make_committer: Callable[..., Committer],
) -> None:
    committer = make_committer(max_pending=2)
    futures = [
        committer.submit(start("a")),
        committer.submit(start("b")),
        committer.submit(start("c")),
        committer.submit(start("d"), is_patient=True),
    ]

    committer.start()
    results = await asyncio.gather(*futures, return_exceptions=True)

    assert [type(result) for result in results] == [StartAnswer, StartAnswer, CommitterFull, StartAnswer]


async def test_closed_committer_finishes_what_it_has_and_takes_no_more(
    make_committer: Callable[..., Committer],
) -> None:
    committer = make_committer()
    accepted = committer.submit(start("a"))
    committer.start()

    await committer.close()
    late = committer.submit(start("b"))

    assert isinstance(await accepted, StartAnswer)
    with pytest.raises(StoreUnavailable):
        await late


async def test_commit_that_cannot_be_handed_on_is_answered_and_the_next_one_goes_on(
    store: FailingStore, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(changes: Changes) -> None:
        raise TypeError("unhashable")

    committer = Committer(cast(Store, store), VirtualClock(), refuse, ownership=SoleOwnership())
    committer.start()

    answers = [await committer.submit(start("a")), await committer.submit(start("b"))]

    assert [type(answer) for answer in answers] == [StartAnswer, StartAnswer]
    assert "a commit could not be handed on" in caplog.text
    await committer.close()


async def test_event_that_must_wait_is_applied_in_the_next_transaction(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    class AfterWrites(StartProcess):
        def must_wait(self, loaded: Loaded, changes: Changes) -> bool:
            return bool(changes.row_writes)

    committer = make_committer()
    futures = [committer.submit(start("a", name="Ann")), committer.submit(AfterWrites(start("b").request, "e-b"))]

    committer.start()
    answers = await asyncio.gather(*futures)

    assert [answer.process_execution_id for answer in answers] == ["execution-of-a", "e-b"]
    assert store.transactions == 2


async def test_committer_is_running_from_its_start_to_its_end(make_committer: Callable[..., Committer]) -> None:
    committer = make_committer()
    before = committer.is_running

    committer.start()
    meanwhile = committer.is_running
    await committer.close()

    assert (before, meanwhile, committer.is_running) == (False, True, False)


async def test_what_others_are_in_the_way_of_is_committed_one_by_one_and_waits_alone(
    store: FailingStore, make_committer: Callable[..., Committer], caplog: pytest.LogCaptureFixture
) -> None:
    store.failures = [StoreBusy("locked"), StoreBusy("locked")]
    committer = make_committer()
    futures = [committer.submit(start(process_id)) for process_id in "abc"]

    committer.start()
    held, *others = await asyncio.gather(*futures, return_exceptions=True)

    assert store.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert isinstance(held, StoreBusy)
    assert [type(other) for other in others] == [StartAnswer, StartAnswer]
    assert caplog.records == []


LOCK_TIMEOUT = DatabaseErrorInfo(operation="WRITE", kind="LOCK_TIMEOUT", message="held", table_name="users")


@pytest.mark.parametrize(
    "error", [StoreBusy("locked"), RowWriteFailed(None, LOCK_TIMEOUT)], ids=["of the store", "of a row"]
)
async def test_nobody_waits_twice_for_a_lock_that_is_in_the_way_of_another(
    store: FailingStore, make_committer: Callable[..., Committer], error: Exception
) -> None:
    loop = asyncio.get_running_loop()
    store.failures, store.durations_s = [error], [5.0, 5.0]
    committer = make_committer(max_transactions=2)
    held, *others = [committer.submit(start(process_id)) for process_id in "abc"]
    began_at_s = loop.time()

    committer.start()
    await asyncio.gather(*others)
    late = committer.submit(start("d"))
    await late
    answered_after_s = loop.time() - began_at_s
    await held

    assert 5.0 <= answered_after_s < 5.5
    assert store.batches == [["a", "b", "c"], ["a"], ["b"], ["c"], ["d"]]


async def test_what_others_were_in_the_way_of_is_tried_again_without_anybody_else(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    store.failures = [StoreBusy("locked")]
    committer = make_committer()
    held = committer.submit(start("a"), is_patient=True)

    committer.start()
    await asyncio.sleep(0.01)
    other = committer.submit(start("b"))
    await asyncio.gather(held, other)

    assert store.batches == [["a"], ["a"], ["b"]]


async def test_commit_of_unknown_outcome_is_repeated_only_where_twice_is_once(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    uncertain: list[str] = []
    store.failures_after_commit = [CommitOutcomeUnknown("cut")]
    committer = make_committer(on_uncertain=lambda: uncertain.append("told"))
    once = committer.submit(start("a"), is_patient=True)
    fired = committer.submit(TimerFired(TimerKey.of_timeout("nobody")), is_patient=True)

    committer.start()
    results = await asyncio.gather(once, fired, return_exceptions=True)

    assert isinstance(results[0], CommitOutcomeUnknown)
    assert results[1] is None
    assert (store.batches, uncertain) == ([["a"], []], ["told"])


async def test_slow_transaction_lets_another_pass_but_none_about_the_same_execution(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    loop = asyncio.get_running_loop()
    store.durations_s = [1.0]
    committer = make_committer(max_transactions=2)
    committer.start()
    slow = committer.submit(start("slow"))
    await asyncio.sleep(0)
    began_at_s = loop.time()

    same, other = committer.submit(start("slow")), committer.submit(start("other"))
    await other
    other_after_s = loop.time() - began_at_s
    results = await asyncio.gather(slow, same, return_exceptions=True)

    assert OVERLAP_AFTER_S <= other_after_s < 0.1
    assert store.batches == [["slow"], ["other"], ["slow"]]
    assert [type(result) for result in results] == [StartAnswer, Refused]


async def test_event_that_comes_late_into_a_slow_transaction_passes_it_at_once(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    loop = asyncio.get_running_loop()
    store.durations_s = [5.0]
    committer = make_committer(max_transactions=2)
    committer.start()
    slow = committer.submit(start("slow"))
    await asyncio.sleep(2)
    began_at_s = loop.time()

    await committer.submit(start("b"))
    await committer.submit(start("c"))
    passed_after_s = loop.time() - began_at_s
    await slow

    assert passed_after_s < 2 * OVERLAP_AFTER_S
    assert store.batches == [["slow"], ["b"], ["c"]]


async def test_quick_transactions_follow_each_other_however_many_are_allowed(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    store.durations_s = [OVERLAP_AFTER_S / 2]
    committer = make_committer(max_transactions=4)
    committer.start()
    first = committer.submit(start("a"))
    await asyncio.sleep(0)
    others = [committer.submit(start(process_id)) for process_id in "bcd"]

    await asyncio.gather(first, *others)

    assert store.batches == [["a"], ["b", "c", "d"]]


async def test_cancelled_event_that_was_not_begun_never_happens(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    store.durations_s = [1.0]
    committer = make_committer()
    committer.start()
    first = committer.submit(start("a"))
    await asyncio.sleep(0)
    given_up = committer.submit(start("b"))

    given_up.cancel()
    await first
    await committer.close()

    assert (first.is_begun, given_up.is_begun) == (True, False)
    assert store.batches == [["a"]]


async def test_what_was_given_up_while_others_were_in_its_way_is_not_committed_later(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    store.durations_s = [1.0]
    store.failures = [StoreBusy("locked")]
    committer = make_committer()
    committer.start()
    futures = [committer.submit(start(process_id)) for process_id in "ab"]
    await asyncio.sleep(0.5)

    futures[0].cancel()
    await futures[1]

    assert store.batches == [["a", "b"], ["b"]]


async def test_event_of_a_transaction_that_was_undone_is_not_begun(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    store.failures = [StoreUnavailable("away")]
    committer = make_committer()
    committer.start()

    patient = committer.submit(start("a"), is_patient=True)
    await asyncio.sleep(0.01)

    assert not patient.is_begun
    await patient
    assert patient.is_begun


async def test_commit_that_is_heard_of_after_a_later_one_makes_what_is_due_be_looked_for(
    store: FailingStore, make_committer: Callable[..., Committer]
) -> None:
    uncertain: list[str] = []
    committer = make_committer(max_transactions=2, on_uncertain=lambda: uncertain.append("told"))
    committer.start()
    await committer.submit(start("a"))
    store.pauses_after_commit_s = [1.0]
    messages = (Message(queue_name="q", payload=None),)

    by_process_id = committer.submit(PublishMessages(PublishRequest(process_id="a", messages=messages)))
    await asyncio.sleep(0.5)
    request = PublishRequest(process_id="a", process_execution_id="execution-of-a", messages=messages)
    await committer.submit(PublishMessages(request))
    in_time = list(uncertain)
    await by_process_id

    assert (in_time, uncertain) == ([], ["told"])
