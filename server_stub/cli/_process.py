"""`xdb process`."""

from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from server_stub.cli._client import (
    WORKER_URL,
    Duration,
    JsonValue,
    NamedJson,
    client_options,
    client_options_of,
    open_client,
)
from server_stub.cli._output import compact, print_json, print_process, print_processes

if TYPE_CHECKING:
    from xdb_sdk.client import ChangeResult, UnregisteredClient

_ID_REUSE_POLICIES = (
    "ALLOW_IF_NO_RUNNING",
    "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY",
    "DISALLOW_REUSE",
    "TERMINATE_IF_RUNNING",
)
STOP_TYPES = ("TERMINATE", "FAIL", "CANCEL")
_STATUSES = ("RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "TERMINATED", "CANCELED")
_JSON = JsonValue()
_DURATION = Duration()
request_id_option = click.option(
    "--request-id",
    help="Names this request: given again, it is carried out once and answered the same. By default a new one.",
)


@click.group()
def process() -> None:
    """Start process executions, look at them, and speak to them.

    Values are JSON, given as they are, as @file, or as @- for standard input. Exit status: 0, or 1 if the server
    refuses or cannot be reached, or 2 for wrong usage; of wait also 3 if the process ended in another way than by
    completion, and 4 if it is still running.
    """


@process.command()
@click.argument("process_id")
@click.argument("process_type")
@click.option(
    "--app",
    metavar="MODULE:NAME",
    help="The Registry of your processes, or the Worker, to take the options and types of the class from.",
)
@click.option("--state", help="The starting state. Without it and without --app the process waits for an RPC.")
@click.option("--input", "input_value", type=_JSON, help="Input of the starting state.")
@click.option("--skip-wait-until", is_flag=True, help="Do not ask the starting state what it waits for.")
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
@click.option(
    "--attribute", "attributes", type=NamedJson(), multiple=True, help="A process-local attribute; with --app any."
)
@click.option("--table", help="The table whose row the process is mapped to; needs --key.")
@click.option("--key", type=NamedJson(), help="The primary key of the row.")
@click.option(
    "--column",
    "columns",
    type=NamedJson(),
    multiple=True,
    help='A column to write into the row; an object or a list is a JSON document, {"$bytes": BASE64} binary data.',
)
@request_id_option
@client_options
def start(
    process_id: str,
    process_type: str,
    app: str | None,
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
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Start an execution of PROCESS_TYPE under PROCESS_ID, and print its execution id.

    With --app your module is imported, from the current directory first: the class says which state the process
    starts with, with which retry policy, timeouts, recovery and loading policy, and what types the values have. Without
    --app the class is not known here: the starting state gets the default options, and values are taken as they are.

    \b
    xdb process start signup-7 UserSignupProcess --app myapp.worker:registry \\
        --key user_id='"7"' --attribute form='{"email": "bo@example.com"}'
    """
    from server_stub.cli._start import StartArguments, start_by_class, start_by_names
    from xdb_sdk import ProcessStartOptions
    from xdb_sdk.protocol import IdReusePolicy

    arguments = StartArguments(
        process_id=process_id,
        process_type=process_type,
        state=state,
        input=input_value,
        skip_wait_until=skip_wait_until,
        attributes=dict(attributes),
        table=table,
        key=key,
        columns=dict(columns),
        request_id=request_id,
    )
    options = ProcessStartOptions(
        id_reuse_policy=IdReusePolicy(id_reuse_policy),
        timeout=timeout,
        start_delay=start_delay,
        ignore_already_started=ignore_already_started,
    )
    client_options = client_options_of(server_url, namespace, worker_url)
    if app is None:
        result = start_by_names(arguments, options, client_options)
    else:
        result = start_by_class(app, arguments, options, client_options)
    if as_json:
        print_json(result)
    else:
        click.echo(result.process_execution_id)
    _note_duplicate(result)


@process.command()
@click.argument("process_id")
@click.option(
    "--include",
    type=click.Choice(["queues", "closed_states", "all"]),
    multiple=True,
    help="Print these too; all with an explanation of what keeps the process from going on.",
)
@click.option("--verbose", "-v", "is_verbose", is_flag=True, help="Print the tracebacks of failures too.")
@click.option("--execution-id", help="Describe exactly this execution, not the current one.")
@client_options
def describe(
    process_id: str,
    include: tuple[str, ...],
    is_verbose: bool,
    execution_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Print all about the current execution of PROCESS_ID: where it stands, and why it does not go on."""
    from xdb_sdk.client import explain

    with open_client(client_options_of(server_url, namespace)) as client:
        info = client.describe_process(
            process_id,
            include=include,  # type: ignore[arg-type]  # click checks the words
            process_execution_id=execution_id,
        )
    sentences = explain(info) if "all" in include else []
    if as_json:
        print_json(info if not sentences else asdict(info) | {"explanation": sentences})
    else:
        print_process(info, is_verbose=is_verbose)
        for sentence in sentences:
            click.echo(f"- {sentence}")


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

    with open_client(client_options_of(server_url, namespace)) as client:
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
@click.option("--type", "stop_type", type=click.Choice(STOP_TYPES), default=STOP_TYPES[0], show_default=True)
@click.option("--reason", help="Kept with the execution.")
@request_id_option
@client_options
def stop(
    process_id: str,
    stop_type: str,
    reason: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Close the current execution of PROCESS_ID; one that is closed stays as it is."""
    from xdb_sdk.protocol import ProcessStopType

    with open_client(client_options_of(server_url, namespace)) as client:
        result = client.stop_process(process_id, ProcessStopType(stop_type), reason, request_id=request_id)
    if as_json:
        print_json(result)
    else:
        click.echo(result.status if result.changed else f"{result.status} before")


@process.command()
@click.argument("process_id")
@click.argument("queue")
@click.argument("value", type=_JSON, default="null")
@click.option("--dedup-id", help="Messages with one dedup id are delivered once.")
@request_id_option
@client_options
def publish(
    process_id: str,
    queue: str,
    value: Any,
    dedup_id: str | None,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Append VALUE, by default null, to the internal QUEUE of PROCESS_ID.

    A queue is made by its first message, and the message is kept until a state receives it. Names and types are not
    checked against the class; a note says which queues the process waits for, if this is none of them.
    """
    with open_client(client_options_of(server_url, namespace)) as client:
        awaited = _awaited_queues(client, process_id)
        result = client.publish(process_id, queue, value, dedup_id, request_id=request_id)
    if as_json:
        print_json(result)
    else:
        click.echo("published" if result.is_new else "known before")
    _note_duplicate(result)
    if awaited and queue not in awaited:
        names = ", ".join(map(repr, awaited))
        click.echo(f"note: no state waits for queue {queue!r} now; the process waits for {names}", err=True)


def _awaited_queues(client: "UnregisteredClient", process_id: str) -> list[str]:
    from xdb_sdk import ProcessNotFoundError

    try:
        info = client.describe_process(process_id)
    except ProcessNotFoundError:
        return []  # the publish is refused, and says so under its own name
    return sorted({command.queue_name for state in info.states for command in state.queue_commands})


@process.command()
@click.argument("process_id")
@click.argument("name")
@click.argument("value", type=_JSON, default="null")
@click.option("--timeout", type=_DURATION, default="10s", show_default=True, help="How long the method may take.")
@click.option("--read-only", is_flag=True, help="The method changes nothing.")
@request_id_option
@client_options
def rpc(
    process_id: str,
    name: str,
    value: Any,
    timeout: timedelta,
    read_only: bool,
    request_id: str | None,
    server_url: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Call the RPC NAME of PROCESS_ID with VALUE, by default null, and print what it returns.

    With --json it is the output of an object, which also says whether the request was carried out before.
    """
    with open_client(client_options_of(server_url, namespace)) as client:
        result = client.call_rpc(process_id, name, value, timeout=timeout, read_only=read_only, request_id=request_id)
    if as_json:
        print_json(result)
    else:
        click.echo(compact(result.output))
    _note_duplicate(result)


def _note_duplicate(result: "ChangeResult") -> None:
    """Say that nothing was done now; of another request with the same id the client itself warns."""
    if result.duplicate:
        click.echo("note: the request was carried out before; this is its answer of then", err=True)


@process.command()
@click.argument("process_id")
@click.option("--timeout", type=_DURATION, help="How long to wait; default for ever.")
@client_options
def wait(process_id: str, timeout: timedelta | None, server_url: str, namespace: str, as_json: bool) -> None:
    """Wait until the current execution of PROCESS_ID completes, and print its outputs, one a line.

    Exit status 3 says that it ended in another way (failed, timed out, stopped), 4 that it is still running.
    """
    with open_client(client_options_of(server_url, namespace)) as client:
        outputs = client.get_process_results(process_id, timeout=timeout)
    if as_json:
        print_json(outputs)
    else:
        for output in outputs:
            click.echo(compact(output.output))
