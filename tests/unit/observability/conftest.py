"""A whole system on virtual time and SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server_stub.config import ServerSettings
from tests.support.databases import SqliteDatabase
from tests.support.system import System
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with System(SqliteDatabase(tmp_path / "xdb.db"), ServerSettings()) as system:
        yield system
