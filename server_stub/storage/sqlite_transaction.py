"""The steps of one transaction on a SQLite connection: load, ask, decide, write."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from server_stub.core.changes import Changes
from server_stub.core.model import Execution, LocalAttributeRead, ProcessExecution, QueuedMessage
from server_stub.core.ports import ConcurrentStart, Loaded, Needs, Selection, Work
from server_stub.storage import sqlite_statements as sql
from server_stub.storage.codec import (
    message_of,
    message_row,
    process_changing,
    process_fixed,
    process_of,
    state_changing,
    state_fixed,
    state_of,
)
from server_stub.storage.sqlite_user_tables import UserTables


def do_work(connection: sqlite3.Connection, tables: UserTables, work: Work) -> Changes:
    """Load, decide and write, inside the transaction that the connection is in."""
    loaded = _load(connection, work.selection())
    _load_needs(connection, tables, loaded, work.needs(loaded))
    changes = work.decide(loaded)
    _write(connection, tables, changes)
    return changes


def _load(connection: sqlite3.Connection, selection: Selection) -> Loaded:
    execute = connection.execute
    loaded = Loaded()
    rows = []
    for key in selection.process_keys:
        row = execute(sql.FIND_CURRENT, key).fetchone()
        if row is not None:
            rows.append(row)
            loaded.current[key] = row[0]
    others = sorted(selection.execution_ids.difference(loaded.current.values()))
    for ids in sql.in_lists(others):
        rows += execute(sql.FIND_EXECUTIONS[len(ids)], ids)
    for row in rows:
        process = process_of(row)
        loaded.executions[process.process_execution_id] = Execution(process, {})
    running = [id_ for id_, execution in loaded.executions.items() if execution.process.is_running]
    for ids in sql.in_lists(running):
        for row in execute(sql.FIND_OPEN_STATES[len(ids)], ids):
            state = state_of(row)
            loaded.executions[state.process_execution_id].states[state.key] = state
    return loaded


def _load_needs(connection: sqlite3.Connection, tables: UserTables, loaded: Loaded, needs: Needs) -> None:
    execute = connection.execute
    for (execution_id, queue_name), limit in needs.messages.items():
        rows = execute(sql.FIND_MESSAGES, (execution_id, queue_name, limit))
        loaded.executions[execution_id].queues[queue_name] = [message_of(row) for row in rows]
    for key in needs.message_ids:
        if execute(sql.KNOWS_MESSAGE_ID, key).fetchone() is not None:
            execution_id, queue_name, message_id = key
            loaded.executions[execution_id].known_message_ids.add((queue_name, message_id))
    for read in needs.rows:
        loaded.rows[read] = tables.read(read)
    loaded.local_attributes = read_local_attributes(connection, needs.local_attributes)
    table_names = {read.row.table_name for read in needs.rows}
    for execution in loaded.executions.values():
        table_names.update(mapping.table_name for mapping in execution.process.tables)
    loaded.volatile_tables = tables.volatile_among(table_names)


def _write(connection: sqlite3.Connection, tables: UserTables, changes: Changes) -> None:
    """Write rows in the order of the fields of `Changes`."""
    many = partial(_execute_many, connection)
    for row_write in changes.row_writes:
        tables.write(row_write)
    attributes = [(w.process_execution_id, w.name, w.value) for w in changes.local_attribute_writes]
    many(sql.WRITE_LOCAL_ATTRIBUTE, attributes)
    changed = changes.changed_processes.values()
    many(sql.CHANGE_PROCESS, [(*process_changing(p), p.process_execution_id) for p in changed])
    many(sql.RETIRE_PROCESS, [(p.process_execution_id,) for p in changed if not p.is_current])
    many(sql.END_PROCESS, [(p.status.value, p.process_execution_id) for p in changed if not p.is_running])
    _insert_processes(connection, list(changes.new_processes.values()))
    many(sql.INSERT_STATE, [state_fixed(s) + state_changing(s) for s in changes.new_states.values()])
    many(sql.CHANGE_STATE, [(*state_changing(s), *key) for key, s in changes.changed_states.items()])
    _write_messages(connection, changes)
    many(sql.SET_TIMER, [(*key, t.shard_id, t.fire_at_ms) for key, t in changes.new_timers.items()])
    many(sql.DELETE_TIMER, list(changes.deleted_timers))
    closed = [(execution_id,) for execution_id in changes.closed_processes]
    many(sql.DELETE_MESSAGES_OF_PROCESS, closed)
    many(sql.DELETE_TIMERS_OF_PROCESS, closed)
    many(sql.INSERT_USER_EVENT, [(e.process_execution_id, e.at_ms, e.name, e.data) for e in changes.user_events])


def _execute_many(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        connection.executemany(statement, rows)


def _insert_processes(connection: sqlite3.Connection, processes: Sequence[ProcessExecution]) -> None:
    try:
        _execute_many(connection, sql.INSERT_PROCESS, [process_fixed(p) + process_changing(p) for p in processes])
    except sqlite3.IntegrityError as error:
        if "is_current" in str(error):
            raise ConcurrentStart(str(error)) from error
        raise


def _write_messages(connection: sqlite3.Connection, changes: Changes) -> None:
    many = partial(_execute_many, connection)
    claimed = changes.claimed_messages.values()
    many(sql.INSERT_MESSAGE, [message_row(m) for m in changes.new_messages.values()])
    many(sql.DELETE_MESSAGE, [(m.process_execution_id, m.sequence_id) for m in claimed if m.message_id is None])
    many(sql.REMEMBER_MESSAGE_ID, [_message_identity(m) for m in claimed if m.message_id is not None])


def read_local_attributes(
    connection: sqlite3.Connection, reads: Sequence[LocalAttributeRead]
) -> dict[str, dict[str, str]]:
    """Read process-local attributes; several reads of one execution are united."""
    found: dict[str, dict[str, str]] = {}
    for read in reads:
        execution_id = read.process_execution_id
        values = found.setdefault(execution_id, {})
        if read.read_all:
            values.update(connection.execute(sql.FIND_LOCAL_ATTRIBUTES, (execution_id,)).fetchall())
            continue
        for name in read.names:
            values.update(connection.execute(sql.FIND_LOCAL_ATTRIBUTE, (execution_id, name)).fetchall())
        for prefix in read.prefixes:
            for name, value in connection.execute(sql.FIND_LOCAL_ATTRIBUTES_FROM, (execution_id, prefix)):
                if not name.startswith(prefix):
                    break
                values[name] = value
    return found


def _message_identity(message: QueuedMessage) -> tuple[str, str, int, str | None]:
    return message.process_execution_id, message.queue_name, message.sequence_id, message.message_id
