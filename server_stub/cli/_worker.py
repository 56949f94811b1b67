"""`xdb worker`."""

import math
import sys
from datetime import timedelta
from pathlib import Path

import click

from server_stub.cli._client import Duration

WORKER_VARIABLES = frozenset(
    {"XDB_WORKER_HOST", "XDB_WORKER_PORT", "XDB_WORKER_LOG_LEVEL", "XDB_WORKER_SHUTDOWN_GRACE"}
)


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--host",
    default="127.0.0.1",
    envvar="XDB_WORKER_HOST",
    show_envvar=True,
    show_default=True,
    help="Address to listen on.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=8802,
    envvar="XDB_WORKER_PORT",
    show_envvar=True,
    show_default=True,
    help="Port to listen on.",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    envvar="XDB_WORKER_LOG_LEVEL",
    show_envvar=True,
    show_default=True,
    help="What is logged.",
)
@click.option(
    "--shutdown-grace",
    type=Duration(),
    default="30s",
    envvar="XDB_WORKER_SHUTDOWN_GRACE",
    show_envvar=True,
    show_default=True,
    help="How long running calls may go on after a stop signal.",
)
@click.option("--reload", is_flag=True, help="Start again whenever a source file changes; for development.")
def worker(app: str, host: str, port: int, log_level: str, shutdown_grace: timedelta, reload: bool) -> None:
    """Run the worker APP of MODULE, such as `myapp.worker:app`, until it is stopped.

    It is the ASGI application that `xdb_sdk.Worker(registry)` makes, and runs under any ASGI server; this is uvicorn
    with fitting options. Modules are looked for in the current directory first.
    """
    import uvicorn
    from uvicorn.importer import ImportFromStringError, import_from_string

    from server_stub.cli._logging import logging_config

    directory = str(Path.cwd())
    sys.path.insert(0, directory)
    try:
        import_from_string(app)
    except ImportFromStringError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"xdb worker {app} on http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl+C stops it)")
    uvicorn.run(
        app,
        host=host,
        port=port,
        reload=reload,
        app_dir=directory,
        access_log=False,
        log_config=logging_config(log_level.upper()),
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(shutdown_grace.total_seconds()),
    )
