"""Servers on one database share the work, and any of them answers any request."""

import asyncio
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from server_stub import app
from server_stub.config import ServerSettings
from server_stub.core.changes import Changes
from server_stub.core.model import ProcessKey
from server_stub.core.ports import CommitOutcomeUnknown, StoreError, Work
from server_stub.core.shards import shard_of
from tests.servers.processes import STEPS, ChainProcess, FailProcess, HeldProcess, NapProcess, StepState, gate, runs
from tests.support.servers import Node, Servers, eventually
from xdb_sdk import ProcessAbnormalExitError, StateStatus, UnavailableError

SOON = timedelta(seconds=20)


def is_shared(*nodes: Node, num_shards: int = 16) -> bool:
    """Say whether each shard has one owner and all have the same part."""
    owned = [shard_id for node in nodes for shard_id in node.shard_ids]
    return sorted(owned) == list(range(num_shards)) and all(
        len(node.shard_ids) in (num_shards // len(nodes), num_shards // len(nodes) + 1) for node in nodes
    )


def process_id_of(node: Node, *, seed: str = "p") -> str:
    """Give a process id whose shard a server owns."""
    ids = (f"{seed}-{number}" for number in count())
    return next(each for each in ids if shard_of(ProcessKey("default", each), 16) in node.shard_ids)


async def two(servers: Servers, **changes: Any) -> tuple[Node, Node]:
    """Start two servers, and wait until they share the shards."""
    first, second = await servers.start(**changes), await servers.start(**changes)
    await eventually(lambda: is_shared(first, second))
    return first, second


async def test_every_shard_has_one_owner_after_servers_have_come_and_gone(servers: Servers) -> None:
    first, second = await two(servers)
    third = await servers.start()
    await eventually(lambda: is_shared(first, second, third))
    await second.server.close()
    await eventually(lambda: is_shared(first, third))

    assert first.shard_ids.isdisjoint(third.shard_ids)


async def test_work_is_done_by_both_wherever_it_is_started_and_waited_for(servers: Servers) -> None:
    first, second = await two(servers)

    for number in range(20):
        await first.client.start_process(f"p-{number}", ChainProcess, 1)
    outputs = await asyncio.gather(
        *(second.client.wait_for_process_completion(f"p-{number}", int, SOON) for number in range(20))
    )

    assert outputs == [STEPS] * 20
    assert set(runs.values()) == {1}
    assert first.calls.calls
    assert second.calls.calls


@pytest.mark.parametrize("notify", [True, False], ids=["notify", "no-notify"])
async def test_start_that_another_server_took_begins_within_a_second_and_a_half(servers: Servers, notify: bool) -> None:
    first, second = await two(servers, notify=notify)
    process_id = process_id_of(second)
    await asyncio.sleep(1.1)

    await first.client.start_process(process_id, ChainProcess, STEPS)
    took_s = await eventually(lambda: runs[process_id, STEPS] > 0)

    assert took_s < 1.5
    assert not first.calls.calls


@pytest.mark.parametrize("is_found_by_hint", [True, False], ids=["notify", "no-notify"])
async def test_wait_ends_soon_after_another_server_has_closed_the_execution(
    servers: Servers, is_found_by_hint: bool
) -> None:
    first, second = await two(servers, notify=is_found_by_hint)
    process_id = process_id_of(second)
    await second.client.start_process(process_id, HeldProcess)
    waiter = asyncio.create_task(first.client.wait_for_process_completion(process_id, int, SOON))
    await eventually(lambda: runs[process_id, 1] == 1)
    gate.open()
    await eventually(lambda: runs[process_id, STEPS] == 1)
    began_s = asyncio.get_running_loop().time()

    await waiter

    assert asyncio.get_running_loop().time() - began_s < 1.5


async def test_wait_ends_soon_after_a_commit_whose_outcome_the_server_has_not_learnt(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await servers.start()
    transact = node.server._store.transact

    async def lose_outcome(work: Work) -> Changes:
        monkeypatch.undo()
        await transact(work)
        raise CommitOutcomeUnknown("the connection broke during a commit")

    await node.client.start_process("p", NapProcess, 600.0)
    waiter = asyncio.create_task(node.client.wait_for_process_completion("p", str, SOON))
    await eventually(lambda: node.server._waiters.count == 1)
    monkeypatch.setattr(node.server._store, "transact", lose_outcome)

    await node.client.stop_process("p")
    took_s = await eventually(waiter.done)

    assert isinstance(waiter.exception(), ProcessAbnormalExitError)
    assert took_s < 2


async def test_wait_for_a_state_ends_soon_after_another_server_has_ended_it(servers: Servers) -> None:
    first, second = await two(servers)
    process_id = process_id_of(second)
    await second.client.start_process(process_id, ChainProcess, 1)

    completion = await first.client.wait_for_state_completion(process_id, StepState, STEPS, timeout=SOON)

    assert completion.state_status is StateStatus.COMPLETED


@pytest.mark.parametrize("notify", [True, False], ids=["notify", "no-notify"])
async def test_retry_of_a_process_that_was_stopped_through_another_server_is_not_made(
    servers: Servers, notify: bool
) -> None:
    first, second = await two(servers, notify=notify)
    stopped, retried = process_id_of(second, seed="stopped"), process_id_of(second, seed="retried")
    gate.open()
    for process_id in (stopped, retried):
        await second.client.start_process(process_id, FailProcess)
    await eventually(lambda: second.server.counters()["dispatch"]["failures"] == 2)

    await first.client.stop_process(stopped)
    await second.client.wait_for_process_completion(retried, int, SOON)

    assert (runs[stopped, 1], runs[stopped, 2]) == (1, 0)


async def test_message_to_any_server_wakes_a_wait_of_another(servers: Servers) -> None:
    first, second = await two(servers)
    process_id = process_id_of(second)
    await first.client.start_process(process_id, NapProcess, 600.0)

    await first.client.publish_to_internal_queue(process_id, NapProcess, NapProcess.wake, "up")
    status = await first.client.wait_for_process_completion(process_id, str, SOON)

    assert status == "SCHEDULED"


async def test_timers_of_all_shards_fire_on_time(servers: Servers) -> None:
    first, second = await two(servers)
    ids = [process_id_of(node, seed=str(number)) for number in range(5) for node in (first, second)]
    began_s = asyncio.get_running_loop().time()

    await asyncio.gather(*(first.client.start_process(each, NapProcess, 1.0) for each in ids))
    statuses = await asyncio.gather(*(second.client.wait_for_process_completion(each, str, SOON) for each in ids))

    assert statuses == ["FIRED"] * 10
    assert 1.0 <= asyncio.get_running_loop().time() - began_s < 3.0


async def test_stop_hands_unbegun_work_over_and_finishes_its_calls(servers: Servers) -> None:
    first, second = await two(servers)
    held, failing, later = process_id_of(first), process_id_of(first, seed="f"), process_id_of(first, seed="l")
    await first.client.start_process(held, HeldProcess)
    await first.client.start_process(failing, FailProcess)
    await eventually(lambda: runs[held, 1] == runs[failing, 1] == 1)

    closing = asyncio.create_task(first.server.close())
    await eventually(lambda: is_shared(second))
    await second.client.start_process(later, ChainProcess, 1)
    await second.client.wait_for_process_completion(later, int, SOON)
    was_closing = not closing.done()
    gate.open()
    await second.client.wait_for_process_completion(held, int, SOON)
    await second.client.wait_for_process_completion(failing, int, SOON)
    await closing

    assert was_closing
    assert [runs[held, 1], runs[held, 2], runs[failing, 1], runs[failing, 2]] == [1, 1, 1, 1]


async def test_calls_that_are_cut_off_at_the_end_of_the_grace_are_made_again_by_another(servers: Servers) -> None:
    first, second = await two(servers, shutdown_grace=timedelta(milliseconds=300))
    held = process_id_of(first)
    await first.client.start_process(held, HeldProcess)
    await eventually(lambda: runs[held, 1] == 1)

    await first.server.close()
    took_s = await eventually(lambda: runs[held, 1] == 2)
    gate.open()
    await second.client.wait_for_process_completion(held, int, SOON)

    assert took_s < 1.0


async def test_member_that_joins_takes_over_without_repeating_a_call(servers: Servers) -> None:
    first = await servers.start()
    ids = [f"p-{number}" for number in range(32)]
    for each in ids:
        await first.client.start_process(each, HeldProcess)
    await eventually(lambda: all(runs[each, 1] for each in ids))

    second = await servers.start()
    await eventually(lambda: is_shared(first, second))
    gate.open()
    await asyncio.gather(*(second.client.wait_for_process_completion(each, int, SOON) for each in ids))

    assert {runs[each, step] for each in ids for step in range(1, STEPS + 1)} == {1}
    assert any(call["operation"] == "execute" for call in second.calls.calls)


async def test_server_without_the_role_async_leaves_the_work_to_one_that_joins_later(servers: Servers) -> None:
    api = await servers.start(roles=frozenset({"api"}))
    await api.client.start_process("p", ChainProcess, 1)
    await asyncio.sleep(0.3)
    began = bool(runs)

    worker = await servers.start(roles=frozenset({"async", "system"}))
    output = await api.client.wait_for_process_completion("p", int, SOON)

    assert not began
    assert output == STEPS
    assert is_shared(worker)


async def test_server_without_the_role_api_sends_clients_elsewhere(servers: Servers) -> None:
    worker = await servers.start(roles=frozenset({"async"}))

    with pytest.raises(UnavailableError):
        async with asyncio.timeout(60):
            await worker.client.describe_process("p")


async def test_other_number_of_shards_is_refused(servers: Servers) -> None:
    await servers.start()

    with pytest.raises(StoreError, match="16"):
        await servers.start(num_shards=8)


async def test_successor_at_the_same_address_waits_for_no_lease(servers: Servers) -> None:
    first = await servers.start(place="here", lease=timedelta(seconds=60))
    assert first.server._cluster is not None
    task = first.server._cluster.keeper._task
    assert task is not None
    task.cancel()  # as if the process were gone: it says nothing, and its lease runs on

    second = await servers.start(place="here", lease=timedelta(seconds=60))

    assert is_shared(second)


async def test_idle_servers_make_fewer_than_two_statements_a_second_each(servers: Servers) -> None:
    usual = ServerSettings()
    settings = {"heartbeat": usual.heartbeat, "lease": usual.lease, "member_timeout": usual.member_timeout}
    first, second = await two(servers, **settings)
    await asyncio.sleep(1)
    before = [node.server.counters()["store"]["statements"] for node in (first, second)]
    await asyncio.sleep(10)
    after = [node.server.counters()["store"]["statements"] for node in (first, second)]

    assert all(2 <= count - count_before < 20 for count, count_before in zip(after, before, strict=True))


@pytest.mark.parametrize("error_ms", [600_000, -600_000], ids=["ahead", "behind"])
async def test_wrong_clock_of_a_machine_changes_nothing(
    servers: Servers, error_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await servers.start()
    right = app.system_clock
    monkeypatch.setattr(app, "system_clock", lambda: right() + error_ms)
    second = await servers.start()
    await eventually(lambda: is_shared(first, second))
    ids = [process_id_of(node, seed=seed) for node in (first, second) for seed in "ab"]

    began_s = asyncio.get_running_loop().time()
    await asyncio.gather(*(second.client.start_process(each, NapProcess, 1.0) for each in ids))
    statuses = await asyncio.gather(*(first.client.wait_for_process_completion(each, str, SOON) for each in ids))
    took_s = asyncio.get_running_loop().time() - began_s

    assert statuses == ["FIRED"] * 4
    assert 1.0 <= took_s < 3.0
    assert is_shared(first, second)
