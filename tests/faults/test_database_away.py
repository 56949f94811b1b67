"""The database of two servers is killed, stopped, frozen or only to be read from for a while, under load."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import httpx
import psutil
import pytest

from tests.faults.cluster import Cluster, ServerProcess, eventually
from tests.faults.load import Load
from tests.faults.processes import CREATE_LEDGERS
from tests.services import mariadb, postgres
from tests.services.server import DatabaseServer
from tests.services.shared import DatabaseKind
from tests.simulation.processes import Mailbox
from xdb_sdk.protocol import SERVICE_PREFIX

TIMEOUTS = ("--statement-timeout", "2s", "--connect-timeout", "1s", "--lock-timeout", "1s")
LONGEST_ANSWER_S = 12.0
"""How long a request may go unanswered with these: a statement, connections, and the patience of a busy machine."""
MOST_CPU = 0.5
"""Seconds of the processor in a second, while there is nothing to do."""
OUTAGES_S = {"killed": 1.0, "stopped": 4.0, "frozen": 6.0, "read-only": 3.0}
"""Once it is noticed, nothing new happens while it lasts."""
MOST_LINES_PER_OUTAGE = 2
"""Of one kind from one part of a server: the database may come back in steps."""
OPERATIONS: Mapping[str, dict[str, Any]] = {
    "describe": {"processId": "mailbox"},
    "set-attributes": {"processId": "mailbox", "writeLocalAttributes": {"received": []}},
}
USER = "xdb_user"
"""Who may not write to a server that is only to be read from, as root may."""


@pytest.fixture
def service(tmp_path: Path, kind: DatabaseKind) -> Iterator[DatabaseServer]:
    """Run a database server that only this test has, and that keeps what it has committed."""
    start = postgres.start if kind == "postgresql" else mariadb.start
    with start(tmp_path / "database", is_durable=True) as server:
        yield server


@pytest.fixture
async def cluster(tmp_path: Path, kind: DatabaseKind, service: DatabaseServer) -> AsyncIterator[Cluster]:
    """Run two servers on it that log what they warn of."""
    url = service.create_database("xdb")
    if kind == "mariadb":
        await administer(service, kind, f"CREATE USER {USER}", f"GRANT ALL ON xdb.* TO {USER}")
        url = url.replace("root@", f"{USER}@")
    with Cluster(tmp_path, kind, url, *TIMEOUTS, "--log-level", "WARNING") as cluster:
        yield cluster


async def administer(service: DatabaseServer, kind: DatabaseKind, *statements: str) -> None:
    """Run statements as the superuser."""
    if kind == "postgresql":
        postgres_connection = await asyncpg.connect(service.url)
        try:
            for statement in statements:
                await postgres_connection.execute(statement)
        finally:
            await postgres_connection.close()
        return
    where = urlsplit(service.url)
    connection = await asyncmy.connect(host=where.hostname, port=service.port, user=where.username)
    try:
        async with connection.cursor() as cursor:
            for statement in statements:
                await cursor.execute(statement)
    finally:
        await connection.ensure_closed()


async def set_read_only(service: DatabaseServer, kind: DatabaseKind, *, is_on: bool) -> None:
    """Refuse everybody's writes, or no longer."""
    if kind == "mariadb":
        await administer(service, kind, f"SET GLOBAL read_only = {int(is_on)}")
        return
    change = "SET default_transaction_read_only = on" if is_on else "RESET default_transaction_read_only"
    await administer(service, kind, f"ALTER SYSTEM {change}", "SELECT pg_reload_conf()")


async def take_away(service: DatabaseServer, kind: DatabaseKind, how: str) -> None:
    """Let nobody use the database any more."""
    match how:
        case "killed":
            await asyncio.to_thread(service.kill)
        case "stopped":
            await asyncio.to_thread(service.stop)
        case "frozen":
            service.freeze()
        case "read-only":
            await set_read_only(service, kind, is_on=True)


async def bring_back(service: DatabaseServer, kind: DatabaseKind, how: str) -> None:
    """Let everybody use it again."""
    match how:
        case "killed" | "stopped":
            await asyncio.to_thread(service.launch)
        case "frozen":
            service.thaw()
        case "read-only":
            await set_read_only(service, kind, is_on=False)


@dataclass
class Answers:
    """What a client is answered that asks all the time.

    Attributes:
        longest_s: How long an answer took.
        statuses: How often each status came.
        unhelpful: Answers that are neither good nor say when to come back, or that the outcome is unknown.
    """

    longest_s: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    unhelpful: list[str] = field(default_factory=list)

    async def ask(self, server: ServerProcess, operation: str, is_over: asyncio.Event) -> None:
        """Call one operation again and again."""
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            while not is_over.is_set():
                began_s = time.monotonic()
                answer = await client.post(SERVICE_PREFIX + operation, json=OPERATIONS[operation])
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self._note(answer)
                await asyncio.sleep(0.1)

    def _note(self, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1
        is_unknown = answer.status_code == 503 and answer.json()["errorSubType"] == "UNKNOWN_OUTCOME"
        if answer.status_code != 200 and not is_unknown and "retry-after" not in answer.headers:
            self.unhelpful.append(f"{answer.status_code} {answer.text}")


@pytest.mark.timeout(300)
async def test_servers_outlive_every_absence_of_the_database_and_lose_nothing(
    cluster: Cluster, service: DatabaseServer, kind: DatabaseKind
) -> None:
    answers, is_over = Answers(), asyncio.Event()
    usage: dict[str, float] = {}

    async def lose_database(load: Load) -> None:
        async with cluster.client(cluster.servers[0]) as client, asyncio.TaskGroup() as group:
            await client.start_process("mailbox", Mailbox)
            for operation in OPERATIONS:
                group.create_task(answers.ask(cluster.servers[0], operation, is_over))
            for how, away_s in OUTAGES_S.items():
                await load.progress()
                before = cpu_s(cluster)
                began_s = time.monotonic()
                await take_away(service, kind, how)
                if away_s > 2:
                    await eventually(lambda: are_ready(cluster) == {503}, within_s=LONGEST_ANSWER_S + 10)
                await asyncio.sleep(max(0, began_s + away_s - time.monotonic()))
                usage[how] = (cpu_s(cluster) - before) / (time.monotonic() - began_s)
                await bring_back(service, kind, how)
                await eventually(lambda: are_ready(cluster) == {200})
                await load.progress()
            is_over.set()
            await client.stop_process("mailbox")

    cluster.sql(CREATE_LEDGERS)
    load = Load(cluster, seed=10)
    await load.run(lose_database)

    print(f"longest answer {answers.longest_s:.1f} s, {dict(answers.statuses)}, seconds of processor {usage}")
    assert answers.unhelpful == []
    assert answers.statuses.keys() <= {200, 503}
    assert answers.statuses[503] > 0
    assert answers.longest_s < LONGEST_ANSWER_S
    assert max(usage["stopped"], usage["frozen"]) < MOST_CPU
    assert all(server.command.is_running for server in cluster.servers)
    load.check_ledgers()
    cluster.check_nothing_is_left()
    for server in cluster.servers:
        lines = Counter(line_kind(line) for line in server.log() if line_kind(line))
        assert {k: n for k, n in lines.items() if n > MOST_LINES_PER_OUTAGE * len(OUTAGES_S)} == {}


def are_ready(cluster: Cluster) -> set[int]:
    """Ask every server whether it is ready, and give the different answers."""
    return {server.get("/readyz")[0] for server in cluster.servers}


def cpu_s(cluster: Cluster) -> float:
    """Give the time of the processor that the busier server has used in all."""
    times = [psutil.Process(server.command.pid).cpu_times() for server in cluster.servers]
    return max(each.user + each.system for each in times)


def line_kind(line: str) -> str:
    """Give what a line of the log says without its facts: level, part and the first words; none of a traceback."""
    _, _, rest = line.partition("Z ")
    level, _, event = rest.partition(" ")
    return f"{level} {event[:60]}" if level in ("WARNING", "ERROR") else ""
