"""Calls that lock the same attributes go one after another, in order of arrival (semantics 5.4).

Only an optimisation: what makes locking right is the comparison of the read set at commit. Nothing here is durable.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable


class LockTicket:
    """A place in the queue of every key it names; `is_granted` once it is served at all of them."""

    __slots__ = ("_blocked_at", "is_exclusive", "keys", "on_granted")

    def __init__(self, keys: Iterable[Hashable], on_granted: Callable[[], None], *, is_exclusive: bool) -> None:
        self.keys = tuple(dict.fromkeys(keys))
        self.is_exclusive = is_exclusive
        self.on_granted = on_granted
        self._blocked_at = set(self.keys)

    @property
    def is_granted(self) -> bool:
        """Whether the call may go."""
        return not self._blocked_at

    def serve(self, key: Hashable) -> bool:
        """Note that the ticket is served at `key`; say whether that grants it."""
        if key not in self._blocked_at:
            return False
        self._blocked_at.remove(key)
        return not self._blocked_at


class LockQueue:
    """A first-come first-served queue for each key; share tickets go together, an exclusive one goes alone.

    A ticket joins all its queues at once, so tickets only ever wait for earlier ones and none wait for one another.
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, dict[LockTicket, None]] = {}
        self._granted: deque[LockTicket] = deque()
        """Tickets whose owners are not told yet."""
        self._is_telling = False

    def __len__(self) -> int:
        """Count the keys that are held or waited for."""
        return len(self._queues)

    def enter(self, keys: Iterable[Hashable], on_granted: Callable[[], None], *, is_exclusive: bool) -> LockTicket:
        """Join the queues of `keys`.

        A ticket that nothing is in the way of is granted when this returns; `on_granted` is called for one that had to
        wait, once it has not to any more.
        """
        ticket = LockTicket(keys, on_granted, is_exclusive=is_exclusive)
        for key in ticket.keys:
            self._queues.setdefault(key, {})[ticket] = None
            self._serve(key)
        return ticket

    def leave(self, ticket: LockTicket) -> None:
        """Release what the ticket holds, or give up waiting. A ticket that has left already is no error."""
        for key in ticket.keys:
            queue = self._queues.get(key, {})
            if ticket not in queue:
                continue
            del queue[ticket]
            if not queue:
                del self._queues[key]
            elif ticket.is_exclusive or next(iter(queue)).is_exclusive:
                self._granted += self._serve(key)
        self._tell_granted()

    def _tell_granted(self) -> None:
        """Tell owners one by one. One that leaves at once only adds to the list, so that no queue is too long."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._granted:
                ticket = self._granted.popleft()
                if ticket in self._queues.get(ticket.keys[0], ()):  # it may have left meanwhile
                    ticket.on_granted()
        finally:
            self._is_telling = False

    def _serve(self, key: Hashable) -> list[LockTicket]:
        granted: list[LockTicket] = []
        for position, ticket in enumerate(self._queues[key]):
            if ticket.is_exclusive and position > 0:
                break
            if ticket.serve(key):
                granted.append(ticket)
            if ticket.is_exclusive:
                break
        return granted
