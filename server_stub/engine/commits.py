"""Commits what clients ask for, once for each request id, while their patience lasts."""

from typing import TypeVar

from server_stub.core.events import Event
from server_stub.core.ports import Clock, Store
from server_stub.core.refusals import Refused
from server_stub.core.requests import AnswerT, Once, RequestClaim
from server_stub.engine.answered import answered
from server_stub.engine.claims import Claims
from server_stub.engine.committer import Committer
from server_stub.engine.deadlines import Deadlines
from server_stub.engine.errors import of_refused

ResultT = TypeVar("ResultT")


class Commits:
    """Commits events of clients.

    Args:
        committer: Does it.
        deadlines: Give up what takes too long.
        claims: Counts the requests that come again.
        store: Knows them.
        clock: The time, for when they expire.
    """

    def __init__(self, committer: Committer, deadlines: Deadlines, claims: Claims, store: Store, clock: Clock) -> None:
        self._committer = committer
        self._deadlines = deadlines
        self._claims = claims
        self._store = store
        self._clock = clock

    async def commit(self, event: Event[ResultT]) -> ResultT:
        """Commit an event and give its result.

        Raises:
            ServiceError: It was refused, or the database did not do it.
        """
        submission = self._committer.submit(event)
        self._deadlines.watch(submission)
        return await answered(submission)

    async def once(self, event: Event[AnswerT], claim: RequestClaim | None, answer_type: type[AnswerT]) -> AnswerT:
        """Commit the event of a request unless that was carried out before, and give the answer of then or now.

        Raises:
            ServiceError: See `commit`.
        """
        if claim is None:
            return await self.commit(event)
        answer = await self.commit(Once(event, claim, answer_type))
        self._claims.count(claim.key.request_type, answer)
        return answer

    async def known(self, claim: RequestClaim | None, answer_type: type[AnswerT]) -> AnswerT | None:
        """Give the answer of a request that was carried out before, as far as is known without its locks.

        A request that is wrong by now may have been right when it was carried out, and an RPC is to spare its worker.

        Raises:
            ServiceError: It asked for something else, and that is not answered; or the database cannot be read.
        """
        if claim is None:
            return None
        record = (await answered(self._store.find_requests([claim.key]))).get(claim.key)
        if record is None or record.result is None or record.expires_at_ms <= self._clock():
            return None
        try:
            answer = claim.answer(record, answer_type)
        except Refused as refused:
            raise of_refused(refused) from refused
        self._claims.count(claim.key.request_type, answer)
        return answer
