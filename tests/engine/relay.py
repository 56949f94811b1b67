"""A process that passes one value through every boundary between client, server, worker and table."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessStartOptions,
    RetryPolicy,
    StateDecision,
    data_attribute,
    internal_queue,
    process,
    rpc,
    state,
)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

BOUNDARIES = (
    "input of a start",
    "attribute of a start",
    "input of the next state",
    "attribute of a state",
    "prefix attribute of a state",
    "state local",
    "message of a state",
    "message of an RPC",
    "message of a client",
    "input of an RPC",
    "output of an RPC",
    "attribute of an RPC",
    "input of a triggered state",
    "attribute of a client",
    "attribute for a client",
    "output of a state",
    "result of the process",
    "results of the process",
)


def typed(**hints: Any) -> Callable[[FunctionT], FunctionT]:
    """Annotate parameters with types that are known at run time only."""

    def annotate(function: FunctionT) -> FunctionT:
        function.__annotations__.update(hints)
        return function

    return annotate


def relay_of(type_hint: Any, found: dict[str, Any], *, is_mapped: bool = False) -> type[ObjectProcess]:
    """Make a process whose inputs, attributes, messages and outputs are all of one type.

    Args:
        type_hint: The type.
        found: Where the process puts what comes out of each boundary.
        is_mapped: Whether its attributes are columns of the table "relay".
    """

    @state(execute_api_retry_policy=RetryPolicy(maximum_attempts=1))
    class FirstState(AsyncState):  # type: ignore[type-arg]  # the parameter says it
        @typed(input=type_hint)
        def execute(self, input: Any, persistence: Persistence, communication: Communication) -> StateDecision:
            found["input of a start"] = input
            found["attribute of a start"] = persistence.get_data_attribute("given")
            persistence.set_data_attribute("copy", input)
            if not is_mapped:
                persistence.set_data_attribute("more.of.it", input)
            communication.publish_to_internal_queue("queue", input)
            return StateDecision.single_next_state(SecondState, input)

    @state(wait_until_api_retry_policy=RetryPolicy(maximum_attempts=1))
    class SecondState(AsyncState):  # type: ignore[type-arg]  # the parameter says it
        @typed(input=type_hint)
        def wait_until(self, input: Any, persistence: Persistence) -> CommandRequest:
            persistence.set_state_execution_local("local", input)
            return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("queue", 3))

        @typed(input=type_hint)
        def execute(self, input: Any, persistence: Persistence, command_results: CommandResults) -> StateDecision:
            found["input of the next state"] = input
            found["attribute of a state"] = persistence.get_data_attribute("copy")
            found["prefix attribute of a state"] = persistence.get_data_attribute("copy" if is_mapped else "more.of.it")
            found["state local"] = persistence.get_state_execution_local("local", type_hint)
            messages = command_results.internal_queue_commands[0].values
            for sender, value in zip(("a state", "an RPC", "a client"), messages, strict=True):
                found[f"message of {sender}"] = value
            return StateDecision.graceful_complete_process(input)

    class TriggeredState(AsyncState):  # type: ignore[type-arg]  # the parameter says it
        @typed(input=type_hint)
        def execute(self, input: Any) -> StateDecision:
            found["input of a triggered state"] = input
            return StateDecision.dead_end()

    class Relay(ObjectProcess):
        given = data_attribute(type_hint)
        copy = data_attribute(type_hint)
        outside = data_attribute(type_hint)
        queue = internal_queue(type_hint)

        starting_state = FirstState
        states = (SecondState, TriggeredState)

        @rpc
        @typed(input=type_hint, **{"return": type_hint})
        def send(self, input: Any, persistence: Persistence, communication: Communication) -> Any:
            found["input of an RPC"] = input
            persistence.set_data_attribute("copy", input)
            communication.publish_to_internal_queue("queue", input)
            communication.trigger_state_execution(TriggeredState, input)
            return input

        @rpc
        @typed(**{"return": type_hint})
        def fetch(self, persistence: Persistence) -> Any:
            found["attribute of a client"] = persistence.get_data_attribute("outside")
            return persistence.get_data_attribute("copy")

    if is_mapped:
        return process(table_name="relay", primary_key="relay_id", primary_key_type=str)(Relay)
    Relay.more = data_attribute(type_hint, prefix="more.")  # type: ignore[attr-defined]  # tables have no prefixes
    return Relay


async def pass_through(system: System, relay: type[ObjectProcess], value: Any, found: dict[str, Any]) -> None:
    """Pass a value through all boundaries of a process that `relay_of` has made."""
    system.serve(relay)
    client, methods = system.client, vars(relay)
    type_hint = vars(relay)["given"].type_hint
    options = ProcessStartOptions(initial_upsert_data_attributes={"given": value}, timeout=timedelta(days=1))
    if system.registry.process_of(relay).table is None:
        await client.start_process("p", relay, value, options)
    else:
        await client.start_object_process("p", relay, "r", value, options)
    await asyncio.sleep(1)

    found["output of an RPC"] = await client.invoke_rpc("p", methods["send"], value)
    await client.set_data_attributes("p", relay, {"outside": value})
    found["attribute of an RPC"] = await client.invoke_rpc("p", methods["fetch"])
    found["attribute for a client"] = (await client.get_data_attributes("p", relay))["copy"]
    await client.publish_to_internal_queue("p", relay, "queue", value)
    completion = await client.wait_for_state_completion("p", "SecondState", type_hint=type_hint)
    found["output of a state"] = completion.output
    found["result of the process"] = await client.wait_for_process_completion("p", type_hint)
    found["results of the process"] = (await client.get_process_results("p", type_hint))[0].output
