"""The server put together: the one place that knows every part."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol, Self

from starlette.types import ASGIApp, Receive, Scope, Send

from server_stub import part_options
from server_stub.api.app import ServiceApi
from server_stub.cluster.clock import SyncedClock
from server_stub.cluster.identity import new_member_id
from server_stub.cluster.keeper import ShardKeeper
from server_stub.config import ServerSettings, load_settings
from server_stub.core.changes import Changes
from server_stub.core.cluster import Hint, Hints, Member, Role
from server_stub.core.hints import hint_of
from server_stub.core.model import ProcessKey, TimerKey
from server_stub.core.ports import Clock, Ownership, ProcessLookup, SoleOwnership, Store, StoreUnavailable
from server_stub.core.timer_events import TimerFired
from server_stub.delivery.delivery import Delivery
from server_stub.delivery.poller import Poller
from server_stub.dispatch.dispatcher import Dispatcher
from server_stub.dispatch.http import HttpTransport
from server_stub.dispatch.limited import LimitedTransport
from server_stub.dispatch.transport import WorkerTransport
from server_stub.engine.committer import Committer
from server_stub.engine.ids import Uuid7Source
from server_stub.engine.operations import Operations
from server_stub.engine.remote_watch import RemoteWatch
from server_stub.engine.sink import CommitterSink
from server_stub.engine.waiters import Waiters
from server_stub.metrics import ServerMetrics, Sources
from server_stub.storage.opening import open_store
from server_stub.storage.server_store import ServerStore
from server_stub.upkeep.upkeep import Upkeep

logger = logging.getLogger(__name__)

_NO_PROCESS = ProcessKey("", "")


class Closeable(Protocol):
    """What is to be closed in the end."""

    async def close(self) -> None:
        """Release it."""


def system_clock() -> int:
    """Give the machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The parts of a server that has others beside it."""

    keeper: ShardKeeper
    hints: Hints | None
    poller: Poller
    watch: RemoteWatch

    async def start(self, delivery: Delivery, dispatcher: Dispatcher, on_hint: Callable[[Hint], None]) -> None:
        """Join the other servers."""
        if self.hints is not None:
            await self.hints.start(on_hint)
        await self.keeper.start(_ShardUser(delivery, dispatcher))
        self.poller.start()
        self.watch.start()


@dataclass(frozen=True, slots=True)
class _ShardUser:
    """What works on the shards; see `ShardUser`."""

    delivery: Delivery
    dispatcher: Dispatcher

    def shards_gained(self, shard_ids: Collection[int]) -> None:
        self.delivery.shards_gained(shard_ids)

    def shards_lost(self, shard_ids: Collection[int]) -> Collection[int]:
        self.delivery.shards_lost(shard_ids)
        return self.dispatcher.shards_lost(shard_ids)

    async def calls_ended(self, shard_id: int) -> None:
        await self.dispatcher.calls_ended(shard_id)


class Server:
    """A server inside the running event loop, without a socket: `api` is its ASGI application.

    Attributes:
        api: The service API.
        operations: The same without HTTP.
        committer: Has counters of its transactions.
        dispatcher: Has counters of its calls.

    Example:
        async with await Server.open(ServerSettings(database_url="sqlite://")) as server:
            transport = httpx.ASGITransport(server.api)
    """

    def __init__(
        self,
        settings: ServerSettings,
        store: Store,
        transport: WorkerTransport,
        clock: Clock,
        ids: Callable[[], str],
        *,
        notify: bool = True,
        owned: Sequence[Closeable] = (),
        keeper: ShardKeeper | None = None,
        hints: Hints | None = None,
    ) -> None:
        """Put the parts together; nothing runs yet. `open` gives a running server."""
        ownership: Ownership = SoleOwnership() if keeper is None else keeper
        self._settings = settings
        self._store = store
        self._owned = owned
        self._clock = clock
        self._waiters = Waiters()
        self._is_closed = False
        self.committer = Committer(
            store,
            clock,
            self._on_commit,
            ownership=ownership,
            on_uncertain=self._look_again,
            max_batch=settings.max_commit_batch,
            max_pending=settings.max_pending_events,
            # SQLite has one transaction at a time in any case.
            max_transactions=1 if keeper is None else part_options.transactions_at_a_time(settings),
            history_rules=part_options.history_rules(settings),
        )
        sink = CommitterSink(self.committer)
        if not settings.allowed_worker_urls.is_any:
            transport = LimitedTransport(transport, settings.allowed_worker_urls)
        self.dispatcher = Dispatcher(transport, store, sink, part_options.dispatch_options(settings), clock)
        self._delivery = Delivery(
            store,
            clock,
            self.dispatcher,
            self._fire_timers,
            sink.claim,
            ownership,
            part_options.delivery_options(settings, notify=notify),
            has_peers=lambda: self._cluster is not None and self._cluster.poller.has_recent_peers,
        )
        self._cluster: _Cluster | None = None
        if keeper is not None:
            poller = Poller(
                store,
                clock,
                keeper,
                keeper,
                self.dispatcher,
                sink.claim,
                self._delivery.timers_found,
                part_options.poller_options(settings),
                look_again=self._delivery.look_again,
            )
            poll_s = settings.poll_fallback.total_seconds()
            watch = RemoteWatch(store, self._waiters, keeper, longest_interval_s=poll_s)
            self._cluster = _Cluster(keeper, hints, poller, watch)
        self.claims = part_options.claims(settings, num_shards=ownership.num_shards)
        self.operations = Operations(
            committer=self.committer,
            store=store,
            dispatcher=self.dispatcher,
            waiters=self._waiters,
            clock=clock,
            ids=ids,
            num_shards=ownership.num_shards,
            claims=self.claims,
            options=part_options.operations_options(settings),
        )
        self._upkeep = Upkeep(store, clock, settings.upkeep_interval)
        self.api = ServiceApi(
            self.operations,
            self.check_ready,
            part_options.api_limits(settings),
            ids,
            status=self.status,
            metrics=lambda accept: self.metrics.render(accept),
            serves_clients=Role.API in settings.roles,
        )
        self.metrics = ServerMetrics(
            Sources(
                requests=self.api.measures,
                claims=self.claims,
                committer=self.committer,
                dispatcher=self.dispatcher,
                delivery=self._delivery,
                waiters=self._waiters,
                store=store,
                upkeep=self._upkeep,
                clock=clock,
                keeper=keeper,
            )
        )

    @classmethod
    async def open(
        cls,
        settings: ServerSettings,
        *,
        store: Store | None = None,
        transport: WorkerTransport | None = None,
        clock: Clock | None = None,
        ids: Callable[[], str] | None = None,
        notify: bool = True,
        place: str | None = None,
        address: str | None = None,
    ) -> "Server":
        """Open the database and begin to do what is due.

        Args:
            settings: All settings; host, port and log level are for whoever serves `api`.
            store: Instead of the database of the settings; closed by its owner.
            transport: How requests get to workers, instead of HTTP; closed by its owner.
            clock: The time; by default that of the database where servers share one, else that of this machine.
            ids: Makes ids of process executions, increasing ones at best, and of faults; UUIDs of version 7 by default.
            notify: Whether commits hand on what they make due. Without it the server lives on rescans alone, as it
                does for what a crash has left behind.
            place: Names the socket that only this process can listen on, see `place_of`: what a former process there
                has left behind is then taken over at once. None where there is none.
            address: How operators find this server, unless the settings say that; by default the name of the machine.

        Raises:
            DatabaseInUse: Another server has the database file open.
            DriverMissing: The driver of the database is not installed.
            SchemaError: The system tables do not fit this server.
            StoreUnavailable: The database cannot be opened.
        """
        owned: list[Closeable] = []
        if transport is None:
            transport = http_transport = HttpTransport(connect_timeout=settings.worker_connect_timeout)
            owned.append(http_transport)
        if store is None:
            store = await open_store(
                settings.database_url, part_options.sqlite_options(settings), part_options.server_options(settings)
            )
            owned.append(store)
        hints: Hints | None = None
        keeper: ShardKeeper | None = None
        if isinstance(store, ServerStore):
            hints = store.hints() if settings.notify else None
            synced_clock = SyncedClock(asyncio.get_running_loop().time, system_clock())
            member = Member(
                new_member_id(place), settings.advertise_address or address or socket.gethostname(), settings.roles
            )
            options = part_options.keeper_options(settings)
            keeper = ShardKeeper(store, member, settings.num_shards, synced_clock, options, hints=hints)
            clock = clock or synced_clock
        clock = clock or system_clock
        server = cls(
            settings,
            store,
            transport,
            clock,
            ids or Uuid7Source(clock, os.urandom),
            notify=notify,
            owned=owned,
            keeper=keeper,
            hints=hints,
        )
        try:
            await server._start()
        except BaseException:
            await server.close()
            raise
        return server

    async def _start(self) -> None:
        if self._cluster is not None:
            await self._cluster.start(self._delivery, self.dispatcher, self._on_hint)
        self.committer.start()
        self._delivery.start()
        if Role.SYSTEM in self._settings.roles:
            self._upkeep.start()

    async def __aenter__(self) -> Self:
        """Give the server itself."""
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the server."""
        await self.close()

    async def check_ready(self) -> None:
        """Read from the system tables, and see that the server commits.

        Raises:
            StoreError: They cannot be read, or not written to, or the server is stopping.
        """
        if not self.committer.is_running:
            raise StoreUnavailable("the server does not commit")
        if self._cluster is not None and self._cluster.keeper.is_down:
            raise StoreUnavailable("the server cannot say in the database that it lives")
        await self._store.find_processes([ProcessLookup(_NO_PROCESS, None)])

    def counters(self) -> dict[str, dict[str, int]]:
        """Give totals since the start, by part of the server and name."""
        return {
            "commit": asdict(self.committer.counters),
            "dispatch": asdict(self.dispatcher.counters),
            "store": asdict(self._store.counters),
        }

    def status(self) -> dict[str, object]:
        """Give what operators may want to know: the counters, and the servers and shards as they were last seen."""
        status: dict[str, object] = {**self.counters()}
        if self._cluster is not None:
            status["cluster"] = _cluster_status(self._cluster.keeper)
        return status

    def begin_shutdown(self) -> None:
        """Answer every long poll that the server is stopping, so that its connection can close; give up the shards."""
        self.operations.begin_shutdown()
        if self._cluster is not None:
            self._cluster.keeper.begin_drain()

    async def close(self) -> None:
        """Stop: running calls get the grace of the settings, and what is due stays in the database.

        Closing twice is harmless.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.begin_shutdown()
        if self._cluster is not None:
            await self._cluster.keeper.drain()
            await self._cluster.watch.close()
            await self._cluster.poller.close()
        await self._upkeep.close()
        await self._delivery.close()
        await self.dispatcher.close(self._settings.shutdown_grace.total_seconds())
        await self.committer.close()
        if self._cluster is not None:
            await self._cluster.keeper.close()
            if self._cluster.hints is not None:
                await self._cluster.hints.close()
        for part in self._owned:
            await part.close()

    def _on_commit(self, changes: Changes) -> None:
        self._waiters.committed(changes)
        if changes.withdrawn:
            self._withdraw(changes.withdrawn)  # first: what has become due instead is not to be withdrawn
        self._delivery.committed(changes)
        if changes.closed_processes:
            self.dispatcher.process_closed(list(changes.closed_processes))
        if self._cluster is not None and self._cluster.hints is not None and self._cluster.keeper.has_peers:
            before_ms = self._clock() + self._cluster.poller.timer_window_ms
            if hint := hint_of(changes, self._cluster.keeper, timers_before_ms=before_ms):
                self._cluster.hints.send(hint)

    def _look_again(self) -> None:
        """Find what a transaction may have committed of which nothing is known, and let the other servers do so."""
        self._delivery.look_again()
        if self._cluster is not None:
            self._cluster.watch.look_again()
            if self._cluster.hints is not None and self._cluster.keeper.has_peers:
                shard_ids = frozenset(range(self._cluster.keeper.num_shards))
                self._cluster.hints.send(Hint(shard_ids=shard_ids, timer_shard_ids=shard_ids))

    def _on_hint(self, hint: Hint) -> None:
        if self._cluster is None:
            return
        if hint.is_cluster_changed:
            self._cluster.keeper.look()
        self._cluster.poller.hinted(hint)
        self._cluster.watch.hinted(hint)
        if hint.closed:
            self._delivery.processes_closed(hint.closed)
            self.dispatcher.process_closed(tuple(hint.closed))
        if hint.withdrawn:
            self._withdraw(hint.withdrawn)

    def _withdraw(self, process_execution_ids: Collection[str]) -> None:
        self.dispatcher.calls_withdrawn(process_execution_ids)
        self._delivery.calls_withdrawn(process_execution_ids)

    def _fire_timers(self, keys: Sequence[TimerKey]) -> None:
        for key in keys:
            self.committer.submit(TimerFired(key), is_patient=True).add_done_callback(_note_unfired)


def _cluster_status(keeper: ShardKeeper) -> Mapping[str, object]:
    view = keeper.view
    return {
        "member_id": keeper.member.member_id,
        "members": [asdict(member) | {"roles": sorted(member.roles)} for member in view.members],
        "shards": [
            {
                "shard_id": shard.shard_id,
                "owner_id": shard.owner_id,
                "range_id": shard.range_id,
                "lease_left_ms": max(shard.lease_until_ms - view.now_ms, 0),
                "is_mine": keeper.range_of(shard.shard_id) == shard.range_id != 0,
            }
            for shard in view.shards
        ],
    }


def _note_unfired(future: asyncio.Future[None]) -> None:
    """Say that a timer event failed. The timer is still in the database, where the next rescan finds it."""
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("timer did not fire", extra={"error": str(error)})


class _Application:
    """A server that lives as long as the ASGI server says."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._server: Server | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if self._server is None:
            raise RuntimeError("the server is not open: run the application under a server with lifespan events")
        await self._server.api(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._server = await Server.open(self._settings)
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._server.close()
        await send({"type": "lifespan.shutdown.complete"})


def create_app(settings: ServerSettings | None = None) -> ASGIApp:
    """Make the server as an ASGI application for another ASGI server than that of `xdb server`.

    Such a server ends waiting clients only once they have been answered: give it a short graceful shutdown.

    Args:
        settings: All settings; by default they are read from the environment now.

    Example:
        uvicorn --factory server_stub.app:create_app
    """
    return _Application(settings or load_settings({}, os.environ).settings)
