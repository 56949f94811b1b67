"""`xdb process start`, by names alone and with what the class says."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.contract.cli.conftest import Run
from tests.support.real_processes import RunningCommand

APP = ("--app", "tests.contract.cli.parcels:registry")
NOTE = "note: Weigh runs with default options"


@pytest.fixture
def parcels(server: RunningCommand) -> Iterator[sqlite3.Connection]:
    """The server's database with an empty table of parcels."""
    with closing(sqlite3.connect(server.log_file.parent / "xdb.db", isolation_level=None, timeout=20)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS parcel (id INTEGER PRIMARY KEY, address JSON, note VARCHAR(9))")
        connection.execute("DELETE FROM parcel")
        yield connection


def described_state(run: Run, process_id: str) -> dict[str, Any]:
    [state] = json.loads(run("process", "describe", process_id, "--json").output)["states"]
    described: dict[str, Any] = state
    return described


def test_start_by_name_says_that_the_options_of_the_class_are_not_used(run: Run, process_id: str) -> None:
    result = run("process", "start", process_id, "Scale", "--state", "Weigh", "--input", "3")

    assert result.exit_code == 0
    assert result.stderr.startswith(NOTE)
    assert "--app" in result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert described_state(run, process_id)["retry_policy"]["maximum_attempts"] == 0


@pytest.mark.parametrize("name", ["registry", "app"])
def test_start_with_the_app_uses_the_starting_state_and_the_options_of_the_class(
    run: Run, process_id: str, name: str
) -> None:
    result = run("process", "start", process_id, "Scale", "--input", "3", "--app", f"tests.contract.cli.parcels:{name}")

    state = described_state(run, process_id)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (state["state_id"], state["wait_until_status"]) == ("Weigh", "SKIPPED")
    assert (state["retry_policy"]["maximum_attempts"], state["retry_policy"]["maximum_interval_seconds"]) == (2, 7)


def test_start_with_the_app_writes_the_row_that_the_class_is_mapped_to(
    run: Run, process_id: str, parcels: sqlite3.Connection
) -> None:
    result = run(
        *("process", "start", process_id, "Parcel", *APP, "--key", "id=7", "--input", "3"),
        *("--attribute", 'address={"city": "Bonn"}', "--attribute", 'note="left"'),
    )

    assert result.exit_code == 0, result.output
    [(key, address, note)] = parcels.execute("SELECT * FROM parcel").fetchall()
    assert (key, json.loads(address), note) == (7, {"city": "Bonn"}, "left")


def test_process_without_starting_state_starts_with_the_app(run: Run, process_id: str) -> None:
    result = run("process", "start", process_id, "Box", *APP)

    assert result.exit_code == 0
    assert "no state is open" in run("process", "describe", process_id).output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("Scale", "--input", '"heavy"'), 1, "input of state 'Weigh'"),
        (("Scales",), 1, "did you mean 'Scale'"),
        (("Box", "--input", "3"), 1, "has no starting state"),
        (("Parcel", "--key", 'id="seven"', "--input", "3"), 1, "key 'id'"),
        (("Parcel", "--key", "id=7", "--input", "3", "--attribute", "adress={}"), 1, "did you mean 'address'"),
        (("Parcel", "--key", "id=7", "--input", "3", "--attribute", 'address={"town": ""}'), 1, "attribute 'address'"),
        (("Parcel", "--input", "3"), 2, "needs --key id=JSON"),
        (("Parcel", "--key", "nr=7", "--input", "3"), 2, "needs --key id=JSON"),
        (("Scale", "--key", "id=7", "--input", "3"), 2, "leave out --key"),
        (("Scale", "--state", "Other", "--input", "3"), 2, "Scale starts with 'Weigh'"),
        (("Scale", "--skip-wait-until", "--input", "3"), 2, "leave out --table and --skip-wait-until"),
        (("Parcel", "--key", "id=7", "--column", "note=1"), 2, "give columns as --attribute"),
    ],
)
def test_what_does_not_fit_the_class_is_refused_before_anything_starts(
    run: Run, process_id: str, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    result = run("process", "start", process_id, *arguments, *APP)

    assert result.exit_code == exit_code
    assert message in result.output
    assert run("process", "describe", process_id).exit_code == 1


@pytest.mark.parametrize(
    ("app", "message"),
    [("no_such_module:registry", "there is no module"), ("tests.contract.cli.parcels:Parcel", "name a Registry")],
)
def test_app_that_tells_no_classes_is_refused(run: Run, process_id: str, app: str, message: str) -> None:
    result = run("process", "start", process_id, "Parcel", "--app", app)

    assert result.exit_code != 0
    assert message in result.output


@pytest.mark.parametrize("address", ['{"city": "Bonn"}', '{"$json": {"city": "Bonn"}}'], ids=["plain", "tagged"])
def test_object_for_a_column_is_a_document(
    run: Run, process_id: str, parcels: sqlite3.Connection, address: str
) -> None:
    result = run(
        *("process", "start", process_id, "Parcel", "--table", "parcel", "--key", "id=8"),
        *("--column", f"address={address}", "--column", 'note="left"'),
    )

    assert (result.exit_code, result.stderr) == (0, "")
    [(stored,)] = parcels.execute("SELECT address FROM parcel WHERE id = 8").fetchall()
    assert json.loads(stored) == {"city": "Bonn"}
