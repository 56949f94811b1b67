"""What the end of a process leaves behind: its last writes, and nothing else (semantics 4.8, 9.6)."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.mailbox import leftovers
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    IdReusePolicy,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessStartOptions,
    ProcessStatus,
    RetryPolicy,
    RpcLockNotAcquiredError,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)
from xdb_sdk.protocol import TableMapping

LOCKING = PersistenceLoadingPolicy.all().locking(["status"])


class EnterState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.multi_next_states(PartlyServedState, BackoffState, LockingState, DecideState)


class PartlyServedState(AsyncState[None]):
    """Holds a message and waits for another, and for timers."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(
            InternalQueueCommand.by_name(TicketProcess.notes),
            InternalQueueCommand.by_name(TicketProcess.never),
            TimerCommand.by_seconds(1),
            TimerCommand.by_seconds(3_600),
        )

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class BackoffState(AsyncState[None]):
    def execute(self) -> StateDecision:
        raise RuntimeError("not yet")


@state(data_attributes_loading_policy=LOCKING)
class LockingState(AsyncState[None]):
    async def execute(self, persistence: Persistence) -> StateDecision:
        await asyncio.sleep(20)
        persistence.set_data_attribute(TicketProcess.status, "too late")
        return StateDecision.dead_end()


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
class DecideState(AsyncState[None]):
    """Ends the process as a message says, writing and publishing in the same answer."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(TicketProcess.orders))

    def execute(
        self, command_results: CommandResults, persistence: Persistence, communication: Communication
    ) -> StateDecision:
        order = command_results.internal_queue_commands[0].value
        persistence.set_data_attribute(TicketProcess.status, order)
        communication.publish_to_internal_queue(TicketProcess.notes, "last words")
        match order:
            case "complete":
                return StateDecision.force_complete_process(order)
            case "fail":
                return StateDecision.force_fail_process(order)
            case _:
                raise RuntimeError(order)


@process(table_name="ticket", primary_key="ticket_id", primary_key_type=str)
class TicketProcess(ObjectProcess):
    """Has something of everything open: waits, claims, timers, backoff, a locking call, messages, skips."""

    status = data_attribute(str)
    notes = internal_queue(str)
    never = internal_queue(None)
    orders = internal_queue(str)

    starting_state = EnterState
    states = (PartlyServedState, BackoffState, LockingState, DecideState)

    @rpc(data_attribute_loading_policy=LOCKING)
    def set_status(self, status: str, persistence: Persistence) -> None:
        persistence.set_data_attribute(TicketProcess.status, status)

    @rpc
    def finish(self, communication: Communication) -> None:
        communication.publish_to_internal_queue(TicketProcess.notes, "last words")
        communication.decide(StateDecision.force_complete_process("finished"))


@pytest.fixture(autouse=True)
def application(system: System) -> None:
    """Give the application its tickets."""
    system.sql("CREATE TABLE ticket (ticket_id VARCHAR(255) PRIMARY KEY, status TEXT)")
    system.serve(TicketProcess)


async def start_ticket(system: System) -> str:
    """Start a ticket and let it open everything it has."""
    options = ProcessStartOptions(timeout=timedelta(hours=1))
    started = await system.client.start_object_process("p", TicketProcess, "t-1", None, options)
    for note in ("first", "second", "third"):
        await system.client.publish_to_internal_queue("p", TicketProcess, TicketProcess.notes, note, note)
    await system.client.skip_timer("p", DecideState, 9, index=0, remember=True)
    await asyncio.sleep(2)
    return started


async def order(system: System, what: str) -> None:
    await system.client.publish_to_internal_queue("p", TicketProcess, TicketProcess.orders, what)
    await asyncio.sleep(0.1)


async def complete(system: System) -> None:
    await order(system, "complete")


async def fail(system: System) -> None:
    await order(system, "fail")


async def exhaust(system: System) -> None:
    await order(system, "trip over")


async def finish_by_rpc(system: System) -> None:
    await system.client.invoke_rpc("p", TicketProcess.finish)


async def stop(system: System) -> None:
    await system.client.stop_process("p")


async def replace(system: System) -> None:
    options = ProcessStartOptions(id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)
    await system.raw.start_process("p", "TicketProcess", None, options)


async def time_out(system: System) -> None:
    await asyncio.sleep(3_600)


ENDS = (complete, fail, exhaust, finish_by_rpc, stop, replace, time_out)


async def start_neighbour(system: System) -> None:
    """Start a process without states over the same row."""
    row = TableMapping(table_name="ticket", primary_key={"ticket_id": "t-1"})
    await system.raw.start_process("neighbour", "TicketProcess", table=row)


async def seconds_of(awaitable: Awaitable[Any]) -> float:
    """Give the seconds that a call takes."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await awaitable
    return loop.time() - began_s


async def test_running_process_holds_its_lock_against_a_neighbour(system: System) -> None:
    await start_ticket(system)
    await start_neighbour(system)

    with pytest.raises(RpcLockNotAcquiredError):
        await system.client.invoke_rpc("neighbour", TicketProcess.set_status, "mine")

    assert system.sql("SELECT * FROM ticket") == []


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_closed_process_leaves_nothing_open(system: System, end: Callable[[System], Awaitable[None]]) -> None:
    ended = await start_ticket(system)
    await start_neighbour(system)
    before = await system.client.describe_process("p", include={"queues"})

    await end(system)
    waited_s = await seconds_of(system.client.invoke_rpc("neighbour", TicketProcess.set_status, "mine"))
    calls = system.worker.by_state()
    await asyncio.sleep(60)

    info = await system.client.describe_process("p", process_execution_id=ended, include={"queues"})
    skips = "SELECT remembered_skips FROM xdb_sys_process_execution WHERE process_execution_id = ?"
    assert len(before.states) == 4
    assert before.queue_sizes == {"notes": 2}
    assert info.status is not ProcessStatus.RUNNING
    assert (info.states, info.queue_sizes) == ((), {})
    assert leftovers(system) == {}
    assert system.sql(skips, ended)[0][0] in (None, "[]")
    assert waited_s < 0.1
    assert system.sql("SELECT status FROM ticket") == [("mine",)]
    assert system.worker.by_state() == calls
    assert system.server.dispatcher.is_idle


@pytest.mark.parametrize(("what", "status"), [("complete", ProcessStatus.COMPLETED), ("fail", ProcessStatus.FAILED)])
async def test_answer_that_closes_the_process_writes_its_attributes_and_drops_its_messages(
    system: System, what: str, status: ProcessStatus
) -> None:
    await start_ticket(system)

    await order(system, what)

    info = await system.client.describe_process("p", include={"queues"})
    assert (info.status, info.queue_sizes) == (status, {})
    assert system.sql("SELECT status FROM ticket") == [(what,)]
    assert system.sql("SELECT * FROM xdb_sys_internal_queue") == []
    assert [output.output for output in info.outputs] == [what]


async def test_failure_that_closes_the_process_writes_nothing(system: System) -> None:
    await start_ticket(system)
    await system.client.set_data_attributes("p", TicketProcess, {"status": "before"})

    await order(system, "trip over")

    assert (await system.client.describe_process("p")).status is ProcessStatus.FAILED
    assert system.sql("SELECT status FROM ticket") == [("before",)]
    assert system.sql("SELECT * FROM xdb_sys_internal_queue") == []
