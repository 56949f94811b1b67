"""`xdb schema`."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from server_stub.cli._settings import load, setting_options
from server_stub.config import SETTINGS, ServerSettings

if TYPE_CHECKING:
    from server_stub.storage.schema_admin import SchemaAdmin

T = TypeVar("T")

DIALECTS = ("sqlite", "postgresql", "mysql", "mariadb")


@click.group()
def schema() -> None:
    """Create, upgrade and check the system tables (xdb_sys_*) in a database.

    Each command but `print` works on SQLite, PostgreSQL, MySQL and MariaDB, and takes the URL that the server takes.
    """


@schema.command()
@setting_options("database_url", "num_shards")
def install(**arguments: str | None) -> None:
    """Create the system tables, if there are none.

    Your own tables are not touched. `xdb server` does the same by itself unless --install-schema is false. On MySQL
    and MariaDB, what was cut short is finished.
    """
    settings = load(arguments).settings
    _run(settings, lambda admin: admin.install(settings.num_shards))
    click.echo(f"the system tables are in {_shown(settings)}")


@schema.command()
@setting_options("database_url")
def upgrade(**arguments: str | None) -> None:
    """Upgrade the system tables to the version that this server needs.

    Make a backup and stop the servers of the former release first. Processes that are running stay, and go on once the
    servers of this release do. On MySQL and MariaDB, what was cut short is finished.
    """
    settings = load(arguments).settings
    version = _run(settings, lambda admin: admin.upgrade())
    from server_stub.storage.schema import SCHEMA_VERSION

    if version == SCHEMA_VERSION:
        click.echo(f"the system tables in {_shown(settings)} have version {version} already")
    else:
        click.echo(f"upgraded the system tables in {_shown(settings)} from version {version} to {SCHEMA_VERSION}")


@schema.command()
@setting_options("database_url")
def check(**arguments: str | None) -> None:
    """Check that the system tables are there and of the version that this server needs; exit status 1 if not.

    The database is only read, and servers may be using it.
    """
    settings = load(arguments).settings
    _run(settings, lambda admin: admin.check())
    click.echo(f"the system tables in {_shown(settings)} are as this server needs them")


@schema.command(name="print")
@click.option("--dialect", type=click.Choice(DIALECTS), required=True, help="Which database the SQL is for.")
@click.option("--upgrade-from", type=int, metavar="VERSION", help="Print what upgrades this version instead.")
@setting_options("num_shards")
def print_(dialect: str, upgrade_from: int | None, num_shards: str | None) -> None:
    """Print the SQL of `install`, or of `upgrade`, for someone else to run. No database is needed.

    The tables must then be created by one person at a time: nothing in the SQL keeps others away.
    """
    from server_stub.storage.migrations import FIRST_VERSION
    from server_stub.storage.schema import SCHEMA_VERSION, script
    from server_stub.storage.schema_change import SchemaDialect

    if upgrade_from is not None and not FIRST_VERSION <= upgrade_from < SCHEMA_VERSION:
        versions = ", ".join(map(str, range(FIRST_VERSION, SCHEMA_VERSION)))
        raise click.UsageError(f"--upgrade-from: there is no upgrade from version {upgrade_from}; known are {versions}")
    asked = load({"num_shards": num_shards}).settings.num_shards
    shards = 1 if dialect == "sqlite" else asked
    click.echo(script(SchemaDialect(dialect), upgrade_from=upgrade_from, num_shards=shards), nl=False)


def _run(settings: ServerSettings, action: Callable[["SchemaAdmin"], Coroutine[Any, Any, T]]) -> T:
    """Do something with the database, and show what fails as an error of the command."""
    from server_stub.core.ports import StoreError
    from server_stub.storage.schema_admin import schema_admin

    try:
        admin = schema_admin(settings.database_url)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"database_url: {error}") from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    try:
        return asyncio.run(action(admin))
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def _shown(settings: ServerSettings) -> str:
    return SETTINGS["database_url"].show(settings.database_url)
