"""`xdb schema`."""

import asyncio
from pathlib import Path

import click

from server_stub.cli._settings import load, setting_options


@click.group()
def schema() -> None:
    """Create and check the system tables (xdb_sys_*) in a database."""


@schema.command()
@setting_options("database_url")
def install(database_url: str | None) -> None:
    """Create the system tables, if there are none.

    Your own tables are not touched. `xdb server` does the same by itself unless --install-schema is false.
    """
    url = load({"database_url": database_url}).settings.database_url
    from server_stub.core.ports import StoreError
    from server_stub.storage.sqlite import SqliteStore

    try:
        store = SqliteStore.open(url)
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    asyncio.run(store.close())
    click.echo(f"the system tables are in {url}")


@schema.command()
@setting_options("database_url")
def check(database_url: str | None) -> None:
    """Check that the system tables are there and of the version that this server needs; exit status 1 if not.

    The file is only read, and a server may be using it.
    """
    url = load({"database_url": database_url}).settings.database_url
    from server_stub.core.ports import StoreError
    from server_stub.storage import sqlite_schema
    from server_stub.storage.sqlite import database_path

    path = database_path(url)
    if not Path(path).exists():
        raise click.ClickException(f"there is no database file {path}; create it with `xdb schema install`")
    try:
        sqlite_schema.check(path)
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"the system tables in {url} are as this server needs them")
