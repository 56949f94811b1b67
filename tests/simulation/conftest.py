"""The databases that seeds live on."""

from collections.abc import Iterator

import pytest

from tests.support.databases import Databases


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    databases = Databases(lambda kind: request.getfixturevalue(f"{kind}_server_url"))
    yield databases
    databases.close()
