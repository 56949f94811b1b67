"""What the worker of these tests serves: `xdb worker tests.faults.processes:app`."""

import time
from pathlib import Path

from tests.simulation.processes import PATIENT, Mailbox, Sleeper, Tree
from xdb_sdk import (
    AsyncState,
    LockType,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessContext,
    Registry,
    RetryPolicy,
    StateDecision,
    Worker,
    data_attribute,
    process,
    rpc,
    state,
)

POSTINGS = 4
CALL_TIMEOUT_S = 1
CALLS_FILE = "calls.txt"
"""In the working directory of the worker: a line for the beginning and one for the end of each call of a `Step`, and
one for each call of a `Fail`."""

CREATE_LEDGERS = "CREATE TABLE ledgers (id VARCHAR(100) PRIMARY KEY, total INTEGER, entries TEXT)"

ATTEMPTS = 6
STUBBORN = RetryPolicy(initial_interval_seconds=0.5, backoff_coefficient=1, maximum_attempts=ATTEMPTS)

LOCKED = PersistenceLoadingPolicy.all().locking(["entries"], LockType.EXCLUSIVE_LOCK)


@state(
    execute_api_timeout_seconds=CALL_TIMEOUT_S,
    execute_api_retry_policy=PATIENT,
    data_attributes_loading_policy=LOCKED,
)
class Post(AsyncState[int]):
    """Posts an entry, and goes on to itself until there are enough."""

    def execute(self, ctx: ProcessContext, input: int, persistence: Persistence) -> StateDecision:
        post(persistence, f"{ctx.process_id} {ctx.state_execution_id}")
        if input >= POSTINGS:
            return StateDecision.graceful_complete_process(input)
        return StateDecision.single_next_state(Post, input + 1)


@process(table_name="ledgers", primary_key="id", primary_key_type=str)
class Ledger(ObjectProcess):
    """Keeps in a row of the application's every effect that there was: by its states and by RPC, under one lock."""

    total = data_attribute(int)
    entries = data_attribute(list[str])

    starting_state = Post

    @rpc(timeout_seconds=CALL_TIMEOUT_S, data_attribute_loading_policy=LOCKED)
    async def deposit(self, entry: str, persistence: Persistence) -> int:
        return post(persistence, entry)


def post(persistence: Persistence, entry: str) -> int:
    """Add an entry, and give the new total."""
    entries = [*(persistence.get_data_attribute(Ledger.entries) or []), entry]
    total = (persistence.get_data_attribute(Ledger.total) or 0) + 1
    persistence.set_data_attribute(Ledger.entries, entries)
    persistence.set_data_attribute(Ledger.total, total)
    return total


@state(execute_api_retry_policy=PATIENT)
class Step(AsyncState[float]):
    """Takes its time, in seconds, and leaves traces that no database undoes."""

    def execute(self, ctx: ProcessContext, input: float) -> StateDecision:
        leave_trace(f"{ctx.process_id} begins")
        time.sleep(input)
        leave_trace(f"{ctx.process_id} ends")
        return StateDecision.graceful_complete_process(ctx.attempt)


def leave_trace(line: str) -> None:
    """Write to the file of calls."""
    with Path(CALLS_FILE).open("a") as calls:
        calls.write(f"{line}\n")


@state(execute_api_retry_policy=STUBBORN)
class Fail(AsyncState[None]):
    """Leaves a trace of each attempt, and fails."""

    def execute(self, ctx: ProcessContext) -> StateDecision:
        leave_trace(f"{ctx.process_id} attempt {ctx.attempt}")
        raise ConnectionError("nobody is there")


class Failure(ObjectProcess):
    """Uses its attempts up."""

    starting_state = Fail


class Walker(ObjectProcess):
    """Takes a slow step and puts out which attempt it was."""

    starting_state = Step


registry = Registry()
registry.add_processes(Ledger, Mailbox, Tree, Sleeper, Walker, Failure)

app = Worker(registry)
