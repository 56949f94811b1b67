INSERT INTO xdb_sys_process_execution (process_execution_id, namespace, process_id, process_type, started_at_ms, object_id, mapped_tables, shard_id, is_current, worker_url, status, timeout_at_ms, closed_at_ms, reason, error, graceful_complete_requested, outputs, state_counters, remembered_skips, next_sequence_id, next_wait_order, version)
VALUES ('former-000001', 'default', 'closed', 'OrderProcess', 1767225600000, 'null', NULL, 0, 1, 'http://worker', 'TERMINATED', 1769817600000, 1767225601000, NULL, '{"errorType":"CLIENT_STOP","message":"stopped by a client"}', 0, NULL, '{"PlaceState":1,"PayState":1,"RemindState":1,"ShipState":1}', NULL, 1, 3, 4);

INSERT INTO xdb_sys_process_execution (process_execution_id, namespace, process_id, process_type, started_at_ms, object_id, mapped_tables, shard_id, is_current, worker_url, status, timeout_at_ms, closed_at_ms, reason, error, graceful_complete_requested, outputs, state_counters, remembered_skips, next_sequence_id, next_wait_order, version)
VALUES ('former-000002', 'default', 'order', 'OrderProcess', 1767225601000, 'null', NULL, 0, 1, 'http://worker', 'RUNNING', 1769817601000, NULL, NULL, NULL, 0, NULL, '{"PlaceState":1,"PayState":1,"RemindState":1,"ShipState":1}', NULL, 3, 3, 5);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (1, 'former-000001', 'PlaceState', 1, 1767225600000, '"0"', '{"skipWaitUntil":true,"executeRead":{"localAttributes":["note"]}}', NULL, NULL, 0, 'COMPLETED', 'SKIPPED', 'COMPLETED', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1767225600000, 2);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (2, 'former-000001', 'PayState', 1, 1767225600000, '"in two parts"', '{"waitUntilRead":{"localAttributes":["note"]},"executeRead":{"localAttributes":["note"]}}', NULL, NULL, 0, 'ABORTED', 'WAITING_COMMANDS_COMPLETED', 'NOT_STARTED', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1767225601000, 3);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (3, 'former-000001', 'RemindState', 1, 1767225600000, 'null', '{"executeRead":{"localAttributes":["note"]}}', NULL, NULL, 0, 'ABORTED', 'WAITING_COMMANDS_COMPLETED', 'NOT_STARTED', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1767225601000, 3);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (4, 'former-000001', 'ShipState', 1, 1767225600000, '3', '{"skipWaitUntil":true,"executeApiRetryPolicy":{"initialIntervalMs":60000}}', NULL, NULL, 0, 'ABORTED', 'SKIPPED', 'RUNNING', 2, 1767225600000, NULL, NULL, NULL, NULL, '{"api":"EXECUTE","httpStatus":424,"errorType":"RuntimeError","details":"no ship\n\nTraceback (most recent call last):\n  File \"/app/order.py\", line 76, in execute\n    raise RuntimeError(\"no ship\")\nRuntimeError: no ship","attempt":1,"atMs":1767225600000}', NULL, NULL, 1767225601000, 3);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (5, 'former-000002', 'PlaceState', 1, 1767225601000, '"12"', '{"skipWaitUntil":true,"executeRead":{"localAttributes":["note"]}}', NULL, NULL, 0, 'COMPLETED', 'SKIPPED', 'COMPLETED', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1767225601000, 2);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (6, 'former-000002', 'PayState', 1, 1767225601000, '"in two parts"', '{"waitUntilRead":{"localAttributes":["note"]},"executeRead":{"localAttributes":["note"]}}', NULL, NULL, 0, 'RUNNING', 'WAITING_COMMANDS_COMPLETED', 'NOT_STARTED', 1, NULL, NULL, '{"order":1,"commands":{"waitingType":"ALL","timerCommands":[],"internalQueueCommands":[{"queueName":"paid","count":1,"atLeast":1,"atMost":1},{"queueName":"confirmed","count":1,"atLeast":1,"atMost":1}]},"timer_statuses":[],"received":[[{"messageId":"m-1","payload":{"euro":12,"by":"O''Hara"}}],null]}', NULL, '{"asked":"by post"}', NULL, NULL, NULL, NULL, 3);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (7, 'former-000002', 'RemindState', 1, 1767225601000, 'null', '{"executeRead":{"localAttributes":["note"]}}', NULL, NULL, 0, 'RUNNING', 'WAITING_COMMANDS_COMPLETED', 'NOT_STARTED', 1, NULL, NULL, '{"order":2,"commands":{"waitingType":"ALL","timerCommands":[{"commandId":null,"fireAtMs":1767229201000}],"internalQueueCommands":[]},"timer_statuses":["SCHEDULED"],"received":[]}', NULL, NULL, NULL, NULL, NULL, NULL, 2);

INSERT INTO xdb_sys_async_state_execution (row_id, process_execution_id, state_id, number, created_at_ms, input, options, wait_for_key, recover_from, shard_id, status, wait_until_status, execute_status, attempt, first_attempt_at_ms, due_at_ms, wait_state, command_results, state_locals, last_failure, last_database_error, output, closed_at_ms, version)
VALUES (8, 'former-000002', 'ShipState', 1, 1767225601000, '3', '{"skipWaitUntil":true,"executeApiRetryPolicy":{"initialIntervalMs":60000}}', NULL, NULL, 0, 'RUNNING', 'SKIPPED', 'RUNNING', 2, 1767225601000, 1767225661000, NULL, NULL, NULL, '{"api":"EXECUTE","httpStatus":424,"errorType":"RuntimeError","details":"no ship\n\nTraceback (most recent call last):\n  File \"/app/order.py\", line 76, in execute\n    raise RuntimeError(\"no ship\")\nRuntimeError: no ship","attempt":1,"atMs":1767225601000}', NULL, NULL, NULL, 2);

INSERT INTO xdb_sys_timer_tasks (process_execution_id, state_id, number, command_index, shard_id, fire_at_ms)
VALUES ('former-000002', 'RemindState', 1, 0, 0, 1767229201000);

INSERT INTO xdb_sys_timer_tasks (process_execution_id, state_id, number, command_index, shard_id, fire_at_ms)
VALUES ('former-000002', '', 0, 0, 0, 1769817601000);

INSERT INTO xdb_sys_internal_queue (process_execution_id, sequence_id, queue_name, message_id, claimed, payload)
VALUES ('former-000002', 1, 'paid', 'm-1', 1, NULL);

INSERT INTO xdb_sys_internal_queue (process_execution_id, sequence_id, queue_name, message_id, claimed, payload)
VALUES ('former-000002', 2, 'paid', 'm-2', 0, '{"euro":8,"by":"😀 \\ \"x\""}');

INSERT INTO xdb_sys_local_attribute (process_execution_id, name, value)
VALUES ('former-000001', 'note', '"Straße 0"');

INSERT INTO xdb_sys_local_attribute (process_execution_id, name, value)
VALUES ('former-000002', 'note', '"Straße 12"');

INSERT INTO xdb_sys_user_event (row_id, process_execution_id, at_ms, name, data)
VALUES (1, 'former-000001', 1767225600000, 'placed', '["0"]');

INSERT INTO xdb_sys_user_event (row_id, process_execution_id, at_ms, name, data)
VALUES (2, 'former-000002', 1767225601000, 'placed', '["12"]');
