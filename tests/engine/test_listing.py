"""Lists of executions: filters, pages, and no lag (semantics 6.6)."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.engine.service_http import post
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    IdReusePolicy,
    InvalidArgumentError,
    ObjectProcess,
    ProcessStartOptions,
    ProcessStatus,
    ProcessStopType,
    StateDecision,
    data_attribute,
    process,
)

KOLKATA = ZoneInfo("Asia/Kolkata")


class DoneState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class QuickProcess(ObjectProcess):
    """Completes at once."""

    starting_state = DoneState


class IdleProcess(ObjectProcess):
    """Does nothing until it is stopped."""


@pytest.fixture(autouse=True)
def served(system: System) -> None:
    """Let the worker know the processes."""
    system.serve(QuickProcess, IdleProcess)


async def listed(system: System, **filters: Any) -> list[str]:
    """List the ids of the executions that pass all filters."""
    return [each.process_execution_id async for each in system.client.list_processes(**filters)]


async def replace(system: System, process_id: str, process_class: type[ObjectProcess] = IdleProcess) -> str:
    """Start a process in the place of another."""
    options = ProcessStartOptions(id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)
    return await system.client.start_process(process_id, process_class, None, options)


async def test_list_of_nothing_is_empty(system: System) -> None:
    empty = await post(system, "list", {})
    await system.client.start_process("p", IdleProcess)
    none_passes = await post(system, "list", {"statuses": ["FAILED"]})

    assert (empty.status_code, empty.json().get("processes", [])) == (200, [])
    assert (none_passes.status_code, none_passes.json().get("processes", [])) == (200, [])


async def test_list_is_newest_first_and_tells_what_each_execution_is(system: System) -> None:
    first = await system.client.start_process("p", QuickProcess)
    await asyncio.sleep(1)
    second = await replace(system, "p")

    newer, older = [each async for each in system.client.list_processes()]

    assert (newer.process_execution_id, older.process_execution_id) == (second, first)
    assert (newer.process_id, newer.process_type, newer.namespace) == ("p", "IdleProcess", "default")
    assert (newer.status, newer.is_current, newer.closed_at) == (ProcessStatus.RUNNING, True, None)
    assert (older.status, older.is_current) == (ProcessStatus.COMPLETED, False)
    assert older.closed_at is not None
    assert older.started_at <= older.closed_at < newer.started_at


async def test_filters_of_a_list_combine(system: System) -> None:
    for process_id in ("a", "b"):
        for process_class in (QuickProcess, IdleProcess, IdleProcess):
            await replace(system, process_id, process_class)
            await asyncio.sleep(10)
    await system.client.stop_process("b", ProcessStopType.FAIL)
    everything = [each async for each in system.client.list_processes()]
    started = sorted(each.started_at for each in everything)
    closed = sorted(each.closed_at for each in everything if each.closed_at)

    choices: dict[str, list[Any]] = {
        "process_id": [None, "a", "c"],
        "process_type": [None, "IdleProcess"],
        "statuses": [(), {ProcessStatus.RUNNING}, {ProcessStatus.FAILED, ProcessStatus.TERMINATED}],
        "started_from": [None, started[1]],
        "started_before": [None, started[4]],
        "closed_from": [None, closed[1]],
        "closed_before": [None, closed[3]],
    }
    for values in product(*choices.values()):
        filters = dict(zip(choices, values, strict=True))
        expected = [
            each.process_execution_id
            for each in everything
            if (filters["process_id"] in (None, each.process_id))
            and (filters["process_type"] in (None, each.process_type))
            and (not filters["statuses"] or each.status in filters["statuses"])
            and (filters["started_from"] is None or each.started_at >= filters["started_from"])
            and (filters["started_before"] is None or each.started_at < filters["started_before"])
            and (filters["closed_from"] is None or (each.closed_at and each.closed_at >= filters["closed_from"]))
            and (filters["closed_before"] is None or (each.closed_at and each.closed_at < filters["closed_before"]))
        ]
        assert await listed(system, **filters) == expected, filters


async def test_pages_neither_repeat_nor_skip_while_executions_are_added(system: System) -> None:
    before = [await system.client.start_process(f"before-{number}", IdleProcess) for number in range(25)]
    found = []
    token = None

    for number in range(6):
        page = (
            await post(system, "list", {"pageSize": 5, "nextPageToken": token} if token else {"pageSize": 5})
        ).json()
        found += [each["processExecutionId"] for each in page["processes"]]
        token = page.get("nextPageToken")
        await system.client.start_process(f"meanwhile-{number}", IdleProcess)
        if token is None:
            break

    assert found == before[::-1]


async def test_pages_go_on_where_executions_of_one_instant_are_divided(system: System) -> None:
    started = await asyncio.gather(*[system.client.start_process(f"p-{number}", IdleProcess) for number in range(30)])

    assert len({each.started_at async for each in system.client.list_processes()}) == 1
    for page_size in (1, 7, 30, 31):
        assert await listed(system, page_size=page_size) == sorted(started, reverse=True)


async def test_execution_is_listed_as_soon_as_it_has_started_and_as_it_is(system: System) -> None:
    async def start_and_list(number: int) -> None:
        process_execution_id = await system.client.start_process(f"p-{number}", IdleProcess)
        assert await listed(system, process_id=f"p-{number}") == [process_execution_id]
        await system.client.stop_process(f"p-{number}")
        assert await listed(system, process_id=f"p-{number}", statuses=[ProcessStatus.RUNNING]) == []
        assert await listed(system, process_id=f"p-{number}", statuses=[ProcessStatus.TERMINATED]) == [
            process_execution_id
        ]

    await asyncio.gather(*[start_and_list(number) for number in range(200)])


@process(table_name="badge", primary_key="badge_id", primary_key_type=int)
class BadgeProcess(ObjectProcess):
    serial = data_attribute(str)


async def test_attribute_leads_to_exactly_its_own_process_straight_after_the_start(system: System) -> None:
    system.sql("CREATE TABLE badge (badge_id INTEGER PRIMARY KEY, serial VARCHAR(255) UNIQUE)")
    system.serve(BadgeProcess)

    async def start_and_find(number: int) -> None:
        options = ProcessStartOptions(initial_upsert_data_attributes={"serial": f"s-{number}"})
        started = await system.client.start_object_process(f"p-{number}", BadgeProcess, number, None, options)
        found = system.sql(
            "SELECT process_execution_id FROM badge JOIN xdb_sys_process_execution ON object_id = badge_id || ''"
            " WHERE serial = ?",
            f"s-{number}",
        )
        assert found == [(started,)]

    await asyncio.gather(*[start_and_find(number) for number in range(200)])


@pytest.fixture
def in_kolkata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let server and client run where local time is five and a half hours ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("zone", [UTC, KOLKATA, ZoneInfo("America/New_York")], ids=str)
async def test_bounds_of_a_list_are_instants_wherever_the_server_runs(
    system: System, in_kolkata: None, zone: Any
) -> None:
    assert datetime.now().astimezone().utcoffset() == timedelta(hours=5, minutes=30)
    old = await system.client.start_process("old", QuickProcess)
    await asyncio.sleep(15 * 60)
    recent = await system.client.start_process("recent", QuickProcess)
    now = datetime.fromtimestamp(system.clock() / 1_000, UTC)

    limit = (now - timedelta(minutes=10)).astimezone(zone)

    assert await listed(system, started_from=limit) == [recent]
    assert await listed(system, started_before=limit) == [old]
    assert await listed(system, closed_from=limit) == [recent]
    assert await listed(system, closed_before=limit) == [old]


async def test_bounds_of_a_list_keep_what_is_finer_than_the_clock_of_the_server(system: System) -> None:
    started = await system.client.start_process("p", IdleProcess)
    [each] = [each async for each in system.client.list_processes()]
    a_little = timedelta(microseconds=1)

    assert await listed(system, started_from=each.started_at) == [started]
    assert await listed(system, started_from=each.started_at + a_little) == []
    assert await listed(system, started_before=each.started_at) == []
    assert await listed(system, started_before=each.started_at + a_little) == [started]


@pytest.mark.parametrize("bound", ["started_from", "started_before", "closed_from", "closed_before"])
async def test_bound_without_a_time_zone_is_refused_by_name(system: System, in_kolkata: None, bound: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{bound} .* has no time zone"):
        await listed(system, **{bound: datetime(2026, 1, 1)})  # noqa: DTZ001  # the mistake
