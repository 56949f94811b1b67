"""Every hot statement of the MySQL and MariaDB store is served by its index, also among a history of many rows.

The optimiser chooses by what it knows of the tables, so they are filled first: a few open executions among many that
have closed. The server under test is MariaDB; the texts are those for MySQL.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import fields
from typing import Any

import pytest

from server_stub.storage import mysql_statements as sql
from server_stub.storage.mysql import MysqlStore
from server_stub.storage.mysql_connection import MysqlConnection
from server_stub.storage.server_store import ServerStoreOptions
from server_stub.storage.system_tables import metadata
from tests.services import shared
from xdb_sdk.protocol import ListRequest, ProcessStatus

CLOSED = 9_000
_DIGITS = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
_NUMBERS = "SELECT a.n + 10 * b.n + 100 * c.n + 1000 * e.n AS n FROM d a, d b, d c, d e"
FILL = f"""
    INSERT INTO xdb_sys_process_execution (process_execution_id, namespace, process_id, process_type, started_at_ms,
        shard_id, is_current, worker_url, status, graceful_complete_requested, next_sequence_id, next_wait_order,
        version)
    WITH d AS ({_DIGITS}), numbers AS ({_NUMBERS})
    SELECT CONCAT('e-', n), 'default', CONCAT('p-', n), CONCAT('T', n % 5), n, n % 16, 1, 'http://w',
        IF(n < {CLOSED}, 'COMPLETED', 'RUNNING'), 0, 1, 1, 1
    FROM numbers;
    INSERT INTO xdb_sys_async_state_execution (process_execution_id, state_id, number, created_at_ms, input, options,
        shard_id, status, wait_until_status, execute_status, attempt, due_at_ms, version, claim_range)
    WITH d AS ({_DIGITS})
    SELECT process_execution_id, 'S', d.n, 0, 'null', '{{}}', shard_id, status, 'SKIPPED', 'RUNNING', 1,
        IF(status = 'RUNNING', started_at_ms, NULL), 1, d.n % 2
    FROM xdb_sys_process_execution, d WHERE d.n < 3;
    INSERT INTO xdb_sys_timer_tasks (process_execution_id, state_id, number, command_index, shard_id, fire_at_ms)
    SELECT process_execution_id, 'S', 1, 0, shard_id, started_at_ms FROM xdb_sys_process_execution;
    INSERT INTO xdb_sys_internal_queue (process_execution_id, sequence_id, queue_name, message_id, claimed, payload)
    WITH d AS ({_DIGITS})
    SELECT process_execution_id, d.n, 'q', CONCAT('m-', d.n), d.n % 2, 'null' FROM xdb_sys_process_execution, d;
    INSERT INTO xdb_sys_local_attribute (process_execution_id, name, value)
    WITH d AS ({_DIGITS})
    SELECT process_execution_id, CONCAT('a', d.n), '1' FROM xdb_sys_process_execution, d WHERE d.n < 3;
    INSERT INTO xdb_sys_request (namespace, process_id, request_type, request_id, shard_id, process_execution_id,
        fingerprint, created_at_ms, expires_at_ms, version)
    SELECT namespace, process_id, 1, process_execution_id, shard_id, process_execution_id, '', 0, started_at_ms, 0
    FROM xdb_sys_process_execution;
    INSERT INTO xdb_sys_history (process_execution_id, event_id, at_ms, event_type)
    WITH d AS ({_DIGITS})
    SELECT process_execution_id, d.n + 1, 0, 'PUBLISHED' FROM xdb_sys_process_execution, d"""
ANALYZE = f"ANALYZE TABLE {', '.join(metadata.tables)}"


def used(alias: str, index: str, *columns: str) -> str:
    return f"{alias}: {index} ({', '.join(columns)})"


PROCESS = used("p", "PRIMARY", "process_execution_id")
CURRENT = used("p", "xdb_sys_process_execution_current", "namespace", "process_id", "is_current")
OF_PROCESS_ID = used("p", "xdb_sys_process_execution_current", "namespace", "process_id")
BY_STATUS = used("p", "xdb_sys_process_execution_by_status", "namespace", "status")
BY_TYPE = used("p", "xdb_sys_process_execution_by_type", "namespace", "process_type", "status")
STATE = used("s", "PRIMARY", "row_id")
IDENTITY = used("s", "xdb_sys_async_state_execution_identity", "process_execution_id", "state_id", "number")
SAME_STATE = used("s", "xdb_sys_async_state_execution_identity", "process_execution_id", "state_id")
OPEN = used("s", "xdb_sys_async_state_execution_open", "process_execution_id", "status")
DUE = used("s", "xdb_sys_async_state_execution_due", "shard_id", "due_at_ms")
UNCLAIMED = used("s", "xdb_sys_async_state_execution_unclaimed", "shard_id", "claim_range", "due_at_ms")
TIMERS_DUE = used("t", "xdb_sys_timer_tasks_due", "shard_id", "fire_at_ms")
MESSAGE_ID = used("q", "xdb_sys_internal_queue_message_id", "process_execution_id", "queue_name", "message_id")
MESSAGES = used("q", "xdb_sys_internal_queue_unclaimed", "process_execution_id", "queue_name", "claimed")
QUEUES = used("q", "xdb_sys_internal_queue_unclaimed", "process_execution_id")
ATTRIBUTES = used("a", "PRIMARY", "process_execution_id")
ATTRIBUTE = used("a", "PRIMARY", "process_execution_id", "name")
REQUEST = used("r", "PRIMARY", "namespace", "process_id", "request_type", "request_id")
EXPIRED = used("r", "xdb_sys_request_expired", "expires_at_ms")
SORTED = " sorted"
"""What is found is sorted afterwards: it has to be little."""

IDS = tuple(f"e-{n}" for n in range(CLOSED, CLOSED + 50))
SHARDS = list(range(16))
LATE_MS = 10**9
QUERIES: list[tuple[str, tuple[str, Sequence[Any]], list[str]]] = [
    ("current ids", (sql.FIND_CURRENT_IDS, [tuple(("default", f"p-{n}", 1) for n in range(50))]), [CURRENT]),
    ("executions", (sql.LOCK_EXECUTIONS, [IDS]), [PROCESS]),
    ("execution", (sql.LOCK_EXECUTIONS, [IDS[:1]]), [PROCESS]),
    ("open states", (sql.FIND_OPEN_STATES, [IDS]), [OPEN + SORTED]),
    ("messages", (sql.FIND_MESSAGES.statement, ["e-1", "q", 10]), [MESSAGES]),
    ("requests", (sql.FIND_REQUESTS, [tuple(("default", f"p-{n}", 1, f"e-{n}") for n in range(50))]), [REQUEST]),
    ("expired requests", (sql.FIND_EXPIRED_REQUESTS, [10, 1_000]), [EXPIRED]),
    ("message ids", (sql.FIND_MESSAGE_IDS, [tuple((id_, "q", "m-1") for id_ in IDS)]), [MESSAGE_ID]),
    ("all attributes", (sql.FIND_ALL_LOCAL_ATTRIBUTES, [IDS]), [ATTRIBUTES]),
    ("attributes", (sql.FIND_LOCAL_ATTRIBUTES, [tuple((id_, "a1") for id_ in IDS)]), [ATTRIBUTE]),
    ("attributes like", (sql.FIND_LOCAL_ATTRIBUTES_LIKE.statement, ["e-1", "a%"]), [ATTRIBUTE]),
    ("due calls", sql.due_calls(SHARDS, LATE_MS, 100, None), [DUE, STATE, PROCESS]),
    ("due calls after", sql.due_calls(SHARDS, LATE_MS, 100, (9_010, "e-9010", "S", 1)), [DUE, STATE, PROCESS]),
    ("due calls of a shard", sql.due_calls([3], LATE_MS, 100, None), [DUE, STATE, PROCESS]),
    ("unclaimed calls", (sql.UNCLAIMED_CALLS, [tuple(SHARDS), LATE_MS, 100]), [UNCLAIMED, STATE, PROCESS]),
    ("due timers", sql.due_timers(SHARDS, LATE_MS, 100, None), [TIMERS_DUE]),
    ("due timers after", sql.due_timers(SHARDS, LATE_MS, 100, (50, "e-50", "S", 1, 0)), [TIMERS_DUE]),
    ("current execution", (sql.FIND_CURRENT, [(("default", "p-1", 1), ("default", "p-2", 1))]), [CURRENT]),
    ("execution of process id", (sql.FIND_EXECUTIONS, [("e-1", "e-2")]), [PROCESS]),
    ("closed executions", (sql.FIND_CLOSED, [IDS]), [PROCESS]),
    (
        "states",
        (sql.FIND_STATES, ["e-1", 10, "e-1"]),
        [
            used("l", "xdb_sys_async_state_execution_open", "process_execution_id") + SORTED,
            used("o", "xdb_sys_async_state_execution_open", "process_execution_id", "status"),
            STATE,
        ],
    ),
    ("history", (sql.FIND_HISTORY, ["e-1", 3, 100]), [used("h", "PRIMARY", "process_execution_id", "event_id")]),
    ("state", (sql.FIND_STATE, ["e-1", "S", 1]), [IDENTITY]),
    ("due keys", (sql.FIND_DUE_KEYS, [tuple((id_, "S", 1) for id_ in IDS)]), [IDENTITY]),
    ("state by key", (sql.FIND_STATE_BY_KEY, ["e-1", "S", "k"]), [SAME_STATE]),
    ("count of messages", (sql.COUNT_MESSAGES, ["e-1"]), [QUEUES]),
]  # fmt: skip

STARTS_BY_STATUS = f"{BY_STATUS[:-1]}, started_at_ms)"
LAST_SEEN = (500, "e-500")
DONE = (ProcessStatus.COMPLETED,)
STARTS_OF_TYPE = used("p", "xdb_sys_process_execution_by_type", "namespace", "process_type", "status", "started_at_ms")
LISTS: list[tuple[str, ListRequest, tuple[int, str] | None, list[str]]] = [
    ("all", ListRequest(), None, [BY_STATUS, PROCESS]),
    ("next page", ListRequest(), LAST_SEEN, [STARTS_BY_STATUS, PROCESS]),
    ("by status", ListRequest(statuses=DONE), None, [BY_STATUS, PROCESS]),
    ("by type", ListRequest(process_type="T1"), None, [BY_TYPE, STARTS_OF_TYPE, PROCESS]),
    ("next page by type", ListRequest(process_type="T1", statuses=DONE), LAST_SEEN, [STARTS_OF_TYPE, PROCESS]),
    ("by process id", ListRequest(process_id="p-1"), None, [OF_PROCESS_ID + SORTED]),
    (
        "by all three",
        ListRequest(process_id="p-1", process_type="T1", statuses=DONE),
        LAST_SEEN,
        [OF_PROCESS_ID + SORTED],
    ),
]  # fmt: skip

KEYS: dict[str, tuple[str, str, list[Any]]] = {
    "end_processes": ("xdb_sys_process_execution", "PRIMARY", ["e-1"]),
    "change_processes": ("xdb_sys_process_execution", "PRIMARY", ["e-1"]),
    "delete_requests": ("t", "PRIMARY", ["default", "p-1", 1, "e-1", 1]),
    "change_states": ("xdb_sys_async_state_execution", "xdb_sys_async_state_execution_identity", ["e-1", "S", 1]),
    "delete_messages": ("t", "PRIMARY", ["e-1", 1]),
    "delete_timers": ("t", "PRIMARY", ["e-1", "S", 1, 0]),
    "delete_messages_of_processes": ("t", "PRIMARY", ["e-1"]),
    "delete_timers_of_processes": ("t", "PRIMARY", ["e-1"]),
}


@pytest.fixture(scope="module")
def filled_url(mariadb_server_url: str) -> Iterator[str]:
    """Give the URL of a database with much history."""
    with shared.database("mariadb", mariadb_server_url) as url:
        yield url


@pytest.fixture
async def connection(filled_url: str) -> AsyncIterator[MysqlConnection]:
    """Give a connection as the store uses it."""
    store = await MysqlStore.open(filled_url, ServerStoreOptions())
    opened = await store.connect()
    if not await opened.fetch("SELECT 1 FROM xdb_sys_process_execution LIMIT 1"):
        await opened.execute(FILL)
        await opened.fetch(ANALYZE)
    yield opened
    await opened.close()
    await store.close()


async def plan_of(connection: MysqlConnection, statement: str, values: Sequence[Any]) -> list[str]:
    """Give how each table is read, one that is read twice in the same way once. A whole table has no index."""
    [(text,)] = await connection.fetch(f"EXPLAIN FORMAT=JSON {statement}", values)
    found: dict[str, None] = {}

    def visit(node: Any, name: str, is_sorted: bool) -> None:
        if isinstance(node, list):
            for each in node:
                visit(each, name, is_sorted)
        elif isinstance(node, dict):
            if name == "table" and not node["table_name"].startswith("<"):
                index = used(node["table_name"], str(node.get("key")), *node.get("used_key_parts", []))
                found[index + (SORTED if is_sorted else "")] = None
            for key, each in node.items():
                visit(each, key, name == "filesort" and key == "table")

    visit(json.loads(text), "", is_sorted=False)
    return list(found)


@pytest.mark.parametrize(("query", "expected"), [each[1:] for each in QUERIES], ids=[each[0] for each in QUERIES])
async def test_a_hot_query_is_served_by_its_indexes(
    connection: MysqlConnection, query: tuple[str, Sequence[Any]], expected: list[str]
) -> None:
    assert await plan_of(connection, *query) == expected


@pytest.mark.parametrize(
    ("request_", "after", "expected"), [each[1:] for each in LISTS], ids=[each[0] for each in LISTS]
)
async def test_a_list_walks_through_an_index_in_its_order(
    connection: MysqlConnection, request_: ListRequest, after: tuple[int, str] | None, expected: list[str]
) -> None:
    assert await plan_of(connection, *sql.list_statement(request_, after)) == expected


@pytest.mark.parametrize("name", list(KEYS))
async def test_a_row_is_written_by_its_key(connection: MysqlConnection, name: str) -> None:
    alias, index, key = KEYS[name]
    statement = getattr(sql.WRITES, name).statement

    [found] = await plan_of(connection, statement, [1] * (statement.count("%s") - len(key)) + key)

    first_column = "namespace" if name == "delete_requests" else "process_execution_id"
    assert found.startswith(f"{alias}: {index} ({first_column}")


def test_every_write_that_looks_for_rows_is_pinned() -> None:
    parts = {field.name: getattr(sql.WRITES, field.name) for field in fields(sql.WRITES)}

    assert {name for name, part in parts.items() if isinstance(part, sql.ForEach)} == set(KEYS)


def test_every_query_over_large_tables_is_pinned() -> None:
    texts = {name: getattr(each, "statement", each) for name, each in vars(sql).items() if name.isupper()}
    pinned = {statement for _, (statement, _), _ in QUERIES}
    few_rows = {"HEARTBEAT", "RENEW", "VIEW", "REMOVE_GONE", "FIND_ACQUIRABLE", "ACQUIRE", "RELEASE", "END_HANDOVER"}

    unpinned = {
        name
        for name, text in texts.items()
        if not name.startswith("_") and isinstance(text, str) and text not in pinned
    }

    assert unpinned == few_rows | {"RELEASE_ALL", "LEAVE", "REPLICATE_REQUEST"}  # the last one by the key it names


READS: list[tuple[str, tuple[str, Sequence[Any]], int]] = [
    ("due calls", sql.due_calls(SHARDS, LATE_MS, 10, None), 10),
    ("due timers", sql.due_timers(SHARDS, LATE_MS, 10, None), 10),
    ("due timers after", sql.due_timers(SHARDS, LATE_MS, 10, (50, "e-50", "S", 1, 0)), 10),
    ("unclaimed calls", (sql.UNCLAIMED_CALLS, [tuple(SHARDS), LATE_MS, 10]), 10),
    ("list", sql.list_statement(ListRequest(page_size=9), None), 10),
    ("next page", sql.list_statement(ListRequest(page_size=9), LAST_SEEN), 10),
    ("by type", sql.list_statement(ListRequest(page_size=9, process_type="T1"), None), 10),
    ("next page by type", sql.list_statement(ListRequest(page_size=9, process_type="T1"), LAST_SEEN), 10),
]


@pytest.mark.parametrize(("query", "count"), [each[1:] for each in READS], ids=[each[0] for each in READS])
async def test_a_scan_with_a_limit_reads_no_more_rows_than_the_limit_of_each_walk(
    connection: MysqlConnection, query: tuple[str, Sequence[Any]], count: int
) -> None:
    walks = 2 * len(SHARDS)
    await connection.execute("FLUSH STATUS")

    rows = await connection.fetch(*query)

    status = dict(await connection.fetch("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    through_indexes = sum(int(status[f"Handler_read_{how}"]) for how in ("first", "key", "last", "next", "prev"))
    assert len(rows) == count
    assert through_indexes <= walks * (count + 2)
