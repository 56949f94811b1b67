"""Fixtures of the contract suite of coordinators: each test runs over each of them."""

from collections.abc import AsyncIterator

import pytest

from server_stub.core.cluster import Coordinator
from tests.contract.cluster.coordinators import memory


@pytest.fixture(params=["memory"])
async def coordinator(request: pytest.FixtureRequest) -> AsyncIterator[Coordinator]:
    """Give the coordinator of a database that no server has used yet."""
    async with memory() as opened:
        yield opened
