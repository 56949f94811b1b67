"""`xdb worker`."""

import sys
from pathlib import Path

import click

WORKER_VARIABLES = frozenset({"XDB_WORKER_HOST", "XDB_WORKER_PORT", "XDB_WORKER_LOG_LEVEL"})


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
@click.option("--reload", is_flag=True, help="Start again whenever a source file changes; for development.")
def worker(app: str, host: str, port: int, log_level: str, reload: bool) -> None:
    """Run the worker APP of MODULE, such as `myapp.worker:app`, until it is stopped.

    It is the ASGI application that `xdb_sdk.Worker(registry)` makes, and runs under any ASGI server; this is uvicorn
    with fitting options. Modules are looked for in the current directory first.
    """
    import uvicorn
    from uvicorn.importer import ImportFromStringError, import_from_string

    from server_stub.cli._logging import set_up_logging

    set_up_logging(log_level.upper())
    sys.path.insert(0, str(Path.cwd()))
    try:
        import_from_string(app)
    except ImportFromStringError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"xdb worker {app} on http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl+C stops it)")
    uvicorn.run(
        app, host=host, port=port, reload=reload, access_log=False, log_config=None, server_header=False, ws="none"
    )
