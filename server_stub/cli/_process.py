"""`xdb process`."""

from datetime import timedelta
from itertools import islice
from typing import Any

import click

from server_stub.cli._client import WORKER_URL, Duration, JsonValue, NamedJson, client_options, open_client
from server_stub.cli._output import compact, print_json, print_process, print_processes

_ID_REUSE_POLICIES = (
    "ALLOW_IF_NO_RUNNING",
    "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY",
    "DISALLOW_REUSE",
    "TERMINATE_IF_RUNNING",
)
_STATUSES = ("RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "TERMINATED", "CANCELED")
_JSON = JsonValue()
_DURATION = Duration()


@click.group()
def process() -> None:
    """Start process executions, look at them, and speak to them.

    Values are JSON, given as they are, as @file, or as @- for standard input. Exit status: 0, or 1 if the server
    refuses or cannot be reached, or 2 for wrong usage.
    """


@process.command()
@click.argument("process_id")
@click.argument("process_type")
@click.option("--state", help="The starting state; without it the process waits for an RPC.")
@click.option("--input", "input_value", type=_JSON, help="Input of the starting state.")
@click.option("--skip-wait-until", is_flag=True, help="The starting state has no wait_until.")
@click.option(
    "--worker-url",
    envvar="XDB_WORKER_URL",
    show_envvar=True,
    default=WORKER_URL,
    show_default=True,
    help="Where the server finds the worker.",
)
@click.option("--timeout", type=_DURATION, help="When it is closed as TIMEOUT; default never.")
@click.option("--start-delay", type=_DURATION, help="How long the starting state waits.")
@click.option(
    "--id-reuse-policy", type=click.Choice(_ID_REUSE_POLICIES), default=_ID_REUSE_POLICIES[0], show_default=True
)
@click.option("--ignore-already-started", is_flag=True, help="If it is running already, print that execution.")
@click.option("--attribute", "attributes", type=NamedJson(), multiple=True, help="A process-local attribute.")
@click.option("--table", help="The table whose row the process is mapped to; needs --key.")
@click.option("--key", type=NamedJson(), help="The primary key of the row.")
@click.option("--column", "columns", type=NamedJson(), multiple=True, help="A column to write into the row.")
@client_options
def start(
    process_id: str,
    process_type: str,
    state: str | None,
    input_value: Any,
    skip_wait_until: bool,
    worker_url: str,
    timeout: timedelta | None,
    start_delay: timedelta | None,
    id_reuse_policy: str,
    ignore_already_started: bool,
    attributes: tuple[tuple[str, Any], ...],
    table: str | None,
    key: tuple[str, Any] | None,
    columns: tuple[tuple[str, Any], ...],
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Start an execution of PROCESS_TYPE under PROCESS_ID, and print its execution id.

    \b
    xdb process start signup-7 UserSignupProcess --state SubmitState --skip-wait-until \\
        --table user_sign_up --key user_id='"7"' --column status='"waiting"'
    """
    if (table is None) != (key is None) or (columns and table is None):
        raise click.UsageError("--table and --key go together, and --column needs them")
    from xdb_sdk import ProcessStartOptions
    from xdb_sdk.protocol import IdReusePolicy, StateOptionsConfig, TableMapping

    mapping = None
    if table is not None and key is not None:
        mapping = TableMapping(table_name=table, primary_key=dict([key]), initial_write=dict(columns))
    options = ProcessStartOptions(
        id_reuse_policy=IdReusePolicy(id_reuse_policy),
        timeout=timeout,
        start_delay=start_delay,
        ignore_already_started=ignore_already_started,
        initial_upsert_data_attributes=dict(attributes),
    )
    with open_client(server_url, namespace, worker_url) as client:
        process_execution_id = client.start_process(
            process_id,
            process_type,
            input_value,
            options,
            starting_state_id=state,
            starting_state_options=StateOptionsConfig(skip_wait_until=skip_wait_until),
            table=mapping,
        )
    if as_json:
        print_json({"process_execution_id": process_execution_id})
    else:
        click.echo(process_execution_id)


@process.command()
@click.argument("process_id")
@click.option("--include", type=click.Choice(["queues", "closed_states"]), multiple=True, help="Print these too.")
@client_options
def describe(process_id: str, include: tuple[str, ...], server_url: str, namespace: str, as_json: bool) -> None:
    """Print all about the current execution of PROCESS_ID: where it stands, and why it does not go on."""
    with open_client(server_url, namespace) as client:
        info = client.describe_process(process_id, include=include)  # type: ignore[arg-type]  # click checks the words
    (print_json if as_json else print_process)(info)


@process.command(name="list")
@click.option("--process-id", help="Only of this process id.")
@click.option("--type", "process_type", help="Only of this process type.")
@click.option("--status", "statuses", type=click.Choice(_STATUSES), multiple=True, help="Only with these.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The most to print.")
@client_options
def list_(
    process_id: str | None,
    process_type: str | None,
    statuses: tuple[str, ...],
    limit: int,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Print executions, newest first."""
    from xdb_sdk.protocol import ProcessStatus

    with open_client(server_url, namespace) as client:
        pages = client.list_processes(
            process_id=process_id,
            process_type=process_type,
            statuses=[ProcessStatus(status) for status in statuses],
            page_size=min(limit, 1_000),
        )
        found = list(islice(pages, limit))
    (print_json if as_json else print_processes)(found)


@process.command()
@click.argument("process_id")
@click.option(
    "--type", "stop_type", type=click.Choice(["TERMINATE", "FAIL", "CANCEL"]), default="TERMINATE", show_default=True
)
@click.option("--reason", help="Kept with the execution.")
@client_options
def stop(process_id: str, stop_type: str, reason: str | None, server_url: str, namespace: str, as_json: bool) -> None:
    """Close the current execution of PROCESS_ID; one that is closed stays as it is."""
    from xdb_sdk.protocol import ProcessStopType

    with open_client(server_url, namespace) as client:
        result = client.stop_process(process_id, ProcessStopType(stop_type), reason)
    if as_json:
        print_json(result)
    else:
        click.echo(result.status if result.changed else f"{result.status} before")


@process.command()
@click.argument("process_id")
@click.argument("queue")
@click.argument("value", type=_JSON, default="null")
@click.option("--dedup-id", help="Messages with one dedup id are delivered once.")
@client_options
def publish(
    process_id: str,
    queue: str,
    value: Any,
    dedup_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Append VALUE, by default null, to the internal QUEUE of PROCESS_ID."""
    with open_client(server_url, namespace) as client:
        is_new = client.publish_to_internal_queue(process_id, queue, value, dedup_id)
    if as_json:
        print_json({"is_new": is_new})
    else:
        click.echo("published" if is_new else "known before")


@process.command()
@click.argument("process_id")
@click.argument("name")
@click.argument("value", type=_JSON, default="null")
@click.option("--timeout", type=_DURATION, default="10s", show_default=True, help="How long the method may take.")
@click.option("--read-only", is_flag=True, help="The method changes nothing.")
@client_options
def rpc(
    process_id: str,
    name: str,
    value: Any,
    timeout: timedelta,
    read_only: bool,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Call the RPC NAME of PROCESS_ID with VALUE, by default null, and print what it returns."""
    with open_client(server_url, namespace) as client:
        output = client.invoke_rpc(process_id, name, value, timeout=timeout, read_only=read_only)
    if as_json:
        print_json(output)
    else:
        click.echo(compact(output))


@process.command()
@click.argument("process_id")
@click.option("--timeout", type=_DURATION, help="How long to wait; default for ever.")
@client_options
def wait(process_id: str, timeout: timedelta | None, server_url: str, namespace: str, as_json: bool) -> None:
    """Wait until the current execution of PROCESS_ID completes, and print its outputs, one a line.

    Exit status 3 says that it ended in another way (failed, timed out, stopped), 4 that it is still running.
    """
    with open_client(server_url, namespace) as client:
        outputs = client.get_process_results(process_id, timeout=timeout)
    if as_json:
        print_json(outputs)
    else:
        for output in outputs:
            click.echo(compact(output.output))
