"""Version 3: requests are carried out once, executions have a history, and operators hold them.

The events that user code had recorded become events of the histories, which begin with them: those of executions that
had started before do not say how they began.
"""

from typing import Final

from server_stub.storage.schema_change import COLLATIONS, Definition, SchemaChange, SchemaDialect

_PROCESS: Final = "xdb_sys_process_execution"
_STATE: Final = "xdb_sys_async_state_execution"

_CREATE_REQUEST: Final = """CREATE TABLE xdb_sys_request (
    namespace VARCHAR(255){collate} NOT NULL,
    process_id VARCHAR(255){collate} NOT NULL,
    request_type SMALLINT NOT NULL,
    request_id VARCHAR(128){collate} NOT NULL,
    shard_id INTEGER NOT NULL,
    process_execution_id VARCHAR(255){collate} NOT NULL,
    fingerprint VARCHAR(64){collate} NOT NULL,
    result {text},
    created_at_ms BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (namespace, process_id, request_type, request_id)
)"""
_CREATE_HISTORY: Final = """CREATE TABLE xdb_sys_history (
    process_execution_id VARCHAR(255){collate} NOT NULL,
    event_id BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    event_type VARCHAR(32){collate} NOT NULL,
    cause_id BIGINT,
    request_id VARCHAR(128){collate},
    data {text},
    PRIMARY KEY (process_execution_id, event_id)
)"""
_MOVE_USER_EVENTS: Final = """INSERT INTO xdb_sys_history (process_execution_id, event_id, at_ms, event_type, data)
SELECT process_execution_id, row_number() OVER (PARTITION BY process_execution_id ORDER BY row_id), at_ms,
    'USER_EVENT', {told}
FROM xdb_sys_user_event"""
_COUNT_EVENTS: Final = """UPDATE xdb_sys_process_execution
SET next_event_id = (
        SELECT count(*) + 1 FROM xdb_sys_history h
        WHERE h.process_execution_id = xdb_sys_process_execution.process_execution_id),
    history_bytes = (
        SELECT coalesce(sum({size}), 0) FROM xdb_sys_history h
        WHERE h.process_execution_id = xdb_sys_process_execution.process_execution_id)"""
# As bytes: what json_quote gives may have another collation than the column.
_TOLD_ON_MYSQL: Final = """convert(
        concat('{"name":', cast(json_quote(name) AS binary), ',"values":', cast(data AS binary), '}') USING utf8mb4)"""
_TOLD: Final = {
    SchemaDialect.SQLITE: """'{"name":' || json_quote(name) || ',"values":' || data || '}'""",
    SchemaDialect.POSTGRESQL: """'{"name":' || to_json(name)::text || ',"values":' || data || '}'""",
    SchemaDialect.MYSQL: _TOLD_ON_MYSQL,
    SchemaDialect.MARIADB: _TOLD_ON_MYSQL,
}
"""The data of an event that user code has recorded."""
_SIZE: Final = {
    SchemaDialect.SQLITE: "length(CAST(h.data AS BLOB))",
    SchemaDialect.POSTGRESQL: "octet_length(h.data)",
    SchemaDialect.MYSQL: "length(h.data)",
    SchemaDialect.MARIADB: "length(h.data)",
}
_MYSQL_TABLE: Final = " CHARACTER SET utf8mb4 COLLATE {collation} ENGINE=InnoDB ROW_FORMAT=DYNAMIC"


def change(dialect: SchemaDialect, *, num_shards: int) -> SchemaChange:
    """Give the change from version 2 to version 3."""
    collation = COLLATIONS.get(dialect)
    collate = ' COLLATE "C"' if dialect is SchemaDialect.POSTGRESQL else ""
    text = "TEXT" if collation is None else "LONGTEXT"
    options = " WITHOUT ROWID" if dialect is SchemaDialect.SQLITE else ""
    if collation is not None:
        options = _MYSQL_TABLE.format(collation=collation)
    definitions = [
        _column(_PROCESS, "create_request_id", f"VARCHAR(128){collate}"),
        _column(_PROCESS, "paused_at_ms", "BIGINT"),
        _column(_PROCESS, "next_event_id", "BIGINT DEFAULT 1 NOT NULL"),
        _column(_PROCESS, "history_bytes", "BIGINT DEFAULT 0 NOT NULL"),
        _column(_STATE, "held_due_at_ms", "BIGINT"),
        Definition(_CREATE_REQUEST.format(collate=collate, text=text) + options, "xdb_sys_request"),
        Definition(
            "CREATE INDEX xdb_sys_request_expired ON xdb_sys_request (expires_at_ms)",
            "xdb_sys_request.xdb_sys_request_expired",
        ),
        Definition(_CREATE_HISTORY.format(collate=collate, text=text) + options, "xdb_sys_history"),
    ]
    told, size = _TOLD[dialect], _SIZE[dialect]
    rows = [_MOVE_USER_EVENTS.format(told=told), _COUNT_EVENTS.format(size=size)]
    return SchemaChange(3, definitions, rows, drops=["DROP TABLE IF EXISTS xdb_sys_user_event"])


def _column(table: str, name: str, type_name: str) -> Definition:
    return Definition(f"ALTER TABLE {table} ADD COLUMN {name} {type_name}", f"{table}.{name}")
