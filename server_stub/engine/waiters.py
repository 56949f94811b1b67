"""Long polls: who waits for an execution to close or a state execution to end (semantics 6.4, 6.8)."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.cluster import Hint
from server_stub.core.model import ProcessExecution, ProcessKey

KeyT = TypeVar("KeyT")


class Subscription:
    """One waiter. `closed` holds the executions of its process id that have closed since it began."""

    def __init__(self) -> None:
        self.closed: dict[str, ProcessExecution] = {}
        self.awaited_id: str | None = None
        """The execution that it waits for, once that is known."""
        self.hinted_ids: set[str] = set()
        """Executions that other servers have closed while it was not known."""
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Let the waiter look again."""
        self._news.set()

    async def news(self, timeout_s: float) -> None:
        """Wait until there may be something new, or time runs out."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()


_Index: TypeAlias = dict[KeyT, dict[Subscription, None]]
"""Subscriptions by what they are to, in the order they were made: a dict is the ordered set."""


class Waiters:
    """Wakes the long polls of this server that a commit concerns.

    It is a hint only: a waiter also looks at the database from time to time, since another server may close the
    execution.
    """

    def __init__(self) -> None:
        self._by_process: _Index[ProcessKey] = {}
        self._by_execution: _Index[str] = {}
        self._by_awaited: _Index[str] = {}
        self._undecided: dict[Subscription, None] = {}
        """Subscriptions that have not said yet which execution they wait for."""
        self.on_wait: Callable[[Collection[str]], None] = lambda hinted_ids: None
        """Told when a wait begins; of the executions, those that may have closed already."""
        self.is_stopping = False

    @contextmanager
    def of_process(self, key: ProcessKey) -> Iterator[Subscription]:
        """Subscribe to the closing of executions of a process id. Subscribe first, then read, then `await_closing`."""
        with _subscribed(self._by_process, key) as subscription:
            self._undecided[subscription] = None
            try:
                yield subscription
            finally:
                self._undecided.pop(subscription, None)
                if subscription.awaited_id is not None:
                    _remove(self._by_awaited, subscription.awaited_id, subscription)

    def await_closing(self, subscription: Subscription, process_execution_id: str) -> None:
        """Say which execution a subscription waits for, so that it hears of it from other servers too."""
        subscription.awaited_id = process_execution_id
        self._by_awaited.setdefault(process_execution_id, {})[subscription] = None
        del self._undecided[subscription]
        self.on_wait({process_execution_id} & subscription.hinted_ids)

    @contextmanager
    def of_states(self, process_execution_id: str) -> Iterator[Subscription]:
        """Subscribe to the ends of the state executions of an execution, and to its own. Subscribe first, then read."""
        with _subscribed(self._by_execution, process_execution_id) as subscription:
            self.on_wait(())
            yield subscription

    @property
    def awaited_ids(self) -> KeysView[str]:
        """The executions whose closing is waited for."""
        return self._by_awaited.keys()

    @property
    def awaited_count(self) -> int:
        """How many executions are waited for, either to close or for states of theirs to end."""
        return len(self._by_awaited) + len(self._by_execution)

    @property
    def count(self) -> int:
        """How many long polls wait."""
        return sum(map(len, self._by_process.values())) + sum(map(len, self._by_execution.values()))

    def committed(self, changes: Changes) -> None:
        """Tell those whom a commit concerns."""
        if self._by_process:
            self.closed(changes.closed_processes.values())
        if self._by_execution:
            self._wake_states(
                {key.process_execution_id for key in changes.ended_states} | set(changes.closed_processes)
            )

    def closed(self, processes: Iterable[ProcessExecution]) -> None:
        """Tell those who wait for executions that have closed, here or elsewhere."""
        for process in processes:
            for subscription in self._by_process.get(process.key, ()):
                subscription.closed[process.process_execution_id] = process
                subscription.wake()

    def hinted(self, hint: Hint) -> Collection[str]:
        """Take note of what another server has committed; give the executions that are waited for and have closed."""
        self._wake_states(hint.with_ended_states | hint.closed)
        for subscription in self._undecided:
            subscription.hinted_ids |= hint.closed
        return hint.closed & self._by_awaited.keys()

    def recheck_states(self) -> None:
        """Let all who wait for state executions look at the database."""
        self._wake_states(tuple(self._by_execution))

    def _wake_states(self, process_execution_ids: Iterable[str]) -> None:
        for process_execution_id in process_execution_ids:
            for subscription in self._by_execution.get(process_execution_id, ()):
                subscription.wake()

    def stop(self) -> None:
        """Let every waiter answer that the server is stopping."""
        self.is_stopping = True
        for index in (self._by_process, self._by_execution):
            for subscriptions in index.values():
                for subscription in subscriptions:
                    subscription.wake()


@contextmanager
def _subscribed(index: "_Index[KeyT]", key: KeyT) -> Iterator[Subscription]:
    subscription = Subscription()
    index.setdefault(key, {})[subscription] = None
    try:
        yield subscription
    finally:
        _remove(index, key, subscription)


def _remove(index: "_Index[KeyT]", key: KeyT, subscription: Subscription) -> None:
    del index[key][subscription]
    if not index[key]:
        del index[key]
