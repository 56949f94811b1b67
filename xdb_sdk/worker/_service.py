"""Runs the calls of a server against the registered processes. Knows no HTTP framework."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import ValidationError

from xdb_sdk._definition import ProcessDefinition, StateDefinition, unknown_name
from xdb_sdk._errors import NotRegisteredError
from xdb_sdk._registry import Registry
from xdb_sdk.protocol import (
    CommandRequestBody,
    ExecuteAnswer,
    ExecuteCall,
    ProcessClosedCall,
    RpcAnswer,
    RpcCall,
    WaitingType,
    WaitUntilAnswer,
    WaitUntilCall,
)
from xdb_sdk.worker._blocking import watched
from xdb_sdk.worker._calls import RunningCall, RunningCalls
from xdb_sdk.worker._failure import (
    WorkerCallError,
    WorkerResponse,
    invalid_request,
    refusal,
    request_failure,
    response_of,
    revision,
    sdk_failure,
    user_failure,
)
from xdb_sdk.worker._invocation import ExecuteInvocation, Invocation, RpcInvocation, WaitUntilInvocation
from xdb_sdk.worker._metrics import UserCall, WorkerMetrics
from xdb_sdk.worker._options import DEFAULT_WORKER_OPTIONS, WorkerOptions
from xdb_sdk.worker._sizes import WorkerAnswer, encode_within_limits
from xdb_sdk.worker._tracing import call_span

logger = logging.getLogger(__name__)

WorkerCall = WaitUntilCall | ExecuteCall | RpcCall | ProcessClosedCall
"""Everything that a server asks of a worker."""

AnswerT = TypeVar("AnswerT", WaitUntilAnswer, ExecuteAnswer, RpcAnswer)

_NO_ATTEMPT = frozenset({HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
"""Statuses that use up no attempt: read again, and come again later."""


class WorkerService:
    """Run wait_until, execute and RPC methods, inside whatever receives the calls.

    `Worker` serves it as an ASGI application. In another framework, answer each path of the worker protocol with
    `respond`, and call `stop` when the application stops. The `handle_*` methods are for those who have the wire
    models in hand; they run in the task of their caller, for whom `stop` does not wait.

    A call is not cancelled when its deadline passes or its caller goes away: its answer is then not wanted any more,
    but what it does to the world outside may well be. It sees `ctx.deadline` and `ctx.is_stopped()`.

    Args:
        registry: The processes to run.
        options: Limits.

    Source: semantics 2.6, 8.
    """

    def __init__(self, registry: Registry, options: WorkerOptions = DEFAULT_WORKER_OPTIONS) -> None:
        self._registry = registry
        self._options = options
        self._calls = RunningCalls(options)
        self._metrics = WorkerMetrics(registry, self._calls)
        self._blocked_loop_s = options.blocked_loop_warning.total_seconds()
        self._methods_that_blocked: set[str] = set()

    @property
    def registry(self) -> Registry:
        """The processes that it runs."""
        return self._registry

    def start(self) -> None:
        """Accept calls. Only needed after `stop`."""
        self._calls.start()

    async def stop(self) -> None:
        """Refuse new calls with 503 and wait for the running ones, at most `shutdown_grace`; leave nothing behind."""
        await self._calls.stop()

    def health(self) -> dict[str, Any]:
        """Say whether calls are accepted, how many run, and which process types are served."""
        return {
            "status": "stopping" if self._calls.is_stopping else "ok",
            "runningCalls": self._calls.count,
            "processTypes": sorted(self._registry.process_types),
        }

    def metrics(self, accept: str = "") -> tuple[bytes, str]:
        """Write the metrics of this worker and its process for Prometheus, and say their content type.

        Args:
            accept: The Accept header of the request, which chooses between the text format and OpenMetrics.
        """
        return self._metrics.render(accept)

    async def respond(self, call_type: type[WorkerCall], body: bytes) -> WorkerResponse:
        """Answer one call, given as the JSON of its wire model. Never raises; a failure is an answer as well.

        The call runs in a task of its own: cancelling this method does not cancel it.
        """
        try:
            call = call_type.model_validate_json(body)
        except ValidationError as error:
            return response_of(invalid_request(error))
        answered: asyncio.Future[WorkerResponse] = asyncio.get_running_loop().create_future()
        self.submit(call, partial(_resolve, answered))
        return await answered

    def submit(self, call: WorkerCall, deliver: Callable[[WorkerResponse], None]) -> None:
        """Start a call in a task of its own; `deliver` is called once, on the event loop, when it is answered."""
        if isinstance(call, ProcessClosedCall):
            self.handle_process_closed(call)
            deliver(WorkerResponse(HTTPStatus.OK, b"{}"))
        else:
            self._calls.spawn(self._answer(call, deliver))

    def handle_process_closed(self, call: ProcessClosedCall) -> None:
        """Tell the running calls of a closed execution: their `ctx.is_stopped()` becomes true."""
        self._calls.mark_stopped(call.process_execution_id)

    async def handle_wait_until(self, call: WaitUntilCall) -> WaitUntilAnswer:
        """Run the wait_until of a state.

        A state that has none any more, because the worker was redeployed, waits for nothing.

        Raises:
            WorkerCallError: Anything else than an answer; `status` and `body` are to be sent.
        """
        process, state = self._state_of(call)
        if state.wait_until is None:
            return WaitUntilAnswer(command_request=CommandRequestBody(waiting_type=WaitingType.EMPTY))
        return await self._run(WaitUntilInvocation(process, state, state.wait_until, call))

    async def handle_execute(self, call: ExecuteCall) -> ExecuteAnswer:
        """Run the execute of a state.

        Raises:
            WorkerCallError: Anything else than an answer; `status` and `body` are to be sent.
        """
        process, state = self._state_of(call)
        return await self._run(ExecuteInvocation(process, state, call))

    async def handle_rpc(self, call: RpcCall) -> RpcAnswer:
        """Run an RPC method.

        Raises:
            WorkerCallError: Anything else than an answer; `status` and `body` are to be sent.
        """
        process = self._process_of(call)
        rpc = process.rpcs.get(call.rpc_name)
        if rpc is None:
            raise _not_found("RpcNotFound", f"{call.process_type} has no RPC", call.rpc_name, process.rpcs)
        return await self._run(RpcInvocation(process, rpc, call))

    def _process_of(self, call: UserCall) -> ProcessDefinition:
        try:
            return self._registry.process_of_type(call.process_type)
        except NotRegisteredError as error:
            raise refusal(HTTPStatus.NOT_FOUND, "ProcessTypeNotFound", str(error)) from error

    def _state_of(self, call: WaitUntilCall | ExecuteCall) -> tuple[ProcessDefinition, StateDefinition]:
        process = self._process_of(call)
        state = process.states.get(call.state_id)
        if state is None:
            raise _not_found("StateNotFound", f"{call.process_type} has no state", call.state_id, process.states)
        return process, state

    async def _run(self, invocation: Invocation[Any, AnswerT]) -> AnswerT:
        """Admit a call, run the user's method on what it declares, and turn what it did into the answer."""
        running = self._calls.admit(invocation.call.context, needs_thread=not invocation.method.is_async)
        try:
            if (missing := invocation.missing_read()) is not None:
                raise revision(missing)
            try:
                arguments = invocation.arguments(running)
            except (ValueError, OverflowError) as error:
                raise request_failure(error) from error
            result = await self._call_user(invocation, running, arguments)
            try:
                return invocation.answer(result)
            except ValueError as error:  # a value of the user's that fits neither its type nor the wire
                raise user_failure(error) from error
        finally:
            self._calls.leave(running)

    async def _call_user(
        self, invocation: Invocation[Any, AnswerT], running: RunningCall, arguments: Mapping[str, Any]
    ) -> Any:
        method = invocation.method
        try:
            if not method.is_async:
                function = partial(method.function, invocation.instance, **arguments)
                return await self._calls.run_in_thread(running, function)
            coroutine = method.function(invocation.instance, **arguments)
            return await watched(coroutine, self._blocked_loop_s, partial(self._warn_of_blocking, invocation.where))
        except WorkerCallError:
            raise  # no thread was free in time: user code was never reached
        except BaseException as error:
            if _is_own_cancellation(error):
                raise
            raise user_failure(error) from error

    async def _answer(self, call: UserCall, deliver: Callable[[WorkerResponse], None]) -> None:
        """Run a call and deliver its answer, whatever happens on the way."""
        began_s = time.perf_counter()
        with call_span(call) as trace:
            try:
                response = WorkerResponse(HTTPStatus.OK, encode_within_limits(await self._handle(call), self._options))
            except BaseException as error:
                failure = self._failure_of(error)
                self._log(call, failure)
                if failure.status not in _NO_ATTEMPT:
                    trace.fail(f"{failure.error_type}: {failure.error_message}", error.__cause__ or error)
                response = response_of(failure)
        self._metrics.answered(call, response.status, time.perf_counter() - began_s)
        deliver(response)

    async def _handle(self, call: UserCall) -> WorkerAnswer:
        match call:
            case ExecuteCall():
                return await self.handle_execute(call)
            case WaitUntilCall():
                return await self.handle_wait_until(call)
            case RpcCall():
                return await self.handle_rpc(call)

    def _failure_of(self, error: BaseException) -> WorkerCallError:
        if isinstance(error, WorkerCallError):
            return error
        if not isinstance(error, asyncio.CancelledError):
            return sdk_failure(error)
        if self._calls.is_stopping:
            return self._calls.stopping()
        return user_failure(error)  # nobody else cancels this task: the user's method has

    def _log(self, call: UserCall, failure: WorkerCallError) -> None:
        if failure.status in _NO_ATTEMPT:
            return
        context = call.context
        logger.log(
            logging.ERROR if failure.status >= HTTPStatus.INTERNAL_SERVER_ERROR else logging.WARNING,
            "call failed: %s",
            failure.detail,
            extra={
                "operation": _operation_of(call),
                "error_type": failure.error_type,
                "error_message": failure.error_message,
                "status": int(failure.status),
                "namespace": context.namespace,
                "process_id": context.process_id,
                "process_execution_id": context.process_execution_id,
                "process_type": call.process_type,
                "state_execution_id": context.state_execution_id,
                "attempt": context.attempt,
            },
        )

    def _warn_of_blocking(self, where: str, took_s: float) -> None:
        if where in self._methods_that_blocked:
            return
        self._methods_that_blocked.add(where)
        logger.warning(
            "%s blocked the event loop for %.1f s, and with it every other call of this worker; "
            "make it a plain `def`, or await asyncio.to_thread(...) around what blocks",
            where,
            took_s,
            extra={"method": where, "blocked_s": took_s},
        )


def _resolve(answered: asyncio.Future[WorkerResponse], response: WorkerResponse) -> None:
    if not answered.done():  # its request may have been cancelled meanwhile
        answered.set_result(response)


def _not_found(error_type: str, problem: str, name: str, known: Iterable[str]) -> WorkerCallError:
    detail = unknown_name(f"{problem} {name!r} in this worker", name, known)
    return refusal(HTTPStatus.NOT_FOUND, error_type, detail)


def _operation_of(call: UserCall) -> str:
    match call:
        case ExecuteCall():
            return f"execute of {call.state_id}"
        case WaitUntilCall():
            return f"wait_until of {call.state_id}"
        case RpcCall():
            return f"rpc {call.rpc_name}"


def _is_own_cancellation(error: BaseException) -> bool:
    """Tell a cancellation of the task that runs the call from a CancelledError that user code has raised."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
