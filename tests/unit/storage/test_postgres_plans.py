"""Every hot statement of the PostgreSQL store is served by its index, also among a million rows of history.

The planner chooses by what it knows of the tables, so they are filled first: a few open executions among many that have
closed, as after a year of work. Plans are kept while tables grow, so they must also be right where PostgreSQL knew of
no rows.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

import asyncpg
import pytest
from sqlalchemy import BigInteger, Integer, SmallInteger

from server_stub.storage import postgres_statements as sql
from server_stub.storage.postgres import PostgresStore
from server_stub.storage.server_store import ServerStoreOptions
from server_stub.storage.system_tables import metadata
from tests.services import shared
from xdb_sdk.protocol import ListRequest, ProcessStatus

CLOSED, OPEN = 40_000, 400

FILL = f"""
    INSERT INTO xdb_sys_process_execution (process_execution_id, namespace, process_id, process_type, started_at_ms,
        shard_id, is_current, worker_url, status, graceful_complete_requested, next_sequence_id, next_wait_order,
        version)
    SELECT 'e-' || n, 'default', 'p-' || n % {CLOSED // 2}, 'T' || n % 5, n, n % 16,
        CASE WHEN n >= {CLOSED // 2} THEN 1 END, 'http://w', CASE WHEN n < {CLOSED} THEN 'COMPLETED' ELSE 'RUNNING' END,
        0, 1, 1, 1
    FROM generate_series(0, {CLOSED - 1}) n;
    INSERT INTO xdb_sys_process_execution (process_execution_id, namespace, process_id, process_type, started_at_ms,
        shard_id, is_current, worker_url, status, graceful_complete_requested, next_sequence_id, next_wait_order,
        version)
    SELECT 'o-' || n, 'default', 'q-' || n, 'T1', {CLOSED} + n, n % 16, 1, 'http://w', 'RUNNING', 0, 1, 1, 1
    FROM generate_series(1, {OPEN}) n;
    INSERT INTO xdb_sys_async_state_execution (process_execution_id, state_id, number, created_at_ms, input, options,
        shard_id, status, wait_until_status, execute_status, attempt, due_at_ms, version, claim_range)
    SELECT process_execution_id, 'S', k, 0, 'null', '{{}}', shard_id, CASE status WHEN 'RUNNING' THEN 'RUNNING'
        ELSE 'COMPLETED' END, 'SKIPPED', 'RUNNING', 1, CASE status WHEN 'RUNNING' THEN started_at_ms END, 1, k % 2
    FROM xdb_sys_process_execution CROSS JOIN generate_series(1, 3) k;
    INSERT INTO xdb_sys_timer_tasks (process_execution_id, state_id, number, command_index, shard_id, fire_at_ms)
    SELECT 'o-' || n, 'S', n, 0, n % 16, n FROM generate_series(1, 20000) n;
    INSERT INTO xdb_sys_internal_queue (process_execution_id, sequence_id, queue_name, message_id, claimed, payload)
    SELECT 'o-' || n % 10000, n, 'q1', 'm-' || n, n % 2, 'null' FROM generate_series(1, 80000) n;
    INSERT INTO xdb_sys_local_attribute (process_execution_id, name, value)
    SELECT process_execution_id, 'a' || k, '1' FROM xdb_sys_process_execution CROSS JOIN generate_series(1, 2) k;
    INSERT INTO xdb_sys_request (namespace, process_id, request_type, request_id, shard_id, process_execution_id,
        fingerprint, created_at_ms, expires_at_ms, version)
    SELECT namespace, process_id, k, process_execution_id, shard_id, process_execution_id, '', 0, started_at_ms, 0
    FROM xdb_sys_process_execution CROSS JOIN generate_series(1, 2) k;
    INSERT INTO xdb_sys_history (process_execution_id, event_id, at_ms, event_type)
    SELECT process_execution_id, k, 0, 'PUBLISHED' FROM xdb_sys_process_execution CROSS JOIN generate_series(1, 4) k;
    VACUUM ANALYZE"""

CURRENT = "xdb_sys_process_execution_current"
PROCESS = "xdb_sys_process_execution_pkey"
IDENTITY = "xdb_sys_async_state_execution_identity"
OPEN_STATES = "xdb_sys_async_state_execution_open"
DUE = "xdb_sys_async_state_execution_due"
UNCLAIMED = "xdb_sys_async_state_execution_unclaimed"
ROW_ID = "xdb_sys_async_state_execution_pkey"
TIMER = "xdb_sys_timer_tasks_pkey"
TIMERS_DUE = "xdb_sys_timer_tasks_due"
MESSAGE = "xdb_sys_internal_queue_pkey"
MESSAGE_ID = "xdb_sys_internal_queue_message_id"
MESSAGES = "xdb_sys_internal_queue_unclaimed"
LOCAL = "xdb_sys_local_attribute_pkey"
REQUEST = "xdb_sys_request_pkey"
HISTORY = "xdb_sys_history_pkey"
EXPIRED = "xdb_sys_request_expired"
BY_STATUS = "xdb_sys_process_execution_by_status"
BY_TYPE = "xdb_sys_process_execution_by_type"

IDS = [f"o-{n}" for n in range(1, 51)]
ALL_SHARDS = list(range(16))
QUERIES: dict[str, tuple[Sequence[Any], set[str]]] = {
    "LOCK_EXECUTIONS": ([IDS], {PROCESS}),
    "LOCK_EXECUTIONS_AND_CURRENT": ([IDS, ["default"] * 50, [f"q-{n}" for n in range(50)]], {PROCESS, CURRENT}),
    "READ_EXECUTIONS": ([IDS], {PROCESS, OPEN_STATES}),
    "READ_EXECUTIONS_AND_CURRENT": (
        [IDS, ["default"] * 50, [f"q-{n}" for n in range(50)]],
        {PROCESS, CURRENT, OPEN_STATES},
    ),
    "READ_EXECUTIONS_CURRENT_AND_REQUESTS": (
        [IDS, ["default"] * 50, [f"q-{n}" for n in range(50)], ["default"] * 50, IDS, [1] * 50, IDS],
        {PROCESS, CURRENT, OPEN_STATES, REQUEST},
    ),
    "FIND_OPEN_STATES": ([IDS], {OPEN_STATES}),
    "FIND_REQUESTS": ([["default"] * 50, [f"q-{n}" for n in range(50)], [1] * 50, IDS], {REQUEST}),
    "DELETE_EXPIRED_REQUESTS": ([10, 1_000], {EXPIRED}),
    "FIND_MESSAGES": ([IDS, ["q1"] * 50, [1] * 50], {MESSAGES}),
    "FIND_MESSAGE_IDS": ([IDS, ["q1"] * 50, ["m-1"] * 50], {MESSAGE_ID}),
    "FIND_LOCAL_ATTRIBUTES": ([IDS, IDS, ["a1"] * 50, IDS, ["a"] * 50], {LOCAL}),
    "DUE_CALLS": ([ALL_SHARDS, 10**9, 100], {DUE, PROCESS}),
    "DUE_CALLS_AFTER": ([ALL_SHARDS, 10**9, 100, 40_010, "o-10", "S", 1], {DUE, PROCESS}),
    "UNCLAIMED_CALLS": ([ALL_SHARDS, 10**9, 100], {UNCLAIMED, PROCESS}),
    "DUE_TIMERS": ([ALL_SHARDS, 10**9, 100], {TIMERS_DUE}),
    "DUE_TIMERS_AFTER": ([ALL_SHARDS, 10**9, 100, 50, "o-50", "S", 50, 0], {TIMERS_DUE}),
    "FIND_CURRENT": ([["default"] * 50, [f"q-{n}" for n in range(50)]], {CURRENT}),
    "FIND_EXECUTIONS": ([IDS], {PROCESS}),
    "FIND_EXECUTIONS_AND_CURRENT": ([IDS, ["default"] * 50, [f"q-{n}" for n in range(50)]], {PROCESS, CURRENT}),
    "FIND_CLOSED": ([IDS], {PROCESS}),
    "FIND_STATES": (["o-1", 100], {IDENTITY, OPEN_STATES, ROW_ID}),
    "FIND_STATE": (["o-1", "S", 1], {IDENTITY}),
    "FIND_DUE_KEYS": ([IDS, ["S"] * 50, [1] * 50], {IDENTITY}),
    "FIND_STATE_BY_KEY": (["o-1", "S", "k"], {IDENTITY}),
    "FIND_HISTORY": (["o-1", 3, 100], {HISTORY}),
    "COUNT_MESSAGES": (["o-1"], {MESSAGES}),
}
WRITES = {
    "change_processes": {PROCESS},
    "end_processes": {PROCESS},
    "delete_requests": {REQUEST},
    "change_states": {IDENTITY},
    "delete_messages": {MESSAGE},
    "delete_messages_of_processes": {MESSAGE},
    "delete_timers": {TIMER},
    "delete_timers_of_processes": {TIMER},
}


@pytest.fixture(scope="module")
def filled_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URL of a database with much history."""
    with ExitStack() as opened:
        server_url = request.getfixturevalue("postgresql_server_url")
        yield opened.enter_context(shared.database("postgresql", server_url))


@pytest.fixture
async def connection(filled_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """Give a connection as the store uses it."""
    store = await PostgresStore.open(filled_url, ServerStoreOptions())
    opened = await store.connect()
    if not await opened.fetchval("SELECT 1 FROM xdb_sys_process_execution LIMIT 1"):
        for statement in FILL.split(";"):
            await opened.execute(statement)
    yield opened
    await opened.close()
    await store.close()


@pytest.fixture
async def new_connection(postgresql_server_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """Give a connection as the store uses it, to tables of which PostgreSQL knows that they are empty."""
    with shared.database("postgresql", postgresql_server_url) as url:
        store = await PostgresStore.open(url, ServerStoreOptions())
        opened = await store.connect()
        await opened.execute("VACUUM ANALYZE")
        yield opened
        await opened.close()
        await store.close()


def nodes_of(plan: str) -> Iterator[dict[str, Any]]:
    """Give all nodes of a plan in JSON."""
    nodes = [json.loads(plan)[0]["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        yield node


async def plan_of(connection: "asyncpg.Connection[Any]", statement: str, values: Sequence[Any]) -> tuple[set[str], str]:
    """Give the indexes that serve a statement, and its plan as text. A scan of a whole table is called so."""
    text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *values)
    found: set[str] = set()
    for node in nodes_of(text):
        if "Index Name" in node:
            found.add(node["Index Name"])
        if node["Node Type"] == "Seq Scan":
            found.add(f"all of {node['Relation Name']}")
    return found, text


@pytest.mark.parametrize("name", list(QUERIES))
async def test_a_hot_query_is_served_by_its_index(connection: "asyncpg.Connection[Any]", name: str) -> None:
    values, expected = QUERIES[name]

    indexes, plan = await plan_of(connection, getattr(sql, name), values)

    assert indexes == expected, plan


async def test_no_hot_query_reads_all_of_what_was_empty_when_it_was_planned(
    new_connection: "asyncpg.Connection[Any]",
) -> None:
    plans = {name: (await plan_of(new_connection, getattr(sql, name), QUERIES[name][0]))[1] for name in QUERIES}

    whole = {
        (name, node.get("Index Name", node["Relation Name"]))
        for name, plan in plans.items()
        for node in nodes_of(plan)
        if node["Node Type"] == "Seq Scan" or ("Index Name" in node and "Index Cond" not in node)
    }
    assert whole == set()


def values_for(part: sql.Part, count: int) -> list[list[Any]]:
    """Give rows to write, as the arrays that are bound."""
    return [[f"o-{n}" if array_type == "text[]" else n for n in range(count)] for array_type in part.array_types]


@pytest.mark.parametrize("name", list(WRITES))
async def test_a_hot_write_finds_its_rows_by_an_index(connection: "asyncpg.Connection[Any]", name: str) -> None:
    part: sql.Part = getattr(sql.WRITES, name)

    indexes, plan = await plan_of(connection, part.text(1), values_for(part, 50))

    assert indexes == WRITES[name], plan


async def test_the_guard_of_a_write_finds_its_rows_by_an_index(connection: "asyncpg.Connection[Any]") -> None:
    indexes, plan = await plan_of(connection, f"WITH {sql.GUARD} {sql.GUARDED}", [IDS, [1] * len(IDS)])

    assert indexes == {PROCESS}, plan


def test_every_statement_over_large_tables_is_pinned() -> None:
    of_codec = {
        "ARRAY_TYPES",
        "HISTORY_COLUMNS",
        "MESSAGE_COLUMNS",
        "PROCESS_CHANGING",
        "PROCESS_COLUMNS",
        "REQUEST_COLUMNS",
        "REQUEST_KEY",
        "CALL_KEY_COLUMNS",
        "STATE_CHANGING",
        "STATE_COLUMNS",
    }
    names = {name for name in vars(sql) if name.isupper() and not name.startswith("_")} - of_codec
    few_rows = {"GUARD", "GUARDED", "BEAT", "ACQUIRE", "RELEASE", "END_HANDOVER", "LEAVE"}
    by_key = {"REPLICATE_REQUESTS"}  # upserts, by the key that they name, or not at all
    upserts = {"write_local_attributes", "remember_message_ids", "set_timers"}
    writes = {field.name for field in fields(sql.WRITES) if not field.name.startswith("insert_")}

    assert names - {"WRITES"} - QUERIES.keys() == few_rows | by_key
    assert writes - WRITES.keys() == upserts


def test_arrays_have_the_types_of_their_columns() -> None:
    by_type: dict[type, str] = {BigInteger: "bigint[]", SmallInteger: "smallint[]", Integer: "integer[]"}

    wrong = {
        column.name: (expected, sql.array_type(column.name))
        for table in metadata.tables.values()
        for column in table.columns
        if column.name != "row_id"  # which no statement binds
        and table.name not in ("xdb_sys_shard", "xdb_sys_member")  # few rows, bound one by one
        and (expected := by_type.get(type(column.type), "text[]")) != sql.array_type(column.name)
    }

    assert wrong == {}


LISTS: dict[str, tuple[ListRequest, tuple[int, str] | None, set[str]]] = {
    "all": (ListRequest(), None, {BY_STATUS}),
    "next page": (ListRequest(), (1_000, "e-1"), {BY_STATUS}),
    "by status": (ListRequest(statuses=(ProcessStatus.RUNNING,)), None, {BY_STATUS}),
    "by start": (ListRequest(started_from_ms=1, started_before_ms=2), None, {BY_STATUS}),
    "by type": (ListRequest(process_type="T1"), None, {BY_TYPE}),
    "by process id": (ListRequest(process_id="p-1"), None, {CURRENT}),
}


@pytest.mark.parametrize("name", list(LISTS))
async def test_a_list_walks_through_an_index(connection: "asyncpg.Connection[Any]", name: str) -> None:
    request, after, expected = LISTS[name]
    statement, values = sql.list_statement(request, after)

    indexes, plan = await plan_of(connection, statement, values)

    assert indexes == expected, plan
