"""Calls workers and tells the engine what came of it (semantics 2, 5, 8)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from server_stub.core.model import Call, CallKey
from server_stub.core.outcomes import (
    CallFailure,
    FailureKind,
    RpcAnswered,
    RpcOutcome,
    StateAnswered,
    StateOutcome,
    Verdict,
)
from server_stub.core.ports import Clock, Store
from server_stub.core.reads import revised
from server_stub.core.refusals import InvalidAnswer
from server_stub.dispatch.jobs import Job, RpcInvocation, RpcJob, StateJob
from server_stub.dispatch.lane import Lane, Surroundings, read_failure
from server_stub.dispatch.lock_queue import LockQueue
from server_stub.dispatch.measures import DispatchMeasures
from server_stub.dispatch.options import DispatchCounters, DispatchOptions
from server_stub.dispatch.replies import Abandoned, Reply, timed_out
from server_stub.dispatch.tasks import TaskSet
from server_stub.dispatch.transport import WorkerTransport
from xdb_sdk.protocol import DatabaseErrorInfo, ExecuteAnswer, LockType, ReviseAnswer, RpcAnswer, WaitUntilAnswer

logger = logging.getLogger(__name__)

_IN_OWN_WORDS = frozenset({FailureKind.UNREACHABLE, FailureKind.TIMEOUT, FailureKind.INVALID_RESPONSE})
"""Failures whose details hold no words of user code or of a database: those may quote data, and stay out of the log."""


class StateSink(Protocol):
    """Where the outcomes of state calls go: the engine."""

    def submit(self, call: Call, outcome: StateOutcome) -> asyncio.Future[Verdict]:
        """Have the outcome applied; the future tells what was made of it once that is committed."""
        ...

    def give_back(self, keys: Sequence[CallKey]) -> None:
        """Let another server make calls that were not made here."""
        ...


class RpcNotAnswered(Exception):
    """An RPC has no answer, through no fault of its method. Nothing was applied.

    Attributes:
        may_have_run: Whether the method may have run; if not, the RPC may be repeated.
    """

    def __init__(self, reason: str, *, may_have_run: bool) -> None:
        self.may_have_run = may_have_run
        super().__init__(reason)


class DispatcherClosed(RpcNotAnswered):
    """The server is closing."""

    def __init__(self, *, may_have_run: bool) -> None:
        super().__init__("the server is stopping", may_have_run=may_have_run)


class WorkerBusy(RpcNotAnswered):
    """The worker had no room for an RPC until its time was over."""


class AttributesUnavailable(RpcNotAnswered):
    """The attributes for an RPC could not be read until its time was over: the database is unavailable or slow."""


@dataclass(slots=True)
class _Departure:
    """A shard that was lost, and the calls of it that were being made then and have no verdict yet."""

    keys: set[CallKey] = field(default_factory=set)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class Dispatcher:
    """Makes calls that are due.

    A call is known by its key from `dispatch` until the engine's verdict; dispatching it again meanwhile does
    nothing, so that whoever looks for due calls need not remember which ones it has found.

    Args:
        transport: How requests get to workers; closed by its owner.
        store: Where attributes are read.
        sink: Told the outcomes of state calls.
        options: Limits and waits.
        clock: Wall time in milliseconds, for what the worker is told; deadlines are kept on the event loop's clock.
    """

    def __init__(
        self, transport: WorkerTransport, store: Store, sink: StateSink, options: DispatchOptions, clock: Clock
    ) -> None:
        self.counters = DispatchCounters()
        self.measures = DispatchMeasures()
        self._sink = sink
        self._store = store
        self._options = options
        self._tasks = TaskSet()
        self._around = Surroundings(
            transport, store, options, clock, self.counters, self.measures, self._tasks, on_sending=self._note_room
        )
        self._locks = LockQueue()
        self._lanes: dict[str, Lane] = {}
        self._jobs: dict[str, dict[CallKey, StateJob]] = {}
        """State calls between `dispatch` and verdict, by execution."""
        self._job_count = 0
        self._departures: dict[int, _Departure] = {}
        self._room = asyncio.Event()
        self._is_closed = False

    @property
    def worker_urls(self) -> Sequence[str]:
        """The workers that are being called, or were a short while ago."""
        return tuple(self._lanes)

    @property
    def is_idle(self) -> bool:
        """Whether no state call is between `dispatch` and its verdict."""
        return not self._jobs

    @property
    def waiting_calls(self) -> int:
        """How many state calls are here and at no worker."""
        return self._job_count - (self.counters.in_flight - self.counters.rpcs_in_flight)

    @property
    def held_back_workers(self) -> int:
        """How many workers are spared for a while, since they were busy."""
        return sum(lane.is_held_back for lane in self._lanes.values())

    def oldest_due_at_ms(self) -> dict[int, int]:
        """Give, by shard, when the oldest of the calls became due that no worker has; it looks at all calls here."""
        oldest: dict[int, int] = {}
        for jobs in self._jobs.values():
            for job in jobs.values():
                call = job.call
                if not job.is_begun:
                    oldest[call.shard_id] = min(call.due_at_ms, oldest.get(call.shard_id, call.due_at_ms))
        return oldest

    def dispatch(self, calls: Iterable[Call]) -> list[Call]:
        """Make calls that are due now, except those that are being made already.

        A call that still waits here for another worker URL moves to the one it is now given with.

        Returns:
            Those that were not taken, because too many wait already. Dispatch them again after `wait_for_room`.
        """
        declined: list[Call] = []
        if self._is_closed:
            return declined
        for call in calls:
            known = self._jobs.get(call.key.state.process_execution_id, {}).get(call.key)
            if known is None and self.waiting_calls >= self._options.max_waiting_calls:
                declined.append(call)
            elif known is None:
                self._take_on(call)
            elif not known.is_begun and known.call.worker_url != call.worker_url:
                known.is_dropped = True
                self._forget(known)
                self._take_on(call)
            else:
                known.is_withdrawn = False
        return declined

    async def wait_for_room(self) -> None:
        """Wait until half of the calls that may wait can be dispatched."""
        while not self._has_room:
            self._room.clear()
            await self._room.wait()

    def process_closed(self, process_execution_ids: Sequence[str]) -> None:
        """Drop the calls of closed executions that wait, and tell the workers that run others."""
        running: dict[str, list[str]] = {}
        for process_execution_id in process_execution_ids:
            for job in list(self._jobs.get(process_execution_id, {}).values()):
                url = job.call.worker_url
                if job.is_submitted:
                    continue
                if job.is_sent:
                    running.setdefault(url, []).append(process_execution_id)
                    if job.ticket is not None:  # nothing will come of the call, so nobody need wait for it
                        self._locks.leave(job.ticket)
                else:
                    job.is_dropped = True
                    self._forget(job)
        for url, ids in running.items():
            self._lane(url).tell_closed(list(dict.fromkeys(ids)))

    def calls_withdrawn(self, process_execution_ids: Collection[str]) -> None:
        """Drop the calls of executions that wait. What workers have goes on; it is not sent again if they refuse it.

        Those that are still to be made are to be dispatched again.
        """
        for process_execution_id in process_execution_ids:
            for job in list(self._jobs.get(process_execution_id, {}).values()):
                if job.is_begun:
                    job.is_withdrawn = True
                else:
                    job.is_dropped = True
                    self._forget(job)

    def waiting_keys(self) -> list[CallKey]:
        """Name the state calls that no worker has; it looks at all calls here."""
        return [key for jobs in self._jobs.values() for key, job in jobs.items() if not job.is_begun]

    def drop_waiting(self, keys: Collection[CallKey]) -> None:
        """Do not make calls, as far as no worker has them."""
        for key in keys:
            job = self._jobs.get(key.state.process_execution_id, {}).get(key)
            if job is not None and not job.is_begun:
                job.is_dropped = True
                self._forget(job)

    def shards_lost(self, shard_ids: Collection[int]) -> Collection[int]:
        """Drop the calls of shards that wait, and give them back; those that workers have are finished here.

        Returns:
            The shards in which workers have calls.
        """
        unsent: list[CallKey] = []
        busy: set[int] = set()
        for job in [job for jobs in self._jobs.values() for job in jobs.values() if job.call.shard_id in shard_ids]:
            if job.is_begun:
                job.is_departing = True
                busy.add(job.call.shard_id)
                self._departures.setdefault(job.call.shard_id, _Departure()).keys.add(job.call.key)
            else:
                unsent.append(job.call.key)
                job.is_dropped = True
                self._forget(job)
        if unsent:
            self._sink.give_back(unsent)
        return busy

    async def calls_ended(self, shard_id: int) -> None:
        """Wait until the calls have their verdicts that were being made when the shard was lost."""
        departure = self._departures.get(shard_id)
        if departure is not None:
            await departure.is_over.wait()

    async def rpc(self, invocation: RpcInvocation, commit: Callable[[RpcAnswered], Awaitable[Verdict]]) -> RpcOutcome:
        """Make an RPC.

        The method is called once; again only after a 406, or when the commit found its read set changed. A worker that
        is busy has not called it, and is asked again until the timeout. An answer that changes nothing is not
        committed.

        Args:
            invocation: What to call. Its timeout bounds all of this except `commit`.
            commit: Applies the answer's changes. What it raises is passed on.

        Returns:
            The answer as it was committed, or what went wrong; nothing was applied then.

        Raises:
            RpcNotAnswered: The server is closing, the worker is too busy, or the attributes cannot be read.
            StoreError: The sizes of the queues cannot be read; the method has not run.

        Source: semantics 5.1, 5.4, 5.5.
        """
        if self._is_closed:
            raise DispatcherClosed(may_have_run=False)
        ends_at_s = asyncio.get_running_loop().time() + invocation.timeout_ms / 1_000
        queue_sizes = {}
        if invocation.needs_queue_sizes:
            queue_sizes = await self._store.count_messages(invocation.process.process_execution_id)
        job = RpcJob(invocation, queue_sizes, ends_at_s)
        try:
            job.ask(invocation.read)
            outcome = await self._run_rpc(job, commit) if await self._lock(job) else _lock_not_acquired()
        except InvalidAnswer as error:
            outcome = _not_mapped(error)
        finally:
            job.is_dropped = True
            if job.ticket is not None:
                self._locks.leave(job.ticket)
        if isinstance(outcome, CallFailure):
            self._note_failure(outcome, job, {"rpc_name": invocation.rpc_name})
        return outcome

    async def close(self, grace_s: float) -> None:
        """Make no more calls, wait for those at workers at most `grace_s`, then hang up.

        What was not answered stays due in the database.
        """
        self._is_closed = True
        for lane in self._lanes.values():
            lane.close()
        await self._tasks.close(grace_s)
        for lane in self._lanes.values():
            lane.abandon_in_flight()

    def _lane(self, url: str) -> Lane:
        lane = self._lanes.get(url)
        if lane is None:
            lane = self._lanes[url] = Lane(url, self._around, self._lanes.pop)
        return lane

    @property
    def _has_room(self) -> bool:
        return self.waiting_calls <= self._options.max_waiting_calls // 2

    def _note_room(self) -> None:
        if self._has_room:
            self._room.set()

    def _take_on(self, call: Call) -> None:
        self._job_count += 1
        job = StateJob(call, self._on_reply)
        self._jobs.setdefault(job.process_execution_id, {})[call.key] = job
        try:
            job.ask(job.declared_read)
        except InvalidAnswer as error:
            self._submit(job, _not_mapped(error))
            return
        self._enqueue_when_granted(job)

    def _enqueue_when_granted(self, job: StateJob) -> None:
        self._enter_locks(job, partial(self._enqueue, job))
        if job.ticket is None or job.ticket.is_granted:
            self._enqueue(job)

    def _enter_locks(self, job: Job, on_granted: Callable[[], None]) -> None:
        """Join the queues of what the job locks; a place that it has for the very same is kept."""
        keys = tuple(dict.fromkeys(job.lock_keys()))
        is_exclusive = job.plan.request.lock_type is LockType.EXCLUSIVE_LOCK
        if job.ticket is not None:
            if (job.ticket.keys, job.ticket.is_exclusive) == (keys, is_exclusive):
                return
            self._locks.leave(job.ticket)
            job.ticket = None
        if keys:
            job.ticket = self._locks.enter(keys, on_granted, is_exclusive=is_exclusive)

    def _enqueue(self, job: StateJob) -> None:
        self._lane(job.call.worker_url).enqueue(job)

    def _on_reply(self, job: Job, reply: Reply) -> None:
        assert isinstance(job, StateJob)
        match reply:
            case WaitUntilAnswer() | ExecuteAnswer():
                self._submit(job, StateAnswered(reply, job.read_set))
            case CallFailure():
                self._submit(job, reply)
            case ReviseAnswer() if not job.is_withdrawn:
                failure = self._revise(job, reply)
                if failure is None:
                    self._enqueue_when_granted(job)
                else:
                    self._submit(job, failure)
            case _:
                self._forget(job)
                if job.is_departing and not self._is_closed:
                    self._sink.give_back([job.call.key])

    def _revise(self, job: Job, reply: ReviseAnswer) -> CallFailure | None:
        """Prepare another round with other data; say what is wrong with that."""
        job.take_back()
        job.revisions += 1
        if job.revisions > self._options.max_revise_rounds:
            details = f"the worker asked for other data {job.revisions} times within one attempt"
            return CallFailure(FailureKind.WORKER_ERROR, "TooManyRevisions", details, http_status=406)
        try:
            job.ask(revised(job.plan.request, reply.read_request))
        except InvalidAnswer as error:
            return _not_mapped(error)
        return None

    def _submit(self, job: StateJob, outcome: StateOutcome) -> None:
        job.is_submitted = True
        if isinstance(outcome, CallFailure):
            if job.call.first_attempt_at_ms is None:
                outcome = replace(outcome, first_attempt_at_ms=job.first_attempt_at_ms)
            key = job.call.key
            facts = {"state_execution_id": key.state.state_execution_id, "api": key.api, "attempt": key.attempt}
            self._note_failure(outcome, job, facts)
        self._sink.submit(job.call, outcome).add_done_callback(partial(self._on_verdict, job))

    def _on_verdict(self, job: StateJob, verdict: asyncio.Future[Verdict]) -> None:
        if verdict.cancelled() or verdict.exception() is not None:
            # Nothing was applied, so the call is still due in the database and is found there again.
            self._forget(job)
            return
        self.measures.verdicts[verdict.result()] += 1
        if verdict.result() is Verdict.READ_SET_CHANGED and not job.is_withdrawn:
            self._repeat(job)
        else:
            self._forget(job)

    def _repeat(self, job: StateJob) -> None:
        """Call again with fresh values: no attempt is used (semantics 5.4)."""
        job.conflicts += 1
        if job.conflicts > self._options.max_lock_conflicts:
            self._submit(job, _lock_not_acquired())
            return
        job.is_submitted = False
        self._enqueue(job)

    def _forget(self, job: StateJob) -> None:
        jobs = self._jobs[job.process_execution_id]
        del jobs[job.call.key]
        if not jobs:
            del self._jobs[job.process_execution_id]
        self._job_count -= 1
        self._note_room()
        if job.ticket is not None:
            self._locks.leave(job.ticket)
        if job.is_departing:
            self._end_departure(job.call)

    def _end_departure(self, call: Call) -> None:
        departure = self._departures[call.shard_id]
        departure.keys.discard(call.key)
        if not departure.keys:
            departure.is_over.set()
            del self._departures[call.shard_id]

    async def _lock(self, job: RpcJob) -> bool:
        """Wait for the attributes that an RPC locks; say whether it got them in time."""
        granted = asyncio.Event()
        self._enter_locks(job, granted.set)
        if job.ticket is None or job.ticket.is_granted:
            return True
        try:
            async with asyncio.timeout_at(job.ends_at_s):
                await granted.wait()
        except TimeoutError:
            return False
        return True

    async def _run_rpc(self, job: RpcJob, commit: Callable[[RpcAnswered], Awaitable[Verdict]]) -> RpcOutcome:
        while True:
            reply = await self._send_rpc(job)
            if isinstance(reply, ReviseAnswer):
                failure = self._revise(job, reply)
                if failure is not None:
                    return failure
                if not await self._lock(job):
                    return _lock_not_acquired()
                continue
            if isinstance(reply, CallFailure):
                return reply
            answered = RpcAnswered(reply, job.read_set)
            if reply.is_read_only or await commit(answered) is not Verdict.READ_SET_CHANGED:
                return answered
            job.conflicts += 1
            is_late = asyncio.get_running_loop().time() >= job.ends_at_s
            if is_late or job.conflicts > self._options.max_lock_conflicts:
                return _lock_not_acquired()

    async def _send_rpc(self, job: RpcJob) -> RpcAnswer | ReviseAnswer | CallFailure:
        job.is_called = False
        job.replied = asyncio.get_running_loop().create_future()
        self._lane(job.invocation.process.worker_url).enqueue(job)
        try:
            async with asyncio.timeout_at(job.ends_at_s):
                reply = await job.replied
        except TimeoutError:
            if job.replied.cancelled():
                return _unanswered(job)
            reply = job.replied.result()  # it came with the end of the time
        if isinstance(reply, Abandoned):
            raise DispatcherClosed(may_have_run=job.is_called or job.has_run)
        assert isinstance(reply, RpcAnswer | ReviseAnswer | CallFailure)
        return reply

    def _note_failure(self, failure: CallFailure, job: Job, facts: dict[str, object]) -> None:
        self.counters.failures += 1
        extra = {
            "process_id": job.process_id,
            "process_type": job.process_type,
            "process_execution_id": job.process_execution_id,
            **facts,
            "kind": failure.kind.value,
            "error_type": failure.error_type,
            "http_status": failure.http_status,
        }
        if failure.kind in _IN_OWN_WORDS:
            extra["error_message"] = failure.details
        logger.warning("call of worker failed", extra=extra)


def _unanswered(job: RpcJob) -> CallFailure:
    """Say why an RPC has no answer at the end of its time.

    Raises:
        RpcNotAnswered: The worker has not been called this time.
    """
    timeout_s = job.invocation.timeout_ms / 1_000
    if job.is_called or (job.busy is None and job.plan.is_empty):
        return timed_out(timeout_s)
    if job.busy is not None:
        reason = f"the worker had no room for the RPC within its timeout of {timeout_s:g} s ({job.busy.details})"
        raise WorkerBusy(reason, may_have_run=job.has_run)
    reason = f"the attributes for the RPC could not be read within its timeout of {timeout_s:g} s"
    raise AttributesUnavailable(reason, may_have_run=job.has_run)


def _lock_not_acquired() -> CallFailure:
    return CallFailure(
        FailureKind.READ_SET_CHANGED,
        "LOCK_NOT_ACQUIRED",
        "the locked attributes were held or changed by others all the time; repeat the call later",
    )


def _not_mapped(error: InvalidAnswer) -> CallFailure:
    return read_failure(DatabaseErrorInfo(operation="READ", kind="UNKNOWN_TABLE", message=str(error)))
