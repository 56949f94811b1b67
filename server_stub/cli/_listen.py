"""The socket of a command that serves, opened before it says that it does."""

import logging
import socket
from ipaddress import ip_address

import click

logger = logging.getLogger(__name__)

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 is any that is free. Says in the log if others than this machine may reach it.

    Raises:
        click.ClickException: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {error.strerror or error}; "
            "another server may be running there, give another --host or --port"
        ) from error
    address = listener.getsockname()[0]
    if not ip_address(address).is_loopback:
        logger.warning("other machines may reach this port, and whoever does is trusted", extra={"address": address})
    return listener


def shown_url(host: str, port: int) -> str:
    """Give the URL of an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
