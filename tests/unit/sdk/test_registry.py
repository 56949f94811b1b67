"""Which processes a registry holds: inheritance, names, and how an RPC is found."""

from abc import ABC, abstractmethod

import pytest

from tests.unit.sdk.compiling import DoneState, definition_of
from tests.unit.sdk.signup import DecoratedSignup, SchemaSignup
from xdb_sdk import (
    NotRegisteredError,
    ObjectProcess,
    Persistence,
    ProcessDefinitionError,
    Registry,
    data_attribute,
    process,
    rpc,
)


class Base(ObjectProcess):
    """A base class with states, data and RPCs."""

    count = data_attribute(int)
    starting_state = DoneState

    @rpc(timeout_seconds=3)
    def a(self) -> str:
        return "base a"

    @rpc
    def b(self) -> str:
        return "base b"


class Mixin:
    """Adds an RPC."""

    @rpc
    def c(self) -> int:
        return 3


class Child(Mixin, Base):
    """Overrides one RPC without a decorator, one with, and adds an attribute."""

    name = data_attribute(str)

    def a(self) -> str:  # type: ignore[override]  # to type checkers it stops being an RPC
        return "child a"

    @rpc(name="bee", timeout_seconds=5)
    def b(self) -> str:
        return "child b"


def test_a_child_inherits_what_it_does_not_override() -> None:
    definition = definition_of(Child)

    assert sorted(definition.rpcs) == ["a", "bee", "c"]
    assert definition.rpcs["a"].method.function(Child()) == "child a"
    assert definition.rpcs["a"].timeout.total_seconds() == 3
    assert definition.rpcs["bee"].method.function(Child()) == "child b"
    assert list(definition.attributes) == ["count", "name"]
    assert definition.starting_state is not None
    assert definition.process_type == "Child"


def test_a_base_class_and_its_child_live_side_by_side() -> None:
    registry = Registry()
    registry.add_processes(Base, Child)

    assert registry.rpc_of(Base.b)[0].process_class is Base
    assert registry.rpc_of(Child.b)[0].process_class is Child
    assert registry.rpc_of(Child().b)[1].name == "bee"
    assert registry.rpc_of(Child.c)[0].process_class is Child
    assert list(registry.process_types) == ["Base", "Child"]


def test_an_inherited_rpc_of_several_children_asks_the_worker_what_to_read() -> None:
    class Parent(ObjectProcess):
        @rpc
        def peek(self, persistence: Persistence) -> int:
            return 1

    @process(table_name="t", primary_key="id", primary_key_type=int)
    class One(Parent):
        x = data_attribute(int)

    class Two(Parent):
        y = data_attribute(int)

    registry = Registry()
    registry.add_processes(One, Two)

    assert registry.rpc_of(Parent.peek)[1].wire_read.is_empty
    assert registry.rpc_of(Two().peek)[1].wire_read.local_attributes == ("y",)


def test_an_rpc_is_found_by_class_attribute_and_by_instance() -> None:
    registry = Registry()
    registry.add_process(DecoratedSignup)

    by_class = registry.rpc_of(DecoratedSignup.verify)
    by_instance = registry.rpc_of(DecoratedSignup().verify)

    assert by_class == by_instance
    assert by_class[1].name == "verify"


def test_a_method_that_is_no_rpc_is_not_found() -> None:
    registry = Registry()
    registry.add_process(DecoratedSignup)

    with pytest.raises(NotRegisteredError, match="get_process_type is no RPC of a registered process"):
        registry.rpc_of(DecoratedSignup.get_process_type)
    with pytest.raises(NotRegisteredError, match=r"SchemaSignup\.verify is no RPC"):
        registry.rpc_of(SchemaSignup.verify)


def test_abstract_classes_and_strangers_cannot_be_registered() -> None:
    class Abstract(ObjectProcess, ABC):
        @abstractmethod
        def name(self) -> str: ...

    class NeedsArgument(ObjectProcess):
        def __init__(self, url: str) -> None:
            self.url = url

    registry = Registry()

    for abstract in (ObjectProcess, Abstract):
        with pytest.raises(ProcessDefinitionError, match="is abstract: register the classes that extend it"):
            registry.add_process(abstract)
    with pytest.raises(ProcessDefinitionError, match="register an instance of it instead"):
        registry.add_process(NeedsArgument)
    with pytest.raises(ProcessDefinitionError, match="is no process"):
        registry.add_process(str)  # type: ignore[arg-type]  # the mistake
    registry.add_process(NeedsArgument("http://localhost"))
    assert registry.process_of(NeedsArgument).process_type == "NeedsArgument"


def test_a_process_type_can_be_registered_once() -> None:
    registry = Registry()
    registry.add_process(SchemaSignup)

    with pytest.raises(ProcessDefinitionError, match=r"'Signup' is registered twice.*type_name"):
        registry.add_process(DecoratedSignup)


def test_what_is_not_registered_is_named() -> None:
    registry = Registry()
    registry.add_process(DecoratedSignup)

    with pytest.raises(NotRegisteredError, match=r"registry\.add_process\(SchemaSignup\)"):
        registry.process_of(SchemaSignup)
    with pytest.raises(NotRegisteredError, match="did you mean 'Signup'"):
        registry.process_of_type("SignUp")


def test_an_rpc_of_a_base_class_reaches_the_override_in_its_child() -> None:
    registry = Registry()
    registry.add_process(Child)

    definition, found = registry.rpc_of(Base.a)

    assert definition.process_class is Child
    assert found.method.function(Child()) == "child a"
    assert registry.rpc_of(Base.b)[1].name == "bee"


def test_an_inherited_rpc_that_its_children_type_differently_is_refused() -> None:
    class Parent(ObjectProcess):
        @rpc
        def peek(self) -> object:
            return 1

    class One(Parent):
        @rpc
        def peek(self) -> int:
            return 1

    class Two(Parent):
        @rpc
        def peek(self) -> str:
            return ""

    registry = Registry()
    registry.add_processes(One, Two)

    with pytest.raises(NotRegisteredError, match="RPC 'peek' is not the same in One, Two"):
        registry.rpc_of(Parent.peek)
    assert registry.rpc_of(Two.peek)[1].method.output_type is str
