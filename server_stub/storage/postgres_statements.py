"""The statements of the PostgreSQL store over the system tables. Each names the index that serves it.

A statement costs a round trip, so each is over as many rows as there are: values travel as arrays, one a column, which
`unnest` makes rows of again.

PostgreSQL keeps the plan of a statement for as long as what it knows of the tables stays the same, however much they
grow meanwhile. So reads by key say by `LATERAL (... OFFSET 0)`, or by an array, that each key is looked up: where it
knows of few rows, it would rather join by reading all of an index, at each commit.
"""

from collections.abc import Sequence
from typing import Final

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
from server_stub.storage.listing import list_filters
from server_stub.storage.writes import Writes
from xdb_sdk.protocol import ListRequest, ProcessStatus

# ruff: noqa: S608  # the texts are put together from constants; values are bound

_NOW_MS: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def _columns(names: Sequence[str], alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in names)


ARRAY_TYPES: Final = {
    **dict.fromkeys(
        ("is_current", "graceful_complete_requested", "claimed", "is_draining", "request_type"), "smallint[]"
    ),
    **dict.fromkeys(("shard_id", "number", "attempt", "command_index"), "integer[]"),
    **dict.fromkeys(
        (
            "started_at_ms",
            "timeout_at_ms",
            "closed_at_ms",
            "created_at_ms",
            "expires_at_ms",
            "paused_at_ms",
            "held_due_at_ms",
            "next_event_id",
            "event_id",
            "cause_id",
            "history_bytes",
            "first_attempt_at_ms",
            "due_at_ms",
            "fire_at_ms",
            "at_ms",
            "next_sequence_id",
            "next_wait_order",
            "sequence_id",
            "claim_range",
            "version",
        ),
        "bigint[]",
    ),
}
"""Of columns, whatever their table; all others are text."""


def array_type(name: str) -> str:
    """Give the type by which the values of a column are bound."""
    return ARRAY_TYPES.get(name, "text[]")


def _rows(names: Sequence[str], first: int) -> str:
    """Give the row source of columns whose arrays are bound from mark `first` on."""
    marks = (f"${number}::{array_type(name)}" for number, name in enumerate(names, first))
    return f"unnest({', '.join(marks)}) AS v({', '.join(names)})"


def _matching(names: Sequence[str], alias: str) -> str:
    """Give the condition that a row has the values of the row source."""
    return " AND ".join(f"{alias}.{name} = v.{name}" for name in names)


def _excluded(names: Sequence[str], key: Sequence[str]) -> str:
    """Give the assignments of an upsert."""
    return ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)


def _requests(first: int) -> str:
    """Give where requests come from whose keys are bound from mark `first` on."""
    return f"""
    FROM {_rows(REQUEST_KEY, first)} CROSS JOIN LATERAL (
        SELECT r.* FROM xdb_sys_request r WHERE {_matching(REQUEST_KEY, "r")} OFFSET 0) r"""


class Part:
    """A part of the statement that writes all: `text` has its first mark's number open, since parts are numbered on."""

    def __init__(self, template: str, names: Sequence[str]) -> None:
        self._template = template
        self._names = names
        self._texts: dict[int, str] = {}

    @property
    def array_types(self) -> list[str]:
        """What is bound for each column, in their order."""
        return [array_type(name) for name in self._names]

    def text(self, first: int) -> str:
        """Give the text with its marks numbered from `first` on."""
        text = self._texts.get(first)
        if text is None:
            text = self._texts[first] = self._template.format(rows=_rows(self._names, first))
        return text


def _insert(table: str, names: Sequence[str], *, more: str = "", on_conflict: str = "") -> Part:
    fixed = dict(pair.split("=") for pair in more.split()) if more else {}
    columns = ", ".join([*names, *fixed])
    values = ", ".join([_columns(names, "v"), *fixed.values()])
    return Part(f"INSERT INTO {table} ({columns}) SELECT {values} FROM {{rows}} {on_conflict}", names)


def _update(table: str, names: Sequence[str], key: Sequence[str]) -> Part:
    assignments = ", ".join(f"{name} = v.{name}" for name in names)
    return Part(f"UPDATE {table} t SET {assignments} FROM {{rows}} WHERE {_matching(key, 't')}", [*names, *key])


def _delete(table: str, key: Sequence[str]) -> Part:
    return Part(f"DELETE FROM {table} t USING {{rows}} WHERE {_matching(key, 't')}", key)


# --- what a transaction loads ---

_PROCESS: Final = f"SELECT {_columns(PROCESS_COLUMNS, 'p')} FROM xdb_sys_process_execution p"
_STATE: Final = f"SELECT {_columns(STATE_COLUMNS, 's')} FROM xdb_sys_async_state_execution s"

# Primary key. Rows are locked in their order: the lock is taken above the sort.
LOCK_EXECUTIONS: Final = f"""
    {_PROCESS} WHERE p.process_execution_id = ANY($1::text[]) ORDER BY p.process_execution_id FOR UPDATE"""

# Unique index xdb_sys_process_execution_current, then the primary key. What another transaction makes current while
# this one waits for a lock is not seen: the row that is given is then current no more.
LOCK_EXECUTIONS_AND_CURRENT: Final = f"""
    WITH wanted AS MATERIALIZED (
        SELECT unnest($1::text[]) AS id
        UNION
        SELECT c.process_execution_id FROM unnest($2::text[], $3::text[]) AS k(namespace, process_id)
        CROSS JOIN LATERAL (
            SELECT c.process_execution_id FROM xdb_sys_process_execution c
            WHERE c.namespace = k.namespace AND c.process_id = k.process_id AND c.is_current = 1 OFFSET 0) c)
    {_PROCESS} WHERE p.process_execution_id = ANY(ARRAY(SELECT id FROM wanted))
    ORDER BY p.process_execution_id FOR UPDATE"""

_NO_PROCESS: Final = ", ".join(["NULL"] * len(PROCESS_COLUMNS))
_NO_STATE: Final = ", ".join(["NULL"] * len(STATE_COLUMNS))

# Primary key of xdb_sys_process_execution, and partial index xdb_sys_async_state_execution_open; the second and third
# have unique index xdb_sys_process_execution_current too, the third the primary key of xdb_sys_request. Executions
# first, then states in order of creation, then requests, each as one JSON list; a number says which.
_READ_EXECUTIONS: Final = f"""
    SELECT 0 AS kind, 0 AS position, {_columns(PROCESS_COLUMNS, "p")}, {_NO_STATE}
    FROM {{wanted}} CROSS JOIN LATERAL (
        SELECT p.* FROM xdb_sys_process_execution p WHERE p.process_execution_id = w.id OFFSET 0) p
    UNION ALL
    SELECT 1, s.row_id, {_NO_PROCESS}, {_columns(STATE_COLUMNS, "s")}
    FROM {{wanted}} CROSS JOIN LATERAL (
        SELECT s.* FROM xdb_sys_async_state_execution s
        WHERE s.process_execution_id = w.id AND s.status = 'RUNNING' OFFSET 0) s
    {{more}}
    ORDER BY kind, position"""
READ_EXECUTIONS: Final = _READ_EXECUTIONS.format(wanted="unnest($1::text[]) AS w(id)", more="")
_CURRENT_WANTED: Final = """
    WITH w AS MATERIALIZED (
        SELECT unnest($1::text[]) AS id
        UNION
        SELECT c.process_execution_id FROM unnest($2::text[], $3::text[]) AS k(namespace, process_id)
        CROSS JOIN LATERAL (
            SELECT c.process_execution_id FROM xdb_sys_process_execution c
            WHERE c.namespace = k.namespace AND c.process_id = k.process_id AND c.is_current = 1 OFFSET 0) c)"""
READ_EXECUTIONS_AND_CURRENT: Final = f"{_CURRENT_WANTED}{_READ_EXECUTIONS.format(wanted='w', more='')}"
_ALSO_REQUESTS: Final = f"""
    UNION ALL
    SELECT 2, 0, json_build_array({_columns(REQUEST_COLUMNS, "r")})::text,
        {", ".join(["NULL"] * (len(PROCESS_COLUMNS) - 1))}, {_NO_STATE}{_requests(4)}"""
READ_EXECUTIONS_CURRENT_AND_REQUESTS: Final = (
    f"{_CURRENT_WANTED}{_READ_EXECUTIONS.format(wanted='w', more=_ALSO_REQUESTS)}"
)

# Primary key. Locks the rows in their order before anything is written, since the parts that write run after what the
# statement answers; divides by zero, which undoes all, unless each row has the version that is bound.
GUARD: Final = """
    guarded AS MATERIALIZED (
        SELECT p.process_execution_id AS id, p.version FROM xdb_sys_process_execution p
        WHERE p.process_execution_id = ANY($1::text[]) ORDER BY p.process_execution_id FOR UPDATE)"""
GUARDED: Final = """
    SELECT 1 / (count(*) = cardinality($1::text[]))::integer FROM guarded g
    JOIN unnest($1::text[], $2::bigint[]) AS seen(id, version) ON seen.id = g.id AND seen.version = g.version"""

# Primary key of xdb_sys_request.
FIND_REQUESTS: Final = f"SELECT {_columns(REQUEST_COLUMNS, 'r')}{_requests(1)}"

# Partial index xdb_sys_async_state_execution_open.
FIND_OPEN_STATES: Final = f"""
    {_STATE} WHERE s.process_execution_id = ANY($1::text[]) AND s.status = 'RUNNING' ORDER BY s.row_id"""

# Partial index xdb_sys_internal_queue_unclaimed, for each queue.
FIND_MESSAGES: Final = f"""
    SELECT {_columns(MESSAGE_COLUMNS, "m")}
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS k(process_execution_id, queue_name, most)
    CROSS JOIN LATERAL (
        SELECT q.* FROM xdb_sys_internal_queue q
        WHERE q.process_execution_id = k.process_execution_id AND q.queue_name = k.queue_name AND q.claimed = 0
        ORDER BY q.sequence_id LIMIT k.most) m
    ORDER BY m.process_execution_id, m.sequence_id"""

# Unique partial index xdb_sys_internal_queue_message_id.
FIND_MESSAGE_IDS: Final = """
    SELECT q.process_execution_id, q.queue_name, q.message_id
    FROM unnest($1::text[], $2::text[], $3::text[]) AS k(process_execution_id, queue_name, message_id)
    CROSS JOIN LATERAL (
        SELECT q.* FROM xdb_sys_internal_queue q WHERE q.process_execution_id = k.process_execution_id
        AND q.queue_name = k.queue_name AND q.message_id = k.message_id OFFSET 0) q"""

# Primary key of xdb_sys_local_attribute, for the three.
FIND_LOCAL_ATTRIBUTES: Final = """
    SELECT a.process_execution_id, a.name, a.value FROM xdb_sys_local_attribute a
    WHERE a.process_execution_id = ANY($1::text[])
    UNION ALL
    SELECT a.process_execution_id, a.name, a.value
    FROM unnest($2::text[], $3::text[]) AS k(process_execution_id, name) CROSS JOIN LATERAL (
        SELECT a.* FROM xdb_sys_local_attribute a
        WHERE a.process_execution_id = k.process_execution_id AND a.name = k.name OFFSET 0) a
    UNION ALL
    SELECT a.process_execution_id, a.name, a.value
    FROM unnest($4::text[], $5::text[]) AS k(process_execution_id, prefix) CROSS JOIN LATERAL (
        SELECT a.* FROM xdb_sys_local_attribute a
        WHERE a.process_execution_id = k.process_execution_id AND starts_with(a.name, k.prefix) OFFSET 0) a"""

# --- what a transaction writes: parts of one statement; by primary key where nothing else is said ---

WRITES: Final[Writes[Part]] = Writes(
    end_processes=_update(
        "xdb_sys_process_execution", ("status", "is_current", *PROCESS_CHANGING), ("process_execution_id",)
    ),
    # Changes no indexed column, so that the new row version needs no entry in any index.
    change_processes=_update("xdb_sys_process_execution", PROCESS_CHANGING, ("process_execution_id",)),
    insert_processes=_insert("xdb_sys_process_execution", PROCESS_COLUMNS),
    delete_requests=_delete("xdb_sys_request", (*REQUEST_KEY, "expires_at_ms")),
    insert_requests=_insert("xdb_sys_request", REQUEST_COLUMNS),
    insert_states=_insert("xdb_sys_async_state_execution", STATE_COLUMNS),
    # Unique index xdb_sys_async_state_execution_identity.
    change_states=_update(
        "xdb_sys_async_state_execution", STATE_CHANGING, ("process_execution_id", "state_id", "number")
    ),
    insert_messages=_insert("xdb_sys_internal_queue", MESSAGE_COLUMNS, more="claimed=0"),
    delete_messages=_delete("xdb_sys_internal_queue", ("process_execution_id", "sequence_id")),
    remember_message_ids=_insert(
        "xdb_sys_internal_queue",
        ("process_execution_id", "queue_name", "sequence_id", "message_id"),
        more="claimed=1",
        on_conflict="ON CONFLICT (process_execution_id, sequence_id) DO UPDATE SET claimed = 1, payload = NULL",
    ),
    set_timers=_insert(
        "xdb_sys_timer_tasks",
        ("process_execution_id", "state_id", "number", "command_index", "shard_id", "fire_at_ms"),
        on_conflict="ON CONFLICT (process_execution_id, state_id, number, command_index) "
        "DO UPDATE SET fire_at_ms = excluded.fire_at_ms",
    ),
    delete_timers=_delete("xdb_sys_timer_tasks", ("process_execution_id", "state_id", "number", "command_index")),
    # First column of each primary key.
    delete_messages_of_processes=_delete("xdb_sys_internal_queue", ("process_execution_id",)),
    delete_timers_of_processes=_delete("xdb_sys_timer_tasks", ("process_execution_id",)),
    insert_history=_insert("xdb_sys_history", HISTORY_COLUMNS),
    write_local_attributes=_insert(
        "xdb_sys_local_attribute",
        ("process_execution_id", "name", "value"),
        on_conflict="ON CONFLICT (process_execution_id, name) DO UPDATE SET value = excluded.value",
    ),
)

# --- requests that were carried out ---

# Index xdb_sys_request_expired. What another transaction is at is left to it.
DELETE_EXPIRED_REQUESTS: Final = """
    WITH deleted AS (
        DELETE FROM xdb_sys_request WHERE ctid = ANY(ARRAY(
            SELECT r.ctid FROM xdb_sys_request r WHERE r.expires_at_ms < $1
            ORDER BY r.expires_at_ms LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1)
    SELECT count(*) FROM deleted"""

# Primary key.
REPLICATE_REQUESTS: Final = f"""
    INSERT INTO xdb_sys_request AS r ({", ".join(REQUEST_COLUMNS)})
    SELECT {_columns(REQUEST_COLUMNS, "v")} FROM {_rows(REQUEST_COLUMNS, 1)}
    ON CONFLICT ({", ".join(REQUEST_KEY)}) DO UPDATE SET {_excluded(REQUEST_COLUMNS, REQUEST_KEY)}
    WHERE excluded.version > r.version"""

# --- what delivery scans ---

_DUE_ORDER: Final = "s.due_at_ms, s.process_execution_id, s.state_id, s.number"

# For each shard partial index xdb_sys_async_state_execution_due, then the primary key of xdb_sys_process_execution.
_DUE_CALLS: Final = f"""
    SELECT {_columns(STATE_COLUMNS, "s")}, {_columns(PROCESS_COLUMNS, "p")}
    FROM (
        SELECT s.* FROM unnest($1::integer[]) AS k(shard_id) CROSS JOIN LATERAL (
            SELECT s.* FROM xdb_sys_async_state_execution s
            WHERE s.shard_id = k.shard_id AND s.due_at_ms < $2 {{condition}}
            ORDER BY {_DUE_ORDER} LIMIT $3) s
        ORDER BY {_DUE_ORDER} LIMIT $3) s
    CROSS JOIN LATERAL (
        SELECT p.* FROM xdb_sys_process_execution p WHERE p.process_execution_id = s.process_execution_id OFFSET 0) p
    ORDER BY {_DUE_ORDER}"""
DUE_CALLS: Final = _DUE_CALLS.format(condition="")
DUE_CALLS_AFTER: Final = _DUE_CALLS.format(condition=f"AND ({_DUE_ORDER}) > ($4, $5, $6, $7)")

# For each shard partial index xdb_sys_async_state_execution_unclaimed, then as above.
UNCLAIMED_CALLS: Final = f"""
    SELECT {_columns(STATE_COLUMNS, "s")}, {_columns(PROCESS_COLUMNS, "p")}
    FROM xdb_sys_async_state_execution s CROSS JOIN LATERAL (
        SELECT p.* FROM xdb_sys_process_execution p WHERE p.process_execution_id = s.process_execution_id OFFSET 0) p
    WHERE s.shard_id = ANY($1::integer[]) AND s.claim_range = 0 AND s.due_at_ms < $2 LIMIT $3"""

_TIMER_ORDER: Final = "t.fire_at_ms, t.process_execution_id, t.state_id, t.number, t.command_index"

# For each shard index xdb_sys_timer_tasks_due, which covers it.
_DUE_TIMERS: Final = f"""
    SELECT t.process_execution_id, t.state_id, t.number, t.command_index, t.fire_at_ms, t.shard_id
    FROM unnest($1::integer[]) AS k(shard_id) CROSS JOIN LATERAL (
        SELECT t.* FROM xdb_sys_timer_tasks t
        WHERE t.shard_id = k.shard_id AND t.fire_at_ms < $2 {{condition}}
        ORDER BY {_TIMER_ORDER} LIMIT $3) t
    ORDER BY {_TIMER_ORDER} LIMIT $3"""
DUE_TIMERS: Final = _DUE_TIMERS.format(condition="")
DUE_TIMERS_AFTER: Final = _DUE_TIMERS.format(condition=f"AND ({_TIMER_ORDER}) > ($4, $5, $6, $7, $8)")

# --- what the service API asks ---

# Unique index xdb_sys_process_execution_current.
_CURRENT: Final = f"""
    SELECT {_columns(PROCESS_COLUMNS, "p")} FROM unnest({{keys}}) AS k(namespace, process_id)
    CROSS JOIN LATERAL (
        SELECT p.* FROM xdb_sys_process_execution p
        WHERE p.namespace = k.namespace AND p.process_id = k.process_id AND p.is_current = 1 OFFSET 0) p"""
FIND_CURRENT: Final = _CURRENT.format(keys="$1::text[], $2::text[]")

# Primary key, for the three; the second has the index above too.
FIND_EXECUTIONS: Final = f"{_PROCESS} WHERE p.process_execution_id = ANY($1::text[])"
FIND_EXECUTIONS_AND_CURRENT: Final = f"""
    {FIND_EXECUTIONS} UNION ALL {_CURRENT.format(keys="$2::text[], $3::text[]")}"""
FIND_CLOSED: Final = f"{_PROCESS} WHERE p.process_execution_id = ANY($1::text[]) AND p.status <> 'RUNNING'"

# The rows of an execution from the first column of index xdb_sys_async_state_execution_identity; its open ones from
# xdb_sys_async_state_execution_open. The sum keeps the planner from walking through all rows in the order of their ids.
FIND_STATES: Final = f"""
    {_STATE} WHERE s.row_id = ANY(ARRAY(
        (SELECT l.row_id FROM xdb_sys_async_state_execution l
         WHERE l.process_execution_id = $1 ORDER BY l.row_id + 0 DESC LIMIT $2)
        UNION ALL
        SELECT o.row_id FROM xdb_sys_async_state_execution o
        WHERE o.process_execution_id = $1 AND o.status = 'RUNNING'))
    ORDER BY s.row_id"""

# Primary key.
FIND_HISTORY: Final = f"""
    SELECT {_columns(HISTORY_COLUMNS, "h")} FROM xdb_sys_history h
    WHERE h.process_execution_id = $1 AND h.event_id > $2 ORDER BY h.event_id LIMIT $3"""

# Unique index xdb_sys_async_state_execution_identity, for the two.
FIND_STATE: Final = f"{_STATE} WHERE s.process_execution_id = $1 AND s.state_id = $2 AND s.number = $3"
FIND_DUE_KEYS: Final = f"""
    SELECT {_columns(CALL_KEY_COLUMNS, "s")}
    FROM unnest($1::text[], $2::text[], $3::integer[]) AS k(process_execution_id, state_id, number)
    CROSS JOIN LATERAL (
        SELECT s.* FROM xdb_sys_async_state_execution s WHERE s.process_execution_id = k.process_execution_id
        AND s.state_id = k.state_id AND s.number = k.number AND s.due_at_ms IS NOT NULL OFFSET 0) s"""
FIND_STATE_BY_KEY: Final = f"""
    {_STATE} WHERE s.process_execution_id = $1 AND s.state_id = $2 AND s.wait_for_key = $3 ORDER BY s.number LIMIT 1"""

# Partial index xdb_sys_internal_queue_unclaimed, which covers it.
COUNT_MESSAGES: Final = """
    SELECT q.queue_name, count(*) FROM xdb_sys_internal_queue q
    WHERE q.process_execution_id = $1 AND q.claimed = 0 GROUP BY q.queue_name"""


def list_statement(request: ListRequest, after: tuple[int, str] | None) -> tuple[str, list[str | int]]:
    """Give the statement that lists executions, newest first, one more than a page has, and its values.

    One walk for each status: index xdb_sys_process_execution_by_status, or with a type
    xdb_sys_process_execution_by_type, gives its order, so that a page costs the same in any history; filters by the
    instant of the close are tried row by row. The executions of one process id are few: unique index
    xdb_sys_process_execution_current, then a sort.
    """
    values: list[str | int] = []

    def mark(value: str | int) -> str:
        values.append(value)
        return f"${len(values)}"

    conditions = [condition.format(mark(value)) for condition, value in list_filters(request)]
    if after is not None:
        conditions.append(f"(p.started_at_ms, p.process_execution_id) < ({mark(after[0])}, {mark(after[1])})")
    statuses = [mark(status.value) for status in dict.fromkeys(request.statuses or ProcessStatus)]
    order = "ORDER BY p.started_at_ms DESC, p.process_execution_id DESC LIMIT " + mark(request.page_size + 1)
    where = " AND ".join(conditions)
    if request.process_id is not None:
        return f"{_PROCESS} WHERE {where} AND p.status IN ({', '.join(statuses)}) {order}", values
    walks = " UNION ALL ".join(f"({_PROCESS} WHERE {where} AND p.status = {status} {order})" for status in statuses)
    return f"SELECT p.* FROM ({walks}) p {order}", values


# --- several servers ---

# Reads members and shards as they were before: of what the statement changes it gives the leases, and its caller knows
# the member. Both tables are small, so that a scan is fine. A member that somebody else drains does not undo that.
BEAT: Final = f"""
    WITH at AS MATERIALIZED (SELECT {_NOW_MS} AS now_ms),
    gone AS (
        DELETE FROM xdb_sys_member m USING at
        WHERE m.heartbeat_at_ms < at.now_ms - $5::bigint AND m.member_id <> $1),
    renewed AS (
        UPDATE xdb_sys_shard s SET lease_until_ms = at.now_ms + $6::bigint FROM at
        WHERE s.kind = 'work' AND s.owner_id = $1 AND $6::bigint IS NOT NULL
        RETURNING s.shard_id, s.lease_until_ms),
    alive AS (
        INSERT INTO xdb_sys_member AS m (member_id, address, roles, is_draining, started_at_ms, heartbeat_at_ms)
        SELECT $1::text, $2::text, $3::text, $4::smallint, at.now_ms, at.now_ms FROM at
        ON CONFLICT (member_id) DO UPDATE
        SET is_draining = GREATEST(m.is_draining, excluded.is_draining), heartbeat_at_ms = excluded.heartbeat_at_ms)
    SELECT at.now_ms, s.shard_id, s.range_id, s.owner_id, COALESCE(renewed.lease_until_ms, s.lease_until_ms),
        s.handover_range, s.handover_until_ms, NULL AS member_id, NULL AS address, NULL AS roles, NULL AS is_draining
    FROM at CROSS JOIN xdb_sys_shard s LEFT JOIN renewed USING (shard_id) WHERE s.kind = 'work'
    UNION ALL
    SELECT at.now_ms, NULL, NULL, NULL, NULL, NULL, NULL, m.member_id, m.address, m.roles, m.is_draining
    FROM at CROSS JOIN xdb_sys_member m WHERE m.heartbeat_at_ms >= at.now_ms - $5 OR m.member_id = $1"""

# Primary key, for the following. A former owner's handover lasts through a change of the owner after it.
ACQUIRE: Final = f"""
    UPDATE xdb_sys_shard s SET range_id = s.range_id + 1, owner_id = $1, lease_until_ms = {_NOW_MS} + $2::bigint
    FROM unnest($3::integer[], $4::bigint[]) AS v(shard_id, range_id)
    WHERE s.kind = 'work' AND s.shard_id = v.shard_id AND s.range_id = v.range_id
    AND ($5::boolean OR s.owner_id IS NULL OR s.owner_id = $1 OR s.lease_until_ms < {_NOW_MS})
    RETURNING s.shard_id, s.range_id"""
RELEASE: Final = f"""
    UPDATE xdb_sys_shard s SET owner_id = NULL, lease_until_ms = 0,
        handover_range = CASE WHEN $3::bigint > 0 THEN s.range_id ELSE s.handover_range END,
        handover_until_ms = CASE WHEN $3 > 0 THEN {_NOW_MS} + $3 ELSE s.handover_until_ms END
    WHERE s.kind = 'work' AND s.owner_id = $1 AND s.shard_id = ANY($2::integer[])"""
END_HANDOVER: Final = """
    UPDATE xdb_sys_shard s SET handover_range = 0, handover_until_ms = 0
    FROM unnest($1::integer[], $2::bigint[]) AS v(shard_id, range_id)
    WHERE s.kind = 'work' AND s.shard_id = v.shard_id AND s.handover_range = v.range_id"""
LEAVE: Final = """
    WITH released AS (
        UPDATE xdb_sys_shard s SET owner_id = NULL, lease_until_ms = 0 WHERE s.kind = 'work' AND s.owner_id = $1)
    DELETE FROM xdb_sys_member m WHERE m.member_id = $1"""
