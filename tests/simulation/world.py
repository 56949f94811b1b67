"""One seed of the simulation: a whole system and its users in one thread on virtual time, with faults."""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

from server_stub.app import Server
from server_stub.config import ServerSettings
from server_stub.core.ports import Store
from tests.simulation.chaos import ChaoticClientTransport, ChaoticTransport, Faults, Life, MortalStore
from tests.simulation.processes import (
    CHAIN_LENGTH,
    PROCESSES,
    Chain,
    Mailbox,
    Sleeper,
    Tree,
    UserCode,
)
from tests.support.asgi import AsgiTransport
from tests.support.databases import Database, Kind
from tests.support.system import SERVER_URL, WORKER_URL, InMemoryClientTransport
from tests.support.virtual_time import VirtualClock
from xdb_sdk import (
    AsyncClient,
    ClientOptions,
    ClientRetryPolicy,
    ClientSideError,
    IdReusePolicy,
    ProcessAlreadyStartedError,
    ProcessNotRunningError,
    ProcessStartOptions,
    ProcessStatus,
    ProcessStopType,
    ProcessTimeout,
    QueueMessage,
    Registry,
    RpcExecutionError,
    RpcLockNotAcquiredError,
    UnavailableError,
    Worker,
)

T = TypeVar("T")

PATIENCE = timedelta(hours=2)
"""Virtual time within which everything has to end."""

_UPSERT = """
    INSERT INTO accounts (id, total) VALUES (?, 1)
    ON CONFLICT (id) DO UPDATE SET total = coalesce(accounts.total, 0) + 1"""
DEPOSIT_OF_THE_APPLICATION: dict[Kind, str] = {
    "sqlite": _UPSERT,
    "postgresql": _UPSERT,
    "mariadb": """
        INSERT INTO accounts (id, total) VALUES (?, 1)
        ON DUPLICATE KEY UPDATE total = coalesce(total, 0) + 1""",
}

ONCE = ProcessStartOptions(id_reuse_policy=IdReusePolicy.DISALLOW_REUSE)
"""A start that is repeated after a lost answer must not start again what has completed meanwhile."""

SETTINGS = ServerSettings(
    rescan_interval=timedelta(seconds=5), look_ahead=timedelta(seconds=20), shutdown_grace=timedelta(seconds=1)
)


def draw_faults(rng: random.Random) -> Faults:
    """Draw what goes wrong in a run: each kind in about half of the runs, so that they meet in every combination."""

    def rate(most: float) -> float:
        return rng.random() * most if rng.random() < 0.5 else 0.0

    return Faults(
        crash_before_commit=rate(0.05),
        crash_after_commit=rate(0.05),
        crash_after_answer=rate(0.05),
        lose_commit=rate(0.05),
        refuse_connection=rate(0.1),
        lose_answer=rate(0.1),
        repeat_call=rate(0.1),
        delay_answer=rate(0.1),
        lose_client_answer=rate(0.05),
        survive_crash=rng.choice([0.0, 0.0, 0.5]),
    )


@dataclass(slots=True)
class Deposits:
    """What is known of RPCs that add to a row: those answered, and those whose answer was lost."""

    certain: int = 0
    uncertain: int = 0


class World:
    """Server lives, clients and what they know. Made in the virtual-time loop that it is to run in."""

    def __init__(self, seed: int, database: Database) -> None:
        self.rng = random.Random(seed)
        self.faults = draw_faults(self.rng)
        self.notify = self.rng.random() < 0.8
        self._database = database
        self.clock = VirtualClock()
        self.crashes = 0
        self.trace = hashlib.sha256()
        self._ids = 0
        self._deposits: dict[str, Deposits] = {}
        self._servers: list[tuple[Life, Server]] = []
        self._births: set[asyncio.Task[None]] = set()
        self.life: Life
        self._server: Server
        self._store: Store
        self._workers: AsgiTransport
        self.client: AsyncClient
        UserCode.rng = self.rng
        UserCode.failure_rate = self.rng.choice([0.0, 0.1, 0.4])

    @property
    def unheard_commits(self) -> int:
        """How often the connection to the database broke during a commit."""
        return sum(life.unheard_commits for life, _ in self._servers)

    async def run(self) -> None:
        """Live through the seed and check that every promise was kept."""
        self._store = await self._database.open_virtual_store()
        self.sql("CREATE TABLE accounts (id VARCHAR(255) PRIMARY KEY, total INTEGER, last_step TEXT)")
        registry = Registry()
        registry.add_processes(*PROCESSES)
        try:
            async with AsgiTransport({WORKER_URL: Worker(registry)}) as self._workers:
                await self._be_born()
                await self._live(registry)
        finally:
            await self._store.close()

    async def _live(self, registry: Registry) -> None:
        async with AsgiTransport({SERVER_URL: self._serve}) as front:
            options = ClientOptions(
                server_url=SERVER_URL,
                worker_url=WORKER_URL,
                retry=ClientRetryPolicy(random=self.rng.random, max_total_time=timedelta(minutes=10)),
            )
            transport = ChaoticClientTransport(InMemoryClientTransport(front), lambda: self.life, self.faults, self.rng)
            async with (
                AsyncClient(registry, options, transport=transport) as self.client,
                asyncio.timeout(PATIENCE.total_seconds()),
                asyncio.TaskGroup() as users,
            ):
                for number in range(self.rng.randint(2, 6)):
                    user = self.rng.choice([self._use_chain, self._use_mailbox, self._use_tree, self._use_sleeper])
                    users.create_task(user(f"p-{number}"))
            await asyncio.gather(*self._births)
            for life, server in self._servers:
                if life.is_alive:
                    await server.close()
        self._check_rows()

    # --- lives ---

    def _life_now(self) -> Life:
        return self.life

    async def _be_born(self) -> None:
        life = self.life = Life(self._replace, self._survives)
        self._server = await Server.open(
            ServerSettings(
                rescan_interval=timedelta(seconds=5),
                look_ahead=timedelta(seconds=20),
                shutdown_grace=timedelta(seconds=1),
            ),
            store=cast(Store, MortalStore(self._store, life, self.faults, self.rng)),  # the rest by __getattr__
            transport=ChaoticTransport(self._workers, life, self.faults, self.rng),
            clock=self.clock,
            ids=self._next_id,
            notify=self.notify,
        )
        self._servers.append((life, self._server))

    def _survives(self) -> bool:
        return self.rng.random() < self.faults.survive_crash

    def _replace(self) -> None:
        self.crashes += 1
        self._note(f"crash {self.crashes}")
        task = asyncio.create_task(self._rise_again())
        self._births.add(task)
        task.add_done_callback(self._births.discard)

    async def _rise_again(self) -> None:
        await asyncio.sleep(self.rng.random() * 3)
        await self._be_born()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        life, server = self.life, self._server
        await life.check()
        await server.api(scope, receive, _only_while(life, send))

    # --- users ---

    async def _use_chain(self, process_id: str) -> None:
        account = f"account-{self.rng.randint(1, 2)}"
        deposits = self._deposits.setdefault(account, Deposits())
        started = await self._start(lambda: self.client.start_object_process(process_id, Chain, account, 1, ONCE))
        deposits.certain += CHAIN_LENGTH
        for _ in range(self.rng.randint(0, 5)):
            await asyncio.sleep(self.rng.random())
            if self.rng.random() < 0.5:
                await self._deposit(process_id, deposits)
            else:
                self.sql(DEPOSIT_OF_THE_APPLICATION[self._database.kind], account)
                deposits.certain += 1
        result = await self._insist(lambda: self.client.wait_for_process_completion(process_id, int))
        assert result == CHAIN_LENGTH
        self._note(f"{process_id} {started}")

    async def _deposit(self, process_id: str, deposits: Deposits) -> None:
        try:
            await self.client.invoke_rpc(process_id, Chain.deposit, 1)
        except (RpcLockNotAcquiredError, RpcExecutionError, ProcessNotRunningError):
            return
        except UnavailableError:
            deposits.uncertain += 1
        else:
            deposits.certain += 1

    async def _use_mailbox(self, process_id: str) -> None:
        await self._start(lambda: self.client.start_process(process_id, Mailbox, None, ONCE))
        senders = range(self.rng.randint(1, 3))
        sent: dict[str, list[str]] = {f"s{sender}": [] for sender in senders}
        posted: dict[str, bool] = {}
        async with asyncio.TaskGroup() as group:
            for sender, messages in sent.items():
                group.create_task(self._send(process_id, sender, messages, self.rng.randint(0, 8)))
            group.create_task(self._post(process_id, posted, self.rng.randint(0, 8)))
        with suppress(ProcessNotRunningError):  # the answer to an earlier try was lost, and it has stopped since
            await self._publish(process_id, ["stop"], "stop")
        await self._insist(lambda: self.client.wait_for_process_completion(process_id))
        values = await self._insist(lambda: self.client.get_data_attributes(process_id, Mailbox))
        received = values["received"]
        count_by_post = Counter(value for value in received if value.startswith("post"))
        assert count_by_post.keys() <= posted.keys()
        assert all(count_by_post[post] == 1 or (count_by_post[post] == 0 and not posted[post]) for post in posted)
        unposted = [value for value in received if value not in posted]
        assert sorted(unposted) == sorted([*(m for messages in sent.values() for m in messages), "stop"])
        for sender, messages in sent.items():
            assert [value for value in received if value.startswith(sender)] == messages

    async def _send(self, process_id: str, sender: str, messages: list[str], count: int) -> None:
        for number in range(count):
            await asyncio.sleep(self.rng.random())
            batch = [f"{sender}-{number}-{part}" for part in range(self.rng.randint(1, 3))]
            await self._publish(process_id, batch, f"{sender}-{number}")
            messages += batch

    async def _post(self, process_id: str, posted: dict[str, bool], count: int) -> None:
        """Send messages by RPC, and note whether each certainly arrived; one that certainly did not is not noted."""
        for number in range(count):
            await asyncio.sleep(self.rng.random())
            message = f"post-{number}"
            try:
                await self.client.invoke_rpc(process_id, Mailbox.post, message)
            except (RpcExecutionError, ProcessNotRunningError):
                continue
            except UnavailableError:
                posted[message] = False
            else:
                posted[message] = True

    async def _publish(self, process_id: str, values: list[str], name: str) -> None:
        messages = [
            QueueMessage(queue=Mailbox.inbox, value=value, dedup_id=f"{name}-{i}") for i, value in enumerate(values)
        ]
        await self._insist(lambda: self.client.publish_messages(process_id, Mailbox, messages))

    async def _use_tree(self, process_id: str) -> None:
        width = self.rng.randint(1, 5)
        await self._start(lambda: self.client.start_process(process_id, Tree, width, ONCE))
        parts = await self._insist(lambda: self.client.wait_for_process_completion(process_id, list[str]))
        assert parts is not None
        assert sorted(part.split()[1] for part in parts) == [str(number) for number in range(width)]
        self._note(f"{process_id} {parts}")

    async def _use_sleeper(self, process_id: str) -> None:
        sleep_s, timeout_s = self.rng.random() * 200, self.rng.choice([0, 50, 100])
        options = replace(ONCE, timeout=timedelta(seconds=timeout_s) if timeout_s else None)
        await self._start(lambda: self.client.start_process(process_id, Sleeper, sleep_s, options))
        fate = self.rng.random()
        if fate < 0.2:
            await asyncio.sleep(self.rng.random() * 20)
            await self._insist(lambda: self.client.stop_process(process_id, ProcessStopType.TERMINATE))
            info = await self._insist(lambda: self.client.describe_process(process_id))
            assert info.status in {ProcessStatus.TERMINATED, ProcessStatus.COMPLETED, ProcessStatus.TIMEOUT}
            return
        try:
            result = await self._insist(lambda: self.client.wait_for_process_completion(process_id, str))
        except ProcessTimeout:
            assert timeout_s
        else:
            assert result == "awake"

    async def _start(self, start: Callable[[], Awaitable[str]]) -> str:
        try:
            return await self._insist(start)
        except ProcessAlreadyStartedError as error:
            # The answer to an earlier try was lost.
            return error.body.process_execution_id or ""

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until there is an answer."""
        while True:
            try:
                return await call()
            except ProcessAlreadyStartedError:
                raise
            except UnavailableError:
                await asyncio.sleep(0.5)
            except ClientSideError as error:
                self._note(str(error))
                raise

    # --- after the end ---

    def _check_rows(self) -> None:
        open_states = self.sql("SELECT * FROM xdb_sys_async_state_execution WHERE status = 'RUNNING'")
        assert not open_states, "a closed execution has an open state"
        for table in ("xdb_sys_timer_tasks", "xdb_sys_internal_queue"):
            assert not self.sql(f"SELECT * FROM {table}"), f"rows are left in {table}"
        running = self.sql("SELECT process_id FROM xdb_sys_process_execution WHERE status = 'RUNNING'")
        assert not running, f"stuck: {running}"
        for account, deposits in self._deposits.items():
            ((total,),) = self.sql("SELECT total FROM accounts WHERE id = ?", account)
            assert deposits.certain <= total <= deposits.certain + deposits.uncertain, (account, total, deposits)
        for row in self.sql(
            "SELECT process_execution_id, state_id, number, status, attempt, closed_at_ms"
            " FROM xdb_sys_async_state_execution ORDER BY 1, 2, 3"
        ):
            self._note(repr(row))

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run SQL of the application's own."""
        return self._database.sql(statement, *values)

    def _note(self, fact: str) -> None:
        self.trace.update(fact.encode())

    def _next_id(self) -> str:
        self._ids += 1
        return f"execution-{self._ids:06}"


def _only_while(life: Life, send: Any) -> Any:
    async def send_if_alive(message: Any) -> None:
        await life.check()
        await send(message)

    return send_if_alive
