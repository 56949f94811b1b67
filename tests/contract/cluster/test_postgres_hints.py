"""Hints over LISTEN and NOTIFY reach the other servers, whatever happens to a connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from server_stub.core.cluster import Hint
from server_stub.core.ports import StoreUnavailable
from server_stub.storage.postgres_hints import PostgresHints
from tests.services.shared import DatabaseKind

DEADLINE_S = 20


@dataclass
class Listener:
    """One server's end, and all that it was told, united."""

    hints: PostgresHints
    connections: "list[asyncpg.Connection[Any]]"
    told: Hint = field(default_factory=Hint)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, hint: Hint) -> None:
        self.told |= hint
        self.news.set()

    async def hears(self, expected: Hint) -> None:
        """Wait until all of a hint has come."""
        async with asyncio.timeout(DEADLINE_S):
            while self.told | expected != self.told:
                await self.news.wait()
                self.news.clear()


@dataclass
class Network:
    """Servers on one database, which may be away."""

    url: str
    is_away: bool = False

    @contextlib.asynccontextmanager
    async def listening(self, **server_settings: str) -> AsyncIterator[Listener]:
        connections: list[asyncpg.Connection[Any]] = []

        async def connect() -> "asyncpg.Connection[Any]":
            if self.is_away:
                raise StoreUnavailable("away")
            connections.append(await asyncpg.connect(self.url, server_settings=server_settings))
            return connections[-1]

        listener = Listener(PostgresHints(connect), connections)
        await listener.hints.start(listener.hear)
        try:
            yield listener
        finally:
            await listener.hints.close()

    async def execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(statement)
        await connection.close()


@pytest.fixture
def network(new_database: Callable[[DatabaseKind], str]) -> Network:
    return Network(new_database("postgresql"))


async def eventually(is_so: Callable[[], bool]) -> None:
    """Poll until something is so."""
    deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.01)


ALL = Hint(
    frozenset({0, 3}),
    frozenset({1}),
    frozenset({"e-1"}),
    frozenset({"e-2", "é\"'"}),
    frozenset({"e-3"}),
    is_cluster_changed=True,
)


async def test_hint_does_not_wait_for_the_disk(network: Network) -> None:
    async with network.listening(synchronous_commit="on") as sender:
        assert await sender.connections[0].fetchval("SHOW synchronous_commit") == "off"


async def test_hint_reaches_all_others_and_not_its_sender(network: Network) -> None:
    async with network.listening() as sender, network.listening() as first, network.listening() as second:
        sender.hints.send(ALL)
        await first.hears(ALL)
        await second.hears(ALL)

    assert first.told == second.told == ALL
    assert sender.told == Hint()


async def test_many_executions_are_told_in_parts(network: Network) -> None:
    ids = frozenset(f"{number:036}" for number in range(5_000))
    async with network.listening() as sender, network.listening() as other:
        for id_ in ids:
            sender.hints.send(Hint(closed=frozenset({id_})))
        await other.hears(Hint(closed=ids))

    assert other.told == Hint(closed=ids)


async def test_last_hint_before_the_end_is_sent(network: Network) -> None:
    async with network.listening() as other:
        async with network.listening() as sender:
            sender.hints.send(Hint(is_cluster_changed=True))
        await other.hears(Hint(is_cluster_changed=True))

    assert other.told.is_cluster_changed


async def test_broken_connection_is_noticed_and_made_anew(network: Network) -> None:
    async with network.listening() as sender, network.listening() as other:
        were_working = other.hints.are_working
        other.connections[0].terminate()
        await eventually(lambda: not other.hints.are_working)
        await eventually(lambda: other.hints.are_working)
        sender.hints.send(Hint(shard_ids=frozenset({7})))
        await other.hears(Hint(shard_ids=frozenset({7})))

    assert were_working
    assert len(other.connections) == 2


async def test_connection_that_the_database_ends_is_noticed(network: Network) -> None:
    async with network.listening() as listener:
        pid = listener.connections[0].get_server_pid()
        await network.execute(f"SELECT pg_terminate_backend({pid})")
        await eventually(lambda: not listener.hints.are_working)


@dataclass
class Line:
    """A way to the database that may go dead without a word, as when a firewall forgets a connection."""

    url: str
    is_dead: bool = False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not self.is_dead:
                    writer.write(data)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = urlsplit(self.url)
        from_database, to_database = await asyncio.open_connection(there.hostname, there.port)
        await asyncio.gather(self._pass_on(reader, to_database), self._pass_on(from_database, writer))

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[str, int]]:
        """Give the address of its near end."""
        server = await asyncio.start_server(self._accept, "127.0.0.1")
        try:
            yield server.sockets[0].getsockname()
        finally:
            server.close()


async def test_connection_that_is_dead_without_a_word_is_noticed(network: Network) -> None:
    line = Line(network.url)
    async with line.open() as (host, port):
        hints = PostgresHints(
            lambda: asyncpg.connect(network.url, host=host, port=port, timeout=1),
            ping_interval=timedelta(milliseconds=50),
            ping_timeout=timedelta(milliseconds=500),
        )
        await hints.start(lambda hint: None)
        await asyncio.sleep(0.3)  # some pings
        were_working = hints.are_working
        line.is_dead = True
        await eventually(lambda: not hints.are_working)
        line.is_dead = False
        await eventually(lambda: hints.are_working)
        await hints.close()

    assert were_working


async def test_start_does_not_wait_for_a_database_that_is_away_and_hints_work_once_it_is_back(network: Network) -> None:
    network.is_away = True
    async with network.listening() as listener:
        were_working = listener.hints.are_working
        listener.hints.send(ALL)
        network.is_away = False
        await eventually(lambda: listener.hints.are_working)

    assert not were_working


async def test_servers_in_another_schema_are_left_alone(network: Network) -> None:
    await network.execute("CREATE SCHEMA elsewhere")
    async with (
        network.listening() as sender,
        network.listening(search_path="elsewhere") as stranger,
        network.listening() as other,
    ):
        sender.hints.send(ALL)
        await other.hears(ALL)

    assert stranger.told == Hint()


async def test_notification_that_is_no_hint_is_passed_over(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    async with network.listening() as sender, network.listening() as other:
        for payload in ("", "[1]", '{"shards": 3}', '{"news": [1]}'):
            await network.execute(f"SELECT pg_notify('xdb_hints_' || md5(current_schema()), '{payload}')")
        sender.hints.send(ALL)
        await other.hears(ALL)

    assert other.told == ALL
    assert {record.message for record in caplog.records} == {"a notification of another server cannot be read"}
