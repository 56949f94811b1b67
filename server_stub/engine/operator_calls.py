"""What operators do to one execution or to many (semantics 3.6, 6.1; idempotency-and-shards D.10)."""

import asyncio
from collections.abc import Awaitable, Callable

from server_stub.core.allowed_urls import AllowedUrls, not_allowed
from server_stub.core.client_events import StopProcess
from server_stub.core.events import Event
from server_stub.core.model import ProcessExecution, ProcessKey, RequestType
from server_stub.core.once_events import BeginBulk
from server_stub.core.operator_events import (
    CompleteState,
    PauseProcess,
    ReplaceWorkerUrl,
    ResumeProcess,
    RetryState,
    SkipTimer,
    UpdateConfig,
    is_replaced,
)
from server_stub.core.ports import Store
from server_stub.core.requests import AnswerT, RequestClaim
from server_stub.engine.answered import answered
from server_stub.engine.claims import Claims
from server_stub.engine.commits import Commits
from server_stub.engine.errors import ServiceError, refusal
from server_stub.engine.pages import page_token, parse_page_token
from server_stub.engine.views import process_summary
from xdb_sdk.protocol import (
    BulkAnswer,
    BulkRequest,
    CompleteStateAnswer,
    CompleteStateRequest,
    DoneAnswer,
    ErrorSubType,
    ListRequest,
    OperatorRequest,
    PauseAnswer,
    PauseRequest,
    ProcessStatus,
    ReplaceWorkerUrlRequest,
    ResumeRequest,
    RetryStateRequest,
    SkipTimerRequest,
    StopProcessesRequest,
    StopRequest,
    UpdateConfigRequest,
    normal_url,
)


def checked_worker_url(url: str, allowed: AllowedUrls) -> str:
    """Give a worker URL in its normal form.

    Raises:
        ServiceError: It is none, or not one that this server may call.
    """
    try:
        worker_url = normal_url(url)
    except ValueError as error:
        raise refusal(ErrorSubType.INVALID_REQUEST, f"workerUrl {error}") from error
    if not allowed.allow(worker_url):
        raise refusal(ErrorSubType.INVALID_REQUEST, f"workerUrl {not_allowed(worker_url)}")
    return worker_url


class OperatorCalls:
    """The use cases of operators. Every method raises `ServiceError` for what it refuses.

    Args:
        commits: Commits what they change.
        claims: Makes requests such as are carried out once.
        store: Lists executions.
        allowed_worker_urls: Those that executions may be given.
    """

    def __init__(self, commits: Commits, claims: Claims, store: Store, allowed_worker_urls: AllowedUrls) -> None:
        self._commits = commits
        self._claims = claims
        self._store = store
        self._allowed_worker_urls = allowed_worker_urls

    async def skip_timer(self, request: SkipTimerRequest) -> DoneAnswer:
        """Complete a timer command now (semantics 3.6)."""
        return await self._once(SkipTimer(request), request, RequestType.SKIP_TIMER, DoneAnswer)

    async def retry_state(self, request: RetryStateRequest) -> DoneAnswer:
        """Make the next attempt of a state now that waits for it."""
        return await self._once(RetryState(request), request, RequestType.RETRY, DoneAnswer)

    async def complete_state(self, request: CompleteStateRequest) -> CompleteStateAnswer:
        """End a state execution by a decision of the operator."""
        event = CompleteState(request)
        return await self._once(event, request, RequestType.COMPLETE_STATE, CompleteStateAnswer)

    async def pause(self, request: PauseRequest) -> PauseAnswer:
        """Call the states of an execution no more until it is resumed."""
        return await self._once(PauseProcess(request), request, RequestType.PAUSE, PauseAnswer)

    async def resume(self, request: ResumeRequest) -> PauseAnswer:
        """Call the states of a paused execution again."""
        return await self._once(ResumeProcess(request), request, RequestType.RESUME, PauseAnswer)

    async def update_config(self, request: UpdateConfigRequest) -> DoneAnswer:
        """Change the worker URL or the timeout of a running execution."""
        event = request
        if request.worker_url is not None:
            try:
                worker_url = checked_worker_url(request.worker_url, self._allowed_worker_urls)
            except ServiceError:
                claim = self._claim(request, RequestType.UPDATE_CONFIG)
                if known := await self._commits.known(claim, DoneAnswer):
                    return known
                raise
            event = request.model_copy(update={"worker_url": worker_url})
        return await self._once(UpdateConfig(event), request, RequestType.UPDATE_CONFIG, DoneAnswer)

    async def stop_processes(self, request: StopProcessesRequest) -> BulkAnswer:
        """Close many running executions, some at a time."""

        async def stop(process: ProcessExecution) -> bool:
            return (await self._commits.commit(StopProcess(_stop_of(process, request)))).changed

        return await self._change_many(request, RequestType.STOP_MANY, lambda process: True, stop)

    async def replace_worker_url(self, request: ReplaceWorkerUrlRequest) -> BulkAnswer:
        """Give many running executions another worker URL, some at a time."""
        urls = {"new_worker_url": checked_worker_url(request.new_worker_url, self._allowed_worker_urls)}
        if request.old_worker_url is not None:
            urls["old_worker_url"] = _old_worker_url(request.old_worker_url)
        exact = request.model_copy(update=urls)

        async def replace(process: ProcessExecution) -> bool:
            return await self._commits.commit(ReplaceWorkerUrl(process.process_execution_id, exact))

        request_type = RequestType.REPLACE_WORKER_URL
        return await self._change_many(request, request_type, lambda process: is_replaced(process, exact), replace)

    async def _once(
        self, event: Event[AnswerT], request: OperatorRequest, request_type: RequestType, answer_type: type[AnswerT]
    ) -> AnswerT:
        return await self._commits.once(event, self._claim(request, request_type), answer_type)

    def _claim(self, request: OperatorRequest, request_type: RequestType) -> RequestClaim | None:
        return self._claims.of(request, ProcessKey(request.namespace, request.process_id), request_type)

    async def _change_many(
        self,
        request: BulkRequest,
        request_type: RequestType,
        matches: Callable[[ProcessExecution], bool],
        change: Callable[[ProcessExecution], Awaitable[bool]],
    ) -> BulkAnswer:
        """Change the executions of one page that the filters fit, each by an event of its own.

        The committer puts many events into one transaction. What the database does not do is told once all have been
        tried; the same page may be asked for again then.
        """
        request = await self._as_it_came_first(request, request_type)
        after = parse_page_token(request.next_page_token)
        found = await answered(self._store.list_processes(_list_of(request), after))
        page = found[: request.page_size]
        prefix = request.process_id_prefix or ""
        chosen = [process for process in page if process.process_id.startswith(prefix) and matches(process)]
        outcomes: list[bool | BaseException] = []
        if not request.dry_run:
            outcomes = await asyncio.gather(*map(change, chosen), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not _has_gone(outcome):
                raise outcome
        return BulkAnswer(
            examined=len(page),
            matched=len(chosen),
            changed=outcomes.count(True),
            processes=tuple(map(process_summary, chosen)) if request.dry_run else (),
            next_page_token=page_token(page[-1]) if len(found) > len(page) else None,
        )

    async def _as_it_came_first(self, request: BulkRequest, request_type: RequestType) -> BulkRequest:
        """Bound a request by the instant at which it came first, so that its repetitions change nothing newer."""
        if request.dry_run:
            return request
        asked = request.model_copy(update={"page_size": 1, "next_page_token": None})
        claim = self._claims.of(asked, ProcessKey(request.namespace, ""), request_type)
        if claim is None:
            return request
        before_ms = await self._commits.commit(BeginBulk(claim)) + 1
        if request.started_before_ms is not None:
            before_ms = min(before_ms, request.started_before_ms)
        return request.model_copy(update={"started_before_ms": before_ms})


def _old_worker_url(url: str) -> str:
    """Give a worker URL that executions have in the form in which they have it.

    Raises:
        ServiceError: It is no URL.
    """
    try:
        return normal_url(url)
    except ValueError as error:
        raise refusal(ErrorSubType.INVALID_REQUEST, f"oldWorkerUrl {error}") from error


def _has_gone(error: BaseException) -> bool:
    """Say whether an execution was not changed because it is not there any more."""
    return isinstance(error, ServiceError) and error.status in (404, 409)


def _list_of(request: BulkRequest) -> ListRequest:
    return ListRequest(
        namespace=request.namespace,
        process_type=request.process_type,
        statuses=(ProcessStatus.RUNNING,),
        started_from_ms=request.started_from_ms,
        started_before_ms=request.started_before_ms,
        page_size=request.page_size,
    )


def _stop_of(process: ProcessExecution, request: StopProcessesRequest) -> StopRequest:
    return StopRequest(
        namespace=process.namespace,
        process_id=process.process_id,
        process_execution_id=process.process_execution_id,
        stop_type=request.stop_type,
        reason=request.reason,
        request_id=request.request_id,
    )
