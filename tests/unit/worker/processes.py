"""A process whose states do what a test tells them, and the calls that a server would make of it."""

import asyncio
from collections.abc import Callable
from typing import Any

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    Registry,
    StateContext,
    StateDecision,
    StateSchema,
    data_attribute,
    internal_queue,
    process,
    rpc,
)
from xdb_sdk.protocol import CallContext, ExecuteCall, LoadedData, RpcCall, WaitUntilCall

PROCESS_TYPE = "Workshop"
EXECUTION_ID = "0190a5c0-0000-7000-8000-000000000001"


class Echo(AsyncState[str]):
    """Completes with its input."""

    async def execute(self, input: str) -> StateDecision:
        return StateDecision.graceful_complete_process(input)


class Act(AsyncState[str]):
    """Runs the test's own code on the event loop."""

    def __init__(self, workshop: "Workshop") -> None:
        self._workshop = workshop

    async def execute(self, ctx: ProcessContext, input: str) -> StateDecision:
        result = self._workshop.action(ctx)
        if asyncio.iscoroutine(result):
            await result
        return StateDecision.dead_end()


class ActInThread(AsyncState[str]):
    """Runs the test's own code in a thread."""

    def __init__(self, workshop: "Workshop") -> None:
        self._workshop = workshop

    def execute(self, ctx: ProcessContext) -> StateDecision:
        self._workshop.action(ctx)
        return StateDecision.dead_end()


class Trade(AsyncState[str]):
    """Waits for a message; then uses everything that a state can be given."""

    def wait_until(self, input: str, persistence: Persistence, communication: Communication) -> CommandRequest:
        persistence.set_state_execution_local("asked", input)
        communication.publish_to_internal_queue(Workshop.orders, f"for {input}")
        return CommandRequest.for_any_command_completed(InternalQueueCommand.by_name(Workshop.orders))

    async def execute(
        self,
        ctx: StateContext,
        input: str,
        command_results: CommandResults,
        persistence: Persistence,
        communication: Communication,
    ) -> StateDecision:
        asked = persistence.get_state_execution_local("asked")
        received = command_results.internal_queue_commands[0].value
        persistence.set_data_attribute(Workshop.note, f"{asked}, {received}, attempt {ctx.attempt}")
        persistence.record_event("exchanged", input)
        communication.publish_to_internal_queue(Workshop.orders, "again")
        return StateDecision.single_next_state(Echo, input)


class Undecided(AsyncState[None]):
    """Forgets to return a decision."""

    def execute(self) -> StateDecision:
        return None  # type: ignore[return-value]  # the mistake under test


class Workshop(ObjectProcess):
    """Does what `action` says."""

    note = data_attribute(str)
    orders = internal_queue(str)

    def __init__(self) -> None:
        self.action: Callable[[ProcessContext], Any] = lambda ctx: None

    def get_async_states(self) -> StateSchema:
        return StateSchema.with_starting_state(Echo(), Act(self), ActInThread(self), Trade(), Undecided())

    @rpc()
    def read_note(self, persistence: Persistence) -> str | None:
        return persistence.get_data_attribute(Workshop.note)

    @rpc()
    async def count_orders(self, communication: Communication) -> int:
        return communication.get_internal_queue_size(Workshop.orders)

    @rpc()
    async def begin(self, input: str, communication: Communication) -> str:
        communication.trigger_state_execution(Echo, input)
        return input.upper()


def registry_of(workshop: Workshop) -> Registry:
    registry = Registry()
    registry.add_processes(workshop, Shelf)
    return registry


def context(**changes: Any) -> CallContext:
    values: dict[str, Any] = {
        "namespace": "default",
        "process_id": "w-1",
        "process_execution_id": EXECUTION_ID,
        "process_type": PROCESS_TYPE,
        "process_started_at_ms": 1_767_225_600_000,
        "state_execution_id": "Echo-1",
        "attempt": 1,
        "first_attempt_at_ms": 1_767_225_600_000,
        "idempotency_key": f"{EXECUTION_ID}/Echo-1/EXECUTE",
        "timeout_ms": 30_000,
    }
    return CallContext(**(values | changes))


NOTHING_SET = LoadedData(asked_local_attributes=("note",))
"""What a server sends that was asked for the note, which has no value yet."""


FRAGILE = LoadedData(local_attributes={"note": "fragile"}, asked_local_attributes=("note",))


def execute_call(state_id: str, input: Any = None, **changes: Any) -> ExecuteCall:
    values: dict[str, Any] = {
        "context": context(),
        "process_type": PROCESS_TYPE,
        "state_id": state_id,
        "input": input,
        "loaded": NOTHING_SET,
    }
    return ExecuteCall(**(values | changes))


def wait_until_call(state_id: str, input: Any = None, **changes: Any) -> WaitUntilCall:
    values: dict[str, Any] = {
        "context": context(),
        "process_type": PROCESS_TYPE,
        "state_id": state_id,
        "input": input,
        "loaded": NOTHING_SET,
    }
    return WaitUntilCall(**(values | changes))


def rpc_call(rpc_name: str, input: Any = None, **changes: Any) -> RpcCall:
    values: dict[str, Any] = {
        "context": context(),
        "process_type": PROCESS_TYPE,
        "rpc_name": rpc_name,
        "input": input,
        "loaded": NOTHING_SET,
    }
    return RpcCall(**(values | changes))


class Restock(AsyncState[int]):
    """Adds to a column."""

    def execute(self, input: int, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute(Shelf.books, persistence.get_data_attribute(Shelf.books) + input)
        return StateDecision.dead_end()


@process(table_name="shelf", primary_key="shelf_id", primary_key_type=str)
class Shelf(ObjectProcess):
    """Is mapped to a row."""

    books = data_attribute(int)

    starting_state = Restock

    @rpc(read_only=True)
    def peek(self, persistence: Persistence) -> int:
        persistence.set_data_attribute(Shelf.books, 0)
        return 0
