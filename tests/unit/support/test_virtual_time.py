"""The virtual-time loop keeps asyncio's promises, without the waiting."""

import asyncio
import time
from datetime import timedelta

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.support.virtual_time import EPOCH_MS, VIRTUAL_TIME_BACKEND, Deadlock, VirtualClock, VirtualTimeLoop, run


@pytest.fixture
def anyio_backend() -> object:
    return VIRTUAL_TIME_BACKEND


async def test_a_day_of_sleeping_takes_no_real_time() -> None:
    began_s = time.monotonic()

    await asyncio.sleep(timedelta(days=1).total_seconds())

    assert asyncio.get_running_loop().time() == 86_400
    assert time.monotonic() - began_s < 5


async def test_sleeps_end_in_the_order_of_their_instants() -> None:
    order: list[float] = []

    async def sleep(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        order.append(delay_s)

    await asyncio.gather(*(sleep(delay_s) for delay_s in (3, 0.5, 2, 1, 0)))

    assert order == [0, 0.5, 1, 2, 3]


async def test_nothing_else_runs_while_code_blocks() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    ended_at_s: list[float] = []
    loop.call_later(1, lambda: ended_at_s.append(loop.time()))

    loop.block(30)
    before = list(ended_at_s)
    await asyncio.sleep(1)

    assert (before, ended_at_s) == ([], [30])


@pytest.mark.parametrize("years", [1, 100, 900])
async def test_far_instants_are_reached_exactly(years: int) -> None:
    clock = VirtualClock()

    await asyncio.sleep(years * 365 * 86_400 + 0.25)

    assert clock() == EPOCH_MS + years * 365 * 86_400_000 + 250


@pytest.mark.parametrize("delay_ms", [1, 290, 1_001, 4_567_891])
async def test_clock_has_reached_the_millisecond_that_was_slept_for(delay_ms: int) -> None:
    clock = VirtualClock()

    await asyncio.sleep(delay_ms / 1_000)

    assert clock() == EPOCH_MS + delay_ms


async def test_clock_jumps_without_time_passing_on_the_loop() -> None:
    clock = VirtualClock()

    clock.jump(-3_600_000)

    assert clock() == EPOCH_MS - 3_600_000
    assert asyncio.get_running_loop().time() == 0


async def test_timeouts_of_asyncio_and_anyio_expire_on_virtual_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.sleep(31)
    with anyio.move_on_after(30) as scope:
        await anyio.sleep(31)

    assert scope.cancelled_caught
    assert asyncio.get_running_loop().time() == 60


async def test_executor_runs_inline_and_hands_on_errors() -> None:
    def fail() -> None:
        raise ValueError("no")

    loop = asyncio.get_running_loop()

    result = loop.run_in_executor(None, lambda: 7)
    failure = loop.run_in_executor(None, fail)

    assert result.result() == 7
    with pytest.raises(ValueError, match="no"):
        await failure


async def test_starlette_app_answers_through_httpx() -> None:
    async def slow(request: Request) -> PlainTextResponse:
        await asyncio.sleep(10)
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", slow)])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        answer = await client.get("/")

    assert answer.text == "done"
    assert asyncio.get_running_loop().time() == 10


def test_deadlock_is_an_error_that_names_the_waiting_tasks() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="wait_for_nothing"):
        run(wait_for_nothing())


def test_run_gives_the_result_of_the_coroutine() -> None:
    async def add() -> int:
        async with asyncio.TaskGroup() as tasks:
            one = tasks.create_task(asyncio.sleep(5, result=1))
            two = tasks.create_task(asyncio.sleep(3, result=2))
        return one.result() + two.result()

    assert run(add()) == 3
