"""The API over operations that keep no state, and a client that speaks to it without sockets."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import count

import httpx
import pytest

from server_stub.api.app import ServiceApi
from server_stub.api.limits import ApiLimits
from server_stub.core.ports import StoreUnavailable
from tests.contract.service_api.fake_operations import FakeOperations

SMALL_LIMITS = ApiLimits(
    max_value_bytes=1_000,
    max_call_bytes=4_000,
    max_batch_bytes=20_000,
    max_batch_calls=20,
    max_json_depth=100,
    body_timeout=timedelta(milliseconds=250),
)


@pytest.fixture
def operations() -> FakeOperations:
    made = FakeOperations()
    made.gates["p-1"].set()
    return made


class Readiness:
    """Whether the database answers, as a test wants it."""

    is_ready = True

    async def __call__(self) -> None:
        if not self.is_ready:
            raise StoreUnavailable("SELECT 1 failed: no such table: xdb_sys_process_execution")


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def api(operations: FakeOperations, readiness: Readiness) -> ServiceApi:
    return ServiceApi(operations, readiness, SMALL_LIMITS, ids=error_ids())


def error_ids() -> Callable[[], str]:
    """Give a source of ids: fault-1, fault-2 and so on."""
    numbers = count(1)
    return lambda: f"fault-{next(numbers)}"


@pytest.fixture
async def client(api: ServiceApi) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://xdb") as made:
        yield made
