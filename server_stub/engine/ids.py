"""Ids of process executions."""

from collections.abc import Callable
from uuid import UUID

from server_stub.core.ports import Clock

RandomBytes = Callable[[int], bytes]
"""Gives that many random bytes, as `os.urandom` does."""

_RANDOM_BITS = 74
_RANDOM_MASK = (1 << _RANDOM_BITS) - 1
_RAND_B_BITS = 62
_VERSION = 7 << 76
_VARIANT = 0b10 << _RAND_B_BITS


class Uuid7Source:
    """Make UUIDs of version 7, each greater than the one before, whatever the clock does.

    Increasing ids keep the inserts into an index over them at its end.

    Args:
        clock: Gives the time.
        random_bytes: Gives the random part of the first id of a millisecond; the next ones count on from there.

    Source: RFC 9562, section 5.7, and section 6.2 method 2 for ids of one millisecond. The standard library has it only
    from Python 3.14 on, and without an injected clock.
    """

    def __init__(self, clock: Clock, random_bytes: RandomBytes) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._last_ms = -1
        self._random = 0

    def __call__(self) -> str:
        """Make the next id, as 36 lower-case characters."""
        now_ms = self._clock()
        if now_ms > self._last_ms:
            self._begin_millisecond(now_ms)
        elif self._random == _RANDOM_MASK:
            self._begin_millisecond(self._last_ms + 1)
        else:
            self._random += 1
        rand_a = self._random >> _RAND_B_BITS
        rand_b = self._random & ((1 << _RAND_B_BITS) - 1)
        return str(UUID(int=self._last_ms << 80 | _VERSION | rand_a << 64 | _VARIANT | rand_b))

    def _begin_millisecond(self, now_ms: int) -> None:
        self._last_ms = now_ms
        self._random = int.from_bytes(self._random_bytes(10)) & _RANDOM_MASK
