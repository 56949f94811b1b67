"""Servers and workers as real processes on one database of a server, each replaceable, with addresses of their own."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import asyncmy
import asyncpg

from tests.faults.installation import LEFT_OVER
from tests.faults.processes import CALLS_FILE, registry
from tests.services.shared import DatabaseKind
from tests.support.blocking_store import LoopThread
from tests.support.databases import MariadbDatabase, PostgresDatabase
from tests.support.real_processes import RunningCommand, free_port
from xdb_sdk import AsyncClient, ClientOptions, ClientRetryPolicy, Registry

T = TypeVar("T")

LEASE_S = 3.0
HEARTBEAT_S = 0.5
QUICK_OPTIONS = (
    *("--lease", f"{LEASE_S}s", "--heartbeat", f"{HEARTBEAT_S}s", "--member-timeout", "1500ms"),
    *("--log-level", "ERROR"),
)
NUM_SHARDS = 16
DEADLINE_S = 30.0

LEASE_OVER = "leases were not renewed in time"
"""What a server says that had no time for its leases, as happens on a busy machine, and whenever it was frozen."""

_APPLICATIONS = {"postgresql": PostgresDatabase, "mariadb": MariadbDatabase}

_COUNT_LOCK_WAITERS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mariadb": "SELECT count(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
    "ON id = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND db = database()",
}


class ServerProcess:
    """An `xdb server`, always at the same port.

    Args:
        directory: Where it runs and logs.
        options: Of the command.
        module: What is run instead of the command line.
        environment: Variables besides those of the test.
    """

    def __init__(self, directory: Path, *options: str, module: str, environment: dict[str, str] | None = None) -> None:
        self.name = directory.name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = directory
        self._options = ("server", "--port", str(self.port), *options)
        self._module = module
        self._environment = environment
        directory.mkdir()
        self.start()

    def start(self) -> None:
        """Start it, without waiting for it."""
        self.command = RunningCommand(
            *self._options, directory=self._directory, module=self._module, environment=self._environment
        )

    def wait_until_ready(self) -> None:
        """Wait until it serves; what it says instead is in the error."""
        _ = self.command.url

    def kill(self) -> None:
        """End it at once."""
        self.command.stop(signal.SIGKILL)

    def stop(self) -> int:
        """End it gracefully, and give its exit status."""
        return self.command.stop()

    def freeze(self) -> None:
        """Stop it in its tracks."""
        os.kill(self.command.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.command.pid, signal.SIGCONT)

    def get(self, path: str, *, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """Ask it by HTTP, and give the status and the body.

        Raises:
            OSError: It does not answer.
        """
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def cluster_status(self) -> dict[str, Any]:
        """Give the members and shards as it sees them."""
        _, body = self.get("/internal/status")
        status: dict[str, Any] = json.loads(body)["cluster"]
        return status

    def owned_shards(self) -> set[int]:
        """Name the shards in which it may work at the moment, as it judges itself."""
        return {shard["shard_id"] for shard in self.cluster_status()["shards"] if shard["is_mine"]}

    def metric(self, name: str) -> float:
        """Give what it has measured; the name has its labels behind it."""
        _, body = self.get("/metrics")
        [value] = [line.removeprefix(f"{name} ") for line in body.decode().splitlines() if line.startswith(f"{name} ")]
        return float(value)

    def log(self) -> list[str]:
        """Give the lines of its log, of all its lives."""
        return self.command.log_file.read_text().splitlines()


class Cluster:
    """Runs `xdb server` and `xdb worker` as often as is wanted.

    Args:
        directory: Where they run and log.
        kind: Which database.
        database_url: Where it is.
        options: Of each server, behind those that make leases short.
        servers: How many there are at first.
        worker_app: What the worker serves.
    """

    def __init__(
        self,
        directory: Path,
        kind: DatabaseKind,
        database_url: str,
        *options: str,
        servers: int = 2,
        worker_app: str = "tests.faults.processes:app",
    ) -> None:
        self.directory = directory
        self.kind = kind
        self.database_url = database_url
        self._options = ("--database-url", database_url, *QUICK_OPTIONS, *options)
        self._worker_port = free_port()
        self.worker_url = f"http://127.0.0.1:{self._worker_port}"
        self._worker_app = worker_app
        self.servers: list[ServerProcess] = []
        self.start_worker()
        for _ in range(servers):
            self.add_server()

    def add_server(
        self, *options: str, module: str = "server_stub.cli", environment: dict[str, str] | None = None
    ) -> ServerProcess:
        """Start another server, without waiting for it; see `ServerProcess`."""
        directory = self.directory / f"server-{len(self.servers)}"
        server = ServerProcess(directory, *self._options, *options, module=module, environment=environment)
        self.servers.append(server)
        return server

    def start_worker(self) -> None:
        """Start the worker, without waiting for it."""
        options = ("--port", str(self._worker_port), "--log-level", "ERROR")
        self.worker = RunningCommand("worker", self._worker_app, *options, directory=self.directory)

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def wait_until_ready(self) -> None:
        """Wait until all that was started serves."""
        _ = self.worker.url
        for server in self.servers:
            server.wait_until_ready()

    def close(self) -> None:
        """Stop everything gracefully."""
        for server in self.servers:
            server.command.send(signal.SIGTERM)
        for server in self.servers:
            server.command.wait()
        self.worker.stop()

    def client(self, server: ServerProcess, *, of: Registry = registry) -> AsyncClient:
        """Make a client of one server that repeats nothing by itself."""
        options = ClientOptions(server_url=server.url, worker_url=self.worker_url, retry=ClientRetryPolicy.none())
        return AsyncClient(of, options)

    def clients(self) -> Sequence[AsyncClient]:
        """See `Target.clients`."""
        return [self.client(server) for server in self.servers]

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run SQL of the application's own, as `tests.support.databases` has it, on a connection of its own."""
        thread = LoopThread()
        try:
            database = _APPLICATIONS[self.kind](self.database_url, thread)
            try:
                return database.sql(statement, *values)
            finally:
                database.close()
        finally:
            thread.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
        """Give what runs statements in one transaction of the application, which is committed at the end."""
        if self.kind == "postgresql":
            postgres = await asyncpg.connect(self.database_url)
            try:
                async with postgres.transaction():
                    yield postgres.execute
            finally:
                await postgres.close()
            return
        where = urlsplit(self.database_url)
        mariadb = await asyncmy.connect(
            host=where.hostname,
            port=where.port or 3306,
            user=unquote(where.username or "root"),
            password=unquote(where.password or ""),
            database=where.path[1:],
        )
        try:
            async with mariadb.cursor() as cursor:
                yield cursor.execute
            await mariadb.commit()
        finally:
            await mariadb.ensure_closed()

    async def until_lock_waiter(self) -> None:
        """Wait until a transaction waits for a lock that another one holds."""
        await eventually(self._has_lock_waiter, every_s=0.25)  # MariaDB shows the same again to who asks more often

    def _has_lock_waiter(self) -> bool:
        [(count,)] = self.sql(_COUNT_LOCK_WAITERS[self.kind])
        return bool(count)

    def traces(self) -> list[str]:
        """Give the lines that calls have left in the file of calls."""
        file = self.directory / CALLS_FILE
        return file.read_text().splitlines() if file.exists() else []

    def owners(self) -> dict[int, list[str]]:
        """Name, for each shard, the running servers that take it for their own."""
        owned = {server.name: server.owned_shards() for server in self.servers if server.command.is_running}
        return {shard: [name for name, shards in owned.items() if shard in shards] for shard in range(NUM_SHARDS)}

    def is_shared_out(self) -> bool:
        """Whether every shard has one owner, and every running server has its fair share."""
        names = list(chain(*self.owners().values()))
        running = [server.name for server in self.servers if server.command.is_running]
        fair_share = NUM_SHARDS / len(running)
        return len(names) == NUM_SHARDS and all(abs(names.count(name) - fair_share) < 1 for name in running)

    def check_nothing_is_left(self) -> None:
        """Check that all that was begun has ended."""
        assert {name: self.sql(query) for name, query in LEFT_OVER.items()} == {name: [] for name in LEFT_OVER}

    def check_logs(self, *expected: str) -> None:
        """Check that nothing was logged but lines that contain one of the expected phrases."""
        lines = [line for server in self.servers for line in server.log()]
        phrases = (LEASE_OVER, *expected)
        assert [line for line in lines if not any(phrase in line for phrase in phrases)] == []
        assert self.worker.log_file.read_text() == ""


async def eventually(check: Callable[[], bool], *, within_s: float = DEADLINE_S, every_s: float = 0.05) -> float:
    """Poll until a check that blocks, and runs on a thread, holds; give how long that took in seconds."""
    began_s = time.monotonic()
    while not await asyncio.to_thread(check):
        took_s = time.monotonic() - began_s
        assert took_s < within_s, f"{check} did not hold within {within_s} s"
        await asyncio.sleep(every_s)
    return time.monotonic() - began_s
