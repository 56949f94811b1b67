"""Where the outcomes of calls become events."""

import asyncio

from server_stub.core.call_events import CallReturned
from server_stub.core.model import Call
from server_stub.core.outcomes import StateOutcome, Verdict
from server_stub.engine.committer import Committer


class CommitterSink:
    """Gives the outcomes of state calls to the committer, which keeps them while the database is unavailable."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def submit(self, call: Call, outcome: StateOutcome) -> asyncio.Future[Verdict]:
        """Have the outcome applied; the future tells what was made of it once that is committed."""
        return self._committer.submit(CallReturned(call.key, outcome), is_patient=True)
