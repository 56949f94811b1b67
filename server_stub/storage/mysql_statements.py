"""The statements of the MySQL and MariaDB store over the system tables. Each names the index that serves it.

A statement costs a round trip, but a text may hold many: what concerns many rows is a statement for each, with
semicolons between, or a list in parentheses. A list stands for one mark `%s`, since values are escaped into the text.

The optimiser is told the index where its statistics could mislead it: a statement that reads more rows also locks more.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

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
    Row,
)
from server_stub.storage.listing import list_filters
from server_stub.storage.mysql_connection import MysqlConnection, joined
from server_stub.storage.writes import Writes
from xdb_sdk.protocol import ListRequest, ProcessStatus

# ruff: noqa: S608  # the texts are put together from constants; values are bound

_NOW_MS: Final = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)"
"""The database's clock at the beginning of the statement."""


def _columns(names: Sequence[str], alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in names)


class Part(Protocol):
    """A statement over many rows; `texts` are to be run in this order."""

    def texts(self, connection: MysqlConnection, rows: Iterable[Row]) -> Iterator[str]:
        """Give the statements with the values of the rows."""
        ...


class ForEach:
    """A statement over one row, which is repeated."""

    def __init__(self, statement: str) -> None:
        self.statement = statement

    def texts(self, connection: MysqlConnection, rows: Iterable[Row]) -> Iterator[str]:
        """Give a statement for each row."""
        return (connection.text(self.statement, row) for row in rows)


class ForAll:
    """An INSERT or REPLACE up to its VALUES, and values that every row has besides."""

    def __init__(self, beginning: str, more: tuple[Any, ...]) -> None:
        self.beginning = beginning
        self._more = more

    def texts(self, connection: MysqlConnection, rows: Iterable[Row]) -> Iterator[str]:
        """Give statements, each with as many rows as it may reasonably have."""
        values = joined((connection.text("%s", [(*row, *self._more)]) for row in rows), ", ")
        return (self.beginning + some for some in values)


def _insert(table: str, names: Sequence[str], *, verb: str = "INSERT", **more: Any) -> ForAll:
    columns = ", ".join([*names, *more])
    return ForAll(f"{verb} INTO {table} ({columns}) VALUES ", tuple(more.values()))


def _update(table: str, names: Sequence[str], key: Sequence[str], index: str) -> ForEach:
    assignments = ", ".join(f"{name} = %s" for name in names)
    return ForEach(f"UPDATE {table} FORCE INDEX ({index}) SET {assignments} WHERE {_equal(key)}")


def _delete(table: str, key: Sequence[str]) -> ForEach:
    # Only the form for several tables may name an index.
    return ForEach(f"DELETE t FROM {table} t FORCE INDEX (PRIMARY) WHERE {_equal(key)}")


def _equal(key: Sequence[str]) -> str:
    return " AND ".join(f"{name} = %s" for name in key)


# --- what a transaction loads ---

_PROCESS: Final = f"SELECT {_columns(PROCESS_COLUMNS, 'p')} FROM xdb_sys_process_execution p"
_STATE: Final = f"SELECT {_columns(STATE_COLUMNS, 's')} FROM xdb_sys_async_state_execution s"

# Unique index xdb_sys_process_execution_current, which covers it. Locks nothing: an index entry that is locked before
# the row would be locked in another order by those who lock the row first.
FIND_CURRENT_IDS: Final = """
    SELECT p.process_execution_id FROM xdb_sys_process_execution p FORCE INDEX (xdb_sys_process_execution_current)
    WHERE (p.namespace, p.process_id, p.is_current) IN %s"""

# Primary key, in its order. What another transaction makes current while this one waits for a lock was not among the
# ids: the row that is given is then current no more.
LOCK_EXECUTIONS: Final = f"""
    {_PROCESS} FORCE INDEX (PRIMARY) WHERE p.process_execution_id IN %s ORDER BY p.process_execution_id FOR UPDATE"""

# Primary key.
FIND_REQUESTS: Final = f"""
    SELECT {_columns(REQUEST_COLUMNS, "r")} FROM xdb_sys_request r FORCE INDEX (PRIMARY)
    WHERE ({_columns(REQUEST_KEY, "r")}) IN %s"""

# Index xdb_sys_async_state_execution_open.
FIND_OPEN_STATES: Final = f"""
    {_STATE} FORCE INDEX (xdb_sys_async_state_execution_open)
    WHERE s.process_execution_id IN %s AND s.status = 'RUNNING' ORDER BY s.row_id"""

# Index xdb_sys_internal_queue_unclaimed.
FIND_MESSAGES: Final = ForEach(f"""
    SELECT {_columns(MESSAGE_COLUMNS, "q")}
    FROM xdb_sys_internal_queue q FORCE INDEX (xdb_sys_internal_queue_unclaimed)
    WHERE q.process_execution_id = %s AND q.queue_name = %s AND q.claimed = 0 ORDER BY q.sequence_id LIMIT %s""")

# Unique index xdb_sys_internal_queue_message_id, which covers it.
FIND_MESSAGE_IDS: Final = """
    SELECT q.process_execution_id, q.queue_name, q.message_id
    FROM xdb_sys_internal_queue q FORCE INDEX (xdb_sys_internal_queue_message_id)
    WHERE (q.process_execution_id, q.queue_name, q.message_id) IN %s"""

# Primary key of xdb_sys_local_attribute, for the three.
_LOCAL_ATTRIBUTE: Final = """
    SELECT a.process_execution_id, a.name, a.value FROM xdb_sys_local_attribute a FORCE INDEX (PRIMARY)"""
FIND_ALL_LOCAL_ATTRIBUTES: Final = f"{_LOCAL_ATTRIBUTE} WHERE a.process_execution_id IN %s"
FIND_LOCAL_ATTRIBUTES: Final = f"{_LOCAL_ATTRIBUTE} WHERE (a.process_execution_id, a.name) IN %s"
FIND_LOCAL_ATTRIBUTES_LIKE: Final = ForEach(f"""
    {_LOCAL_ATTRIBUTE} WHERE a.process_execution_id = %s AND a.name LIKE %s ESCAPE '|'""")


def pattern_of(prefix: str) -> str:
    """Give the pattern of texts that begin with a prefix."""
    for character in "|%_":
        prefix = prefix.replace(character, f"|{character}")
    return f"{prefix}%"


# --- what a transaction writes; by primary key where nothing else is said ---

WRITES: Final[Writes[Part]] = Writes(
    end_processes=_update(
        "xdb_sys_process_execution",
        ("status", "is_current", *PROCESS_CHANGING),
        ("process_execution_id",),
        "PRIMARY",
    ),
    change_processes=_update("xdb_sys_process_execution", PROCESS_CHANGING, ("process_execution_id",), "PRIMARY"),
    insert_processes=_insert("xdb_sys_process_execution", PROCESS_COLUMNS),
    delete_requests=_delete("xdb_sys_request", (*REQUEST_KEY, "expires_at_ms")),
    insert_requests=_insert("xdb_sys_request", REQUEST_COLUMNS),
    insert_states=_insert("xdb_sys_async_state_execution", STATE_COLUMNS),
    change_states=_update(
        "xdb_sys_async_state_execution",
        STATE_CHANGING,
        ("process_execution_id", "state_id", "number"),
        "xdb_sys_async_state_execution_identity",
    ),
    insert_messages=_insert("xdb_sys_internal_queue", MESSAGE_COLUMNS, claimed=0),
    delete_messages=_delete("xdb_sys_internal_queue", ("process_execution_id", "sequence_id")),
    # Those that replace give every column: a row that is there need not be looked at.
    remember_message_ids=_insert(
        "xdb_sys_internal_queue",
        ("process_execution_id", "queue_name", "sequence_id", "message_id"),
        verb="REPLACE",
        claimed=1,
        payload=None,
    ),
    set_timers=_insert(
        "xdb_sys_timer_tasks",
        ("process_execution_id", "state_id", "number", "command_index", "shard_id", "fire_at_ms"),
        verb="REPLACE",
    ),
    delete_timers=_delete("xdb_sys_timer_tasks", ("process_execution_id", "state_id", "number", "command_index")),
    # First column of each primary key.
    delete_messages_of_processes=_delete("xdb_sys_internal_queue", ("process_execution_id",)),
    delete_timers_of_processes=_delete("xdb_sys_timer_tasks", ("process_execution_id",)),
    insert_history=_insert("xdb_sys_history", HISTORY_COLUMNS),
    write_local_attributes=_insert(
        "xdb_sys_local_attribute", ("process_execution_id", "name", "value"), verb="REPLACE"
    ),
)

# --- requests that were carried out ---

# Index xdb_sys_request_expired, then the primary key. What another transaction is at is left to it.
FIND_EXPIRED_REQUESTS: Final = f"""
    SELECT {_columns((*REQUEST_KEY, "expires_at_ms"), "r")}
    FROM xdb_sys_request r FORCE INDEX (xdb_sys_request_expired)
    WHERE r.expires_at_ms < %s ORDER BY r.expires_at_ms LIMIT %s FOR UPDATE SKIP LOCKED"""

# Primary key. Assignments are made in their order, and each sees those before it: the version comes last.
_IF_NEWER: Final = ", ".join(
    f"{name} = IF(VALUES(version) > version, VALUES({name}), {name})"
    for name in REQUEST_COLUMNS
    if name not in REQUEST_KEY
)
REPLICATE_REQUEST: Final = ForEach(
    f"INSERT INTO xdb_sys_request ({', '.join(REQUEST_COLUMNS)}) VALUES %s ON DUPLICATE KEY UPDATE {_IF_NEWER}"
)

# --- what delivery scans ---

_DUE_ORDER: Final = ("due_at_ms", "process_execution_id", "state_id", "number")
_TIMER_ORDER: Final = ("fire_at_ms", "process_execution_id", "state_id", "number", "command_index")

# For each shard index xdb_sys_async_state_execution_due, which covers the walk, then the two primary keys.
_DUE_WALK: Final = f"""(
        SELECT s.row_id, {_columns(_DUE_ORDER, "s")}
        FROM xdb_sys_async_state_execution s FORCE INDEX (xdb_sys_async_state_execution_due)
        WHERE s.shard_id = %s AND s.due_at_ms < %s {{after}} ORDER BY {_columns(_DUE_ORDER, "s")} LIMIT %s)"""
_CALLS: Final = f"""
    SELECT {_columns(STATE_COLUMNS, "s")}, {_columns(PROCESS_COLUMNS, "p")}
    FROM ({{found}}) k
    STRAIGHT_JOIN xdb_sys_async_state_execution s FORCE INDEX (PRIMARY) ON s.row_id = k.row_id
    STRAIGHT_JOIN xdb_sys_process_execution p FORCE INDEX (PRIMARY)
    ON p.process_execution_id = s.process_execution_id"""


def due_calls(
    shard_ids: Sequence[int], before_ms: int, limit: int, after: tuple[int, str, str, int] | None
) -> tuple[str, list[Any]]:
    """Give the statement of calls that are due, and its values."""
    found, values = _walks(_DUE_WALK, shard_ids, before_ms, limit, _DUE_ORDER, after)
    return f"{_CALLS.format(found=found)} ORDER BY {_columns(_DUE_ORDER, 's')}", values


# Index xdb_sys_async_state_execution_unclaimed, then as above.
UNCLAIMED_CALLS: Final = _CALLS.format(
    found="""
        SELECT s.row_id FROM xdb_sys_async_state_execution s FORCE INDEX (xdb_sys_async_state_execution_unclaimed)
        WHERE s.shard_id IN %s AND s.claim_range = 0 AND s.due_at_ms < %s LIMIT %s"""
)

# For each shard index xdb_sys_timer_tasks_due, which covers it.
_TIMER_WALK: Final = f"""(
        SELECT t.process_execution_id, t.state_id, t.number, t.command_index, t.fire_at_ms, t.shard_id
        FROM xdb_sys_timer_tasks t FORCE INDEX (xdb_sys_timer_tasks_due)
        WHERE t.shard_id = %s AND t.fire_at_ms < %s {{after}} ORDER BY {_columns(_TIMER_ORDER, "t")} LIMIT %s)"""


def due_timers(
    shard_ids: Sequence[int], before_ms: int, limit: int, after: tuple[int, str, str, int, int] | None
) -> tuple[str, list[Any]]:
    """Give the statement of timers that are due, and its values."""
    return _walks(_TIMER_WALK, shard_ids, before_ms, limit, _TIMER_ORDER, after)


def _walks(
    walk: str,
    shard_ids: Sequence[int],
    before_ms: int,
    limit: int,
    order: Sequence[str],
    after: Sequence[Any] | None,
) -> tuple[str, list[Any]]:
    """Unite walks through shards, each in an order, and give the values of their marks."""
    one = walk.format(after="" if after is None else _after(order))
    place = [] if after is None else _place(after)
    values = [value for shard_id in shard_ids for value in (shard_id, before_ms, *place, limit)]
    return f"{' UNION ALL '.join([one] * len(shard_ids))} ORDER BY {', '.join(order)} LIMIT %s", [*values, limit]


def _after(order: Sequence[str]) -> str:
    """Give the condition of what comes after a place in an order.

    A comparison of rows, `(a, b) > (%s, %s)`, would not be looked up in an index.
    """
    first, *others = order
    condition = ""
    for name in reversed(others):
        condition = f"{name} > %s OR ({name} = %s AND ({condition}))" if condition else f"{name} > %s"
    return f"AND {first} >= %s AND ({first} > %s OR {condition})"


def _place(after: Sequence[Any]) -> list[Any]:
    """Give the values of `_after`."""
    *others, last = after
    return [each for value in others for each in (value, value)] + [last]


# --- what the service API asks ---

# Unique index xdb_sys_process_execution_current.
FIND_CURRENT: Final = f"""
    {_PROCESS} FORCE INDEX (xdb_sys_process_execution_current)
    WHERE (p.namespace, p.process_id, p.is_current) IN %s"""

# Primary key, for the two.
FIND_EXECUTIONS: Final = f"{_PROCESS} FORCE INDEX (PRIMARY) WHERE p.process_execution_id IN %s"
FIND_CLOSED: Final = f"{_PROCESS} FORCE INDEX (PRIMARY) WHERE p.process_execution_id IN %s AND p.status <> 'RUNNING'"

# The rows of an execution, and its open ones, from index xdb_sys_async_state_execution_open, which covers both.
FIND_STATES: Final = f"""
    SELECT {_columns(STATE_COLUMNS, "s")}
    FROM (
        (SELECT l.row_id FROM xdb_sys_async_state_execution l FORCE INDEX (xdb_sys_async_state_execution_open)
         WHERE l.process_execution_id = %s ORDER BY l.row_id DESC LIMIT %s)
        UNION
        (SELECT o.row_id FROM xdb_sys_async_state_execution o FORCE INDEX (xdb_sys_async_state_execution_open)
         WHERE o.process_execution_id = %s AND o.status = 'RUNNING')) k
    STRAIGHT_JOIN xdb_sys_async_state_execution s FORCE INDEX (PRIMARY) ON s.row_id = k.row_id
    ORDER BY s.row_id"""

# Primary key.
FIND_HISTORY: Final = f"""
    SELECT {_columns(HISTORY_COLUMNS, "h")} FROM xdb_sys_history h FORCE INDEX (PRIMARY)
    WHERE h.process_execution_id = %s AND h.event_id > %s ORDER BY h.event_id LIMIT %s"""

# Unique index xdb_sys_async_state_execution_identity, for the two.
FIND_STATE: Final = f"""
    {_STATE} FORCE INDEX (xdb_sys_async_state_execution_identity)
    WHERE s.process_execution_id = %s AND s.state_id = %s AND s.number = %s"""
FIND_DUE_KEYS: Final = f"""
    SELECT {_columns(CALL_KEY_COLUMNS, "s")}
    FROM xdb_sys_async_state_execution s FORCE INDEX (xdb_sys_async_state_execution_identity)
    WHERE (s.process_execution_id, s.state_id, s.number) IN %s AND s.due_at_ms IS NOT NULL"""
FIND_STATE_BY_KEY: Final = f"""
    {_STATE} FORCE INDEX (xdb_sys_async_state_execution_identity)
    WHERE s.process_execution_id = %s AND s.state_id = %s AND s.wait_for_key = %s ORDER BY s.number LIMIT 1"""

# Index xdb_sys_internal_queue_unclaimed, which covers it.
COUNT_MESSAGES: Final = """
    SELECT q.queue_name, count(*) FROM xdb_sys_internal_queue q FORCE INDEX (xdb_sys_internal_queue_unclaimed)
    WHERE q.process_execution_id = %s AND q.claimed = 0 GROUP BY q.queue_name"""

_LIST_ORDER: Final = "started_at_ms DESC, process_execution_id DESC"
_LIST_BY_STATUS: Final = """(
    SELECT p.process_execution_id, p.started_at_ms
    FROM xdb_sys_process_execution p FORCE INDEX (xdb_sys_process_execution_by_status)
    WHERE {where} AND p.status = %s ORDER BY p.started_at_ms DESC, p.process_execution_id DESC LIMIT %s)"""
# The index ends in the beginning of an id, which gives no order of ids: it is walked through for instants, and what is
# found at these, hardly more, is sorted.
_LIST_BY_TYPE: Final = """(
    SELECT p.process_execution_id, p.started_at_ms
    FROM (
        SELECT DISTINCT p.started_at_ms
        FROM xdb_sys_process_execution p FORCE INDEX (xdb_sys_process_execution_by_type)
        WHERE {where} AND p.status = %s ORDER BY p.started_at_ms DESC LIMIT %s) i
    STRAIGHT_JOIN xdb_sys_process_execution p FORCE INDEX (xdb_sys_process_execution_by_type)
    ON p.started_at_ms = i.started_at_ms
    WHERE {where} AND p.status = %s ORDER BY p.started_at_ms DESC, p.process_execution_id DESC LIMIT %s)"""
_LIST: Final = f"""
    SELECT {_columns(PROCESS_COLUMNS, "p")} FROM ({{walks}} ORDER BY {_LIST_ORDER} LIMIT %s) k
    STRAIGHT_JOIN xdb_sys_process_execution p FORCE INDEX (PRIMARY) ON p.process_execution_id = k.process_execution_id
    ORDER BY k.started_at_ms DESC, k.process_execution_id DESC"""
_LIST_OF_PROCESS_ID: Final = f"""
    {_PROCESS} FORCE INDEX (xdb_sys_process_execution_current)
    WHERE {{where}} AND p.status IN %s ORDER BY {_LIST_ORDER} LIMIT %s"""


def list_statement(request: ListRequest, after: tuple[int, str] | None) -> tuple[str, list[Any]]:
    """Give the statement that lists executions, newest first, one more than a page has, and its values.

    One walk for each status: index xdb_sys_process_execution_by_status, or with a type
    xdb_sys_process_execution_by_type, gives its order, so that a page costs the same in any history; filters by the
    instant of the close are tried row by row. The executions of one process id are few: unique index
    xdb_sys_process_execution_current, then a sort.
    """
    filters = list_filters(request)
    conditions = [condition.format("%s") for condition, _ in filters]
    values: list[Any] = [value for _, value in filters]
    if after is not None:
        conditions.append("p.started_at_ms <= %s AND (p.started_at_ms < %s OR p.process_execution_id < %s)")
        values += [after[0], *after]
    where = " AND ".join(conditions)
    statuses = [status.value for status in dict.fromkeys(request.statuses or ProcessStatus)]
    limit = request.page_size + 1
    if request.process_id is not None:
        return _LIST_OF_PROCESS_ID.format(where=where), [*values, tuple(statuses), limit]
    walk, repeated = (_LIST_BY_STATUS, 1) if request.process_type is None else (_LIST_BY_TYPE, 2)
    walks = " UNION ALL ".join([walk.format(where=where)] * len(statuses))
    bound = [value for status in statuses for value in [*values, status, limit] * repeated]
    return _LIST.format(walks=walks), [*bound, limit]


# --- several servers ---

# Both tables are small, so that a scan is fine; and read committed: a row that does not fit is not waited for. A member
# that somebody else drains does not undo that.
HEARTBEAT: Final = f"""
    INSERT INTO xdb_sys_member (member_id, address, roles, is_draining, started_at_ms, heartbeat_at_ms)
    VALUES (%s, %s, %s, %s, {_NOW_MS}, {_NOW_MS})
    ON DUPLICATE KEY UPDATE is_draining = GREATEST(is_draining, %s), heartbeat_at_ms = {_NOW_MS}"""
RENEW: Final = f"""
    UPDATE xdb_sys_shard SET lease_until_ms = {_NOW_MS} + %s WHERE kind = 'work' AND owner_id = %s"""
# Members that are gone have no roles here.
VIEW: Final = f"""
    SELECT {_NOW_MS}, s.shard_id, s.range_id, s.owner_id, s.lease_until_ms, s.handover_range, s.handover_until_ms,
        NULL, NULL, NULL, NULL
    FROM xdb_sys_shard s WHERE s.kind = 'work'
    UNION ALL
    SELECT {_NOW_MS}, NULL, NULL, NULL, NULL, NULL, NULL, m.member_id, m.address, m.roles, m.is_draining
    FROM xdb_sys_member m WHERE m.heartbeat_at_ms >= {_NOW_MS} - %s OR m.member_id = %s
    UNION ALL
    SELECT {_NOW_MS}, NULL, NULL, NULL, NULL, NULL, NULL, m.member_id, NULL, NULL, NULL
    FROM xdb_sys_member m WHERE m.heartbeat_at_ms < {_NOW_MS} - %s AND m.member_id <> %s"""

# Primary key, for the following. Members that have come back meanwhile stay.
REMOVE_GONE: Final = f"""
    DELETE FROM xdb_sys_member WHERE member_id IN %s AND heartbeat_at_ms < {_NOW_MS} - %s"""
# A former owner's handover lasts through a change of the owner after it.
FIND_ACQUIRABLE: Final = f"""
    SELECT s.shard_id, s.range_id FROM xdb_sys_shard s FORCE INDEX (PRIMARY)
    WHERE s.kind = 'work' AND s.shard_id IN %s AND (s.shard_id, s.range_id) IN %s
    AND (%s OR s.owner_id IS NULL OR s.owner_id = %s OR s.lease_until_ms < {_NOW_MS})
    ORDER BY s.shard_id FOR UPDATE"""
ACQUIRE: Final = f"""
    UPDATE xdb_sys_shard FORCE INDEX (PRIMARY)
    SET range_id = range_id + 1, owner_id = %s, lease_until_ms = {_NOW_MS} + %s
    WHERE kind = 'work' AND shard_id IN %s"""
RELEASE: Final = f"""
    UPDATE xdb_sys_shard FORCE INDEX (PRIMARY)
    SET owner_id = NULL, lease_until_ms = 0,
        handover_range = IF(%s > 0, range_id, handover_range),
        handover_until_ms = IF(%s > 0, {_NOW_MS} + %s, handover_until_ms)
    WHERE kind = 'work' AND shard_id IN %s AND owner_id = %s"""
END_HANDOVER: Final = ForEach("""
    UPDATE xdb_sys_shard FORCE INDEX (PRIMARY) SET handover_range = 0, handover_until_ms = 0
    WHERE kind = 'work' AND shard_id = %s AND handover_range = %s""")
RELEASE_ALL: Final = (
    "UPDATE xdb_sys_shard SET owner_id = NULL, lease_until_ms = 0 WHERE kind = 'work' AND owner_id = %s"
)
LEAVE: Final = "DELETE FROM xdb_sys_member WHERE member_id = %s"
