"""`xdb worker`."""

import math
from contextlib import suppress
from datetime import timedelta

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

    from server_stub.cli._collector import calm_collector
    from server_stub.cli._imports import import_named
    from server_stub.cli._listen import listen, shown_url
    from server_stub.cli._logging import logging_config

    _check_app(app, import_named(app))
    config = uvicorn.Config(
        app,
        reload=reload,
        access_log=False,
        log_config=logging_config(log_level.upper()),
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(shutdown_grace.total_seconds()),
    )
    server = uvicorn.Server(config)
    with listen(host, port) as listener, suppress(KeyboardInterrupt):
        click.echo(f"xdb worker {app} on {shown_url(host, port)} (Ctrl+C stops it)")
        if config.should_reload:
            from uvicorn.supervisors import ChangeReload

            ChangeReload(config, target=server.run, sockets=[listener]).run()
            return
        calm_collector()
        server.run(sockets=[listener])
    if not server.started:
        raise click.ClickException(f"{app} did not start; the log says why")


def _check_app(name: str, app: object) -> None:
    from xdb_sdk import Registry

    if isinstance(app, Registry):
        raise click.ClickException(f"{name} is a Registry, which serves nothing: wrap it as app = Worker(registry)")
    if isinstance(app, type) or not callable(app):
        kind = f"the class {app.__name__}" if isinstance(app, type) else f"a {type(app).__name__}"
        raise click.ClickException(f"{name} is {kind}, not an ASGI application: name what Worker(registry) gives")
