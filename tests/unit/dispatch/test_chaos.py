"""Whatever workers do, every call has one outcome and nothing is left over."""

import asyncio
import json
import random

import pytest
from starlette.types import Receive, Scope, Send

from server_stub.core.outcomes import Verdict
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import (
    DONE,
    USER_ROW,
    Answer,
    answer_line,
    dispatching,
    locking_options,
    make_call,
    respond,
    response_start,
)
from tests.support.virtual_time import run
from xdb_sdk.protocol import BATCH_CONTENT_TYPE, Json, StateOptionsConfig

CALLS = 60
OPTIONS = DispatchOptions(max_calls_in_flight=17, max_batch_calls=6, max_answer_bytes=2_000)


class ChaoticWorker:
    """Does something else with every request and call; all that it does follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await self._sleep(3)
        whole = self._random.choices(["batch", "busy", "missing", "error", "crash", "hang"], [60, 5, 5, 5, 5, 5])[0]
        if not scope["path"].endswith("/batch"):
            await respond(send, 200, json.dumps(DONE).encode())
        elif whole == "batch":
            await self._answer_lines([json.loads(line) for line in body.splitlines()], send)
        elif whole == "busy":
            await respond(send, 503, b"", {"retry-after": "1"})
        elif whole == "missing":
            await respond(send, 404, b"")
        elif whole == "error":
            await respond(send, 500, b"no")
        elif whole == "crash":
            raise RuntimeError
        else:
            await asyncio.sleep(10_000)

    async def _answer_lines(self, lines: list[Json], send: Send) -> None:
        await send(response_start(200, {"content-type": BATCH_CONTENT_TYPE}))
        self._random.shuffle(lines)
        for line in lines:
            await self._sleep(1)
            for data in self._answer(line["callId"]):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body"})

    def _answer(self, call_id: int) -> list[bytes]:
        good = answer_line(call_id, Answer(200, DONE))
        what = self._random.choices(
            ["good", "twice", "cut", "none", "fail", "busy", "garbage", "huge"], [60, *[6] * 7]
        )[0]
        return {
            "good": [good],
            "twice": [good, good],
            "cut": [good[:7], good[7:]],
            "none": [],
            "fail": [answer_line(call_id, Answer(424, {"errorType": "E"}))],
            "busy": [answer_line(call_id, Answer(429, None, self._random.choice([0.1, 5])))],
            "garbage": [b"<html>\n"],
            "huge": [b"x" * 3_000 + b"\n"],
        }[what]

    async def _sleep(self, most_s: float) -> None:
        if self._random.random() < 0.5:
            await asyncio.sleep(self._random.random() * most_s)


async def live_through(seed: int) -> None:
    chance = random.Random(seed)
    options = [StateOptionsConfig(execute_api_timeout_ms=ms) for ms in (1_000, 5_000)] + [
        locking_options("age"),
        locking_options("age", lock_type="SHARE_LOCK"),
    ]
    calls = [make_call(number, options=chance.choice(options), tables=(USER_ROW,)) for number in range(CALLS)]
    async with dispatching(app=ChaoticWorker(seed), options=OPTIONS) as world:
        world.store.rows["user"] = {"age": 7}
        world.sink.delay_s = 0.01
        world.sink.verdicts = [chance.choice([Verdict.APPLIED, Verdict.OBSOLETE]) for _ in range(CALLS)]
        for start in range(0, CALLS, 10):
            world.dispatcher.dispatch(calls[start : start + 10])
            world.dispatcher.dispatch(calls[start : start + 10])
            await asyncio.sleep(chance.random())
        await world.sink.wait_for(CALLS)
        await asyncio.sleep(4_000)
        assert world.dispatcher.is_idle

    assert sorted(key for key, _ in world.sink.outcomes) == sorted(call.key for call in calls)
    assert world.dispatcher.counters.in_flight == 0


@pytest.mark.parametrize("seed", range(40))
def test_every_call_has_an_outcome_whatever_the_worker_does(seed: int) -> None:
    run(live_through(seed))
