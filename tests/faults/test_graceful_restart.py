"""SIGTERM of the real server and the real worker under load: running calls finish, and clients only wait."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.installation import Installation
from tests.faults.load import Load
from tests.faults.processes import CALLS_FILE, CREATE_LEDGERS, Walker
from xdb_sdk import AsyncClient

GRACE_S = 5
STEP_S = 1.5
RESTARTS = 4
DEADLINE_S = 30


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with Installation(tmp_path, "--shutdown-grace", f"{GRACE_S}s") as installation:
        yield installation


@pytest.mark.parametrize("victim", ["server", "worker"])
async def test_restarts_under_load_lose_no_call(installation: Installation, victim: str) -> None:
    installation.sql(CREATE_LEDGERS)
    load = Load(installation, seed=1)

    async def restart_often(load: Load) -> None:
        for _ in range(RESTARTS):
            await load.progress()
            await asyncio.to_thread(restart, installation, victim)
        await load.progress()

    await load.run(restart_often)

    assert load.lost_calls == []
    load.check_ledgers()
    installation.check_nothing_is_left()
    installation.check_logs()


@pytest.mark.parametrize("victim", ["server", "worker"])
async def test_call_that_runs_at_the_restart_finishes_and_its_waiting_client_hears_of_it(
    installation: Installation, victim: str
) -> None:
    calls = installation.directory / CALLS_FILE

    async with installation.client() as client:
        await client.start_process("walk", Walker, STEP_S)
        waiting = asyncio.create_task(client.wait_for_process_completion("walk", int))
        await asyncio.to_thread(until_exists, calls)
        await asyncio.to_thread(restart, installation, victim)
        attempt = await waiting

    assert attempt == 1
    assert calls.read_text() == "walk begins\nwalk ends\n"
    installation.check_nothing_is_left()
    installation.check_logs()


async def test_every_answered_start_survives_a_restart(installation: Installation) -> None:
    answered: list[str] = []
    are_enough, is_over = asyncio.Event(), asyncio.Event()

    async def start_many(client: AsyncClient) -> None:
        while not is_over.is_set():
            process_id = f"walk-{len(answered)}"
            await client.start_process(process_id, Walker, 0.0)
            answered.append(process_id)
            if len(answered) == 50:
                are_enough.set()

    async with installation.client() as client, asyncio.TaskGroup() as group:
        group.create_task(start_many(client))
        await are_enough.wait()
        await asyncio.to_thread(restart, installation, "server")
        is_over.set()

    async with installation.client() as client:
        for process_id in answered:
            await client.wait_for_process_completion(process_id, int)
    installation.check_nothing_is_left()


async def test_call_that_outlives_the_grace_holds_up_no_restart_and_is_made_again(tmp_path: Path) -> None:
    calls = tmp_path / CALLS_FILE

    with Installation(tmp_path, "--shutdown-grace", "500ms") as installation:
        async with installation.client() as client:
            await client.start_process("walk", Walker, GRACE_S + 1)
            await asyncio.to_thread(until_exists, calls)
            await asyncio.to_thread(restart, installation, "server")
            attempt = await client.wait_for_process_completion("walk", int)

    assert attempt == 1
    assert calls.read_text().splitlines() == ["walk begins", "walk begins", "walk ends", "walk ends"]
    installation.check_nothing_is_left()


def restart(installation: Installation, victim: str) -> None:
    """Stop it, check that it has ended by itself within its grace, and start it again."""
    began_s = time.monotonic()
    if victim == "server":
        status = installation.server.stop()
        installation.start_server()
    else:
        status = installation.worker.stop()
        installation.start_worker()
    assert status == -signal.SIGTERM  # raised again once all is done, as the shell and supervisors expect
    assert time.monotonic() - began_s < GRACE_S


def until_exists(file: Path) -> None:
    """Poll for a file."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not file.exists():
        assert time.monotonic() < deadline_s, f"{file} was not written"
        time.sleep(0.01)
