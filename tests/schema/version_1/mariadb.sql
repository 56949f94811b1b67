CREATE TABLE xdb_sys_async_state_execution (
    row_id BIGINT NOT NULL AUTO_INCREMENT,
    process_execution_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    number INTEGER NOT NULL,
    created_at_ms BIGINT NOT NULL,
    input LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    options LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    wait_for_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    recover_from LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    shard_id INTEGER NOT NULL,
    status VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    wait_until_status VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    execute_status VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    attempt INTEGER NOT NULL,
    first_attempt_at_ms BIGINT,
    due_at_ms BIGINT COMMENT 'when its next call is to be made; the row is the durable task',
    wait_state LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    command_results LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    state_locals LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_failure LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_database_error LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    output LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    closed_at_ms BIGINT,
    version BIGINT NOT NULL,
    PRIMARY KEY (row_id)
);

CREATE INDEX xdb_sys_async_state_execution_due ON xdb_sys_async_state_execution (shard_id, due_at_ms, process_execution_id, state_id, number);

CREATE UNIQUE INDEX xdb_sys_async_state_execution_identity ON xdb_sys_async_state_execution (process_execution_id, state_id, number);

CREATE INDEX xdb_sys_async_state_execution_open ON xdb_sys_async_state_execution (process_execution_id, status);

CREATE TABLE xdb_sys_cluster (
    name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    value VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE xdb_sys_internal_queue (
    process_execution_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    sequence_id BIGINT NOT NULL,
    queue_name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    message_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    claimed SMALLINT NOT NULL COMMENT '1 when only the message id is still remembered',
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    PRIMARY KEY (process_execution_id, sequence_id)
);

CREATE UNIQUE INDEX xdb_sys_internal_queue_message_id ON xdb_sys_internal_queue (process_execution_id, queue_name, message_id);

CREATE INDEX xdb_sys_internal_queue_unclaimed ON xdb_sys_internal_queue (process_execution_id, queue_name, claimed, sequence_id);

CREATE TABLE xdb_sys_local_attribute (
    process_execution_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    value LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (process_execution_id, name)
);

CREATE TABLE xdb_sys_process_execution (
    process_execution_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    namespace VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    process_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    process_type VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    started_at_ms BIGINT NOT NULL,
    object_id LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    mapped_tables LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    shard_id INTEGER NOT NULL,
    is_current SMALLINT COMMENT '1 for the latest execution of its process id, else null',
    worker_url TEXT NOT NULL,
    status VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    timeout_at_ms BIGINT,
    closed_at_ms BIGINT,
    reason LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    error LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    graceful_complete_requested SMALLINT NOT NULL,
    outputs LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    state_counters LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    remembered_skips LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    next_sequence_id BIGINT NOT NULL,
    next_wait_order BIGINT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (process_execution_id)
);

CREATE INDEX xdb_sys_process_execution_by_status ON xdb_sys_process_execution (namespace, status, started_at_ms, process_execution_id);

CREATE INDEX xdb_sys_process_execution_by_type ON xdb_sys_process_execution (namespace, process_type, status, started_at_ms, process_execution_id(64));

CREATE UNIQUE INDEX xdb_sys_process_execution_current ON xdb_sys_process_execution (namespace, process_id, is_current);

CREATE TABLE xdb_sys_timer_tasks (
    process_execution_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'empty for the timeout of the execution',
    number INTEGER NOT NULL,
    command_index INTEGER NOT NULL,
    shard_id INTEGER NOT NULL,
    fire_at_ms BIGINT NOT NULL,
    PRIMARY KEY (process_execution_id, state_id, number, command_index)
);

CREATE INDEX xdb_sys_timer_tasks_due ON xdb_sys_timer_tasks (shard_id, fire_at_ms, process_execution_id, state_id, number, command_index);

CREATE TABLE xdb_sys_user_event (
    row_id BIGINT NOT NULL AUTO_INCREMENT,
    process_execution_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at_ms BIGINT NOT NULL,
    name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    data LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (row_id)
);

CREATE INDEX xdb_sys_user_event_of_execution ON xdb_sys_user_event (process_execution_id, row_id);

INSERT INTO xdb_sys_cluster (name, value) VALUES ('num_shards', '16');

INSERT INTO xdb_sys_cluster (name, value) VALUES ('schema_version', '1');
