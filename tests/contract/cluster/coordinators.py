"""The coordinators that the contract suite runs over. A new one adds a case here, not tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from server_stub.core.cluster import Coordinator
from server_stub.storage.mysql import MysqlStore
from server_stub.storage.postgres import PostgresStore
from server_stub.storage.server_store import ServerStore, ServerStoreOptions
from tests.services.shared import DatabaseKind
from tests.support.cluster import MemoryCoordinator

NUM_SHARDS = 4
COORDINATORS = ("memory", "postgresql", "mariadb")


@asynccontextmanager
async def open_coordinator(name: str, new_database: Callable[[DatabaseKind], str]) -> AsyncIterator[Coordinator]:
    """Open the coordinator of an empty database of a kind, and close it."""
    options = ServerStoreOptions(num_shards=NUM_SHARDS)
    match name:
        case "memory":
            yield MemoryCoordinator(NUM_SHARDS)
            return
        case "postgresql":
            store: ServerStore = await PostgresStore.open(new_database("postgresql"), options)
        case "mariadb":
            store = await MysqlStore.open(new_database("mariadb"), options)
        case _:
            raise ValueError(name)
    try:
        yield store
    finally:
        await store.close()
