"""The use cases of the service API (semantics 1, 5, 6): each turns a request into an event or a read."""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from server_stub.core.allowed_urls import ANY_URL, AllowedUrls, not_allowed
from server_stub.core.call_events import RpcReturned
from server_stub.core.client_events import (
    PublishMessages,
    SetAttributes,
    SkipTimer,
    StartProcess,
    StopProcess,
    UpdateConfig,
)
from server_stub.core.events import Event
from server_stub.core.model import ProcessExecution, ProcessKey
from server_stub.core.outcomes import CallFailure, RpcAnswered, Verdict
from server_stub.core.ports import (
    Clock,
    CommitOutcomeUnknown,
    MappingRefused,
    ProcessLookup,
    Store,
    StoreError,
    StoreUnavailable,
)
from server_stub.core.reads import loaded_data, plan_reads
from server_stub.core.refusals import InvalidAnswer, Refused, process_not_found
from server_stub.core.shards import shard_of
from server_stub.dispatch.dispatcher import Dispatcher, RpcNotAnswered
from server_stub.dispatch.jobs import RpcInvocation
from server_stub.engine.committer import Committer, CommitterFull
from server_stub.engine.deadlines import Deadlines
from server_stub.engine.errors import (
    of_call_failure,
    of_refused,
    of_store_error,
    of_unanswered_rpc,
    refusal,
    rpc_not_committed,
    too_busy,
)
from server_stub.engine.process_finder import ProcessFinder
from server_stub.engine.views import describe_answer, process_summary, state_answer, wait_answer
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
    ListAnswer,
    ListRequest,
    ProcessRequest,
    PublishAnswer,
    PublishRequest,
    RpcRequest,
    RpcServiceAnswer,
    SetAttributesRequest,
    SkipTimerRequest,
    StartAnswer,
    StartRequest,
    StateStatus,
    StopAnswer,
    StopRequest,
    UpdateConfigRequest,
    WaitForCompletionAnswer,
    WaitForCompletionRequest,
    WaitForStateAnswer,
    WaitForStateRequest,
    normal_url,
)

ResultT = TypeVar("ResultT")

_LEAST_COMMIT_S = 2.0
"""How long the answer of an RPC may take to be committed, however late it came; less than clients wait beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsOptions:
    """Settings of the use cases."""

    max_rpc_timeout_ms: int = 60_000
    commit_timeout_s: float = 10.0
    """How long a call of a client may take to be committed."""
    recheck_s: float = 10.0
    """How often a long poll looks at the database by itself: a safety net, since commits wake it."""
    allowed_worker_urls: AllowedUrls = ANY_URL


class Operations:
    """What the service API can do. Every method raises `ServiceError` for what it refuses, and nothing else on purpose.

    Args:
        clock: The time, for what is told about attempts.
        ids: Makes the ids of new executions.
        num_shards: How many shards executions are spread over.
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
        options: OperationsOptions,
    ) -> None:
        self._committer = committer
        self._store = store
        self._finder = ProcessFinder(store)
        self._deadlines = Deadlines(options.commit_timeout_s)
        self._dispatcher = dispatcher
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
        worker_url = self._worker_url(request.worker_url)
        tables = tuple([await self._answered(self._store.canonical_mapping(mapping)) for mapping in request.tables])
        request = request.model_copy(update={"worker_url": worker_url, "tables": tables})
        shard_id = shard_of(ProcessKey(request.namespace, request.process_id), self._num_shards)
        return await self._commit(StartProcess(request, self._ids(), shard_id))

    async def stop(self, request: StopRequest) -> StopAnswer:
        """Close a running execution (semantics 6.1)."""
        return await self._commit(StopProcess(request))

    async def publish(self, request: PublishRequest) -> PublishAnswer:
        """Append messages to internal queues (semantics 6.3)."""
        return await self._commit(PublishMessages(request))

    async def set_attributes(self, request: SetAttributesRequest) -> DoneAnswer:
        """Write attributes from outside (semantics 6.5)."""
        return await self._commit(SetAttributes(request))

    async def skip_timer(self, request: SkipTimerRequest) -> DoneAnswer:
        """Complete a timer command now (semantics 3.6)."""
        return await self._commit(SkipTimer(request))

    async def update_config(self, request: UpdateConfigRequest) -> DoneAnswer:
        """Change the worker URL or the timeout of a running execution."""
        if request.worker_url is not None:
            request = request.model_copy(update={"worker_url": self._worker_url(request.worker_url)})
        return await self._commit(UpdateConfig(request))

    async def describe(self, request: DescribeRequest) -> DescribeAnswer:
        """Tell everything about an execution (semantics 6.2)."""
        process = await self._find(request)
        latest = MAX_DESCRIBED_STATES if "closed_states" in request.include else 0
        states = await self._answered(self._store.find_states(process.process_execution_id, latest=latest))
        queue_sizes: dict[str, int] | None = None
        if "queues" in request.include:
            queue_sizes = await self._answered(self._store.count_messages(process.process_execution_id))
        return describe_answer(process, states, queue_sizes, now_ms=self._clock())

    async def list_processes(self, request: ListRequest) -> ListAnswer:
        """List executions, newest first (semantics 6.6)."""
        after = _parse_page_token(request.next_page_token)
        found = await self._answered(self._store.list_processes(request, after))
        page = found[: request.page_size]
        token = _page_token(page[-1]) if len(found) > len(page) else None
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
        reads = await self._answered(self._store.read_for_calls(plan.rows, local))
        return GetAttributesAnswer(process_execution_id=process.process_execution_id, loaded=loaded_data(plan, reads))

    async def rpc(self, request: RpcRequest) -> RpcServiceAnswer:
        """Call an RPC of the process; its changes are visible when this returns (semantics 5)."""
        process = await self._find(request)
        invocation = RpcInvocation(
            process=process,
            rpc_name=request.rpc_name,
            input=request.input,
            timeout_ms=min(request.timeout_ms, self._options.max_rpc_timeout_ms),
            read=request.read,
            needs_queue_sizes=request.needs_queue_sizes,
            trace_context=request.trace_context,
        )
        ends_at_s = asyncio.get_running_loop().time() + invocation.timeout_ms / 1_000

        async def commit(answered: RpcAnswered) -> Verdict:
            if request.read_only:
                raise refusal(
                    ErrorSubType.INVALID_WORKER_RESPONSE,
                    f"RPC {request.rpc_name!r} is read-only, but its answer has changes to make; nothing was applied",
                    process.process_execution_id,
                )
            event = RpcReturned(process.process_execution_id, answered.answer, answered.read_set)
            return await self._commit_rpc(event, ends_at_s)

        try:
            outcome = await self._answered(self._dispatcher.rpc(invocation, commit))
        except RpcNotAnswered as error:
            raise of_unanswered_rpc(error) from error
        if isinstance(outcome, CallFailure):
            raise of_call_failure(outcome, process.process_execution_id)
        return RpcServiceAnswer(process_execution_id=process.process_execution_id, output=outcome.answer.output)

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
                state = await self._answered(
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

    def _worker_url(self, url: str) -> str:
        try:
            worker_url = normal_url(url)
        except ValueError as error:
            raise refusal(ErrorSubType.INVALID_REQUEST, f"workerUrl {error}") from error
        if not self._options.allowed_worker_urls.allow(worker_url):
            raise refusal(ErrorSubType.INVALID_REQUEST, f"workerUrl {not_allowed(worker_url)}")
        return worker_url

    def _may_wait(self, deadline: float) -> bool:
        return not self._waiters.is_stopping and asyncio.get_running_loop().time() < deadline

    async def _news(self, subscription: Subscription, deadline: float) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        await subscription.news(min(max(left_s, 0), self._options.recheck_s))

    async def _find(self, request: ProcessRequest) -> ProcessExecution:
        key = ProcessKey(request.namespace, request.process_id)
        process = await self._answered(self._finder.find(ProcessLookup(key, request.process_execution_id)))
        if process is None:
            raise of_refused(process_not_found(request))
        return process

    async def _commit_rpc(self, event: RpcReturned, ends_at_s: float) -> Verdict:
        """Commit the answer of an RPC: its method has run, so the database is waited for while there is time."""
        least_s = asyncio.get_running_loop().time() + _LEAST_COMMIT_S
        try:
            async with asyncio.timeout_at(max(ends_at_s, least_s)):
                return await self._committer.submit(event, is_patient=True)
        except CommitOutcomeUnknown as error:
            raise rpc_not_committed("and whether its changes were kept is not known") from error
        except StoreUnavailable as error:
            raise rpc_not_committed("and its changes were not kept") from error
        except TimeoutError as error:
            raise rpc_not_committed("and whether its changes were kept is not known") from error

    async def _commit(self, event: Event[ResultT]) -> ResultT:
        submission = self._committer.submit(event)
        self._deadlines.watch(submission)
        return await self._answered(submission)

    async def _answered(self, awaitable: Awaitable[ResultT]) -> ResultT:
        try:
            return await awaitable
        except Refused as refused:
            raise of_refused(refused) from refused
        except MappingRefused as error:
            raise refusal(ErrorSubType.INVALID_REQUEST, str(error)) from error
        except StoreError as error:
            raise of_store_error(error) from error
        except CommitterFull as error:
            raise too_busy() from error


def _deadline(timeout_ms: int) -> float:
    return asyncio.get_running_loop().time() + min(timeout_ms, MAX_LONG_POLL_MS) / 1000


def _page_token(last: ProcessExecution) -> str:
    return base64.urlsafe_b64encode(f"{last.started_at_ms}:{last.process_execution_id}".encode()).decode()


def _parse_page_token(token: str | None) -> tuple[int, str] | None:
    if token is None:
        return None
    try:
        started_at_ms, _, process_execution_id = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
        if not 0 <= int(started_at_ms) <= 2**53:
            raise ValueError("no instant")
        return int(started_at_ms), process_execution_id
    except (ValueError, binascii.Error) as error:
        raise refusal(
            ErrorSubType.INVALID_REQUEST, "nextPageToken is not one that this server has given out"
        ) from error
