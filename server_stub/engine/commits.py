"""Commits what clients ask for, once for each request id, while their patience lasts."""

from typing import TypeVar

from server_stub.core.events import Event
from server_stub.core.requests import AnswerT, Once, RequestClaim
from server_stub.engine.answered import answered
from server_stub.engine.claims import Claims
from server_stub.engine.committer import Committer
from server_stub.engine.deadlines import Deadlines

ResultT = TypeVar("ResultT")


class Commits:
    """Commits events of clients.

    Args:
        committer: Does it.
        deadlines: Give up what takes too long.
        claims: Counts the requests that come again.
    """

    def __init__(self, committer: Committer, deadlines: Deadlines, claims: Claims) -> None:
        self._committer = committer
        self._deadlines = deadlines
        self._claims = claims

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
