"""Notices an `async def` method that blocks the event loop, and with it every other call of the worker."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def watched(
    coroutine: Coroutine[Any, Any, T], limit_s: float, report: Callable[[float], None]
) -> Generator[Any, Any, T]:
    """Run a coroutine, and `report` the seconds of each step between two awaits that takes longer than `limit_s`.

    The steps are timed here because only here is it known whose they are; a task that measures the lag of the loop
    would have to guess, and would keep a virtual clock from ever being idle.
    """
    now = asyncio.get_running_loop().time
    step: Callable[[], Any] = partial(coroutine.send, None)
    while True:
        began = now()
        try:
            awaited = step()
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            if (took_s := now() - began) > limit_s:
                report(took_s)
        try:
            sent = yield awaited
        except BaseException as error:  # cancellation, too, is the coroutine's to handle
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, sent)
