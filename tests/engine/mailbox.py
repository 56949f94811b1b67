"""A process that waits for what it is told to, for the tests of queues, of combinations and of races."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueue,
    InternalQueueCommand,
    ObjectProcess,
    ProcessStatus,
    QueueCommandStatus,
    QueueMessage,
    StateDecision,
    TimerCommand,
    internal_queue,
    rpc,
)

BOX = "box"
DEADLINE = timedelta(days=2)
"""When a wait of a test gives up: on virtual time a process that retries for ever would never end it."""


@dataclass
class Want:
    """A queue command."""

    queue: str
    count: int = 1
    command_id: str | None = None


@dataclass
class Ask:
    """A command request; `kind` is "any", "all" or "combination". Combinations know timers as t0, t1 and so on."""

    kind: str
    wants: list[Want]
    timers_s: list[float] = field(default_factory=list)
    combinations: list[list[str]] = field(default_factory=list)


def any_of(*wants: Want | str, timers_s: Sequence[float] = ()) -> Ask:
    """Ask for the first of queue commands and timers."""
    return Ask("any", _wants(wants), list(timers_s))


def all_of(*wants: Want | str, timers_s: Sequence[float] = ()) -> Ask:
    """Ask for all queue commands and timers."""
    return Ask("all", _wants(wants), list(timers_s))


def combination_of(combinations: Sequence[Sequence[str]], *wants: Want, timers_s: Sequence[float] = ()) -> Ask:
    """Ask for one of the lists of command ids."""
    return Ask("combination", _wants(wants), list(timers_s), [list(ids) for ids in combinations])


def _wants(wants: Sequence[Want | str]) -> list[Want]:
    return [Want(want) if isinstance(want, str) else want for want in wants]


class WaitState(AsyncState[Ask]):
    """Waits as it is asked to, and gives what came: for a queue command its messages, for a timer its status."""

    def wait_until(self, input: Ask) -> CommandRequest:
        queues = [InternalQueueCommand.by_name(w.queue, w.count, command_id=w.command_id) for w in input.wants]
        timers = [TimerCommand.by_seconds(seconds) for seconds in input.timers_s]
        if input.kind == "any":
            return CommandRequest.for_any_command_completed(*queues, *timers)
        if input.kind == "all":
            return CommandRequest.for_all_command_completed(*queues, *timers)
        named = [replace(timer, command_id=f"t{i}") for i, timer in enumerate(timers)]
        return CommandRequest.for_any_command_combination_completed(input.combinations, *queues, *named)

    def execute(self, command_results: CommandResults) -> StateDecision:
        received = [
            list(result.values) if result.status is QueueCommandStatus.RECEIVED else result.status.value
            for result in command_results.internal_queue_commands
        ]
        timers = [result.status.value for result in command_results.timer_commands]
        return StateDecision.graceful_complete_process([*received, *timers])


class Mailbox(ObjectProcess):
    """Completes, with what every wait received as its outputs, once no wait is open."""

    a: InternalQueue[Any] = internal_queue(Any)
    b: InternalQueue[Any] = internal_queue(Any)
    c: InternalQueue[Any] = internal_queue(Any)
    pigeonholes: InternalQueue[Any] = internal_queue(Any, prefix="p_")

    states = (WaitState,)

    @rpc
    def wait(self, asks: list[Ask], communication: Communication) -> None:
        for ask in asks:
            communication.trigger_state_execution(WaitState, ask)

    @rpc
    def publish_and_count(self, messages: list[str], communication: Communication) -> int:
        for message in messages:
            communication.publish_to_internal_queue(Mailbox.a, message)
        return communication.get_internal_queue_size(Mailbox.a)


async def start_mailbox(system: System, *asks: Ask) -> str:
    """Start a mailbox and let it wait for what is asked; give its process execution id."""
    system.serve(Mailbox)
    process_execution_id = await system.client.start_process(BOX, Mailbox)
    await ask(system, *asks)
    return process_execution_id


async def ask(system: System, *asks: Ask) -> None:
    """Let the mailbox wait for more, and come back when it does."""
    if asks:
        await system.client.invoke_rpc(BOX, Mailbox.wait, list(asks))
        await asyncio.sleep(0.001)


async def publish(system: System, queue: str, *values: Any) -> None:
    """Publish values to a queue of the mailbox in one transaction, and come back when they have had their effect."""
    await system.client.publish_messages(BOX, Mailbox, [QueueMessage(queue=queue, value=value) for value in values])
    await asyncio.sleep(0.001)


async def received(system: System) -> list[Any]:
    """Give what the waits received, in the order in which they ended."""
    outputs = (await system.client.describe_process(BOX)).outputs
    return [output.output for output in outputs]


async def results(system: System) -> list[Any]:
    """Wait for the completion of the mailbox, and give what its waits received in the order in which they ended."""
    outputs = await system.client.get_process_results(BOX, timeout=DEADLINE)
    return [output.output for output in outputs]


async def queue_sizes(system: System) -> dict[str, int]:
    """Count the messages that nobody has claimed."""
    sizes = (await system.client.describe_process(BOX, include={"queues"})).queue_sizes
    assert sizes is not None
    return dict(sizes)


async def claims(system: System) -> list[list[int]]:
    """Count the messages that each queue command of each open wait has."""
    info = await system.client.describe_process(BOX)
    return [[command.received_count for command in state.queue_commands] for state in info.states]


def leftovers(system: System) -> dict[str, int]:
    """Count the rows that closed executions have left behind where they may leave none."""
    closed = f"(SELECT process_execution_id FROM xdb_sys_process_execution WHERE status <> '{ProcessStatus.RUNNING}')"
    counts = {}
    for table, condition in (
        ("xdb_sys_async_state_execution", "(status = 'RUNNING' OR due_at_ms IS NOT NULL)"),
        ("xdb_sys_timer_tasks", "1 = 1"),
        ("xdb_sys_internal_queue", "1 = 1"),
    ):
        statement = f"SELECT count(*) FROM {table} WHERE {condition} AND process_execution_id IN {closed}"
        counts[table] = system.sql(statement)[0][0]
    return {table: count for table, count in counts.items() if count}


def timer_count(system: System) -> int:
    """Count the timers that are set."""
    count: int = system.sql("SELECT count(*) FROM xdb_sys_timer_tasks")[0][0]
    return count
