"""Calls for one worker share requests, and one call does not wait for another."""

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from server_stub.core.outcomes import CallFailure, FailureKind, RpcAnswered, StateAnswered, Verdict
from server_stub.dispatch.jobs import RpcInvocation
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import DONE, WORKER_URL, Answer, answer_done, dispatching, make_call, make_process
from xdb_sdk.protocol import (
    EXECUTE_PATH,
    WAIT_UNTIL_PATH,
    WORKER_BATCH_PATH,
    ExecuteAnswer,
    Json,
    ReadRequest,
    StateApi,
    StateOptionsConfig,
    WaitUntilAnswer,
)


async def test_calls_of_one_turn_travel_in_one_request() -> None:
    async with dispatching() as world:
        world.dispatcher.dispatch([make_call(1), make_call(2)])
        world.dispatcher.dispatch([make_call(3, api=StateApi.WAIT_UNTIL)])
        outcomes = await world.sink.wait_for(3)

    assert world.worker.batches == [3]
    assert world.worker.operations == ["execute", "execute", "wait-until"]
    answers = [outcome.answer for outcome in outcomes if isinstance(outcome, StateAnswered)]
    assert [type(answer) for answer in answers] == [ExecuteAnswer, ExecuteAnswer, WaitUntilAnswer]


async def test_slow_call_delays_no_other() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(20 if body["context"]["processId"] == "p-1" else 0)
        return DONE

    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(number) for number in (1, 2, 3)])
        await world.sink.wait_for(3)

    assert world.worker.batches == [3]
    assert world.sink.states_at() == {"e-2": 0, "e-3": 0, "e-1": 20}


async def test_request_holds_no_more_calls_than_allowed() -> None:
    async with dispatching(options=DispatchOptions(max_batch_calls=4)) as world:
        world.dispatcher.dispatch([make_call(number) for number in range(10)])
        await world.sink.wait_for(10)

    assert sorted(world.worker.batches) == [2, 4, 4]


async def test_request_holds_no_more_bytes_than_allowed_and_a_larger_call_goes_alone() -> None:
    small, large = '"' + "s" * 100 + '"', '"' + "l" * 5_000 + '"'
    calls = [make_call(number, input=small if number else large) for number in range(4)]

    async with dispatching(options=DispatchOptions(max_batch_bytes=3_000)) as world:
        world.dispatcher.dispatch(calls)
        await world.sink.wait_for(4)

    assert sorted(world.worker.batches) == [1, 3]


async def test_calls_beyond_the_limit_in_flight_wait_in_order() -> None:
    most = running = 0

    async def handler(body: Json) -> Json:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return DONE

    async with dispatching(handler, options=DispatchOptions(max_calls_in_flight=3)) as world:
        world.dispatcher.dispatch([make_call(number) for number in range(9)])
        await world.sink.wait_for(9)

    assert most == 3
    assert [body["context"]["processId"] for body in world.worker.calls] == [f"p-{number}" for number in range(9)]
    assert world.dispatcher.counters.in_flight == 0


async def test_calls_beyond_those_that_may_wait_are_declined_until_there_is_room() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(1)
        return DONE

    calls = [make_call(number) for number in range(50)]
    left: list[int] = []
    async with dispatching(handler, options=DispatchOptions(max_calls_in_flight=4, max_waiting_calls=10)) as world:
        declined = world.dispatcher.dispatch(calls)
        while declined:
            left.append(len(declined))
            await world.dispatcher.wait_for_room()
            declined = world.dispatcher.dispatch(declined)
        await world.sink.wait_for(50)

    assert left[0] == 40
    assert all(before - after <= 10 for before, after in pairwise(left))
    assert sorted(key.state.number for key, _ in world.sink.outcomes) == list(range(50))
    assert world.sink.at_s[-1] == 13


async def test_rpcs_take_no_room_from_the_calls_that_may_wait() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(1)
        return {"output": None} if "rpcName" in body else DONE

    async def commit(answered: RpcAnswered) -> Verdict:
        return Verdict.APPLIED

    async with dispatching(handler, options=DispatchOptions(max_waiting_calls=10)) as world:
        invocation = RpcInvocation(make_process(1), "verify", None, 5_000, ReadRequest())
        rpcs = [asyncio.create_task(world.dispatcher.rpc(invocation, commit)) for _ in range(30)]
        await asyncio.sleep(0.5)
        declined = world.dispatcher.dispatch(make_call(number) for number in range(12))
        await asyncio.gather(*rpcs)

    assert [call.key.state.number for call in declined] == [10, 11]
    assert world.dispatcher.counters.rpcs_in_flight == 0


async def test_call_in_flight_is_not_made_again() -> None:
    async with dispatching() as world:
        world.sink.delay_s = 5
        world.dispatcher.dispatch([make_call(1), make_call(1)])
        await asyncio.sleep(4)
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(2)
        world.dispatcher.dispatch([make_call(1)])
        await world.sink.wait_for(2)

    assert world.worker.batches == [1, 1]


@pytest.mark.parametrize("api", StateApi)
async def test_worker_without_batch_endpoint_is_called_singly(api: StateApi) -> None:
    options = DispatchOptions(worker_headers={"Authorization": "secret"})
    async with dispatching(has_batch_endpoint=False, options=options) as world:
        world.dispatcher.dispatch([make_call(1, api=api), make_call(2, api=api)])
        outcomes = await world.sink.wait_for(2)
        world.dispatcher.dispatch([make_call(3, api=api)])
        await world.sink.wait_for(3)

    path = WAIT_UNTIL_PATH if api is StateApi.WAIT_UNTIL else EXECUTE_PATH
    assert [path for path, _ in world.worker.requests] == [WORKER_BATCH_PATH, path, path, path]
    assert all(isinstance(outcome, StateAnswered) for outcome in outcomes)
    headers = world.worker.requests[1][1]
    assert headers["x-xdb-idempotency-key"] == f"e-1/S-1/{api.value}"
    assert headers["x-xdb-deadline-ms"] == "1767225630000"
    assert headers["authorization"] == "secret"


async def test_worker_that_gains_the_batch_endpoint_is_found_out() -> None:
    async with dispatching(has_batch_endpoint=False) as world:
        world.dispatcher.dispatch([make_call(1)])
        await world.sink.wait_for(1)
        world.worker.has_batch_endpoint = True
        await asyncio.sleep(61)
        world.dispatcher.dispatch([make_call(2), make_call(3)])
        await world.sink.wait_for(3)

    assert world.worker.batches == [2]


async def test_each_worker_has_its_own_requests() -> None:
    async with dispatching() as world:
        world.dispatcher.dispatch([make_call(1), make_call(2, worker_url="http://other"), make_call(3)])
        await world.sink.wait_for(3)

    failures = [outcome for _, outcome in world.sink.outcomes if isinstance(outcome, CallFailure)]
    assert world.worker.batches == [2]
    assert [failure.kind for failure in failures] == [FailureKind.UNREACHABLE]
    assert "other" in failures[0].details


async def test_call_that_waits_goes_to_the_url_that_it_is_given_with_last() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(10)
        return DONE

    async with dispatching(handler, options=DispatchOptions(max_calls_in_flight=1)) as world:
        world.dispatcher.dispatch(make_call(number) for number in (1, 2, 3))
        await asyncio.sleep(1)
        world.dispatcher.dispatch(make_call(number, worker_url=f"{WORKER_URL}/moved") for number in (1, 2))
        await world.sink.wait_for(3)

    assert [path for path, _ in world.worker.requests] == [
        WORKER_BATCH_PATH,
        f"/moved{WORKER_BATCH_PATH}",
        WORKER_BATCH_PATH,
    ]
    assert world.sink.states_at() == {"e-1": 10, "e-2": 11, "e-3": 20}
    assert world.dispatcher.is_idle


async def test_call_that_a_busy_worker_has_refused_goes_to_the_url_that_it_is_given_with_last() -> None:
    async def handler(body: Json) -> Json:
        is_moved = world.worker.requests[-1][0].startswith("/moved")
        return DONE if is_moved else Answer(429, None, retry_after_s=30)

    async with dispatching(handler) as world:
        world.dispatcher.dispatch([make_call(1)])
        await asyncio.sleep(1)
        world.dispatcher.dispatch([make_call(1, worker_url=f"{WORKER_URL}/moved")])
        await asyncio.sleep(100)

    assert world.sink.states_at() == {"e-1": 1}
    assert len(world.worker.calls) == 2


async def test_worker_that_is_not_called_any_more_is_forgotten() -> None:
    async with dispatching() as world:
        for number in range(300):
            world.dispatcher.dispatch([make_call(number, worker_url=f"http://w{number}")])
            await asyncio.sleep(1)
        known = len(world.dispatcher.worker_urls)
        await asyncio.sleep(100)

        assert known <= 61
        assert world.dispatcher.worker_urls == ()


async def test_worker_that_is_called_or_has_something_to_be_remembered_is_not_forgotten() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(100)
        return DONE

    slow = StateOptionsConfig(execute_api_timeout_ms=200_000)
    options = DispatchOptions(max_call_timeout=timedelta(minutes=5), batch_probe_interval=timedelta(minutes=5))
    async with dispatching(handler, options=options, has_batch_endpoint=False) as world:
        world.dispatcher.dispatch([make_call(1, options=slow)])
        await asyncio.sleep(150)
        world.dispatcher.dispatch([make_call(2, options=slow)])
        await world.sink.wait_for(2)

    assert [path for path, _ in world.worker.requests] == [WORKER_BATCH_PATH, EXECUTE_PATH, EXECUTE_PATH]


async def test_url_prefix_of_a_worker_comes_before_the_path() -> None:
    async with dispatching() as world:
        world.dispatcher.dispatch([make_call(1, worker_url=f"{WORKER_URL}/prefix")])
        await world.sink.wait_for(1)

    assert world.worker.requests[0][0] == f"/prefix{WORKER_BATCH_PATH}"


async def test_counters_tell_batch_sizes() -> None:
    async with dispatching(answer_done) as world:
        world.dispatcher.dispatch([make_call(number) for number in range(5)])
        await world.sink.wait_for(5)
        world.dispatcher.dispatch([make_call(9)])
        await world.sink.wait_for(6)

    counters = world.dispatcher.counters
    assert (counters.calls, counters.batches, counters.batched_calls, counters.largest_batch) == (6, 2, 6, 5)
    assert (counters.failures, counters.in_flight) == (0, 0)
