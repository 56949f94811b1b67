"""The operations of the service API as plans, in names and JSON values: what both clients and their raw forms share."""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from xdb_sdk._duration import to_milliseconds
from xdb_sdk._encoding import ObjectEncoder
from xdb_sdk._errors import (
    InvalidArgumentError,
    ProcessAbnormalExitError,
    ProcessCanceled,
    ProcessFailed,
    ProcessStillRunningError,
    ProcessTerminated,
    ProcessTimeout,
)
from xdb_sdk._names import check_name, check_optional_name
from xdb_sdk._options import ProcessStartOptions
from xdb_sdk._schema import InternalQueue, key_name
from xdb_sdk.client._checks import epoch_milliseconds, refusing_invalid
from xdb_sdk.client._exchange import Call, Exchange, Pause, Plan
from xdb_sdk.client._options import ClientOptions
from xdb_sdk.client._request_ids import request_id_of
from xdb_sdk.client._results import (
    ProcessInfo,
    PublishOrStartResult,
    PublishResult,
    RpcOrStartResult,
    RpcResult,
    StartResult,
    StateCompletion,
    StateOutput,
    StopResult,
    process_info,
    state_outputs,
)
from xdb_sdk.client._urls import base_url
from xdb_sdk.protocol import (
    MAX_LONG_POLL_MS,
    DescribeAnswer,
    DescribeInclude,
    DescribeRequest,
    DoneAnswer,
    GetAttributesAnswer,
    GetAttributesRequest,
    Json,
    ListAnswer,
    ListRequest,
    LoadedData,
    Message,
    ProcessStatus,
    ProcessStopType,
    PublishAnswer,
    PublishOrStartAnswer,
    PublishOrStartRequest,
    PublishRequest,
    ReadRequest,
    RepeatableAnswer,
    RepeatableRequest,
    RpcOrStartAnswer,
    RpcOrStartRequest,
    RpcRequest,
    RpcServiceAnswer,
    ServiceRequest,
    SetAttributesRequest,
    SkipTimerRequest,
    StartAnswer,
    StartRequest,
    StateOptionsConfig,
    StopAnswer,
    StopRequest,
    TableMapping,
    TableWrite,
    UpdateConfigRequest,
    WaitForCompletionAnswer,
    WaitForCompletionRequest,
    WaitForStateAnswer,
    WaitForStateRequest,
    WireModel,
)
from xdb_sdk.protocol.tracing import current_trace_context

READ_AS_DECLARED = ReadRequest()
"""Read nothing at first: a worker that needs data says which, and is called again with it."""

_HTTP_MARGIN_S = 10.0
"""How much longer than the server's own limit an answer may take."""

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=WireModel)
ChangeAnswer = TypeVar("ChangeAnswer", bound=RepeatableAnswer)
WaitAnswer = TypeVar("WaitAnswer", WaitForCompletionAnswer, WaitForStateAnswer)

_ABNORMAL_EXITS: Mapping[ProcessStatus, type[ProcessAbnormalExitError]] = {
    ProcessStatus.FAILED: ProcessFailed,
    ProcessStatus.TIMEOUT: ProcessTimeout,
    ProcessStatus.TERMINATED: ProcessTerminated,
    ProcessStatus.CANCELED: ProcessCanceled,
}


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """Which process execution is meant: the current one of the process id, or exactly the one named."""

    process_id: str
    process_execution_id: str | None = None

    def __post_init__(self) -> None:
        check_name(self.process_id, "process id")
        check_optional_name(self.process_execution_id, "process execution id")

    def __str__(self) -> str:
        execution = f" ({self.process_execution_id})" if self.process_execution_id else ""
        return f"process {self.process_id!r}{execution}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """A message for `publish_messages`.

    Attributes:
        queue: Name or typed key of the queue.
        value: Its value, of the queue's declared type.
        dedup_id: Messages with one dedup id are delivered once per queue, for the life of the execution. A call that
            is only repeated needs none: its request id is enough.
    """

    queue: str | InternalQueue[Any]
    value: Any = None
    dedup_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcArguments:
    """What an RPC is called with, in names and JSON values; see `RpcBody` of the protocol."""

    rpc_name: str
    input: Json
    timeout: timedelta
    read: ReadRequest
    read_only: bool
    exclusive: bool
    needs_queue_sizes: bool = True

    @property
    def timeout_s(self) -> float:
        """How long the whole answer may take."""
        return self.timeout.total_seconds() + _HTTP_MARGIN_S

    def fields(self, subject: str) -> dict[str, Any]:
        """The fields of a request; raises InvalidArgumentError."""
        return {
            "rpc_name": check_name(self.rpc_name, "RPC name"),
            "input": self.input,
            "timeout_ms": to_milliseconds(self.timeout, f"timeout of {subject}"),
            "read": self.read,
            "read_only": self.read_only,
            "exclusive": self.exclusive,
            "needs_queue_sizes": self.needs_queue_sizes,
        }


class Operations:
    """Plans for every operation.

    Args:
        options: Where and how.
        now_s: Monotonic seconds.
    """

    def __init__(self, options: ClientOptions, now_s: Callable[[], float], encoder: ObjectEncoder) -> None:
        self.options = options
        self._encoder = encoder
        self._now_s = now_s
        self._exchange = Exchange(options.retry, now_s)
        self._api_timeout_s = options.api_timeout.total_seconds()
        self._longest_poll_ms = min(
            to_milliseconds(options.long_poll_api_max_wait_time, "long_poll_api_max_wait_time"), MAX_LONG_POLL_MS
        )

    def start_request(
        self, process_id: str, process_type: str, options: ProcessStartOptions, **fields: Any
    ) -> StartRequest:
        """Make the request of a start: what `options` say that is no matter of the process class, and `fields`."""
        subject = f"start of process {process_id!r}"
        with refusing_invalid(subject):
            return StartRequest(
                namespace=check_name(options.namespace or self.options.namespace, "namespace"),
                process_id=check_name(process_id, "process id"),
                process_type=check_name(process_type, "process type"),
                worker_url=self.options.worker_url,
                id_reuse_policy=options.id_reuse_policy,
                timeout_ms=to_milliseconds(options.timeout or timedelta(0), f"timeout of the {subject}"),
                start_delay_ms=to_milliseconds(options.start_delay or timedelta(0), f"start_delay of the {subject}"),
                ignore_already_started=options.ignore_already_started,
                **fields,
            )

    def unregistered_start_request(
        self,
        process_id: str,
        process_type: str,
        input: Json,
        options: ProcessStartOptions | None,
        starting_state_id: str | None,
        starting_state_options: StateOptionsConfig | None,
        table: TableMapping | None,
    ) -> StartRequest:
        """Make the request of a start by names; the initial attributes are process-local values."""
        options = options or ProcessStartOptions()
        if options.starting_state_options_override is not None:
            raise InvalidArgumentError("starting_state_options_override needs a class; give starting_state_options")
        return self.start_request(
            process_id,
            process_type,
            options,
            start_state_id=check_optional_name(starting_state_id, "starting state id"),
            start_state_input=self._encode(input, "input"),
            start_state_options=starting_state_options or StateOptionsConfig(),
            tables=(table,) if table else (),
            object_id=next(iter(table.primary_key.values())) if table else None,
            local_attributes=self._encode_local_attributes(options.initial_upsert_data_attributes),
        )

    def start(self, start: StartRequest, request_id: str | None) -> Plan[StartResult]:
        """Start an execution."""
        request = start.model_copy(update={"request_id": request_id_of(request_id)})
        answer = yield from self._change("start", f"start of process {start.process_id!r}", request, StartAnswer)
        return StartResult(
            process_execution_id=answer.process_execution_id,
            already_started=answer.already_started,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )

    def start_id(self, start: StartRequest, request_id: str | None) -> Plan[str]:
        """Start an execution; returns its id."""
        result = yield from self.start(start, request_id)
        return result.process_execution_id

    def stop(
        self, ref: ProcessRef, stop_type: ProcessStopType, reason: str | None, request_id: str | None
    ) -> Plan[StopResult]:
        """Close a running execution."""
        with refusing_invalid(f"stop of {ref}"):
            request = StopRequest(**self._change_of(ref, request_id), stop_type=stop_type, reason=reason)
        answer = yield from self._change("stop", f"stop of {ref}", request, StopAnswer)
        return StopResult(
            process_execution_id=answer.process_execution_id,
            status=answer.status,
            changed=answer.changed,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )

    def describe(self, ref: ProcessRef, include: Collection[DescribeInclude]) -> Plan[ProcessInfo]:
        """Tell everything about an execution."""
        with refusing_invalid(f"describe of {ref}"):
            request = DescribeRequest(**self._names(ref), include=tuple(sorted(include)))
        answer = yield from self._call("describe", f"describe of {ref}", request, DescribeAnswer)
        return process_info(answer)

    def list_request(
        self,
        *,
        process_id: str | None,
        process_type: str | None,
        statuses: Collection[ProcessStatus],
        started_from: datetime | None,
        started_before: datetime | None,
        closed_from: datetime | None,
        closed_before: datetime | None,
        page_size: int,
    ) -> ListRequest:
        """Make the request for the first page of a list."""
        with refusing_invalid("list of processes"):
            return ListRequest(
                namespace=self.options.namespace,
                page_size=page_size,
                process_id=check_optional_name(process_id, "process id"),
                process_type=check_optional_name(process_type, "process type"),
                statuses=tuple(statuses),
                started_from_ms=epoch_milliseconds(started_from, "started_from"),
                started_before_ms=epoch_milliseconds(started_before, "started_before"),
                closed_from_ms=epoch_milliseconds(closed_from, "closed_from"),
                closed_before_ms=epoch_milliseconds(closed_before, "closed_before"),
            )

    def list_page(self, request: ListRequest) -> Plan[tuple[ListAnswer, ListRequest | None]]:
        """Read one page; returns it with the request for the next, if there is one."""
        answer = yield from self._call("list", "list of processes", request, ListAnswer)
        if answer.next_page_token is None:
            return answer, None
        return answer, request.model_copy(update={"next_page_token": answer.next_page_token})

    def publish(self, ref: ProcessRef, messages: Sequence[Message], request_id: str | None) -> Plan[int]:
        """Append messages, all in one transaction; returns how many were new."""
        answer = yield from self._publish(ref, messages, request_id)
        return answer.published

    def unregistered_publish_one(
        self, ref: ProcessRef, message: QueueMessage, request_id: str | None
    ) -> Plan[PublishResult]:
        """Append a message of a JSON value, and tell what came of it."""
        answer = yield from self._publish(ref, [self.unregistered_message(message)], request_id)
        return PublishResult(
            process_execution_id=answer.process_execution_id,
            is_new=answer.published > 0,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )

    def _publish(self, ref: ProcessRef, messages: Sequence[Message], request_id: str | None) -> Plan[PublishAnswer]:
        if not messages:
            raise InvalidArgumentError(f"publish to {ref}: there are no messages; give at least one")
        request = PublishRequest(**self._change_of(ref, request_id), messages=tuple(messages))
        return (yield from self._change("publish", f"publish to {ref}", request, PublishAnswer))

    def publish_or_start(
        self, start: StartRequest, message: Message, request_id: str | None
    ) -> Plan[PublishOrStartResult]:
        """Append a message to the running execution, which is started if there is none."""
        request = PublishOrStartRequest(start=start, messages=(message,), request_id=request_id_of(request_id))
        subject = f"publish to process {start.process_id!r}, or its start"
        answer = yield from self._change("publish-or-start", subject, request, PublishOrStartAnswer)
        return PublishOrStartResult(
            process_execution_id=answer.process_execution_id,
            started=answer.started,
            is_new=answer.published > 0,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )

    def rpc(self, ref: ProcessRef, arguments: RpcArguments, request_id: str | None) -> Plan[Json]:
        """Call an RPC; returns its output as JSON."""
        result = yield from self.call_rpc(ref, arguments, request_id)
        return result.output

    def call_rpc(self, ref: ProcessRef, arguments: RpcArguments, request_id: str | None) -> Plan[RpcResult[Json]]:
        """Call an RPC, and tell what came of it; its output is given as JSON."""
        subject = f"RPC {arguments.rpc_name!r} of {ref}"
        if request_id is not None or not arguments.read_only:
            request_id = request_id_of(request_id)
        with refusing_invalid(subject):
            request = RpcRequest(**self._names(ref), request_id=request_id, **arguments.fields(subject))
        answer = yield from self._change("rpc", subject, request, RpcServiceAnswer, timeout_s=arguments.timeout_s)
        return RpcResult(
            process_execution_id=answer.process_execution_id,
            output=answer.output,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )

    def rpc_or_start(
        self, start: StartRequest, arguments: RpcArguments, request_id: str | None
    ) -> Plan[RpcOrStartResult[Json]]:
        """Call an RPC of the running execution, which is started if there is none; its output is given as JSON."""
        subject = f"RPC {arguments.rpc_name!r} of process {start.process_id!r}, or its start"
        with refusing_invalid(subject):
            request = RpcOrStartRequest(start=start, request_id=request_id_of(request_id), **arguments.fields(subject))
        answer = yield from self._change(
            "rpc-or-start", subject, request, RpcOrStartAnswer, timeout_s=arguments.timeout_s
        )
        return RpcOrStartResult(
            process_execution_id=answer.process_execution_id,
            started=answer.started,
            output=answer.output,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )

    def outputs(self, ref: ProcessRef, type_hint: Any, timeout: timedelta | None) -> Plan[list[StateOutput]]:
        """Wait until an execution closes and return its outputs; raises if it did not complete."""
        answer = yield from self._wait(
            ref,
            timeout,
            "wait-for-completion",
            f"wait for {ref}",
            lambda names, poll_ms: WaitForCompletionRequest(**names, timeout_ms=poll_ms),
            WaitForCompletionAnswer,
        )
        if answer.status is not ProcessStatus.COMPLETED:
            _raise_abnormal_exit(answer)
        return [
            replace(output, output=self._decode(output.output, type_hint, f"output of {ref}"))
            for output in state_outputs(answer.outputs)
        ]

    def single_output(self, ref: ProcessRef, type_hint: Any, timeout: timedelta | None) -> Plan[Any]:
        """Wait until an execution closes and return its only output; having none counts as null."""
        outputs = yield from self.outputs(ref, None, timeout)
        if len(outputs) > 1:
            raise InvalidArgumentError(f"{ref} has {len(outputs)} outputs; read them with get_process_results")
        return self._decode(outputs[0].output if outputs else None, type_hint, f"output of {ref}")

    def state_completion(
        self,
        ref: ProcessRef,
        state_id: str,
        number: int,
        key: str | None,
        type_hint: Any,
        timeout: timedelta | None,
    ) -> Plan[StateCompletion]:
        """Wait until a state execution is done, or cannot be any more."""
        check_name(state_id, "state id")
        check_optional_name(key, "key")
        subject = f"wait for state {state_id!r} of {ref}"

        def request(names: Mapping[str, Any], poll_ms: int) -> WaitForStateRequest:
            with refusing_invalid(subject):
                return WaitForStateRequest(
                    **names, state_id=state_id, number=number, wait_for_key=key, timeout_ms=poll_ms
                )

        answer = yield from self._wait(ref, timeout, "wait-for-state-completion", subject, request, WaitForStateAnswer)
        return StateCompletion(
            process_execution_id=answer.process_execution_id,
            process_status=answer.process_status,
            state_execution_id=answer.state_execution_id,
            state_status=answer.state_status,
            output=None
            if answer.output is None
            else self._decode(answer.output, type_hint, f"output of state {state_id!r} of {ref}"),
        )

    def get_attributes(
        self, ref: ProcessRef, read: ReadRequest, *, all_local_attributes: bool = False
    ) -> Plan[LoadedData]:
        """Read attributes."""
        request = GetAttributesRequest(**self._names(ref), read=read, all_local_attributes=all_local_attributes)
        answer = yield from self._call("get-attributes", f"get attributes of {ref}", request, GetAttributesAnswer)
        return answer.loaded

    def set_attributes(
        self,
        ref: ProcessRef,
        tables: Sequence[TableWrite],
        local_attributes: Mapping[str, Json],
        request_id: str | None,
    ) -> Plan[None]:
        """Write attributes."""
        request = SetAttributesRequest(
            **self._change_of(ref, request_id), write_tables=tuple(tables), write_local_attributes=local_attributes
        )
        yield from self._change("set-attributes", f"set attributes of {ref}", request, DoneAnswer)

    def skip_timer(
        self,
        ref: ProcessRef,
        state_id: str,
        number: int,
        command_id: str | None,
        index: int | None,
        *,
        remember: bool,
        reason: str | None,
        request_id: str | None,
    ) -> Plan[None]:
        """Complete a timer command now."""
        if (command_id is None) == (index is None):
            raise InvalidArgumentError("skip_timer needs command_id or index, one of them: which timer is meant?")
        with refusing_invalid(f"skip timer of {ref}"):
            request = SkipTimerRequest(
                **self._change_of(ref, request_id),
                state_id=check_name(state_id, "state id"),
                number=number,
                command_id=check_optional_name(command_id, "command id"),
                index=index,
                remember=remember,
                reason=reason,
            )
        yield from self._change("skip-timer", f"skip timer of {ref}", request, DoneAnswer)

    def update_config(
        self,
        ref: ProcessRef,
        worker_url: str | None,
        timeout: timedelta | None,
        reason: str | None,
        request_id: str | None,
    ) -> Plan[None]:
        """Change the worker URL or the timeout."""
        if worker_url is None and timeout is None:
            raise InvalidArgumentError("update_process_config changes nothing; give worker_url or timeout")
        with refusing_invalid(f"update config of {ref}"):
            request = UpdateConfigRequest(
                **self._change_of(ref, request_id),
                worker_url=None if worker_url is None else base_url(worker_url, "worker_url"),
                timeout_ms=None if timeout is None else to_milliseconds(timeout, "timeout"),
                reason=reason,
            )
        yield from self._change("update-config", f"update config of {ref}", request, DoneAnswer)

    def unregistered_rpc_arguments(
        self,
        rpc_name: str,
        input: Json,
        timeout: timedelta,
        read: ReadRequest,
        *,
        read_only: bool,
        exclusive: bool,
    ) -> RpcArguments:
        """Say what an RPC is called with, by its name and with a JSON value."""
        return RpcArguments(
            rpc_name=rpc_name,
            input=self._encode(input, "input of the RPC"),
            timeout=timeout,
            read=read,
            read_only=read_only,
            exclusive=exclusive,
        )

    def unregistered_publish(
        self, ref: ProcessRef, messages: Sequence[QueueMessage], request_id: str | None
    ) -> Plan[int]:
        """Append messages of JSON values; returns how many were new."""
        return self.publish(ref, [self.unregistered_message(message) for message in messages], request_id)

    def unregistered_set_attributes(
        self,
        ref: ProcessRef,
        tables: Sequence[TableWrite],
        local_attributes: Mapping[str, Json],
        request_id: str | None,
    ) -> Plan[None]:
        """Write columns, and process-local attributes of JSON values."""
        return self.set_attributes(ref, tables, self._encode_local_attributes(local_attributes), request_id)

    def unregistered_message(self, message: QueueMessage) -> Message:
        """Check name and value of a message whose queue's type is not known."""
        name = check_name(key_name(message.queue), "queue name")
        return Message(
            queue_name=name,
            message_id=check_optional_name(message.dedup_id, "dedup id"),
            payload=self._encode(message.value, f"message to internal queue {name!r}"),
        )

    def _encode(self, value: Json, where: str) -> Json:
        """Check that a value is JSON that can be stored."""
        return self._encoder.encode(value, Any, where)

    def _encode_local_attributes(self, values: Mapping[str, Json]) -> dict[str, Json]:
        """Check names and values of process-local attributes."""
        return {
            check_name(name, "data attribute name"): self._encode(value, f"data attribute {name!r}")
            for name, value in values.items()
        }

    def _decode(self, data: Json, type_hint: Any, where: str) -> Any:
        return data if type_hint is None else self._encoder.decode(data, type_hint, where)

    def _names(self, ref: ProcessRef) -> dict[str, Any]:
        return {
            "namespace": self.options.namespace,
            "process_id": ref.process_id,
            "process_execution_id": ref.process_execution_id,
        }

    def _change_of(self, ref: ProcessRef, request_id: str | None) -> dict[str, Any]:
        """The fields that every request has which changes an execution; its id stays for all its repetitions."""
        return {**self._names(ref), "request_id": request_id_of(request_id)}

    def _change(
        self,
        operation: str,
        subject: str,
        request: RepeatableRequest,
        answer_type: type[ChangeAnswer],
        *,
        timeout_s: float | None = None,
    ) -> Plan[ChangeAnswer]:
        """Make a call that is carried out once, however often it is sent."""
        answer = yield from self._call(
            operation, subject, request, answer_type, timeout_s=timeout_s, request_id=request.request_id
        )
        if answer.mismatch:
            _log.warning(
                "%s: request id %r was used before, for a request that asked for something else; nothing was done now",
                subject,
                request.request_id,
                extra={"call": subject, "request_id": request.request_id},
            )
        return answer

    def _call(
        self,
        operation: str,
        subject: str,
        request: ServiceRequest,
        answer: type[Answer],
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> Plan[Answer]:
        call = Call(
            operation=operation,
            subject=subject,
            body=_body_of(request),
            answer=answer,
            timeout_s=self._api_timeout_s if timeout_s is None else timeout_s,
            request_id=request_id,
        )
        return self._exchange.call(call)

    def _wait(
        self,
        ref: ProcessRef,
        timeout: timedelta | None,
        operation: str,
        subject: str,
        request: Callable[[Mapping[str, Any], int], ServiceRequest],
        answer_type: type[WaitAnswer],
    ) -> Plan[WaitAnswer]:
        """Repeat long polls until one is answered or the caller's time is over (semantics 6.4).

        The execution that the first poll found is the one that the others wait for.
        """
        ends_at_s = math.inf if timeout is None else self._now_s() + to_milliseconds(timeout, "timeout") / 1000
        names = self._names(ref)

        def poll() -> Call[WaitAnswer]:
            remaining_s = max(0.0, ends_at_s - self._now_s())
            poll_ms = math.ceil(min(remaining_s * 1000, self._longest_poll_ms))
            return Call(
                operation=operation,
                subject=subject,
                body=_body_of(request(names, poll_ms)),
                answer=answer_type,
                timeout_s=poll_ms / 1000 + _HTTP_MARGIN_S,
                is_long_poll=True,
            )

        while True:
            answer = yield from self._exchange.call(poll(), ends_at_s, make_again=poll)
            if not answer.timeout and not answer.server_stopping:
                return answer
            if self._now_s() >= ends_at_s:
                raise ProcessStillRunningError(ref.process_id, answer.process_execution_id)
            names["process_execution_id"] = answer.process_execution_id
            if answer.server_stopping:
                yield Pause(min(self._exchange.backoff_s(1), ends_at_s - self._now_s()))


def _body_of(request: ServiceRequest) -> bytes:
    """Write a request, as part of the trace in progress if the application collects traces."""
    trace_context = current_trace_context()
    if trace_context is not None:
        request = request.model_copy(update={"trace_context": trace_context})
    return request.to_json()


def _raise_abnormal_exit(answer: WaitForCompletionAnswer) -> NoReturn:
    error_type = _ABNORMAL_EXITS.get(answer.status, ProcessAbnormalExitError)
    details = answer.error.message if answer.error else answer.reason or ""
    raise error_type(
        answer.process_execution_id,
        answer.status,
        answer.error.error_type if answer.error else None,
        details,
        state_outputs(answer.outputs),
    )
