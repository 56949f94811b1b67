"""The system tables: their one definition for every dialect, from which their DDL is derived.

Imported only where tables are created: SQLAlchemy takes long to import, and a server mostly finds its tables there.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

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
from sqlalchemy.dialects.mysql import dialect as mysql_dialect
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.dialects.postgresql import dialect as postgresql_dialect
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, SchemaItem
from sqlalchemy.types import TypeEngine

from server_stub.storage.schema_change import (
    CLUSTER_TABLE,
    MARIADB_COLLATION,
    MYSQL_COLLATION,
    Definition,
    SchemaDialect,
)

_MYSQL: Final = {"charset": "utf8mb4", "collation": MYSQL_COLLATION}
_MARIADB: Final = {"charset": "utf8mb4", "collation": MARIADB_COLLATION}
_TABLE_OPTIONS: Final[dict[str, Any]] = {
    f"{name}_{option}": value
    for name, collation in (("mysql", MYSQL_COLLATION), ("mariadb", MARIADB_COLLATION))
    for option, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", collation),
        ("row_format", "DYNAMIC"),  # of the formats, the one that has keys of 3072 bytes wherever it is set
    )
}


def _name(length: int = 255) -> TypeEngine[str]:
    """An identifier, compared byte by byte."""
    return (
        String(length)
        .with_variant(MYSQL_VARCHAR(length, **_MYSQL), "mysql")
        .with_variant(MYSQL_VARCHAR(length, **_MARIADB), "mariadb")
        .with_variant(String(length, collation="C"), "postgresql")
    )


def _json_text() -> TypeEngine[str]:
    """JSON that no database function looks into, kept as the text it came in."""
    return Text().with_variant(LONGTEXT(**_MYSQL), "mysql").with_variant(LONGTEXT(**_MARIADB), "mariadb")


def _insertion_id() -> Column[int]:
    """A number that grows with every insert: the order of creation within an execution, whose rows one lock guards."""
    return Column("row_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)


metadata: Final = MetaData()


def _table(name: str, *items: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *items, **options, **_TABLE_OPTIONS)


PROCESS_EXECUTION: Final = _table(
    "xdb_sys_process_execution",
    Column("process_execution_id", _name(), primary_key=True),
    Column("namespace", _name(), nullable=False),
    Column("process_id", _name(), nullable=False),
    Column("process_type", _name(), nullable=False),
    Column("started_at_ms", BigInteger, nullable=False),
    Column("object_id", _json_text()),
    Column("mapped_tables", _json_text()),
    Column("shard_id", Integer, nullable=False),
    Column("is_current", SmallInteger, doc="1 for the latest execution of its process id, else null"),
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
    Column("trace_context", _json_text(), doc="of the start: W3C traceparent, a space, and tracestate if any"),
    Column("create_request_id", _name(128), doc="of the request that started it"),
    Column("paused_at_ms", BigInteger, doc="since when no call is made; null while calls are"),
    Column("next_event_id", BigInteger, nullable=False, server_default=text("1"), doc="0: it has no history"),
    Column("history_bytes", BigInteger, nullable=False, server_default=text("0"), doc="how large its history is"),
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
    # Room in each page for the next version of its rows, which then needs no entry in any index while no indexed column
    # changes, as by most commits. The room is used again and again, so that the table is smaller in the end.
    postgresql_with={"fillfactor": 50},
)

STATE_EXECUTION: Final = _table(
    "xdb_sys_async_state_execution",
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
    Column("due_at_ms", BigInteger, doc="when its next call is to be made; the row is the durable task"),
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
        server_default=text("0"),
        doc="range id of the shard's owner that makes the due call; 0 while nobody has claimed it",
    ),
    Column("held_due_at_ms", BigInteger, doc="the due_at_ms of a paused execution's call"),
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

TIMER: Final = _table(
    "xdb_sys_timer_tasks",
    Column("process_execution_id", _name(), nullable=False),
    Column("state_id", _name(), nullable=False, doc="empty for the timeout of the execution"),
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

QUEUE: Final = _table(
    "xdb_sys_internal_queue",
    Column("process_execution_id", _name(), nullable=False),
    Column("sequence_id", BigInteger, nullable=False),
    Column("queue_name", _name(), nullable=False),
    Column("message_id", _name()),
    Column("claimed", SmallInteger, nullable=False, doc="1 when only the message id is still remembered"),
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

LOCAL_ATTRIBUTE: Final = _table(
    "xdb_sys_local_attribute",
    Column("process_execution_id", _name(), nullable=False),
    Column("name", _name(), nullable=False),
    Column("value", _json_text(), nullable=False),
    PrimaryKeyConstraint("process_execution_id", "name"),
)

REQUEST: Final = _table(
    "xdb_sys_request",
    Column("namespace", _name(), nullable=False),
    Column("process_id", _name(), nullable=False),
    Column("request_type", SmallInteger, nullable=False, doc="1 start, 2 publish, 3 stop, and so on"),
    Column("request_id", _name(128), nullable=False),
    Column("shard_id", Integer, nullable=False),
    Column("process_execution_id", _name(), nullable=False),
    Column("fingerprint", _name(64), nullable=False, doc="a hash of what was asked for"),
    Column("result", _json_text(), doc="the answer; null while the request is only reserved"),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False, doc="of two clusters' rows the larger one wins; 0 in a cluster"),
    PrimaryKeyConstraint("namespace", "process_id", "request_type", "request_id"),
    Index("xdb_sys_request_expired", "expires_at_ms"),
    sqlite_with_rowid=False,
)

HISTORY: Final = _table(
    "xdb_sys_history",
    Column("process_execution_id", _name(), nullable=False),
    Column("event_id", BigInteger, nullable=False, doc="1, 2, 3 and so on within the execution"),
    Column("at_ms", BigInteger, nullable=False),
    Column("event_type", _name(32), nullable=False),
    Column("cause_id", BigInteger, doc="the event of the same change that it came of; null for the first"),
    Column("request_id", _name(128), doc="of the request that it happened by"),
    Column("data", _json_text(), doc="what more there is to say; null for nothing"),
    PrimaryKeyConstraint("process_execution_id", "event_id"),
    sqlite_with_rowid=False,
)

CLUSTER: Final = _table(
    CLUSTER_TABLE,
    Column("name", _name(), primary_key=True),
    Column("value", _name(), nullable=False),
)


SHARD: Final = _table(
    "xdb_sys_shard",
    Column("kind", _name(16), nullable=False, doc="work, for calls and timers"),
    Column("shard_id", Integer, nullable=False),
    Column("range_id", BigInteger, nullable=False, doc="grows with each change of the owner"),
    Column("owner_id", _name(64), doc="the member; null when nobody owns it"),
    Column("lease_until_ms", BigInteger, nullable=False, doc="by the clock of the database"),
    Column("handover_range", BigInteger, nullable=False, doc="claims that the former owner is still working off"),
    Column("handover_until_ms", BigInteger, nullable=False, doc="when they may be taken over all the same"),
    PrimaryKeyConstraint("kind", "shard_id"),
)

MEMBER: Final = _table(
    "xdb_sys_member",
    Column("member_id", _name(64), primary_key=True),
    Column("address", _name(), nullable=False),
    Column("roles", _name(64), nullable=False, doc="joined by commas"),
    Column("is_draining", SmallInteger, nullable=False),
    Column("started_at_ms", BigInteger, nullable=False),
    Column("heartbeat_at_ms", BigInteger, nullable=False, doc="by the clock of the database"),
)


_DIALECTS: Final[Mapping[SchemaDialect, Callable[[], Dialect]]] = {
    SchemaDialect.SQLITE: sqlite_dialect,
    SchemaDialect.POSTGRESQL: postgresql_dialect,
    SchemaDialect.MYSQL: mysql_dialect,
    SchemaDialect.MARIADB: MariaDBDialect,
}


def definitions(dialect: SchemaDialect) -> list[Definition]:
    """Give the statements that create all tables and indexes; the first one creates the table of the version."""
    compiler = _DIALECTS[dialect]()
    found = []
    for table in sorted(metadata.tables.values(), key=lambda table: (table is not CLUSTER, table.name)):
        found.append(Definition(str(CreateTable(table).compile(dialect=compiler)).strip(), table.name))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            sql = str(CreateIndex(index).compile(dialect=compiler)).strip()
            found.append(Definition(sql, f"{table.name}.{index.name}"))
    return found
