"""Rows of members and shards as the view of a cluster; the same for every database server."""

from collections.abc import Sequence
from dataclasses import replace

from server_stub.core.cluster import ClusterView, Member, Role, Shard
from server_stub.storage.codec import Row

_ROLES = frozenset(map(str, Role))


def view_of(rows: Sequence[Row], me: Member) -> ClusterView:
    """Read a view, with `me` in it, from rows that hold a shard each, or a member each.

    The columns are the instant, the six of a shard, and four of a member; those of the other kind are null. Roles that
    only another release knows are left out. Of `me`, the rows say only whether somebody else drains it.
    """
    members, shards = {me.member_id: me}, []
    now_ms = 0
    for now_ms, *row in rows:  # noqa: B007  # the same in every row
        shard, (member_id, address, roles, is_draining) = row[:6], row[6:]
        if member_id is None:
            shards.append(Shard(*shard))
        elif member_id == me.member_id:
            members[member_id] = replace(me, is_draining=me.is_draining or is_draining == 1)
        else:
            known = frozenset(Role(role) for role in roles.split(",") if role in _ROLES)
            members[member_id] = Member(member_id, address, known, is_draining == 1)
    return ClusterView(now_ms, sorted(members.values(), key=lambda member: member.member_id), shards)
