"""MariaDB servers for tests, from Debian's package or wherever `mariadbd` is in the path."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import asyncmy
from asyncmy import Connection
from asyncmy.errors import OperationalError

from tests.services.server import DatabaseServer, MissingDatabase, free_port, prepare, run_blocking

_CONNECT_TIMEOUT_S = 30

# Character set, collation and isolation are MariaDB's own defaults: what runs on it has to cope with them.
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "max-connections": "300",
    "skip-name-resolve": "ON",
    "socket": "server.sock",  # in the data directory; a full path may be too long for a socket
}
_SETTINGS_WITHOUT_DURABILITY = {
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-flush-method": "nosync",
    "innodb-doublewrite": "0",
    "innodb-log-file-size": "16M",
    "innodb-buffer-pool-size": "64M",
    "aria-pagecache-buffer-size": "8M",
    "key-buffer-size": "1M",
}


class MariadbServer(DatabaseServer):
    """A MariaDB server that belongs to this process. `start` makes one."""

    stop_signal = signal.SIGTERM

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/"

    def create_database(self, name: str) -> str:
        return create_database(self.url, name)

    def drop_database(self, name: str) -> None:
        drop_database(self.url, name)

    async def _probe(self) -> bool:
        try:
            await _execute(self.url, "SELECT 1")
        except OperationalError:
            return False
        return True


def find_binaries() -> tuple[Path, Path]:
    """Find `mariadbd`, the server, and `mariadb-install-db`, which prepares its directory.

    Raises:
        MissingDatabase: One of them is missing.
    """
    return _find_binary("mariadbd"), _find_binary("mariadb-install-db")


def start(directory: Path, *, is_durable: bool = False, settings: Mapping[str, str] | None = None) -> MariadbServer:
    """Start a MariaDB server on a free port of 127.0.0.1; takes about a second.

    Args:
        directory: A directory that does not exist yet or is empty; `close` removes it.
        is_durable: Whether a commit waits for the disk, as by default in production. Without, a commit survives neither
            `kill` nor the end of the machine for sure: up to a second of them is lost.
        settings: More server settings, named as the options of `mariadbd` without the dashes in front; they win over
            those made here.

    Returns:
        The running server. The superuser `root` needs no password.

    Raises:
        MissingDatabase: MariaDB is not installed.
        ServerFailed: The server did not start.
    """
    mariadbd, install = find_binaries()
    data, temporary = directory / "data", directory / "tmp"
    for each in (data, temporary):
        each.mkdir(parents=True, mode=0o700)
    port = free_port()
    chosen = _SETTINGS | ({} if is_durable else _SETTINGS_WITHOUT_DURABILITY) | dict(settings or {})
    # In a temporary directory that servers share, one that starts deletes the files of the others.
    options = ["--no-defaults", f"--datadir={data}", f"--tmpdir={temporary}"]
    options += [f"--{name}={value}" for name, value in chosen.items()]
    options += ["--user=root"] if os.geteuid() == 0 else []
    prepare([str(install), *options, "--auth-root-authentication-method=normal", "--skip-test-db"])
    server = MariadbServer(directory, [str(mariadbd), *options, f"--port={port}"], port)
    try:
        server.launch()
    except BaseException:
        server.close()
        raise
    return server


def create_database(server_url: str, name: str) -> str:
    """Create an empty database on the server at `server_url`, and return the database's URL."""
    run_blocking(_execute(server_url, f"CREATE DATABASE `{name}`"))
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


def drop_database(server_url: str, name: str) -> None:
    """Drop a database if it exists, and disconnect its clients first."""
    run_blocking(_drop_database(server_url, name))


def _find_binary(name: str) -> Path:
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise MissingDatabase(
            f"no MariaDB ({name}): apt install mariadb-server-core mariadb-client-core, "
            "or name a server in XDB_TEST_MARIADB_URL"
        )
    return Path(path)


async def _drop_database(server_url: str, name: str) -> None:
    async with _connect(server_url) as connection, connection.cursor() as cursor:
        # An open transaction of a client that was left behind would hold the drop up.
        await cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
        for (client_id,) in await cursor.fetchall():
            with suppress(OperationalError):  # it left by itself
                await cursor.execute(f"KILL {client_id}")
        await cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


async def _execute(server_url: str, statement: str) -> None:
    async with _connect(server_url) as connection, connection.cursor() as cursor:
        await cursor.execute(statement)


@asynccontextmanager
async def _connect(server_url: str) -> AsyncIterator[Connection]:
    server = urlsplit(server_url)
    connection = await asyncmy.connect(
        host=server.hostname,
        port=server.port or 3306,
        user=unquote(server.username or "root"),
        password=unquote(server.password or ""),
        connect_timeout=_CONNECT_TIMEOUT_S,
    )
    try:
        yield connection
    finally:
        await connection.ensure_closed()
