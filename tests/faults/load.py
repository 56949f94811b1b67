"""Users who start processes one after another, whatever happens to the servers, and check what becomes of them."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

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


class Target(Protocol):
    """What bears the load: an `Installation` or a `Cluster`."""

    def clients(self) -> Sequence[AsyncClient]:
        """Make a client for each server that serves clients."""
        ...

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run SQL of the application's own."""
        ...


class Caller:
    """Calls one server, and goes on to the next when it gets no answer.

    Args:
        clients: One for each server.
        first: Where to begin.
        lost_calls: Is told what a caller hears who cannot know what became of a call.
    """

    def __init__(self, clients: Sequence[AsyncClient], first: int, lost_calls: list[str]) -> None:
        self._clients = clients
        self._place = first
        self._lost_calls = lost_calls

    async def once(self, call: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Call a server.

        Raises:
            UnavailableError: There is no answer.
        """
        try:
            return await self._call(call)
        except UnavailableError as error:
            if not is_without_effect(error):
                self._lost_calls.append(str(error))
            raise

    async def insist(self, call: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Call until there is an answer."""
        return await _until_answered(lambda: self.once(call))

    async def watch(self, call: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Read or wait until there is an answer; nothing is lost where a call has no effect."""
        return await _until_answered(lambda: self._call(call))

    async def _call(self, call: Callable[[AsyncClient], Awaitable[T]]) -> T:
        try:
            return await call(self._clients[self._place % len(self._clients)])
        except UnavailableError:
            self._place += 1
            raise


async def _until_answered(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except UnavailableError:
            await asyncio.sleep(0.05)


def is_without_effect(error: UnavailableError) -> bool:
    """Whether the error says that the call has certainly changed nothing."""
    return any(phrase in str(error) for phrase in ("nothing was sent", "nothing was changed", "has not run"))


class Load:
    """Keeps a number of users at work, each beginning with another server.

    Attributes:
        lost_calls: What callers were told who do not know what became of their calls.
        completed: How many processes have completed.
        overslept_s: How late a sleeper was answered, at most.
    """

    def __init__(self, target: Target, seed: int, *, users: int = 12) -> None:
        self._target = target
        self._rng = random.Random(seed)
        self._users = users
        self._started = 0
        self._is_ending = False
        self._has_completed = asyncio.Event()
        self._ledgers: dict[str, KnownEntries] = {}
        self.lost_calls: list[str] = []
        self.completed = 0
        self.overslept_s = 0.0

    async def run(self, faults: Callable[["Load"], Awaitable[None]]) -> None:
        """Work while `faults` happen, and finish what was begun then.

        Raises:
            TimeoutError: Something is not done in time.
        """
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            clients = [await stack.enter_async_context(client) for client in self._target.clients()]
            callers = [Caller(clients, number, self.lost_calls) for number in range(self._users)]
            users = [group.create_task(self._use(caller)) for caller in callers]
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
        rows = {id_: (total, entries) for id_, total, entries in self._target.sql("SELECT * FROM ledgers")}
        assert rows.keys() == self._ledgers.keys()
        for id_, known in self._ledgers.items():
            total, entries = rows[id_][0], Counter(json.loads(rows[id_][1]))
            assert total == entries.total()
            assert set(entries.values()) == {1}
            assert known.certain - entries.keys() == set(), "effects that are missing"
            assert entries.keys() - known.certain - known.uncertain == set(), "effects that nobody knows of"

    async def _use(self, caller: Caller) -> None:
        while not self._is_ending:
            self._started += 1
            use = self._rng.choice([self._use_ledger, self._use_mailbox, self._use_tree, self._use_sleeper])
            await use(caller, f"p-{self._started}")
            self.completed += 1
            self._has_completed.set()

    async def _use_ledger(self, caller: Caller, process_id: str) -> None:
        ledger = f"ledger-{self._started // SHARERS}"
        known = self._ledgers.setdefault(ledger, KnownEntries())
        await _start(caller, lambda client: client.start_object_process(process_id, Ledger, ledger, 1, ONCE))
        known.certain |= {f"{process_id} Post-{posting}" for posting in range(1, POSTINGS + 1)}
        await asyncio.gather(*(_deposit(caller, process_id, f"{process_id} deposit {n}", known) for n in range(2)))
        assert await caller.watch(lambda client: client.wait_for_process_completion(process_id, int)) == POSTINGS

    async def _use_mailbox(self, caller: Caller, process_id: str) -> None:
        await _start(caller, lambda client: client.start_process(process_id, Mailbox, None, ONCE))
        sent = [f"message {n}" for n in range(self._rng.randint(1, 4))]
        for value in sent:
            await _publish(caller, process_id, value)
            await _publish(caller, process_id, value)
        with suppress(ProcessNotRunningError):  # the answer to an earlier try was lost, and it has stopped since
            await _publish(caller, process_id, "stop")
        await caller.watch(lambda client: client.wait_for_process_completion(process_id))
        values = await caller.watch(lambda client: client.get_data_attributes(process_id, Mailbox))
        assert values["received"] == [*sent, "stop"]

    async def _use_tree(self, caller: Caller, process_id: str) -> None:
        width = self._rng.randint(1, 4)
        await _start(caller, lambda client: client.start_process(process_id, Tree, width, ONCE))
        parts = await caller.watch(lambda client: client.wait_for_process_completion(process_id, list[str]))
        assert sorted(part.split()[1] for part in parts) == [str(branch) for branch in range(width)]

    async def _use_sleeper(self, caller: Caller, process_id: str) -> None:
        sleep_s = self._rng.uniform(0.1, 3)
        began_s = time.monotonic()
        await _start(caller, lambda client: client.start_process(process_id, Sleeper, sleep_s, ONCE))
        assert await caller.watch(lambda client: client.wait_for_process_completion(process_id, str)) == "awake"
        slept_s = time.monotonic() - began_s
        assert slept_s > sleep_s - CLOCK_TOLERANCE_S
        self.overslept_s = max(self.overslept_s, slept_s - sleep_s)


async def _deposit(caller: Caller, process_id: str, entry: str, known: KnownEntries) -> None:
    known.uncertain.add(entry)
    try:
        await caller.once(lambda client: client.invoke_rpc(process_id, Ledger.deposit, entry))
    except (RpcLockNotAcquiredError, RpcExecutionError, ProcessNotRunningError):
        known.uncertain.remove(entry)
    except UnavailableError as error:
        if is_without_effect(error):
            known.uncertain.remove(entry)
    else:
        known.certain.add(entry)


async def _publish(caller: Caller, process_id: str, value: str) -> None:
    message = QueueMessage(queue=Mailbox.inbox, value=value, dedup_id=value)
    await caller.insist(lambda client: client.publish_messages(process_id, Mailbox, [message]))


async def _start(caller: Caller, start: Callable[[AsyncClient], Awaitable[str]]) -> None:
    with suppress(ProcessAlreadyStartedError):  # the answer to an earlier try was lost
        await caller.insist(start)
