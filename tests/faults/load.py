"""Users who start processes one after another, whatever happens to the server, and check what becomes of them."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tests.faults.installation import Installation
from tests.faults.processes import POSTINGS, Ledger
from tests.simulation.processes import Mailbox, Sleeper, Tree
from xdb_sdk import (
    AsyncClient,
    IdReusePolicy,
    ProcessAlreadyStartedError,
    ProcessNotRunningError,
    ProcessStartOptions,
    QueueMessage,
    RpcExecutionError,
    RpcLockNotAcquiredError,
    UnavailableError,
)

T = TypeVar("T")

PATIENCE_S = 45.0
"""How long everything may take that was begun when the last fault is over."""

SHARERS = 8
"""How many processes, at most, are mapped to the same row."""

CLOCK_TOLERANCE_S = 0.01

ONCE = ProcessStartOptions(id_reuse_policy=IdReusePolicy.DISALLOW_REUSE)
"""A start that is repeated after a lost answer must not start again what has completed meanwhile."""


@dataclass(slots=True)
class KnownEntries:
    """What a ledger must hold, and what it may hold because the answer to an RPC was lost."""

    certain: set[str] = field(default_factory=set)
    uncertain: set[str] = field(default_factory=set)


class Load:
    """Keeps a number of users at work.

    Attributes:
        lost_calls: What callers were told who do not know what became of their calls.
    """

    def __init__(self, installation: Installation, seed: int, *, users: int = 12) -> None:
        self._installation = installation
        self._rng = random.Random(seed)
        self._users = users
        self._started = 0
        self._is_ending = False
        self._has_completed = asyncio.Event()
        self._ledgers: dict[str, KnownEntries] = {}
        self._client: AsyncClient
        self.lost_calls: list[str] = []

    async def run(self, faults: Callable[["Load"], Awaitable[None]]) -> None:
        """Work while `faults` happen, and finish what was begun then.

        Raises:
            TimeoutError: Something is not done in time.
        """
        async with self._installation.client() as self._client, asyncio.TaskGroup() as group:
            users = [group.create_task(self._use()) for _ in range(self._users)]
            await faults(self)
            self._is_ending = True
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait(users)

    async def progress(self) -> None:
        """Wait until another process completes."""
        self._has_completed.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self._has_completed.wait()

    def check_ledgers(self) -> None:
        """Check that the rows of the application hold each effect once."""
        rows = {id_: (total, entries) for id_, total, entries in self._installation.sql("SELECT * FROM ledgers")}
        assert rows.keys() == self._ledgers.keys()
        for id_, known in self._ledgers.items():
            total, entries = rows[id_][0], Counter(json.loads(rows[id_][1]))
            assert total == entries.total()
            assert set(entries.values()) == {1}
            assert known.certain <= entries.keys() <= known.certain | known.uncertain

    async def _use(self) -> None:
        while not self._is_ending:
            self._started += 1
            use = self._rng.choice([self._use_ledger, self._use_mailbox, self._use_tree, self._use_sleeper])
            await use(f"p-{self._started}")
            self._has_completed.set()

    async def _use_ledger(self, process_id: str) -> None:
        ledger = f"ledger-{self._started // SHARERS}"
        known = self._ledgers.setdefault(ledger, KnownEntries())
        await self._start(lambda: self._client.start_object_process(process_id, Ledger, ledger, 1, ONCE))
        known.certain |= {f"{process_id} Post-{posting}" for posting in range(1, POSTINGS + 1)}
        await asyncio.gather(*(self._deposit(process_id, f"{process_id} deposit {n}", known) for n in range(2)))
        assert await self._insist(lambda: self._client.wait_for_process_completion(process_id, int)) == POSTINGS

    async def _deposit(self, process_id: str, entry: str, known: KnownEntries) -> None:
        known.uncertain.add(entry)
        try:
            await self._client.invoke_rpc(process_id, Ledger.deposit, entry)
        except (RpcLockNotAcquiredError, RpcExecutionError, ProcessNotRunningError):
            known.uncertain.remove(entry)
        except UnavailableError as error:
            self.lost_calls.append(str(error))
        else:
            known.certain.add(entry)

    async def _use_mailbox(self, process_id: str) -> None:
        await self._start(lambda: self._client.start_process(process_id, Mailbox, None, ONCE))
        sent = [f"message {n}" for n in range(self._rng.randint(1, 4))]
        for value in sent:
            await self._publish(process_id, value)
            await self._publish(process_id, value)
        with suppress(ProcessNotRunningError):  # the answer to an earlier try was lost, and it has stopped since
            await self._publish(process_id, "stop")
        await self._insist(lambda: self._client.wait_for_process_completion(process_id))
        values = await self._insist(lambda: self._client.get_data_attributes(process_id, Mailbox))
        assert values["received"] == [*sent, "stop"]

    async def _publish(self, process_id: str, value: str) -> None:
        message = QueueMessage(queue=Mailbox.inbox, value=value, dedup_id=value)
        await self._insist(lambda: self._client.publish_messages(process_id, Mailbox, [message]))

    async def _use_tree(self, process_id: str) -> None:
        width = self._rng.randint(1, 4)
        await self._start(lambda: self._client.start_process(process_id, Tree, width, ONCE))
        parts = await self._insist(lambda: self._client.wait_for_process_completion(process_id, list[str]))
        assert sorted(part.split()[1] for part in parts) == [str(branch) for branch in range(width)]

    async def _use_sleeper(self, process_id: str) -> None:
        sleep_s = self._rng.uniform(0.1, 3)
        began_s = time.monotonic()
        await self._start(lambda: self._client.start_process(process_id, Sleeper, sleep_s, ONCE))
        assert await self._insist(lambda: self._client.wait_for_process_completion(process_id, str)) == "awake"
        assert time.monotonic() - began_s > sleep_s - CLOCK_TOLERANCE_S

    async def _start(self, start: Callable[[], Awaitable[str]]) -> None:
        with suppress(ProcessAlreadyStartedError):  # the answer to an earlier try was lost
            await self._insist(start)

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until there is an answer."""
        while True:
            try:
                return await call()
            except UnavailableError as error:
                self.lost_calls.append(str(error))
                await asyncio.sleep(0.05)
