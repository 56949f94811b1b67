"""The store on MySQL 8 and MariaDB, 10.6 or newer, over asyncmy: it is the leanest of the drivers, and asynchronous."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from asyncmy.errors import MySQLError

from server_stub.core.ports import (
    CommitOutcomeUnknown,
    ConcurrentStart,
    StoreBusy,
    StoreCounters,
    StoreUnavailable,
)
from server_stub.storage import mysql_schema
from server_stub.storage.mysql_connection import MysqlAddress, MysqlConnection
from server_stub.storage.mysql_errors import BUSY, CLIENT_ERRORS, DUPLICATE, LOST, UNAVAILABLE
from server_stub.storage.mysql_session import MysqlSession
from server_stub.storage.mysql_user_tables import MysqlUserTables
from server_stub.storage.pool import Pool
from server_stub.storage.server_store import LostToOthers, ServerStore, ServerStoreOptions

_CURRENT_INDEX: Final = "xdb_sys_process_execution_current'"
_REQUEST_KEY: Final = "PRIMARY'"
"""The ends of messages of errors over a row that an index refuses. All other primary keys are new, or replace."""


class MysqlStore(ServerStore):
    """A `Store` and `Coordinator` on a MySQL or MariaDB database."""

    def __init__(self, url: str, options: ServerStoreOptions) -> None:
        """Prepare a store; `open` gives one that is connected. Raises as `MysqlAddress.of`."""
        super().__init__(options)
        self.url = url
        self._address = MysqlAddress.of(url)
        self._tables = MysqlUserTables()
        self._statements = 0
        self._pool: Pool[MysqlConnection] = Pool(
            self.connect,
            is_usable=lambda connection: not connection.is_closed and not connection.is_in_transaction,
            discard=lambda connection: connection.terminate(),
            close=lambda connection: connection.close(),
            max_size=options.max_connections + 1,
            timeout=options.connect_timeout,
        )

    @classmethod
    async def open(cls, url: str, options: ServerStoreOptions | None = None) -> "MysqlStore":
        """Connect to a database, and create its system tables when it has none.

        Args:
            url: See `MysqlAddress.of`.
            options: See `ServerStoreOptions`.

        Raises:
            SchemaError: The system tables do not fit this server.
            StoreUnavailable: The database cannot be reached.
            ValueError: The URL is wrong.
        """
        store = cls(url, options or ServerStoreOptions())
        try:
            async with store._pool.connection() as connection:
                with _translated(connection):
                    await mysql_schema.prepare(
                        connection.raw, install=store._options.install_schema, num_shards=store._options.num_shards
                    )
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def counters(self) -> StoreCounters:
        """What it has done so far."""
        return StoreCounters(self._statements, self._retries)

    async def close(self) -> None:
        """Release the database. Calling it twice is harmless."""
        await self._pool.close()

    async def connect(self) -> MysqlConnection:
        """Open a connection as the store uses it.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """
        options = self._options
        with _translated(where=f"{self._address.host}:{self._address.port}"):
            return await MysqlConnection.open(
                self._address,
                connect_timeout=options.connect_timeout,
                lock_timeout=options.lock_timeout,
                statement_timeout=options.statement_timeout,
            )

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[MysqlSession]:
        async with self._counted_connection() as connection:
            with _translated(connection):
                yield MysqlSession(connection, self._tables)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[MysqlSession]:
        async with self._counted_connection() as connection:
            with _translated(connection):
                connection.begin()
                try:
                    yield MysqlSession(connection, self._tables)
                except BaseException:
                    await _roll_back(connection)
                    raise
                await _commit(connection)

    @asynccontextmanager
    async def _counted_connection(self) -> AsyncIterator[MysqlConnection]:
        async with self._pool.connection() as connection:
            before = connection.statements
            try:
                yield connection
            finally:
                self._statements += connection.statements - before


async def _roll_back(connection: MysqlConnection) -> None:
    """Undo the transaction; a connection on which that is impossible is given up, which undoes it too.

    It is needed after every error: a lock that was not to be had undoes no more than its statement.
    """
    if connection.is_closed:
        return
    try:
        await connection.roll_back()
    except Exception:
        connection.terminate()  # the error that led here is what the caller hears
    except asyncio.CancelledError:
        connection.terminate()
        raise


async def _commit(connection: MysqlConnection) -> None:
    try:
        await connection.commit()
    except (MySQLError, OSError, TimeoutError) as error:
        connection.terminate()
        if _is_unavailable(error):
            raise CommitOutcomeUnknown(f"the connection broke during a commit: {_reason(error)}") from error
        raise
    except asyncio.CancelledError:
        connection.terminate()
        raise


@contextmanager
def _translated(connection: MysqlConnection | None = None, *, where: str = "") -> Iterator[None]:
    """Turn errors of the driver into those of the port; a connection that cannot serve any more is given up.

    Args:
        connection: The one that is used.
        where: Names the database server, if it is being connected to.
    """
    try:
        yield
    except (MySQLError, OSError, TimeoutError) as error:
        if _is_unavailable(error):
            if connection is not None:
                connection.terminate()
            at = f" at {where}" if where else ""
            raise StoreUnavailable(f"MySQL{at} is not available: {_reason(error)}") from error
        code = error.args[0]
        if code in LOST:
            raise LostToOthers(_reason(error)) from error
        if code in BUSY:
            raise StoreBusy(f"MySQL is busy: {_reason(error)}") from error
        if code == DUPLICATE and _reason(error).endswith(_REQUEST_KEY):
            raise LostToOthers("another transaction has carried the request out") from error
        if code == DUPLICATE and _reason(error).endswith(_CURRENT_INDEX):
            raise ConcurrentStart("another transaction has started an execution of the process id") from error
        raise


def _is_unavailable(error: Exception) -> bool:
    """Say whether the database, or this connection to it, cannot serve at all now, whatever the statement."""
    if not isinstance(error, MySQLError):
        return True
    code = error.args[0] if error.args else None
    if isinstance(code, int) and code:
        return code in UNAVAILABLE or code in CLIENT_ERRORS
    return True  # the driver itself: it is not connected, or has lost the thread


def _reason(error: Exception) -> str:
    return str(error.args[-1]) if error.args else type(error).__name__
