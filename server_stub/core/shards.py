"""Which shard a process id belongs to (idempotency-and-shards D.7)."""

from zlib import crc32

from server_stub.core.model import ProcessKey


def shard_of(key: ProcessKey, num_shards: int) -> int:
    """Give the shard of all executions of a process id: the same in every server and for ever."""
    return crc32(f"{key.namespace}\0{key.process_id}".encode()) % num_shards
