"""Syntax of Python 3.12 in definitions: `type` aliases and type parameters."""

import sys
from types import ModuleType
from typing import Any

import pytest

from tests.unit.sdk.compiling import definition_of, problems_of

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the syntax of Python 3.12")

SOURCE = """
from pydantic import BaseModel
from xdb_sdk import AsyncState, ObjectProcess, StateDecision, rpc

type Ids = list[int]
type Pair[T] = tuple[T, T]

class Model(BaseModel):
    name: str

class Step[T: BaseModel](AsyncState[T]):
    def execute(self, input: T) -> StateDecision:
        return StateDecision.dead_end()

class ModelStep(Step[Model]):
    pass

class AliasStep(AsyncState[Ids]):
    def execute(self, input: "Ids") -> StateDecision:
        return StateDecision.dead_end()

class Good(ObjectProcess):
    starting_state = ModelStep
    states = (AliasStep,)

    @rpc
    def echo(self, ids: Ids) -> Pair[int]:
        return ids[0], ids[1]

class Bad(ObjectProcess):
    @rpc
    def generic[T](self, x: T) -> T:
        return x
"""


@pytest.fixture
def module() -> Any:
    made = ModuleType("made_for_this_test")
    sys.modules[made.__name__] = made
    exec(SOURCE, made.__dict__)
    yield made
    del sys.modules[made.__name__]


def test_aliases_and_type_parameters_work(module: Any) -> None:
    definition = definition_of(module.Good)
    method = definition.rpcs["echo"].method

    assert definition.states["ModelStep"].input_type is module.Model
    encoder = definition.encoder
    assert encoder.decode([1, 2], definition.states["AliasStep"].input_type, "x") == [1, 2]
    assert encoder.encode([1, 2], method.input_type, "x") == [1, 2]
    assert encoder.encode((1, 2), method.output_type, "x") == [1, 2]


def test_a_generic_rpc_is_refused(module: Any) -> None:
    assert "Bad.generic: input" in problems_of(module.Bad)
