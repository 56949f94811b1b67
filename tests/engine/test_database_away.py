"""The database goes away for a while: nothing is lost, nothing is done twice, and nobody runs hot (semantics 9.4)."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from server_stub.app import Server
from server_stub.config import ServerSettings
from server_stub.core.ports import Store, StoreUnavailable
from server_stub.dispatch.transport import WorkerTransport
from tests.engine.mailbox import leftovers
from tests.engine.service_http import post, request, start_of
from tests.support.databases import Database
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    ProcessStartOptions,
    ProcessStatus,
    RetryPolicy,
    StateDecision,
    StateStatus,
    TimerCommand,
    UnavailableError,
    data_attribute,
    internal_queue,
    rpc,
    state,
)


class Doorway:
    """Passes calls on to a store, or says that the database cannot be reached, and counts how often it had to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_shut = False
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not inspect.iscoroutinefunction(method) or name == "close":
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_shut:
                self.refused += 1
                raise StoreUnavailable("connection refused")
            return await method(*args, **kwargs)

        return call


class RemoteSystem(System):
    """A system whose database can be taken away."""

    doorway: Doorway

    async def open_server(self, store: Store, transport: WorkerTransport) -> Server:
        self.doorway = Doorway(store)
        return await super().open_server(cast(Store, self.doorway), transport)

    @asynccontextmanager
    async def database_away(self) -> AsyncIterator[None]:
        """Take the database away for a while."""
        self.doorway.is_shut = True
        yield
        self.doorway.is_shut = False


@pytest.fixture
async def remote(database: Database) -> AsyncIterator[RemoteSystem]:
    """Give a system whose database can be taken away."""
    async with RemoteSystem(database, ServerSettings()) as system:
        system.serve(TimerProcess, WorkProcess, RetryProcess, IdleProcess)
        yield system


class TimerState(AsyncState[float]):
    def wait_until(self, input: float) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(input))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class TimerProcess(ObjectProcess):
    """Completes after a time."""

    starting_state = TimerState


class WorkState(AsyncState[float]):
    async def execute(self, input: float, persistence: Persistence) -> StateDecision:
        await asyncio.sleep(input)
        persistence.set_data_attribute(WorkProcess.note, "worked")
        return StateDecision.single_next_state(RestState)


class RestState(AsyncState[None]):
    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(persistence.get_data_attribute(WorkProcess.note))


class WorkProcess(ObjectProcess):
    """Works for a time and remembers it."""

    note = data_attribute(str)
    starting_state = WorkState
    states = (RestState,)


@state(execute_api_retry_policy=RetryPolicy(initial_interval_seconds=10, maximum_attempts=2))
class RetryState(AsyncState[None]):
    def execute(self, ctx: ProcessContext, persistence: Persistence) -> StateDecision:
        if ctx.attempt == 1:
            raise RuntimeError("try again in 10 s")
        return StateDecision.graceful_complete_process(persistence.get_data_attribute(RetryProcess.note))


class RetryProcess(ObjectProcess):
    """Succeeds at its second and last attempt."""

    note = data_attribute(str)
    starting_state = RetryState


class IdleState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(IdleProcess.go))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("gone")


class IdleProcess(ObjectProcess):
    """Waits for a message."""

    go = internal_queue(None)
    starting_state = IdleState

    @rpc
    def ping(self) -> str:
        return "pong"


async def start_everything(system: System) -> None:
    """Start processes to which something happens 10 s from now, when the database is away."""
    for number in range(5):
        await system.client.start_process(f"timer-{number}", TimerProcess, 10 + number)
        await system.client.start_process(f"work-{number}", WorkProcess, 10 + number)
        await system.client.start_process(f"retry-{number}", RetryProcess)
        options = ProcessStartOptions(timeout=timedelta(seconds=10 + number))
        await system.client.start_process(f"timeout-{number}", IdleProcess, None, options)
    await asyncio.sleep(1)


async def statuses(system: System) -> dict[str, set[ProcessStatus]]:
    """Give the statuses of the processes of each kind."""
    found: dict[str, set[ProcessStatus]] = {}
    async for each in system.client.list_processes():
        found.setdefault(each.process_id.partition("-")[0], set()).add(each.status)
    return found


@pytest.mark.parametrize("away_s", [30, 60])
async def test_everything_goes_on_when_the_database_is_back(remote: RemoteSystem, away_s: float) -> None:
    await start_everything(remote)

    async with remote.database_away():
        await asyncio.sleep(away_s)
    await asyncio.sleep(6)

    assert await statuses(remote) == {
        "timer": {ProcessStatus.COMPLETED},
        "work": {ProcessStatus.COMPLETED},
        "retry": {ProcessStatus.COMPLETED},
        "timeout": {ProcessStatus.TIMEOUT},
    }
    assert (await remote.client.describe_process("work-1")).outputs[0].output == "worked"
    assert remote.worker.by_state() == {"TimerState-1": 5, "WorkState-1": 5, "RestState-1": 5, "RetryState-1": 10}
    assert leftovers(remote) == {}


async def test_absence_of_the_database_uses_up_no_attempts(remote: RemoteSystem) -> None:
    await remote.client.start_process("p", RetryProcess)
    await asyncio.sleep(1)

    async with remote.database_away():
        await asyncio.sleep(60)
    await asyncio.sleep(6)

    [retried] = (await remote.client.describe_process("p", include={"closed_states"})).states
    assert (retried.status, retried.attempt) == (StateStatus.COMPLETED, 2)


async def test_what_is_due_soon_after_the_return_is_nearly_in_time(remote: RemoteSystem) -> None:
    await remote.client.start_process("p", TimerProcess, 75)
    await asyncio.sleep(29)

    async with remote.database_away():
        await asyncio.sleep(40)
    await asyncio.sleep(60)

    info = await remote.client.describe_process("p")
    assert info.closed_at is not None
    assert timedelta(seconds=75) <= info.closed_at - info.started_at < timedelta(seconds=80)


@pytest.mark.parametrize("away_s", [30, 60])
async def test_nobody_runs_hot_or_floods_the_log_while_the_database_is_away(
    remote: RemoteSystem, away_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    await start_everything(remote)
    caplog.clear()

    with caplog.at_level(logging.INFO):
        async with remote.database_away():
            await asyncio.sleep(away_s)

    from_server = [record for record in caplog.records if record.name.startswith("server_stub")]
    assert 5 < remote.doorway.refused < 3 * away_s
    assert 1 <= len(from_server) < away_s / 3


OPERATIONS: dict[str, dict[str, Any]] = {
    "start": start_of("IdleProcess", "q"),
    "stop": {"processId": "p"},
    "describe": {"processId": "p"},
    "list": {},
    "publish": {"processId": "p", "messages": [{"queueName": "go"}]},
    "rpc": {"processId": "p", "rpcName": "ping"},
    "wait-for-completion": {"processId": "p"},
    "wait-for-state-completion": {"processId": "p", "stateId": "IdleState"},
    "get-attributes": {"processId": "p"},
    "set-attributes": {"processId": "p", "writeLocalAttributes": {"a": 1}},
    "skip-timer": {"processId": "p", "stateId": "IdleState", "index": 0},
    "update-config": {"processId": "p", "timeoutMs": 1},
}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_operation_is_answered_when_to_come_back_and_changes_nothing(
    remote: RemoteSystem, operation: str
) -> None:
    await remote.client.start_process("p", IdleProcess)
    await start_everything(remote)
    before = remote.sql("SELECT * FROM xdb_sys_process_execution WHERE process_id IN ('p', 'q')")

    async with remote.database_away():
        await asyncio.sleep(15)
        asked_s = asyncio.get_running_loop().time()
        response = await post(remote, operation, OPERATIONS[operation])
        answered_s = asyncio.get_running_loop().time()
    await asyncio.sleep(60)

    assert (response.status_code, response.json()["errorSubType"]) == (503, "UNAVAILABLE")
    assert int(response.headers["retry-after"]) >= 1
    assert "connection refused" not in response.text
    assert answered_s - asked_s < 3
    assert remote.sql("SELECT * FROM xdb_sys_process_execution WHERE process_id IN ('p', 'q')") == before


async def test_server_is_alive_but_not_ready_while_the_database_is_away(remote: RemoteSystem) -> None:
    found = []

    async def look() -> None:
        found.append([(await request(remote, "GET", path)).status_code for path in ("/healthz", "/readyz")])

    await look()
    async with remote.database_away():
        await look()
        await asyncio.sleep(60)
        await look()
    await look()

    assert found == [[200, 200], [200, 503], [200, 503], [200, 200]]


async def test_client_bridges_a_short_absence_without_starting_twice(remote: RemoteSystem) -> None:
    async with remote.database_away():
        starting = asyncio.ensure_future(remote.client.start_process("p", IdleProcess))
        await asyncio.sleep(4)
    started = await starting

    assert [each.process_execution_id async for each in remote.client.list_processes()] == [started]


async def test_client_tells_of_a_long_absence_and_nothing_was_started(remote: RemoteSystem) -> None:
    async with remote.database_away():
        with pytest.raises(UnavailableError):
            await remote.client.start_process("p", IdleProcess)
    await asyncio.sleep(60)

    assert [each async for each in remote.client.list_processes()] == []


async def test_wait_goes_on_over_a_short_absence(remote: RemoteSystem) -> None:
    await remote.client.start_process("p", IdleProcess)
    waiting = asyncio.ensure_future(remote.client.wait_for_process_completion("p", str))
    await asyncio.sleep(1)

    async with remote.database_away():
        await asyncio.sleep(12)
    await remote.client.publish_to_internal_queue("p", IdleProcess, IdleProcess.go)

    assert await waiting == "gone"


async def test_server_stops_while_the_database_is_away_and_the_next_one_goes_on(remote: RemoteSystem) -> None:
    await start_everything(remote)

    async with remote.database_away():
        await asyncio.sleep(20)
        await remote.stop_server()
    await remote.start_server()
    await asyncio.sleep(60)

    assert await statuses(remote) == {
        "timer": {ProcessStatus.COMPLETED},
        "work": {ProcessStatus.COMPLETED},
        "retry": {ProcessStatus.COMPLETED},
        "timeout": {ProcessStatus.TIMEOUT},
    }
