"""`xdb process`: what operators do to executions."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from server_stub.cli._client import Duration, JsonValue, client_options, client_options_of, open_client
from server_stub.cli._output import print_json, print_processes
from server_stub.cli._process import STOP_TYPES, request_id_option

if TYPE_CHECKING:
    from xdb_sdk.client import BulkResult, UnregisteredClient

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_PAGE_SIZE = 1_000
_DURATION = Duration()
_INSTANT = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"])
_reason = click.option("--reason", help="Why, for the history of the execution.")
_execution_id = click.option("--execution-id", help="Exactly this execution, not the current one.")
_number = click.option(
    "--number", type=click.IntRange(1), default=1, show_default=True, help="Which of the executions of the state."
)


def _of_one(command: CommandT) -> CommandT:
    """Give a command the options of what is done to one execution."""
    for option in (client_options, request_id_option, _execution_id, _reason):
        command = option(command)
    return command


def _of_many(command: CommandT) -> CommandT:
    """Give a command the options of what is done to many executions."""
    for option in (
        client_options,
        click.option("--request-id", help="Kept in the history of each execution; by default a new one."),
        click.option("--yes", is_flag=True, help="Do not ask before."),
        click.option("--dry-run", is_flag=True, help="Print the executions, and change nothing."),
        click.option("--started-before", type=_INSTANT, help="Only started before; UTC unless it has an offset."),
        click.option("--started-from", type=_INSTANT, help="Only started then or later."),
        click.option("--prefix", help="Only process ids that begin so."),
        click.option("--process-type", help="Only of this process type."),
        _reason,
    ):
        command = option(command)
    return command


@click.command()
@click.argument("process_id")
@_of_one
def pause(
    process_id: str,
    reason: str | None,
    execution_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Call the states of PROCESS_ID no more until it is resumed.

    What workers are doing may return, and is applied. Timers, messages, RPCs, the timeout and stops work as always.
    """
    with open_client(client_options_of(server_url, namespace)) as client:
        result = client.pause_process(
            process_id, reason=reason, process_execution_id=execution_id, request_id=request_id
        )
    if as_json:
        print_json(result)
    else:
        click.echo("paused" if result.changed else "paused before")


@click.command()
@click.argument("process_id")
@_of_one
def resume(
    process_id: str,
    reason: str | None,
    execution_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Call the states of PROCESS_ID again, which was paused."""
    with open_client(client_options_of(server_url, namespace)) as client:
        result = client.resume_process(
            process_id, reason=reason, process_execution_id=execution_id, request_id=request_id
        )
    if as_json:
        print_json(result)
    else:
        click.echo("resumed" if result.changed else "was not paused")


@click.command()
@click.argument("process_id")
@click.argument("state")
@_number
@click.option("--reset-attempts", is_flag=True, help="Count the attempts anew.")
@_of_one
def retry(
    process_id: str,
    state: str,
    number: int,
    reset_attempts: bool,
    reason: str | None,
    execution_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Make the next attempt of STATE of PROCESS_ID now, which waits for it; of a paused process once it is resumed."""
    with open_client(client_options_of(server_url, namespace)) as client:
        is_paused = not as_json and _is_paused(client, process_id, execution_id)
        client.retry_state(
            process_id,
            state,
            number,
            reset_attempts=reset_attempts,
            reason=reason,
            process_execution_id=execution_id,
            request_id=request_id,
        )
    _print_done("to be retried once the process is resumed: it is paused" if is_paused else "retried", as_json=as_json)


def _is_paused(client: "UnregisteredClient", process_id: str, execution_id: str | None) -> bool:
    from xdb_sdk import ProcessNotFoundError

    try:
        return client.describe_process(process_id, process_execution_id=execution_id).paused_at is not None
    except ProcessNotFoundError:
        return False  # the command itself is refused, and says so under its own name


@click.command()
@click.argument("process_id")
@click.argument("state")
@click.argument("decision", type=JsonValue())
@_number
@_of_one
def complete(
    process_id: str,
    state: str,
    decision: Any,
    number: int,
    reason: str | None,
    execution_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """End STATE of PROCESS_ID as if its execute had returned DECISION.

    DECISION is a StateDecisionBody of the HTTP API as JSON, or @file. Next states are named with all their options,
    since no class is known here; those left out have their defaults.

    \b
    xdb process complete order-7 Charge '{"threadCloseDecision": {"closeType": "DEAD_END"}}'
    xdb process complete order-7 Charge '{"nextStates": [{"stateId": "Ship", "input": {"item": 7}}]}'
    """
    from pydantic import ValidationError

    from xdb_sdk.protocol import StateDecisionBody

    try:
        body = StateDecisionBody.model_validate(decision)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "it"
        raise click.BadParameter(f"{where}: {problem['msg']}", param_hint="DECISION") from error
    with open_client(client_options_of(server_url, namespace)) as client:
        result = client.complete_state(
            process_id,
            state,
            body,
            number,
            reason=reason,
            process_execution_id=execution_id,
            request_id=request_id,
        )
    if as_json:
        print_json(result)
    else:
        click.echo(f"completed; the process is {result.status}")


@click.command(name="skip-timer")
@click.argument("process_id")
@click.argument("state")
@_number
@click.option("--command-id", help="Which timer, by the id of its command.")
@click.option("--index", type=click.IntRange(0), help="Which timer, by its place among the state's; default the first.")
@click.option("--remember", is_flag=True, help="If the state does not wait yet, skip the timer once it does.")
@_of_one
def skip_timer(
    process_id: str,
    state: str,
    number: int,
    command_id: str | None,
    index: int | None,
    remember: bool,
    reason: str | None,
    execution_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Complete a timer that STATE of PROCESS_ID waits for, now."""
    with open_client(client_options_of(server_url, namespace)) as client:
        client.skip_timer(
            process_id,
            state,
            number,
            command_id=command_id,
            index=0 if command_id is None and index is None else index,
            remember=remember,
            reason=reason,
            process_execution_id=execution_id,
            request_id=request_id,
        )
    _print_done("skipped", as_json=as_json)


@click.command()
@click.argument("process_id")
@click.option("--worker-url", help="Where the server finds its worker from now on.")
@click.option("--timeout", type=_DURATION, help="When it times out, from its start on; 0 for never.")
@_of_one
def update(
    process_id: str,
    worker_url: str | None,
    timeout: timedelta | None,
    reason: str | None,
    execution_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Change the worker URL or the timeout of PROCESS_ID.

    At a new worker, states that wait after a failed attempt are called at once.
    """
    if worker_url is None and timeout is None:
        raise click.UsageError("nothing to change: give --worker-url, --timeout or both")
    with open_client(client_options_of(server_url, namespace)) as client:
        client.update_process_config(
            process_id,
            worker_url=worker_url,
            timeout=timeout,
            reason=reason,
            process_execution_id=execution_id,
            request_id=request_id,
        )
    _print_done("updated", as_json=as_json)


@click.command(name="stop-many")
@click.option("--type", "stop_type", type=click.Choice(STOP_TYPES), default=STOP_TYPES[0], show_default=True)
@_of_many
def stop_many(
    stop_type: str,
    reason: str | None,
    process_type: str | None,
    prefix: str | None,
    started_from: datetime | None,
    started_before: datetime | None,
    dry_run: bool,
    yes: bool,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Close all running executions that the filters fit, after asking; without filters, all of the namespace.

    If it breaks off, run it again: it goes on with those that still run. With the same
    --request-id it leaves alone what has started since.
    """
    from xdb_sdk.protocol import ProcessStopType

    filters = _filters(process_type, prefix, started_from, started_before)

    def change(client: "UnregisteredClient", *, is_dry: bool) -> "BulkResult":
        return client.stop_processes(
            ProcessStopType(stop_type),
            reason,
            **filters,
            dry_run=is_dry,
            page_size=_PAGE_SIZE,
            on_page=None if is_dry or as_json else _print_progress,
            request_id=request_id,
        )

    with open_client(client_options_of(server_url, namespace)) as client:
        _change_many(client, change, "stop", dry_run=dry_run, yes=yes, as_json=as_json)


@click.command(name="replace-worker-url")
@click.argument("new_url")
@click.option("--old-url", help="Only executions that have this worker URL.")
@_of_many
def replace_worker_url(
    new_url: str,
    old_url: str | None,
    reason: str | None,
    process_type: str | None,
    prefix: str | None,
    started_from: datetime | None,
    started_before: datetime | None,
    dry_run: bool,
    yes: bool,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Give all running executions that the filters fit the worker URL NEW_URL, after asking.

    States that wait after a failed attempt are called there at once. If it breaks off, run it again. With the same
    --request-id it leaves alone what has started since.
    """
    filters = _filters(process_type, prefix, started_from, started_before)

    def change(client: "UnregisteredClient", *, is_dry: bool) -> "BulkResult":
        return client.replace_worker_url(
            new_url,
            old_url,
            reason=reason,
            **filters,
            dry_run=is_dry,
            page_size=_PAGE_SIZE,
            on_page=None if is_dry or as_json else _print_progress,
            request_id=request_id,
        )

    with open_client(client_options_of(server_url, namespace)) as client:
        _change_many(client, change, "change", dry_run=dry_run, yes=yes, as_json=as_json)


COMMANDS = (pause, resume, retry, complete, skip_timer, update, stop_many, replace_worker_url)


def _filters(
    process_type: str | None, prefix: str | None, started_from: datetime | None, started_before: datetime | None
) -> dict[str, Any]:
    return {
        "process_type": process_type,
        "process_id_prefix": prefix,
        "started_from": _in_utc(started_from),
        "started_before": _in_utc(started_before),
    }


def _in_utc(instant: datetime | None) -> datetime | None:
    return instant if instant is None or instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _change_many(
    client: "UnregisteredClient",
    change: Callable[..., "BulkResult"],
    verb: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Tell what would be changed, or change it, once somebody has said so."""
    if dry_run or not yes:
        found = change(client, is_dry=True)
        if dry_run:
            (print_json if as_json else print_processes)(found.processes)
            return
        click.confirm(f"{verb} {found.matched} execution(s)?", abort=True, err=True)
    result = change(client, is_dry=False)
    if as_json:
        print_json({"examined": result.examined, "matched": result.matched, "changed": result.changed})
    else:
        click.echo(f"{result.changed} of {result.matched} executions changed")


def _print_progress(result: "BulkResult") -> None:
    click.echo(f"{result.changed} changed, {result.examined} looked at", err=True)


def _print_done(word: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"done": True})
    else:
        click.echo(word)
