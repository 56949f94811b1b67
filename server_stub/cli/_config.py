"""`xdb config`."""

import os

import click

from server_stub.cli._client import CLIENT_VARIABLES
from server_stub.cli._settings import load, setting_options
from server_stub.cli._worker import WORKER_VARIABLES
from server_stub.config import SETTINGS, unknown_variables


@click.command()
@setting_options()
def config(**arguments: str | None) -> None:
    """Print every setting of the server, and where its value came from.

    Takes the flags of `xdb server`. Passwords and header values are not shown.
    """
    loaded = load(arguments)
    width = max(map(len, SETTINGS))
    for name, setting in SETTINGS.items():
        origin = loaded.origins[name]
        click.echo(f"{name:<{width}}  {setting.show(getattr(loaded.settings, name))}  ({origin})")
    for variable in unknown_variables(os.environ, CLIENT_VARIABLES | WORKER_VARIABLES):
        click.echo(f"warning: {variable} is no setting of xdb; is it misspelt?", err=True)
