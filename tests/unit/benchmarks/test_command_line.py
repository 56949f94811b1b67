"""What the command line of the benchmarks says to what cannot be measured, and which peers there are."""

import importlib.util

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.databases import DatabaseKind
from benchmarks.peers.environment import PEERS
from benchmarks.scale.command_line import COMMANDS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["--engine", "absurd"], "absurd does not run on sqlite; add --database postgresql", id="engine-elsewhere"
        ),
        pytest.param(
            ["--url", "oracle://host/db"],
            "--url begins with one of sqlite://, postgresql://, and not as 'oracle://host/db'",
            id="unknown-database",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_way_out(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 2
    assert message in result.output


def test_peers_run_beside_the_databases_that_they_know() -> None:
    beside = {kind: [peer.name for peer in PEERS if peer.is_beside(kind)] for kind in DatabaseKind}

    assert beside[DatabaseKind.SQLITE] == ["dbos", "restate"]
    assert beside[DatabaseKind.POSTGRESQL] == ["dbos", "restate", "absurd"]


@pytest.mark.parametrize("module", [peer.module for peer in PEERS])
def test_module_of_each_peer_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_commands_refuse_the_options_of_the_workloads() -> None:
    result = CliRunner().invoke(main, ["--quick", "idle"])

    assert result.exit_code == 2
    assert "--quick is not for idle" in result.output


def test_help_names_each_command() -> None:
    help_text = CliRunner().invoke(main, ["--help"]).output

    assert all(command.name in help_text for command in COMMANDS if command.name)
