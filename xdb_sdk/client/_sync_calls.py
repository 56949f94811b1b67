"""What `Client` and `UnregisteredClient` share, and the latter: plans carried out on the caller's thread."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from xdb_sdk._encoding import DEFAULT_ENCODER, ObjectEncoder
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._options import ProcessStartOptions, StateReference
from xdb_sdk.client._clock import ClientClock, SystemClock
from xdb_sdk.client._exchange import Call, ClientClosedError, Outcome, Pause, Plan
from xdb_sdk.client._operations import READ_AS_DECLARED, ProcessRef, QueueMessage
from xdb_sdk.client._operator_plans import OperatorPlans
from xdb_sdk.client._options import ClientOptions
from xdb_sdk.client._results import (
    CompleteStateResult,
    ProcessInfo,
    ProcessSummary,
    PublishOrStartResult,
    PublishResult,
    RpcOrStartResult,
    RpcResult,
    StartResult,
    StateCompletion,
    StateOutput,
    StopResult,
    process_summary,
)
from xdb_sdk.client._sync_operators import SyncOperatorCalls
from xdb_sdk.client._tracing import call_span
from xdb_sdk.client._transport import Transport, TransportError
from xdb_sdk.protocol import (
    DescribeInclude,
    Json,
    ListRequest,
    LoadedData,
    ProcessStatus,
    ProcessStopType,
    ReadRequest,
    StateDecisionBody,
    StateOptionsConfig,
    TableMapping,
    TableWrite,
)

T = TypeVar("T")
Result = TypeVar("Result")


class SyncCalls(SyncOperatorCalls):
    """The calls that need no process class. May be used by several threads at once.

    Every call raises, beside what it names:
        InvalidArgumentError: An argument cannot be used; nothing was sent.
        HttpError: The server refused the call (ClientSideError) or failed (ServerSideError).
        UnavailableError: The server could not be reached or is too busy; the message says if something was sent.
        ClientClosedError: The client is closed.
    """

    def __init__(
        self,
        options: ClientOptions,
        transport: Transport | None = None,
        clock: ClientClock | None = None,
        encoder: ObjectEncoder = DEFAULT_ENCODER,
    ) -> None:
        self._clock = clock or SystemClock()
        self._transport = transport or _http_transport(options.server_url)
        self._operations = OperatorPlans(options, self._clock.now_s, encoder)
        self._lock = threading.Lock()
        self._requests_under_way = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        """Give the client itself."""
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close all connections. Closing twice is fine.

        Calls of other threads finish the request that they are in, then end with ClientClosedError if they need more:
        a socket must not be closed under a thread that reads from it.
        """
        with self._lock:
            self._is_closed = True
            is_idle = self._requests_under_way == 0
        if is_idle:
            self._transport.close()

    def stop_process(
        self,
        process_id: str,
        stop_type: ProcessStopType = ProcessStopType.TERMINATE,
        reason: str | None = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> StopResult:
        """Close a running execution at once; a closed one stays as it is.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            stop_type: Which final status it gets.
            reason: Kept with the execution, at most 1000 characters.
            process_execution_id: Stop exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ProcessNotFoundError: There is no such process.

        Source: semantics 6.1.
        """
        return self._run(
            self._operations.stop(ProcessRef(process_id, process_execution_id), stop_type, reason, request_id)
        )

    def describe_process(
        self,
        process_id: str,
        *,
        include: Collection[DescribeInclude] = (),
        process_execution_id: str | None = None,
    ) -> ProcessInfo:
        """Tell everything about an execution: status, outputs, error, open states and what they wait for.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            include: "queues" for the size of every queue, "closed_states" for the latest states that are done, "all"
                for both.
            process_execution_id: Describe exactly this execution.

        Raises:
            ProcessNotFoundError: There is no such process.

        Source: semantics 6.2.
        """
        return self._run(self._operations.describe(ProcessRef(process_id, process_execution_id), include))

    def list_processes(
        self,
        *,
        process_id: str | None = None,
        process_type: str | None = None,
        statuses: Collection[ProcessStatus] = (),
        started_from: datetime | None = None,
        started_before: datetime | None = None,
        closed_from: datetime | None = None,
        closed_before: datetime | None = None,
        page_size: int = 100,
    ) -> Iterator[ProcessSummary]:
        """List executions, newest first, one request a page as you iterate. All filters combine.

        Args:
            process_id: All executions of this process id.
            process_type: Only of this type.
            statuses: Only with one of these; empty for all.
            started_from: Started at or after this aware datetime.
            started_before: Started before it.
            closed_from: Closed at or after it.
            closed_before: Closed before it.
            page_size: Executions in a request, 1 to 1000.

        Source: semantics 6.6.
        """
        request = self._operations.list_request(
            process_id=process_id,
            process_type=process_type,
            statuses=statuses,
            started_from=started_from,
            started_before=started_before,
            closed_from=closed_from,
            closed_before=closed_before,
            page_size=page_size,
        )
        return self._pages(request)

    @overload
    def wait_for_process_completion(
        self,
        process_id: str,
        type_hint: None = None,
        timeout: timedelta | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> Any: ...
    @overload
    def wait_for_process_completion(
        self,
        process_id: str,
        type_hint: type[T],
        timeout: timedelta | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> T: ...
    @overload
    def wait_for_process_completion(
        self,
        process_id: str,
        type_hint: Any,
        timeout: timedelta | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> Any: ...
    def wait_for_process_completion(
        self,
        process_id: str,
        type_hint: Any = None,
        timeout: timedelta | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> Any:
        """Wait until an execution completes and return its output.

        Args:
            process_id: Which process. The execution that is current now is waited for, also if another replaces it.
            type_hint: What to decode the output to; None for JSON as it is. Having no output counts as null.
            timeout: How long to wait; None for ever. Each request of a long wait is short; see ClientOptions.
            process_execution_id: Wait for exactly this execution.

        Raises:
            ProcessStillRunningError: It is running at the deadline.
            ProcessFailed: It failed.
            ProcessTimeout: It timed out.
            ProcessTerminated: It was terminated or replaced.
            ProcessCanceled: It was canceled.
            ProcessNotFoundError: There is no such process.
            DecodeError: The output is not of the type hint.
            InvalidArgumentError: It has more than one output: use `get_process_results`.

        Source: semantics 6.4.
        """
        return self._run(
            self._operations.single_output(ProcessRef(process_id, process_execution_id), type_hint, timeout)
        )

    def get_process_results(
        self,
        process_id: str,
        type_hint: Any = None,
        timeout: timedelta | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> list[StateOutput]:
        """Wait until an execution completes and return all its outputs, in the order in which they were committed.

        Takes and raises what `wait_for_process_completion` does; `type_hint` is for every output.

        Source: semantics 4.6.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._operations.outputs(ref, type_hint, timeout))

    def _pages(self, first: ListRequest) -> Iterator[ProcessSummary]:
        request: ListRequest | None = first
        while request is not None:
            page, request = self._run(self._operations.list_page(request))
            yield from map(process_summary, page.processes)

    def _run(self, plan: Plan[Result]) -> Result:
        """Carry out a plan."""
        outcome: Outcome = None
        with call_span() as span:
            while True:
                try:
                    step = plan.send(outcome)
                except StopIteration as end:
                    return cast(Result, end.value)
                span.note(step)
                outcome = self._carry_out(step)

    def _carry_out(self, step: Call[Any] | Pause) -> Outcome:
        if isinstance(step, Pause):
            self._clock.sleep(step.delay_s)
            return None
        self._begin_request()
        try:
            return self._transport.send(step.path, step.body, step.timeout_s)
        except TransportError as error:
            return error
        finally:
            self._end_request()

    def _begin_request(self) -> None:
        with self._lock:
            if self._is_closed:
                raise ClientClosedError
            self._requests_under_way += 1

    def _end_request(self) -> None:
        with self._lock:
            self._requests_under_way -= 1
            is_last = self._is_closed and self._requests_under_way == 0
        if is_last:
            self._transport.close()


def _http_transport(server_url: str) -> Transport:
    # Imported when a client is made: a worker imports this package too, and httpx costs more than all the rest of it.
    from xdb_sdk.client._http import HttpxTransport

    return HttpxTransport(server_url)


class UnregisteredClient(SyncCalls):
    """Calls processes by names and JSON values, without their classes. No types are checked.

    Args:
        options: Where server and worker are; by default on this machine.
        transport: Carries the requests instead of HTTP.
        clock: The time; by default the machine's.
    """

    def __init__(
        self,
        options: ClientOptions | None = None,
        *,
        transport: Transport | None = None,
        clock: ClientClock | None = None,
    ) -> None:
        super().__init__(options or ClientOptions.local_default(), transport, clock)

    def start_process(
        self,
        process_id: str,
        process_type: str,
        input: Json = None,
        options: ProcessStartOptions | None = None,
        *,
        starting_state_id: str | None = None,
        starting_state_options: StateOptionsConfig | None = None,
        table: TableMapping | None = None,
        request_id: str | None = None,
    ) -> str:
        """Start an execution.

        Args:
            process_id: Under which id.
            process_type: Name under which the worker knows the class.
            input: Input of the starting state, as JSON.
            options: Its initial attributes are process-local JSON values here.
            starting_state_id: The starting state; None for a process without one.
            starting_state_options: Its options in full; say `skip_wait_until` for a state without wait_until.
            table: The row that the execution is mapped to, and what to write into it.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Returns:
            The process execution id.

        Raises:
            ProcessAlreadyStartedError: The id reuse policy forbids it.
        """
        start = self._operations.unregistered_start_request(
            process_id, process_type, input, options, starting_state_id, starting_state_options, table
        )
        return self._run(self._operations.start_id(start, request_id))

    def start(
        self,
        process_id: str,
        process_type: str,
        input: Json = None,
        options: ProcessStartOptions | None = None,
        *,
        starting_state_id: str | None = None,
        starting_state_options: StateOptionsConfig | None = None,
        table: TableMapping | None = None,
        request_id: str | None = None,
    ) -> StartResult:
        """Start an execution, and tell what came of it. Otherwise as `start_process`."""
        start = self._operations.unregistered_start_request(
            process_id, process_type, input, options, starting_state_id, starting_state_options, table
        )
        return self._run(self._operations.start(start, request_id))

    def invoke_rpc(
        self,
        process_id: str,
        rpc_name: str,
        input: Json = None,
        *,
        timeout: timedelta = timedelta(seconds=10),
        read: ReadRequest = READ_AS_DECLARED,
        read_only: bool = False,
        exclusive: bool = False,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> Json:
        """Call an RPC method and return its result as JSON.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            rpc_name: Name of the RPC.
            input: Its input as JSON.
            timeout: How long the method may take.
            read: What to load for it; by default the worker says what it needs.
            read_only: The method changes nothing; the call is refused if it does.
            exclusive: A repetition of this call waits while the method runs for it, instead of running it beside.
            process_execution_id: Call exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            RpcExecutionError: The method raised or was too slow, or the worker could not be reached.
            RpcLockNotAcquiredError: Others kept changing what it locks.
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed and the method would have changed it.
        """
        ref = ProcessRef(process_id, process_execution_id)
        arguments = self._operations.unregistered_rpc_arguments(
            rpc_name, input, timeout, read, read_only=read_only, exclusive=exclusive
        )
        return self._run(self._operations.rpc(ref, arguments, request_id))

    def publish_to_internal_queue(
        self,
        process_id: str,
        queue_name: str,
        value: Json = None,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> bool:
        """Append a message to a queue.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            queue_name: Which queue; the server takes any name.
            value: The message, as JSON.
            dedup_id: Messages with one dedup id are delivered once.
            process_execution_id: Publish to exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Returns:
            Whether the message was new.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        message = QueueMessage(queue=queue_name, value=value, dedup_id=dedup_id)
        published = self.publish_messages(
            process_id, [message], process_execution_id=process_execution_id, request_id=request_id
        )
        return published > 0

    def call_rpc(
        self,
        process_id: str,
        rpc_name: str,
        input: Json = None,
        *,
        timeout: timedelta = timedelta(seconds=10),
        read: ReadRequest = READ_AS_DECLARED,
        read_only: bool = False,
        exclusive: bool = False,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> RpcResult[Json]:
        """Call an RPC method, and tell what came of it. Otherwise as `invoke_rpc`."""
        ref = ProcessRef(process_id, process_execution_id)
        arguments = self._operations.unregistered_rpc_arguments(
            rpc_name, input, timeout, read, read_only=read_only, exclusive=exclusive
        )
        return self._run(self._operations.call_rpc(ref, arguments, request_id))

    def publish(
        self,
        process_id: str,
        queue_name: str,
        value: Json = None,
        dedup_id: str | None = None,
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> PublishResult:
        """Append a message to a queue, and tell what came of it. Otherwise as `publish_to_internal_queue`."""
        ref = ProcessRef(process_id, process_execution_id)
        message = QueueMessage(queue=queue_name, value=value, dedup_id=dedup_id)
        return self._run(self._operations.unregistered_publish_one(ref, message, request_id))

    def publish_messages(
        self,
        process_id: str,
        messages: Sequence[QueueMessage],
        *,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> int:
        """Append messages, all in one transaction, and return how many were new.

        Raises what `publish_to_internal_queue` does.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._operations.unregistered_publish(ref, messages, request_id))

    def publish_or_start(
        self,
        process_id: str,
        process_type: str,
        queue_name: str,
        value: Json = None,
        dedup_id: str | None = None,
        *,
        start_input: Json = None,
        start_options: ProcessStartOptions | None = None,
        starting_state_id: str | None = None,
        starting_state_options: StateOptionsConfig | None = None,
        table: TableMapping | None = None,
        request_id: str | None = None,
    ) -> PublishOrStartResult:
        """Append a message to the running execution, which is started if there is none, in one transaction.

        Args:
            process_id: Which process.
            process_type: Name under which the worker knows the class. It and all that follows the dedup id are those of
                `start_process`, and count only if an execution is started.
            queue_name: Which queue; the server takes any name.
            value: The message, as JSON.
            dedup_id: Messages with one dedup id are delivered once.
            start_input: Input of the starting state, as JSON.
            start_options: The policy TERMINATE_IF_RUNNING is refused, and a running execution ignored.
            starting_state_id: The starting state; None for a process without one.
            starting_state_options: Its options in full.
            table: The row that the execution is mapped to, and what to write into it.
            request_id: By which the server knows a repetition of this call; by default a new one. Start and message
                are remembered each for itself: either is done unless it was before.

        Raises:
            ProcessAlreadyStartedError: None runs, and the id reuse policy forbids another.
            ProcessNotRunningError: This request, or a start with the same id, has started an execution before that is
                closed now, and the message was not sent then. Nothing was done.

        Source: idempotency-and-shards D.4.
        """
        start = self._operations.unregistered_start_request(
            process_id, process_type, start_input, start_options, starting_state_id, starting_state_options, table
        )
        message = self._operations.unregistered_message(QueueMessage(queue=queue_name, value=value, dedup_id=dedup_id))
        return self._run(self._operations.publish_or_start(start, message, request_id))

    def rpc_or_start(
        self,
        process_id: str,
        process_type: str,
        rpc_name: str,
        input: Json = None,
        *,
        timeout: timedelta = timedelta(seconds=10),
        read: ReadRequest = READ_AS_DECLARED,
        read_only: bool = False,
        exclusive: bool = False,
        start_input: Json = None,
        start_options: ProcessStartOptions | None = None,
        starting_state_id: str | None = None,
        starting_state_options: StateOptionsConfig | None = None,
        table: TableMapping | None = None,
        request_id: str | None = None,
    ) -> RpcOrStartResult[Json]:
        """Call an RPC method of the running execution, which is started first if there is none.

        The start is committed before the method is called, and stays if the method fails. Raises what `invoke_rpc`
        does, and more.

        Args:
            process_id: Which process.
            process_type: Name under which the worker knows the class. It and all that follows `exclusive` are those of
                `start_process`, and count only if an execution is started.
            rpc_name: Name of the RPC.
            input: Its input as JSON.
            timeout: How long the method may take.
            read: What to load for it; by default the worker says what it needs.
            read_only: The method changes nothing; the call is refused if it does.
            exclusive: A repetition of this call waits while the method runs for it, instead of running it beside.
            start_input: Input of the starting state, as JSON.
            start_options: The policy TERMINATE_IF_RUNNING is refused, and a running execution ignored.
            starting_state_id: The starting state; None for a process without one.
            starting_state_options: Its options in full.
            table: The row that the execution is mapped to, and what to write into it.
            request_id: By which the server knows a repetition of this call; by default a new one. Start and RPC are
                remembered each for itself: either is done unless it was before.

        Raises:
            ProcessAlreadyStartedError: None runs, and the id reuse policy forbids another.
            RpcExecutionError: The method raised or was too slow, or its worker was not reached; it has changed nothing.

        Source: idempotency-and-shards D.4.
        """
        start = self._operations.unregistered_start_request(
            process_id, process_type, start_input, start_options, starting_state_id, starting_state_options, table
        )
        arguments = self._operations.unregistered_rpc_arguments(
            rpc_name, input, timeout, read, read_only=read_only, exclusive=exclusive
        )
        return self._run(self._operations.rpc_or_start(start, arguments, request_id))

    def wait_for_state_completion(
        self,
        process_id: str,
        state_id: str,
        number: int = 1,
        key: str | None = None,
        *,
        timeout: timedelta | None = None,
        process_execution_id: str | None = None,
    ) -> StateCompletion:
        """Wait until a state execution is done, or cannot be any more.

        Args:
            process_id: Which process. The execution that is current now is waited for, also if another replaces it.
            state_id: Which state.
            number: Which of its executions, from 1.
            key: Instead of the number: the `wait_for_key` of its movement.
            timeout: How long to wait; None for ever.
            process_execution_id: Wait in exactly this execution.

        Raises:
            ProcessStillRunningError: It is not done at the deadline.
            ProcessNotFoundError: There is no such process.

        Source: semantics 6.8.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._operations.state_completion(ref, state_id, number, key, None, timeout))

    def get_data_attributes(
        self,
        process_id: str,
        read: ReadRequest | None = None,
        *,
        process_execution_id: str | None = None,
    ) -> LoadedData:
        """Read attributes as JSON, also of a closed execution.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            read: What to read; None for every process-local attribute.
            process_execution_id: Read exactly this execution.

        Raises:
            ProcessNotFoundError: There is no such process.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._operations.get_attributes(ref, read or ReadRequest(), all_local_attributes=read is None))

    def set_data_attributes(
        self,
        process_id: str,
        local_attributes: Mapping[str, Json],
        *,
        tables: Sequence[TableWrite] = (),
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Write process-local attributes, or columns of the mapped row, in one transaction.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            local_attributes: JSON values by name.
            tables: Column values of the mapped row.
            process_execution_id: Write to exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        ref = ProcessRef(process_id, process_execution_id)
        self._run(self._operations.unregistered_set_attributes(ref, tables, local_attributes, request_id))

    def skip_timer(
        self,
        process_id: str,
        state_id: str,
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
            state_id: Which state waits.
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
        self._run(
            self._operations.skip_timer(
                ref, state_id, number, command_id, index, remember=remember, reason=reason, request_id=request_id
            )
        )

    def complete_state(
        self,
        process_id: str,
        state_id: str,
        decision: StateDecisionBody,
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
            state_id: Which state.
            decision: What its `execute` is taken to have returned.
            number: Which of its executions, from 1.
            reason: Why, for its history; at most 1000 characters.
            process_execution_id: Complete a state of exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ClientSideError: There is no such state execution (STATE_NOT_FOUND), or it has ended (STATE_NOT_RUNNING).
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return self._run(self._operations.complete_state(ref, state_id, number, decision, reason, request_id))

    def _state_id_of(self, state: StateReference) -> str:
        if not isinstance(state, str):
            raise InvalidArgumentError(
                f"this client knows no process classes; name the state by its id, not as {state}"
            )
        return state
