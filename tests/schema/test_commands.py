"""`xdb schema` on each kind of database."""

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from server_stub.cli import main
from server_stub.storage.schema import SCHEMA_VERSION
from tests.schema.conftest import NewDatabase
from tests.schema.databases import SchemaDatabase
from tests.schema.version_1 import install_version_1
from tests.services.shared import DatabaseKind
from tests.support.real_processes import RunningCommand


def run(command: str, *arguments: str, environment: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["schema", command, *arguments], env=environment)


async def run_beside(command: str, *arguments: str, environment: dict[str, str] | None = None) -> Result:
    """Run a command, which has an event loop of its own, in a thread."""
    return await asyncio.to_thread(run, command, *arguments, environment=environment)


async def test_tables_are_installed_once_and_checked(database: SchemaDatabase) -> None:
    url = database.url
    await database.run(["CREATE TABLE mine (id INTEGER PRIMARY KEY)"])

    before = await run_beside("check", "--database-url", url)
    installed = [await run_beside("install", "--database-url", url) for _ in range(2)]
    after = await run_beside("check", environment={"XDB_DATABASE_URL": url})

    assert (before.exit_code, before.output) == (
        1,
        "Error: the database has no xdb tables; create them with `xdb schema install`\n",
    )
    assert [(each.exit_code, each.output) for each in installed] == [(0, f"the system tables are in {url}\n")] * 2
    assert (after.exit_code, after.output) == (0, f"the system tables in {url} are as this server needs them\n")


async def test_tables_of_version_1_are_upgraded_once(database: SchemaDatabase) -> None:
    url = database.url
    await install_version_1(database)

    check = await run_beside("check", "--database-url", url)
    upgrades = [await run_beside("upgrade", "--database-url", url) for _ in range(2)]

    assert (check.exit_code, "upgrade them with `xdb schema upgrade`, after a backup" in check.output) == (1, True)
    assert [each.exit_code for each in upgrades] == [0, 0]
    assert upgrades[0].output == f"upgraded the system tables in {url} from version 1 to {SCHEMA_VERSION}\n"
    assert upgrades[1].output == f"the system tables in {url} have version {SCHEMA_VERSION} already\n"
    assert (await run_beside("check", "--database-url", url)).exit_code == 0


async def test_what_is_printed_installs_and_upgrades_as_the_commands_do(new: NewDatabase) -> None:
    installed, by_script, upgraded = new(), new(), new()
    arguments = ["--dialect", installed.dialect.value, "--num-shards", "16"]
    await installed.prepare()
    await install_version_1(upgraded)

    await by_script.run(statements_in(await run_beside("print", *arguments)))
    await upgraded.run(statements_in(await run_beside("print", *arguments, "--upgrade-from", "1")))

    assert await by_script.describe() == await installed.describe()
    assert await upgraded.describe() == await installed.describe()
    for each in (by_script, upgraded):
        await each.prepare(install=False)


def statements_in(printed: Result) -> list[str]:
    assert printed.exit_code == 0
    return re.split(r";\n+", re.sub(r"^--.*\n", "", printed.output))[:-1]


@pytest.mark.parametrize("version", ["0", str(SCHEMA_VERSION), "99"])
def test_an_upgrade_that_does_not_exist_is_not_printed(version: str) -> None:
    result = run("print", "--dialect", "mysql", "--upgrade-from", version)

    assert (result.exit_code, f"there is no upgrade from version {version}; known are 1" in result.output) == (2, True)


def test_the_number_of_shards_is_that_of_the_install(new_database: Callable[[DatabaseKind], str]) -> None:
    url = new_database("postgresql")

    first = run("install", "--database-url", url, "--num-shards", "4")
    second = run("install", "--database-url", url, environment={"XDB_NUM_SHARDS": "8"})

    assert first.exit_code == 0
    assert (second.exit_code, second.output) == (
        1,
        "Error: the xdb tables were installed with num_shards=4, this server is set to 8; set num_shards to 4\n",
    )


@pytest.mark.parametrize("command", ["check", "upgrade"])
def test_a_file_that_does_not_exist_is_not_created(tmp_path: Path, command: str) -> None:
    result = run(command, "--database-url", f"sqlite:///{tmp_path}/xdb.db")

    assert result.exit_code == 1
    assert "there is no database file" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_upgraded_while_a_server_uses_it(tmp_path: Path) -> None:
    with RunningCommand("server", "--port", "0", directory=tmp_path):
        result = run("upgrade", "--database-url", f"sqlite:///{tmp_path}/xdb.db")

    assert (result.exit_code, "another xdb server uses the database file" in result.output) == (1, True)


def test_a_file_that_is_no_database_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "xdb.db").write_text("x" * 10_000)

    results = [run(command, "--database-url", f"sqlite:///{tmp_path}/xdb.db") for command in ("check", "upgrade")]

    for result in results:
        assert (result.exit_code, "file is not a database" in result.output) == (1, True)


@pytest.mark.parametrize("url", ["postgresql://user:secret@127.0.0.1:1/app", "mysql://user:secret@127.0.0.1:1/app"])
@pytest.mark.parametrize("command", ["install", "upgrade", "check"])
def test_a_database_that_is_away_is_one_clear_line_without_its_password(url: str, command: str) -> None:
    result = run(command, "--database-url", url)

    assert result.exit_code == 1
    assert re.fullmatch(r"Error: (PostgreSQL|MySQL) at 127\.0\.0\.1:1 is not available: .*\n", result.output)
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [("asyncpg", "postgresql://h/app", "postgres"), ("asyncmy", "mariadb://h/app", "mysql")],
)
def test_a_missing_driver_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, module: str, url: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed

    result = run("check", "--database-url", url)

    assert result.exit_code == 1
    assert f"install it: pip install 'xdb-sdk[{extra}]'" in result.output


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("oracle://user:secret@h/app", "is no URL of a database that xdb knows"),
        ("mysql://user:secret@h", "names no database"),
    ],
    ids=["unknown", "no name"],
)
def test_a_url_that_cannot_be_meant_is_a_usage_error(url: str, message: str) -> None:
    result = run("check", "--database-url", url)

    assert result.exit_code == 2
    assert message in result.output
    assert "secret" not in result.output
