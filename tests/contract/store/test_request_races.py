"""Two servers are sent the same requests at the same time, in batches: each is carried out once (C15, C17)."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from server_stub.core.client_events import PublishMessages, StartProcess, StopProcess
from server_stub.core.events import Event
from server_stub.core.model import RequestKey, RequestType
from server_stub.core.ports import SoleOwnership, Store
from server_stub.core.refusals import Refused
from server_stub.core.requests import Once, RequestClaim
from server_stub.engine.committer import Committer
from tests.contract.store.databases import SERVERS
from tests.contract.store.test_requests import key, record, remembered
from tests.contract.store.works import write
from tests.support.databases import Databases
from xdb_sdk.protocol import (
    IdReusePolicy,
    ListRequest,
    Message,
    ProcessStatus,
    PublishAnswer,
    PublishRequest,
    RepeatableAnswer,
    StartAnswer,
    StartRequest,
    StopAnswer,
    StopRequest,
)

AnyOnce: TypeAlias = Once[StartAnswer] | Once[PublishAnswer] | Once[StopAnswer]

DURATION_S = 3.0
CALLERS = 24
"""Of each server."""
PROCESS_IDS = [f"p-{number}" for number in range(4)]
REQUEST_IDS = [f"r-{number}" for number in range(30)]
DAY_MS = 86_400_000


@pytest.fixture(params=SERVERS)
async def stores(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[list[Store]]:
    """Give one database as two servers have it."""
    database = databases.empty(request.param, tmp_path)
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            opened.append(await database.open_store())
            stack.push_async_callback(opened[-1].close)
        yield opened


class Race:
    """Callers that send a few requests again and again, and what they were answered."""

    def __init__(self) -> None:
        self._random = random.Random()
        self._starts = 0
        self.answers: dict[RequestKey, list[RepeatableAnswer]] = defaultdict(list)
        self.errors: list[Exception] = []

    async def call(self, committer: Committer, ends_at_s: float) -> None:
        """Send requests until time is over."""
        while time.monotonic() < ends_at_s:
            once = self._any()
            try:
                answer: RepeatableAnswer = await committer.submit(cast(Event[Any], once))
                self.answers[once.claim.key].append(answer)
            except Refused:
                continue
            except Exception as error:
                self.errors.append(error)

    def _any(self) -> AnyOnce:
        process_id, request_id = self._random.choice(PROCESS_IDS), self._random.choice(REQUEST_IDS)
        kind = self._random.choice((RequestType.START, RequestType.PUBLISH, RequestType.STOP))
        claim = RequestClaim(key(request_id, kind, process_id=process_id), "f", 0, DAY_MS)
        if kind is RequestType.START:
            return Once(self._start(process_id, request_id), claim, StartAnswer)
        # Exactly one of the executions, or the current one: requests that meet at no lock.
        target: dict[str, Any] = {"process_id": process_id, "process_execution_id": self._target(process_id)}
        if kind is RequestType.STOP:
            return Once(StopProcess(StopRequest(**target)), claim, StopAnswer)
        messages = (Message(queue_name="q", payload=request_id),)
        return Once(PublishMessages(PublishRequest(**target, messages=messages)), claim, PublishAnswer)

    def _target(self, process_id: str) -> str | None:
        started = (of for of in self.answers if (of.process_id, of.request_type) == (process_id, RequestType.START))
        ids = [answer.process_execution_id for of in started for answer in self.answers[of][:1]]
        return self._random.choice([None, None, *ids])

    def _start(self, process_id: str, request_id: str) -> StartProcess:
        self._starts += 1
        replaces = request_id[-1] in "02468"
        policy = IdReusePolicy.TERMINATE_IF_RUNNING if replaces else IdReusePolicy.ALLOW_IF_NO_RUNNING
        request = StartRequest(process_id=process_id, process_type="T", worker_url="http://w", id_reuse_policy=policy)
        return StartProcess(request, f"e-{self._starts:06}")

    def first(self, request_type: RequestType) -> list[RepeatableAnswer]:
        """Give the answers of requests that were carried out."""
        of_type = (answers for of, answers in self.answers.items() if of.request_type is request_type)
        return [answer for answers in of_type for answer in answers if not answer.duplicate]


async def test_each_request_is_carried_out_once_and_answered_alike_while_expired_ones_are_deleted(
    stores: list[Store],
) -> None:
    race, deleted = Race(), 0
    kinds = (RequestType.START, RequestType.PUBLISH, RequestType.STOP)
    keys = [
        key(id_, kind, process_id=process_id) for id_ in REQUEST_IDS for kind in kinds for process_id in PROCESS_IDS
    ]
    keys += [key(f"old-{number}") for number in range(2_000)]
    await write(stores[0], remembered(*(record(of, expires_at_ms=number) for number, of in enumerate(keys))))
    ends_at_s = time.monotonic() + DURATION_S
    committers = [
        Committer(store, _now_ms, lambda _: None, ownership=SoleOwnership(), max_transactions=3, max_batch=8)
        for store in stores
    ]

    async with asyncio.TaskGroup() as group:
        for committer in committers:
            committer.start()
            for _ in range(CALLERS):
                group.create_task(race.call(committer, ends_at_s))
        while time.monotonic() < ends_at_s:
            counts = await asyncio.gather(*(store.delete_expired_requests(DAY_MS, limit=100) for store in stores))
            deleted += sum(counts)
            await asyncio.sleep(0.02)
    for committer in committers:
        await committer.close()

    assert race.errors == []
    assert 2_000 <= deleted <= len(keys)
    assert not await stores[0].find_requests([of for of in keys if of.request_id.startswith("old")])
    for answers in race.answers.values():
        told = {answer.model_copy(update={"duplicate": False}).model_dump_json() for answer in answers}
        assert len(told) <= 1
        assert sum(not answer.duplicate for answer in answers) == min(len(answers), 1)
    await _assert_effects_are_those_answered(race, stores[0])


async def _assert_effects_are_those_answered(race: Race, store: Store) -> None:
    found = await store.list_processes(ListRequest(page_size=1_000), None)
    running = [process.process_id for process in found if process.status is ProcessStatus.RUNNING]
    started = Counter(process.process_execution_id for process in found)
    stopped = Counter(process.process_execution_id for process in found if process.is_current or not process.reason)
    stopped -= Counter(process.process_execution_id for process in found if process.is_running)
    published = Counter({process.process_execution_id: process.next_sequence_id - 1 for process in found})
    stops = (answer for answer in race.first(RequestType.STOP) if isinstance(answer, StopAnswer) and answer.changed)

    assert len(running) == len(set(running))
    assert _executions(race.first(RequestType.START)) == started
    assert _executions(race.first(RequestType.PUBLISH)) == +published
    assert _executions(stops) == stopped


def _executions(answers: Iterable[RepeatableAnswer]) -> Counter[str]:
    return Counter(answer.process_execution_id for answer in answers)


def _now_ms() -> int:
    return round(time.time() * 1_000)
