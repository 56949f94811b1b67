"""What becomes of calls in shards that another server takes over."""

import asyncio

import pytest

from server_stub.core.model import CallKey
from server_stub.core.outcomes import Verdict
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import DONE, Answer, dispatching, make_call
from xdb_sdk.protocol import Json


async def test_call_that_waits_in_a_lost_shard_is_given_back_and_never_sent() -> None:
    async with dispatching(options=DispatchOptions(max_calls_in_flight=1)) as world:
        in_flight, lost, kept = make_call(1), make_call(2, shard_id=5), make_call(3)
        world.dispatcher.dispatch([in_flight, lost, kept])
        busy = world.dispatcher.shards_lost([5])
        await world.sink.wait_for(2)

    assert busy == set()
    assert world.sink.given_back == [lost.key]
    assert [key for key, _ in world.sink.outcomes] == [in_flight.key, kept.key]


async def test_call_that_a_worker_has_is_finished_and_awaited_though_its_shard_is_lost() -> None:
    may_answer = asyncio.Event()

    async def handler(body: Json) -> Json:
        await may_answer.wait()
        return DONE

    async with dispatching(handler) as world:
        world.sink.delay_s = 1.0
        world.dispatcher.dispatch([make_call(1, shard_id=5)])
        await asyncio.sleep(0.1)
        busy = world.dispatcher.shards_lost([5])
        ended = asyncio.create_task(world.dispatcher.calls_ended(5))
        await asyncio.sleep(0.1)
        may_answer.set()
        await world.sink.wait_for(1)
        was_ended_before_the_verdict = ended.done()
        await ended
        ended_at_s = asyncio.get_running_loop().time()

    assert busy == {5}
    assert not was_ended_before_the_verdict
    assert ended_at_s == pytest.approx(1.2)
    assert world.sink.given_back == []


async def test_shard_without_calls_is_not_waited_for() -> None:
    async with dispatching() as world:
        busy = world.dispatcher.shards_lost([5])
        await world.dispatcher.calls_ended(5)

    assert busy == set()


@pytest.mark.parametrize("has_batch_endpoint", [True, False], ids=["batch", "single"])
async def test_call_that_a_busy_worker_refuses_is_given_back_if_its_shard_was_lost(has_batch_endpoint: bool) -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(1)
        return Answer(429, None, retry_after_s=1)

    async with dispatching(handler, has_batch_endpoint=has_batch_endpoint) as world:
        call = make_call(1, shard_id=5)
        world.dispatcher.dispatch([call])
        await asyncio.sleep(0.1)
        world.dispatcher.shards_lost([5])
        await world.dispatcher.calls_ended(5)

    assert world.sink.given_back == [call.key]
    assert len(world.worker.calls) == 1


async def test_call_whose_read_set_was_changed_is_repeated_by_the_former_owner() -> None:
    async with dispatching() as world:
        world.sink.verdicts = [Verdict.READ_SET_CHANGED]
        world.sink.delay_s = 0.5
        world.dispatcher.dispatch([make_call(1, shard_id=5)])
        await world.sink.wait_for(1)
        world.dispatcher.shards_lost([5])
        await world.dispatcher.calls_ended(5)

    assert len(world.sink.outcomes) == 2
    assert world.sink.given_back == []


async def test_calls_of_a_shard_that_comes_back_are_not_waited_for() -> None:
    may_answer = asyncio.Event()

    async def handler(body: Json) -> Json:
        if body["context"]["processId"] == "p-2":
            await may_answer.wait()
        await asyncio.sleep(0.5)
        return DONE

    async with dispatching(handler) as world:
        first, second = make_call(1, shard_id=5), make_call(2, shard_id=5)
        world.dispatcher.dispatch([first])
        await asyncio.sleep(0.1)
        world.dispatcher.shards_lost([5])
        world.dispatcher.dispatch([second])
        await world.dispatcher.calls_ended(5)
        answered: list[CallKey] = [key for key, _ in world.sink.outcomes]
        may_answer.set()
        await world.sink.wait_for(2)

    assert answered == [first.key]
