"""What the service API asks a store: processes, states, queue sizes, process-local attributes, lists."""

from typing import Any

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import LocalAttributeRead, LocalAttributeWrite, ProcessKey
from server_stub.core.ports import Needs, Store
from tests.contract.store.works import NAMESPACE, created, find_process, load, message, process, state, write
from xdb_sdk.protocol import ListRequest, ProcessStatus, StateStatus

KEY = ProcessKey(NAMESPACE, "p")


async def test_a_process_is_found_by_its_id_as_the_current_one(store: Store) -> None:
    former = process("e-1", process_id="p", is_current=False)
    await write(store, created(former, process("e-2", process_id="p")))

    found = await find_process(store, KEY, None)

    assert found == process("e-2", process_id="p")


async def test_a_former_execution_is_found_by_its_own_id(store: Store) -> None:
    former = process("e-1", process_id="p", is_current=False)
    await write(store, created(former, process("e-2", process_id="p")))

    assert await find_process(store, KEY, "e-1") == former


async def test_an_execution_of_another_process_id_is_not_found(store: Store) -> None:
    await write(store, created(process("e-1", process_id="other"), process("e-2", process_id="p", namespace="n")))

    assert await find_process(store, KEY, "e-1") is None
    assert await find_process(store, KEY, "e-2") is None
    assert await find_process(store, KEY, None) is None


async def test_states_are_found_in_order_of_creation_with_the_closed_ones_if_asked(store: Store) -> None:
    await write(store, created(process(), state(state_id="Z"), state("e-2")))
    await write(store, created(state(state_id="A", status=StateStatus.COMPLETED), state(state_id="M")))

    everything = await store.find_states("e-1", latest=3)
    pending = await store.find_states("e-1", latest=0)

    assert [s.state_id for s in everything] == ["Z", "A", "M"]
    assert [s.state_id for s in pending] == ["Z", "M"]


async def test_closed_states_are_found_among_the_latest_only_and_open_ones_always(store: Store) -> None:
    closed = StateStatus.COMPLETED
    states = [state(number=n, status=StateStatus.RUNNING if n in (2, 8) else closed) for n in range(1, 10)]
    await write(store, created(process(), *states))

    found = await store.find_states("e-1", latest=3)

    assert [s.number for s in found] == [2, 7, 8, 9]


async def test_a_state_is_found_by_number(store: Store) -> None:
    await write(store, created(state(number=1), state(number=2, status=StateStatus.FAILED)))

    found = await store.find_state("e-1", "S", number=2, wait_for_key=None)

    assert found == state(number=2, status=StateStatus.FAILED)
    assert await store.find_state("e-1", "S", number=3, wait_for_key=None) is None


async def test_a_state_is_found_by_key_the_first_that_has_it(store: Store) -> None:
    keyed = [state(number=n, wait_for_key="k") for n in (12, 3, 2)]
    await write(store, created(state(number=1), *keyed, state(state_id="T", wait_for_key="k2")))

    found = await store.find_state("e-1", "S", number=None, wait_for_key="k")

    assert found is not None
    assert found.number == 2
    assert await store.find_state("e-1", "S", number=None, wait_for_key="k2") is None


async def test_unclaimed_messages_are_counted_by_queue(store: Store) -> None:
    changes = created(process(), message(1), message(2), message(3, queue="other"))
    changes.claim_message(message(4, queue="claimed", message_id="m"))
    await write(store, changes)

    assert await store.count_messages("e-1") == {"q": 2, "other": 1}
    assert await store.count_messages("e-2") == {}


# --- process-local attributes ---


def attributes(execution_id: str = "e-1", **values: str) -> Changes:
    """Give changes that write process-local attributes."""
    return Changes(local_attribute_writes=[LocalAttributeWrite(execution_id, *item) for item in values.items()])


async def read_local(store: Store, *reads: LocalAttributeRead) -> dict[str, dict[str, str]]:
    """Read attributes as calls do, and check that a transaction reads the same."""
    outside = (await store.read_for_calls([], reads)).local_attributes
    inside = (await load(store, needs=Needs(local_attributes=list(reads)))).local_attributes
    assert outside == inside
    return outside


async def test_local_attributes_are_read_by_name_and_the_unset_are_absent(store: Store) -> None:
    await write(store, attributes(a="1", b="null", c="3"))

    found = await read_local(store, LocalAttributeRead("e-1", names=("a", "b", "missing")))

    assert found == {"e-1": {"a": "1", "b": "null"}}


async def test_a_local_attribute_has_its_last_value(store: Store) -> None:
    await write(store, attributes(a="1"))
    twice = attributes(a="2")
    twice.local_attribute_writes += attributes(a="3").local_attribute_writes

    await write(store, twice)

    assert await read_local(store, LocalAttributeRead("e-1", read_all=True)) == {"e-1": {"a": "3"}}


@pytest.mark.parametrize(
    ("prefix", "matching"),
    [("form_", {"form_a", "form_é", "form_"}), ("form", {"form_a", "form_é", "form_", "form%"}), ("F", {"Form_a"})],
)
async def test_local_attributes_are_read_by_prefix_taken_literally(
    store: Store, prefix: str, matching: set[str]
) -> None:
    names = ("Form_a", "fork", "form%", "form_", "form_a", "form_é", "forn", "z")
    await write(store, attributes(**dict.fromkeys(names, "1")))

    found = await read_local(store, LocalAttributeRead("e-1", prefixes=(prefix,)))

    assert set(found["e-1"]) == matching


async def test_local_attributes_belong_to_their_execution(store: Store) -> None:
    await write(store, attributes(a="1"))
    await write(store, attributes("e-2", a="2"))

    found = await read_local(store, LocalAttributeRead("e-1", names=("a",)), LocalAttributeRead("e-2", read_all=True))

    assert found == {"e-1": {"a": "1"}, "e-2": {"a": "2"}}


async def test_local_attributes_outlive_their_execution(store: Store) -> None:
    await write(store, attributes(a="1"))

    await write(store, Changes(closed_processes={"e-1": process()}))

    assert await read_local(store, LocalAttributeRead("e-1", read_all=True)) == {"e-1": {"a": "1"}}


# --- lists ---


async def listed(store: Store, **filters: Any) -> list[str]:
    """Give the execution ids of the first page."""
    return [p.process_execution_id for p in await store.list_processes(ListRequest(**filters), None)]


async def test_a_list_of_nothing_is_empty(store: Store) -> None:
    assert await listed(store) == []


async def test_a_list_is_newest_first_and_ties_go_by_the_bytes_of_the_id(store: Store) -> None:
    ids = ["a", "B", "é", "z", "a-older"]
    await write(store, created(*[process(id_, started_at_ms=1 if id_ == "a-older" else 2) for id_ in ids]))

    assert await listed(store) == ["é", "z", "a", "B", "a-older"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["e-4", "e-3", "e-2", "e-1"]),
        ({"namespace": "other"}, ["e-5"]),
        ({"process_id": "p-1"}, ["e-3", "e-1"]),
        ({"process_type": "B"}, ["e-4", "e-2"]),
        ({"statuses": (ProcessStatus.RUNNING,)}, ["e-4"]),
        ({"statuses": (ProcessStatus.RUNNING, ProcessStatus.FAILED)}, ["e-4", "e-3"]),
        ({"started_from_ms": 2_000}, ["e-4", "e-3", "e-2"]),
        ({"started_before_ms": 2_000}, ["e-1"]),
        ({"started_from_ms": 0, "started_before_ms": 10_000}, ["e-4", "e-3", "e-2", "e-1"]),
        ({"closed_from_ms": 5_000}, ["e-3", "e-2"]),
        ({"closed_before_ms": 6_000}, ["e-2", "e-1"]),
        ({"process_id": "p-1", "statuses": (ProcessStatus.COMPLETED,), "started_before_ms": 3_000}, ["e-1"]),
        ({"process_id": "p-1", "process_type": "B"}, []),
    ],
    ids=str,
)
async def test_filters_of_a_list_combine(store: Store, filters: dict[str, Any], expected: list[str]) -> None:
    completed, failed = ProcessStatus.COMPLETED, ProcessStatus.FAILED
    await write(
        store,
        created(
            process("e-1", process_id="p-1", started_at_ms=1_000, status=completed, closed_at_ms=4_000,
                    is_current=False, process_type="A"),
            process("e-2", process_id="p-2", started_at_ms=2_000, status=completed, closed_at_ms=5_000,
                    process_type="B"),
            process("e-3", process_id="p-1", started_at_ms=3_000, status=failed, closed_at_ms=6_000,
                    process_type="A"),
            process("e-4", process_id="p-4", started_at_ms=4_000, process_type="B"),
            process("e-5", process_id="p-1", started_at_ms=5_000, namespace="other"),
        ),
    )  # fmt: skip

    assert await listed(store, **filters) == expected


async def test_a_page_has_one_more_than_asked_for(store: Store) -> None:
    await write(store, created(*[process(f"e-{n}") for n in range(6)]))

    assert len(await listed(store, page_size=3)) == 4
    assert len(await listed(store, page_size=6)) == 6


async def test_pages_are_stable_while_executions_are_added(store: Store) -> None:
    before = [process(f"e-{n:02}", started_at_ms=1_000 + n % 3) for n in range(40)]
    await write(store, created(*before))
    seen: list[str] = []
    after: tuple[int, str] | None = None

    while page := (await store.list_processes(ListRequest(page_size=4), after))[:4]:
        seen += [p.process_execution_id for p in page]
        after = (page[-1].started_at_ms, page[-1].process_execution_id)
        await write(store, created(process(f"new-{len(seen)}", started_at_ms=2_000 + len(seen))))

    assert len(seen) == len(before)
    assert set(seen) == {p.process_execution_id for p in before}
