"""The time as a `Client` sees it; tests bring their own. An `AsyncClient` takes its event loop's time."""

import time
from typing import Protocol


class ClientClock(Protocol):
    """The time of a `Client`."""

    def now_s(self) -> float:
        """Seconds since any fixed point; never goes back."""
        ...

    def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since any fixed point."""
        return time.monotonic()

    def sleep(self, delay_s: float) -> None:
        """Block this thread for `delay_s` seconds."""
        time.sleep(delay_s)
