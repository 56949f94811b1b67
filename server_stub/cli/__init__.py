"""The command line: `xdb server`, `xdb worker`, `xdb schema`, `xdb shard`, `xdb process` and `xdb config`.

The modules here import little: what a command needs is imported when it runs, so that `xdb --help` is quick.
"""

import click

from server_stub.cli._config import config
from server_stub.cli._history import COMMANDS as HISTORY_COMMANDS
from server_stub.cli._operate import COMMANDS as OPERATOR_COMMANDS
from server_stub.cli._process import process
from server_stub.cli._schema import schema
from server_stub.cli._server import server
from server_stub.cli._shard import shard
from server_stub.cli._worker import worker

__all__ = ["main"]


def _print_version(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"xdb {version('xdb-sdk')}")
    except PackageNotFoundError:
        click.echo("xdb, run from its source tree without being installed")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def main() -> None:
    """Durable business processes on the database you already have.

    Begin with `xdb server`, then `xdb worker myapp:app` in another terminal.
    """


for process_command in (*HISTORY_COMMANDS, *OPERATOR_COMMANDS):
    process.add_command(process_command)
for command in (server, worker, schema, shard, process, config):
    main.add_command(command)
