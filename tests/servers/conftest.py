"""Several servers on each database that can be shared."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.servers import processes
from tests.services.shared import DatabaseKind
from tests.support.servers import Servers


@pytest.fixture(params=["postgresql", "mariadb"])
async def servers(
    request: pytest.FixtureRequest, new_database: Callable[[DatabaseKind], str]
) -> AsyncIterator[Servers]:
    """Give an empty database for servers to be started on."""
    processes.runs.clear()
    processes.gate.close()
    async with Servers(new_database(request.param), *processes.ALL) as servers:
        yield servers
        processes.gate.open()
