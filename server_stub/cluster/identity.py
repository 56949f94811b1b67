"""How a server process is named among the members, so that its successor knows what it has left behind."""

import socket
import uuid
from hashlib import sha256

from server_stub.core.cluster import ClusterView

_SEPARATOR = "#"


def place_of(host: str, port: int) -> str:
    """Name the place of a process that listens on an address of this machine: one such process lives at a time."""
    return sha256(f"{socket.gethostname()} {uuid.getnode():012x} {host} {port}".encode()).hexdigest()[:16]


def new_member_id(place: str | None) -> str:
    """Name a process, in at most 64 characters; without a place it has no predecessor."""
    return f"{place or ''}{_SEPARATOR}{uuid.uuid4().hex}"


def predecessors(view: ClusterView, member_id: str) -> list[str]:
    """Give the processes that were at a member's place before it: they have ended, however that was."""
    place = _place(member_id)
    if not place:
        return []
    seen = {member.member_id for member in view.members} | {shard.owner_id or "" for shard in view.shards}
    return sorted(each for each in seen if each != member_id and _place(each) == place)


def _place(member_id: str) -> str:
    return member_id.rpartition(_SEPARATOR)[0]
