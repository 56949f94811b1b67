"""Thousands of seeds: each effect once, nothing lost, nothing stuck.

Replay one with `XDB_SIMULATION_SEEDS=1234:1235 pytest tests/simulation -k sqlite`.
"""

import os
from pathlib import Path

import pytest

from tests.simulation.world import World
from tests.support import virtual_time
from tests.support.databases import KINDS, Database, Databases, Kind

SEEDS: dict[Kind, str] = {"sqlite": "0:2000", "postgresql": "2000:2100", "mariadb": "2100:2200"}
"""Which seeds each database lives through: fewer where each transaction costs a round trip."""
CHUNK = 25


def chunks_of(kind: Kind) -> list[range]:
    first, after = map(int, os.environ.get("XDB_SIMULATION_SEEDS", SEEDS[kind]).split(":"))
    return [range(seed, min(seed + CHUNK, after)) for seed in range(first, after, CHUNK)]


def live_through(seed: int, database: Database) -> World:
    async def live() -> World:
        world = World(seed, database)
        await world.run()
        return world

    try:
        return virtual_time.run(live())
    except BaseException as error:
        error.add_note(f"seed {seed}: replay with XDB_SIMULATION_SEEDS={seed}:{seed + 1} on {database.kind}")
        raise


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [(kind, seeds) for kind in KINDS for seeds in chunks_of(kind)],
    ids=lambda value: f"{value.start}-{value.stop - 1}" if isinstance(value, range) else value,
)
def test_every_effect_happens_once_and_nothing_is_lost_or_stuck(
    databases: Databases, kind: Kind, seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        live_through(seed, databases.empty(kind, tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_replayed_exactly(databases: Databases, kind: Kind, tmp_path: Path) -> None:
    first, second = (live_through(7, databases.empty(kind, tmp_path)).trace.digest() for _ in range(2))

    assert first == second


def test_a_seed_goes_the_same_way_on_every_database(databases: Databases, tmp_path: Path) -> None:
    traces = {live_through(11, databases.empty(kind, tmp_path)).trace.digest() for kind in KINDS}

    assert len(traces) == 1


def test_seeds_meet_crashes_and_broken_commits_and_lives_without(databases: Databases, tmp_path: Path) -> None:
    worlds = [live_through(seed, databases.empty("sqlite", tmp_path)) for seed in range(25)]

    assert max(world.crashes for world in worlds) > 3
    assert max(world.unheard_commits for world in worlds) > 3
    assert any(world.crashes == world.unheard_commits == 0 for world in worlds)
