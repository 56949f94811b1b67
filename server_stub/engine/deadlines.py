"""An end to the patience of clients whose calls wait for the database."""

import asyncio
from collections import deque
from typing import Any

from server_stub.core.ports import CommitOutcomeUnknown, StoreUnavailable
from server_stub.engine.committer import Submission

_CHECK_INTERVAL_S = 1.0


class Deadlines:
    """Gives up submissions that are not committed in time, to a second.

    One timer watches all of them: a timer for each call would be a thirteenth of a busy server's time.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._watched: deque[tuple[float, Submission[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, submission: Submission[Any]) -> None:
        """Fail a submission with StoreUnavailable when its time is over, CommitOutcomeUnknown if it is being committed.

        One that has not been begun by then never happens.
        """
        loop = asyncio.get_running_loop()
        self._watched.append((loop.time() + self._timeout_s, submission))
        if self._timer is None:
            self._timer = loop.call_later(_CHECK_INTERVAL_S, self._check)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        while self._watched and (self._watched[0][1].done() or self._watched[0][0] <= loop.time()):
            _, submission = self._watched.popleft()
            if not submission.done():
                submission.set_exception(self._expired(submission))
        self._timer = loop.call_later(_CHECK_INTERVAL_S, self._check) if self._watched else None

    def _expired(self, submission: Submission[Any]) -> StoreUnavailable:
        if submission.is_begun:
            return CommitOutcomeUnknown(f"the database did not answer within {self._timeout_s:g} s")
        return StoreUnavailable(f"no transaction was begun within {self._timeout_s:g} s")
