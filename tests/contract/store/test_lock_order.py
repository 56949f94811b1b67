"""Transactions of two servers that meet at several rows of the user's tables wait for each other, and never both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from server_stub.core.changes import Changes
from server_stub.core.model import RowKey, RowRead, RowWrite, RowWriteMode
from server_stub.core.ports import Needs, Store
from tests.contract.store.column_types import key_type
from tests.contract.store.databases import SERVERS
from tests.contract.store.works import Deciding, row_key
from tests.support.databases import Databases

TIMES = 60

ORDER = row_key("orders", "a")
OTHER_ORDER = row_key("orders", "b")
LAST_ORDER = row_key("orders", "c")
STOCK = row_key("stock", "a")


@pytest.fixture(params=SERVERS)
async def servers(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[list[Store]]:
    """Give one database as two servers have it, with three rows in each of two tables of the user."""
    database = databases.empty(request.param, tmp_path)
    key = key_type(database.kind, "TEXT")
    for table in ("orders", "stock"):
        database.sql(f"CREATE TABLE {table} (id {key} PRIMARY KEY, n INTEGER, m INTEGER)")
        database.sql(f"INSERT INTO {table} VALUES ('a', 0, 0), ('b', 0, 0), ('c', 0, 0)")
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            stores.append(await database.open_store())
            stack.push_async_callback(stores[-1].close)
        yield stores


def written(*writes: RowWrite) -> Deciding:
    """Give a transaction that writes."""
    return Deciding(lambda _: Changes(row_writes=list(writes)))


def locked(*reads: RowRead) -> Deciding:
    """Give a transaction that reads rows which nobody else may change meanwhile."""
    return Deciding(lambda _: Changes(), needs=Needs(rows=list(reads)))


def locked_and_written(read: RowKey, row: RowKey) -> Deciding:
    """Give a transaction that reads one row, and then writes another."""
    needs = Needs(rows=[RowRead(read, ("n",))], written_rows=[row])
    return Deciding(lambda _: Changes(row_writes=[n(row)]), needs=needs)


def n(row: RowKey) -> RowWrite:
    """Write the one column of a row."""
    return RowWrite(row, {"n": 1})


def m(row: RowKey) -> RowWrite:
    """Write the other column of a row."""
    return RowWrite(row, {"m": 1})


MEETINGS = {
    "tables-in-another-order": (written(n(ORDER), n(STOCK)), written(n(STOCK), n(ORDER))),
    "other-columns-of-one-table": (written(n(ORDER), m(OTHER_ORDER)), written(n(OTHER_ORDER), m(ORDER))),
    "other-modes": (
        written(n(STOCK), RowWrite(ORDER, {"n": 1}, RowWriteMode.INSERT_IF_ABSENT), m(ORDER)),
        written(m(ORDER), n(STOCK)),
    ),
    "other-columns-read": (
        locked(RowRead(ORDER, ("n",)), RowRead(OTHER_ORDER, ("m",)), RowRead(LAST_ORDER, ("n",))),
        locked(RowRead(OTHER_ORDER, ("n",)), RowRead(LAST_ORDER, ("n",))),
    ),
    "one-read-and-another-written": (locked_and_written(ORDER, STOCK), locked_and_written(STOCK, ORDER)),
    "one-read-and-another-of-its-table-written": (
        locked_and_written(ORDER, OTHER_ORDER),
        locked_and_written(OTHER_ORDER, ORDER),
    ),
}


@pytest.mark.parametrize("meeting", MEETINGS)
async def test_two_servers_that_lock_the_same_rows_never_wait_for_each_other_both(
    servers: list[Store], meeting: str
) -> None:
    async def work(server: Store, transaction: Deciding) -> None:
        for _ in range(TIMES):
            await server.transact(transaction)

    await asyncio.gather(*map(work, servers, MEETINGS[meeting]))

    assert [server.counters.retries for server in servers] == [0, 0]
