"""The use cases of the service API (semantics 1, 5, 6): each turns a request into an event or a read."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from server_stub.core.allowed_urls import ANY_URL, AllowedUrls
from server_stub.core.client_events import (
    PublishMessages,
    SetAttributes,
    StartProcess,
    StopProcess,
)
from server_stub.core.model import ProcessExecution, ProcessKey, RequestType
from server_stub.core.once_events import HalfClaims, PublishOrStart, of_halves
from server_stub.core.ports import (
    Clock,
    ProcessLookup,
    Store,
)
from server_stub.core.reads import loaded_data, plan_reads
from server_stub.core.refusals import InvalidAnswer, process_not_found
from server_stub.core.requests import RequestClaim
from server_stub.core.reset import ResetProcess
from server_stub.core.shards import shard_of
from server_stub.dispatch.dispatcher import Dispatcher
from server_stub.engine.answered import answered
from server_stub.engine.claims import Claims
from server_stub.engine.commits import Commits
from server_stub.engine.committer import Committer
from server_stub.engine.deadlines import Deadlines
from server_stub.engine.errors import (
    ServiceError,
    of_refused,
    refusal,
)
from server_stub.engine.operator_calls import OperatorCalls, checked_worker_url
from server_stub.engine.pages import page_token, parse_page_token
from server_stub.engine.process_finder import ProcessFinder
from server_stub.engine.rpc_calls import RpcCalls
from server_stub.engine.views import describe_answer, history_answer, process_summary, state_answer, wait_answer
from server_stub.engine.waiters import Subscription, Waiters
from xdb_sdk.protocol import (
    MAX_DESCRIBED_STATES,
    MAX_LONG_POLL_MS,
    DescribeAnswer,
    DescribeRequest,
    DoneAnswer,
    ErrorSubType,
    GetAttributesAnswer,
    GetAttributesRequest,
    GetHistoryAnswer,
    GetHistoryRequest,
    IdReusePolicy,
    ListAnswer,
    ListRequest,
    ProcessRequest,
    PublishAnswer,
    PublishOrStartAnswer,
    PublishOrStartRequest,
    PublishRequest,
    ResetAnswer,
    ResetRequest,
    RpcBody,
    RpcOrStartAnswer,
    RpcOrStartRequest,
    RpcRequest,
    RpcServiceAnswer,
    SetAttributesRequest,
    StartAnswer,
    StartRequest,
    StateStatus,
    StopAnswer,
    StopRequest,
    WaitForCompletionAnswer,
    WaitForCompletionRequest,
    WaitForStateAnswer,
    WaitForStateRequest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsOptions:
    """Settings of the use cases."""

    max_rpc_timeout_ms: int = 60_000
    commit_timeout_s: float = 10.0
    """How long a call of a client may take to be committed."""
    recheck_s: float = 10.0
    """How often a long poll looks at the database by itself: a safety net, since commits wake it."""
    allowed_worker_urls: AllowedUrls = ANY_URL


class Operations(OperatorCalls):
    """What the service API can do. Every method raises `ServiceError` for what it refuses, and nothing else on purpose.

    Args:
        clock: The time, for what is told about attempts.
        ids: Makes the ids of new executions.
        num_shards: How many shards executions are spread over.
        claims: Makes requests such as are carried out once.
    """

    def __init__(
        self,
        *,
        committer: Committer,
        store: Store,
        dispatcher: Dispatcher,
        waiters: Waiters,
        clock: Clock,
        ids: Callable[[], str],
        num_shards: int,
        claims: Claims,
        options: OperationsOptions,
    ) -> None:
        deadlines = Deadlines(options.commit_timeout_s)
        commits = Commits(committer, deadlines, claims, store, clock)
        super().__init__(commits, claims, store, options.allowed_worker_urls)
        self._finder = ProcessFinder(store)
        self._rpcs = RpcCalls(committer, dispatcher, deadlines, max_timeout_ms=options.max_rpc_timeout_ms)
        self._waiters = waiters
        self._clock = clock
        self._ids = ids
        self._num_shards = num_shards
        self._options = options

    def begin_shutdown(self) -> None:
        """Answer every long poll, present and future, that the server is stopping."""
        self._waiters.stop()

    async def start(self, request: StartRequest) -> StartAnswer:
        """Start a process execution (semantics 1)."""
        answer = await self._start(request)
        return answer.model_copy(update={"already_started": True}) if answer.duplicate else answer

    async def _start(self, request: StartRequest) -> StartAnswer:
        """Start an execution; a request that comes again is answered word for word as it was the first time."""
        claim = self._claims.of(request, _key(request), RequestType.START)
        try:
            event = await self._start_event(request)
        except ServiceError:
            if known := await self._commits.known(claim, StartAnswer):
                return known
            raise
        return await self._commits.once(event, claim, StartAnswer)

    async def _start_event(self, request: StartRequest) -> StartProcess:
        worker_url = checked_worker_url(request.worker_url, self._options.allowed_worker_urls)
        tables = tuple([await answered(self._store.canonical_mapping(mapping)) for mapping in request.tables])
        request = request.model_copy(update={"worker_url": worker_url, "tables": tables})
        return StartProcess(request, self._ids(), shard_of(_key(request), self._num_shards))

    async def stop(self, request: StopRequest) -> StopAnswer:
        """Close a running execution (semantics 6.1)."""
        claim = self._claims.of(request, _key(request), RequestType.STOP)
        return await self._commits.once(StopProcess(request), claim, StopAnswer)

    async def publish(self, request: PublishRequest) -> PublishAnswer:
        """Append messages to internal queues (semantics 6.3)."""
        claim = self._claims.of(request, _key(request), RequestType.PUBLISH)
        return await self._commits.once(PublishMessages(request), claim, PublishAnswer)

    async def publish_or_start(self, request: PublishOrStartRequest) -> PublishOrStartAnswer:
        """Publish to the running execution, or to one that is started (idempotency-and-shards D.4)."""
        start, key = _start_half(request.start, request.request_id), _key(request.start)
        publish = PublishRequest(
            namespace=start.namespace,
            process_id=start.process_id,
            messages=request.messages,
            request_id=request.request_id,
        )
        claims = None
        if request.request_id is not None:
            start_claim = self._claims.of(start, key, RequestType.START)
            claim = self._claims.of(publish, key, RequestType.PUBLISH)
            assert start_claim is not None and claim is not None, "there is a request id"  # noqa: PT018  # not a test
            claims = HalfClaims(start_claim, claim)
        try:
            event = await self._start_event(start)
        except ServiceError:
            if claims is not None and (known := await self._known_halves(claims)):
                return known
            raise
        answer = await self._commits.commit(PublishOrStart(event, publish, claims))
        self._claims.count(RequestType.PUBLISH, answer)
        return answer

    async def _known_halves(self, claims: HalfClaims) -> PublishOrStartAnswer | None:
        started = await self._commits.known(claims.start, StartAnswer)
        published = await self._commits.known(claims.other, PublishAnswer)
        return of_halves(started, published) if started and published else None

    async def set_attributes(self, request: SetAttributesRequest) -> DoneAnswer:
        """Write attributes from outside (semantics 6.5)."""
        claim = self._claims.of(request, _key(request), RequestType.SET_ATTRIBUTES)
        return await self._commits.once(SetAttributes(request), claim, DoneAnswer)

    async def describe(self, request: DescribeRequest) -> DescribeAnswer:
        """Tell everything about an execution (semantics 6.2)."""
        process = await self._find(request)
        latest = MAX_DESCRIBED_STATES if {"closed_states", "all"} & set(request.include) else 0
        states = await answered(self._store.find_states(process.process_execution_id, latest=latest))
        queue_sizes: dict[str, int] | None = None
        if {"queues", "all"} & set(request.include):
            queue_sizes = await answered(self._store.count_messages(process.process_execution_id))
        return describe_answer(process, states, queue_sizes, now_ms=self._clock())

    async def get_history(self, request: GetHistoryRequest) -> GetHistoryAnswer:
        """Give a page of the event history of an execution, open or closed (idempotency-and-shards D.10)."""
        process = await self._find(request)
        events = await answered(
            self._store.find_history(
                process.process_execution_id, after=request.after_event_id, limit=request.page_size + 1
            )
        )
        return history_answer(process, events, page_size=request.page_size)

    async def reset(self, request: ResetRequest) -> ResetAnswer:
        """Go on from a point of an execution's history in a new execution (semantics 6.7)."""
        claim = self._claims.of(request, _key(request), RequestType.RESET)
        return await self._commits.once(ResetProcess(request, self._ids()), claim, ResetAnswer)

    async def list_processes(self, request: ListRequest) -> ListAnswer:
        """List executions, newest first (semantics 6.6)."""
        after = parse_page_token(request.next_page_token)
        found = await answered(self._store.list_processes(request, after))
        page = found[: request.page_size]
        token = page_token(page[-1]) if len(found) > len(page) else None
        return ListAnswer(processes=tuple(process_summary(process) for process in page), next_page_token=token)

    async def get_attributes(self, request: GetAttributesRequest) -> GetAttributesAnswer:
        """Read attributes from outside, also of a closed execution (semantics 6.5)."""
        process = await self._find(request)
        try:
            plan = plan_reads(
                process.process_execution_id,
                process.tables,
                request.read,
                read_all_local=request.all_local_attributes,
            )
        except InvalidAnswer as error:
            raise refusal(ErrorSubType.INVALID_REQUEST, str(error), process.process_execution_id) from error
        local = [plan.local_attributes] if plan.local_attributes else []
        reads = await answered(self._store.read_for_calls(plan.rows, local))
        return GetAttributesAnswer(process_execution_id=process.process_execution_id, loaded=loaded_data(plan, reads))

    async def rpc(self, request: RpcRequest) -> RpcServiceAnswer:
        """Call an RPC of the process; its changes are visible when this returns (semantics 5)."""
        claim = None if request.read_only else self._claims.of(request, _key(request), RequestType.RPC)
        return await self._rpc(request, claim)

    async def _rpc(self, request: RpcRequest, claim: RequestClaim | None) -> RpcServiceAnswer:
        known = await self._commits.known(claim, RpcServiceAnswer)
        if known is not None:
            return known
        answer = await self._rpcs.call(await self._find(request), request, request.trace_context, claim)
        self._claims.count(RequestType.RPC, answer)
        return answer

    async def rpc_or_start(self, request: RpcOrStartRequest) -> RpcOrStartAnswer:
        """Call an RPC of the running execution, or of one that is started first (idempotency-and-shards D.4)."""
        started = await self._start(_start_half(request.start, request.request_id))
        body = {name: getattr(request, name) for name in RpcBody.model_fields}
        start = request.start
        rpc = RpcRequest(namespace=start.namespace, process_id=start.process_id, request_id=request.request_id, **body)
        claim = None if rpc.read_only else self._claims.of(rpc, _key(start), RequestType.RPC)
        exactly = {"process_execution_id": started.process_execution_id, "trace_context": request.trace_context}
        answer = await self._rpc(rpc.model_copy(update=exactly), claim)
        return RpcOrStartAnswer(**dict(answer), started=not started.already_started)

    async def wait_for_completion(self, request: WaitForCompletionRequest) -> WaitForCompletionAnswer:
        """Wait until the execution closes that is current now, or the one named (semantics 6.4)."""
        deadline = _deadline(request.timeout_ms)
        with self._waiters.of_process(ProcessKey(request.namespace, request.process_id)) as subscription:
            process = await self._find(request)
            exact = request.model_copy(update={"process_execution_id": process.process_execution_id})
            if process.is_running:
                self._waiters.await_closing(subscription, process.process_execution_id)
            while process.is_running and self._may_wait(deadline):
                await self._news(subscription, deadline)
                closed = subscription.closed.get(process.process_execution_id)
                process = closed if closed is not None else await self._find(exact)
        return wait_answer(process, server_stopping=self._waiters.is_stopping)

    async def wait_for_state_completion(self, request: WaitForStateRequest) -> WaitForStateAnswer:
        """Wait until a state execution ends, or can no longer come to be (semantics 6.8)."""
        deadline = _deadline(request.timeout_ms)
        process = await self._find(request)
        exact = request.model_copy(update={"process_execution_id": process.process_execution_id})
        number = None if request.wait_for_key is not None else request.number
        with self._waiters.of_states(process.process_execution_id) as subscription:
            while True:
                process = await self._find(exact)
                state = await answered(
                    self._store.find_state(
                        process.process_execution_id,
                        request.state_id,
                        number=number,
                        wait_for_key=request.wait_for_key,
                    )
                )
                has_ended = state is not None and state.status is not StateStatus.RUNNING
                if has_ended or not process.is_running or not self._may_wait(deadline):
                    return state_answer(process, state, server_stopping=self._waiters.is_stopping)
                await self._news(subscription, deadline)

    def _may_wait(self, deadline: float) -> bool:
        return not self._waiters.is_stopping and asyncio.get_running_loop().time() < deadline

    async def _news(self, subscription: Subscription, deadline: float) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        await subscription.news(min(max(left_s, 0), self._options.recheck_s))

    async def _find(self, request: ProcessRequest) -> ProcessExecution:
        key = ProcessKey(request.namespace, request.process_id)
        process = await answered(self._finder.find(ProcessLookup(key, request.process_execution_id)))
        if process is None:
            raise of_refused(process_not_found(request))
        return process


def _key(request: ProcessRequest | StartRequest) -> ProcessKey:
    return ProcessKey(request.namespace, request.process_id)


def _start_half(start: StartRequest, request_id: str | None) -> StartRequest:
    """Give the start of a request that starts what is not running."""
    if start.request_id is not None:
        raise refusal(ErrorSubType.INVALID_REQUEST, "start.requestId is that of the whole request; give it there")
    if start.id_reuse_policy is IdReusePolicy.TERMINATE_IF_RUNNING:
        raise refusal(
            ErrorSubType.INVALID_REQUEST,
            "start.idReusePolicy TERMINATE_IF_RUNNING would end the execution that is asked for; give another policy",
        )
    return start.model_copy(update={"request_id": request_id, "ignore_already_started": True})


def _deadline(timeout_ms: int) -> float:
    return asyncio.get_running_loop().time() + min(timeout_ms, MAX_LONG_POLL_MS) / 1000
