"""What the `xdb process` commands share: the client, values from the command line, and errors as one line."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from server_stub.config import parse_duration

if TYPE_CHECKING:
    from xdb_sdk import Registry
    from xdb_sdk.client import Client, ClientOptions, UnregisteredClient

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

ABNORMAL_EXIT = 3
STILL_RUNNING = 4
_MAX_ATTEMPTS = 3  # somebody sits before the terminal
WORKER_URL = "http://127.0.0.1:8802"
CLIENT_VARIABLES = frozenset({"XDB_SERVER_URL", "XDB_NAMESPACE", "XDB_WORKER_URL"})


class _AbnormalExit(click.ClickException):
    """The process ended in another way than by completing."""

    exit_code = ABNORMAL_EXIT


class _StillRunning(click.ClickException):
    """The process is running at the deadline."""

    exit_code = STILL_RUNNING


class JsonValue(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A JSON value, from the command line, from a file as @path, or from standard input as @-."""

    name = "json|@file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the value."""
        text = self._text(value, param, ctx)
        try:
            return json.loads(text)
        except ValueError as error:
            self.fail(f"this is no JSON: {error}; a text needs its quotes, as in '\"text\"'", param, ctx)

    def _text(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.startswith("@"):
            return value
        if value == "@-":
            return sys.stdin.read()
        try:
            return Path(value[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"cannot read {value[1:]}: {error}", param, ctx)


class NamedJson(JsonValue):
    """NAME=JSON, read as a pair."""

    name = "name=json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the pair."""
        name, separator, text = value.partition("=")
        if not name or not separator:
            self.fail(f"{value!r} has no form NAME=JSON", param, ctx)
        return name, super().convert(text, param, ctx)


class Duration(click.ParamType):  # type: ignore[type-arg]  # as above
    """A duration such as 250ms, 30s, 5m or 1h; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read the duration."""
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def client_options(command: CommandT) -> CommandT:
    """Give a command the options that say where the server is and how to print."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--namespace",
            envvar="XDB_NAMESPACE",
            show_envvar=True,
            default="default",
            show_default=True,
            help="Namespace of the process id.",
        ),
        click.option(
            "--server-url",
            envvar="XDB_SERVER_URL",
            show_envvar=True,
            default="http://127.0.0.1:8801",
            show_default=True,
            help="Where the server is.",
        ),
    ):
        command = option(command)
    return command


def client_options_of(server_url: str, namespace: str, worker_url: str = WORKER_URL) -> "ClientOptions":
    """Put the options of a client together; errors end the command as `open_client` says."""
    from xdb_sdk.client import ClientOptions, ClientRetryPolicy

    with _errors_as_one_line():
        return ClientOptions(
            server_url=server_url,
            namespace=namespace,
            worker_url=worker_url,
            retry=ClientRetryPolicy(max_attempts=_MAX_ATTEMPTS),
        )


@contextmanager
def open_client(options: "ClientOptions") -> Iterator["UnregisteredClient"]:
    """Give a client whose errors end the command with one line and exit status 1, ABNORMAL_EXIT or STILL_RUNNING."""
    from xdb_sdk.client import UnregisteredClient

    with _errors_as_one_line(), UnregisteredClient(options) as client:
        yield client


@contextmanager
def open_typed_client(registry: "Registry", options: "ClientOptions") -> Iterator["Client"]:
    """Give a client that knows the classes of a registry; its errors are those of `open_client`."""
    from xdb_sdk.client import Client

    with _errors_as_one_line(), Client(registry, options) as client:
        yield client


@contextmanager
def _errors_as_one_line() -> Iterator[None]:
    from xdb_sdk import ProcessAbnormalExitError, ProcessStillRunningError, XdbError

    try:
        yield
    except ProcessAbnormalExitError as error:
        raise _AbnormalExit(_first_line(error)) from error
    except ProcessStillRunningError as error:
        raise _StillRunning(_first_line(error)) from error
    except XdbError as error:
        raise click.ClickException(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Leave out the worker's traceback, which follows the message."""
    return str(error).partition("\n")[0]
