"""The garbage collector of a process that serves."""

import gc
from collections.abc import Iterator

import pytest

from server_stub.cli._collector import calm_collector


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.freeze()  # as the test run has it
    gc.set_threshold(*threshold)


def test_collector_passes_over_what_there_is() -> None:
    calm_collector()

    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] == 10_000


@pytest.mark.parametrize("chosen", [0, 50_000], ids=["off", "slower"])
def test_collector_that_the_application_has_set_stays_so(chosen: int) -> None:
    gc.set_threshold(chosen, 5, 5)

    calm_collector()

    assert gc.get_threshold() == (chosen, 5, 5)


def test_garbage_that_comes_later_is_collected() -> None:
    calm_collector()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle

    assert gc.collect() > 0
