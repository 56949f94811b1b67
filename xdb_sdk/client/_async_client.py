"""`AsyncClient`: processes by their classes, from asynchronous code."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, overload

from xdb_sdk._options import ProcessStartOptions, StateReference
from xdb_sdk._process import ObjectProcess
from xdb_sdk._registry import Registry
from xdb_sdk._rpc import RpcMethod
from xdb_sdk._schema import DataAttribute, InternalQueue
from xdb_sdk.client._async_calls import AsyncCalls
from xdb_sdk.client._operations import ProcessRef, QueueMessage
from xdb_sdk.client._options import ClientOptions
from xdb_sdk.client._results import StateCompletion
from xdb_sdk.client._transport import AsyncTransport
from xdb_sdk.client._typed import TypedOperations

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ValueT = TypeVar("ValueT")


class AsyncClient(AsyncCalls):
    """Starts and calls processes by their classes. Calls made at the same time share a request.

    It belongs to the event loop of its first call. A call may be cancelled; what was sent may still take effect.
    Names and types are checked before anything is sent. Only requests that are safe to repeat are repeated
    (ClientRetryPolicy).

    Args:
        registry: The process classes that are used.
        options: Where server and worker are; by default on this machine.
        transport: Carries the requests instead of HTTP.

    Example:
        async with AsyncClient(registry) as client:
            await client.start_object_process("signup-7", UserSignupProcess, "7")
            await client.invoke_rpc("signup-7", UserSignupProcess.verify, "email")

    Source: semantics 6, 11.
    """

    def __init__(
        self,
        registry: Registry,
        options: ClientOptions | None = None,
        *,
        transport: AsyncTransport | None = None,
    ) -> None:
        super().__init__(options or ClientOptions.local_default(), transport, registry.object_encoder)
        self._typed = TypedOperations(registry, self._operations)

    async def start_object_process(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        object_id: Any,
        input: Any = None,
        options: ProcessStartOptions | None = None,
    ) -> str:
        """Start an execution that is mapped to a row of the class's table.

        Args:
            process_id: Under which id, at most 255 bytes.
            process_class: The class; it must be registered.
            object_id: Primary key of the row. The row is made by its first write if it does not exist.
            input: Input of the starting state.
            options: Reuse of the id, timeout, initial attributes, and more.

        Returns:
            The process execution id; with `ignore_already_started` perhaps that of an execution which ran before.

        Raises:
            ProcessAlreadyStartedError: The id reuse policy forbids it.
            NotRegisteredError: The class is not registered; nothing was sent.
            EncodeError: The input, the object id or an attribute is not of its declared type; nothing was sent.
            UnavailableError: No answer came. A start that may have taken effect is not repeated.

        Source: semantics 1.
        """
        return await self._run(self._typed.start(process_id, process_class, object_id, input, options, has_object=True))

    async def start_process(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        input: Any = None,
        options: ProcessStartOptions | None = None,
    ) -> str:
        """Start an execution of a class that maps no table. Otherwise as `start_object_process`."""
        return await self._run(self._typed.start(process_id, process_class, None, input, options, has_object=False))

    @overload
    async def invoke_rpc(
        self,
        process_id: str,
        rpc: RpcMethod[None, OutputT],
        input: None = None,
        *,
        process_execution_id: str | None = None,
    ) -> OutputT: ...
    @overload
    async def invoke_rpc(
        self,
        process_id: str,
        rpc: RpcMethod[InputT, OutputT],
        input: InputT,
        *,
        process_execution_id: str | None = None,
    ) -> OutputT: ...
    async def invoke_rpc(
        self,
        process_id: str,
        rpc: RpcMethod[Any, Any],
        input: Any = None,
        *,
        process_execution_id: str | None = None,
    ) -> Any:
        """Call an RPC method and return its result. What it changes is visible when the call returns.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            rpc: The method, such as `UserSignupProcess.verify`.
            input: Its input.
            process_execution_id: Call exactly this execution.

        Raises:
            RpcExecutionError: The method raised or was too slow, or its worker was not reached; nothing was changed.
            RpcLockNotAcquiredError: Others kept changing what it locks; nothing was changed, repeat at will.
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed and the method would have changed it.
            EncodeError: The input is not of its declared type; nothing was sent.
            UnavailableError: No answer came. A call that may have taken effect is not repeated.

        Source: semantics 5.
        """
        return await self._run(self._typed.rpc(ProcessRef(process_id, process_execution_id), rpc, input))

    @overload
    async def publish_to_internal_queue(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: InternalQueue[ValueT],
        value: ValueT,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> bool: ...
    @overload
    async def publish_to_internal_queue(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: str | InternalQueue[None],
        value: Any = None,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> bool: ...
    async def publish_to_internal_queue(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        queue: str | InternalQueue[Any],
        value: Any = None,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> bool:
        """Append a message to an internal queue.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            process_class: Its class, which declares the queue.
            queue: Name or typed key of the queue.
            value: The message, of the queue's declared type.
            dedup_id: Messages with one dedup id are delivered once per queue, and publishing is then safe to repeat.
            process_execution_id: Publish to exactly this execution.

        Returns:
            Whether the message was new.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
            InvalidArgumentError: The class declares no such queue, or the value has another type; nothing was sent.

        Source: semantics 3.2, 6.3.
        """
        message = QueueMessage(queue=queue, value=value, dedup_id=dedup_id)
        published = await self.publish_messages(
            process_id, process_class, [message], process_execution_id=process_execution_id
        )
        return published > 0

    async def publish_messages(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        messages: Iterable[QueueMessage],
        *,
        process_execution_id: str | None = None,
    ) -> int:
        """Append messages to one or more queues in one transaction, keeping their order; return how many were new.

        Raises what `publish_to_internal_queue` does.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return await self._run(self._typed.publish(ref, process_class, messages))

    async def wait_for_state_completion(
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
        return await self._run(self._operations.state_completion(ref, state_id, number, key, type_hint, timeout))

    async def get_data_attributes(
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
        return await self._run(self._typed.get_attributes(ref, process_class, keys))

    async def set_data_attributes(
        self,
        process_id: str,
        process_class: type[ObjectProcess],
        values: Mapping[Any, Any],
        *,
        process_execution_id: str | None = None,
    ) -> None:
        """Write attributes of a running execution, in one transaction.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            process_class: Its class, which declares the attributes.
            values: Values by name or typed key, each of the declared type.
            process_execution_id: Write to exactly this execution.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
            InvalidArgumentError: The class declares no such attribute, or a value has another type; nothing was sent.

        Source: semantics 6.5.
        """
        ref = ProcessRef(process_id, process_execution_id)
        await self._run(self._typed.set_attributes(ref, process_class, values))

    async def skip_timer(
        self,
        process_id: str,
        state: StateReference,
        number: int = 1,
        *,
        command_id: str | None = None,
        index: int | None = None,
        remember: bool = False,
        process_execution_id: str | None = None,
    ) -> None:
        """Complete a timer that a state waits for, now. Skipping one that is done changes nothing.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            state: Which state waits, by class or id.
            number: Which of its executions, from 1.
            command_id: Which timer, by the id of its command.
            index: Which timer, from 0, by its place among the state's timers.
            remember: If the state does not wait yet, skip the timer as soon as it does.
            process_execution_id: Skip in exactly this execution.

        Raises:
            ClientSideError: The state does not wait for such a timer (TIMER_NOT_FOUND).
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.

        Source: semantics 3.6.
        """
        ref = ProcessRef(process_id, process_execution_id)
        state_id = self._typed.state_id_of(state)
        await self._run(self._operations.skip_timer(ref, state_id, number, command_id, index, remember=remember))
