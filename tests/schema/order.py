"""The process that was running when the rows of version 1 were written: every kind of pending work at once."""

from datetime import timedelta
from typing import Any

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    RetryPolicy,
    StateDecision,
    StateMovement,
    TimerCommand,
    data_attribute,
    internal_queue,
    state,
)


class PlaceState(AsyncState[str]):
    """Branches into the others."""

    def execute(self, input: str, persistence: Persistence) -> StateDecision:
        persistence.set_data_attribute("note", f"Straße {input}")
        persistence.record_event("placed", input)
        return StateDecision.multi_next_states(
            StateMovement.create(PayState, "in two parts"), RemindState, StateMovement.create(ShipState, 3)
        )


class PayState(AsyncState[str]):
    """Waits for two messages, one of which it has."""

    def wait_until(self, persistence: Persistence) -> CommandRequest:
        persistence.set_state_execution_local("asked", "by post")
        return CommandRequest.for_all_command_completed(
            InternalQueueCommand.by_name("paid"), InternalQueueCommand.by_name("confirmed")
        )

    def execute(self, input: str, results: CommandResults, persistence: Persistence) -> StateDecision:
        asked = persistence.get_state_execution_local("asked")
        return StateDecision.single_next_state(SettleState, [input, asked, *_values(results)])


class SettleState(AsyncState[list[Any]]):
    """Takes the message that was left in the queue."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("paid"))

    def execute(self, input: list[Any], results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process([*input, *_values(results)])


class RemindState(AsyncState[None]):
    """Waits for a timer."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(TimerCommand.timer_command_by_duration(timedelta(hours=1)))

    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(persistence.get_data_attribute("note"))


@state(execute_api_retry_policy=RetryPolicy(initial_interval_seconds=60))
class ShipState(AsyncState[int]):
    """Has failed once: that worker raised an error here."""

    def execute(self, input: int) -> StateDecision:
        return StateDecision.graceful_complete_process(f"shipped {input}")


class OrderProcess(ObjectProcess):
    note = data_attribute(str)
    paid = internal_queue(Any)
    confirmed = internal_queue(Any)

    starting_state = PlaceState
    states = (PayState, SettleState, RemindState, ShipState)


def _values(results: CommandResults) -> list[Any]:
    return [value for result in results.internal_queue_commands for value in result.values]
