"""Declarations that would do nothing without a word because of a slip in their names."""

from typing import Any

import pytest

from tests.unit.sdk.compiling import DoneState, definition_of, problems_of, process_with
from tests.unit.sdk.signup import Form
from xdb_sdk import AsyncState, CommandRequest, ObjectProcess, StateDecision, internal_queue, process, rpc


class End(DoneState):
    """A state to list."""


def a_method(self: Any) -> Any:
    """Stand for a method of any name."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("attributes", "meant"),
    [
        ({"starting_stat": End}, "starting_state"),
        ({"startingState": End()}, "starting_state"),
        ({"start_state": End}, "starting_state"),
        ({"starting_state": DoneState, "state": (End,)}, "states"),
        ({"get_async_state": a_method}, "get_async_states"),
        ({"get_persistance_schema": a_method}, "get_persistence_schema"),
        ({"get_comunication_schema": a_method}, "get_communication_schema"),
    ],
    ids=lambda part: list(part)[-1] if isinstance(part, dict) else part,
)
def test_a_misspelt_declaration_of_a_process_is_refused(attributes: dict[str, Any], meant: str) -> None:
    misspelt = list(attributes)[-1]

    problems = problems_of(type("Sample", (ObjectProcess,), attributes))

    assert problems == f"Sample.{misspelt} does nothing: did you mean {meant!r}? If not, rename it"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("waituntil", "wait_until"),
        ("wait_untill", "wait_until"),
        ("waitUntil", "wait_until"),
        ("get_state_option", "get_state_options"),
    ],
)
def test_a_misspelt_method_of_a_state_is_refused(misspelt: str, meant: str) -> None:
    problems = problems_of(process_with(type("Step", (DoneState,), {misspelt: a_method})))

    assert problems == f"Sample: Step.{misspelt} does nothing: did you mean {meant!r}? If not, rename it"


def test_a_misspelt_execute_is_named() -> None:
    problems = problems_of(process_with(type("Step", (AsyncState,), {"exceute": a_method})))

    assert "Step.exceute does nothing: did you mean 'execute'?" in problems


class Helped(AsyncState[None]):
    """Has names of its own that are close to what it also declares, or no methods."""

    wait_untill = 3

    def wait_until(self) -> CommandRequest:
        return CommandRequest.empty()

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()

    def executes(self) -> bool:
        return True

    def _get_state_option(self) -> None: ...

    def wait(self) -> None: ...


class Nested(ObjectProcess):
    """Lists a state that is written inside the class, and has attributes of its own."""

    class StartingState(DoneState):
        """The one state, which an RPC triggers."""

    states = (StartingState, Helped)
    starting_stat = "a constant"
    starting_status = internal_queue(str)
    first_state = Helped

    @rpc
    def get_async_state(self) -> str:
        return "open"


def test_names_of_the_users_own_are_left_alone() -> None:
    definition = definition_of(Nested)

    assert sorted(definition.states) == ["Helped", "StartingState"]
    assert list(definition.rpcs) == ["get_async_state"]


@pytest.mark.parametrize("key_type", [list, dict[str, int], Form, bool, float, None | list[int], int | str], ids=str)
def test_a_primary_key_is_of_a_type_that_finds_a_row(key_type: Any) -> None:
    @process(table_name="t", primary_key="id", primary_key_type=key_type)
    class Sample(ObjectProcess):
        """Is mapped."""

    assert "Sample: the primary key: " in problems_of(Sample)
    assert "cannot be a key: declare int, str," in problems_of(Sample)
