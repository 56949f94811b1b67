"""`xdb server`."""

import click

from server_stub.cli._settings import load, setting_options


@click.command()
@setting_options()
def server(**arguments: str | None) -> None:
    """Run a server until it is stopped by SIGINT or SIGTERM.

    Without options it keeps everything in ./xdb.db and listens on http://127.0.0.1:8801. On a stop signal waiting
    clients are told to repeat, running calls may finish within --shutdown-grace, and what is due stays in the database.
    """
    loaded = load(arguments)
    from server_stub.cli._logging import set_up_logging
    from server_stub.cli._serve import serve

    set_up_logging(loaded.settings.log_level)
    serve(loaded.settings)
