"""Lookups that come together share a read, and one that cannot be answered hurts no other."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from server_stub.core.model import ProcessExecution, ProcessKey
from server_stub.core.ports import ProcessLookup, Store, StoreError, StoreUnavailable
from server_stub.engine.process_finder import ProcessFinder
from tests.support.dispatching import make_process
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND


class SlowStore:
    """Answers lookups of process ids that begin with p, each read after a second."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.is_away = False

    async def find_processes(self, lookups: Sequence[ProcessLookup]) -> list[ProcessExecution | None]:
        self.reads.append([lookup.key.process_id for lookup in lookups])
        await asyncio.sleep(1)
        if self.is_away:
            raise StoreUnavailable("away")
        if any(lookup.key.process_id == "broken" for lookup in lookups):
            raise StoreError("unreadable")
        return [make_process() if lookup.key.process_id.startswith("p") else None for lookup in lookups]


def lookup(process_id: str) -> ProcessLookup:
    return ProcessLookup(ProcessKey("default", process_id), None)


async def test_lookups_that_come_while_one_is_read_share_the_next_read() -> None:
    store = SlowStore()
    finder = ProcessFinder(cast(Store, store))
    first = asyncio.create_task(finder.find(lookup("p-1")))
    await asyncio.sleep(0.5)

    others = await asyncio.gather(*(finder.find(lookup(id_)) for id_ in ("p-1", "p-2", "q", "p-2")))

    assert store.reads == [["p-1"], ["p-1", "p-2", "q"]]
    assert [found is not None for found in [await first, *others]] == [True, True, True, False, True]


async def test_an_unreadable_execution_fails_its_own_lookups_alone() -> None:
    store = SlowStore()
    finder = ProcessFinder(cast(Store, store))

    found = await asyncio.gather(
        *(finder.find(lookup(id_)) for id_ in ("p-1", "broken", "p-2")), return_exceptions=True
    )

    assert [type(result) for result in found] == [ProcessExecution, StoreError, ProcessExecution]


async def test_all_are_told_that_the_database_is_away_and_the_next_lookup_reads_again() -> None:
    store = SlowStore()
    store.is_away = True
    finder = ProcessFinder(cast(Store, store))

    found = await asyncio.gather(*(finder.find(lookup(id_)) for id_ in ("p-1", "p-2")), return_exceptions=True)
    store.is_away = False

    assert [type(result) for result in found] == [StoreUnavailable, StoreUnavailable]
    assert await finder.find(lookup("p-1")) is not None


async def test_a_caller_that_gives_up_takes_nothing_from_the_others() -> None:
    store = SlowStore()
    finder = ProcessFinder(cast(Store, store))
    patient, given_up = (asyncio.create_task(finder.find(lookup("p-1"))) for _ in range(2))
    await asyncio.sleep(0.5)

    given_up.cancel()

    assert await patient is not None
