"""The databases that several servers share in these tests."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults.cluster import Cluster
from tests.services.shared import DatabaseKind


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request: pytest.FixtureRequest) -> DatabaseKind:
    """Name the database."""
    named: DatabaseKind = request.param
    return named


@pytest.fixture
def new_cluster(
    tmp_path: Path, kind: DatabaseKind, new_database: Callable[[DatabaseKind], str]
) -> Callable[..., Cluster]:
    """Give `Cluster` with a directory and a new, empty database; the rest of its arguments is the test's."""
    return partial(Cluster, tmp_path, kind, new_database(kind))
