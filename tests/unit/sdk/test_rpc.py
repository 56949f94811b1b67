"""RPC methods, as they are read and as they are called."""

import inspect
from typing import Any

import pytest

from tests.unit.sdk.compiling import definition_of, problems_of
from xdb_sdk import (
    Communication,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessContext,
    StateContext,
    data_attribute,
    rpc,
)
from xdb_sdk._definition import ParameterRole


class Calls(ObjectProcess):
    """RPCs with and without input, with and without output."""

    total = data_attribute(int)

    @rpc
    def both(self, amount: int) -> str:
        """Say a number."""
        return f"got {amount}"

    @rpc()
    def input_only(self, amount: int) -> None:
        assert amount

    @rpc(read_only=True, timeout_seconds=2.5)
    def output_only(self, persistence: Persistence) -> list[int]:
        return [1]

    @rpc(name="nothing")
    async def neither(self, communication: Communication, ctx: ProcessContext) -> None:
        assert communication

    @rpc
    def untyped(self, input, persistence):  # type: ignore[no-untyped-def]
        return input


CALLS = definition_of(Calls)


@pytest.mark.parametrize(
    ("name", "has_input", "input_type", "output_type"),
    [
        ("both", True, int, str),
        ("input_only", True, int, type(None)),
        ("output_only", False, type(None), list[int]),
        ("nothing", False, type(None), type(None)),
        ("untyped", True, Any, Any),
    ],
)
def test_an_rpc_has_the_types_of_its_signature(name: str, has_input: bool, input_type: Any, output_type: Any) -> None:
    method = CALLS.rpcs[name].method

    assert method.has_input is has_input
    assert method.input_type is input_type
    assert method.output_type == output_type


def test_arguments_are_passed_by_name() -> None:
    method = CALLS.rpcs["both"].method

    assert method.function(CALLS.process, **method.arguments({ParameterRole.INPUT: 3})) == "got 3"


def test_options_are_kept() -> None:
    output_only, nothing = CALLS.rpcs["output_only"], CALLS.rpcs["nothing"]

    assert (output_only.read_only, output_only.timeout.total_seconds()) == (True, 2.5)
    assert (nothing.read_only, nothing.timeout.total_seconds()) == (False, 10)
    assert nothing.method.is_async


def test_an_rpc_without_persistence_loads_nothing() -> None:
    assert CALLS.rpcs["both"].wire_read.is_empty
    assert CALLS.rpcs["output_only"].wire_read.local_attributes == ("total",)


def test_a_decorated_method_stays_a_plain_function() -> None:
    assert inspect.isfunction(vars(Calls)["both"])
    assert inspect.getdoc(Calls.both) == "Say a number."
    assert Calls().both(4) == "got 4"
    assert Calls.both(Calls(), 4) == "got 4"


def test_two_rpcs_cannot_share_a_name() -> None:
    class Sample(ObjectProcess):
        @rpc(name="same")
        def one(self) -> None: ...

        @rpc(name="same")
        def two(self) -> None: ...

    assert "Sample: RPC 'same' is declared twice" in problems_of(Sample)


def test_too_many_and_unknown_parameters_are_refused() -> None:
    class Sample(ObjectProcess):
        @rpc
        def many(self, a: int, b: str) -> None: ...

        @rpc
        def unknown(self, comms) -> None: ...  # type: ignore[no-untyped-def]

        @rpc
        def results(self, command_results) -> None: ...  # type: ignore[no-untyped-def]

    problems = problems_of(Sample)

    assert "Sample.many: parameters 'a' and 'b' both stand for the input: keep one" in problems
    assert "Sample.unknown: parameter 'comms' has no type" in problems
    assert "use one of the names ctx, input, persistence, communication" in problems
    assert "Sample.results cannot be given command results: remove parameter 'command_results'" in problems


def test_a_decorator_may_be_kept_and_used_again() -> None:
    quick = rpc(timeout_seconds=1, data_attribute_loading_policy=PersistenceLoadingPolicy.none())

    class Sample(ObjectProcess):
        @quick
        def one(self) -> None: ...

        @quick
        def two(self) -> None: ...

    definition = definition_of(Sample)

    assert {rpc.timeout.total_seconds() for rpc in definition.rpcs.values()} == {1}


def test_the_context_of_a_state_is_not_for_rpcs() -> None:
    class Sample(ObjectProcess):
        @rpc
        def status(self, ctx: StateContext) -> str:
            return ctx.idempotency_key

    assert problems_of(Sample) == (
        "Sample.status: parameter 'ctx' is a StateContext, which only states are given: annotate it ProcessContext"
    )
