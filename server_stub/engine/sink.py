"""Where the outcomes of calls become events."""

import asyncio
from collections.abc import Sequence

from server_stub.core.call_events import CallFound, CallReturned
from server_stub.core.model import Call, CallKey
from server_stub.core.outcomes import StateOutcome, Verdict
from server_stub.engine.committer import Committer


class CommitterSink:
    """Gives the outcomes of state calls to the committer, which keeps them while the database is unavailable."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def submit(self, call: Call, outcome: StateOutcome) -> asyncio.Future[Verdict]:
        """Have the outcome applied; the future tells what was made of it once that is committed."""
        return self._committer.submit(CallReturned(call.key, outcome), is_patient=True)

    def give_back(self, keys: Sequence[CallKey]) -> None:
        """Let another server make calls that were not made here."""
        self.claim(keys)

    def claim(self, keys: Sequence[CallKey]) -> "asyncio.Future[list[BaseException | None]]":
        """Claim calls of this server's shards, and give back the others; done when that is committed.

        A call that the database has otherwise meanwhile is left as it is.
        """
        found = [self._committer.submit(CallFound(key), is_patient=True) for key in keys]
        return asyncio.gather(*found, return_exceptions=True)
