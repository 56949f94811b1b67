"""Runs a server under uvicorn."""

import asyncio
import importlib.util
import logging
import math
import socket
import sys
from collections.abc import Callable

import click
import uvicorn

from server_stub.app import Server
from server_stub.cli._collector import calm_collector
from server_stub.cli._listen import listen, shown_url
from server_stub.cluster.identity import place_of
from server_stub.config import SETTINGS, ServerSettings
from server_stub.core.ports import StoreError

logger = logging.getLogger(__name__)

_DRAIN_S = 0.2


def serve(settings: ServerSettings) -> None:
    """Serve until a stop signal.

    Raises:
        click.ClickException: The database or the address cannot be used.
    """
    loop_factory = _loop_factory()
    with listen(settings.host, settings.port) as listener, asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            runner.run(_serve(settings, listener))
        except StoreError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            logger.debug("interrupted")


async def _serve(settings: ServerSettings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    server = await Server.open(settings, place=place_of(host, port), address=f"{socket.gethostname()}:{port}")
    database = SETTINGS["database_url"].show(settings.database_url)
    click.echo(f"xdb server on {shown_url(host, port)} with {database} (Ctrl+C stops it)")
    config = uvicorn.Config(
        server.api,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        ws="none",
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace.total_seconds()),
    )
    calm_collector()
    await _UvicornServer(config, server).serve(sockets=[listener])


class _UvicornServer(uvicorn.Server):
    """Tells the xdb server of a stop before it waits for open connections, since long polls would hold them open."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; called by uvicorn while its signal handlers still stand, so that nothing cuts the end short."""
        logger.info("stopping")
        self._server.begin_shutdown()
        await self._drain(sockets or [])
        await super().shutdown(sockets)
        await self._server.close()
        logger.info("stopped")

    async def _drain(self, sockets: list[socket.socket]) -> None:
        """Take no connections, and let those that are in use end with their next answer.

        A connection that is closed while a request is on its way leaves the client not knowing what became of it.
        """
        for listening in self.servers:
            listening.close()
        for listener in sockets:
            listener.close()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        await asyncio.sleep(_DRAIN_S)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Give uvloop's event loop, or say what is lost without it."""
    missing = [name for name in ("uvloop", "httptools") if importlib.util.find_spec(name) is None]
    if missing:
        logger.warning("%s not installed: requests cost about three times as much", " and ".join(missing))
    if sys.platform == "win32" or "uvloop" in missing:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
