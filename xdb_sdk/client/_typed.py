"""The operations in terms of process classes: names and types are checked, values encoded, before anything is sent."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from xdb_sdk._attributes import AttributeValues, decode_attributes, encode_attributes
from xdb_sdk._decision import StateDecision, decision_to_wire
from xdb_sdk._definition import ProcessDefinition, RpcDefinition
from xdb_sdk._errors import InvalidArgumentError, NotRegisteredError
from xdb_sdk._names import check_name, check_optional_name
from xdb_sdk._options import ProcessStartOptions, StateReference
from xdb_sdk._process import ObjectProcess
from xdb_sdk._registry import Registry
from xdb_sdk._schema import DataAttribute, key_list, key_name
from xdb_sdk.client._exchange import Plan
from xdb_sdk.client._operations import ProcessRef, QueueMessage, RpcArguments
from xdb_sdk.client._operator_plans import OperatorPlans
from xdb_sdk.client._results import CompleteStateResult, PublishOrStartResult, RpcOrStartResult
from xdb_sdk.protocol import Json, Message, StartRequest, TableMapping, TableWrite

ProcessClass = type[ObjectProcess]


class TypedOperations:
    """Plans that know the process classes of a registry.

    Args:
        registry: The process classes that may be used.
        operations: The same operations in names and JSON values.
    """

    def __init__(self, registry: Registry, operations: OperatorPlans) -> None:
        self._registry = registry
        self._operations = operations

    def start_request(
        self,
        process_id: str,
        process_class: ProcessClass,
        object_id: Any,
        input: Any,
        options: ProcessStartOptions | None,
    ) -> StartRequest:
        """Make the request of a start, of a class with or without a table."""
        definition = self._registry.process_of(process_class)
        options = options or ProcessStartOptions()
        values = encode_attributes(definition, options.initial_upsert_data_attributes)
        return self._operations.start_request(
            process_id,
            definition.process_type,
            options,
            local_attributes=values.local,
            **_starting_state(definition, input, options),
            **_mapped_object(definition, object_id, values, options),
        )

    def start_of_object(
        self,
        process_id: str,
        process_class: ProcessClass,
        object_id: Any,
        input: Any,
        options: ProcessStartOptions | None,
    ) -> StartRequest:
        """Make the request of a start of a class that maps a table."""
        definition = self._registry.process_of(process_class)
        if definition.table is None:
            raise InvalidArgumentError(
                f"{definition.process_type} maps no table, so it has no object; use start_process, or name the table"
            )
        return self.start_request(process_id, process_class, object_id, input, options)

    def start_without_object(
        self, process_id: str, process_class: ProcessClass, input: Any, options: ProcessStartOptions | None
    ) -> StartRequest:
        """Make the request of a start of a class that maps no table."""
        definition = self._registry.process_of(process_class)
        if definition.table is not None:
            raise InvalidArgumentError(
                f"{definition.process_type} is mapped to table {definition.table.table_name!r}; "
                "use start_object_process with the primary key of its row"
            )
        return self.start_request(process_id, process_class, None, input, options)

    def publish(
        self, ref: ProcessRef, process_class: ProcessClass, messages: Iterable[QueueMessage], request_id: str | None
    ) -> Plan[int]:
        """Append messages to queues that the class declares."""
        definition = self._registry.process_of(process_class)
        return self._operations.publish(ref, [_encode_message(definition, message) for message in messages], request_id)

    def publish_or_start(
        self, start: StartRequest, process_class: ProcessClass, message: QueueMessage, request_id: str | None
    ) -> Plan[PublishOrStartResult]:
        """Append a message to a queue that the class declares, of an execution that is started if there is none."""
        encoded = _encode_message(self._registry.process_of(process_class), message)
        return self._operations.publish_or_start(start, encoded, request_id)

    def rpc(self, ref: ProcessRef, method: Any, input: Any, request_id: str | None) -> Plan[Any]:
        """Call an RPC method of a class; returns its result."""
        definition, rpc = self._registry.rpc_of(method)
        output = yield from self._operations.rpc(ref, _rpc_arguments(definition, rpc, input), request_id)
        return _decode_output(definition, rpc, output)

    def rpc_or_start(
        self,
        start: StartRequest,
        process_class: ProcessClass,
        method: Any,
        input: Any,
        request_id: str | None,
    ) -> Plan[RpcOrStartResult[Any]]:
        """Call an RPC method of a class, of an execution that is started if there is none."""
        definition, rpc = self._registry.rpc_of(method, process_class)
        arguments = _rpc_arguments(definition, rpc, input)
        result = yield from self._operations.rpc_or_start(start, arguments, request_id)
        return replace(result, output=_decode_output(definition, rpc, result.output))

    def get_attributes(
        self, ref: ProcessRef, process_class: ProcessClass, keys: Iterable[str | DataAttribute[Any]] | None
    ) -> Plan[dict[str, Any]]:
        """Read attributes that the class declares."""
        definition = self._registry.process_of(process_class)
        read = definition.full_read() if keys is None else definition.attribute_read(key_list(keys))
        if read.is_empty:
            return {}
        loaded = yield from self._operations.get_attributes(ref, read)
        return decode_attributes(definition, loaded)

    def set_attributes(
        self,
        ref: ProcessRef,
        process_class: ProcessClass,
        values: Mapping[str | DataAttribute[Any], Any],
        request_id: str | None,
    ) -> Plan[None]:
        """Write attributes that the class declares."""
        definition = self._registry.process_of(process_class)
        encoded = encode_attributes(definition, values)
        if not encoded.columns and not encoded.local:
            raise InvalidArgumentError("set_data_attributes writes nothing; give at least one value")
        tables = []
        if encoded.columns and definition.table:
            tables.append(TableWrite(table_name=definition.table.table_name, columns=encoded.columns))
        return self._operations.set_attributes(ref, tables, encoded.local, request_id)

    def complete_state(
        self,
        ref: ProcessRef,
        process_class: ProcessClass,
        state: StateReference,
        number: int,
        decision: StateDecision,
        reason: str | None,
        request_id: str | None,
    ) -> Plan[CompleteStateResult]:
        """End a state by a decision, which is encoded as its worker would."""
        definition = self._registry.process_of(process_class)
        state_id = definition.state_of(state).state_id
        return self._operations.complete_state(
            ref, state_id, number, decision_to_wire(decision, definition), reason, request_id
        )

    def state_id_of(self, state: StateReference) -> str:
        """Find the id of a state that is named by class, in whichever registered processes it is.

        Raises:
            NotRegisteredError: No registered process has a single state of this class, or they give it several ids.
        """
        if isinstance(state, str):
            return state
        state_ids = set()
        for process_type in self._registry.process_types:
            with suppress(InvalidArgumentError):  # this process does not have the state
                state_ids.add(self._registry.process_of_type(process_type).state_of(state).state_id)
        if len(state_ids) != 1:
            name = getattr(state, "__name__", type(state).__name__)
            found = f"has the ids {sorted(state_ids)}" if state_ids else "is not exactly once in any process"
            raise NotRegisteredError(f"state {name} {found} of the registry; name the state by its id")
        return state_ids.pop()


def _starting_state(definition: ProcessDefinition, input: Any, options: ProcessStartOptions) -> dict[str, Any]:
    """The fields of a start request that tell of the starting state; none if there is no such state."""
    if definition.starting_state is None:
        if input is not None or options.starting_state_options_override is not None:
            raise InvalidArgumentError(
                f"{definition.process_type} has no starting state; leave out its input and its options"
            )
        return {}
    movement = definition.movement(definition.starting_state.state_id, input, options.starting_state_options_override)
    return {
        "start_state_id": movement.state_id,
        "start_state_input": movement.input,
        "start_state_options": movement.options,
    }


def _mapped_object(
    definition: ProcessDefinition, object_id: Any, values: AttributeValues, options: ProcessStartOptions
) -> dict[str, Any]:
    """The fields of a start request that tell of the mapped row; none without a table."""
    table = definition.table
    if table is None:
        if object_id is not None:
            raise InvalidArgumentError(f"{definition.process_type} maps no table, so it has no object: leave it out")
        return {}
    where = f"object id of {definition.process_type}"
    if object_id is None:
        raise InvalidArgumentError(f"{where} is None; give the primary key of a row of table {table.table_name!r}")
    key = definition.encoder.encode_column(object_id, table.primary_key_type, where)
    mapping = TableMapping(
        table_name=table.table_name,
        primary_key={table.primary_key: key},
        initial_write=values.columns,
        conflict_mode=options.conflict_mode,
    )
    return {"object_id": key, "tables": (mapping,)}


def _rpc_arguments(definition: ProcessDefinition, rpc: RpcDefinition, input: Any) -> RpcArguments:
    where = f"RPC {rpc.name!r} of {definition.process_type}"
    encoded = None
    if rpc.method.has_input:
        encoded = definition.encoder.encode(input, rpc.method.input_type, f"input of {where}")
    elif input is not None:
        raise InvalidArgumentError(f"{where} takes no input, but one was given; leave it out")
    return RpcArguments(
        rpc_name=rpc.name,
        input=encoded,
        timeout=rpc.timeout,
        read=rpc.wire_read,
        read_only=rpc.read_only,
        exclusive=rpc.exclusive,
        needs_queue_sizes=rpc.method.has_communication,
    )


def _decode_output(definition: ProcessDefinition, rpc: RpcDefinition, output: Json) -> Any:
    where = f"output of RPC {rpc.name!r} of {definition.process_type}"
    return definition.encoder.decode(output, rpc.method.output_type, where)


def _encode_message(definition: ProcessDefinition, message: QueueMessage) -> Message:
    name = check_name(key_name(message.queue), "queue name")
    where = f"message to internal queue {name!r} of {definition.process_type}"
    return Message(
        queue_name=name,
        message_id=check_optional_name(message.dedup_id, "dedup id"),
        payload=definition.encoder.encode(message.value, definition.queue(name).type_hint, where),
    )
