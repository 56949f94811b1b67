"""The socket of a command that serves, opened before it says that it does."""

import socket

import click

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 is any that is free.

    Raises:
        click.ClickException: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {error.strerror or error}; "
            "another server may be running there, give another --host or --port"
        ) from error


def shown_url(host: str, port: int) -> str:
    """Give the URL of an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
