"""A connection to MySQL or MariaDB over asyncmy, with what the driver leaves to its user.

Values are escaped into the text of a statement, and one text may hold many statements: what would be a round trip for
each row is one for all.
"""

import asyncio
import math
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncmy
from asyncmy import Connection
from asyncmy.constants import CLIENT
from asyncmy.errors import MySQLError

from server_stub.core.ports import StoreError
from server_stub.storage.schema_change import COLLATIONS, SchemaDialect

_DEFAULT_PORT: Final = 3306
_CLOSE_TIMEOUT_S: Final = 2.0
_MAX_TEXT: Final = 1_000_000
"""How many characters of statements travel together at most; a longer statement travels alone."""
_MAX_BYTES_OF_CHARACTER: Final = 4
_MIN_PACKET_BYTES: Final = 16 * 1024 * 1024
"""What the server has to take at once: the largest call of a client with all that is written with it, escaped."""

_SQL_MODE: Final = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO"
_SETTINGS: Final = f"""
    SET NAMES utf8mb4 COLLATE {{collation}};
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET SESSION sql_mode = '{_SQL_MODE}', time_zone = '+00:00', lock_wait_timeout = {{lock_timeout_s}},
        innodb_lock_wait_timeout = {{lock_timeout_s}}, {{more}};
    SELECT @@max_allowed_packet"""
# An open transaction that nobody goes on with holds its locks no longer than this. MySQL knows no such limit of its
# own: there, every idle connection is closed after it, and replaced when it is needed.
_MORE_SETTINGS: Final = {
    SchemaDialect.MARIADB: "max_statement_time = {statement_timeout_ms} / 1000, idle_transaction_timeout = {idle_s}",
    SchemaDialect.MYSQL: "max_execution_time = {statement_timeout_ms}, wait_timeout = {idle_s}",
}

_BEGIN: Final = "START TRANSACTION READ WRITE;"
"""So said, it is refused by a server that is only to be read from."""

_SSL_PARAMETERS: Final = frozenset({"ssl_mode", "ssl_ca", "ssl_cert", "ssl_key"})
_SSL_MODES: Final = ("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """Where a database is and who asks.

    Attributes:
        tls: How the connection is encrypted, None when it is not.
    """

    host: str
    port: int
    user: str | None
    password: str
    database: str
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, url: str) -> "MysqlAddress":
        """Read `mysql://user:password@host:port/database?ssl_mode=...`; `mariadb://` and `mysql+asyncmy://` as well.

        `ssl_mode` is DISABLED, REQUIRED (encrypted, whoever answers), VERIFY_CA or VERIFY_IDENTITY (the certificate is
        also of that host), as for the `mysql` client; a mode is never weakened because the server knows no TLS. Without
        it, `ssl_ca` stands for VERIFY_CA. `ssl_ca`, `ssl_cert` and `ssl_key` are paths of PEM files.

        Raises:
            ValueError: The URL names no database, or says something else. No message holds the password.
            OSError: A file cannot be read.
        """
        parts = urlsplit(url)
        database = unquote(parts.path.removeprefix("/"))
        if not database or "/" in database:
            raise ValueError("the database URL names no database; write mysql://user:password@host:port/database")
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(parameters.keys() - _SSL_PARAMETERS):
            known = ", ".join(sorted(_SSL_PARAMETERS))
            raise ValueError(f"the database URL has an unknown parameter {unknown[0]!r}; known are {known}")
        return cls(
            host=parts.hostname or "localhost",
            port=parts.port or _DEFAULT_PORT,
            user=None if parts.username is None else unquote(parts.username),
            password=unquote(parts.password or ""),
            database=database,
            tls=_tls(parameters),
        )


def _tls(parameters: dict[str, str]) -> ssl.SSLContext | None:
    mode = parameters.get("ssl_mode", "VERIFY_CA" if "ssl_ca" in parameters else "DISABLED").upper()
    if mode not in _SSL_MODES:
        raise ValueError(f"ssl_mode is {mode!r}; it has to be one of {', '.join(_SSL_MODES)}")
    if mode == "DISABLED":
        return None
    context = ssl.create_default_context(cafile=parameters.get("ssl_ca"))
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    if "ssl_cert" in parameters:
        context.load_cert_chain(parameters["ssl_cert"], parameters.get("ssl_key"))
    return context


class MysqlConnection:
    """A connection that is used by one task at a time.

    Each method that asks the server gives up after the timeout, and the connection with it: so does the driver when a
    task is cancelled, since the answer that is on its way would be taken for that of the next statement.

    Attributes:
        raw: The driver's connection.
        is_mariadb: Whether the server is MariaDB.
        statements: How many texts have been sent. A text with many statements is one.
    """

    def __init__(self, raw: Connection, *, timeout: timedelta) -> None:
        self.raw = raw
        self.is_mariadb = "MariaDB" in raw.get_server_info()
        self._timeout_s = timeout.total_seconds()
        self._max_bytes = _MAX_TEXT
        self.statements = 0
        self._opening = ""
        self._cursor = raw.cursor()
        self._transport: asyncio.Transport = raw._transport  # type: ignore[attr-defined]  # not in its stub

    @classmethod
    async def open(
        cls,
        address: MysqlAddress,
        *,
        connect_timeout: timedelta,
        lock_timeout: timedelta,
        statement_timeout: timedelta,
    ) -> "MysqlConnection":
        """Connect, and set up the session. Outside of transactions each statement commits by itself.

        Args:
            address: The database.
            connect_timeout: How long all of it may take.
            lock_timeout: How long a statement waits for a lock, in whole seconds at least one.
            statement_timeout: How long a statement may take; MySQL stops only statements that read. The connection is
                given up when that much and `connect_timeout` have passed without an answer.

        Raises:
            MySQLError, OSError, TimeoutError: There is no connection.
            StoreError: The server is set up not to take a call of a client.
        """
        async with asyncio.timeout(connect_timeout.total_seconds()):
            raw = await asyncmy.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password.encode().decode("latin-1"),  # which the driver encodes it in
                database=address.database,
                ssl=address.tls,
                autocommit=True,
                client_flag=CLIENT.FOUND_ROWS,
                program_name="xdb",
            )
            connection = cls(raw, timeout=statement_timeout + connect_timeout)
            try:
                await connection._set_up(lock_timeout, statement_timeout)
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def _set_up(self, lock_timeout: timedelta, statement_timeout: timedelta) -> None:
        dialect = SchemaDialect.MARIADB if self.is_mariadb else SchemaDialect.MYSQL
        more = _MORE_SETTINGS[dialect].format(
            statement_timeout_ms=round(statement_timeout.total_seconds() * 1_000),
            idle_s=_whole_seconds(2 * statement_timeout),
        )
        settings = _SETTINGS.format(
            collation=COLLATIONS[dialect], lock_timeout_s=_whole_seconds(lock_timeout), more=more
        )
        [(self._max_bytes,)] = await self.fetch(settings)
        if self._max_bytes < _MIN_PACKET_BYTES:
            raise StoreError(
                f"max_allowed_packet of the database server is {self._max_bytes}; set it to {_MIN_PACKET_BYTES} or more"
            )

    @property
    def is_closed(self) -> bool:
        """Whether the connection can serve no more, as far as is known without asking the server."""
        # The driver is connected, to itself, until it has tried to use a connection that the server has closed.
        return not self.raw.connected or self.raw._stream_broken  # type: ignore[attr-defined]  # not in its stub

    @property
    def is_in_transaction(self) -> bool:
        """Whether the server's last answer said that a transaction is open."""
        return self.raw.get_transaction_status()

    def terminate(self) -> None:
        """Close it at once, without asking the server."""
        # The driver takes leave first where the connection is encrypted, of a server that may not answer.
        self._transport.abort()
        self.raw.close()

    async def close(self) -> None:
        """Close it in good order."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.raw.ensure_closed()
        except (OSError, TimeoutError, MySQLError):
            self.terminate()

    def begin(self) -> None:
        """Have the next statement open a transaction, which costs no round trip of its own."""
        self._opening = _BEGIN

    async def commit(self) -> None:
        """Keep what the transaction has done."""
        await self._end("COMMIT")

    async def roll_back(self) -> None:
        """Undo what the transaction has done."""
        await self._end("ROLLBACK")

    async def _end(self, statement: str) -> None:
        if self._opening:
            self._opening = ""  # nothing was done
            return
        await self._run(statement)

    def text(self, statement: str, values: Sequence[Any] = ()) -> str:
        """Put values into the marks `%s` of a statement; a tuple becomes a list in parentheses, for `IN` and `VALUES`.

        Values of tuples are texts and numbers; bytes stand by themselves.
        """
        return self._cursor.mogrify(statement, tuple(values)) if values else statement

    async def fetch(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, or several with semicolons between, and give the rows of all in order."""
        rows, _ = await self._run(self.text(statement, values))
        return rows

    async def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and say how many rows it has found to change, or put in."""
        _, count = await self._run(self.text(statement, values))
        return count

    async def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement once for each row of values; it ends with the first that fails."""
        return await self.execute_all(self.text(statement, row) for row in rows)

    async def fetch_all(self, texts: Iterable[str]) -> list[tuple[Any, ...]]:
        """Run queries that have their values, as many in a round trip as is reasonable, and give all rows in order."""
        rows: list[tuple[Any, ...]] = []
        for text in joined(texts, ";"):
            rows += (await self._run(text))[0]
        return rows

    async def execute_all(self, texts: Iterable[str]) -> int:
        """Run statements that have their values, as many in a round trip as is reasonable."""
        count = 0
        for text in joined(texts, ";"):
            count += (await self._run(text))[1]
        return count

    async def _run(self, text: str) -> tuple[list[tuple[Any, ...]], int]:
        """Run what is in a text, and give the rows of all its queries and the sum of its counts."""
        self._check_length(text)
        text, self._opening = self._opening + text, ""
        self.statements += 1
        cursor = self._cursor
        async with asyncio.timeout(self._timeout_s):
            count = await cursor.execute(text)
            rows = list(await cursor.fetchall())
            while await cursor.nextset():
                count += cast(int, cursor.rowcount)
                rows += await cursor.fetchall()
        return rows, count

    def _check_length(self, text: str) -> None:
        """Refuse what the server would answer by closing the connection."""
        if len(text) * _MAX_BYTES_OF_CHARACTER < self._max_bytes:
            return
        length = len(text.encode(errors="surrogateescape"))  # as the driver writes bytes
        if length >= self._max_bytes:
            raise StoreError(
                f"a statement has {length} bytes, and the server takes fewer than {self._max_bytes}; "
                "set max_allowed_packet of the server to more"
            )


def joined(texts: Iterable[str], separator: str) -> Iterator[str]:
    """Join texts to longer ones, each of a length that the server takes easily."""
    some: list[str] = []
    length = 0
    for text in texts:
        if some and length + len(text) > _MAX_TEXT:
            yield separator.join(some)
            some, length = [], 0
        some.append(text)
        length += len(text)
    if some:
        yield separator.join(some)


def _whole_seconds(duration: timedelta) -> int:
    return max(1, math.ceil(duration.total_seconds()))
