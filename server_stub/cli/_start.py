"""Starts executions for `xdb process start`: by names alone, or with what the classes of an application say."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from server_stub.cli._client import open_client, open_typed_client
from server_stub.cli._imports import import_named

if TYPE_CHECKING:
    from xdb_sdk import ProcessStartOptions, Registry
    from xdb_sdk.client import ClientOptions

_TAGS = ("$json", "$bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartArguments:
    """What the command line says of an execution to be started; all values are JSON."""

    process_id: str
    process_type: str
    state: str | None
    input: Any
    skip_wait_until: bool
    attributes: Mapping[str, Any]
    table: str | None
    key: tuple[str, Any] | None
    columns: Mapping[str, Any]


def start_by_names(arguments: StartArguments, options: "ProcessStartOptions", client_options: "ClientOptions") -> str:
    """Start an execution whose class is not known here: its state gets default options."""
    from xdb_sdk.protocol import StateOptionsConfig, TableMapping

    if (arguments.table is None) != (arguments.key is None) or (arguments.columns and arguments.table is None):
        raise click.UsageError("--table and --key go together, and --column needs them")
    table = None
    if arguments.table is not None and arguments.key is not None:
        columns = {name: _column(value) for name, value in arguments.columns.items()}
        table = TableMapping(table_name=arguments.table, primary_key=dict([arguments.key]), initial_write=columns)
    with open_client(client_options) as client:
        process_execution_id = client.start_process(
            arguments.process_id,
            arguments.process_type,
            arguments.input,
            replace(options, initial_upsert_data_attributes=arguments.attributes),
            starting_state_id=arguments.state,
            starting_state_options=StateOptionsConfig(skip_wait_until=arguments.skip_wait_until),
            table=table,
        )
    if arguments.state is not None:
        click.echo(
            f"note: {arguments.state} runs with default options, since those of its class are not known here; "
            "to use them, give --app MODULE:REGISTRY",
            err=True,
        )
    return process_execution_id


def start_by_class(
    app: str, arguments: StartArguments, options: "ProcessStartOptions", client_options: "ClientOptions"
) -> str:
    """Start an execution as a client with the class does: its starting state, options, types and table are used."""
    if arguments.skip_wait_until or arguments.table is not None or arguments.columns:
        raise click.UsageError(
            "with --app the class tells its table and whether its state waits: "
            "leave out --table and --skip-wait-until, and give columns as --attribute"
        )
    registry = _registry(app)
    with open_typed_client(registry, client_options) as client:
        definition = registry.process_of_type(arguments.process_type)
        starting, table, decode = definition.starting_state, definition.table, definition.encoder.decode
        if arguments.state not in (None, starting and starting.state_id):
            has = f"starts with {starting.state_id!r}" if starting else "has no starting state"
            raise click.UsageError(f"--state is {arguments.state!r}, but {arguments.process_type} {has}")
        given = arguments.input
        if starting is not None:
            given = decode(given, starting.input_type, f"input of state {starting.state_id!r}")
        values = {
            name: decode(value, definition.attribute(name).type_hint, f"data attribute {name!r}")
            for name, value in arguments.attributes.items()
        }
        options = replace(options, initial_upsert_data_attributes=values)
        if table is None and arguments.key is None:
            return client.start_process(arguments.process_id, definition.process_class, given, options)
        if table is None or arguments.key is None or arguments.key[0] != table.primary_key:
            needs = f"needs --key {table.primary_key}=JSON" if table else "maps no table: leave out --key"
            raise click.UsageError(f"{arguments.process_type} {needs}")
        object_id = decode(arguments.key[1], table.primary_key_type, f"key {table.primary_key!r}")
        return client.start_object_process(arguments.process_id, definition.process_class, object_id, given, options)


def _registry(app: str) -> "Registry":
    from xdb_sdk import Registry, Worker

    found = import_named(app)
    if isinstance(found, Worker):
        return found.service.registry
    if isinstance(found, Registry):
        return found
    raise click.UsageError(f"--app {app} is a {type(found).__name__}; name a Registry, or the Worker that serves it")


def _column(value: Any) -> Any:
    """Tag what is a document by its form; a value that has a tag keeps it."""
    is_tagged = isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _TAGS
    return {"$json": value} if isinstance(value, dict | list) and not is_tagged else value
