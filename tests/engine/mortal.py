"""A system whose server can be killed at a commit, for the tests of crashes."""

import random
from typing import ClassVar, cast

from server_stub.app import Server
from server_stub.core.changes import Changes
from server_stub.core.ports import Store, Work
from server_stub.dispatch.transport import WorkerTransport
from tests.simulation.chaos import ChaoticTransport, Faults, Life, MortalStore
from tests.support.system import System

NO_FAULTS = Faults()


class DoomedStore(MortalStore):
    """A store whose server dies when it commits for the `last`th time, before or after the commit."""

    def __init__(self, store: Store, life: Life) -> None:
        super().__init__(store, life, NO_FAULTS, random.Random(0))
        self._own_life = life
        self.commits = 0
        self.last: int | None = None
        self.dies_after = False

    async def transact(self, work: Work) -> Changes:
        """See `Store.transact`."""
        self.commits += 1
        is_last = self.commits == self.last
        if is_last and not self.dies_after:
            await self._own_life.end()
        changes = await super().transact(work)
        if is_last:
            await self._own_life.end()
        return changes


class MortalSystem(System):
    """A system whose server can be killed: from then on nothing it does reaches the database or a worker."""

    doomed: DoomedStore
    life: Life
    _graveyard: ClassVar[list[Server]] = []
    """Dead servers, whose tasks are silent until the loop ends them: it must not find them collected as garbage."""

    async def open_server(self, store: Store, transport: WorkerTransport) -> Server:
        """Begin a new life."""
        self.life = Life(replace=lambda: None, survives=lambda: False)
        self.doomed = DoomedStore(store, self.life)
        mortal_transport = ChaoticTransport(transport, self.life, NO_FAULTS, random.Random(0))
        server = await super().open_server(cast(Store, self.doomed), mortal_transport)  # the rest by __getattr__
        self._graveyard.append(server)
        return server

    def doom(self, commit: int, *, after: bool) -> None:
        """Let the server die at its next commit but `commit - 1`."""
        self.doomed.last = self.doomed.commits + commit
        self.doomed.dies_after = after

    async def rise(self) -> None:
        """Start another server on what the dead one has left."""
        self.server = await self.open_server(self.store, self.worker)
