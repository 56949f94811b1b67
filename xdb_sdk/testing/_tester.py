"""`ProcessTester`: what the worker does around a method, with data that a test gives."""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, overload

from xdb_sdk._attributes import encode_attributes
from xdb_sdk._command import CommandRequest, CommandResults
from xdb_sdk._decision import StateDecision
from xdb_sdk._definition import StateDefinition
from xdb_sdk._duration import since_epoch_ms, to_milliseconds
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._options import StateReference
from xdb_sdk._process import ObjectProcess
from xdb_sdk._registry import Registry
from xdb_sdk._rpc import RpcMethod
from xdb_sdk._schema import InternalQueue, key_name
from xdb_sdk.protocol import (
    CallContext,
    ColumnValue,
    ExecuteCall,
    Json,
    LoadedData,
    LoadedTable,
    ReadRequest,
    RpcCall,
    WaitUntilCall,
)
from xdb_sdk.testing._report import (
    DEFAULT_CONDITIONS,
    Answer,
    CallConditions,
    CallReport,
    command_results_body,
    decoded_attributes,
    report_of,
    written_columns,
)
from xdb_sdk.worker._calls import RunningCall
from xdb_sdk.worker._invocation import ExecuteInvocation, Invocation, RpcInvocation, WaitUntilInvocation

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")

_STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
_EXECUTION_ID = "process-execution-1"


class ProcessTester:
    """Call the methods of one process as a worker calls them, with what a test gives, and see what they do.

    Inputs, data and messages are encoded, checked and decoded by their declared types, and loading policies hold. What
    a method writes is there for the next call; if it raises, it has written nothing, and the test gets its exception.
    An `async def` method runs in an event loop of its own: from an async test, call
    `await asyncio.to_thread(tester.execute, VerifyState)`.

    Args:
        registry: Where the process is registered.
        process_class: Its class.
        object_id: Primary key of the mapped row, for a process with a table.
        attributes: Values that the data attributes have, by name or typed key; the others are unset.
        process_id: What `ctx.process_id` says.

    Raises:
        NotRegisteredError: The class is not registered.
        InvalidArgumentError: An object id without a table, or an unknown attribute.
        EncodeError: The object id or a value is not of its declared type.

    Example:
        tester = ProcessTester(registry, UserSignupProcess, object_id="7", attributes={"status": "waiting"})
        assert tester.invoke_rpc(UserSignupProcess.verify, "email").returned == "done"
        assert tester.attributes["status"] == "verified"
    """

    def __init__(
        self,
        registry: Registry,
        process_class: type[ObjectProcess],
        *,
        object_id: Any = None,
        attributes: Mapping[Any, Any] | None = None,
        process_id: str = "process-1",
    ) -> None:
        self._registry = registry
        self._definition = registry.process_of(process_class)
        self._process_id = process_id
        values = encode_attributes(self._definition, attributes or {})
        self._columns: dict[str, ColumnValue] = dict(values.columns)
        self._local: dict[str, Json] = dict(values.local)
        self._object_id: Json = None
        table = self._definition.table
        if table is None and object_id is not None:
            raise InvalidArgumentError(f"{self._definition.process_type} maps no table: leave out object_id")
        if table is not None:
            where = f"object id of {self._definition.process_type}"
            self._object_id = self._definition.encoder.encode_column(object_id, table.primary_key_type, where)
            self._columns[table.primary_key] = self._object_id

    @property
    def attributes(self) -> dict[str, Any]:
        """The data attributes that have been given or written, by name."""
        return decoded_attributes(self._definition, self._columns, self._local)

    def wait_until(
        self, state: StateReference, input: Any = None, *, conditions: CallConditions = DEFAULT_CONDITIONS
    ) -> CallReport[CommandRequest]:
        """Call the wait_until of a state.

        Args:
            state: The state, by class or id.
            input: Its input.
            conditions: What else it can learn.

        Raises:
            InvalidArgumentError: The process has no such state, or the state no wait_until.
            EncodeError: The input is not of its declared type.
            Exception: Whatever the method raises.
        """
        found = self._definition.state_of(state)
        if found.wait_until is None:
            raise InvalidArgumentError(f"state {found.state_id!r} has no wait_until: call its execute")
        call = WaitUntilCall(
            context=self._context(found, conditions, "wait_until"),
            process_type=self._definition.process_type,
            state_id=found.state_id,
            input=self._state_input(found, input),
            loaded=self._loaded(found.wire_options.wait_until_read),
        )
        return self._call(WaitUntilInvocation(self._definition, found, found.wait_until, call), conditions)

    def execute(
        self,
        state: StateReference,
        input: Any = None,
        command_results: CommandResults | None = None,
        *,
        state_locals: Mapping[str, Any] | None = None,
        conditions: CallConditions = DEFAULT_CONDITIONS,
    ) -> CallReport[StateDecision]:
        """Call the execute of a state.

        Args:
            state: The state, by class or id.
            input: Its input.
            command_results: What became of its commands; by default it asked for none.
            state_locals: What its wait_until left for it.
            conditions: What else it can learn.

        Raises:
            InvalidArgumentError: The process has no such state, or it decided what cannot be.
            EncodeError: The input or a message is not of its declared type.
            Exception: Whatever the method raises.
        """
        found = self._definition.state_of(state)
        encode = self._definition.encoder.encode_undeclared
        call = ExecuteCall(
            context=self._context(found, conditions, "execute"),
            process_type=self._definition.process_type,
            state_id=found.state_id,
            input=self._state_input(found, input),
            command_results=command_results_body(self._definition, command_results or CommandResults()),
            state_locals={name: encode(value, f"state local {name!r}") for name, value in (state_locals or {}).items()},
            loaded=self._loaded(found.wire_options.execute_read),
        )
        return self._call(ExecuteInvocation(self._definition, found, call), conditions)

    @overload
    def invoke_rpc(
        self,
        rpc: RpcMethod[None, OutputT],
        input: None = None,
        *,
        queue_sizes: Mapping[str | InternalQueue[Any], int] | None = None,
        conditions: CallConditions = DEFAULT_CONDITIONS,
    ) -> CallReport[OutputT]: ...
    @overload
    def invoke_rpc(
        self,
        rpc: RpcMethod[InputT, OutputT],
        input: InputT,
        *,
        queue_sizes: Mapping[str | InternalQueue[Any], int] | None = None,
        conditions: CallConditions = DEFAULT_CONDITIONS,
    ) -> CallReport[OutputT]: ...
    def invoke_rpc(
        self,
        rpc: RpcMethod[Any, Any],
        input: Any = None,
        *,
        queue_sizes: Mapping[str | InternalQueue[Any], int] | None = None,
        conditions: CallConditions = DEFAULT_CONDITIONS,
    ) -> CallReport[Any]:
        """Call an RPC method.

        Args:
            rpc: The method, such as `UserSignupProcess.verify`.
            input: Its input.
            queue_sizes: How many messages wait in a queue, by name or typed key; elsewhere none.
            conditions: What else it can learn.

        Raises:
            NotRegisteredError: It is no RPC of a registered process.
            InvalidArgumentError: It is an RPC of another process.
            EncodeError: The input or the result is not of its declared type.
            Exception: Whatever the method raises.
        """
        method: Any = rpc  # to type checkers an RpcMethod, in fact the function
        definition, found = self._registry.rpc_of(method)
        if definition is not self._definition:
            raise InvalidArgumentError(f"RPC {found.name!r} is of {definition.process_type}, which is not tested here")
        call = RpcCall(
            context=self._context(None, conditions, "rpc"),
            process_type=self._definition.process_type,
            rpc_name=found.name,
            input=definition.encoder.encode(input, found.method.input_type, f"input of RPC {found.name!r}"),
            queue_sizes={key_name(queue): size for queue, size in (queue_sizes or {}).items()},
            loaded=self._loaded(found.wire_read),
        )
        return self._call(RpcInvocation(definition, found, call), conditions)

    def _call(
        self,
        invocation: Invocation[Any, Answer],
        conditions: CallConditions,
    ) -> CallReport[Any]:
        deadline_s = time.monotonic() + conditions.timeout.total_seconds()
        running = RunningCall(_EXECUTION_ID, needs_thread=False, deadline_s=deadline_s, now=time.monotonic)
        if conditions.is_stopped:
            running.stop()
        method = invocation.method
        returned = method.function(invocation.instance, **invocation.arguments(running))
        if method.is_async:
            returned = asyncio.run(returned)
        answer = invocation.answer(returned)
        self._columns |= written_columns(answer)
        self._local |= answer.write_local_attributes
        return report_of(self._definition, returned, answer)

    def _context(self, state: StateDefinition | None, conditions: CallConditions, api: str) -> CallContext:
        state_execution_id = f"{state.state_id}-{conditions.number}" if state else None
        key = f"{state_execution_id}/{api}" if state else "RPC/request-1"
        return CallContext(
            namespace="default",
            process_id=self._process_id,
            process_execution_id=_EXECUTION_ID,
            process_type=self._definition.process_type,
            object_id=self._object_id,
            process_started_at_ms=since_epoch_ms(_STARTED_AT),
            state_execution_id=state_execution_id,
            attempt=conditions.attempt if state else None,
            first_attempt_at_ms=since_epoch_ms(_STARTED_AT) if state else None,
            recover_from=conditions.recover_from,
            idempotency_key=f"{_EXECUTION_ID}/{key}",
            timeout_ms=to_milliseconds(conditions.timeout, "timeout"),
            last_database_error=conditions.last_database_error,
        )

    def _state_input(self, state: StateDefinition, input: Any) -> Json:
        return self._definition.encoder.encode(input, state.input_type, f"input of state {state.state_id!r}")

    def _loaded(self, read: ReadRequest) -> LoadedData:
        """Give what a server would have read for a call, and no more."""
        return LoadedData(
            tables=tuple(
                LoadedTable(
                    table_name=table.table_name, columns={name: self._columns.get(name) for name in table.columns}
                )
                for table in read.tables
            ),
            local_attributes={
                name: value
                for name, value in self._local.items()
                if name in read.local_attributes or name.startswith(tuple(read.local_attribute_prefixes))
            },
            asked_local_attributes=read.local_attributes,
            asked_local_attribute_prefixes=read.local_attribute_prefixes,
        )
