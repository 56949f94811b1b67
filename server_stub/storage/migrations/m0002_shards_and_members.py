"""Version 2: several servers share the shards, calls are claimed for their owner, and traces go on in workers.

Ids on MySQL and MariaDB end in the blanks that they were given with from here on.
"""

from typing import Final

from server_stub.storage.schema_change import COLLATIONS, Definition, SchemaChange, SchemaDialect

_TABLES_BEFORE: Final = (
    "xdb_sys_async_state_execution",
    "xdb_sys_cluster",
    "xdb_sys_internal_queue",
    "xdb_sys_local_attribute",
    "xdb_sys_process_execution",
    "xdb_sys_timer_tasks",
    "xdb_sys_user_event",
)

_ADD_TRACE_CONTEXT: Final = "ALTER TABLE xdb_sys_process_execution ADD COLUMN trace_context"
_ADD_CLAIM_RANGE: Final = "ALTER TABLE xdb_sys_async_state_execution ADD COLUMN claim_range BIGINT DEFAULT 0 NOT NULL"
_INDEX_UNCLAIMED: Final = """CREATE INDEX xdb_sys_async_state_execution_unclaimed
ON xdb_sys_async_state_execution (shard_id, claim_range, due_at_ms)"""
_WHERE_UNCLAIMED: Final = "\nWHERE due_at_ms IS NOT NULL AND claim_range = 0"

_CREATE_SHARD: Final = """CREATE TABLE xdb_sys_shard (
    kind VARCHAR(16){collate} NOT NULL,
    shard_id INTEGER NOT NULL,
    range_id BIGINT NOT NULL,
    owner_id VARCHAR(64){collate},
    lease_until_ms BIGINT NOT NULL,
    handover_range BIGINT NOT NULL,
    handover_until_ms BIGINT NOT NULL,
    PRIMARY KEY (kind, shard_id)
)"""
_CREATE_MEMBER: Final = """CREATE TABLE xdb_sys_member (
    member_id VARCHAR(64){collate} NOT NULL,
    address VARCHAR(255){collate} NOT NULL,
    roles VARCHAR(64){collate} NOT NULL,
    is_draining SMALLINT NOT NULL,
    started_at_ms BIGINT NOT NULL,
    heartbeat_at_ms BIGINT NOT NULL,
    PRIMARY KEY (member_id)
)"""
_MYSQL_TABLE: Final = "CHARACTER SET utf8mb4 COLLATE {collation}, ENGINE=InnoDB, ROW_FORMAT=DYNAMIC"


def change(dialect: SchemaDialect, *, num_shards: int) -> SchemaChange:
    """Give the change from version 1 to version 2."""
    collation = COLLATIONS.get(dialect)
    if collation is None:
        definitions = _definitions(dialect)
    else:
        definitions = _definitions_on_mysql(_MYSQL_TABLE.format(collation=collation))
    shards = ", ".join(f"('work', {shard_id}, 0, 0, 0, 0)" for shard_id in range(num_shards))
    rows = f"""INSERT INTO xdb_sys_shard
(kind, shard_id, range_id, lease_until_ms, handover_range, handover_until_ms)
VALUES {shards}"""  # noqa: S608
    return SchemaChange(2, definitions, [rows])


def _definitions(dialect: SchemaDialect) -> list[Definition]:
    collate = ' COLLATE "C"' if dialect is SchemaDialect.POSTGRESQL else ""
    return [
        _trace_context("TEXT"),
        _CLAIM_RANGE,
        _unclaimed(_INDEX_UNCLAIMED + _WHERE_UNCLAIMED),
        Definition(_CREATE_SHARD.format(collate=collate), "xdb_sys_shard"),
        Definition(_CREATE_MEMBER.format(collate=collate), "xdb_sys_member"),
    ]


def _definitions_on_mysql(table_options: str) -> list[Definition]:
    return [
        # First, since columns that are added take the character set of their table.
        *(Definition(f"ALTER TABLE {table} CONVERT TO {table_options}") for table in _TABLES_BEFORE),
        # The conversion widens a text that had a character set of fewer bytes.
        Definition("ALTER TABLE xdb_sys_process_execution MODIFY worker_url TEXT NOT NULL"),
        _trace_context("LONGTEXT"),
        _CLAIM_RANGE,
        _unclaimed(_INDEX_UNCLAIMED),
        Definition(f"{_CREATE_SHARD.format(collate='')} {table_options.replace(',', '')}", "xdb_sys_shard"),
        Definition(f"{_CREATE_MEMBER.format(collate='')} {table_options.replace(',', '')}", "xdb_sys_member"),
    ]


def _trace_context(type_name: str) -> Definition:
    return Definition(f"{_ADD_TRACE_CONTEXT} {type_name}", "xdb_sys_process_execution.trace_context")


_CLAIM_RANGE: Final = Definition(_ADD_CLAIM_RANGE, "xdb_sys_async_state_execution.claim_range")


def _unclaimed(sql: str) -> Definition:
    return Definition(sql, "xdb_sys_async_state_execution.xdb_sys_async_state_execution_unclaimed")
