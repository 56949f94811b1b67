"""Tasks that are started by synchronous code and end with their owner."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """Keeps tasks alive while they run, and ends them together."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        """A dict for its order: tests replay runs exactly."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task. It has to deal with its own errors."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def close(self, grace_s: float) -> None:
        """Wait for the tasks at most `grace_s`, then cancel those that are left."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + grace_s
        while self._tasks and (left_s := ends_at_s - loop.time()) > 0:
            await asyncio.wait(list(self._tasks), timeout=left_s)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
