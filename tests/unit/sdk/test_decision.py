"""Decisions, from what execute returns to the wire."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from tests.unit.sdk.compiling import DoneState, definition_of
from xdb_sdk import (
    AsyncState,
    AsyncStateOptions,
    EncodeError,
    InvalidArgumentError,
    ObjectProcess,
    StateDecision,
    StateMovement,
    StateStatus,
    internal_queue,
    state,
)
from xdb_sdk._decision import decision_to_wire
from xdb_sdk.protocol import CloseType, ConditionalClose, MovementBody, StateDecisionBody, ThreadCloseDecision


@state(state_id="count")
class CountState(AsyncState[int]):
    """Takes a number, under an id of its own."""

    def execute(self, input: int) -> StateDecision:
        return StateDecision.dead_end()


class Counting(ObjectProcess):
    """Has two states and two queues."""

    starting_state = CountState
    states = (DoneState,)
    more = internal_queue(int)
    others = internal_queue(str)


COUNTING = definition_of(Counting)
COUNT_OPTIONS = COUNTING.states["count"].wire_options
DONE_OPTIONS = COUNTING.states["DoneState"].wire_options


def test_one_next_state_goes_by_its_id_with_its_input_and_options() -> None:
    decision = StateDecision.single_next_state(CountState, 3, wait_for_key="third")

    assert decision.to_wire(COUNTING) == StateDecisionBody(
        next_states=(MovementBody(state_id="count", input=3, options=COUNT_OPTIONS, wait_for_key="third"),)
    )


def test_several_next_states_keep_their_order_and_may_repeat() -> None:
    override = AsyncStateOptions(execute_api_timeout_seconds=1)

    body = StateDecision.multi_next_states(
        DoneState, StateMovement.create(CountState, 1), "DoneState", StateMovement.create("count", 2, override)
    ).to_wire(COUNTING)

    assert [(m.state_id, m.input) for m in body.next_states] == [
        ("DoneState", None),
        ("count", 1),
        ("DoneState", None),
        ("count", 2),
    ]
    assert body.next_states[0].options == DONE_OPTIONS
    assert body.next_states[3].options.execute_api_timeout_ms == 1_000


@pytest.mark.parametrize(
    ("decision", "close_type", "output"),
    [
        (StateDecision.graceful_complete_process(), CloseType.GRACEFUL_COMPLETE_PROCESS, None),
        (StateDecision.graceful_complete_process("done"), CloseType.GRACEFUL_COMPLETE_PROCESS, "done"),
        (StateDecision.force_complete_process([1]), CloseType.FORCE_COMPLETE_PROCESS, [1]),
        (StateDecision.force_fail_process({"why": "so"}), CloseType.FORCE_FAIL_PROCESS, {"why": "so"}),
        (StateDecision.force_complete_process(0), CloseType.FORCE_COMPLETE_PROCESS, 0),
        (StateDecision.dead_end(), CloseType.DEAD_END, None),
    ],
    ids=["graceful", "graceful with output", "force complete", "force fail", "falsy output", "dead end"],
)
def test_a_thread_of_states_may_end(decision: StateDecision, close_type: CloseType, output: Any) -> None:
    assert decision.to_wire(COUNTING) == StateDecisionBody(
        thread_close_decision=ThreadCloseDecision(close_type=close_type, close_output=output)
    )


def test_failure_says_why() -> None:
    body = StateDecision.force_fail_process(3, "no score").to_wire(COUNTING)

    assert body.thread_close_decision == ThreadCloseDecision(
        close_type=CloseType.FORCE_FAIL_PROCESS, close_output=3, message="no score"
    )


@dataclass
class Receipt:
    """A value with a field that JSON does not have."""

    id: UUID


@pytest.mark.parametrize(
    ("output", "written"),
    [
        (Receipt(UUID(int=7)), {"id": "00000000-0000-0000-0000-000000000007"}),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (StateStatus.ABORTED, "ABORTED"),
        (("a", 1), ["a", 1]),
        ({"a": [1, None]}, {"a": [1, None]}),
    ],
    ids=["dataclass", "UUID", "enum", "tuple", "JSON"],
)
def test_an_output_is_written_as_its_own_class_says(output: Any, written: Any) -> None:
    body = StateDecision.graceful_complete_process(output).to_wire(COUNTING)

    assert body.thread_close_decision is not None
    assert body.thread_close_decision.close_output == written


def test_an_output_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(EncodeError, match="output of the decision"):
        StateDecision.graceful_complete_process(object()).to_wire(COUNTING)


def test_a_close_together_with_next_states_is_refused() -> None:
    decision = StateDecision(movements=(StateMovement(DoneState),), close_type=CloseType.DEAD_END)

    with pytest.raises(InvalidArgumentError, match="one or the other"):
        decision.to_wire(COUNTING)


@pytest.mark.parametrize("graceful", [False, True])
def test_a_conditional_close_names_its_queues_and_what_else(graceful: bool) -> None:
    decision = StateDecision.force_complete_if_internal_queue_empty_or_else(
        [Counting.more, "others"], "all done", or_else_state=CountState, state_input=7, graceful=graceful
    )

    assert decision.to_wire(COUNTING).conditional_close == ConditionalClose(
        queue_names=("more", "others"),
        close_type=CloseType.GRACEFUL_COMPLETE_PROCESS if graceful else CloseType.FORCE_COMPLETE_PROCESS,
        close_output="all done",
        next_states=(MovementBody(state_id="count", input=7, options=COUNT_OPTIONS),),
    )


def test_a_conditional_close_takes_one_queue_and_a_whole_movement() -> None:
    movement = StateMovement.create(CountState, 7, wait_for_key="k")

    body = StateDecision.force_complete_if_internal_queue_empty_or_else("more", or_else_state=movement).to_wire(
        COUNTING
    )

    assert body.conditional_close is not None
    assert body.conditional_close.queue_names == ("more",)
    assert body.conditional_close.next_states[0].wait_for_key == "k"


def test_a_conditional_close_of_unknown_or_no_queues_is_refused() -> None:
    decision = StateDecision.force_complete_if_internal_queue_empty_or_else("mor", or_else_state=DoneState)

    with pytest.raises(InvalidArgumentError, match="declares no internal queue 'mor'; did you mean 'more'"):
        decision.to_wire(COUNTING)
    with pytest.raises(InvalidArgumentError, match="no queue is given"):
        StateDecision.force_complete_if_internal_queue_empty_or_else([], or_else_state=DoneState)


def test_an_unknown_next_state_is_named() -> None:
    class Stranger(DoneState):
        pass

    with pytest.raises(InvalidArgumentError, match="Counting declares no state 'Stranger'"):
        StateDecision.single_next_state(Stranger).to_wire(COUNTING)
    with pytest.raises(InvalidArgumentError, match="Counting declares no state 'Dnoe'"):
        StateDecision.single_next_state("Dnoe").to_wire(COUNTING)


def test_an_input_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(EncodeError, match="input of state 'count'"):
        StateDecision.single_next_state("count", "three").to_wire(COUNTING)
    with pytest.raises(EncodeError, match="input of state 'count'"):
        StateDecision.single_next_state("count").to_wire(COUNTING)
    with pytest.raises(EncodeError, match="input of state 'DoneState'"):
        StateDecision.single_next_state("DoneState", 1).to_wire(COUNTING)


@pytest.mark.parametrize("nothing", [None, StateDecision()], ids=["None", "empty decision"])
def test_a_decision_must_not_be_empty(nothing: object) -> None:
    with pytest.raises(InvalidArgumentError, match="decision must not be empty"):
        decision_to_wire(nothing, COUNTING)


def test_something_else_is_no_decision() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^execute returned a MovementBody: return StateDecision"):
        decision_to_wire(MovementBody(state_id="count"), COUNTING)
    with pytest.raises(InvalidArgumentError, match="no next state is given"):
        StateDecision.multi_next_states()
