"""Closed executions and a closing server stop calls without losing any."""

import asyncio

import pytest

from server_stub.core.outcomes import StateAnswered
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import DONE, USER_ROW, Answer, dispatching, locking_options, make_call
from xdb_sdk.protocol import PROCESS_CLOSED_PATH, Json


async def slow(body: Json) -> Json:
    if "context" in body:
        await asyncio.sleep(10)
    return DONE


async def test_waiting_calls_of_a_closed_execution_are_dropped() -> None:
    async with dispatching(slow, options=DispatchOptions(max_calls_in_flight=1)) as world:
        world.dispatcher.dispatch(make_call(number) for number in (1, 2, 3))
        await asyncio.sleep(1)
        world.dispatcher.process_closed(["e-2"])
        await world.sink.wait_for(2)

    assert [key.state.number for key, _ in world.sink.outcomes] == [1, 3]


async def test_call_of_a_closed_execution_leaves_the_lock_queue() -> None:
    options = locking_options("age")
    async with dispatching(slow) as world:
        world.store.rows["user"] = {"age": 7}
        world.dispatcher.dispatch(make_call(number, options=options, tables=(USER_ROW,)) for number in (1, 2, 3))
        await asyncio.sleep(1)
        world.dispatcher.process_closed(["e-2"])
        await world.sink.wait_for(2)

    assert world.sink.states_at() == {"e-1": 10, "e-3": 20}


async def test_worker_is_told_of_closed_executions_that_it_works_for() -> None:
    async with dispatching(slow) as world:
        world.dispatcher.dispatch(make_call(number) for number in (1, 2, 3))
        await asyncio.sleep(1)
        world.dispatcher.process_closed(["e-1", "e-2", "e-9"])
        await world.sink.wait_for(3)

    told = [body["processExecutionId"] for body in world.worker.calls if "processExecutionId" in body]
    assert told == ["e-1", "e-2"]
    assert world.worker.operations[-2:] == ["process-closed", "process-closed"]


async def test_worker_without_batch_endpoint_is_told_too() -> None:
    async with dispatching(slow, has_batch_endpoint=False) as world:
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(1)
        world.dispatcher.process_closed(["e-1"])
        await world.sink.wait_for(1)

    assert world.worker.requests[-1][0] == PROCESS_CLOSED_PATH


async def test_worker_is_not_told_of_the_execution_that_its_answer_has_closed() -> None:
    async with dispatching() as world:
        world.sink.delay_s = 1
        world.dispatcher.dispatch([make_call(1)])
        await world.sink.wait_for(1)
        world.dispatcher.process_closed(["e-1"])
        await asyncio.sleep(10)

    assert len(world.worker.requests) == 1


async def test_close_waits_for_running_calls_and_makes_no_others() -> None:
    async with dispatching(slow, options=DispatchOptions(max_calls_in_flight=1)) as world:
        world.dispatcher.dispatch(make_call(number) for number in (1, 2))
        await asyncio.sleep(1)
        await world.dispatcher.close(grace_s=30)
        world.dispatcher.dispatch([make_call(3)])
        await asyncio.sleep(100)

    assert [(key.state.number, type(outcome)) for key, outcome in world.sink.outcomes] == [(1, StateAnswered)]


async def test_close_gives_up_any_number_of_calls_that_wait_for_one_lock(caplog: pytest.LogCaptureFixture) -> None:
    options = locking_options("age")
    async with dispatching(slow) as world:
        world.store.rows["user"] = {"age": 7}
        world.dispatcher.dispatch(make_call(number, options=options, tables=(USER_ROW,)) for number in range(2_000))
        await asyncio.sleep(1)
        await world.dispatcher.close(grace_s=30)

        assert world.dispatcher.is_idle

    assert len(world.sink.outcomes) == 1
    assert caplog.records == []


async def test_close_hangs_up_after_its_grace() -> None:
    async with dispatching(slow) as world:
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(1)
        await world.dispatcher.close(grace_s=3)

    assert asyncio.get_running_loop().time() == 4
    assert world.sink.outcomes == []
    assert world.dispatcher.counters.in_flight == 0


async def test_close_does_not_call_a_busy_worker_again() -> None:
    async def busy(body: Json) -> Json:
        await asyncio.sleep(1)
        return Answer(429, None, retry_after_s=0.1)

    async with dispatching(busy) as world:
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(0.5)
        await world.dispatcher.close(grace_s=30)
        await asyncio.sleep(100)

    assert len(world.worker.calls) == 1
