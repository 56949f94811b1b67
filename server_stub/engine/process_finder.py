"""Lookups of executions that come at the same time share one read of the database."""

import asyncio
from collections.abc import Mapping, Sequence

from server_stub.core.model import ProcessExecution
from server_stub.core.ports import ProcessLookup, Store, StoreUnavailable


class ProcessFinder:
    """Finds executions. While a read is under way, further lookups wait for the next one, which serves all of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[ProcessLookup, list[asyncio.Future[ProcessExecution | None]]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def find(self, lookup: ProcessLookup) -> ProcessExecution | None:
        """Give an execution as it is in the database after the call began; it is shared, and not to be changed.

        Raises:
            StoreError: The read failed.
        """
        future: asyncio.Future[ProcessExecution | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lookup, []).append(future)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="xdb-process-finder")
        return await future

    async def _read(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            await self._find(waiting)
        self._reader = None

    async def _find(self, waiting: Mapping[ProcessLookup, Sequence[asyncio.Future[ProcessExecution | None]]]) -> None:
        try:
            found = await self._store.find_processes(list(waiting))
        except Exception as error:
            if len(waiting) == 1 or isinstance(error, StoreUnavailable):
                for futures in waiting.values():
                    _fail(futures, error)
                return
            for lookup, futures in waiting.items():  # a row that cannot be read is to hurt nobody else
                await self._find({lookup: futures})
            return
        for futures, process in zip(waiting.values(), found, strict=True):
            _answer(futures, process)


def _answer(futures: Sequence[asyncio.Future[ProcessExecution | None]], process: ProcessExecution | None) -> None:
    for future in futures:
        if not future.done():
            future.set_result(process)


def _fail(futures: Sequence[asyncio.Future[ProcessExecution | None]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
