"""Requests that were carried out: found, replaced, refused to a rival, forgotten and taken over."""

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import ProcessKey, RequestKey, RequestRecord, RequestType
from server_stub.core.ports import Store
from tests.contract.store.databases import SERVERS, Database, open_database
from tests.contract.store.works import NAMESPACE, Deciding, created, find_process, load, process, write
from tests.support.databases import Databases

LARGE = "x" * 100_000


def key(
    request_id: str = "r",
    request_type: RequestType = RequestType.PUBLISH,
    *,
    process_id: str = "p",
    namespace: str = NAMESPACE,
) -> RequestKey:
    """Name a request."""
    return RequestKey(namespace, process_id, request_type, request_id)


def record(of: RequestKey | None = None, **fields: Any) -> RequestRecord:
    """Give the record of a request, by default one that is remembered for long."""
    defaults = {
        "shard_id": 3,
        "process_execution_id": "e-1",
        "fingerprint": "f" * 64,
        "result": '{"processExecutionId":"e-1"}',
        "created_at_ms": 1_000,
        "expires_at_ms": 2**53,
    }
    return RequestRecord(of or key(), **{**defaults, **fields})


def remembered(*records: RequestRecord, dropped: Sequence[RequestRecord] = ()) -> Changes:
    """Give changes that remember requests, in place of others."""
    return Changes(
        requests={record.key: record for record in records}, dropped_requests={each.key: each for each in dropped}
    )


async def find(store: Store, *keys: RequestKey) -> list[RequestRecord]:
    """Give what is remembered, in the order of the keys."""
    found = await store.find_requests(keys)
    return [found[key] for key in sorted(found)]


async def test_a_request_is_found_as_it_was_written(store: Store) -> None:
    answered = record(result=f'"{LARGE} ünïcödé 🦉"', version=7)
    reserved = record(key("reserved"), result=None)

    await write(store, remembered(answered, reserved))

    keys = [answered.key, reserved.key]
    assert await store.find_requests(keys) == {answered.key: answered, reserved.key: reserved}
    assert (await load(store, request_keys=keys)).requests == {answered.key: answered, reserved.key: reserved}


async def test_a_request_that_has_expired_is_found_until_it_is_deleted(store: Store) -> None:
    expired = record(expires_at_ms=1_001)

    await write(store, remembered(expired))

    assert await find(store, expired.key) == [expired]


async def test_a_request_nobody_has_made_is_not_found(store: Store) -> None:
    assert await store.find_requests([key()]) == {}
    assert await store.find_requests([]) == {}
    assert (await load(store, request_keys=[key()])).requests == {}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(key("R"), id="another-case"),
        pytest.param(key("r "), id="a-space-more"),
        pytest.param(key("r", RequestType.STOP), id="another-type"),
        pytest.param(key("r", process_id="P"), id="another-process-id"),
        pytest.param(key("r", namespace="other"), id="another-namespace"),
    ],
)
async def test_requests_are_told_apart_byte_by_byte_in_each_part_of_the_key(store: Store, other: RequestKey) -> None:
    first, second = record(), record(other, process_execution_id="e-2")

    await write(store, remembered(first, second))

    assert await find(store, first.key) == [first]
    assert await find(store, other) == [second]


async def test_a_request_is_replaced_in_one_transaction(store: Store) -> None:
    reserved, answered = record(result=None), record(process_execution_id="e-2")
    await write(store, remembered(reserved))

    await write(store, remembered(answered, dropped=[reserved]))

    assert await find(store, answered.key) == [answered]


async def test_a_request_is_replaced_along_with_an_execution(store: Store) -> None:
    await write(store, remembered(record(), record(key("other"))))
    changes = created(process(process_id="p"))
    changes.requests[key()] = record(result="1")
    changes.dropped_requests[key()] = record()

    await store.transact(Deciding(lambda _: changes, process_keys=[ProcessKey(NAMESPACE, "p")], request_keys=[key()]))

    assert await find(store, key(), key("other")) == [record(key("other")), record(result="1")]


async def test_a_dropped_request_is_forgotten_and_one_that_is_not_there_is_no_error(store: Store) -> None:
    await write(store, remembered(record(), record(key("kept"))))

    await write(store, remembered(dropped=[record(), record(key("nobody"))]))

    assert await find(store, key(), key("kept")) == [record(key("kept"))]


async def test_expired_requests_are_deleted_oldest_first_and_no_more_than_asked_for(store: Store) -> None:
    await write(store, remembered(*(record(key(f"r-{n}"), expires_at_ms=n) for n in range(1, 8))))

    counts = [await store.delete_expired_requests(6, limit=3)]
    left = [found.expires_at_ms for found in await find(store, *(key(f"r-{n}") for n in range(1, 8)))]
    counts += [await store.delete_expired_requests(6, limit=3) for _ in range(2)]

    assert left == [4, 5, 6, 7]
    assert counts == [3, 2, 0]
    assert [found.expires_at_ms for found in await find(store, *(key(f"r-{n}") for n in range(1, 8)))] == [6, 7]


async def test_what_another_cluster_remembers_is_taken_over(store: Store) -> None:
    records = [record(key(f"r-{n}"), version=n, result=f'"{LARGE}"') for n in range(30)]

    await store.replicate_requests(random.sample(records, len(records)))
    await store.replicate_requests([])

    assert sorted(await find(store, *(each.key for each in records)), key=lambda each: each.version) == records


@pytest.mark.parametrize(
    ("version", "is_taken"), [(6, True), (5, False), (4, False)], ids=["larger", "equal", "smaller"]
)
async def test_of_two_records_of_a_request_the_one_of_the_larger_version_stays(
    store: Store, version: int, is_taken: bool
) -> None:
    ours = record(version=5)
    theirs = record(
        shard_id=4,
        process_execution_id="e-2",
        fingerprint="0" * 64,
        result=None,
        created_at_ms=2_000,
        expires_at_ms=3_000,
        version=version,
    )
    await write(store, remembered(ours))

    await store.replicate_requests([theirs])

    assert await find(store, ours.key) == [theirs if is_taken else ours]


@pytest.mark.parametrize("versions", [(1, 2, 3), (3, 2, 1), (1, 3, 2)], ids=str)
async def test_of_several_records_of_a_request_that_come_together_the_largest_version_stays(
    store: Store, versions: Sequence[int]
) -> None:
    await store.replicate_requests([record(process_execution_id=f"e-{each}", version=each) for each in versions])

    assert await find(store, key()) == [record(process_execution_id="e-3", version=3)]


# --- on servers, where others write at the same time ---


@pytest.fixture(params=SERVERS)
async def shared(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Database]:
    """Give an empty database that several servers may have."""
    async with open_database(request.param, databases, tmp_path) as opened:
        yield opened


async def write_anew(store: Store, *tries: Changes) -> int:
    """Commit the first changes that nobody is in the way of, and say how often was decided."""
    decisions = iter(tries)
    await store.transact(Deciding(lambda _: next(decisions)))
    return len(tries) - len(list(decisions))


async def test_a_request_that_a_rival_has_carried_out_is_decided_anew(shared: Database) -> None:
    theirs = record(process_execution_id="theirs")
    await write(shared.store, remembered(theirs))
    ours = created(process("e-2"))
    ours.requests[theirs.key] = record(process_execution_id="e-2")

    decided = await write_anew(shared.store, ours, Changes())

    assert decided == 2
    assert shared.store.counters.retries == 1
    assert await find(shared.store, theirs.key) == [theirs]
    assert await find_process(shared.store, ProcessKey(NAMESPACE, "p-of-e-2"), None) is None


async def test_an_expired_request_that_a_rival_has_replaced_is_not_replaced_again(shared: Database) -> None:
    expired, theirs = record(expires_at_ms=2_000), record(process_execution_id="theirs", expires_at_ms=90_000)
    await write(shared.store, remembered(theirs))

    decided = await write_anew(shared.store, remembered(record(), dropped=[expired]), Changes())

    assert decided == 2
    assert await find(shared.store, theirs.key) == [theirs]


async def test_an_expired_request_that_a_transaction_is_at_is_left_for_another_time(shared: Database) -> None:
    await write(shared.store, remembered(*(record(key(f"r-{n}"), expires_at_ms=n) for n in range(4))))
    await shared.run("BEGIN")
    await shared.run(
        "SELECT version FROM xdb_sys_request WHERE namespace = 'default' AND process_id = 'p' AND request_type = 2 "
        "AND request_id = 'r-1' FOR UPDATE"
    )

    count = await shared.store.delete_expired_requests(100, limit=100)
    await shared.run("ROLLBACK")

    assert count == 3
    assert await shared.store.delete_expired_requests(100, limit=100) == 1
