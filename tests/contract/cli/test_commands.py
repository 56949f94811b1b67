"""`xdb server`, `xdb worker`, `xdb schema` and `xdb config`."""

import signal
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy.engine import URL

from server_stub.cli import main
from server_stub.config import SETTINGS
from tests.contract.cli.conftest import GREETER
from tests.contract.service_api.requests import REQUESTS, path_of
from tests.support.real_processes import RunningCommand

COMMANDS = [
    (),
    ("server",),
    ("worker",),
    ("config",),
    ("schema",),
    ("schema", "install"),
    ("schema", "upgrade"),
    ("schema", "check"),
    ("schema", "print"),
    ("process",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "xdb")
def test_help_is_shown_without_loading_a_framework(command: tuple[str, ...]) -> None:
    code = """
import sys
from server_stub.cli import main
main(prog_name="xdb", standalone_mode=False)
print({"pydantic", "uvicorn", "sqlalchemy", "httpx", "aiohttp"} & sys.modules.keys())
"""

    shown = subprocess.run([sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True)

    assert shown.stdout.startswith("Usage: xdb")
    assert shown.stdout.splitlines()[-1] == "set()"


def test_every_setting_is_a_flag_of_the_server() -> None:
    shown = CliRunner().invoke(main, ["server", "--help"], terminal_width=200).output

    for setting in SETTINGS.values():
        assert setting.flag in shown
        assert setting.variable in shown


def test_config_shows_each_setting_with_its_origin() -> None:
    result = CliRunner().invoke(main, ["config", "--port", "9000"], env={"XDB_HOST": "::1", "XDB_PROT": "1"})

    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert lines.keys() == SETTINGS.keys()
    assert lines["port"] == ["9000", "(argument)"]
    assert lines["host"] == ["::1", "(environment)"]
    assert lines["max_value_bytes"] == ["1MiB", "(default)"]
    assert "XDB_PROT" in result.stderr


def test_wrong_setting_is_one_clear_line() -> None:
    result = CliRunner().invoke(main, ["server", "--database-url", "oracle://user:secret@host/db"])

    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith("Error: database_url: 'oracle://user:***@host/db' is no URL")
    assert "secret" not in result.output


def test_schema_is_installed_once_and_checked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    before = CliRunner().invoke(main, ["schema", "check", "--database-url", url])
    sqlite3.connect(tmp_path / "app.db").close()
    empty = CliRunner().invoke(main, ["schema", "check", "--database-url", url])
    installed = [CliRunner().invoke(main, ["schema", "install", "--database-url", url]) for _ in range(2)]
    after = CliRunner().invoke(main, ["schema", "check", "--database-url", url])

    assert before.exit_code == 1
    assert "there is no database file" in before.output
    assert empty.exit_code == 1
    assert "xdb schema install" in empty.output
    assert [result.exit_code for result in installed] == [0, 0]
    assert after.exit_code == 0


def test_schema_is_checked_while_a_server_uses_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/xdb.db"

    with RunningCommand("server", "--port", "0", directory=tmp_path):
        result = CliRunner().invoke(main, ["schema", "check", "--database-url", url])

    assert (result.exit_code, result.output) == (0, f"the system tables in {url} are as this server needs them\n")


def test_schema_check_changes_nothing_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "app 1?.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
    before = path.read_bytes()

    result = CliRunner().invoke(
        main, ["schema", "check", "--database-url", str(URL.create("sqlite", database=str(path)))]
    )

    assert "the database has no xdb tables" in result.output
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_server_without_options_but_a_port_keeps_a_database_in_its_directory(tmp_path: Path) -> None:
    with RunningCommand("server", directory=tmp_path, environment={"XDB_PORT": "0"}) as server:
        assert "sqlite:///xdb.db" in server.first_line
        assert httpx.get(f"{server.url}/readyz").json() == {"status": "ready"}

    assert (tmp_path / "xdb.db").exists()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_server_answers_waiting_clients_when_it_is_stopped(tmp_path: Path, signal_number: int) -> None:
    server = RunningCommand("server", "--port", "0", directory=tmp_path)
    httpx.post(server.url + path_of("start"), json=REQUESTS["start"])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(httpx.post, server.url + path_of("wait-for-completion"), json={"processId": "p-1"})
        wait_for_request(server, "describe")

        server.stop(signal_number)

    answer = waiting.result().json()
    assert answer["serverStopping"]
    assert "stopped" in server.log_file.read_text()
    assert "Traceback" not in server.log_file.read_text()


def wait_for_request(server: RunningCommand, operation: str) -> None:
    """Make a request behind the others, so that they have been taken in."""
    for _ in range(20):
        httpx.post(server.url + path_of(operation), json=REQUESTS[operation])


def test_second_server_on_the_same_file_is_refused(tmp_path: Path) -> None:
    with RunningCommand("server", "--port", "0", directory=tmp_path):
        second = CliRunner().invoke(main, ["server", "--port", "0", "--database-url", f"sqlite:///{tmp_path}/xdb.db"])

    assert second.exit_code == 1
    assert "another xdb server uses the database file" in second.output
    assert "MySQL" not in second.output  # which this release does not run on


def test_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = CliRunner().invoke(main, ["server", "--port", port, "--database-url", f"sqlite:///{tmp_path}/xdb.db"])

    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in result.output


def test_port_in_use_is_one_clear_line_of_the_worker_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = CliRunner().invoke(main, ["worker", GREETER, "--port", port])

    assert result.exit_code == 1
    assert result.output.splitlines() == [result.output.rstrip()]
    assert f"cannot listen on 127.0.0.1 port {port}" in result.output


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module:app", "there is no module 'no_such_module' in "),
        ("json", "'json' has no form MODULE:NAME"),
        ("json:app", "module 'json' has no 'app'"),
        ("tests.contract.service_api.greeter:registry", "wrap it as app = Worker(registry)"),
        ("tests.contract.service_api.greeter:Greeter", "is the class Greeter, not an ASGI application"),
        ("tests.contract.service_api.greeter:__doc__", "is a str, not an ASGI application"),
    ],
)
def test_what_no_worker_can_be_made_of_is_one_clear_line(reference: str, message: str) -> None:
    result = CliRunner().invoke(main, ["worker", reference])

    assert result.exit_code == 1
    assert result.output.splitlines() == [result.output.rstrip()]
    assert message in result.output


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_module_of_theirs", "ModuleNotFoundError: No module named 'no_such_module_of_theirs'"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_module_that_fails_to_import_shows_the_users_lines_only(
    source: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"app_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)

    result = CliRunner().invoke(main, ["worker", f"{name}:app"])

    assert result.exit_code == 1
    assert f"{name}.py" in result.output
    assert result.output.rstrip().endswith(error)
    assert "importlib" not in result.output
    assert "click" not in result.output
