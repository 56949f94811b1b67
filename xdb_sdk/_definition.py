"""What a process class says, checked and compiled once at registration.

The worker and the client read these; nobody else makes them than `_compile.py`. The schema methods and the decorators
of the programming model both end here, so that nothing behind this line knows in which form a class was written.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from xdb_sdk._errors import InvalidArgumentError, ProcessDefinitionError
from xdb_sdk._names import check_name, check_optional_name
from xdb_sdk._options import AsyncStateOptions, StateReference
from xdb_sdk._schema import DataAttribute, InternalQueue, key_name
from xdb_sdk._state_options import resolve_state_options
from xdb_sdk.protocol import MovementBody, ReadRequest, StateOptionsConfig, TableRead

if TYPE_CHECKING:
    from xdb_sdk._encoding import ObjectEncoder
    from xdb_sdk._process import ObjectProcess
    from xdb_sdk._state import AsyncState


class ParameterRole(StrEnum):
    """What a parameter of a state or RPC method is given."""

    CONTEXT = "CONTEXT"
    STATE_CONTEXT = "STATE_CONTEXT"
    INPUT = "INPUT"
    COMMAND_RESULTS = "COMMAND_RESULTS"
    PERSISTENCE = "PERSISTENCE"
    COMMUNICATION = "COMMUNICATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeDefinition:
    """A data attribute. `column` is None for a process-local value; a prefix stands for all names that begin so."""

    name: str
    type_hint: Any
    column: str | None
    is_prefix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDefinition:
    """An internal queue and the type of its messages; a prefix stands for all names that begin so."""

    name: str
    type_hint: Any
    is_prefix: bool = False


_Declared = TypeVar("_Declared", AttributeDefinition, QueueDefinition)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """The user's table that executions are mapped to, one row each, found by `primary_key` = object id."""

    table_name: str
    primary_key: str
    primary_key_type: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodDefinition:
    """A method of a state or an RPC method, and how to call it.

    Attributes:
        function: The plain function; the process or state instance is its first argument.
        roles: What each parameter after `self` is given, in order.
        parameter_names: Names of the same parameters; arguments are passed by keyword.
        input_type: The type of the input, or `type(None)` without an input parameter.
        has_input: Whether there is an input parameter.
        output_type: The return annotation, `Any` when there is none.
        is_async: Whether the function is a coroutine function.
    """

    function: Callable[..., Any]
    roles: tuple[ParameterRole, ...]
    parameter_names: tuple[str, ...]
    input_type: Any
    has_input: bool
    output_type: Any
    is_async: bool

    @property
    def has_persistence(self) -> bool:
        """Whether the method can read or write data; if not, nothing is loaded for it."""
        return ParameterRole.PERSISTENCE in self.roles

    @property
    def has_communication(self) -> bool:
        """Whether the method can send messages, or ask how many there are."""
        return ParameterRole.COMMUNICATION in self.roles

    def arguments(self, values: Mapping[ParameterRole, Any]) -> dict[str, Any]:
        """Pick from `values` the keyword arguments that the method declares."""
        return {name: values[role] for name, role in zip(self.parameter_names, self.roles, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDefinition:
    """A state. `wait_until` is None when no class but AsyncState itself defines it (semantics 2.2).

    `options` is what the class says, `wire_options` the same with every default filled in.
    """

    state_id: str
    state: "AsyncState[Any]"
    state_class: "type[AsyncState[Any]]"
    input_type: Any
    wait_until: MethodDefinition | None
    execute: MethodDefinition
    options: AsyncStateOptions
    wire_options: StateOptionsConfig

    @property
    def has_input(self) -> bool:
        """Whether one of its methods takes the input; if not, whatever it is given is left alone."""
        return self.execute.has_input or (self.wait_until is not None and self.wait_until.has_input)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcDefinition:
    """An RPC method. `wire_read` is what the server must load for a call."""

    name: str
    method: MethodDefinition
    timeout: timedelta
    read_only: bool
    exclusive: bool
    wire_read: ReadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDefinition:
    """All that a process class declares. Its lookups raise errors that name the class and the nearest known name."""

    process_type: str
    process_class: "type[ObjectProcess]"
    process: "ObjectProcess"
    encoder: "ObjectEncoder"
    starting_state: StateDefinition | None
    states: Mapping[str, StateDefinition]
    rpcs: Mapping[str, RpcDefinition]
    attributes: Mapping[str, AttributeDefinition]
    queues: Mapping[str, QueueDefinition]
    table: TableDefinition | None

    def attribute(self, key: str | DataAttribute[Any]) -> AttributeDefinition:
        """Find a data attribute by name or typed key; a declared prefix answers for every name that begins so.

        Raises:
            InvalidArgumentError: The class declares no such attribute, or the name is a prefix itself.
        """
        return self._find(key_name(key), self.attributes, "data attribute")

    def queue(self, key: str | InternalQueue[Any]) -> QueueDefinition:
        """Find an internal queue by name or typed key; a declared prefix answers for every name that begins so.

        Raises:
            InvalidArgumentError: The class declares no such queue, or the name is a prefix itself.
        """
        return self._find(key_name(key), self.queues, "internal queue")

    def _find(self, name: str, declared: Mapping[str, _Declared], kind: str) -> _Declared:
        found = _by_name_or_prefix(name, declared)
        if found is None:
            raise InvalidArgumentError(self._unknown(kind, name, declared))
        if found.is_prefix:
            check_name(name, kind)
            if name == found.name:
                raise InvalidArgumentError(
                    f"{name!r} is a prefix of {kind}s: give a whole name, as key.named(...) does"
                )
        return found

    def state_of(self, state: StateReference) -> StateDefinition:
        """Find a state by class, instance or id.

        Raises:
            InvalidArgumentError: The class declares no such state.
        """
        if isinstance(state, str):
            if state in self.states:
                return self.states[state]
            raise InvalidArgumentError(self._unknown("state", state, self.states))
        return self._state_of_class(state)

    def _state_of_class(self, state: "type[AsyncState[Any]] | AsyncState[Any]") -> StateDefinition:
        origin = get_origin(state) or state
        state_class = origin if isinstance(origin, type) else type(origin)
        found = [d for d in self.states.values() if d.state is state or d.state_class is state_class]
        exact = [d for d in found if d.state is state]
        if exact or len(found) == 1:
            return (exact or found)[0]
        if found:
            ids = ", ".join(repr(d.state_id) for d in found)
            raise InvalidArgumentError(
                f"{self.process_type} has several states of class {state_class.__name__} ({ids}): name one by its id"
            )
        raise InvalidArgumentError(self._unknown("state", state_class.__name__, self.states))

    def movement(
        self,
        state: StateReference,
        input: Any = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> MovementBody:
        """Make the wire form of one next (or first) state: its input encoded and checked, its options resolved.

        Raises:
            InvalidArgumentError: Unknown state, an input of the wrong type, or options that do not hold together.
        """
        target = self.state_of(state)
        return MovementBody(
            state_id=target.state_id,
            input=self.encoder.encode(input, target.input_type, f"input of state {target.state_id!r}"),
            options=self.state_options(target, options_override),
            wait_for_key=check_optional_name(wait_for_key, "wait_for_key"),
        )

    def state_options(self, state: StateDefinition, override: AsyncStateOptions | None = None) -> StateOptionsConfig:
        """Resolve a state's options; fields that `override` sets win over the class's own (semantics 1.2, 4.5).

        Raises:
            InvalidArgumentError: The options that result do not hold together.
        """
        if override is None:
            return state.wire_options
        try:
            return resolve_state_options(self, state, override)
        except ProcessDefinitionError as error:
            raise InvalidArgumentError(f"options override: {error}") from error

    def attribute_read(self, keys: Iterable[str | DataAttribute[Any]]) -> ReadRequest:
        """Say how to read the attributes named; a prefix attribute reads every name that begins so.

        Raises:
            InvalidArgumentError: The class declares no such attribute.
        """
        columns: list[str] = []
        local: list[str] = []
        prefixes: list[str] = []
        for key in keys:
            name = key_name(key)
            if name in self.attributes and self.attributes[name].is_prefix:
                prefixes.append(name)
                continue
            attribute = self.attribute(name)
            if attribute.column is not None:
                columns.append(attribute.column)
            else:
                local.append(name)
        tables = (
            (TableRead(table_name=self.table.table_name, columns=_unique(columns)),) if columns and self.table else ()
        )
        return ReadRequest(tables=tables, local_attributes=_unique(local), local_attribute_prefixes=_unique(prefixes))

    def full_read(self) -> ReadRequest:
        """Say how to read everything that is declared."""
        return self.attribute_read(self.attributes)

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> str:
        return unknown_name(f"{self.process_type} declares no {kind} {name!r}", name, known)


def unknown_name(problem: str, name: str, known: Iterable[str]) -> str:
    """Write an error message about a name that is not known, with the names it might have meant."""
    names = sorted(known)
    if not names:
        return f"{problem}; there are none"
    close = get_close_matches(name, names, n=1)
    return f"{problem}; did you mean {close[0]!r}?" if close else f"{problem}; there are {', '.join(map(repr, names))}"


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _by_name_or_prefix(name: str, declared: Mapping[str, _Declared]) -> _Declared | None:
    """The declaration of that very name, else the longest prefix that it begins with."""
    if name in declared:
        return declared[name]
    prefixes = [d for d in declared.values() if d.is_prefix and name.startswith(d.name)]
    return max(prefixes, key=lambda d: len(d.name), default=None)
