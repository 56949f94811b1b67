"""A store on real I/O for a loop on virtual time: while the database works, that loop stands still.

The store lives on an event loop of its own in another thread. To the virtual loop each of its methods takes no time and
lets nothing else run, as a function in the executor does there, so that a run stays the same every time.
"""

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, Final, TypeVar

from server_stub.core.ports import Store

T = TypeVar("T")

_PATIENCE_S: Final = 60
"""How long a call may take of real time before the test fails."""

_STORE_METHODS: Final = frozenset(name for name in vars(Store) if not name.startswith("_")) - {"counters"}


class LoopThread:
    """An event loop that runs in a thread of its own until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="real-time-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and block the calling thread until it is done."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_S)

    def close(self) -> None:
        """Stop the loop and end the thread. Calling it twice is harmless."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingStore:
    """A `Store` whose methods block the event loop that calls them until the real store has answered.

    It has the methods of a `Store` and no others: servers that share a database are tested on real time.
    """

    def __init__(self, store: Store, thread: LoopThread) -> None:
        self._store = store
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        if name == "counters":
            return self._store.counters
        if name not in _STORE_METHODS:
            raise AttributeError(f"a store has no {name!r}")
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return self._thread.run(method(*args, **kwargs))

        return call
