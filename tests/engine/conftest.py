"""The whole system on virtual time, on each database that tests can use."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from server_stub.config import ServerSettings
from tests.support.databases import KINDS, Database, Databases
from tests.support.system import System
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    databases = Databases(lambda kind: request.getfixturevalue(f"{kind}_server_url"))
    yield databases
    databases.close()


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> Database:
    return databases.empty(request.param, tmp_path)


@pytest.fixture
async def system(database: Database) -> AsyncIterator[System]:
    async with System(database, ServerSettings()) as system:
        yield system
