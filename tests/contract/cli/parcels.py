"""Processes whose classes say more than their names: options, types, a table."""

from dataclasses import dataclass

from xdb_sdk import (
    AsyncState,
    ObjectProcess,
    Persistence,
    Registry,
    RetryPolicy,
    StateDecision,
    Worker,
    data_attribute,
    process,
    state,
)


@dataclass
class Address:
    """Where a parcel goes."""

    city: str


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=2, maximum_interval_seconds=7))
class Weigh(AsyncState[int]):
    """Has options, and an input of a type."""

    def execute(self, input: int, persistence: Persistence) -> StateDecision:
        return StateDecision.graceful_complete_process(input)


@process(table_name="parcel", primary_key="id", primary_key_type=int)
class Parcel(ObjectProcess):
    """Is mapped to a row."""

    address = data_attribute(Address)
    note = data_attribute(str)
    starting_state = Weigh


class Scale(ObjectProcess):
    """Has no row."""

    starting_state = Weigh


class Box(ObjectProcess):
    """Has no starting state."""


registry = Registry()
registry.add_processes(Parcel, Scale, Box)
app = Worker(registry)
