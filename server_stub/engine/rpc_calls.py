"""One RPC from its call to its commit (semantics 5), once for each request id (idempotency-and-shards D.3)."""

import asyncio
from contextlib import suppress
from typing import TypeVar

from server_stub.core.call_events import RpcReturned
from server_stub.core.events import Event
from server_stub.core.model import ProcessExecution, RequestRecord
from server_stub.core.once_events import ReleaseRpc, ReserveRpc, RpcReturnedOnce
from server_stub.core.outcomes import CallFailure, RpcAnswered, Verdict
from server_stub.core.ports import CommitOutcomeUnknown, StoreError, StoreUnavailable
from server_stub.core.requests import RequestClaim
from server_stub.dispatch.dispatcher import Dispatcher, RpcNotAnswered
from server_stub.dispatch.jobs import RpcInvocation
from server_stub.engine.answered import answered
from server_stub.engine.claims import reservation
from server_stub.engine.committer import Committer, CommitterFull
from server_stub.engine.deadlines import Deadlines
from server_stub.engine.errors import of_call_failure, of_unanswered_rpc, refusal, rpc_not_committed
from xdb_sdk.protocol import ErrorSubType, RpcBody, RpcServiceAnswer

ResultT = TypeVar("ResultT")

_LEAST_COMMIT_S = 2.0
"""How long the answer of an RPC may take to be committed, however late it came; less than clients wait beyond it."""
_RESERVED_BEYOND_MS = 5_000
"""How much longer than its call an exclusive RPC is reserved: for its commit."""


class RpcCalls:
    """Calls RPCs.

    Args:
        committer: Commits what they change.
        dispatcher: Calls the workers.
        deadlines: Bound what is committed before a call.
        max_timeout_ms: The longest call, whatever its caller asks.
    """

    def __init__(
        self, committer: Committer, dispatcher: Dispatcher, deadlines: Deadlines, *, max_timeout_ms: int
    ) -> None:
        self._committer = committer
        self._dispatcher = dispatcher
        self._deadlines = deadlines
        self._max_timeout_ms = max_timeout_ms

    def timeout_ms(self, request: RpcBody) -> int:
        """Give how long the call may take."""
        return min(request.timeout_ms, self._max_timeout_ms)

    async def call(
        self, process: ProcessExecution, request: RpcBody, trace_context: str | None, claim: RequestClaim | None
    ) -> RpcServiceAnswer:
        """Call an RPC and commit what it changes.

        Args:
            process: Whose RPC it is.
            request: What is called.
            trace_context: Where the call belongs.
            claim: That of a request which is carried out once.

        Raises:
            ServiceError: It failed, and nothing was changed.
        """
        if not request.exclusive:
            return await _RpcCall(self, process, request, claim).run(trace_context)
        if request.read_only:
            raise refusal(ErrorSubType.INVALID_REQUEST, "a read-only RPC is made each time; it cannot be exclusive")
        if claim is None:
            raise refusal(ErrorSubType.INVALID_REQUEST, "an exclusive RPC needs a request id, by which others know it")
        return await self._call_alone(process, request, trace_context, claim)

    async def _call_alone(
        self, process: ProcessExecution, request: RpcBody, trace_context: str | None, claim: RequestClaim
    ) -> RpcServiceAnswer:
        """Call an RPC while its request id is reserved for it."""
        brief = reservation(claim, self.timeout_ms(request) + _RESERVED_BEYOND_MS)
        submission = self._committer.submit(ReserveRpc(process.process_execution_id, brief))
        self._deadlines.watch(submission)
        reserved = await answered(submission)
        if isinstance(reserved, RpcServiceAnswer):
            return reserved
        call = _RpcCall(self, process, request, claim)
        try:
            return await call.run(trace_context)
        finally:
            if not call.is_committed:
                await self._release(reserved)

    async def _release(self, reserved: RequestRecord) -> None:
        """Free a request id. Where the database is away the caller is not kept: the reservation ends by itself."""
        submission = self._committer.submit(ReleaseRpc(reserved))
        self._deadlines.watch(submission)
        with suppress(StoreError, CommitterFull):
            await submission

    async def answer_of_worker(
        self, process: ProcessExecution, request: RpcBody, trace_context: str | None, call: "_RpcCall"
    ) -> RpcServiceAnswer:
        """Have the worker called and its answer committed by `call`."""
        invocation = RpcInvocation(
            process=process,
            rpc_name=request.rpc_name,
            input=request.input,
            timeout_ms=self.timeout_ms(request),
            read=request.read,
            needs_queue_sizes=request.needs_queue_sizes,
            trace_context=trace_context,
            request_id=call.request_id,
        )
        try:
            outcome = await answered(self._dispatcher.rpc(invocation, call.commit))
        except RpcNotAnswered as error:
            raise of_unanswered_rpc(error) from error
        if isinstance(outcome, CallFailure):
            raise of_call_failure(outcome, process.process_execution_id)
        return RpcServiceAnswer(process_execution_id=process.process_execution_id, output=outcome.answer.output)

    async def commit(self, event: Event[ResultT], ends_at_s: float) -> ResultT:
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


class _RpcCall:
    """One call."""

    def __init__(
        self, calls: RpcCalls, process: ProcessExecution, request: RpcBody, claim: RequestClaim | None
    ) -> None:
        self._calls = calls
        self._process = process
        self._request = request
        self._claim = claim
        self._ends_at_s = asyncio.get_running_loop().time() + calls.timeout_ms(request) / 1_000
        self._known: RpcServiceAnswer | None = None
        """The answer that counts, if another call of the request was faster."""
        self.is_committed = False

    @property
    def request_id(self) -> str | None:
        """By which repetitions are known."""
        return None if self._claim is None else self._claim.key.request_id

    async def run(self, trace_context: str | None) -> RpcServiceAnswer:
        """Make the call."""
        answer = await self._calls.answer_of_worker(self._process, self._request, trace_context, self)
        return self._known or answer

    async def commit(self, answer: RpcAnswered) -> Verdict:
        """Commit what the worker answered."""
        process_execution_id = self._process.process_execution_id
        if self._request.read_only:
            raise refusal(
                ErrorSubType.INVALID_WORKER_RESPONSE,
                f"RPC {self._request.rpc_name!r} is read-only, but its answer has changes to make; nothing was applied",
                process_execution_id,
            )
        event = RpcReturned(
            process_execution_id, answer.answer, answer.read_set, self._request.rpc_name, self.request_id
        )
        if self._claim is None:
            return await self._calls.commit(event, self._ends_at_s)
        outcome = await self._calls.commit(RpcReturnedOnce(event, self._claim), self._ends_at_s)
        if isinstance(outcome, RpcServiceAnswer):
            self._known, outcome = outcome, Verdict.APPLIED
        self.is_committed = outcome is Verdict.APPLIED
        return outcome
