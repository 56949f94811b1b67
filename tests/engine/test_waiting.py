"""Waits for the end of a process or of a state: who is told, when, and what (semantics 6.4, 6.8)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.service_http import post
from tests.support.asgi import AsgiTransport
from tests.support.system import SERVER_URL, WORKER_URL, InMemoryClientTransport, System
from xdb_sdk import (
    AsyncClient,
    AsyncState,
    ClientOptions,
    CommandRequest,
    Communication,
    IdReusePolicy,
    InternalQueueCommand,
    ObjectProcess,
    ProcessAbnormalExitError,
    ProcessCanceled,
    ProcessErrorType,
    ProcessFailed,
    ProcessNotFoundError,
    ProcessStartOptions,
    ProcessStatus,
    ProcessStillRunningError,
    ProcessStopType,
    ProcessTerminated,
    ProcessTimeout,
    RetryPolicy,
    StateDecision,
    StateMovement,
    StateStatus,
    internal_queue,
    rpc,
    state,
)
from xdb_sdk.client._transport import LineStream, TransportError
from xdb_sdk.protocol import MAX_LONG_POLL_MS


@dataclass
class Waited:
    """How a wait ended: after how many seconds, and with which result or error."""

    seconds: float
    outcome: Any


async def waited(awaitable: Awaitable[Any]) -> Waited:
    """Wait, and tell how it ended."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        outcome = await awaitable
    except Exception as error:
        outcome = error
    return Waited(loop.time() - began_s, outcome)


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
class TaskState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(TaskProcess.orders))

    def execute(self, command_results: Any) -> StateDecision:
        match command_results.internal_queue_commands[0].value:
            case "complete":
                return StateDecision.force_complete_process("done")
            case "fail":
                return StateDecision.force_fail_process("sorry", "out of stock")
            case "again":
                return StateDecision.single_next_state(TaskState)
            case "with key":
                return StateDecision.multi_next_states(
                    StateMovement.create(TaskState), StateMovement.create(OtherState, wait_for_key="special")
                )
            case order:
                raise RuntimeError(order)


class OtherState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(7)
        return StateDecision.graceful_complete_process("other")


class TaskProcess(ObjectProcess):
    """Does what it is told to by messages."""

    orders = internal_queue(str)
    starting_state = TaskState
    states = (OtherState,)

    @rpc
    def finish(self, communication: Communication) -> None:
        communication.decide(StateDecision.force_complete_process("done"))

    @rpc
    def give_up(self, communication: Communication) -> None:
        communication.decide(StateDecision.force_fail_process("sorry"))


@pytest.fixture(autouse=True)
def served(system: System) -> None:
    """Let the worker know the process."""
    system.serve(TaskProcess)


async def start(
    system: System,
    *,
    policy: IdReusePolicy = IdReusePolicy.ALLOW_IF_NO_RUNNING,
    timeout: timedelta | None = None,
) -> str:
    """Start a task; give its process execution id."""
    options = ProcessStartOptions(id_reuse_policy=policy, timeout=timeout)
    return await system.client.start_process("p", TaskProcess, None, options)


async def order(system: System, what: str) -> None:
    """Tell the task what to do."""
    await system.client.publish_to_internal_queue("p", TaskProcess, TaskProcess.orders, what)


def wait(system: System, timeout: timedelta | None = None, execution: str | None = None) -> Awaitable[Waited]:
    """Wait for the end of the task as clients do."""
    client = system.client
    return waited(client.wait_for_process_completion("p", str, timeout, process_execution_id=execution))


async def by_decision(system: System) -> None:
    await order(system, "complete")


async def by_failing_decision(system: System) -> None:
    await order(system, "fail")


async def by_exhausted_attempts(system: System) -> None:
    await order(system, "trip over")


async def by_rpc(system: System) -> None:
    await system.client.invoke_rpc("p", TaskProcess.finish)


async def by_failing_rpc(system: System) -> None:
    await system.client.invoke_rpc("p", TaskProcess.give_up)


async def by_termination(system: System) -> None:
    await system.client.stop_process("p", ProcessStopType.TERMINATE, "enough")


async def by_failing_stop(system: System) -> None:
    await system.client.stop_process("p", ProcessStopType.FAIL, "enough")


async def by_cancel(system: System) -> None:
    await system.client.stop_process("p", ProcessStopType.CANCEL, "enough")


async def by_replacement(system: System) -> None:
    await start(system, policy=IdReusePolicy.TERMINATE_IF_RUNNING)


async def by_timeout(system: System) -> None:
    await system.client.update_process_config("p", timeout=timedelta(milliseconds=1))


Close = Callable[[System], Awaitable[None]]

ABNORMAL: dict[Close, tuple[type[ProcessAbnormalExitError], ProcessStatus, ProcessErrorType | None, str]] = {
    by_failing_decision: (ProcessFailed, ProcessStatus.FAILED, ProcessErrorType.STATE_DECISION, "out of stock"),
    by_exhausted_attempts: (ProcessFailed, ProcessStatus.FAILED, ProcessErrorType.STATE_API, "trip over"),
    by_failing_rpc: (ProcessFailed, ProcessStatus.FAILED, ProcessErrorType.STATE_DECISION, ""),
    by_failing_stop: (ProcessFailed, ProcessStatus.FAILED, ProcessErrorType.CLIENT_STOP, "enough"),
    by_termination: (ProcessTerminated, ProcessStatus.TERMINATED, ProcessErrorType.CLIENT_STOP, "enough"),
    by_cancel: (ProcessCanceled, ProcessStatus.CANCELED, ProcessErrorType.CLIENT_STOP, "enough"),
    by_replacement: (ProcessTerminated, ProcessStatus.TERMINATED, None, "replaced"),
    by_timeout: (ProcessTimeout, ProcessStatus.TIMEOUT, ProcessErrorType.TIMEOUT, "did not close"),
}


@pytest.mark.parametrize("close", [by_decision, by_rpc], ids=lambda close: close.__name__)
async def test_all_who_wait_are_told_promptly_of_a_completion(system: System, close: Close) -> None:
    await start(system)
    waiters = [asyncio.ensure_future(wait(system)) for _ in range(20)]
    await asyncio.sleep(45)

    await close(system)

    for told in await asyncio.gather(*waiters):
        assert told.outcome == "done"
        assert told.seconds == pytest.approx(45, abs=0.05)


@pytest.mark.parametrize("close", [by_decision, by_rpc], ids=lambda close: close.__name__)
async def test_wait_for_a_completed_process_is_answered_at_once(system: System, close: Close) -> None:
    await start(system)
    await close(system)
    await system.client.wait_for_process_completion("p")
    await asyncio.sleep(3_600)

    told = await asyncio.gather(*[wait(system, timedelta(0)) for _ in range(20)])

    assert told == [Waited(pytest.approx(0, abs=0.001), "done")] * 20  # type: ignore[arg-type]  # compares as a float


@pytest.mark.parametrize("close", ABNORMAL, ids=lambda close: close.__name__)
async def test_all_who_wait_are_told_how_the_process_ended_before_and_after(system: System, close: Close) -> None:
    execution_id = await start(system)
    waiters = [asyncio.ensure_future(wait(system)) for _ in range(20)]
    await asyncio.sleep(45)

    await close(system)
    before = await asyncio.gather(*waiters)
    after = await asyncio.gather(*[wait(system, execution=execution_id) for _ in range(20)])

    error_type, status, reason, message = ABNORMAL[close]
    for told in before:
        assert told.seconds == pytest.approx(45, abs=0.05)
    for told in after:
        assert told.seconds == pytest.approx(0, abs=0.001)
    for told in (*before, *after):
        error = told.outcome
        assert type(error) is error_type
        assert (error.process_execution_id, error.status, error.error_type) == (execution_id, status, reason)
        assert message in error.error_message


async def test_terminal_status_is_the_same_wherever_it_is_told(system: System) -> None:
    for close in ABNORMAL:
        execution_id = await start(system, policy=IdReusePolicy.TERMINATE_IF_RUNNING)
        await close(system)
        told = await wait(system, execution=execution_id)

        described = await system.client.describe_process("p", process_execution_id=execution_id)
        listed = {each.process_execution_id: each.status async for each in system.client.list_processes()}
        assert told.outcome.status is described.status is listed[execution_id]


async def test_wait_gives_up_at_its_deadline_and_may_be_repeated(system: System) -> None:
    execution_id = await start(system)

    told = await wait(system, timedelta(seconds=65))
    second = asyncio.ensure_future(wait(system))
    await asyncio.sleep(10)
    await order(system, "complete")

    error = told.outcome
    assert isinstance(error, ProcessStillRunningError)
    assert isinstance(error, TimeoutError)
    assert (error.process_id, error.process_execution_id) == ("p", execution_id)
    assert told.seconds == pytest.approx(65, abs=0.05)
    assert (await second).outcome == "done"


CAP_MS = MAX_LONG_POLL_MS


@pytest.mark.parametrize("asked_ms", [0, 1, CAP_MS - 1, CAP_MS, 10 * CAP_MS, 2**63, 10**30])
@pytest.mark.parametrize(
    ("operation", "body"),
    [("wait-for-completion", {}), ("wait-for-state-completion", {"stateId": "TaskState"})],
    ids=["process", "state"],
)
async def test_each_request_of_a_wait_ends_by_the_cap(
    system: System, operation: str, body: dict[str, Any], asked_ms: int
) -> None:
    await start(system)

    told = await waited(post(system, operation, {"processId": "p", "timeoutMs": asked_ms, **body}))

    assert told.seconds * 1_000 == pytest.approx(min(asked_ms, CAP_MS), abs=2)
    assert told.outcome.status_code == 200
    assert told.outcome.json()["timeout"] is True


@pytest.mark.parametrize("timeout_ms", [-1, 1.5, "soon", None], ids=str)
async def test_wait_for_a_time_that_cannot_be_meant_is_refused(system: System, timeout_ms: Any) -> None:
    await start(system)

    told = await waited(post(system, "wait-for-completion", {"processId": "p", "timeoutMs": timeout_ms}))

    assert told.seconds == pytest.approx(0, abs=0.001)
    assert told.outcome.status_code == 400
    assert "timeoutMs" in told.outcome.json()["details"]


class ImpatientProxy(InMemoryClientTransport):
    """Stands before the server and cuts off every request after 30 s."""

    cut = 0

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, timeout_s: float) -> AsyncIterator[LineStream]:
        try:
            async with asyncio.timeout(30), super().stream(path, body, timeout_s) as lines:
                yield lines
        except TimeoutError as error:
            self.cut += 1
            raise TransportError("cut off", was_sent=True) from error


async def test_wait_of_a_client_goes_through_a_proxy_that_cuts_long_requests(system: System) -> None:
    options = ClientOptions(server_url=SERVER_URL, worker_url=WORKER_URL)
    await start(system)
    async with AsgiTransport({SERVER_URL: system.server.api}) as transport:
        proxy = ImpatientProxy(transport)
        async with AsyncClient(system.registry, options, transport=proxy) as client:
            waiter = asyncio.ensure_future(waited(client.wait_for_process_completion("p", str)))
            await asyncio.sleep(95)
            await order(system, "complete")
            told = await waiter

    assert (told.outcome, proxy.cut) == ("done", 0)
    assert told.seconds == pytest.approx(95, abs=0.05)


@pytest.mark.parametrize("down_s", [0, 5, 3600], ids=["restart at once", "down for a while", "down for an hour"])
async def test_wait_outlives_a_restart_of_the_server(system: System, down_s: float) -> None:
    await start(system)
    waiters = [asyncio.ensure_future(wait(system)) for _ in range(3)]
    of_state = asyncio.ensure_future(system.client.wait_for_state_completion("p", TaskState))
    await asyncio.sleep(5)

    await system.stop_server()
    await asyncio.sleep(down_s)
    await system.start_server()
    await asyncio.sleep(5)
    await order(system, "complete")

    told = await asyncio.gather(*waiters)
    assert [each.outcome for each in told] == ["done"] * 3
    assert [each.seconds for each in told] == [pytest.approx(10 + down_s, abs=0.05)] * 3
    assert (await of_state).state_status is StateStatus.COMPLETED


async def test_wait_follows_the_execution_that_was_current_at_its_beginning(system: System) -> None:
    first_id = await start(system)
    waiter = asyncio.ensure_future(wait(system))
    await asyncio.sleep(45)

    await start(system, policy=IdReusePolicy.TERMINATE_IF_RUNNING)
    told = await waiter
    await order(system, "complete")

    assert isinstance(told.outcome, ProcessTerminated)
    assert told.outcome.process_execution_id == first_id
    assert (await wait(system)).outcome == "done"


@pytest.mark.parametrize("kind", ["process", "state"])
async def test_wait_for_an_unknown_process_is_refused_at_once(system: System, kind: str) -> None:
    if kind == "process":
        told = await waited(system.client.wait_for_process_completion("nobody"))
    else:
        told = await waited(system.client.wait_for_state_completion("nobody", TaskState))

    assert isinstance(told.outcome, ProcessNotFoundError)
    assert told.seconds == pytest.approx(0, abs=0.001)


async def test_wait_for_a_state_execution_by_number_ends_with_that_one(system: System) -> None:
    await start(system)
    waiters = [
        asyncio.ensure_future(waited(system.client.wait_for_state_completion("p", TaskState, number)))
        for number in (1, 2, 3)
    ]

    for what in ("again", "again", "complete"):
        await asyncio.sleep(40)
        await order(system, what)
    told = await asyncio.gather(*waiters)
    late = await waited(system.client.wait_for_state_completion("p", TaskState, 2))

    assert [each.seconds for each in told] == [pytest.approx(seconds, abs=0.05) for seconds in (40, 80, 120)]
    assert [each.outcome.state_execution_id for each in told] == ["TaskState-1", "TaskState-2", "TaskState-3"]
    assert [each.outcome.state_status for each in told] == [StateStatus.COMPLETED] * 3
    assert [each.outcome.output for each in told] == [None, None, "done"]
    assert (late.outcome.state_execution_id, late.outcome.state_status) == ("TaskState-2", StateStatus.COMPLETED)
    assert late.seconds == pytest.approx(0, abs=0.001)


async def test_wait_for_a_state_execution_by_key_ends_with_the_one_of_that_movement(system: System) -> None:
    await start(system)
    waiter = asyncio.ensure_future(waited(system.client.wait_for_state_completion("p", OtherState, key="special")))
    await asyncio.sleep(40)

    await order(system, "with key")
    told = await waiter

    assert told.seconds == pytest.approx(47, abs=0.05)
    assert told.outcome.state_execution_id == "OtherState-1"
    assert (told.outcome.state_status, told.outcome.output) == (StateStatus.COMPLETED, "other")
    assert told.outcome.process_status is ProcessStatus.RUNNING


@pytest.mark.parametrize("close", [by_decision, *ABNORMAL], ids=lambda close: close.__name__)
async def test_wait_for_a_state_that_will_never_run_ends_with_the_process(system: System, close: Close) -> None:
    await start(system)
    by_number = asyncio.ensure_future(waited(system.client.wait_for_state_completion("p", OtherState)))
    by_key = asyncio.ensure_future(waited(system.client.wait_for_state_completion("p", TaskState, key="never")))
    await asyncio.sleep(45)

    await close(system)

    for told in await asyncio.gather(by_number, by_key):
        assert told.seconds == pytest.approx(45, abs=0.05)
        assert (told.outcome.state_execution_id, told.outcome.state_status) == (None, None)
        assert told.outcome.process_status is not ProcessStatus.RUNNING


async def test_wait_for_a_state_that_is_aborted_ends_with_the_abort(system: System) -> None:
    await start(system)
    waiter = asyncio.ensure_future(waited(system.client.wait_for_state_completion("p", TaskState)))
    await asyncio.sleep(45)

    await system.client.stop_process("p")
    told = await waiter

    assert told.seconds == pytest.approx(45, abs=0.05)
    assert told.outcome.state_status is StateStatus.ABORTED


async def test_wait_for_a_state_gives_up_at_its_deadline(system: System) -> None:
    await start(system)

    told = await waited(system.client.wait_for_state_completion("p", TaskState, timeout=timedelta(seconds=65)))

    assert isinstance(told.outcome, ProcessStillRunningError)
    assert told.seconds == pytest.approx(65, abs=0.05)
