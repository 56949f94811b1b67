"""Fixtures of the contract suite: each test runs over each database."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from server_stub.core.ports import Store
from tests.contract.store.databases import DATABASES, Database, open_database
from tests.support.databases import Databases


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Give the databases, with the character set of text that their servers take by themselves."""
    databases = Databases(lambda kind: request.getfixturevalue(f"{kind}_server_url"), mariadb_character_set=None)
    yield databases
    databases.close()


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Database]:
    """Give an empty database."""
    async with open_database(request.param, databases, tmp_path) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> Store:
    """Give the store of an empty database."""
    return database.store
