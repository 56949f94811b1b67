"""The coordinators that the contract suite runs over. A new one adds a case here, not tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from server_stub.core.cluster import Coordinator
from tests.support.cluster import MemoryCoordinator

NUM_SHARDS = 4


@asynccontextmanager
async def memory() -> AsyncIterator[Coordinator]:
    """Give the fake that other tests use."""
    yield MemoryCoordinator(NUM_SHARDS)
