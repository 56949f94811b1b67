"""What operators do, from asynchronous code."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from xdb_sdk._options import StateReference
from xdb_sdk.client._async_history import AsyncHistoryCalls
from xdb_sdk.client._operations import ProcessRef
from xdb_sdk.client._results import BulkResult, PauseResult
from xdb_sdk.protocol import BulkRequest, ProcessStopType

Result = TypeVar("Result")

_NOTHING = BulkResult(examined=0, matched=0, changed=0, processes=())


class AsyncOperatorCalls(AsyncHistoryCalls):
    """The calls of operators. Each is kept in the history of the execution, with its reason and request id."""

    async def pause_process(
        self,
        process_id: str,
        *,
        reason: str | None = None,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> PauseResult:
        """Call the states of a running execution no more, until it is resumed.

        What workers are doing may return, and is applied; what that makes due waits. Timers fire, messages are
        received, RPCs are called, and the execution times out and can be stopped as always. Pausing twice is fine.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            reason: Why, for its history; at most 1000 characters.
            process_execution_id: Pause exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return await self._run(self._operations.pause(ref, reason, request_id))

    async def resume_process(
        self,
        process_id: str,
        *,
        reason: str | None = None,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> PauseResult:
        """Call the states of a paused execution again: what has become due meanwhile at once, the rest in its time.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            reason: Why, for its history; at most 1000 characters.
            process_execution_id: Resume exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        ref = ProcessRef(process_id, process_execution_id)
        return await self._run(self._operations.resume(ref, reason, request_id))

    async def retry_state(
        self,
        process_id: str,
        state: StateReference,
        number: int = 1,
        *,
        reset_attempts: bool = False,
        reason: str | None = None,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Make the next attempt of a state now, which waits for it: after a failed one, or since it was started.

        If the process is paused, the attempt is made once it is resumed.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            state: Which state, by class or id; a client without process classes takes ids.
            number: Which of its executions, from 1.
            reset_attempts: Count its attempts anew, as if none had been made; by default they go on being counted.
            reason: Why, for its history; at most 1000 characters.
            process_execution_id: Retry in exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ClientSideError: There is no such state execution (STATE_NOT_FOUND), it has ended (STATE_NOT_RUNNING), or
                it does not wait for its next attempt (STATE_NOT_BACKING_OFF).
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        plan = self._operations.retry_state(
            ProcessRef(process_id, process_execution_id),
            self._state_id_of(state),
            number,
            reset_attempts=reset_attempts,
            reason=reason,
            request_id=request_id,
        )
        await self._run(plan)

    async def update_process_config(
        self,
        process_id: str,
        *,
        worker_url: str | None = None,
        timeout: timedelta | None = None,
        reason: str | None = None,
        process_execution_id: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Change where the worker of a running execution is, or when it times out.

        At a new worker, states that wait after a failed attempt are called at once.

        Args:
            process_id: Which process; its current execution, unless `process_execution_id` names another.
            worker_url: The new base URL; None leaves it.
            timeout: The new timeout, counted from the start of the execution; zero removes it, None leaves it.
            reason: Why, for its history; at most 1000 characters.
            process_execution_id: Change exactly this execution.
            request_id: By which the server knows a repetition of this call; by default a new one.

        Raises:
            ProcessNotFoundError: There is no such process.
            ProcessNotRunningError: It is closed.
        """
        ref = ProcessRef(process_id, process_execution_id)
        await self._run(self._operations.update_config(ref, worker_url, timeout, reason, request_id))

    async def stop_processes(
        self,
        stop_type: ProcessStopType = ProcessStopType.TERMINATE,
        reason: str | None = None,
        *,
        process_type: str | None = None,
        process_id_prefix: str | None = None,
        started_from: datetime | None = None,
        started_before: datetime | None = None,
        dry_run: bool = False,
        page_size: int = 100,
        on_page: Callable[[BulkResult], None] | None = None,
        request_id: str | None = None,
    ) -> BulkResult:
        """Close all running executions of the namespace that the filters fit; without any, all of them.

        Each is closed by itself, some in a request. If a call breaks off, call again: what is closed is left alone.
        What starts after the call has begun is left alone, also by a repetition with the same `request_id`.

        Args:
            stop_type: Which final status they get.
            reason: Kept with each execution, at most 1000 characters.
            process_type: Only of this type.
            process_id_prefix: Only of process ids that begin so.
            started_from: Started at or after this aware datetime.
            started_before: Started before it.
            dry_run: Close nothing, and tell what would be closed.
            page_size: How many executions are looked at in a request, 1 to 1000.
            on_page: Told after each request what was done so far.
            request_id: Kept in the history of each execution, and known by the server; by default a new one.
        """
        fields = self._operations.bulk_fields(
            process_type=process_type,
            process_id_prefix=process_id_prefix,
            started_from=started_from,
            started_before=started_before,
            reason=reason,
            dry_run=dry_run,
            page_size=page_size,
            request_id=request_id,
        )
        return await self._change_many(self._operations.stop_request(stop_type, fields), on_page)

    async def replace_worker_url(
        self,
        new_worker_url: str,
        old_worker_url: str | None = None,
        *,
        reason: str | None = None,
        process_type: str | None = None,
        process_id_prefix: str | None = None,
        started_from: datetime | None = None,
        started_before: datetime | None = None,
        dry_run: bool = False,
        page_size: int = 100,
        on_page: Callable[[BulkResult], None] | None = None,
        request_id: str | None = None,
    ) -> BulkResult:
        """Give all running executions of the namespace that the filters fit another worker URL.

        States that wait after a failed attempt are called there at once. Each execution is changed by itself, some in
        a request. If a call breaks off, call again: what has the new URL is left alone. What starts after the
        call has begun is left alone, also by a repetition with the same `request_id`.

        Args:
            new_worker_url: The base URL that they get.
            old_worker_url: Only those that have this one; by default those with any other than the new one.
            reason: Why, for the history of each; at most 1000 characters.
            process_type: Only of this type.
            process_id_prefix: Only of process ids that begin so.
            started_from: Started at or after this aware datetime.
            started_before: Started before it.
            dry_run: Change nothing, and tell what would be changed.
            page_size: How many executions are looked at in a request, 1 to 1000.
            on_page: Told after each request what was done so far.
            request_id: Kept in the history of each execution, and known by the server; by default a new one.
        """
        fields = self._operations.bulk_fields(
            process_type=process_type,
            process_id_prefix=process_id_prefix,
            started_from=started_from,
            started_before=started_before,
            reason=reason,
            dry_run=dry_run,
            page_size=page_size,
            request_id=request_id,
        )
        request = self._operations.replace_request(new_worker_url, old_worker_url, fields)
        return await self._change_many(request, on_page)

    async def _change_many(self, first: BulkRequest, on_page: Callable[[BulkResult], None] | None) -> BulkResult:
        request: BulkRequest | None = first
        result = _NOTHING
        while request is not None:
            result, request = await self._run(self._operations.bulk_page(request, result))
            if on_page is not None:
                on_page(result)
        return result
