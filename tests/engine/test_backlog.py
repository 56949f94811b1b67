"""A backlog that is larger than what the server keeps in memory is worked off to its end, whatever has caused it."""

import asyncio
from datetime import timedelta

import pytest

from server_stub.config import ServerSettings
from tests.support.databases import Database
from tests.support.system import WORKER_URL, System
from xdb_sdk import AsyncState, ObjectProcess, ProcessStatus, StateDecision, Worker

EXECUTIONS = 1_500

most_running = 0
running = 0


class BriefState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        global most_running, running
        running += 1
        most_running = max(most_running, running)
        await asyncio.sleep(0.5)
        running -= 1
        return StateDecision.graceful_complete_process()


class BriefProcess(ObjectProcess):
    """Ends with its first call."""

    starting_state = BriefState


@pytest.mark.parametrize("notify", [True, False], ids=["commits-and-scans", "scans-only"])
async def test_backlog_of_a_worker_that_was_away_is_worked_off(database: Database, notify: bool) -> None:
    settings = ServerSettings(
        max_worker_calls=100, look_ahead=timedelta(seconds=10), rescan_interval=timedelta(seconds=5)
    )
    async with System(database, settings, notify=notify) as system:
        system.serve(BriefProcess)
        system.route(WORKER_URL, None)
        numbers = range(database.some_of(EXECUTIONS))
        await asyncio.gather(*(system.client.start_process(f"p{number}", BriefProcess) for number in numbers))
        await asyncio.sleep(60)
        await system.restart_server()
        system.route(WORKER_URL, Worker(system.registry))
        await asyncio.sleep(150)

        running_ones = system.sql(
            "SELECT count(*) FROM xdb_sys_process_execution WHERE status = ?", ProcessStatus.RUNNING.value
        )

    assert running_ones == [(0,)]
    assert most_running <= 100
