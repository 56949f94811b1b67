"""`Client`: processes by their classes, from synchronous code."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, overload

from xdb_sdk._decision import StateDecision
from xdb_sdk._options import ProcessStartOptions, StateReference
from xdb_sdk._process import ObjectProcess
from xdb_sdk._registry import Registry
from xdb_sdk._rpc import RpcMethod
from xdb_sdk._schema import DataAttribute, InternalQueue
from xdb_sdk.client._clock import ClientClock
from xdb_sdk.client._operations import ProcessRef, QueueMessage
from xdb_sdk.client._options import ClientOptions
from xdb_sdk.client._results import (
    CompleteStateResult,
    PublishOrStartResult,
    RpcOrStartResult,
    StartResult,
    StateCompletion,
)
from xdb_sdk.client._sync_calls import SyncCalls
from xdb_sdk.client._transport import Transport
from xdb_sdk.client._typed import TypedOperations

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ValueT = TypeVar("ValueT")


class Client(SyncCalls):
    """Starts and calls processes by their classes. May be used by several threads at once.

    Names and types are checked before anything is sent. A call whose answer is lost is repeated (ClientRetryPolicy);
    what it changes is changed once, since the server knows it again by its request id.

    Args:
        registry: The process classes that are used.
        options: Where server and worker are; by default on this machine.
        transport: Carries the requests instead of HTTP.
        clock: The time; by default the machine's.

    Example:
        with Client(registry) as client:
            client.start_object_process("signup-7", UserSignupProcess, "7")
            client.invoke_rpc("signup-7", UserSignupProcess.verify, "email")

    Source: semantics 6, 11.
    """

    def __init__(
        self,
        registry: Registry,
        options: ClientOptions | None = None,
        *,
        transport: Transport | None = None,
        clock: ClientClock | None = None,
    ) -> None:
        super().__init__(options or ClientOptions.local_default(), transport, clock, registry.object_encoder)
        self._typed = TypedOperations(registry, self._operations)

    def start_object_process(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        object_id: Any,
        input: Any = None,
        options: ProcessStartOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Start an execution that is mapped to a row of the class's table.

        Args:
            process_id: Under which id, at most 255 bytes.
            process_class: The class; it must be registered.
            object_id: Primary key of the row. The row is made by its first write if it does not exist.
            input: Input of the starting state.
            options: Reuse of the id, timeout, initial attributes, and more.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Returns:
            The process execution id; with `ignore_already_started` perhaps that of an execution which ran before.

        Raises:
            ProcessAlreadyStartedError: The id reuse policy forbids it.
            NotRegisteredError: The class is not registered; nothing was sent.
            EncodeError: The input, the object id or an attribute is not of its declared type; nothing was sent.
            UnavailableError: No answer came, also when the call was repeated. Make it again with the error's
                `request_id`: there is still one execution.

        Source: semantics 1.
        """
        start = self._typed.start_of_object(process_id, process_class, object_id, input, options)
        return self._run(self._operations.start_id(start, request_id))

    def start_process(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        input: Any = None,
        options: ProcessStartOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Start an execution of a class that maps no table. Otherwise as `start_object_process`."""
        start = self._typed.start_without_object(process_id, process_class, input, options)
        return self._run(self._operations.start_id(start, request_id))

    def start(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        input: Any = None,
        options: ProcessStartOptions | None = None,
        *,
        object_id: Any = None,
        request_id: str | None = None,
    ) -> StartResult:
        """Start an execution of a class with or without a table, and tell what came of it.

        Otherwise as `start_object_process` and `start_process`, which give the execution id alone; raises what they do.

        Args:
            process_id: Under which id, at most 255 bytes.
            process_class: The class; it must be registered.
            input: Input of the starting state.
            options: Reuse of the id, timeout, initial attributes, and more.
            object_id: Primary key of the row, for a class that maps a table.
            request_id: By which the server knows a repetition of this call; by default a new one.
        """
        start = self._typed.start_request(process_id, process_class, object_id, input, options)
        return self._run(self._operations.start(start, request_id))

    @overload
    def invoke_rpc(
        self,
        process_id: str,
        rpc: RpcMethod[None, OutputT],
        input: None = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> OutputT: ...
    @overload
    def invoke_rpc(
        self,
        process_id: str,
        rpc: RpcMethod[InputT, OutputT],
        input: InputT,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> OutputT: ...
    def invoke_rpc(
        self,
        process_id: str,
        rpc: RpcMethod[Any, Any],
        input: Any = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> Any:
        """Call an RPC method and return its result. What it changes is visible when the call returns.

        After a lost answer the method may run again, but its changes are applied once. One that is declared `exclusive`
        does not run beside itself then.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            rpc: The method, such as `UserSignupProcess.verify`.
            input: Its input.
            process_execution_id: Call exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            RpcExecutionError: The method raised or was too slow, or its worker was not reached; nothing was changed.
            RpcLockNotAcquiredError: Others kept changing what it locks; nothing was changed, repeat at will.
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed and the method would have changed it.
            EncodeError: The input is not of its declared type; nothing was sent.
            UnavailableError: No answer came, also when the call was repeated. Make it again with the error's
                `request_id`: its changes are still applied once.

        Source: semantics 5.
        """
        return self._run(self._typed.rpc(ProcessRef(process_id, process_execution_id), rpc, input, request_id))

    @overload
    def publish_to_internal_queue(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: InternalQueue[ValueT],
        value: ValueT,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> bool: ...
    @overload
    def publish_to_internal_queue(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: str | InternalQueue[None],
        value: Any = None,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> bool: ...
    def publish_to_internal_queue(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: str | InternalQueue[Any],
        value: Any = None,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> bool:
        """Append a message to an internal queue.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            process_class: Its class, which declares the queue.
            queue: Name or typed key of the queue.
            value: The message, of the queue's declared type.
            dedup_id: Messages with one dedup id are delivered once per queue, for the life of the execution.
            process_execution_id: Publish to exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Returns:
            Whether the message was new.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
            InvalidArgumentError: The class declares no such queue, or the value has another type; nothing was sent.

        Source: semantics 3.2, 6.3.
        """
        message = QueueMessage(queue=queue, value=value, dedup_id=dedup_id)
        published = self.publish_messages(
            process_id, process_class, [message], process_execution_id=process_execution_id, request_id=request_id
        )
        return published > 0

    def publish_messages(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        messages: Iterable[QueueMessage],
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> int:
        """Append messages to one or more queues in one transaction, keeping their order; return how many were new.

        Raises what `publish_to_internal_queue` does.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._typed.publish(ref, process_class, messages, request_id))

    @overload
    def publish_or_start(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: InternalQueue[ValueT],
        value: ValueT,
        dedup_id: str | None = None,
        *,
        object_id: Any = None,
        start_input: Any = None,
        start_options: ProcessStartOptions | None = None,
        request_id: str | None = None,
    ) -> PublishOrStartResult: ...
    @overload
    def publish_or_start(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: str | InternalQueue[None],
        value: Any = None,
        dedup_id: str | None = None,
        *,
        object_id: Any = None,
        start_input: Any = None,
        start_options: ProcessStartOptions | None = None,
        request_id: str | None = None,
    ) -> PublishOrStartResult: ...
    def publish_or_start(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: str | InternalQueue[Any],
        value: Any = None,
        dedup_id: str | None = None,
        *,
        object_id: Any = None,
        start_input: Any = None,
        start_options: ProcessStartOptions | None = None,
        request_id: str | None = None,
    ) -> PublishOrStartResult:
        """Append a message to the running execution, which is started if there is none, in one transaction.

        Args:
            process_id: Which process.
            process_class: Its class, which declares the queue; it is started if no execution runs.
            queue: Name or typed key of the queue.
            value: The message, of the queue's declared type.
            dedup_id: Messages with one dedup id are delivered once per queue, for the life of the execution.
            object_id: Primary key of the row, for a class that maps a table. It and the two that follow count only if
                an execution is started.
            start_input: Input of the starting state.
            start_options: As for a start. The policy TERMINATE_IF_RUNNING is refused, and a running execution ignored.
            request_id: By which the server knows a repetition of this call; by default a new one. Start and message
                are remembered each for itself: either is done unless it was before.

        Raises:
            ProcessAlreadyStartedError: None runs, and the id reuse policy forbids another.
            ProcessNotRunningError: This request, or a start with the same id, has started an execution before that is
                closed now, and the message was not sent then. Nothing was done.
            InvalidArgumentError: The class declares no such queue, or a value has another type; nothing was sent.

        Source: idempotency-and-shards D.4.
        """
        start = self._typed.start_request(process_id, process_class, object_id, start_input, start_options)
        message = QueueMessage(queue=queue, value=value, dedup_id=dedup_id)
        return self._run(self._typed.publish_or_start(start, process_class, message, request_id))

    @overload
    def rpc_or_start(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        rpc: RpcMethod[None, OutputT],
        input: None = None,
        *,
        object_id: Any = None,
        start_input: Any = None,
        start_options: ProcessStartOptions | None = None,
        request_id: str | None = None,
    ) -> RpcOrStartResult[OutputT]: ...
    @overload
    def rpc_or_start(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        rpc: RpcMethod[InputT, OutputT],
        input: InputT,
        *,
        object_id: Any = None,
        start_input: Any = None,
        start_options: ProcessStartOptions | None = None,
        request_id: str | None = None,
    ) -> RpcOrStartResult[OutputT]: ...
    def rpc_or_start(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        rpc: RpcMethod[Any, Any],
        input: Any = None,
        *,
        object_id: Any = None,
        start_input: Any = None,
        start_options: ProcessStartOptions | None = None,
        request_id: str | None = None,
    ) -> RpcOrStartResult[Any]:
        """Call an RPC method of the running execution, which is started first if there is none.

        The start is committed before the method is called, and stays if the method fails. Raises what `invoke_rpc`
        does, and more.

        Args:
            process_id: Which process.
            process_class: Its class, which has the RPC; it is started if no execution runs.
            rpc: The method, such as `UserSignupProcess.verify`.
            input: Its input.
            object_id: Primary key of the row, for a class that maps a table. It and the two that follow count only if
                an execution is started.
            start_input: Input of the starting state.
            start_options: As for a start. The policy TERMINATE_IF_RUNNING is refused, and a running execution ignored.
            request_id: By which the server knows a repetition of this call; by default a new one. Start and RPC are
                remembered each for itself: either is done unless it was before.

        Raises:
            ProcessAlreadyStartedError: None runs, and the id reuse policy forbids another.
            RpcExecutionError: The method raised or was too slow, or its worker was not reached; it has changed nothing.

        Source: idempotency-and-shards D.4.
        """
        start = self._typed.start_request(process_id, process_class, object_id, start_input, start_options)
        return self._run(self._typed.rpc_or_start(start, process_class, rpc, input, request_id))

    def wait_for_state_completion(
        self,
        process_id: str,
        state: StateReference,
        number: int = 1,
        key: str | None = None,
        *,
        type_hint: Any = None,
        timeout: timedelta | None = None,
        process_execution_id: str | None = None,
    ) -> StateCompletion:
        """Wait until a state execution is done, or cannot be any more.

        Args:
            process_id: Which process. The execution that is current now is waited for, also if another replaces it.
            state: Which state, by class or id.
            number: Which of its executions, from 1.
            key: Instead of the number: the `wait_for_key` of its movement.
            type_hint: What to decode its output to; None for JSON as it is.
            timeout: How long to wait; None for ever.
            process_execution_id: Wait in exactly this execution.

        Raises:
            ProcessStillRunningError: It is not done at the deadline.
            ProcessNotFoundError: There is no such process.

        Source: semantics 6.8.
        """
        ref = ProcessRef(process_id, process_execution_id)
        state_id = self._typed.state_id_of(state)
        return self._run(self._operations.state_completion(ref, state_id, number, key, type_hint, timeout))

    def get_data_attributes(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        keys: Iterable[str | DataAttribute[Any]] | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> dict[str, Any]:
        """Read attributes, also of a closed execution.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            process_class: Its class, which declares the attributes.
            keys: Names or typed keys; None for all that are declared. A prefix stands for every name under it.
            process_execution_id: Read exactly this execution.

        Returns:
            Values by attribute name. A column that is unset is None; a process-local attribute that was never set is
            left out.

        Raises:
            ProcessNotFoundError: There is no such process.
            InvalidArgumentError: The class declares no such attribute; nothing was sent.

        Source: semantics 6.5.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._typed.get_attributes(ref, process_class, keys))

    def set_data_attributes(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        values: Mapping[Any, Any],
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Write attributes of a running execution, in one transaction.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            process_class: Its class, which declares the attributes.
            values: Values by name or typed key, each of the declared type.
            process_execution_id: Write to exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
            InvalidArgumentError: The class declares no such attribute, or a value has another type; nothing was sent.

        Source: semantics 6.5.
        """
        ref = ProcessRef(process_id, process_execution_id)
        self._run(self._typed.set_attributes(ref, process_class, values, request_id))

    def skip_timer(
        self,
        process_id: str,
        state: StateReference,
        number: int = 1,
        *,
        command_id: str | None = None,
        index: int | None = None,
        remember: bool = False,
        reason: str | None = None,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Complete a timer that a state waits for, now. Skipping one that is done changes nothing.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            state: Which state waits, by class or id.
            number: Which of its executions, from 1.
            command_id: Which timer, by the id of its command.
            index: Which timer, from 0, by its place among the state's timers.
            remember: If the state does not wait yet, skip the timer as soon as it does.
            reason: Why, for its history; at most 1000 characters.
            process_execution_id: Skip in exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ClientSideError: The state does not wait for such a timer (TIMER_NOT_FOUND).
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.

        Source: semantics 3.6.
        """
        ref = ProcessRef(process_id, process_execution_id)
        state_id = self._typed.state_id_of(state)
        self._run(
            self._operations.skip_timer(
                ref, state_id, number, command_id, index, remember=remember, reason=reason, request_id=request_id
            )
        )

    def complete_state(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        state: StateReference,
        decision: StateDecision,
        number: int = 1,
        *,
        reason: str | None = None,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> CompleteStateResult:
        """End an open state as if its `execute` had returned a decision, whatever it does or waits for.

        An answer of a worker that comes later is dropped, and messages that the state has received are used up.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            process_class: Its class, which declares the states.
            state: Which state, by class or id.
            decision: What its `execute` is taken to have returned.
            number: Which of its executions, from 1.
            reason: Why, for its history; at most 1000 characters.
            process_execution_id: Complete a state of exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ClientSideError: There is no such state execution (STATE_NOT_FOUND), or it has ended (STATE_NOT_RUNNING).
            InvalidArgumentError: The class has no such state, or the decision does not fit it; nothing was sent.
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        ref = ProcessRef(process_id, process_execution_id)
        plan = self._typed.complete_state(ref, process_class, state, number, decision, reason, request_id)
        return self._run(plan)

    def _state_id_of(self, state: StateReference) -> str:
        return self._typed.state_id_of(state)
