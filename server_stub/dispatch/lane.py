"""All calls for one worker URL: gathered, limited, read for, and sent together."""

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from server_stub.core.outcomes import CallFailure, FailureKind
from server_stub.core.ports import CallReads, Clock, RowReadFailed, Store, StoreUnavailable
from server_stub.dispatch.exchange import BATCH_HEADERS, CALL_HEADERS, BatchRefused, Exchange
from server_stub.dispatch.jobs import Job
from server_stub.dispatch.measures import DispatchMeasures
from server_stub.dispatch.options import DispatchCounters, DispatchOptions
from server_stub.dispatch.replies import Abandoned, Busy, Reply, Spoiled, Unreached, defective
from server_stub.dispatch.tasks import TaskSet
from server_stub.dispatch.traces import begin_span, end_span
from server_stub.dispatch.transport import WorkerConnectionError, WorkerTransport
from xdb_sdk.protocol import PROCESS_CLOSED_PATH, WORKER_BATCH_PATH, DatabaseErrorInfo, ProcessClosedCall, join_url

logger = logging.getLogger(__name__)

_NOTICE_TIMEOUT_S = 5.0
_FIRST_READ_WAIT_S = 0.1
_LONGEST_READ_WAIT_S = 5.0
_USE_CHECK_INTERVAL_S = 60.0
_RECONNECT_WAIT_S = 0.1
_KNOWN_FOR_S = 60.0
"""How long after its last answer a worker that cannot be reached is taken to be restarting."""
_GIVEN_UP_SENT = "the call was given up after it had been sent, and the worker may have made it"
_GIVEN_UP_UNSENT = "the call was given up before it was sent"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all lanes of a dispatcher share. `on_sending` is told when calls cease to wait."""

    transport: WorkerTransport
    store: Store
    options: DispatchOptions
    clock: Clock
    counters: DispatchCounters
    measures: DispatchMeasures
    tasks: TaskSet
    on_sending: Callable[[], None]


class Lane:
    """The calls for one worker. `on_unused` is told its URL once it can be forgotten.

    Everything handed over in one turn of the event loop is sent together. State calls wait in order while the worker is
    at its limit or says that it is busy; RPCs, whose callers wait, pass them. A worker that has refused an RPC is given
    fewer state calls than it takes, so that there is room for the next.

    A worker that answered a short while ago and cannot be reached is probably being restarted: the same attempts are
    sent again until it is back or patience is over. A call that was at the worker when it went is sent again once,
    since it may be what brought it down; an RPC that was is not.
    """

    def __init__(self, url: str, around: Surroundings, on_unused: Callable[[str], object]) -> None:
        self._url = url
        self._around = around
        self._on_unused = on_unused
        self._rpcs: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._returned: deque[Job] = deque()
        """State calls that were sent before and go first now."""
        self._in_flight: dict[Job, None] = {}
        """A dict for its order: tests replay runs exactly."""
        self._context = contextvars.Context()
        """That of requests: they carry calls of many, and belong into the trace of none of their callers."""
        self._flush_handle: asyncio.Handle | None = None
        self._resume_handle: asyncio.TimerHandle | None = None
        self._busy_until_s = 0.0
        self._accepted = 0
        """How many calls the worker had taken on when it last refused one; no more than that until `_busy_until_s`."""
        self._busy_rounds = 0
        self._reserved_until_s = 0.0
        """Until when a part of `_accepted` is kept free for RPCs."""
        self._single_until_s = 0.0
        """Until when the worker is taken to lack the batch endpoint."""
        self._answered_at_s = float("-inf")
        self._away_since_s: float | None = None
        """When the worker was first found to be away since it last answered."""
        self._is_closed = False
        self._check_use_later()

    @property
    def _is_in_use(self) -> bool:
        """Whether there are calls, or something about the worker to be remembered."""
        remembers_until_s = max(self._busy_until_s, self._reserved_until_s, self._single_until_s)
        has_jobs = self._rpcs or self._waiting or self._returned or self._in_flight
        return bool(has_jobs) or asyncio.get_running_loop().time() < remembers_until_s

    def enqueue(self, job: Job) -> None:
        """Send the call with whatever else this turn of the event loop brings."""
        if self._is_closed:
            job.reply_to(job, Abandoned())
            return
        (self._rpcs if job.is_rpc else self._waiting).append(job)
        self._schedule()

    @property
    def is_held_back(self) -> bool:
        """Whether the worker is given no more than it has, since it was busy."""
        return asyncio.get_running_loop().time() < self._busy_until_s

    def tell_closed(self, process_execution_ids: Sequence[str]) -> None:
        """Tell the worker that executions have closed; best effort."""
        self._around.tasks.spawn(self._tell_closed(process_execution_ids))

    def close(self) -> None:
        """Send no more calls, and give up those that wait."""
        self._is_closed = True
        self._use_check.cancel()
        jobs = [*self._rpcs, *self._returned, *self._waiting]
        for queue in (self._rpcs, self._returned, self._waiting):
            queue.clear()
        for job in jobs:
            if not job.is_dropped:
                job.reply_to(job, Abandoned())

    def abandon_in_flight(self) -> None:
        """Give up the calls whose requests were cut off."""
        for job in list(self._in_flight):
            self._settle(job, Abandoned())

    def _check_use_later(self) -> None:
        self._use_check = asyncio.get_running_loop().call_later(_USE_CHECK_INTERVAL_S, self._check_use)

    def _check_use(self) -> None:
        """Say when the lane is of no use any more; workers may come and go under ever new URLs."""
        if self._is_in_use:
            self._check_use_later()
        else:
            self._on_unused(self._url)

    def _schedule(self) -> None:
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        self._flush_handle = None
        jobs = [job for job in self._take() if not job.is_dropped]
        if not jobs:
            return
        self._in_flight.update(dict.fromkeys(jobs))
        self._around.counters.in_flight += len(jobs)
        self._around.counters.rpcs_in_flight += sum(job.is_rpc for job in jobs)
        self._around.on_sending()
        self._around.tasks.spawn(self._guard(self._send, jobs))

    def _take(self) -> Iterator[Job]:
        """Take what may be sent now."""
        now_s = asyncio.get_running_loop().time()
        is_held_back = now_s < self._busy_until_s
        if is_held_back:
            self._resume_later()
        taken = yield from _take_jobs(
            (self._rpcs,), self._accepted - len(self._in_flight) if is_held_back else len(self._rpcs)
        )
        limit = self._around.options.max_calls_in_flight
        if is_held_back:
            limit = min(limit, self._accepted)
        if now_s < self._reserved_until_s:
            limit = min(limit, max(self._accepted - max(self._accepted // 10, 1), 1))
        yield from _take_jobs((self._returned, self._waiting), limit - len(self._in_flight) - taken)

    def _resume_later(self) -> None:
        if self._resume_handle is None:
            self._resume_handle = asyncio.get_running_loop().call_at(self._busy_until_s, self._resume)

    def _resume(self) -> None:
        self._resume_handle = None
        self._schedule()

    async def _send(self, jobs: Sequence[Job]) -> None:
        written = [job for job in await self._read(jobs) if self._write(job)]
        if not written:
            return
        if asyncio.get_running_loop().time() < self._single_until_s:
            self._send_singly(written)
            return
        options = self._around.options
        *others, last = split_batches(written, max_calls=options.max_batch_calls, max_bytes=options.max_batch_bytes)
        for part in others:
            self._around.tasks.spawn(self._guard(self._post_batch, part))
        await self._guard(self._post_batch, last)

    def _write(self, job: Job) -> bool:
        if job.is_dropped:
            self._release(job)
            return False
        begin_span(job)
        try:
            job.write(self._around.clock(), self._around.options.max_call_timeout)
        except Exception:
            logger.exception("call cannot be written", extra={"process_execution_id": job.process_execution_id})
            self._settle(job, defective("the call cannot be written, and was not made"))
            return False
        job.deadline_s = asyncio.get_running_loop().time() + job.timeout_s
        job.is_sent = True
        job.sent_at_s = time.perf_counter()
        return True

    async def _post_batch(self, jobs: Sequence[Job]) -> None:
        counters = self._around.counters
        counters.calls += len(jobs)
        counters.batches += 1
        counters.batched_calls += len(jobs)
        counters.largest_batch = max(counters.largest_batch, len(jobs))
        self._around.measures.request_calls.observe(len(jobs))
        exchange = Exchange(jobs, self._settle, self._around.options)
        try:
            await exchange.post_batch(self._around.transport, self._url, self._around.options.worker_headers)
        except BatchRefused:
            interval_s = self._around.options.batch_probe_interval.total_seconds()
            self._single_until_s = asyncio.get_running_loop().time() + interval_s
            unsent = [job for job in jobs if job in self._in_flight]
            for job in unsent:
                job.take_back()
            self._send_singly([job for job in unsent if self._write(job)])

    def _send_singly(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._around.tasks.spawn(self._guard(self._post_single, (job,)))

    async def _post_single(self, jobs: Sequence[Job]) -> None:
        [job] = jobs
        self._around.counters.calls += 1
        self._around.measures.request_calls.observe(1)
        headers = dict(self._around.options.worker_headers) | job.headers(self._around.clock())
        exchange = Exchange((job,), self._settle, self._around.options)
        await exchange.post_single(self._around.transport, self._url, headers)

    async def _guard(self, work: Callable[[Sequence[Job]], Awaitable[None]], jobs: Sequence[Job]) -> None:
        """Make sure that a defect forgets no call: what is not settled when its work dies has failed."""
        try:
            await work(jobs)
        except Exception:
            logger.exception("calls were given up", extra={"worker_url": self._url})
            for job in jobs:
                if job in self._in_flight:
                    self._settle(job, defective(_GIVEN_UP_SENT if job.is_sent else _GIVEN_UP_UNSENT))

    def _settle(self, job: Job, reply: Reply) -> None:
        if isinstance(reply, Unreached):
            reply = self._unless_restarting(job, reply)
        elif not isinstance(reply, Abandoned):
            self._answered_at_s, self._away_since_s = asyncio.get_running_loop().time(), None
        self._around.measures.replied(job, reply)
        end_span(job, reply)
        self._release(job)
        if isinstance(reply, Unreached):
            job.take_back()
        elif isinstance(reply, Busy):
            job.busy = reply
            job.take_back()
            self._hold_back(reply.retry_after_s)
            if job.is_rpc:
                self._reserve()
        elif not isinstance(reply, Spoiled):
            self._busy_rounds = 0
        if not job.is_dropped:
            self._pass_on(job, reply)
        if self._rpcs or self._waiting or self._returned:
            self._schedule()

    def _pass_on(self, job: Job, reply: Reply) -> None:
        if not isinstance(reply, Busy | Spoiled | Unreached):
            job.reply_to(job, reply)
        elif self._is_closed or job.is_departing or job.is_withdrawn:
            job.reply_to(job, Abandoned())
        else:
            (self._rpcs if job.is_rpc else self._returned).append(job)

    def _release(self, job: Job) -> None:
        del self._in_flight[job]
        job.is_sent = False
        self._around.counters.in_flight -= 1
        self._around.counters.rpcs_in_flight -= job.is_rpc

    def _unless_restarting(self, job: Job, reply: Unreached) -> Unreached | CallFailure:
        """Give the failure of a call, unless its worker is taken to be restarting and the call is to wait for it."""
        now_s = asyncio.get_running_loop().time()
        if self._away_since_s is None:
            self._away_since_s = now_s
        patience_s = self._around.options.restart_patience.total_seconds()
        is_restarting = self._away_since_s - self._answered_at_s < _KNOWN_FOR_S
        if not is_restarting or now_s - self._away_since_s >= patience_s:
            return reply.failure
        if reply.was_sent:
            if job.is_rpc or job.was_cut_off:
                return reply.failure
            job.was_cut_off = True
        self._accepted = 0
        self._busy_until_s = max(self._busy_until_s, now_s + _RECONNECT_WAIT_S)
        return reply

    def _hold_back(self, retry_after_s: float) -> None:
        """Give the worker no more than it has for a while. What it finishes meanwhile is replaced."""
        options = self._around.options
        now_s = asyncio.get_running_loop().time()
        self._accepted = len(self._in_flight)
        if now_s >= self._busy_until_s:
            self._busy_rounds += 1
        backoff_s = options.initial_busy_wait.total_seconds() * 2 ** min(self._busy_rounds - 1, 20)
        wait_s = min(max(backoff_s, retry_after_s), options.max_busy_wait.total_seconds())
        self._busy_until_s = max(self._busy_until_s, now_s + wait_s)

    def _reserve(self) -> None:
        """Keep room for RPCs for as long as a refusal can matter, renewed by each RPC that is refused all the same."""
        interval_s = self._around.options.max_busy_wait.total_seconds()
        self._reserved_until_s = asyncio.get_running_loop().time() + interval_s

    async def _read(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Give every call the attributes it asks for; return the calls that got them."""
        asking = [job for job in jobs if not job.plan.is_empty]
        if not asking:
            return jobs
        await self._give(asking)
        return [job for job in jobs if job in self._in_flight]

    async def _give(self, jobs: Sequence[Job]) -> None:
        """Read for calls; if a read is refused, find those that ask for it by halving, so that it hurts no other."""
        try:
            reads = await self._read_for(jobs)
        except RowReadFailed as refused:
            if _are_all_refused(jobs, refused.error):
                for job in jobs:
                    self._settle(job, read_failure(refused.error))
                return
            by_columns = sorted(jobs, key=_columns_of)
            middle = len(jobs) // 2
            await self._give(by_columns[:middle])
            await self._give(by_columns[middle:])
        else:
            for job in jobs:
                job.give(reads)

    async def _read_for(self, jobs: Sequence[Job]) -> CallReads:
        rows = dict.fromkeys(row for job in jobs for row in job.plan.rows)
        local_attributes = [job.plan.local_attributes for job in jobs if job.plan.local_attributes is not None]
        wait_s = 0.0
        while True:
            try:
                return await self._around.store.read_for_calls(tuple(rows), local_attributes)
            except StoreUnavailable as error:
                # The server's own trouble is no failed attempt (semantics 2.5).
                if not wait_s:
                    logger.warning("attributes cannot be read, trying again", extra={"error": str(error)})
                wait_s = min(max(wait_s * 2, _FIRST_READ_WAIT_S), _LONGEST_READ_WAIT_S)
                await asyncio.sleep(wait_s)

    async def _tell_closed(self, process_execution_ids: Sequence[str]) -> None:
        bodies = [ProcessClosedCall(process_execution_id=each).to_json() for each in process_execution_ids]
        try:
            if asyncio.get_running_loop().time() < self._single_until_s:
                for body in bodies:
                    await self._notify(PROCESS_CLOSED_PATH, body, CALL_HEADERS)
            else:
                lines = [
                    b'{"callId":%d,"operation":"process-closed","body":%b}\n' % line
                    for line in enumerate(bodies, start=1)
                ]
                await self._notify(WORKER_BATCH_PATH, b"".join(lines), BATCH_HEADERS)
        except (WorkerConnectionError, TimeoutError) as error:
            logger.debug("worker was not told of closed executions", extra={"error": str(error)})

    async def _notify(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        headers = headers | dict(self._around.options.worker_headers)
        async with (
            asyncio.timeout(_NOTICE_TIMEOUT_S),
            self._around.transport.post(join_url(self._url, path), body, headers, _NOTICE_TIMEOUT_S) as response,
        ):
            async for _ in response.chunks():
                pass  # read to the end, so that the connection can be used again


def read_failure(error: DatabaseErrorInfo) -> CallFailure:
    """Give the failure of a call whose attributes cannot be read (semantics 7.4)."""
    return CallFailure(
        FailureKind.DATABASE_READ,
        "APP_DATABASE_READ_ERROR",
        f"{error.table_name or 'attributes'}: {error.kind}: {error.message}",
        database_error=error,
    )


def _are_all_refused(jobs: Sequence[Job], error: DatabaseErrorInfo) -> bool:
    """Say whether a refused read concerns each of the calls, as a dropped column does those that read the same ones."""
    if error.kind in ("UNKNOWN_TABLE", "UNKNOWN_COLUMN"):
        return len({_columns_of(job) for job in jobs}) == 1
    return len({job.plan.rows for job in jobs}) == 1


def _columns_of(job: Job) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((read.row.table_name, read.columns) for read in job.plan.rows)


def split_batches(jobs: Sequence[Job], *, max_calls: int, max_bytes: int) -> Iterator[list[Job]]:
    """Divide written calls, in order, into requests within the limits; a call that is to be alone stays so."""
    batch: list[Job] = []
    size_bytes = 0
    for job in jobs:
        is_full = len(batch) >= max_calls or size_bytes + len(job.body) > max_bytes
        if batch and (is_full or job.is_alone or batch[-1].is_alone):
            yield batch
            batch, size_bytes = [], 0
        batch.append(job)
        size_bytes += len(job.body)
    if batch:
        yield batch


def _take_jobs(queues: Iterable[deque[Job]], room: int) -> Generator[Job, None, int]:
    """Take up to `room` jobs from the queues in their order; return how many. Dropped ones do not count."""
    taken = 0
    for queue in queues:
        while queue and taken < room:
            job = queue.popleft()
            taken += not job.is_dropped
            yield job
    return taken
