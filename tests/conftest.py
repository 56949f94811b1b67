"""What every test shares: the event loop, and how hypothesis runs."""

import pytest
from hypothesis import settings

# A deadline measures the machine, not the code; a failure prints what replays it.
settings.register_profile("xdb", deadline=None, print_blob=True)
settings.load_profile("xdb")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio alone: server, worker and client are written for it."""
    return "asyncio"
