"""Publishing messages, triggering states and closing the process inside one call."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload
from uuid import UUID, uuid5

from xdb_sdk._decision import StateDecision
from xdb_sdk._definition import ProcessDefinition
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._injected import Injected
from xdb_sdk._names import check_optional_name
from xdb_sdk._options import AsyncStateOptions, StateReference
from xdb_sdk._schema import InternalQueue, key_name
from xdb_sdk._state import AsyncState
from xdb_sdk.protocol import Message, MovementBody, StateDecisionBody

T = TypeVar("T")
InputT = TypeVar("InputT")

_SEED_NAMESPACE = UUID("f9c2a4ee-5c0e-5c5b-8d5a-6b1c0a6d7e21")
"""Namespace of the ids made from dedup seeds; must never change, or repeated messages would be delivered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationEffects:
    """What a call has published and decided, for its answer."""

    publish: tuple[Message, ...] = ()
    state_decision: StateDecisionBody


class Communication(Injected):
    """The queues of a process execution, as one call sees them; in an RPC also the way to start states and to close.

    Everything takes effect when the call's answer is committed, or not at all if the call fails.

    Args:
        definition: The process.
        where: The method, for messages.
        queue_sizes: Messages stored and not yet claimed, by queue, for an RPC; None for a state.
        read_only: Refuse everything that changes something.

    Source: semantics 3.2, 5.2.
    """

    def __init__(
        self,
        definition: ProcessDefinition,
        *,
        where: str,
        queue_sizes: Mapping[str, int] | None = None,
        read_only: bool = False,
    ) -> None:
        self._definition = definition
        self._where = where
        self._queue_sizes = queue_sizes
        self._read_only = read_only
        self._messages: list[Message] = []
        self._movements: list[MovementBody] = []
        self._decision: StateDecisionBody | None = None

    @overload
    def publish_to_internal_queue(
        self, queue: InternalQueue[None], value: None = None, dedup_id: str | None = None, dedup_seed: str | None = None
    ) -> None: ...
    @overload
    def publish_to_internal_queue(
        self, queue: InternalQueue[T], value: T, dedup_id: str | None = None, dedup_seed: str | None = None
    ) -> None: ...
    @overload
    def publish_to_internal_queue(
        self, queue: str, value: Any = None, dedup_id: str | None = None, dedup_seed: str | None = None
    ) -> None: ...
    def publish_to_internal_queue(
        self,
        queue: InternalQueue[Any] | str,
        value: Any = None,
        dedup_id: str | None = None,
        dedup_seed: str | None = None,
    ) -> None:
        """Append a message to a queue of this process execution.

        Args:
            queue: A declared queue.
            value: The message, of the queue's declared type.
            dedup_id: Messages with one id are delivered once per queue, for the life of the execution.
            dedup_seed: Instead of an id, any text from which one is made: equal seeds give equal ids.

        Raises:
            InvalidArgumentError: The process declares no such queue, the id is empty or too long, or the call is
                read-only.
            EncodeError: The value is not of the declared type.
        """
        name = key_name(queue)
        declared = self._definition.queue(name)
        self._refuse_if_read_only(f"publish to queue {name!r}")
        payload = self._definition.encoder.encode(value, declared.type_hint, f"message of queue {name!r}")
        self._messages.append(Message(queue_name=name, message_id=message_id_of(dedup_id, dedup_seed), payload=payload))

    def get_internal_queue_size(self, queue: InternalQueue[Any] | str) -> int:
        """Count the messages of a queue that wait to be taken, those that this call has published included.

        Raises:
            InvalidArgumentError: The process declares no such queue, or the call is not an RPC.
        """
        name = key_name(queue)
        self._definition.queue(name)
        if self._queue_sizes is None:
            raise InvalidArgumentError(f"{self._where} is no RPC: only RPCs are told the sizes of queues")
        published = Counter(message.queue_name for message in self._messages)
        return self._queue_sizes.get(name, 0) + published[name]

    @overload
    def trigger_state_execution(
        self,
        state: type[AsyncState[None]],
        input: None = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> None: ...
    @overload
    def trigger_state_execution(
        self,
        state: type[AsyncState[InputT]],
        input: InputT,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> None: ...
    @overload
    def trigger_state_execution(
        self,
        state: str,
        input: Any = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> None: ...
    def trigger_state_execution(
        self,
        state: StateReference,
        input: Any = None,
        options_override: AsyncStateOptions | None = None,
        wait_for_key: str | None = None,
    ) -> None:
        """Start a state beside those that are open; RPC only. The arguments are those of `StateMovement.create`.

        Raises:
            InvalidArgumentError: Unknown state, input of a wrong type, not an RPC, read-only, or a closing decision
                has been made.
        """
        self._require_rpc("start a state", "return it in the StateDecision")
        self._refuse_if_read_only("start a state")
        if self._decision is not None:
            raise InvalidArgumentError(f"{self._where} has made a decision: it cannot start another state as well")
        self._movements.append(self._definition.movement(state, input, options_override, wait_for_key))

    def decide(self, decision: StateDecision) -> None:
        """Make a decision from an RPC, to close the process for instance; the rules are those of a state's decision.

        Example:
            `communication.decide(StateDecision.graceful_complete_process("done"))`

        Raises:
            InvalidArgumentError: The decision is not right, there is another, not an RPC, or read-only.

        Source: semantics 5.2.
        """
        self._require_rpc("decide", "return the StateDecision")
        self._refuse_if_read_only("decide what is next")
        if self._decision is not None or self._movements:
            raise InvalidArgumentError(f"{self._where} has decided what is next before: make one decision in a call")
        self._decision = decision.to_wire(self._definition)

    def _require_rpc(self, action: str, instead: str) -> None:
        if self._queue_sizes is None:
            raise InvalidArgumentError(f"{self._where} is no RPC and cannot {action} this way: {instead} from execute")

    def _refuse_if_read_only(self, action: str) -> None:
        if self._read_only:
            raise InvalidArgumentError(f"{self._where} is declared read_only and cannot {action}")

    def effects(self) -> CommunicationEffects:
        """Collect the messages and the decision, for the worker."""
        decision = self._decision or StateDecisionBody(next_states=tuple(self._movements))
        return CommunicationEffects(publish=tuple(self._messages), state_decision=decision)


def message_id_of(dedup_id: str | None, dedup_seed: str | None) -> str | None:
    """Give the id of a message: the one given, or a name-based UUID of the seed.

    Raises:
        InvalidArgumentError: Both are given, or the id cannot be stored.
    """
    if dedup_seed is not None:
        if dedup_id is not None:
            raise InvalidArgumentError("dedup_id and dedup_seed are given: give one of them")
        return str(uuid5(_SEED_NAMESPACE, dedup_seed))
    return check_optional_name(dedup_id, "dedup id")
