"""The files for operators name what there is: settings, commands, paths and ports."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from server_stub.cli import main
from server_stub.config import SETTINGS, load_settings
from tests.docs.pages import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def parse(arguments: list[str]) -> click.Context:
    """Parse what follows `xdb` as the command line does, without running it."""
    context = click.Context(main)
    name, command, rest = main.resolve_command(context, arguments)
    assert command is not None
    return command.make_context(name, rest, parent=context)


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


def test_commands_of_the_compose_file_can_be_parsed() -> None:
    commands = [service["command"] for service in compose()["services"].values() if "command" in service]

    assert [command[0] for command in commands] == ["xdb"] * 3
    for command in commands:
        parse(command[1:])


def test_settings_of_the_compose_file_exist_and_are_accepted() -> None:
    variables = {setting.variable: name for name, setting in SETTINGS.items()}
    servers = [service for name, service in compose()["services"].items() if name.startswith("server")]

    assert len(servers) == 2
    for server in servers:
        environment = {name: str(value) for name, value in server["environment"].items()}
        assert environment.keys() <= variables.keys()
        settings = load_settings({}, environment).settings
        assert settings.host == "0.0.0.0"
        assert parse_seconds(server["stop_grace_period"]) > settings.shutdown_grace.total_seconds()


def test_health_checks_of_the_compose_file_ask_where_the_services_listen() -> None:
    services = compose()["services"]

    asked = {
        name: re.findall(r":(\d+)(/\w+)", str(service["healthcheck"]["test"])) for name, service in services.items()
    }

    assert asked["server-1"] == asked["server-2"] == [(str(SETTINGS["port"].default), "/readyz")]
    assert asked["worker"] == [(services["worker"]["command"][-1], "/healthz")]


def parse_seconds(text: str) -> int:
    return int(text.removesuffix("s"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_command_of_a_unit_can_be_parsed(unit: Path) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(unit)

    program, *arguments = shlex.split(parser["Service"]["ExecStart"])

    assert Path(program).name == "xdb"
    parse(arguments)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    copied = tmp_path / unit.name
    copied.write_text(unit.read_text().replace("/opt/xdb/bin/xdb", "/bin/true"))

    verified = subprocess.run(
        ["systemd-analyze", "verify", copied], capture_output=True, text=True, timeout=30, check=False
    )

    assert (verified.returncode, verified.stderr) == (0, "")
