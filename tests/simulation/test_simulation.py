"""Thousands of seeds: each effect once, nothing lost, nothing stuck.

Replay one with `XDB_SIMULATION_SEEDS=1234:1235 pytest tests/simulation`.
"""

import os
from pathlib import Path

import pytest

from tests.simulation.world import World
from tests.support import virtual_time

FIRST, AFTER = map(int, os.environ.get("XDB_SIMULATION_SEEDS", "0:2000").split(":"))
CHUNK = 25


def live_through(seed: int, directory: Path) -> World:
    world = World(seed, directory)
    try:
        virtual_time.run(world.run())
    except BaseException as error:
        error.add_note(f"seed {seed}: replay with XDB_SIMULATION_SEEDS={seed}:{seed + 1}")
        raise
    finally:
        for file in directory.glob(f"{seed}.db*"):
            file.unlink()
    return world


@pytest.mark.parametrize("first_seed", range(FIRST, AFTER, CHUNK))
def test_every_effect_happens_once_and_nothing_is_lost_or_stuck(first_seed: int, tmp_path: Path) -> None:
    for seed in range(first_seed, min(first_seed + CHUNK, AFTER)):
        live_through(seed, tmp_path)


def test_a_seed_is_replayed_exactly(tmp_path: Path) -> None:
    first, second = live_through(7, tmp_path), live_through(7, tmp_path)

    assert first.trace.digest() == second.trace.digest()


def test_seeds_meet_crashes_and_lives_without(tmp_path: Path) -> None:
    crashes = [live_through(seed, tmp_path).crashes for seed in range(12)]

    assert max(crashes) > 3
    assert min(crashes) == 0
