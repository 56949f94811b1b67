"""One request to a worker and its answers: every call in it is settled exactly once, whatever the worker does."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import ValidationError

from server_stub.core.json_text import find_json_problem
from server_stub.dispatch.jobs import Job
from server_stub.dispatch.lines import AnswerTooLarge, read_beginning, read_body
from server_stub.dispatch.options import DispatchOptions
from server_stub.dispatch.replies import (
    Reply,
    Spoiled,
    invalid_response,
    problem_of,
    reply_of,
    reply_of_response,
    timed_out,
    unreached,
)
from server_stub.dispatch.transport import WorkerConnectionError, WorkerResponse, WorkerTransport
from xdb_sdk.protocol import (
    BATCH_CONTENT_TYPE,
    WORKER_BATCH_PATH,
    AnswerLine,
    ExecuteAnswer,
    LineSplitter,
    RpcAnswer,
    WaitUntilAnswer,
    find_large_value,
    join_url,
)

BATCH_HEADERS = {"content-type": BATCH_CONTENT_TYPE, "accept": BATCH_CONTENT_TYPE}
CALL_HEADERS = {"content-type": "application/json", "accept": "application/json"}

_MAX_ERROR_BODY_BYTES = 64 * 1024
_LINGER_S = 1.0
"""How long the end of a response is waited for after its last answer, so that the connection can be used again."""
_TIMEOUT_MARGIN_S = 5.0
"""The transport's own limit comes after all deadlines, which are kept here."""


class BatchRefused(Exception):
    """The worker does not have the batch endpoint. No call was made."""


class _UnreadableLine(Exception):
    """A line of the response is no answer."""


class Exchange:
    """One request with one call or many.

    Args:
        jobs: The calls, written and with their deadlines set.
        settle: Told the reply of each call as soon as there is one.
        options: Limits.
    """

    def __init__(self, jobs: Sequence[Job], settle: Callable[[Job, Reply], None], options: DispatchOptions) -> None:
        self._unanswered = dict(enumerate(jobs, start=1))
        self._settle = settle
        self._options = options
        self._limit = asyncio.timeout(None)
        self._alarm: asyncio.TimerHandle | None = None

    async def post_batch(self, transport: WorkerTransport, url: str, headers: Mapping[str, str]) -> None:
        """Send all calls in one request.

        Raises:
            BatchRefused: The worker does not know such requests; no call is settled.
        """
        await self._keep_deadlines(
            self._batch(transport, join_url(url, WORKER_BATCH_PATH), BATCH_HEADERS | dict(headers))
        )

    async def post_single(self, transport: WorkerTransport, url: str, headers: Mapping[str, str]) -> None:
        """Send the only call to the path of its operation."""
        [job] = self._unanswered.values()
        await self._keep_deadlines(self._single(job, transport, join_url(url, job.path), CALL_HEADERS | dict(headers)))

    async def _batch(self, transport: WorkerTransport, url: str, headers: Mapping[str, str]) -> None:
        body = b"".join([job.line(call_id) for call_id, job in self._unanswered.items()])
        async with transport.post(url, body, headers, self._timeout_s()) as response:
            if response.status == 200:
                await self._read_lines(response, url)
            else:
                await self._refused(response, url)

    async def _read_lines(self, response: WorkerResponse, url: str) -> None:
        if not response.headers.get("content-type", "").startswith(BATCH_CONTENT_TYPE):
            raise BatchRefused
        splitter = LineSplitter(self._options.max_answer_bytes)
        async for chunk in response.chunks():
            for line in splitter.feed(chunk):
                self._answered(line, url)
            if not self._unanswered and self._limit.when() is None:
                self._limit.reschedule(asyncio.get_running_loop().time() + _LINGER_S)
        for line in splitter.rest():
            self._answered(line, url)
        if self._unanswered:
            self._settle_rest(invalid_response("the worker ended its response without an answer to this call"))

    def _answered(self, line: bytes, url: str) -> None:
        if len(line) > self._options.max_answer_bytes:
            raise AnswerTooLarge
        try:
            answer = AnswerLine.model_validate_json(line)
        except ValidationError as error:
            raise _UnreadableLine(f"a line of the response cannot be read: {problem_of(error)}") from error
        job = self._unanswered.pop(answer.call_id, None)
        if job is None:
            return  # late, or a second answer
        reply = reply_of(job.answer_type, url, answer.status, answer.body, answer.retry_after_s)
        self._settle(job, self._checked(reply, line))

    def _checked(self, reply: Reply, text: bytes) -> Reply:
        """Refuse an answer with what no database takes, or with a value over the limit."""
        if not isinstance(reply, WaitUntilAnswer | ExecuteAnswer | RpcAnswer):
            return reply
        if problem := find_json_problem(text, max_depth=self._options.max_json_depth):
            return invalid_response(problem)
        limit = self._options.max_value_bytes
        if len(text) > limit and (large := find_large_value(reply, limit)):
            return invalid_response(f"{large}; the limit is {limit} bytes a value")
        return reply

    async def _refused(self, response: WorkerResponse, url: str) -> None:
        if response.status in (404, 405, 415):
            raise BatchRefused
        body = await read_beginning(response, _MAX_ERROR_BODY_BYTES)
        retry_after = response.headers.get("retry-after")
        for job in self._take_rest():
            self._settle(job, reply_of_response(job.answer_type, url, response.status, body, retry_after))

    async def _single(self, job: Job, transport: WorkerTransport, url: str, headers: Mapping[str, str]) -> None:
        async with transport.post(url, job.body, headers, self._timeout_s()) as response:
            if response.status in (200, 406):
                body = await read_body(response, self._options.max_answer_bytes)
            else:
                body = await read_beginning(response, _MAX_ERROR_BODY_BYTES)
            retry_after = response.headers.get("retry-after")
        reply = reply_of_response(job.answer_type, url, response.status, body, retry_after)
        self._settle_rest(self._checked(reply, body))

    async def _keep_deadlines(self, work: Awaitable[None]) -> None:
        self._set_alarm()
        try:
            async with self._limit:
                await work
        except TimeoutError:
            self._expire(everything=True)
        except WorkerConnectionError as error:
            self._settle_rest(unreached(str(error), was_sent=error.was_sent))
        except _UnreadableLine as error:
            self._spoil(str(error))
        except AnswerTooLarge:
            self._spoil(f"response too large: an answer is longer than {self._options.max_answer_bytes} bytes")
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    def _timeout_s(self) -> float:
        return max(job.timeout_s for job in self._unanswered.values()) + _TIMEOUT_MARGIN_S

    def _set_alarm(self) -> None:
        earliest_s = min(job.deadline_s for job in self._unanswered.values())
        self._alarm = asyncio.get_running_loop().call_at(earliest_s, self._expire)

    def _expire(self, *, everything: bool = False) -> None:
        """Settle the calls whose time is over, and hang up when no other is left."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        expired = [call_id for call_id, job in self._unanswered.items() if everything or job.deadline_s <= now_s]
        for call_id in expired:
            job = self._unanswered.pop(call_id)
            self._settle(job, timed_out(job.timeout_s))
        if everything:
            return
        if self._unanswered:
            self._set_alarm()
        elif expired:
            self._limit.reschedule(now_s)

    def _spoil(self, problem: str) -> None:
        """Deal with an answer that cannot be read: it may be anybody's, and hides those behind it.

        Calls that travelled together are made again one by one, so that a bad one does no harm to the others. An RPC is
        never made again (semantics 5.5).
        """
        rest = self._take_rest()
        for job in rest:
            if len(rest) > 1 and not job.is_rpc:
                job.is_alone = True
                self._settle(job, Spoiled())
            else:
                self._settle(job, invalid_response(problem))

    def _settle_rest(self, reply: Reply) -> None:
        for job in self._take_rest():
            self._settle(job, reply)

    def _take_rest(self) -> list[Job]:
        rest = list(self._unanswered.values())
        self._unanswered.clear()
        return rest
