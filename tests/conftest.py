"""What every test shares: the event loop, how hypothesis runs, and databases."""

import gc
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import psutil
import pytest
from hypothesis import settings

from tests.services import shared
from tests.services.server import MissingDatabase
from tests.services.shared import DatabaseKind

# A deadline measures the machine, not the code; a failure prints what replays it.
settings.register_profile("xdb", deadline=None, print_blob=True)
settings.load_profile("xdb")


@pytest.hookimpl(optionalhook=True)  # pytest-xdist is switched off by some
def pytest_xdist_auto_num_workers() -> int | None:
    """Run in two processes for each processor, since many tests wait: for databases, leases, and real processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 2 * (psutil.cpu_count() or 1)


def pytest_collection_finish() -> None:
    """Hide what collecting thousands of tests has made from the collector of garbage, which would visit it for ever."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio alone: server, worker and client are written for it."""
    return "asyncio"


@pytest.fixture
def new_database(request: pytest.FixtureRequest) -> Iterator[Callable[[DatabaseKind], str]]:
    """Give a function that returns the URL of a new, empty database, which is dropped after the test.

    Raises:
        MissingDatabase: There is none here. Left alone, it skips the test.
    """
    with ExitStack() as databases:

        def new(kind: DatabaseKind) -> str:
            server_url: str = request.getfixturevalue(f"{kind}_server_url")
            return databases.enter_context(shared.database(kind, server_url))

        yield new


@pytest.fixture(scope="session")
def postgresql_server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the URL of the PostgreSQL server that the whole run shares."""
    return _server_url("postgresql", request.config, tmp_path_factory)


@pytest.fixture(scope="session")
def mariadb_server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the URL of the MariaDB server that the whole run shares."""
    return _server_url("mariadb", request.config, tmp_path_factory)


def _server_url(kind: DatabaseKind, config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory, pid = tmp_path_factory.getbasetemp(), os.getpid()
    if hasattr(config, "workerinput"):  # one of several workers, each with a directory below that of the run
        directory, pid = directory.parent, os.getppid()
    return shared.server_url(kind, directory, pid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that misses a database; with `XDB_REQUIRE_DATABASES=1` it fails.

    All these skips have one place, this function, so that the summary has one line for each database.
    """
    report = yield
    missing = call.excinfo.value if call.excinfo else None
    if isinstance(missing, MissingDatabase) and os.environ.get("XDB_REQUIRE_DATABASES") != "1":
        report.outcome = "skipped"
        report.longrepr = (__file__, pytest_runtest_makereport.__code__.co_firstlineno, f"Skipped: {missing}")
    return report
