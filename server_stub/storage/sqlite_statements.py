"""The statements of the SQLite store over the system tables. Each names the index that serves it.

SQLite runs in the process: a statement costs no round trip, so `executemany` of a one-row statement is the set-based
form, and a list of ids travels as bound values of an IN list.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from server_stub.storage.codec import (
    CALL_KEY_COLUMNS,
    HISTORY_COLUMNS,
    MESSAGE_COLUMNS,
    PROCESS_CHANGING,
    PROCESS_COLUMNS,
    REQUEST_COLUMNS,
    REQUEST_KEY,
    STATE_CHANGING,
    STATE_COLUMNS,
)
from server_stub.storage.writes import Writes
from xdb_sdk.protocol import ListRequest

# ruff: noqa: S608  # the texts are put together from constants; values are bound

_T = TypeVar("_T")


def _columns(names: Sequence[str], alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in names)


def _values(names: Sequence[str]) -> str:
    return f"({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def _assignments(names: Sequence[str]) -> str:
    return ", ".join(f"{name} = ?" for name in names)


_LIST_SIZES: Final = (1, 8, 64, 512)


def in_lists(values: Sequence[_T]) -> Iterator[list[_T]]:
    """Cut values into lists of a few fixed lengths, padded with their last one, so that statements stay cached."""
    longest = _LIST_SIZES[-1]
    for begin in range(0, len(values), longest):
        part = list(values[begin : begin + longest])
        size = next(size for size in _LIST_SIZES if size >= len(part))
        yield part + [part[-1]] * (size - len(part))


def _in(length: int) -> str:
    return f"IN ({', '.join('?' * length)})"


# --- what a transaction loads ---

_PROCESS: Final = f"SELECT {_columns(PROCESS_COLUMNS, 'p')} FROM xdb_sys_process_execution p"
_STATE: Final = f"SELECT {_columns(STATE_COLUMNS, 's')} FROM xdb_sys_async_state_execution s"

# Unique index xdb_sys_process_execution_current.
FIND_CURRENT: Final = f"{_PROCESS} WHERE p.namespace = ? AND p.process_id = ? AND p.is_current = 1"

# Primary key of xdb_sys_process_execution.
FIND_EXECUTIONS: Final = {length: f"{_PROCESS} WHERE p.process_execution_id {_in(length)}" for length in _LIST_SIZES}

# Primary key, for the two.
_REQUEST: Final = " AND ".join(f"{name} = ?" for name in REQUEST_KEY)
FIND_REQUEST: Final = f"SELECT {', '.join(REQUEST_COLUMNS)} FROM xdb_sys_request WHERE {_REQUEST}"
DELETE_REQUEST: Final = f"DELETE FROM xdb_sys_request WHERE {_REQUEST} AND +expires_at_ms = ?"

# Partial index xdb_sys_async_state_execution_open; it ends in the row id, which is the order of creation.
FIND_OPEN_STATES: Final = {
    length: f"{_STATE} WHERE s.process_execution_id {_in(length)} AND s.status = 'RUNNING' ORDER BY s.row_id"
    for length in _LIST_SIZES
}

# Index xdb_sys_internal_queue_unclaimed.
FIND_MESSAGES: Final = f"""
    SELECT {_columns(MESSAGE_COLUMNS, "q")} FROM xdb_sys_internal_queue q
    WHERE q.process_execution_id = ? AND q.queue_name = ? AND q.claimed = 0 ORDER BY q.sequence_id LIMIT ?"""

# Unique index xdb_sys_internal_queue_message_id.
KNOWS_MESSAGE_ID: Final = """
    SELECT 1 FROM xdb_sys_internal_queue q
    WHERE q.process_execution_id = ? AND q.queue_name = ? AND q.message_id = ?"""

# Primary key of xdb_sys_local_attribute, for the three.
FIND_LOCAL_ATTRIBUTES: Final = """
    SELECT a.name, a.value FROM xdb_sys_local_attribute a WHERE a.process_execution_id = ?"""
FIND_LOCAL_ATTRIBUTE: Final = f"{FIND_LOCAL_ATTRIBUTES} AND a.name = ?"
FIND_LOCAL_ATTRIBUTES_FROM: Final = f"{FIND_LOCAL_ATTRIBUTES} AND a.name >= ? ORDER BY a.name"

# --- what a transaction writes ---

# Primary key.
WRITE_LOCAL_ATTRIBUTE: Final = """
    INSERT INTO xdb_sys_local_attribute (process_execution_id, name, value) VALUES (?, ?, ?)
    ON CONFLICT (process_execution_id, name) DO UPDATE SET value = excluded.value"""

# Primary key; touches the indexes of current executions and of lists, which CHANGE_PROCESS does not.
END_PROCESS: Final = f"""
    UPDATE xdb_sys_process_execution SET status = ?, is_current = ?, {_assignments(PROCESS_CHANGING)}
    WHERE process_execution_id = ?"""

# Primary key; changes no indexed column.
CHANGE_PROCESS: Final = f"""
    UPDATE xdb_sys_process_execution SET {_assignments(PROCESS_CHANGING)} WHERE process_execution_id = ?"""

INSERT_PROCESS: Final = f"INSERT INTO xdb_sys_process_execution {_values(PROCESS_COLUMNS)}"

INSERT_REQUEST: Final = f"INSERT INTO xdb_sys_request {_values(REQUEST_COLUMNS)}"

INSERT_STATE: Final = f"INSERT INTO xdb_sys_async_state_execution {_values(STATE_COLUMNS)}"

# Unique index xdb_sys_async_state_execution_identity.
CHANGE_STATE: Final = f"""
    UPDATE xdb_sys_async_state_execution SET {_assignments(STATE_CHANGING)}
    WHERE process_execution_id = ? AND state_id = ? AND number = ?"""

INSERT_MESSAGE: Final = (
    f"INSERT INTO xdb_sys_internal_queue (claimed, {', '.join(MESSAGE_COLUMNS)}) VALUES (0, ?, ?, ?, ?, ?)"
)

# Primary key, for the two.
DELETE_MESSAGE: Final = "DELETE FROM xdb_sys_internal_queue WHERE process_execution_id = ? AND sequence_id = ?"
REMEMBER_MESSAGE_ID: Final = """
    INSERT INTO xdb_sys_internal_queue (process_execution_id, queue_name, sequence_id, message_id, claimed, payload)
    VALUES (?, ?, ?, ?, 1, NULL)
    ON CONFLICT (process_execution_id, sequence_id) DO UPDATE SET claimed = 1, payload = NULL"""

# Primary key, for the two.
DELETE_TIMER: Final = """
    DELETE FROM xdb_sys_timer_tasks
    WHERE process_execution_id = ? AND state_id = ? AND number = ? AND command_index = ?"""
SET_TIMER: Final = """
    INSERT INTO xdb_sys_timer_tasks (process_execution_id, state_id, number, command_index, shard_id, fire_at_ms)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (process_execution_id, state_id, number, command_index)
    DO UPDATE SET fire_at_ms = excluded.fire_at_ms"""

# First column of each primary key.
DELETE_MESSAGES_OF_PROCESS: Final = "DELETE FROM xdb_sys_internal_queue WHERE process_execution_id = ?"
DELETE_TIMERS_OF_PROCESS: Final = "DELETE FROM xdb_sys_timer_tasks WHERE process_execution_id = ?"

INSERT_HISTORY: Final = f"INSERT INTO xdb_sys_history {_values(HISTORY_COLUMNS)}"

WRITES: Final = Writes(
    end_processes=END_PROCESS,
    change_processes=CHANGE_PROCESS,
    insert_processes=INSERT_PROCESS,
    delete_requests=DELETE_REQUEST,
    insert_requests=INSERT_REQUEST,
    insert_states=INSERT_STATE,
    change_states=CHANGE_STATE,
    insert_messages=INSERT_MESSAGE,
    delete_messages=DELETE_MESSAGE,
    remember_message_ids=REMEMBER_MESSAGE_ID,
    set_timers=SET_TIMER,
    delete_timers=DELETE_TIMER,
    delete_messages_of_processes=DELETE_MESSAGES_OF_PROCESS,
    delete_timers_of_processes=DELETE_TIMERS_OF_PROCESS,
    insert_history=INSERT_HISTORY,
    write_local_attributes=WRITE_LOCAL_ATTRIBUTE,
)

# --- requests that were carried out ---

# Index xdb_sys_request_expired.
DELETE_EXPIRED_REQUESTS: Final = f"""
    DELETE FROM xdb_sys_request WHERE ({", ".join(REQUEST_KEY)}) IN (
        SELECT {", ".join(REQUEST_KEY)} FROM xdb_sys_request WHERE expires_at_ms < ? ORDER BY expires_at_ms LIMIT ?)"""

# Primary key.
REPLICATE_REQUEST: Final = f"""
    {INSERT_REQUEST} ON CONFLICT ({", ".join(REQUEST_KEY)})
    DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in REQUEST_COLUMNS if name not in REQUEST_KEY)}
    WHERE excluded.version > version"""

# --- what delivery scans ---

# For each shard partial index xdb_sys_async_state_execution_due, then the primary key of xdb_sys_process_execution.
_DUE_CALLS: Final = f"""
    SELECT {_columns(STATE_COLUMNS, "s")}, {_columns(PROCESS_COLUMNS, "p")}
    FROM xdb_sys_async_state_execution s
    JOIN xdb_sys_process_execution p ON p.process_execution_id = s.process_execution_id
    WHERE s.shard_id = ? AND s.due_at_ms < ? {{after}}
    ORDER BY s.due_at_ms, s.process_execution_id, s.state_id, s.number"""
DUE_CALLS: Final = _DUE_CALLS.format(after="")
DUE_CALLS_AFTER: Final = _DUE_CALLS.format(
    after="AND (s.due_at_ms, s.process_execution_id, s.state_id, s.number) > (?, ?, ?, ?)"
)
# Partial index xdb_sys_async_state_execution_unclaimed, then the primary key of xdb_sys_process_execution.
UNCLAIMED_CALLS: Final = f"""
    SELECT {_columns(STATE_COLUMNS, "s")}, {_columns(PROCESS_COLUMNS, "p")}
    FROM xdb_sys_async_state_execution s
    JOIN xdb_sys_process_execution p ON p.process_execution_id = s.process_execution_id
    WHERE s.shard_id = ? AND s.claim_range = 0 AND s.due_at_ms < ?"""

# For each shard index xdb_sys_timer_tasks_due, which covers it.
_DUE_TIMERS: Final = """
    SELECT t.process_execution_id, t.state_id, t.number, t.command_index, t.fire_at_ms, t.shard_id
    FROM xdb_sys_timer_tasks t
    WHERE t.shard_id = ? AND t.fire_at_ms < ? {after}
    ORDER BY t.fire_at_ms, t.process_execution_id, t.state_id, t.number, t.command_index
    LIMIT ?"""
DUE_TIMERS: Final = _DUE_TIMERS.format(after="")
DUE_TIMERS_AFTER: Final = _DUE_TIMERS.format(
    after="AND (t.fire_at_ms, t.process_execution_id, t.state_id, t.number, t.command_index) > (?, ?, ?, ?, ?)"
)

# --- what the service API asks ---

# The row ids of an execution, without its rows, from index xdb_sys_async_state_execution_identity; its open ones from
# xdb_sys_async_state_execution_open.
FIND_STATES: Final = f"""
    {_STATE} WHERE s.row_id IN (
        SELECT row_id FROM (
            SELECT l.row_id FROM xdb_sys_async_state_execution l
            WHERE l.process_execution_id = ? ORDER BY l.row_id DESC LIMIT ?)
        UNION ALL
        SELECT o.row_id FROM xdb_sys_async_state_execution o
        WHERE o.process_execution_id = ? AND o.status = 'RUNNING')
    ORDER BY s.row_id"""

# Primary key.
FIND_HISTORY: Final = f"""
    SELECT {_columns(HISTORY_COLUMNS, "h")} FROM xdb_sys_history h
    WHERE h.process_execution_id = ? AND h.event_id > ? ORDER BY h.event_id LIMIT ?"""

# Unique index xdb_sys_async_state_execution_identity, for the two.
FIND_STATE: Final = f"{_STATE} WHERE s.process_execution_id = ? AND s.state_id = ? AND s.number = ?"
FIND_DUE_KEY: Final = f"""
    SELECT {", ".join(CALL_KEY_COLUMNS)} FROM xdb_sys_async_state_execution
    WHERE process_execution_id = ? AND state_id = ? AND number = ? AND due_at_ms IS NOT NULL"""
FIND_STATE_BY_KEY: Final = f"""
    {_STATE} WHERE s.process_execution_id = ? AND s.state_id = ? AND s.wait_for_key = ? ORDER BY s.number LIMIT 1"""

# Index xdb_sys_internal_queue_unclaimed, which covers it.
COUNT_MESSAGES: Final = """
    SELECT q.queue_name, count(*) FROM xdb_sys_internal_queue q
    WHERE q.process_execution_id = ? AND q.claimed = 0 GROUP BY q.queue_name"""


def list_statement(request: ListRequest, after: tuple[int, str] | None) -> tuple[str, list[str | int]]:
    """Give the statement that lists executions of one status, and the values of its marks but the last, the status.

    Index xdb_sys_process_execution_by_status, or with a type xdb_sys_process_execution_by_type, gives the order, so
    that a page costs the same in any history; filters by the instant of the close are tried row by row. The
    executions of one process id are few: unique index xdb_sys_process_execution_current, then a sort. There, plus
    signs keep out the indexes that would walk through everybody's.
    """
    plus = "" if request.process_id is None else "+"
    filters: list[tuple[str, Sequence[str | int | None]]] = [
        ("p.namespace = ?", [request.namespace]),
        ("p.process_id = ?", [request.process_id]),
        (f"{plus}p.process_type = ?", [request.process_type]),
        ("p.started_at_ms >= ?", [request.started_from_ms]),
        ("p.started_at_ms < ?", [request.started_before_ms]),
        ("p.closed_at_ms >= ?", [request.closed_from_ms]),
        ("p.closed_at_ms < ?", [request.closed_before_ms]),
        ("(p.started_at_ms, p.process_execution_id) < (?, ?)", after or [None]),
    ]
    conditions: list[str] = []
    values: list[str | int] = []
    for condition, bound in filters:
        present = [value for value in bound if value is not None]
        if present:
            conditions.append(condition)
            values += present
    conditions.append(f"{plus}p.status = ?")
    order = f"{plus}p.started_at_ms DESC, {plus}p.process_execution_id DESC"
    return f"{_PROCESS} WHERE {' AND '.join(conditions)} ORDER BY {order}", values
