"""The system tables: their one definition for every dialect, its version, and what a server says of a database.

Hot statements are written by hand in each dialect's module; what runs once (DDL) is derived from this metadata.
Identifiers compare byte by byte on every dialect.
"""

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.dialects.mysql import VARCHAR as MYSQL_VARCHAR
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine

from server_stub.core.ports import StoreError

SCHEMA_VERSION: Final = 2
VERSION_KEY: Final = "schema_version"
NUM_SHARDS_KEY: Final = "num_shards"
WORK_KIND: Final = "work"
SYSTEM_PREFIX: Final = "xdb_sys_"
"""No table of a user may be named so."""


def _name(length: int = 255) -> TypeEngine[str]:
    """An identifier, compared byte by byte."""
    return (
        String(length)
        .with_variant(MYSQL_VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
        .with_variant(String(length, collation="C"), "postgresql")
    )


def _json_text() -> TypeEngine[str]:
    """JSON that no database function looks into, kept as the text it came in."""
    return Text().with_variant(LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


def _insertion_id() -> Column[int]:
    """A number that grows with every insert: the order of creation within an execution, whose rows one lock guards."""
    return Column("row_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)


metadata: Final = MetaData()

PROCESS_EXECUTION: Final = Table(
    "xdb_sys_process_execution",
    metadata,
    Column("process_execution_id", _name(), primary_key=True),
    Column("namespace", _name(), nullable=False),
    Column("process_id", _name(), nullable=False),
    Column("process_type", _name(), nullable=False),
    Column("started_at_ms", BigInteger, nullable=False),
    Column("object_id", _json_text()),
    Column("mapped_tables", _json_text()),
    Column("shard_id", Integer, nullable=False),
    Column("is_current", SmallInteger, comment="1 for the latest execution of its process id, else null"),
    Column("worker_url", Text, nullable=False),
    Column("status", _name(16), nullable=False),
    Column("timeout_at_ms", BigInteger),
    Column("closed_at_ms", BigInteger),
    Column("reason", _json_text()),
    Column("error", _json_text()),
    Column("graceful_complete_requested", SmallInteger, nullable=False),
    Column("outputs", _json_text()),
    Column("state_counters", _json_text()),
    Column("remembered_skips", _json_text()),
    Column("next_sequence_id", BigInteger, nullable=False),
    Column("next_wait_order", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("trace_context", _json_text(), comment="of the start: W3C traceparent, a space, and tracestate if any"),
    # Nulls are distinct in a unique index: any number of former executions, one current one.
    Index("xdb_sys_process_execution_current", "namespace", "process_id", "is_current", unique=True),
    # Lists are merged from one walk for each status: each index serves them in order with and without that filter.
    Index("xdb_sys_process_execution_by_status", "namespace", "status", "started_at_ms", "process_execution_id"),
    Index(
        "xdb_sys_process_execution_by_type",
        "namespace",
        "process_type",
        "status",
        "started_at_ms",
        "process_execution_id",
        # The keys of InnoDB have 3072 bytes; ids that the server makes are shorter.
        mysql_length={"process_execution_id": 64},
        mariadb_length={"process_execution_id": 64},
    ),
)

STATE_EXECUTION: Final = Table(
    "xdb_sys_async_state_execution",
    metadata,
    _insertion_id(),
    Column("process_execution_id", _name(), nullable=False),
    Column("state_id", _name(), nullable=False),
    Column("number", Integer, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("input", _json_text(), nullable=False),
    Column("options", _json_text(), nullable=False),
    Column("wait_for_key", _name()),
    Column("recover_from", _json_text()),
    Column("shard_id", Integer, nullable=False),
    Column("status", _name(16), nullable=False),
    Column("wait_until_status", _name(32), nullable=False),
    Column("execute_status", _name(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("first_attempt_at_ms", BigInteger),
    Column("due_at_ms", BigInteger, comment="when its next call is to be made; the row is the durable task"),
    Column("wait_state", _json_text()),
    Column("command_results", _json_text()),
    Column("state_locals", _json_text()),
    Column("last_failure", _json_text()),
    Column("last_database_error", _json_text()),
    Column("output", _json_text()),
    Column("closed_at_ms", BigInteger),
    Column("version", BigInteger, nullable=False),
    Column(
        "claim_range",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="range id of the shard's owner that makes the due call; 0 while nobody has claimed it",
    ),
    Index("xdb_sys_async_state_execution_identity", "process_execution_id", "state_id", "number", unique=True),
)
# The pending set and the due work stay small however long the history is: closed rows are in neither index.
Index(
    "xdb_sys_async_state_execution_open",
    STATE_EXECUTION.c.process_execution_id,
    STATE_EXECUTION.c.status,
    sqlite_where=text("status = 'RUNNING'"),
    postgresql_where=text("status = 'RUNNING'"),
)
Index(
    "xdb_sys_async_state_execution_due",
    STATE_EXECUTION.c.shard_id,
    STATE_EXECUTION.c.due_at_ms,
    STATE_EXECUTION.c.process_execution_id,
    STATE_EXECUTION.c.state_id,
    STATE_EXECUTION.c.number,
    sqlite_where=text("due_at_ms IS NOT NULL"),
    postgresql_where=text("due_at_ms IS NOT NULL"),
)

# What other servers have made due: its owner empties it soon, so that it is looked at often and costs nothing.
Index(
    "xdb_sys_async_state_execution_unclaimed",
    STATE_EXECUTION.c.shard_id,
    STATE_EXECUTION.c.claim_range,
    STATE_EXECUTION.c.due_at_ms,
    sqlite_where=text("due_at_ms IS NOT NULL AND claim_range = 0"),
    postgresql_where=text("due_at_ms IS NOT NULL AND claim_range = 0"),
)

TIMER: Final = Table(
    "xdb_sys_timer_tasks",
    metadata,
    Column("process_execution_id", _name(), nullable=False),
    Column("state_id", _name(), nullable=False, comment="empty for the timeout of the execution"),
    Column("number", Integer, nullable=False),
    Column("command_index", Integer, nullable=False),
    Column("shard_id", Integer, nullable=False),
    Column("fire_at_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("process_execution_id", "state_id", "number", "command_index"),
    Index(
        "xdb_sys_timer_tasks_due",
        "shard_id",
        "fire_at_ms",
        "process_execution_id",
        "state_id",
        "number",
        "command_index",
    ),
    sqlite_with_rowid=False,
)

QUEUE: Final = Table(
    "xdb_sys_internal_queue",
    metadata,
    Column("process_execution_id", _name(), nullable=False),
    Column("sequence_id", BigInteger, nullable=False),
    Column("queue_name", _name(), nullable=False),
    Column("message_id", _name()),
    Column("claimed", SmallInteger, nullable=False, comment="1 when only the message id is still remembered"),
    Column("payload", _json_text()),
    PrimaryKeyConstraint("process_execution_id", "sequence_id"),
)
Index(
    "xdb_sys_internal_queue_message_id",
    QUEUE.c.process_execution_id,
    QUEUE.c.queue_name,
    QUEUE.c.message_id,
    unique=True,
    sqlite_where=text("message_id IS NOT NULL"),
    postgresql_where=text("message_id IS NOT NULL"),
)
Index(
    "xdb_sys_internal_queue_unclaimed",
    QUEUE.c.process_execution_id,
    QUEUE.c.queue_name,
    QUEUE.c.claimed,
    QUEUE.c.sequence_id,
    sqlite_where=text("claimed = 0"),
    postgresql_where=text("claimed = 0"),
)

LOCAL_ATTRIBUTE: Final = Table(
    "xdb_sys_local_attribute",
    metadata,
    Column("process_execution_id", _name(), nullable=False),
    Column("name", _name(), nullable=False),
    Column("value", _json_text(), nullable=False),
    PrimaryKeyConstraint("process_execution_id", "name"),
)

USER_EVENT: Final = Table(
    "xdb_sys_user_event",
    metadata,
    _insertion_id(),
    Column("process_execution_id", _name(), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("name", _name(), nullable=False),
    Column("data", _json_text(), nullable=False),
    Index("xdb_sys_user_event_of_execution", "process_execution_id", "row_id"),
)

CLUSTER: Final = Table(
    "xdb_sys_cluster",
    metadata,
    Column("name", _name(), primary_key=True),
    Column("value", _name(), nullable=False),
)


SHARD: Final = Table(
    "xdb_sys_shard",
    metadata,
    Column("kind", _name(16), nullable=False, comment="work, for calls and timers"),
    Column("shard_id", Integer, nullable=False),
    Column("range_id", BigInteger, nullable=False, comment="grows with each change of the owner"),
    Column("owner_id", _name(64), comment="the member; null when nobody owns it"),
    Column("lease_until_ms", BigInteger, nullable=False, comment="by the clock of the database"),
    Column("handover_range", BigInteger, nullable=False, comment="claims that the former owner is still working off"),
    Column("handover_until_ms", BigInteger, nullable=False, comment="when they may be taken over all the same"),
    PrimaryKeyConstraint("kind", "shard_id"),
)

MEMBER: Final = Table(
    "xdb_sys_member",
    metadata,
    Column("member_id", _name(64), primary_key=True),
    Column("address", _name(), nullable=False),
    Column("roles", _name(64), nullable=False, comment="joined by commas"),
    Column("is_draining", SmallInteger, nullable=False),
    Column("started_at_ms", BigInteger, nullable=False),
    Column("heartbeat_at_ms", BigInteger, nullable=False, comment="by the clock of the database"),
)


class SchemaError(StoreError):
    """The system tables are not as this server needs them; nothing was changed."""


class SchemaMissing(SchemaError):
    """There are no system tables."""

    def __init__(self) -> None:
        super().__init__("the database has no xdb tables; create them with `xdb schema install`")


class SchemaOutdated(SchemaError):
    """The system tables were made by an older server."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(
            f"the xdb tables have schema version {version}, this server needs {SCHEMA_VERSION}; "
            "upgrade them with `xdb schema upgrade`, after a backup"
        )


class SchemaTooNew(SchemaError):
    """The system tables were made by a newer server."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(
            f"the xdb tables have schema version {version}, newer than the {SCHEMA_VERSION} that this server knows; "
            "run the newer server"
        )


class SchemaDamaged(SchemaError):
    """Some system tables, or their version, are missing: somebody removed them, or an install was cut short."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the xdb tables are incomplete: {what}; restore them from a backup, nothing was changed")


def check(table_names: Collection[str], version: str | None) -> None:
    """Say whether a database has the system tables of this very version.

    Args:
        table_names: The tables there are, the user's among them.
        version: The value of `VERSION_KEY` in xdb_sys_cluster, None when the table or the row is missing.

    Raises:
        SchemaMissing, SchemaOutdated, SchemaTooNew, SchemaDamaged: It has not.
    """
    if not any(name in table_names for name in metadata.tables):
        raise SchemaMissing
    if CLUSTER.name not in table_names:
        raise SchemaDamaged(f"table {CLUSTER.name}, which tells their version, does not exist")
    if version is None:
        raise SchemaDamaged(f"table {CLUSTER.name} has no row {VERSION_KEY!r}")
    if not version.isascii() or not version.isdigit():
        raise SchemaDamaged(f"{VERSION_KEY} in table {CLUSTER.name} is {version!r}, not a number")
    if int(version) < SCHEMA_VERSION:
        raise SchemaOutdated(int(version))
    if int(version) > SCHEMA_VERSION:
        raise SchemaTooNew(int(version))
    missing = sorted(name for name in metadata.tables if name not in table_names)
    if missing:
        raise SchemaDamaged(f"{', '.join(missing)} missing")


def install_statements(dialect: Dialect, *, num_shards: int) -> Sequence[str]:
    """Give the statements that create everything in an empty database, in order, for one transaction."""
    statements = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        statements += [
            str(CreateIndex(index).compile(dialect=dialect)).strip()
            for index in sorted(table.indexes, key=lambda index: str(index.name))
        ]
    statements += shard_rows(num_shards)
    for name, value in ((NUM_SHARDS_KEY, num_shards), (VERSION_KEY, SCHEMA_VERSION)):
        statements.append(f"INSERT INTO {CLUSTER.name} (name, value) VALUES ('{name}', '{value}')")  # noqa: S608
    return statements


def shard_rows(num_shards: int) -> list[str]:
    """Give the statements that make the rows of all shards, owned by nobody."""
    columns = "kind, shard_id, range_id, lease_until_ms, handover_range, handover_until_ms"
    return [
        f"INSERT INTO {SHARD.name} ({columns}) VALUES ('{WORK_KIND}', {shard_id}, 0, 0, 0, 0)"  # noqa: S608
        for shard_id in range(num_shards)
    ]
