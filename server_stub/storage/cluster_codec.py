"""Rows of members and shards as the view of a cluster; the same for every database server."""

from collections.abc import Sequence

from server_stub.core.cluster import ClusterView, Member, Role, Shard
from server_stub.storage.codec import Row


def view_of(rows: Sequence[Row], me: Member) -> ClusterView:
    """Read a view, with `me` in it, from rows that hold a shard each, or a member each.

    The columns are the instant, the six of a shard, and four of a member; those of the other kind are null.
    """
    members, shards = [me], []
    now_ms = 0
    for now_ms, *row in rows:  # noqa: B007  # the same in every row
        shard, (member_id, address, roles, is_draining) = row[:6], row[6:]
        if member_id is None:
            shards.append(Shard(*shard))
        else:
            members.append(Member(member_id, address, frozenset(map(Role, roles.split(","))), is_draining == 1))
    return ClusterView(now_ms, sorted(members, key=lambda member: member.member_id), shards)
