"""Each hot statement of the SQLite store uses the index that its comment names, so that no history makes it slower."""

from collections.abc import AsyncIterator

import pytest

from server_stub.storage import sqlite_statements as sql
from server_stub.storage.sqlite import MEMORY, SqliteStore
from xdb_sdk.protocol import ListRequest, ProcessStatus

PROCESS = "USING INDEX sqlite_autoindex_xdb_sys_process_execution_1 (process_execution_id=?)"
IDENTITY = "USING INDEX xdb_sys_async_state_execution_identity (process_execution_id=? AND state_id=?"
OPEN = "USING INDEX xdb_sys_async_state_execution_open (process_execution_id=? AND status=?)"
DUE = "USING INDEX xdb_sys_async_state_execution_due (shard_id=? AND "
UNCLAIMED = "USING INDEX xdb_sys_async_state_execution_unclaimed (shard_id=? AND claim_range=? AND due_at_ms<?)"
TIMER = "USING PRIMARY KEY (process_execution_id=?"
TIMERS_DUE = "USING COVERING INDEX xdb_sys_timer_tasks_due (shard_id=? AND "
MESSAGE = "USING INDEX sqlite_autoindex_xdb_sys_internal_queue_1 (process_execution_id=?"
LOCAL = "USING INDEX sqlite_autoindex_xdb_sys_local_attribute_1 (process_execution_id=?"
REQUEST = "USING PRIMARY KEY (namespace=? AND process_id=? AND request_type=? AND request_id=?)"
BY_STATUS = "USING INDEX xdb_sys_process_execution_by_status (namespace=? AND status=?"
BY_TYPE = "USING INDEX xdb_sys_process_execution_by_type (namespace=? AND process_type=? AND status=?"
OF_ID = "USING INDEX xdb_sys_process_execution_current (namespace=? AND process_id=?)"
SORT = "USE TEMP B-TREE FOR ORDER BY"

PLANS: list[tuple[str, str, list[str]]] = [
    (
        "find current",
        sql.FIND_CURRENT,
        ["USING INDEX xdb_sys_process_execution_current (namespace=? AND process_id=? AND is_current=?)"],
    ),
    ("find executions", sql.FIND_EXECUTIONS[64], [PROCESS]),
    ("change process", sql.CHANGE_PROCESS, [PROCESS]),
    ("end process", sql.END_PROCESS, [PROCESS]),
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
    ("find request", sql.FIND_REQUEST, [REQUEST]),
    ("delete request", sql.DELETE_REQUEST, [REQUEST]),
    (
        "delete expired requests",
        sql.DELETE_EXPIRED_REQUESTS,
        [REQUEST, "LIST SUBQUERY", "USING COVERING INDEX xdb_sys_request_expired (expires_at_ms<?)"],
    ),
    ("find history", sql.FIND_HISTORY, ["USING PRIMARY KEY (process_execution_id=? AND event_id>?)"]),
    ("find state", sql.FIND_STATE, [IDENTITY]),
    ("find due key", sql.FIND_DUE_KEY, [IDENTITY]),
    ("find state by key", sql.FIND_STATE_BY_KEY, [IDENTITY]),
    ("change state", sql.CHANGE_STATE, [IDENTITY]),
    ("due calls", sql.DUE_CALLS, [f"{DUE}due_at_ms<?)", PROCESS]),
    ("due calls after", sql.DUE_CALLS_AFTER, [f"{DUE}(due_at_ms,process_execution_id,state_id,number)>", PROCESS]),
    ("unclaimed calls", sql.UNCLAIMED_CALLS, [UNCLAIMED, PROCESS]),
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


SECOND_PAGE = (1_000, "e-1")
LISTS: list[tuple[str, ListRequest, tuple[int, str] | None, list[str]]] = [
    ("all", ListRequest(), None, [f"{BY_STATUS})"]),
    ("next page", ListRequest(), SECOND_PAGE, [f"{BY_STATUS} AND (started_at_ms,process_execution_id)<(?,?))"]),
    ("by status", ListRequest(statuses=(ProcessStatus.RUNNING,)), None, [f"{BY_STATUS})"]),
    ("by start", ListRequest(started_from_ms=1, started_before_ms=2), None, [f"{BY_STATUS} AND started_at_ms>? AND"]),
    ("by type", ListRequest(process_type="T"), None, [f"{BY_TYPE})"]),
    (
        "next page by type",
        ListRequest(process_type="T", statuses=(ProcessStatus.FAILED,)),
        SECOND_PAGE,
        [f"{BY_TYPE} AND (started_at_ms,process_execution_id)<(?,?))"],
    ),
    ("by process id", ListRequest(process_id="p"), None, [OF_ID, SORT]),
    (
        "by all three",
        ListRequest(process_id="p", process_type="T", statuses=(ProcessStatus.RUNNING,)),
        SECOND_PAGE,
        [OF_ID, SORT],
    ),
]


@pytest.mark.parametrize(("request_", "after", "steps"), [each[1:] for each in LISTS], ids=[each[0] for each in LISTS])
async def test_a_list_walks_through_an_index_in_its_order(
    store: SqliteStore, request_: ListRequest, after: tuple[int, str] | None, steps: list[str]
) -> None:
    statement, values = sql.list_statement(request_, after)

    rows = await store.run_sql(f"EXPLAIN QUERY PLAN {statement}", [*values, "RUNNING"])

    plan = [row[3] for row in rows]
    assert len(plan) == len(steps), plan
    for step, expected in zip(plan, steps, strict=True):
        assert expected in step


async def test_every_statement_over_a_system_table_is_pinned(store: SqliteStore) -> None:
    pinned = {statement for _, statement, _ in PLANS}
    texts = {name: value for name, value in vars(sql).items() if name.isupper() and not name.startswith("_")}
    # Upserts, which SQLite explains as nothing.
    by_key = {"WRITE_LOCAL_ATTRIBUTE", "REMEMBER_MESSAGE_ID", "SET_TIMER", "REPLICATE_REQUEST"}
    unpinned = {
        name
        for name, text in texts.items()
        if isinstance(text, str) and not name.startswith("INSERT_") and text not in pinned
    }

    assert unpinned == by_key
