"""The process classes that a worker runs and a client may call."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from xdb_sdk._compile import compile_process, rpc_options_by_name
from xdb_sdk._definition import ProcessDefinition, RpcDefinition, unknown_name
from xdb_sdk._encoding import ObjectEncoder
from xdb_sdk._errors import InvalidArgumentError, NotRegisteredError, ProcessDefinitionError
from xdb_sdk._process import ObjectProcess
from xdb_sdk._schema import DataAttribute, InternalQueue
from xdb_sdk.protocol import ReadRequest


class Registry:
    """The processes of an application, checked as they are added. Give one to the worker and one to the client.

    Args:
        object_encoder: Turns values into JSON and back for all of them; by default ObjectEncoder.

    Example:
        registry = Registry()
        registry.add_process(UserSignupProcess)
    """

    def __init__(self, object_encoder: ObjectEncoder | None = None) -> None:
        self.object_encoder = object_encoder or ObjectEncoder()
        self._by_type: dict[str, ProcessDefinition] = {}
        self._by_class: dict[type[ObjectProcess], ProcessDefinition] = {}
        self._by_function: dict[Any, list[tuple[ProcessDefinition, RpcDefinition]]] = {}

    def add_process(self, process: type[ObjectProcess] | ObjectProcess) -> None:
        """Check a process and add it.

        Args:
            process: Its class; an instance if the class needs arguments.

        Raises:
            ProcessDefinitionError: Something is wrong with it, or its process type is taken.
        """
        definition = compile_process(process, self.object_encoder)
        other = self._by_type.get(definition.process_type)
        if other is not None:
            raise ProcessDefinitionError(
                f"process type {definition.process_type!r} is registered twice, as {_full_name(other.process_class)} "
                f"and {_full_name(definition.process_class)}: give one of them another with @process(type_name=...)"
            )
        self._by_type[definition.process_type] = definition
        self._by_class[definition.process_class] = definition
        for function, rpc in _rpc_functions(definition):
            self._by_function.setdefault(function, []).append((definition, rpc))

    def add_processes(self, *processes: type[ObjectProcess] | ObjectProcess) -> None:
        """Check several processes and add them.

        Raises:
            ProcessDefinitionError: Something is wrong with one of them; those before it are added.
        """
        for process in processes:
            self.add_process(process)

    @property
    def process_types(self) -> Iterable[str]:
        """The types that are registered, in the order they were."""
        return self._by_type.keys()

    def process_of(self, process_class: type[ObjectProcess]) -> ProcessDefinition:
        """Find the definition of a class.

        Raises:
            InvalidArgumentError: It is no process class.
            NotRegisteredError: The class was not added.
        """
        if not isinstance(process_class, type):
            raise InvalidArgumentError(
                f"{_described(process_class)} stands where a process class is wanted: give the registered class"
            )
        definition = self._by_class.get(process_class)
        if definition is None:
            raise NotRegisteredError(
                f"{process_class.__name__} is not registered: call registry.add_process({process_class.__name__})"
            )
        return definition

    def process_of_type(self, process_type: str) -> ProcessDefinition:
        """Find the definition of a process type.

        Raises:
            NotRegisteredError: No class with this type was added.
        """
        definition = self._by_type.get(process_type)
        if definition is None:
            raise NotRegisteredError(
                unknown_name(f"process type {process_type!r} is not registered", process_type, self._by_type)
            )
        return definition

    def rpc_of(
        self, method: Callable[..., Any], process_class: type[ObjectProcess] | None = None
    ) -> tuple[ProcessDefinition, RpcDefinition]:
        """Find the RPC that a method is, given as attribute of its class or of an instance.

        An RPC of a base class that is not registered stands for the same RPC of its registered child. If there are
        several children that read other data for it, nothing is named to be read: their worker asks for what it needs.

        Args:
            method: The method.
            process_class: Only as an RPC of this class.

        Raises:
            InvalidArgumentError: It is a name.
            NotRegisteredError: No registered process, or not that class, has this RPC, or several have it with other
                types.
        """
        if isinstance(method, str):
            raise InvalidArgumentError(self._rpc_by_name(method))
        function = getattr(method, "__func__", method)
        found = self._by_function.get(function, [])
        owner = type(method.__self__) if inspect.ismethod(method) else process_class
        if owner is not None:
            found = [(definition, rpc) for definition, rpc in found if definition.process_class is owner]
        found = [(definition, rpc) for definition, rpc in found if rpc.method.function is function] or found
        if not found:
            name = getattr(method, "__qualname__", repr(method))
            where = process_class.__name__ if process_class else "a registered process"
            raise NotRegisteredError(f"{name} is no RPC of {where}: decorate it with @rpc and register its class")
        definition, rpc = found[0]
        if any(_signature(other) != _signature(rpc) for _, other in found):
            types = ", ".join(d.process_type for d, _ in found)
            raise NotRegisteredError(
                f"RPC {rpc.name!r} is not the same in {types}: give the method of the class you mean"
            )
        if any(other.wire_read != rpc.wire_read for _, other in found):
            rpc = replace(rpc, wire_read=ReadRequest())
        return definition, rpc

    def _rpc_by_name(self, name: str) -> str:
        """Say which method to give instead of the name of an RPC."""
        methods = sorted(
            function.__qualname__
            for function, found in self._by_function.items()
            if any(name in (rpc.name, function.__name__) for _, rpc in found)
        )
        example = " or ".join(methods) or "UserSignupProcess.verify"
        return (
            f"RPC {name!r} is given by its name: give the method itself, such as {example}; "
            "only an UnregisteredClient calls by name"
        )


def _described(value: Any) -> str:
    """Describe what is no class, without its contents: a typed key by its name, else by its type."""
    if isinstance(value, DataAttribute | InternalQueue):
        return f"the key {value.name!r}"
    if isinstance(value, ObjectProcess):
        return f"an instance of {type(value).__name__}"
    return f"a value of type {type(value).__name__}"


def _rpc_functions(definition: ProcessDefinition) -> Iterator[tuple[Any, RpcDefinition]]:
    """Give each RPC with every function that stands for it: its own, and those that it overrides in base classes."""
    for name, options in rpc_options_by_name(definition.process_class).items():
        for base in definition.process_class.__mro__:
            if name in vars(base):
                yield vars(base)[name], definition.rpcs[options.name or name]


def _signature(rpc: RpcDefinition) -> tuple[Any, ...]:
    method = rpc.method
    return rpc.name, method.has_input, method.input_type, method.output_type, rpc.read_only, rpc.exclusive


def _full_name(process_class: type) -> str:
    return f"{process_class.__module__}.{process_class.__qualname__}"
