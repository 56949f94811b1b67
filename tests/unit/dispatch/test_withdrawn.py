"""Calls that operators hold or call off: those that no worker has are not made, those that one has go on."""

import asyncio

import pytest

from server_stub.core.outcomes import StateAnswered, Verdict
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import DONE, Answer, dispatching, make_call
from xdb_sdk.protocol import Json


async def slow(body: Json) -> Json:
    await asyncio.sleep(10)
    return DONE


async def test_waiting_calls_of_an_execution_are_dropped_and_those_at_a_worker_go_on() -> None:
    async with dispatching(slow, options=DispatchOptions(max_calls_in_flight=1)) as world:
        world.dispatcher.dispatch(make_call(number) for number in (1, 2, 3))
        await asyncio.sleep(1)
        world.dispatcher.calls_withdrawn(["e-1", "e-2", "e-9"])
        await world.sink.wait_for(2)

    assert [(key.state.number, type(outcome)) for key, outcome in world.sink.outcomes] == [
        (1, StateAnswered),
        (3, StateAnswered),
    ]


@pytest.mark.parametrize("has_batch_endpoint", [True, False], ids=["batch", "single"])
async def test_call_that_a_busy_worker_refuses_is_not_sent_again(has_batch_endpoint: bool) -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(1)
        return Answer(429, None, retry_after_s=1)

    async with dispatching(handler, has_batch_endpoint=has_batch_endpoint) as world:
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(0.1)
        world.dispatcher.calls_withdrawn(["e-1"])
        await asyncio.sleep(60)

        assert world.dispatcher.is_idle
    assert len(world.worker.calls) == 1


async def test_call_whose_read_set_was_changed_is_not_repeated() -> None:
    async with dispatching() as world:
        world.sink.verdicts = [Verdict.READ_SET_CHANGED]
        world.sink.delay_s = 0.5
        world.dispatcher.dispatch([make_call(1)])
        await world.sink.wait_for(1)
        world.dispatcher.calls_withdrawn(["e-1"])
        await asyncio.sleep(10)

        assert world.dispatcher.is_idle
    assert len(world.worker.calls) == 1


async def test_withdrawn_call_that_is_dispatched_again_is_sent_until_the_worker_takes_it() -> None:
    refusals = 1

    async def handler(body: Json) -> Json:
        nonlocal refusals
        await asyncio.sleep(1)
        if refusals:
            refusals -= 1
            return Answer(429, None, retry_after_s=1)
        return DONE

    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(0.1)
        world.dispatcher.calls_withdrawn(["e-1"])
        world.dispatcher.dispatch([make_call(1)])
        await world.sink.wait_for(1)

    assert len(world.worker.calls) == 2
