"""The store on PostgreSQL, 14 or newer, over asyncpg: it is the leanest of the drivers, and asynchronous."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from server_stub.core.changes import Changes
from server_stub.core.ports import (
    ConcurrentStart,
    RowWriteFailed,
    StoreBusy,
    StoreCounters,
    StoreError,
    StoreUnavailable,
    Work,
)
from server_stub.storage import postgres_schema
from server_stub.storage.pool import Pool
from server_stub.storage.postgres_errors import (
    CANCELED,
    DRIVER_ERRORS,
    address_of,
    committing,
    database_error,
    is_unavailable,
    reason_of,
)
from server_stub.storage.postgres_hints import PostgresHints
from server_stub.storage.postgres_session import PostgresSession
from server_stub.storage.postgres_user_tables import PostgresUserTables
from server_stub.storage.recent import RecentExecutions
from server_stub.storage.server_store import LostToOthers, ServerStore, ServerStoreOptions
from server_stub.storage.session import Overtaken, do_work_unlocked

_CURRENT_INDEX: Final = "xdb_sys_process_execution_current"
_REQUEST_KEY: Final = "xdb_sys_request_pkey"
_BEGIN: Final = "BEGIN"
_CLOSE_TIMEOUT_S: Final = 2.0

_LOST: Final = ("40001", "40P01")
_LOCK_TIMEOUT: Final = "55P03"


class PostgresStore(ServerStore):
    """A `Store` and `Coordinator` on a PostgreSQL database."""

    def __init__(self, url: str, options: ServerStoreOptions) -> None:
        """Prepare a store; `open` gives one that is connected."""
        super().__init__(options)
        self.url = url.replace("+asyncpg://", "://", 1)
        self._tables = PostgresUserTables()
        self._statements = 0
        self._recent = RecentExecutions()
        self._pool: Pool[asyncpg.Connection[Any]] = Pool(
            self.connect,
            is_usable=lambda connection: not connection.is_closed() and not connection.is_in_transaction(),
            discard=lambda connection: connection.terminate(),
            close=_close,
            max_size=options.max_connections + 1,
            timeout=options.connect_timeout,
        )

    @classmethod
    async def open(cls, url: str, options: ServerStoreOptions | None = None) -> "PostgresStore":
        """Connect to a database, and create its system tables when it has none.

        Args:
            url: `postgresql://user:password@host:port/database`; hosts may be several, separated by commas, of which
                the one is taken that can be written to. `?sslmode=verify-full&sslrootcert=...` is as for psql.
            options: See `ServerStoreOptions`.

        Raises:
            SchemaError: The system tables do not fit this server.
            StoreUnavailable: The database cannot be reached.
        """
        store = cls(url, options or ServerStoreOptions())
        try:
            async with store._pool.connection() as connection:
                with _translated():
                    await postgres_schema.prepare(
                        connection, install=store._options.install_schema, num_shards=store._options.num_shards
                    )
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def counters(self) -> StoreCounters:
        """What it has done so far."""
        return StoreCounters(self._statements, self._retries)

    def hints(self) -> PostgresHints:
        """Give what carries hints between servers; it opens a connection of its own."""
        return PostgresHints(self.connect)

    async def close(self) -> None:
        """Release the database. Calling it twice is harmless."""
        await self._pool.close()

    async def connect(self) -> "asyncpg.Connection[Any]":
        """Open a connection as the store uses it.

        Raises:
            StoreUnavailable: The database cannot be reached.
        """
        options = self._options
        with _translated(where=address_of(self.url)):
            return await asyncpg.connect(
                self.url,
                timeout=options.connect_timeout.total_seconds(),
                # Later than the database's own limit: it ends a connection to a database that does not answer at all.
                command_timeout=options.statement_timeout.total_seconds() + options.connect_timeout.total_seconds(),
                statement_cache_size=500,
                max_cached_statement_lifetime=0,
                target_session_attrs=SessionAttribute.read_write,
                server_settings={
                    "application_name": "xdb",
                    "timezone": "UTC",
                    "jit": "off",
                    # A table may grow long after a statement over it was planned.
                    "enable_seqscan": "off",
                    # The values never matter to the plan, and planning a commit anew costs more than running it.
                    "plan_cache_mode": "force_generic_plan",
                    "default_transaction_isolation": "read committed",
                    "lock_timeout": _milliseconds(options.lock_timeout.total_seconds()),
                    "statement_timeout": _milliseconds(options.statement_timeout.total_seconds()),
                    "idle_in_transaction_session_timeout": _milliseconds(2 * options.statement_timeout.total_seconds()),
                },
            )

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[PostgresSession]:
        async with self._pool.connection() as connection:
            session = PostgresSession(connection, self._tables)
            try:
                with _translated(connection):
                    yield session
            finally:
                self._statements += session.statements

    async def transact(self, work: Work) -> Changes:
        """Run `work`, if it can be done so without the locks of a transaction around it; see `Store.transact`."""
        try:
            async with self._session() as session:
                changes = await do_work_unlocked(session, work, self._recent)
            if changes is not None:
                return changes
        except (Overtaken, LostToOthers):
            self._retries += 1
        changes = await super().transact(work)
        self._recent.forget(changes.changed_processes)
        return changes

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[PostgresSession]:
        async with self._pool.connection() as connection:
            session = PostgresSession(connection, self._tables)
            try:
                with _translated(connection):
                    await connection.execute(_BEGIN)
                    try:
                        yield session
                    except BaseException:
                        await _roll_back(connection)
                        raise
                    await _commit(connection)
            finally:
                self._statements += session.statements + 2


def _milliseconds(duration_s: float) -> str:
    return str(round(duration_s * 1_000))


async def _close(connection: "asyncpg.Connection[Any]") -> None:
    try:
        await connection.close(timeout=_CLOSE_TIMEOUT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


async def _roll_back(connection: "asyncpg.Connection[Any]") -> None:
    """Undo the transaction; a connection on which that is impossible is given up, which undoes it too."""
    if connection.is_closed():
        return
    try:
        await connection.execute("ROLLBACK")
    except Exception:
        connection.terminate()  # the error that led here is what the caller hears
    except asyncio.CancelledError:
        connection.terminate()
        raise


async def _commit(connection: "asyncpg.Connection[Any]") -> None:
    with committing(connection):
        try:
            status = await connection.execute("COMMIT")
        except asyncpg.IntegrityConstraintViolationError as error:
            # A deferred constraint of the user's, which does not say of which row.
            raise RowWriteFailed(None, database_error(error, "WRITE", None)) from error
    if status != "COMMIT":
        raise StoreError(f"the database answered COMMIT with {status}")


@contextmanager
def _translated(connection: "asyncpg.Connection[Any] | None" = None, *, where: str = "") -> Iterator[None]:
    """Turn errors of the driver into those of the port; a connection that cannot serve any more is given up.

    Args:
        connection: The one that is used.
        where: Names the database server, if it is being connected to.
    """
    try:
        yield
    except DRIVER_ERRORS as error:
        if is_unavailable(error):
            if connection is not None:
                connection.terminate()
            at = f" at {where}" if where else ""
            raise StoreUnavailable(f"PostgreSQL{at} is not available: {reason_of(error)}") from error
        code = getattr(error, "sqlstate", None)
        constraint = getattr(error, "constraint_name", None)
        if code in _LOST or constraint == _REQUEST_KEY:
            raise LostToOthers(reason_of(error)) from error
        if code in (_LOCK_TIMEOUT, CANCELED):
            raise StoreBusy(f"PostgreSQL is busy: {reason_of(error)}") from error
        if constraint == _CURRENT_INDEX:
            raise ConcurrentStart(reason_of(error)) from error
        raise
