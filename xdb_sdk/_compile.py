"""From a process class to its ProcessDefinition: everything is looked up, checked and resolved once, here."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from xdb_sdk._command import CommandRequest
from xdb_sdk._decision import StateDecision
from xdb_sdk._definition import (
    AttributeDefinition,
    MethodDefinition,
    ParameterRole,
    ProcessDefinition,
    QueueDefinition,
    RpcDefinition,
    StateDefinition,
    TableDefinition,
)
from xdb_sdk._encoding import ObjectEncoder
from xdb_sdk._errors import InvalidArgumentError, ProcessDefinitionError
from xdb_sdk._misspelt import misspelt_declarations
from xdb_sdk._names import check_name
from xdb_sdk._options import AsyncStateOptions
from xdb_sdk._process import ObjectProcess, declared_keys, process_options
from xdb_sdk._rpc import RPC_OPTIONS, RpcOptions
from xdb_sdk._schema import CommunicationSchema, DataAttribute, InternalQueue, PersistenceSchema
from xdb_sdk._signature import UNKNOWN, read_method, type_argument
from xdb_sdk._state import AsyncState, StateSchema, decorated_options
from xdb_sdk._state_options import method_read, resolve_state_options
from xdb_sdk.protocol import StateOptionsConfig

RESERVED_PREFIX = "_xdb_"
"""Names that begin so belong to xdb (semantics 4.1)."""

_WAIT_UNTIL_ROLES = frozenset(ParameterRole) - {ParameterRole.COMMAND_RESULTS}
_EXECUTE_ROLES = frozenset(ParameterRole)
_RPC_ROLES = _WAIT_UNTIL_ROLES - {ParameterRole.STATE_CONTEXT}

T = TypeVar("T")
SchemaT = TypeVar("SchemaT", PersistenceSchema, CommunicationSchema, StateSchema)
NamedT = TypeVar("NamedT", AttributeDefinition, QueueDefinition, StateDefinition, RpcDefinition)


def compile_process(process: type[ObjectProcess] | ObjectProcess, encoder: ObjectEncoder) -> ProcessDefinition:
    """Check a process class, or an instance of one, and compile it.

    Raises:
        ProcessDefinitionError: Something is wrong with it; the error lists all that was found.
    """
    instance = process if isinstance(process, ObjectProcess) else _instantiate(process)
    return _Compiler(instance, encoder).compile()


def _instantiate(process_class: Any) -> ObjectProcess:
    if not isinstance(process_class, type) or not issubclass(process_class, ObjectProcess):
        raise ProcessDefinitionError(f"{process_class!r} is no process: register a class that extends ObjectProcess")
    if process_class is ObjectProcess or inspect.isabstract(process_class):
        raise ProcessDefinitionError(f"{process_class.__name__} is abstract: register the classes that extend it")
    try:
        return process_class()
    except TypeError as error:
        raise ProcessDefinitionError(
            f"{process_class.__name__} cannot be made without arguments ({error}): register an instance of it instead"
        ) from error


class _Compiler:
    """Compiles one process. Problems are gathered, so that one look tells them all."""

    def __init__(self, process: ObjectProcess, encoder: ObjectEncoder) -> None:
        self._process = process
        self._class = type(process)
        self._encoder = encoder
        self._problems: list[str] = []

    def compile(self) -> ProcessDefinition:
        """Compile, or raise all problems at once."""
        self._problems.extend(misspelt_declarations(self._class, ObjectProcess))
        process_type = self._process.get_process_type()
        self._check_name(process_type, "process type")
        persistence = self._persistence_schema()
        definition = ProcessDefinition(
            process_type=process_type,
            process_class=self._class,
            process=self._process,
            encoder=self._encoder,
            starting_state=None,
            states={},
            rpcs={},
            attributes=self._attributes(persistence),
            queues=self._queues(self._communication_schema()),
            table=self._table(persistence),
        )
        definition = self._with_states(definition, self._state_schema())
        definition = replace(definition, rpcs=self._rpcs(definition))
        if self._problems:
            raise ProcessDefinitionError(*self._problems)
        return definition

    def _attempt(self, make: Callable[[], T]) -> T | None:
        """Note a problem and go on without the thing."""
        try:
            return make()
        except ProcessDefinitionError as error:
            self._problems.extend(error.problems)
        except InvalidArgumentError as error:
            self._problems.append(str(error))
        return None

    def _note(self, problem: str) -> None:
        self._problems.append(f"{self._class.__name__}: {problem}")

    def _check_name(self, name: Any, what: str) -> None:
        checked = self._attempt(lambda: check_name(name, f"{self._class.__name__}: {what}"))
        if checked and checked.startswith(RESERVED_PREFIX):
            self._note(f"{what} {name!r} begins with {RESERVED_PREFIX!r}, which is reserved: give it another name")

    def _by_name(self, found: Iterable[tuple[str, NamedT]], what: str) -> dict[str, NamedT]:
        by_name: dict[str, NamedT] = {}
        for name, definition in found:
            self._check_name(name, what)
            if name in by_name:
                self._note(f"{what} {name!r} is declared twice: rename or remove one of them")
            by_name[name] = definition
        return by_name

    # What is declared, in whichever of the two forms.

    def _persistence_schema(self) -> PersistenceSchema:
        options = process_options(self._class)
        if self._class.get_persistence_schema is not ObjectProcess.get_persistence_schema:
            declared = [key.name for key in declared_keys(self._class, DataAttribute)]
            if declared:
                self._declared_twice("get_persistence_schema", f"data_attribute class attributes ({declared[0]!r})")
            if options.table_name or options.primary_key:
                self._declared_twice("get_persistence_schema", "a table in @process")
        return self._schema(self._process.get_persistence_schema, PersistenceSchema)

    def _communication_schema(self) -> CommunicationSchema:
        declared = [key.name for key in declared_keys(self._class, InternalQueue)]
        if declared and self._class.get_communication_schema is not ObjectProcess.get_communication_schema:
            self._declared_twice("get_communication_schema", f"internal_queue class attributes ({declared[0]!r})")
        return self._schema(self._process.get_communication_schema, CommunicationSchema)

    def _state_schema(self) -> StateSchema:
        declares = self._class.starting_state is not None or bool(self._class.states)
        if declares and self._class.get_async_states is not ObjectProcess.get_async_states:
            self._declared_twice("get_async_states", "the class attributes starting_state or states")
        return self._schema(self._process.get_async_states, StateSchema)

    def _declared_twice(self, method: str, other: str) -> None:
        self._note(f"{method}() and {other} both say what it has: keep one of the two forms")

    def _schema(self, get: Callable[[], Any], kind: type[SchemaT]) -> SchemaT:
        try:
            schema = get()
        except ProcessDefinitionError as error:
            self._note(str(error))
            return kind()
        if isinstance(schema, kind):
            return schema
        self._note(f"{get.__name__}() returned {schema!r}: return a {kind.__name__}")
        return kind()

    # Data and queues.

    def _table(self, schema: PersistenceSchema) -> TableDefinition | None:
        if not schema.table_name:
            if schema.primary_key or schema.primary_key_type is not None:
                self._note("a primary key is declared without a table: give table_name as well")
            return None
        if not schema.primary_key:
            self._note(f"table {schema.table_name!r} is declared without a primary key: give primary_key")
        if schema.primary_key_type is None:
            self._note(f"table {schema.table_name!r} is declared without the type of its key: give primary_key_type")
        else:
            where = f"{self._class.__name__}: the primary key"
            self._attempt(lambda: self._encoder.check_key_type_hint(schema.primary_key_type, where))
        return TableDefinition(
            table_name=schema.table_name,
            primary_key=schema.primary_key or "",
            primary_key_type=schema.primary_key_type,
        )

    def _attributes(self, schema: PersistenceSchema) -> dict[str, AttributeDefinition]:
        attributes = self._by_name(
            ((key.name, self._attribute(key, schema)) for key in schema.attributes), "data attribute"
        )
        columns: dict[str, str] = {}
        for attribute in attributes.values():
            if attribute.column is None:
                continue
            other = columns.setdefault(attribute.column, attribute.name)
            if other != attribute.name:
                self._note(
                    f"data attributes {other!r} and {attribute.name!r} share column {attribute.column!r}: keep one"
                )
        return attributes

    def _attribute(self, key: DataAttribute[Any], schema: PersistenceSchema) -> AttributeDefinition:
        self._check_type(key.type_hint, f"data attribute {key.name!r}")
        if schema.table_name and key.is_prefix:
            self._note(
                f"data attribute prefix {key.name!r} has no column in table {schema.table_name!r}: declare each "
                "attribute by its name, or map no table"
            )
        if key.column and not schema.table_name:
            self._note(
                f"data attribute {key.name!r} names a column, but no table is mapped: give table_name, or no column"
            )
        column = (key.column or key.name) if schema.table_name else None
        if column and column == schema.primary_key and key.type_hint != schema.primary_key_type:
            self._note(f"data attribute {key.name!r} is the primary key, but of another type: make both the same")
        return AttributeDefinition(name=key.name, type_hint=key.type_hint, column=column, is_prefix=key.is_prefix)

    def _queues(self, schema: CommunicationSchema) -> dict[str, QueueDefinition]:
        for queue in schema.queues:
            self._check_type(queue.type_hint, f"internal queue {queue.name!r}")
        return self._by_name(
            (
                (queue.name, QueueDefinition(name=queue.name, type_hint=queue.type_hint, is_prefix=queue.is_prefix))
                for queue in schema.queues
            ),
            "internal queue",
        )

    def _check_type(self, type_hint: Any, what: str) -> None:
        self._attempt(lambda: self._encoder.check_type_hint(type_hint, f"{self._class.__name__}: {what}"))

    # States.

    def _with_states(self, definition: ProcessDefinition, schema: StateSchema) -> ProcessDefinition:
        listed = [
            (found, state_def.is_starting_state)
            for state_def in schema.states
            if (found := self._attempt(partial(self._state, state_def.state)))
        ]
        states = self._by_name(((state.state_id, state) for state, _ in listed), "state id")
        if not self._problems:  # options name states and attributes, so that one mistake there would be many here
            unresolved = replace(definition, states=states)
            states = {
                state_id: self._attempt(partial(_with_wire_options, unresolved, state)) or state
                for state_id, state in states.items()
            }
        starting = [state.state_id for state, is_starting in listed if is_starting]
        if len(starting) > 1:
            self._note(f"{' and '.join(map(repr, starting))} are both starting states: keep one")
        return replace(definition, states=states, starting_state=states[starting[0]] if starting else None)

    def _state(self, state: AsyncState[Any]) -> StateDefinition:
        state_class = type(state)
        name = f"{self._class.__name__}: {state_class.__name__}"
        misspelt = [f"{self._class.__name__}: {problem}" for problem in misspelt_declarations(state_class, AsyncState)]
        if misspelt:
            raise ProcessDefinitionError(*misspelt)
        if inspect.isabstract(state_class) or state_class.execute is AsyncState.execute:
            raise ProcessDefinitionError(f"{name} does not define execute: write it, it says what is next")
        declared = type_argument(getattr(state, "__orig_class__", state_class), AsyncState)
        execute = read_method(_own(state_class, "execute"), f"{name}.execute", _EXECUTE_ROLES, declared)
        _check_return(execute, StateDecision, f"{name}.execute")
        wait_until = None
        if state_class.wait_until is not AsyncState.wait_until:
            known = execute.input_type if declared is UNKNOWN and execute.has_input else declared
            wait_until = read_method(_own(state_class, "wait_until"), f"{name}.wait_until", _WAIT_UNTIL_ROLES, known)
            _check_return(wait_until, CommandRequest, f"{name}.wait_until")
        input_type = _state_input_type(declared, execute, wait_until)
        self._encoder.check_type_hint(input_type, f"{name}: input")
        options = self._state_options(state, name)
        return StateDefinition(
            state_id=options.state_id or state_class.__name__,
            state=state,
            state_class=state_class,
            input_type=input_type,
            wait_until=wait_until,
            execute=execute,
            options=options,
            wire_options=StateOptionsConfig(),
        )

    def _state_options(self, state: AsyncState[Any], name: str) -> AsyncStateOptions:
        state_class = type(state)
        if decorated_options(state_class) and state_class.get_state_options is not AsyncState.get_state_options:
            raise ProcessDefinitionError(f"{name} has @state and get_state_options(): keep one of the two forms")
        options = state.get_state_options()
        if options is None:
            return AsyncStateOptions()
        if not isinstance(options, AsyncStateOptions):
            raise ProcessDefinitionError(f"{name}: get_state_options() returned {options!r}: return AsyncStateOptions")
        return options

    # RPCs.

    def _rpcs(self, definition: ProcessDefinition) -> dict[str, RpcDefinition]:
        found = (
            self._attempt(partial(self._rpc, definition, name, options))
            for name, options in rpc_options_by_name(self._class).items()
        )
        return self._by_name(((rpc.name, rpc) for rpc in found if rpc is not None), "RPC")

    def _rpc(self, definition: ProcessDefinition, method_name: str, options: RpcOptions) -> RpcDefinition:
        where = f"{self._class.__name__}.{method_name}"
        method = read_method(_own(self._class, method_name), where, _RPC_ROLES)
        self._encoder.check_type_hint(method.input_type, f"{where}: input")
        self._encoder.check_type_hint(method.output_type, f"{where}: return type")
        try:
            read = method_read(definition, method, options.data_attribute_loading_policy)
        except InvalidArgumentError as error:
            raise ProcessDefinitionError(f"{where}: {error}") from error
        return RpcDefinition(
            name=options.name or method_name,
            method=method,
            timeout=options.timeout,
            read_only=options.read_only,
            exclusive=options.exclusive,
            wire_read=read,
        )


def _with_wire_options(definition: ProcessDefinition, state: StateDefinition) -> StateDefinition:
    return replace(state, wire_options=resolve_state_options(definition, state))


def _check_return(method: MethodDefinition, expected: type, where: str) -> None:
    if method.output_type not in (Any, expected):
        raise ProcessDefinitionError(f"{where} must return a {expected.__name__}: annotate it so")


def rpc_options_by_name(process_class: type) -> dict[str, RpcOptions]:
    """Find the RPC methods of a class by their Python names; the nearest decorated method has the options.

    An override without a decorator stays an RPC.
    """
    found: dict[str, RpcOptions] = {}
    for base in reversed(process_class.__mro__):
        for name, value in vars(base).items():
            options = getattr(value, RPC_OPTIONS, None)
            if isinstance(options, RpcOptions):
                found[name] = options
    return found


def _own(owner: type, name: str) -> Any:
    """Give a class's attribute as it is written, so that a staticmethod is not taken for a method."""
    return inspect.getattr_static(owner, name)


def _state_input_type(declared: Any, execute: MethodDefinition, wait_until: MethodDefinition | None) -> Any:
    if declared is not UNKNOWN:
        return declared
    methods = [method for method in (execute, wait_until) if method is not None and method.has_input]
    known = [method.input_type for method in methods if method.input_type is not Any]
    return known[0] if known else Any
