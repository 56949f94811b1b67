CREATE TABLE xdb_sys_async_state_execution (
    row_id INTEGER NOT NULL,
    process_execution_id VARCHAR(255) NOT NULL,
    state_id VARCHAR(255) NOT NULL,
    number INTEGER NOT NULL,
    created_at_ms BIGINT NOT NULL,
    input TEXT NOT NULL,
    options TEXT NOT NULL,
    wait_for_key VARCHAR(255),
    recover_from TEXT,
    shard_id INTEGER NOT NULL,
    status VARCHAR(16) NOT NULL,
    wait_until_status VARCHAR(32) NOT NULL,
    execute_status VARCHAR(16) NOT NULL,
    attempt INTEGER NOT NULL,
    first_attempt_at_ms BIGINT,
    due_at_ms BIGINT,
    wait_state TEXT,
    command_results TEXT,
    state_locals TEXT,
    last_failure TEXT,
    last_database_error TEXT,
    output TEXT,
    closed_at_ms BIGINT,
    version BIGINT NOT NULL,
    PRIMARY KEY (row_id)
);

CREATE INDEX xdb_sys_async_state_execution_due ON xdb_sys_async_state_execution (shard_id, due_at_ms, process_execution_id, state_id, number) WHERE due_at_ms IS NOT NULL;

CREATE UNIQUE INDEX xdb_sys_async_state_execution_identity ON xdb_sys_async_state_execution (process_execution_id, state_id, number);

CREATE INDEX xdb_sys_async_state_execution_open ON xdb_sys_async_state_execution (process_execution_id, status) WHERE status = 'RUNNING';

CREATE TABLE xdb_sys_cluster (
    name VARCHAR(255) NOT NULL,
    value VARCHAR(255) NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE xdb_sys_internal_queue (
    process_execution_id VARCHAR(255) NOT NULL,
    sequence_id BIGINT NOT NULL,
    queue_name VARCHAR(255) NOT NULL,
    message_id VARCHAR(255),
    claimed SMALLINT NOT NULL,
    payload TEXT,
    PRIMARY KEY (process_execution_id, sequence_id)
);

CREATE UNIQUE INDEX xdb_sys_internal_queue_message_id ON xdb_sys_internal_queue (process_execution_id, queue_name, message_id) WHERE message_id IS NOT NULL;

CREATE INDEX xdb_sys_internal_queue_unclaimed ON xdb_sys_internal_queue (process_execution_id, queue_name, claimed, sequence_id) WHERE claimed = 0;

CREATE TABLE xdb_sys_local_attribute (
    process_execution_id VARCHAR(255) NOT NULL,
    name VARCHAR(255) NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (process_execution_id, name)
);

CREATE TABLE xdb_sys_process_execution (
    process_execution_id VARCHAR(255) NOT NULL,
    namespace VARCHAR(255) NOT NULL,
    process_id VARCHAR(255) NOT NULL,
    process_type VARCHAR(255) NOT NULL,
    started_at_ms BIGINT NOT NULL,
    object_id TEXT,
    mapped_tables TEXT,
    shard_id INTEGER NOT NULL,
    is_current SMALLINT,
    worker_url TEXT NOT NULL,
    status VARCHAR(16) NOT NULL,
    timeout_at_ms BIGINT,
    closed_at_ms BIGINT,
    reason TEXT,
    error TEXT,
    graceful_complete_requested SMALLINT NOT NULL,
    outputs TEXT,
    state_counters TEXT,
    remembered_skips TEXT,
    next_sequence_id BIGINT NOT NULL,
    next_wait_order BIGINT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (process_execution_id)
);

CREATE INDEX xdb_sys_process_execution_by_status ON xdb_sys_process_execution (namespace, status, started_at_ms, process_execution_id);

CREATE INDEX xdb_sys_process_execution_by_type ON xdb_sys_process_execution (namespace, process_type, status, started_at_ms, process_execution_id);

CREATE UNIQUE INDEX xdb_sys_process_execution_current ON xdb_sys_process_execution (namespace, process_id, is_current);

CREATE TABLE xdb_sys_timer_tasks (
    process_execution_id VARCHAR(255) NOT NULL,
    state_id VARCHAR(255) NOT NULL,
    number INTEGER NOT NULL,
    command_index INTEGER NOT NULL,
    shard_id INTEGER NOT NULL,
    fire_at_ms BIGINT NOT NULL,
    PRIMARY KEY (process_execution_id, state_id, number, command_index)
)
 WITHOUT ROWID;

CREATE INDEX xdb_sys_timer_tasks_due ON xdb_sys_timer_tasks (shard_id, fire_at_ms, process_execution_id, state_id, number, command_index);

CREATE TABLE xdb_sys_user_event (
    row_id INTEGER NOT NULL,
    process_execution_id VARCHAR(255) NOT NULL,
    at_ms BIGINT NOT NULL,
    name VARCHAR(255) NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (row_id)
);

CREATE INDEX xdb_sys_user_event_of_execution ON xdb_sys_user_event (process_execution_id, row_id);

INSERT INTO xdb_sys_cluster (name, value) VALUES ('num_shards', '1');

INSERT INTO xdb_sys_cluster (name, value) VALUES ('schema_version', '1');
