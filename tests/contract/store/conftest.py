"""Fixtures of the contract suite: each test runs over each database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server_stub.core.ports import Store
from tests.contract.store.databases import DATABASES, Database, NewDatabase, open_database


@pytest.fixture(params=DATABASES)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, new_database: NewDatabase
) -> AsyncIterator[Database]:
    """Give an empty database."""
    async with open_database(request.param, tmp_path, new_database) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> Store:
    """Give the store of an empty database."""
    return database.store
