"""What is due within the next short while, in memory: an excerpt of the database that may be thrown away any time."""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from server_stub.core.model import Call, StateKey, Timer, TimerKey


@dataclass(frozen=True, slots=True)
class Due:
    """What has become due, earliest first."""

    calls: Sequence[Call]
    timers: Sequence[Timer]


@dataclass(slots=True, eq=False)
class _Planned:
    process_execution_id: str
    key: StateKey | TimerKey
    item: Call | Timer
    round: int


class Plan:
    """Calls and timers by their instants. A state has at most one planned call, a timer key one instant.

    At most `max_calls` calls are kept, since a call holds all that its worker is told; timers are small.

    What is replaced or removed stays in the heap until its instant and is ignored then, so that removing is cheap.
    """

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._call_count = 0
        self._heap: list[tuple[int, int, _Planned]] = []
        self._planned: dict[str, dict[StateKey | TimerKey, _Planned]] = {}
        self._added = 0
        self._round = 0

    @property
    def next_due_at_ms(self) -> int | None:
        """When to look next; there may turn out to be nothing due then."""
        return self._heap[0][0] if self._heap else None

    @property
    def call_count(self) -> int:
        """How many calls are planned."""
        return self._call_count

    def count_timers(self) -> int:
        """Count the timers that are planned, execution by execution."""
        return sum(map(len, self._planned.values())) - self._call_count

    def add_call(self, call: Call) -> bool:
        """Plan a call, in place of another call of the same state; say whether there was room."""
        key = call.key.state
        if self._call_count >= self._max_calls and key not in self._planned.get(key.process_execution_id, {}):
            return False
        self._add(call.key.state, call, call.due_at_ms)
        return True

    def add_timer(self, timer: Timer) -> None:
        """Plan a timer, in place of another instant of the same timer."""
        self._add(timer.key, timer, timer.fire_at_ms)

    def remove(self, key: StateKey | TimerKey) -> None:
        """Forget what is planned for a state or a timer, if anything is."""
        planned = self._planned.get(key.process_execution_id, {})
        entry = planned.pop(key, None)
        if entry is None:
            return
        self._call_count -= isinstance(entry.item, Call)
        if not planned:
            del self._planned[key.process_execution_id]

    def remove_calls(self, process_execution_id: str) -> None:
        """Forget the calls that are planned for an execution."""
        planned = self._planned.get(process_execution_id, {})
        for key in [key for key, entry in planned.items() if isinstance(entry.item, Call)]:
            self.remove(key)

    def remove_process(self, process_execution_id: str) -> None:
        """Forget all that is planned for an execution."""
        planned = self._planned.pop(process_execution_id, {})
        self._call_count -= sum(isinstance(entry.item, Call) for entry in planned.values())

    def remove_shards(self, shard_ids: Collection[int]) -> list[Call]:
        """Forget all that is planned in some shards, and give the calls among it."""
        lost = [
            entry
            for planned in self._planned.values()
            for entry in planned.values()
            if entry.item.shard_id in shard_ids
        ]
        for entry in lost:
            self.remove(entry.key)
        return [entry.item for entry in lost if isinstance(entry.item, Call)]

    def take_due(self, now_ms: int) -> Due:
        """Take out what is due at `now_ms`."""
        calls: list[Call] = []
        timers: list[Timer] = []
        while self._heap and self._heap[0][0] <= now_ms:
            planned = heapq.heappop(self._heap)[2]
            if self._planned.get(planned.process_execution_id, {}).get(planned.key) is not planned:
                continue
            self.remove(planned.key)
            if isinstance(planned.item, Call):
                calls.append(planned.item)
            else:
                timers.append(planned.item)
        return Due(calls, timers)

    def begin_round(self) -> None:
        """Begin to plan anew all that the database holds."""
        self._round += 1

    def end_round(self) -> None:
        """Forget what has not been planned since the round began: the database does not hold it any more."""
        stale = [
            entry.key for planned in self._planned.values() for entry in planned.values() if entry.round < self._round
        ]
        for key in stale:
            self.remove(key)

    def _add(self, key: StateKey | TimerKey, item: Call | Timer, due_at_ms: int) -> None:
        planned = self._planned.setdefault(key.process_execution_id, {})
        known = planned.get(key)
        if known is not None and known.item == item:
            known.round = self._round
            return
        self._call_count += known is None and isinstance(item, Call)
        entry = planned[key] = _Planned(key.process_execution_id, key, item, self._round)
        self._added += 1
        heapq.heappush(self._heap, (due_at_ms, self._added, entry))
