"""One server and one worker for all tests of the command line."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from server_stub.cli import main
from server_stub.cli._logging import FactFormatter
from tests.support.real_processes import RunningCommand, free_port

GREETER = "tests.contract.service_api.greeter:app"

Run = Callable[..., Result]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCommand]:
    with RunningCommand("server", "--port", "0", directory=tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="package")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCommand]:
    port = str(free_port())
    with RunningCommand("worker", GREETER, "--port", port, directory=tmp_path_factory.mktemp("worker")) as running:
        yield running


@pytest.fixture
def run(server: RunningCommand, worker: RunningCommand, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the server and the worker."""
    monkeypatch.setenv("XDB_SERVER_URL", server.url)
    monkeypatch.setenv("XDB_WORKER_URL", worker.url)

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, prog_name="xdb")

    return invoke


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Undo what a command that runs inside of the test does to the log, for the tests that follow."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if isinstance(each.formatter, FactFormatter)]:
        root.removeHandler(handler)


@pytest.fixture
def process_id(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A process id that no other test has."""
    return f"{request.node.name}-{tmp_path.name}"[:200]
