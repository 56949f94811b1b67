"""Long polls: who waits for an execution to close or a state execution to end (semantics 6.4, 6.8)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.model import ProcessExecution, ProcessKey

KeyT = TypeVar("KeyT")


class Subscription:
    """One waiter. `closed` holds the executions of its process id that have closed since it began."""

    def __init__(self) -> None:
        self.closed: dict[str, ProcessExecution] = {}
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
        self.is_stopping = False

    @contextmanager
    def of_process(self, key: ProcessKey) -> Iterator[Subscription]:
        """Subscribe to the closing of executions of a process id. Subscribe first, then read."""
        with _subscribed(self._by_process, key) as subscription:
            yield subscription

    @contextmanager
    def of_states(self, process_execution_id: str) -> Iterator[Subscription]:
        """Subscribe to the ends of the state executions of an execution, and to its own. Subscribe first, then read."""
        with _subscribed(self._by_execution, process_execution_id) as subscription:
            yield subscription

    def committed(self, changes: Changes) -> None:
        """Tell those whom a commit concerns."""
        if self._by_process:
            for process in changes.closed_processes.values():
                for subscription in self._by_process.get(process.key, ()):
                    subscription.closed[process.process_execution_id] = process
                    subscription.wake()
        if self._by_execution:
            concerned = {key.process_execution_id for key in changes.ended_states} | set(changes.closed_processes)
            for process_execution_id in concerned:
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
        del index[key][subscription]
        if not index[key]:
            del index[key]
