"""What a commit is to other servers."""

from server_stub.core.changes import Changes
from server_stub.core.cluster import Hint
from server_stub.core.ports import Ownership


def hint_of(changes: Changes, ownership: Ownership, *, timers_before_ms: int) -> Hint:
    """Give what other servers are to be told of a commit.

    Args:
        changes: What was committed.
        ownership: The shards of this server, of which no other has to know anything.
        timers_before_ms: Timers that fire later are found by their owner in time without being told.
    """
    timer_shard_ids = {
        timer.shard_id
        for timer in changes.new_timers.values()
        if timer.fire_at_ms < timers_before_ms and not ownership.range_of(timer.shard_id)
    }
    closed = frozenset(changes.closed_processes)
    return Hint(
        shard_ids=frozenset(changes.foreign_shards),
        timer_shard_ids=frozenset(timer_shard_ids),
        closed=closed,
        with_ended_states=frozenset(key.process_execution_id for key in changes.ended_states) - closed,
        withdrawn=frozenset(changes.withdrawn) - closed,
    )
