"""`xdb process history` and `xdb process reset`."""

from datetime import UTC, datetime

import click

from server_stub.cli._client import client_options, client_options_of, open_client
from server_stub.cli._output import print_history, print_json
from server_stub.cli._process import request_id_option

_INSTANT = click.DateTime(["%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"])
_execution_id = click.option("--execution-id", help="Exactly this execution, not the current one.")


@click.command()
@click.argument("process_id")
@click.option("--after", "after_event_id", type=click.IntRange(0), default=0, help="Begin after this event.")
@_execution_id
@client_options
def history(
    process_id: str,
    after_event_id: int,
    execution_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Print what has happened to PROCESS_ID, event by event; what came of the same change is indented."""
    with open_client(client_options_of(server_url, namespace)) as client:
        events = client.get_history(
            process_id, after_event_id=after_event_id, process_execution_id=execution_id, page_size=1_000
        )
        if as_json:
            print_json(list(events))
        else:
            print_history(events)


@click.command()
@click.argument("process_id")
@click.option("--to-beginning", is_flag=True, help="From its start.")
@click.option("--to-state", metavar="STATE", help="From where the state was first scheduled.")
@click.option("--number", type=click.IntRange(1), help="With --to-state: from where this execution of it was.")
@click.option("--to-time", type=_INSTANT, help="From how it was at an instant; UTC unless it has an offset.")
@click.option("--to-event", type=click.IntRange(1), help="From after an event of the history.")
@click.option("--skip-messages", is_flag=True, help="Leave out what clients have published after the point.")
@click.option("--skip-rpcs", is_flag=True, help="Leave out what RPCs and clients have changed after the point.")
@click.option("--reason", help="Why, for the history of both executions.")
@_execution_id
@request_id_option
@client_options
def reset(
    process_id: str,
    to_beginning: bool,
    to_state: str | None,
    number: int | None,
    to_time: datetime | None,
    to_event: int | None,
    skip_messages: bool,
    skip_rpcs: bool,
    reason: str | None,
    execution_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Go on from a point of the history of PROCESS_ID in a new execution, and print its execution id.

    Give one --to-... option. A running execution is terminated. Rows of your tables are NOT rolled back.
    """
    from xdb_sdk import ResetOptions, ResetType

    types = {
        ResetType.BEGINNING: to_beginning,
        ResetType.STATE_ID: to_state is not None and number is None,
        ResetType.STATE_EXECUTION_ID: to_state is not None and number is not None,
        ResetType.TIME: to_time is not None,
        ResetType.EVENT_ID: to_event is not None,
    }
    chosen = [reset_type for reset_type, is_chosen in types.items() if is_chosen]
    if len(chosen) != 1 or (number is not None and to_state is None):
        raise click.UsageError("give one of --to-beginning, --to-state, --to-time and --to-event")
    options = ResetOptions(
        reset_type=chosen[0],
        reason=reason,
        state=to_state,
        number=number,
        at=to_time if to_time is None or to_time.tzinfo else to_time.replace(tzinfo=UTC),
        event_id=to_event,
        skip_messages=skip_messages,
        skip_rpcs=skip_rpcs,
    )
    with open_client(client_options_of(server_url, namespace)) as client:
        result = client.reset_process(process_id, options, process_execution_id=execution_id, request_id=request_id)
    if as_json:
        print_json(result)
    else:
        click.echo(result.process_execution_id)


COMMANDS = (history, reset)
