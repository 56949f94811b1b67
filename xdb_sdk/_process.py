"""Processes: the class that users extend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_origin

from xdb_sdk._errors import ProcessDefinitionError
from xdb_sdk._schema import CommunicationSchema, DataAttribute, InternalQueue, PersistenceSchema
from xdb_sdk._state import AsyncState, StateDef, StateSchema

ProcessT = TypeVar("ProcessT", bound="type[ObjectProcess]")
KeyT = TypeVar("KeyT", DataAttribute[Any], InternalQueue[Any])

PROCESS_OPTIONS = "__xdb_process_options__"

StateListing = type[AsyncState[Any]] | AsyncState[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """What `@process` says."""

    type_name: str | None = None
    table_name: str | None = None
    primary_key: str | None = None
    primary_key_type: Any = None


class ObjectProcess:
    """A durable process: its states, its data and its queues. Extend it and register the class.

    What a process has is declared in one of two ways, one for each of the three parts: as class attributes, or by
    overriding the `get_*` method that gives the same at run time. Doing both is refused at registration.

    Attributes:
        starting_state: The state that executions begin with; None if an RPC is to trigger the first one.
        states: The other states.

    A child may override both. Type checkers take an attribute of a class without an annotation for what is assigned
    to it there, so a class whose children override it again says `starting_state: ClassVar[Any] = SubmitState`.

    Example:
        @process(table_name="user_sign_up", primary_key="user_id", primary_key_type=str)
        class UserSignupProcess(ObjectProcess):
            form = data_attribute(Form)
            verify_queue = internal_queue(None)

            starting_state = SubmitState
            states = (VerifyState,)
    """

    starting_state: ClassVar[StateListing | None] = None
    states: ClassVar[Sequence[StateListing]] = ()

    def get_process_type(self) -> str:
        """Give the name by which worker and server know the process: the name of the class, unless @process says."""
        return process_options(type(self)).type_name or type(self).__name__

    def get_async_states(self) -> StateSchema:
        """Give the states at run time; by default those of `starting_state` and `states`."""
        if not isinstance(self.states, Sequence):
            raise ProcessDefinitionError(
                f"the class attribute `states` lists the states, but is {self.states!r}: call it otherwise, with name="
            )
        others = [StateDef(_instance(state)) for state in self.states]
        if self.starting_state is None:
            return StateSchema(tuple(others))
        return StateSchema((StateDef(_instance(self.starting_state), is_starting_state=True), *others))

    def get_persistence_schema(self) -> PersistenceSchema:
        """Give the data attributes and the table at run time; by default the class attributes and @process."""
        options = process_options(type(self))
        return PersistenceSchema(
            attributes=declared_keys(type(self), DataAttribute),
            table_name=options.table_name,
            primary_key=options.primary_key,
            primary_key_type=options.primary_key_type,
        )

    def get_communication_schema(self) -> CommunicationSchema:
        """Give the internal queues at run time; by default the class attributes."""
        return CommunicationSchema(queues=declared_keys(type(self), InternalQueue))


def process(
    *,
    type_name: str | None = None,
    table_name: str | None = None,
    primary_key: str | None = None,
    primary_key_type: Any = None,
) -> Callable[[ProcessT], ProcessT]:
    """Give a process class its type name and its table.

    A child class inherits the table, and not the type name.

    Args:
        type_name: The process type, by default the name of the class.
        table_name: Table that each execution is mapped to, one row each. Without one the data attributes are kept
            with the execution itself.
        primary_key: Key column of the table; its value is the object id given at start.
        primary_key_type: Type of the object id.
    """
    options = ProcessOptions(
        type_name=type_name, table_name=table_name, primary_key=primary_key, primary_key_type=primary_key_type
    )

    def decorate(process_class: ProcessT) -> ProcessT:
        setattr(process_class, PROCESS_OPTIONS, options)
        return process_class

    return decorate


def process_options(process_class: type[ObjectProcess]) -> ProcessOptions:
    """Read what @process says of a class; the type name of its own decorator only, the table from the nearest."""
    own: ProcessOptions = vars(process_class).get(PROCESS_OPTIONS, ProcessOptions())
    for base in process_class.__mro__:
        options: ProcessOptions | None = vars(base).get(PROCESS_OPTIONS)
        if options is not None and (options.table_name or options.primary_key):
            return ProcessOptions(
                type_name=own.type_name,
                table_name=options.table_name,
                primary_key=options.primary_key,
                primary_key_type=options.primary_key_type,
            )
    return own


def declared_keys(process_class: type[ObjectProcess], kind: type[KeyT]) -> tuple[KeyT, ...]:
    """List the typed keys among the class attributes, base classes first; an override takes the place of its base."""
    names = dict.fromkeys(name for base in reversed(process_class.__mro__) for name in vars(base))
    found = (getattr(process_class, name, None) for name in names)
    return tuple(dict.fromkeys(key for key in found if isinstance(key, kind)))


def _instance(listed: Any) -> AsyncState[Any]:
    if isinstance(listed, AsyncState):
        return listed
    state_class = get_origin(listed) or listed
    if not isinstance(state_class, type) or not issubclass(state_class, AsyncState):
        raise ProcessDefinitionError(f"{listed!r} is no state: list classes that extend AsyncState")
    try:
        made: AsyncState[Any] = listed()
    except TypeError as error:
        raise ProcessDefinitionError(
            f"state {state_class.__name__} cannot be made without arguments ({error}): list an instance of it"
        ) from error
    return made
