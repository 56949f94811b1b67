"""Short ways to a definition and to what is wrong with one."""

from typing import Any

import pytest

from xdb_sdk import AsyncState, ObjectProcess, ProcessDefinitionError, Registry, StateDecision
from xdb_sdk._definition import ProcessDefinition


class DoneState(AsyncState[None]):
    """A state that is right in every way."""

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


def definition_of(process_class: type[ObjectProcess]) -> ProcessDefinition:
    """Register a class alone."""
    registry = Registry()
    registry.add_process(process_class)
    return registry.process_of(process_class)


def problems_of(process_class: type[ObjectProcess]) -> str:
    """Give what is wrong with a class, one problem a line."""
    with pytest.raises(ProcessDefinitionError) as caught:
        Registry().add_process(process_class)
    return "\n".join(caught.value.problems)


def process_with(*states: AsyncState[Any] | type[AsyncState[Any]]) -> type[ObjectProcess]:
    """Make a process of these states, the first of which is the starting state."""
    return type("Sample", (ObjectProcess,), {"starting_state": states[0], "states": states[1:]})
