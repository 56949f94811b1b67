"""Processes whose effects can be counted afterwards."""

import asyncio
import random
from datetime import timedelta

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    LockType,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessContext,
    RetryPolicy,
    StateDecision,
    StateMovement,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)

CHAIN_LENGTH = 6
PATIENT = RetryPolicy(initial_interval_seconds=0.2, maximum_interval_seconds=2)


class UserCode:
    """Where user code draws whether it fails, so that a seed decides."""

    rng = random.Random(0)
    failure_rate = 0.0

    @classmethod
    def may_fail(cls) -> None:
        if cls.rng.random() < cls.failure_rate:
            raise ConnectionError("the mail server is not there")

    @classmethod
    async def take_time(cls) -> None:
        await asyncio.sleep(cls.rng.random() * 0.4)


LOCKED = PersistenceLoadingPolicy.all().locking(["total"], LockType.EXCLUSIVE_LOCK)


@state(execute_api_timeout_seconds=3, execute_api_retry_policy=PATIENT, data_attributes_loading_policy=LOCKED)
class Add(AsyncState[int]):
    """Adds one to the row, and goes on to itself until the chain is long enough."""

    async def execute(self, ctx: ProcessContext, input: int, persistence: Persistence) -> StateDecision:
        UserCode.may_fail()
        total = persistence.get_data_attribute(Chain.total) or 0
        await UserCode.take_time()
        persistence.set_data_attribute(Chain.total, total + 1)
        persistence.set_data_attribute(Chain.last_step, ctx.state_execution_id or "")
        if input >= CHAIN_LENGTH:
            return StateDecision.graceful_complete_process(input)
        return StateDecision.single_next_state(Add, input + 1)


@process(table_name="accounts", primary_key="id", primary_key_type=str)
class Chain(ObjectProcess):
    """Adds to a row of the application's, by its states and by RPC, under one lock."""

    total = data_attribute(int)
    last_step = data_attribute(str)

    starting_state = Add

    @rpc(data_attribute_loading_policy=LOCKED)
    async def deposit(self, amount: int, persistence: Persistence) -> int:
        total = (persistence.get_data_attribute(Chain.total) or 0) + amount
        await UserCode.take_time()
        persistence.set_data_attribute(Chain.total, total)
        return total


@state(wait_until_api_timeout_seconds=3, execute_api_timeout_seconds=3, execute_api_retry_policy=PATIENT)
class Receive(AsyncState[None]):
    """Takes messages one by one until it is told to stop and none is left."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            InternalQueueCommand.by_name(Mailbox.inbox),
            TimerCommand.timer_command_by_duration(timedelta(minutes=10)),
        )

    async def execute(self, command_results: CommandResults, persistence: Persistence) -> StateDecision:
        UserCode.may_fail()
        received = persistence.get_data_attribute(Mailbox.received) or []
        values = list(command_results.values_of(Mailbox.inbox))
        persistence.set_data_attribute(Mailbox.received, [*received, *values])
        if "stop" not in [*received, *values]:
            return StateDecision.single_next_state(Receive)
        return StateDecision.force_complete_if_internal_queue_empty_or_else(
            Mailbox.inbox, output=None, or_else_state=Receive
        )


class Mailbox(ObjectProcess):
    """Collects the messages of several senders."""

    received = data_attribute(list[str])
    inbox = internal_queue(str)

    starting_state = Receive

    @rpc
    async def post(self, message: str, communication: Communication) -> None:
        """Send a message that nothing tells from a second one: carried out twice it would be received twice."""
        communication.publish_to_internal_queue(Mailbox.inbox, message)


class Fork(AsyncState[int]):
    """Starts the branches, and the state that joins them."""

    async def execute(self, input: int) -> StateDecision:
        branches = [StateMovement.create(Branch, number) for number in range(input)]
        return StateDecision.multi_next_states(*branches, StateMovement.create(Join, input))


@state(
    execute_api_timeout_seconds=3,
    execute_api_retry_policy=RetryPolicy(maximum_attempts=2, initial_interval_seconds=0.1),
    proceed_to_state_when_execute_retry_exhausted="Excuse",
)
class Branch(AsyncState[int]):
    """Does its part, unless it cannot."""

    def execute(self, input: int, communication: Communication) -> StateDecision:
        UserCode.may_fail()
        communication.publish_to_internal_queue(Tree.parts, f"part {input}")
        return StateDecision.dead_end()


@state(execute_api_timeout_seconds=3, execute_api_retry_policy=PATIENT)
class Excuse(AsyncState[int]):
    """Stands in for a branch that could not."""

    async def execute(self, input: int, communication: Communication) -> StateDecision:
        communication.publish_to_internal_queue(Tree.parts, f"excuse {input}")
        return StateDecision.dead_end()


@state(
    wait_until_api_timeout_seconds=3,
    execute_api_timeout_seconds=3,
    execute_api_retry_policy=PATIENT,
    wait_until_api_retry_policy=PATIENT,
)
class Join(AsyncState[int]):
    """Waits for every part."""

    def wait_until(self, input: int) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(Tree.parts, count=input))

    async def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.force_complete_process(sorted(command_results.values_of(Tree.parts)))


class Tree(ObjectProcess):
    """Forks, joins, and recovers branches that fail."""

    parts = internal_queue(str)

    starting_state = Fork
    states = (Branch, Excuse, Join)


class Nap(AsyncState[float]):
    """Sleeps."""

    def wait_until(self, input: float) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.by_seconds(input))

    async def execute(self, ctx: ProcessContext) -> StateDecision:
        return StateDecision.graceful_complete_process("awake")


class Sleeper(ObjectProcess):
    """Sleeps, and may be cut short by its timeout."""

    starting_state = Nap


PROCESSES = (Chain, Mailbox, Tree, Sleeper)
