"""Starts executions for `xdb process start`: by names alone, or with what the classes of an application say."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from server_stub.cli._client import open_client, open_typed_client
from server_stub.cli._imports import import_named

if TYPE_CHECKING:
    from xdb_sdk import ProcessStartOptions, Registry
    from xdb_sdk._definition import ProcessDefinition
    from xdb_sdk.client import ClientOptions, StartResult

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
    request_id: str | None


def start_by_names(
    arguments: StartArguments, options: "ProcessStartOptions", client_options: "ClientOptions"
) -> "StartResult":
    """Start an execution whose class is not known here: its state gets default options."""
    from xdb_sdk.protocol import StateOptionsConfig, TableMapping

    if (arguments.table is None) != (arguments.key is None) or (arguments.columns and arguments.table is None):
        raise click.UsageError("--table and --key go together, and --column needs them")
    table = None
    if arguments.table is not None and arguments.key is not None:
        columns = {name: _column(value) for name, value in arguments.columns.items()}
        table = TableMapping(table_name=arguments.table, primary_key=dict([arguments.key]), initial_write=columns)
    with open_client(client_options) as client:
        result = client.start(
            arguments.process_id,
            arguments.process_type,
            arguments.input,
            replace(options, initial_upsert_data_attributes=arguments.attributes),
            starting_state_id=arguments.state,
            starting_state_options=StateOptionsConfig(skip_wait_until=arguments.skip_wait_until),
            table=table,
            request_id=arguments.request_id,
        )
    if arguments.state is not None:
        click.echo(
            f"note: {arguments.state} runs with default options, since those of its class are not known here; "
            "to use them, give --app MODULE:REGISTRY",
            err=True,
        )
    return result


def start_by_class(
    app: str, arguments: StartArguments, options: "ProcessStartOptions", client_options: "ClientOptions"
) -> "StartResult":
    """Start an execution as a client with the class does: its starting state, options, types and table are used."""
    if arguments.skip_wait_until or arguments.table is not None or arguments.columns:
        raise click.UsageError(
            "with --app the class tells its table and whether its state waits: "
            "leave out --table and --skip-wait-until, and give columns as --attribute"
        )
    registry = _registry(app)
    with open_typed_client(registry, client_options) as client:
        definition = registry.process_of_type(arguments.process_type)
        starting, decode = definition.starting_state, definition.encoder.decode
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
        return client.start(
            arguments.process_id,
            definition.process_class,
            given,
            options,
            object_id=_object_id(arguments, definition),
            request_id=arguments.request_id,
        )


def _object_id(arguments: StartArguments, definition: "ProcessDefinition") -> Any:
    table = definition.table
    if table is None and arguments.key is None:
        return None
    if table is None or arguments.key is None or arguments.key[0] != table.primary_key:
        needs = f"needs --key {table.primary_key}=JSON" if table else "maps no table: leave out --key"
        raise click.UsageError(f"{arguments.process_type} {needs}")
    return definition.encoder.decode(arguments.key[1], table.primary_key_type, f"key {table.primary_key!r}")


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
