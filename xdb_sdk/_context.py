"""Who is called, for which attempt, and until when."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from xdb_sdk._definition import ProcessDefinition
from xdb_sdk._errors import DecodeError, InvalidArgumentError
from xdb_sdk._injected import Injected
from xdb_sdk._names import check_name
from xdb_sdk.protocol import CallContext, DatabaseErrorInfo, RecoverFrom


@dataclass(frozen=True, kw_only=True)
class ProcessContext(Injected):
    """What a call is told about itself. Instants are aware, in UTC. A state is given a StateContext.

    Attributes:
        namespace: Where the process id is unique.
        process_id: The caller's id of the process.
        process_execution_id: This run of it.
        process_type: The name under which the class is registered.
        object_id: Primary key of the mapped row, of its declared type; None without a table.
        process_started_at: When the execution started.
        state_execution_id: `<state id>-<number>`; None in an RPC.
        attempt: From 1, for this method of this state execution; None in an RPC.
        first_attempt_at: When attempt 1 began; None in an RPC.
        recover_from: The exhausted state execution that this one stands in for, if it does.
        idempotency_key: The same for all attempts of this method of this state execution. In an RPC, the same for all
            repetitions of the call; None if it has no request id, as one that is read-only.
        last_database_error: What the user's database said to the read or write of the attempt before, if it failed so.

    Source: semantics 2.4.
    """

    namespace: str
    process_id: str
    process_execution_id: str
    process_type: str
    object_id: Any
    process_started_at: datetime
    state_execution_id: str | None
    attempt: int | None
    first_attempt_at: datetime | None
    recover_from: RecoverFrom | None
    idempotency_key: str | None
    last_database_error: DatabaseErrorInfo | None
    _remaining: Callable[[], timedelta]
    _is_stopped: Callable[[], bool]

    @property
    def deadline(self) -> timedelta:
        """Time left until the server gives the call up; negative after that. Ask again for the time left then."""
        return self._remaining()

    def request_id_for(self, label: str) -> str:
        """Make a request id for a call to another process, the same whenever this method is called again.

        So what the call changes is changed once, however many attempts this method takes.

        Args:
            label: Names the call among those that this method makes, such as "charge". Two calls need two labels.

        Returns:
            64 hexadecimal digits, a hash of `idempotency_key` and the label.

        Raises:
            InvalidArgumentError: The label is empty or no string, or this is an RPC without a request id, which nobody
                knows again.

        Example:
            await client.start_process(f"invoice-{ctx.process_id}", Invoice, request_id=ctx.request_id_for("invoice"))

        Source: idempotency-and-shards D.2.
        """
        check_name(label, "label of a request id")
        if self.idempotency_key is None:
            raise InvalidArgumentError(
                f"request id for {label!r}: this RPC was called without a request id, so that a repetition would not "
                "be known; call it with one, and not read_only"
            )
        return hashlib.sha256(f"{self.idempotency_key}\0{label}".encode()).hexdigest()

    def is_stopped(self) -> bool:
        """Say whether the result is not wanted any more: the process was closed, or the worker stops. Best effort."""
        return self._is_stopped()

    @classmethod
    def from_wire(
        cls,
        call: CallContext,
        definition: ProcessDefinition,
        *,
        remaining: Callable[[], timedelta],
        is_stopped: Callable[[], bool],
    ) -> Self:
        """Decode the wire form.

        Args:
            call: As the server sent it.
            definition: The process.
            remaining: Tells the time left of the call.
            is_stopped: Tells whether the call was given up.

        Raises:
            DecodeError: The object id does not fit the declared type of the primary key, or a state is called without
                something that a StateContext has.
        """
        return cls(
            namespace=call.namespace,
            process_id=call.process_id,
            process_execution_id=call.process_execution_id,
            process_type=call.process_type,
            object_id=_object_id(call, definition),
            process_started_at=_instant(call.process_started_at_ms),
            state_execution_id=call.state_execution_id,
            attempt=call.attempt,
            first_attempt_at=None if call.first_attempt_at_ms is None else _instant(call.first_attempt_at_ms),
            recover_from=call.recover_from,
            idempotency_key=call.idempotency_key,
            last_database_error=call.last_database_error,
            _remaining=remaining,
            _is_stopped=is_stopped,
        )


@dataclass(frozen=True, kw_only=True)
class StateContext(ProcessContext):
    """What a call of a state is told about itself: a ProcessContext in which all that is None in an RPC has a value.

    Annotate `ctx` with it in a state, and with ProcessContext in an RPC or in what both use.

    Attributes:
        state_execution_id: `<state id>-<number>`.
        attempt: From 1, for this method of this state execution.
        first_attempt_at: When attempt 1 began.
        idempotency_key: The same for all attempts of this method of this state execution.

    Source: semantics 2.4.
    """

    state_execution_id: str
    attempt: int
    first_attempt_at: datetime
    idempotency_key: str

    def __post_init__(self) -> None:
        for name in ("state_execution_id", "attempt", "first_attempt_at", "idempotency_key"):
            if getattr(self, name) is None:
                raise DecodeError("context of the call", name, "is missing, though a state is called")


def _object_id(call: CallContext, definition: ProcessDefinition) -> Any:
    if definition.table is None or call.object_id is None:
        return call.object_id
    where = f"object id of {definition.process_type}"
    return definition.encoder.decode_column(call.object_id, definition.table.primary_key_type, where)


def _instant(epoch_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)
