"""kill -9 of the real server and the real worker under load, at any instant: nothing is lost, nothing happens twice."""

import asyncio
import random
import signal
from pathlib import Path

import pytest

from tests.faults.installation import Installation
from tests.faults.load import Load
from tests.faults.processes import CREATE_LEDGERS


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("server_kills", "worker_kills"), [(20, 0), (0, 10), (4, 4)], ids=["server", "worker", "server and worker"]
)
async def test_everything_completes_once_however_often_they_are_killed(
    tmp_path: Path, server_kills: int, worker_kills: int
) -> None:
    rng = random.Random(server_kills)
    victims = rng.sample(["server", "worker"], server_kills + worker_kills, counts=[server_kills, worker_kills])

    with Installation(tmp_path) as installation:
        installation.sql(CREATE_LEDGERS)
        load = Load(installation, seed=server_kills)
        await load.run(lambda load: kill(installation, victims, load, rng))

    load.check_ledgers()
    installation.check_nothing_is_left()
    installation.check_logs()


@pytest.mark.parametrize("seed", range(2))
async def test_everything_completes_from_the_tables_alone(tmp_path: Path, seed: int) -> None:
    with Installation(tmp_path, server_module="tests.faults.deaf_server") as installation:
        installation.sql(CREATE_LEDGERS)
        load = Load(installation, seed)
        await load.run(lambda load: kill(installation, ["server"] * 3, load, random.Random(seed)))

    load.check_ledgers()
    installation.check_nothing_is_left()
    installation.check_logs()


async def kill(installation: Installation, victims: list[str], load: Load, rng: random.Random) -> None:
    """Kill one after another and start it again at once. Half of the lives end while it starts or soon after."""
    for victim in victims:
        if rng.random() < 0.5:
            await load.progress()
            await asyncio.sleep(rng.uniform(0, 0.3))
        else:
            await asyncio.sleep(rng.uniform(0, 1))
        if victim == "server":
            await asyncio.to_thread(installation.server.stop, signal.SIGKILL)
            installation.start_server()
        else:
            await asyncio.to_thread(installation.worker.stop, signal.SIGKILL)
            installation.start_worker()
    await load.progress()
