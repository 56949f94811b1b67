"""Fixtures of the contract suite of coordinators: each test runs over each of them."""

from collections.abc import AsyncIterator, Callable

import pytest

from server_stub.core.cluster import Coordinator
from tests.contract.cluster.coordinators import COORDINATORS, open_coordinator
from tests.services.shared import DatabaseKind


@pytest.fixture(params=COORDINATORS)
async def coordinator(
    request: pytest.FixtureRequest, new_database: Callable[[DatabaseKind], str]
) -> AsyncIterator[Coordinator]:
    """Give the coordinator of a database that no server has used yet."""
    async with open_coordinator(request.param, new_database) as opened:
        yield opened
