"""A server and a worker as real processes, with one database file and fixed addresses over all their lives."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.processes import registry
from tests.support.real_processes import RunningCommand, free_port
from xdb_sdk import AsyncClient, ClientOptions, ClientRetryPolicy

_QUICK_RETRIES = ClientRetryPolicy(max_attempts=1_000, max_backoff=timedelta(milliseconds=300))

LEFT_OVER = {
    "open executions": "SELECT process_id FROM xdb_sys_process_execution WHERE status = 'RUNNING'",
    "open states": "SELECT process_execution_id, state_id FROM xdb_sys_async_state_execution WHERE status = 'RUNNING'",
    "calls to make": "SELECT process_execution_id FROM xdb_sys_async_state_execution WHERE due_at_ms IS NOT NULL",
    "timers": "SELECT process_execution_id, state_id FROM xdb_sys_timer_tasks",
    "messages": "SELECT process_execution_id, queue_name FROM xdb_sys_internal_queue",
}
"""What finds what is not done, by what it is."""


class Installation:
    """Runs `xdb server` and `xdb worker`, each replaceable.

    Args:
        directory: Where both run and log, and where the database file is.
        worker_app: What the worker serves.
        server_arguments: Options of the server.
        server_module: What is run as the server instead of the command line.
    """

    def __init__(
        self,
        directory: Path,
        *server_arguments: str,
        worker_app: str = "tests.faults.processes:app",
        server_module: str = "server_stub.cli",
    ) -> None:
        self.directory = directory
        self.database = directory / "xdb.db"
        self.server_url, self.worker_url = (f"http://127.0.0.1:{port}" for port in (free_port(), free_port()))
        self._worker_app = worker_app
        self._server_arguments = server_arguments
        self._server_module = server_module
        self.start_server()
        self.start_worker()

    def start_server(self) -> None:
        """Start a server, without waiting for it."""
        port = self.server_url.rpartition(":")[2]
        options = ("--port", port, "--log-level", "ERROR", *self._server_arguments)
        self.server = RunningCommand("server", *options, directory=self.directory, module=self._server_module)

    def start_worker(self) -> None:
        """Start a worker, without waiting for it."""
        options = ("--port", self.worker_url.rpartition(":")[2], "--log-level", "ERROR")
        self.worker = RunningCommand("worker", self._worker_app, *options, directory=self.directory)

    def __enter__(self) -> Self:
        try:
            _ = self.server.url, self.worker.url
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop both gracefully."""
        self.server.stop()
        self.worker.stop()

    def client(self) -> AsyncClient:
        """Make a client that goes on trying while a server is away."""
        return AsyncClient(registry, self.client_options)

    def clients(self) -> list[AsyncClient]:
        """See `Target.clients`."""
        return [self.client()]

    @property
    def client_options(self) -> ClientOptions:
        """Where both are."""
        return ClientOptions(server_url=self.server_url, worker_url=self.worker_url, retry=_QUICK_RETRIES)

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run SQL of the application's own."""
        with closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def check_nothing_is_left(self) -> None:
        """Check that all that was begun has ended, and that the file is sound."""
        assert {name: self.sql(query) for name, query in LEFT_OVER.items()} == {name: [] for name in LEFT_OVER}
        assert self.sql("PRAGMA integrity_check") == [("ok",)]

    def check_logs(self) -> None:
        """Check that nothing went wrong that should not have, in any life."""
        for command in (self.server, self.worker):
            assert command.log_file.read_text() == ""
