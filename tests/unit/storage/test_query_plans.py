"""Each hot statement of the SQLite store uses the index that its comment names, so that no history makes it slower."""

from collections.abc import AsyncIterator

import pytest

from server_stub.storage import sqlite_statements as sql
from server_stub.storage.sqlite import MEMORY, SqliteStore

PROCESS = "USING INDEX sqlite_autoindex_xdb_sys_process_execution_1 (process_execution_id=?)"
IDENTITY = "USING INDEX xdb_sys_async_state_execution_identity (process_execution_id=? AND state_id=?"
OPEN = "USING INDEX xdb_sys_async_state_execution_open (process_execution_id=? AND status=?)"
DUE = "USING INDEX xdb_sys_async_state_execution_due (shard_id=? AND "
TIMER = "USING PRIMARY KEY (process_execution_id=?"
TIMERS_DUE = "USING COVERING INDEX xdb_sys_timer_tasks_due (shard_id=? AND "
MESSAGE = "USING INDEX sqlite_autoindex_xdb_sys_internal_queue_1 (process_execution_id=?"
LOCAL = "USING INDEX sqlite_autoindex_xdb_sys_local_attribute_1 (process_execution_id=?"
LISTING = "USING INDEX xdb_sys_process_execution_listing (namespace=?"
SORT = "USE TEMP B-TREE FOR ORDER BY"

IN_NAMESPACE = "p.namespace = ?"
PLANS: list[tuple[str, str, list[str]]] = [
    (
        "find current",
        sql.FIND_CURRENT,
        ["USING INDEX xdb_sys_process_execution_current (namespace=? AND process_id=? AND is_current=?)"],
    ),
    ("find executions", sql.FIND_EXECUTIONS[64], [PROCESS]),
    ("find execution of process id", sql.FIND_EXECUTION_OF_PROCESS_ID, [PROCESS]),
    ("change process", sql.CHANGE_PROCESS, [PROCESS]),
    ("retire process", sql.RETIRE_PROCESS, [PROCESS]),
    ("find open states", sql.FIND_OPEN_STATES[64], [OPEN, SORT]),
    (
        "find states",
        sql.FIND_STATES,
        [
            "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
            "LIST SUBQUERY",
            "COMPOUND QUERY",
            "LEFT-MOST SUBQUERY",
            "CO-ROUTINE",
            "USING COVERING INDEX xdb_sys_async_state_execution_identity (process_execution_id=?)",
            SORT,
            "SCAN (subquery",
            "UNION ALL",
            "USING COVERING INDEX xdb_sys_async_state_execution_open (process_execution_id=? AND status=?)",
        ],
    ),
    ("find state", sql.FIND_STATE, [IDENTITY]),
    ("find state by key", sql.FIND_STATE_BY_KEY, [IDENTITY]),
    ("change state", sql.CHANGE_STATE, [IDENTITY]),
    ("due calls", sql.DUE_CALLS, [f"{DUE}due_at_ms<?)", PROCESS]),
    ("due calls after", sql.DUE_CALLS_AFTER, [f"{DUE}(due_at_ms,process_execution_id,state_id,number)>", PROCESS]),
    ("due timers", sql.DUE_TIMERS, [f"{TIMERS_DUE}fire_at_ms<?)"]),
    ("due timers after", sql.DUE_TIMERS_AFTER, [f"{TIMERS_DUE}(fire_at_ms,process_execution_id,state_id,number"]),
    ("delete timer", sql.DELETE_TIMER, [TIMER]),
    ("delete timers of process", sql.DELETE_TIMERS_OF_PROCESS, [TIMER]),
    (
        "find messages",
        sql.FIND_MESSAGES,
        ["USING INDEX xdb_sys_internal_queue_unclaimed (process_execution_id=? AND queue_name=? AND claimed=?)"],
    ),
    (
        "count messages",
        sql.COUNT_MESSAGES,
        ["USING COVERING INDEX xdb_sys_internal_queue_unclaimed (process_execution_id=?"],
    ),
    (
        "knows message id",
        sql.KNOWS_MESSAGE_ID,
        ["USING COVERING INDEX xdb_sys_internal_queue_message_id (process_execution_id=? AND queue_name=? AND mess"],
    ),
    ("delete message", sql.DELETE_MESSAGE, [MESSAGE]),
    ("delete messages of process", sql.DELETE_MESSAGES_OF_PROCESS, [MESSAGE]),
    ("find local attribute", sql.FIND_LOCAL_ATTRIBUTE, [f"{LOCAL} AND name=?)"]),
    ("find local attributes", sql.FIND_LOCAL_ATTRIBUTES, [f"{LOCAL})"]),
    ("find local attributes from", sql.FIND_LOCAL_ATTRIBUTES_FROM, [f"{LOCAL} AND name>?)"]),
    ("list", sql.LIST_PROCESSES.format(conditions=IN_NAMESPACE), [LISTING]),
    (
        "list next page",
        sql.LIST_PROCESSES.format(
            conditions=f"{IN_NAMESPACE} AND (p.started_at_ms, p.process_execution_id) < (?, ?)"
        ),
        [f"{LISTING} AND (started_at_ms,process_execution_id)<(?,?))"],
    ),
    (
        "list of process id",
        sql.LIST_PROCESSES_OF_ID.format(conditions=f"{IN_NAMESPACE} AND p.process_id = ?"),
        ["USING INDEX xdb_sys_process_execution_current (namespace=? AND process_id=?)", SORT],
    ),
]  # fmt: skip


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    """Give a store in memory."""
    opened = SqliteStore.open(MEMORY)
    yield opened
    await opened.close()


@pytest.mark.parametrize(("statement", "steps"), [plan[1:] for plan in PLANS], ids=[plan[0] for plan in PLANS])
async def test_a_hot_statement_is_served_by_its_index(store: SqliteStore, statement: str, steps: list[str]) -> None:
    rows = await store.run_sql(f"EXPLAIN QUERY PLAN {statement}", ["1"] * statement.count("?"))

    plan = [row[3] for row in rows]
    assert len(plan) == len(steps), plan
    for step, expected in zip(plan, steps, strict=True):
        assert expected in step


async def test_every_statement_over_a_system_table_is_pinned(store: SqliteStore) -> None:
    pinned = {statement for _, statement, _ in PLANS}
    texts = {name: value for name, value in vars(sql).items() if name.isupper() and not name.startswith("_")}
    by_key = {"WRITE_LOCAL_ATTRIBUTE", "REMEMBER_MESSAGE_ID", "SET_TIMER"}  # upserts, which SQLite explains as nothing
    unpinned = {
        name
        for name, text in texts.items()
        if isinstance(text, str) and not name.startswith("INSERT_") and "{conditions}" not in text
        if text not in pinned
    }

    assert unpinned == by_key
