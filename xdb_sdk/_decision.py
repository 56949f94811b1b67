"""Decisions: what is next, once execute or an RPC has done its work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from xdb_sdk._definition import ProcessDefinition
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._options import AsyncStateOptions, StateReference
from xdb_sdk._schema import InternalQueue, key_name
from xdb_sdk._state import AsyncState
from xdb_sdk.protocol import CloseType, ConditionalClose, MovementBody, StateDecisionBody, ThreadCloseDecision

InputT = TypeVar("InputT")

_WHAT_TO_RETURN = (
    "return StateDecision.single_next_state(...), .graceful_complete_process(...), .dead_end() or another StateDecision"
)
NO_DECISION = f"a decision must not be empty: {_WHAT_TO_RETURN}"


@dataclass(frozen=True, slots=True)
class StateMovement:
    """One next state, for `StateDecision.multi_next_states`. Make one with `create`."""

    state: StateReference
    input: Any = None
    options_override: AsyncStateOptions | None = None
    wait_for_key: str | None = None

    @overload
    @staticmethod
    def create(
        state: type[AsyncState[None]],
        input: None = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateMovement": ...
    @overload
    @staticmethod
    def create(
        state: type[AsyncState[InputT]],
        input: InputT,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateMovement": ...
    @overload
    @staticmethod
    def create(
        state: str,
        input: Any = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateMovement": ...
    @staticmethod
    def create(
        state: StateReference,
        input: Any = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateMovement":
        """Name a next state.

        Args:
            state: Its class or its id.
            input: What it is given; of the state's input type.
            options_override: Wins, field by field, over the options of its class.
            wait_for_key: A name under which clients can wait for this very state execution.
        """
        return StateMovement(state, input, options_override, wait_for_key)

    def to_wire(self, definition: ProcessDefinition) -> MovementBody:
        """Convert to the wire form.

        Raises:
            InvalidArgumentError: Unknown state, input of a wrong type, or options that do not hold together.
        """
        return definition.movement(self.state, self.input, self.options_override, self.wait_for_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDecision:
    """What execute returns: the next states, or how its thread of states ends. Make one with the methods below.

    Attributes:
        movements: The next states, or those of a conditional close whose queues are not empty.
        close_type: How to close; None goes to `movements`.
        output: Output of the close; None is no output. It has no declared type: JSON stays as it is, and a model, a
            dataclass or another value is written as its class says; inside a list or dict only JSON and models are.
        if_empty_queues: Close only if these queues are empty; not empty makes the close conditional.
        message: Why the process fails, for people.

    Source: semantics 4.
    """

    movements: tuple[StateMovement, ...] = ()
    close_type: CloseType | None = None
    output: Any = None
    if_empty_queues: tuple[str, ...] = ()
    message: str | None = None

    @overload
    @staticmethod
    def single_next_state(
        state: type[AsyncState[None]],
        input: None = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateDecision": ...
    @overload
    @staticmethod
    def single_next_state(
        state: type[AsyncState[InputT]],
        input: InputT,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateDecision": ...
    @overload
    @staticmethod
    def single_next_state(
        state: str,
        input: Any = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateDecision": ...
    @staticmethod
    def single_next_state(
        state: StateReference,
        input: Any = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> "StateDecision":
        """Go to one state; the arguments are those of `StateMovement.create`."""
        return StateDecision(movements=(StateMovement(state, input, options_override, wait_for_key),))

    @staticmethod
    def multi_next_states(*states: type[AsyncState[None]] | str | StateMovement) -> "StateDecision":
        """Go to several states, which run in parallel; the same one may occur more than once."""
        if not states:
            raise InvalidArgumentError(
                "no next state is given: name at least one, or end the thread with StateDecision.dead_end()"
            )
        movements = (s if isinstance(s, StateMovement) else StateMovement(s) for s in states)
        return StateDecision(movements=tuple(movements))

    @staticmethod
    def graceful_complete_process(output: Any = None) -> "StateDecision":
        """Complete the process once no other state is open; until then they go on."""
        return StateDecision(close_type=CloseType.GRACEFUL_COMPLETE_PROCESS, output=output)

    @staticmethod
    def force_complete_process(output: Any = None) -> "StateDecision":
        """Complete the process now; other open states are aborted."""
        return StateDecision(close_type=CloseType.FORCE_COMPLETE_PROCESS, output=output)

    @staticmethod
    def force_fail_process(output: Any = None, message: str | None = None) -> "StateDecision":
        """Fail the process now; other open states are aborted.

        Args:
            output: Output of the close.
            message: Why, for people: the `error_message` of the `ProcessFailed` that waiters get.
        """
        return StateDecision(close_type=CloseType.FORCE_FAIL_PROCESS, output=output, message=message)

    @staticmethod
    def dead_end() -> "StateDecision":
        """End this thread of states only. Dead ends alone never complete a process."""
        return StateDecision(close_type=CloseType.DEAD_END)

    @staticmethod
    def force_complete_if_internal_queue_empty_or_else(
        queue: "str | InternalQueue[Any] | Sequence[str | InternalQueue[Any]]",
        output: Any = None,
        *,
        or_else_state: StateReference | StateMovement,
        state_input: Any = None,
        graceful: bool = False,
    ) -> "StateDecision":
        """Complete the process if no message waits in the queues, else go on; no message is ever lost between.

        The test and the close are one transaction, made after this call's own publishes. Messages that another state
        waits with, but has not been given yet, count as waiting.

        Args:
            queue: A queue, or several, all of which must be empty.
            output: Output of the close.
            or_else_state: The next state otherwise.
            state_input: Its input.
            graceful: Let other open states go on, as `graceful_complete_process` does.

        Source: semantics 4.4.
        """
        queues = (queue,) if isinstance(queue, str | InternalQueue) else tuple(queue)
        if not queues:
            raise InvalidArgumentError("no queue is given: name the queues that must be empty")
        if isinstance(or_else_state, StateMovement):
            movement = or_else_state
        else:
            movement = StateMovement(or_else_state, state_input)
        return StateDecision(
            movements=(movement,),
            close_type=CloseType.GRACEFUL_COMPLETE_PROCESS if graceful else CloseType.FORCE_COMPLETE_PROCESS,
            output=output,
            if_empty_queues=tuple(key_name(q) for q in queues),
        )

    def to_wire(self, definition: ProcessDefinition) -> StateDecisionBody:
        """Convert to the wire form.

        Raises:
            InvalidArgumentError: An unknown state or queue, a value of a wrong type, or an empty decision.
        """
        movements = tuple(movement.to_wire(definition) for movement in self.movements)
        output = definition.encoder.encode_undeclared(self.output, "output of the decision")
        if self.if_empty_queues:
            for queue_name in self.if_empty_queues:
                definition.queue(queue_name)
            return StateDecisionBody(
                conditional_close=ConditionalClose(
                    queue_names=self.if_empty_queues,
                    close_type=_complete_type(self.close_type),
                    close_output=output,
                    next_states=movements,
                )
            )
        if self.close_type is not None and movements:
            raise InvalidArgumentError(
                "a decision that closes has next states as well: make one or the other, or "
                "StateDecision.force_complete_if_internal_queue_empty_or_else(...)"
            )
        if self.close_type is not None:
            return StateDecisionBody(
                thread_close_decision=ThreadCloseDecision(
                    close_type=self.close_type, close_output=output, message=self.message
                )
            )
        if not movements:
            raise InvalidArgumentError(NO_DECISION)
        return StateDecisionBody(next_states=movements)


def _complete_type(
    close_type: CloseType | None,
) -> Literal[CloseType.FORCE_COMPLETE_PROCESS, CloseType.GRACEFUL_COMPLETE_PROCESS]:
    if close_type is CloseType.GRACEFUL_COMPLETE_PROCESS:
        return CloseType.GRACEFUL_COMPLETE_PROCESS
    return CloseType.FORCE_COMPLETE_PROCESS


def decision_to_wire(decision: object, definition: ProcessDefinition) -> StateDecisionBody:
    """Convert whatever execute returned.

    Raises:
        InvalidArgumentError: It is None or no StateDecision, or `StateDecision.to_wire` refuses it.
    """
    if decision is None:
        raise InvalidArgumentError(NO_DECISION)
    if not isinstance(decision, StateDecision):
        raise InvalidArgumentError(f"execute returned a {type(decision).__name__}: {_WHAT_TO_RETURN}")
    return decision.to_wire(definition)
