"""Locking policies: what a call has locked is what it commits on, whoever else writes it (semantics 5.4)."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from server_stub.config import ServerSettings
from server_stub.dispatch.lock_queue import LockTicket
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    Communication,
    LockType,
    ObjectProcess,
    Persistence,
    PersistenceLoadingPolicy,
    ProcessFailed,
    RetryPolicy,
    RpcExecutionError,
    RpcLockNotAcquiredError,
    StateDecision,
    StateMovement,
    data_attribute,
    process,
    rpc,
    state,
)

COUNT_LOCKED = PersistenceLoadingPolicy.partial(["count"]).locking(["count"])
COUNT_SHARED = PersistenceLoadingPolicy.partial(["count"]).locking(["count"], LockType.SHARE_LOCK)
OTHER_LOCKED = PersistenceLoadingPolicy.partial(["other"]).locking(["other"])
ONE_ATTEMPT = RetryPolicy(maximum_attempts=1)


class Inside:
    """Counts the calls that are between their beginning and their end, and the most at one time."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    async def stay(self, seconds: float) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now -= 1


inside = Inside()
run_sql: Callable[..., Any]
"""SQL of the application, in a connection of its own, for methods to run while they are called."""


@pytest.fixture(autouse=True)
def application(system: System) -> None:
    """Give the application a counter, and its methods a way to it."""
    global inside, run_sql
    inside = Inside()
    run_sql = system.sql
    system.sql("CREATE TABLE counter (counter_id VARCHAR(255) PRIMARY KEY, count INTEGER, other INTEGER)")
    system.sql("INSERT INTO counter VALUES ('c', 0, 0)")


def count_of(system: System) -> int:
    """Give the counter as the application sees it."""
    [(count,)] = system.sql("SELECT count FROM counter")
    assert isinstance(count, int)
    return count


def add_one(persistence: Persistence) -> int:
    """Increment, and give the value that was there before."""
    count = persistence.get_data_attribute("count") or 0
    assert isinstance(count, int)
    persistence.set_data_attribute("count", count + 1)
    return count


async def elapsed_s(*calls: Any) -> float:
    """Make calls at the same time, and give the seconds until all are done."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await asyncio.gather(*calls)
    return loop.time() - begun_s


class FanOutState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        return StateDecision.multi_next_states(*[StateMovement.create(AddState, 0.1) for _ in range(input)])


@state(
    execute_api_data_attributes_loading_policy=COUNT_LOCKED,
    execute_api_timeout_seconds=0.5,
    execute_api_retry_policy=ONE_ATTEMPT,
)
class AddState(AsyncState[float]):
    """Adds one, which takes as long as its input says."""

    async def execute(self, input: float, persistence: Persistence) -> StateDecision:
        add_one(persistence)
        await inside.stay(input)
        return StateDecision.dead_end()


class Counter(ObjectProcess):
    """What the counters below have in common."""

    count = data_attribute(int)
    other = data_attribute(int)

    states = (FanOutState, AddState)

    @rpc
    def fan_out(self, width: int, communication: Communication) -> None:
        communication.trigger_state_execution(FanOutState, width)

    @rpc
    def add_later(self, seconds: float, communication: Communication) -> None:
        communication.trigger_state_execution(AddState, seconds)

    @rpc(data_attribute_loading_policy=COUNT_LOCKED)
    async def add(self, seconds: float, persistence: Persistence) -> int:
        before = add_one(persistence)
        await inside.stay(seconds)
        return before

    @rpc(data_attribute_loading_policy=COUNT_LOCKED, timeout_seconds=0.5)
    def add_impatiently(self, persistence: Persistence) -> None:
        add_one(persistence)

    @rpc(data_attribute_loading_policy=COUNT_LOCKED)
    async def fail(self, seconds: float, persistence: Persistence) -> None:
        add_one(persistence)
        await asyncio.sleep(seconds)
        raise ValueError("no")

    @rpc(data_attribute_loading_policy=COUNT_SHARED)
    async def look(self, seconds: float, persistence: Persistence) -> int:
        await inside.stay(seconds)
        count = persistence.get_data_attribute("count")
        persistence.set_data_attribute("other", count)
        return int(count)

    @rpc(data_attribute_loading_policy=OTHER_LOCKED)
    async def hold_other(self, seconds: float, persistence: Persistence) -> None:
        await inside.stay(seconds)
        persistence.set_data_attribute("other", 1)

    @rpc(data_attribute_loading_policy=COUNT_LOCKED)
    def add_while_others_add(self, times: int, persistence: Persistence) -> int:
        """Add one, while the application does so too, in the first `times` calls."""
        if inside.most < times:
            inside.most += 1
            run_sql("UPDATE counter SET count = count + 1")
        return add_one(persistence)


@process(table_name="counter", primary_key="counter_id", primary_key_type=str)
class CounterProcess(Counter):
    """Its counter is a column of the application's."""


class LocalCounterProcess(Counter):
    """Its counter is process-local."""


@state(
    execute_api_data_attributes_loading_policy=COUNT_LOCKED, execute_api_retry_policy=RetryPolicy(maximum_attempts=2)
)
class ContestedState(AsyncState[int]):
    """Adds one, while the application does so too in the first calls, as many as the input says."""

    def execute(self, input: int, persistence: Persistence) -> StateDecision:
        if inside.most < input:
            inside.most += 1
            run_sql("UPDATE counter SET count = count + 1")
        return StateDecision.force_complete_process(add_one(persistence))


@process(table_name="counter", primary_key="counter_id", primary_key_type=str)
class StubbornProcess(ObjectProcess):
    count = data_attribute(int)
    starting_state = ContestedState


async def start_counters(
    system: System, *process_ids: str, process_class: type[Counter] = CounterProcess, object_id: str = "c"
) -> None:
    """Serve the class if it is not served yet, and start its processes."""
    if process_class.__name__ not in system.registry.process_types:
        system.serve(process_class)
    for process_id in process_ids:
        if process_class is LocalCounterProcess:
            await system.client.start_process(process_id, process_class)
        else:
            await system.client.start_object_process(process_id, process_class, object_id)


@pytest.mark.parametrize("process_class", [CounterProcess, LocalCounterProcess])
async def test_states_and_rpcs_that_add_under_lock_lose_no_addition(
    system: System, process_class: type[Counter]
) -> None:
    await start_counters(system, "p", process_class=process_class)
    await system.client.invoke_rpc("p", process_class.fan_out, 10)

    async def add(method: Any, *arguments: Any) -> bool:
        try:
            await system.client.invoke_rpc("p", method, *arguments)
        except RpcLockNotAcquiredError:
            return False
        return True

    patient = asyncio.gather(*(add(process_class.add, 0.1) for _ in range(10)))
    impatient = asyncio.gather(*(add(process_class.add_impatiently) for _ in range(10)))
    successes = sum(await patient) + sum(await impatient)
    for number in range(1, 11):
        await system.client.wait_for_state_completion("p", AddState, number)

    [final] = (await system.client.get_data_attributes("p", process_class, ["count"])).values()
    assert final == 10 + successes
    assert successes == 10
    assert inside.most == 1
    assert {name: n for name, n in system.worker.by_state().items() if n != 1} == {}


@pytest.mark.parametrize("process_class", [CounterProcess, LocalCounterProcess])
async def test_counter_of_a_hundred_locking_rpcs_equals_their_successes(
    system: System, process_class: type[Counter]
) -> None:
    await start_counters(system, "p", process_class=process_class)

    before = await asyncio.gather(
        *(system.client.invoke_rpc("p", process_class.add, 0.001) for _ in range(100)),
    )

    [final] = (await system.client.get_data_attributes("p", process_class, ["count"])).values()
    assert final == 100
    assert sorted(before) == list(range(100))
    assert len(system.worker.calls) == 100


@pytest.mark.parametrize("process_class", [CounterProcess, LocalCounterProcess])
async def test_counter_equals_the_successes_also_of_calls_that_do_not_queue_as_those_of_several_servers(
    system: System, process_class: type[Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockTicket, "is_granted", True)
    await start_counters(system, "p", process_class=process_class)

    async def add(seconds: float) -> bool:
        try:
            await system.client.invoke_rpc("p", process_class.add, seconds)
        except RpcLockNotAcquiredError:
            return False
        return True

    successes = sum(await asyncio.gather(*(add(0.001 * (number % 7)) for number in range(100))))

    [final] = (await system.client.get_data_attributes("p", process_class, ["count"])).values()
    assert final == successes
    assert 10 < successes < 100


async def test_locking_rpcs_that_several_classes_inherit_wait_for_each_other_as_well(system: System) -> None:
    system.serve(CounterProcess, LocalCounterProcess)
    await start_counters(system, "p")

    before = await asyncio.gather(*(system.client.invoke_rpc("p", CounterProcess.add, 0.001) for _ in range(100)))

    assert sorted(before) == list(range(100))
    assert inside.most == 1


async def test_additions_of_the_application_are_lost_as_little(system: System) -> None:
    await start_counters(system, "p")
    await system.client.invoke_rpc("p", CounterProcess.fan_out, 10)
    adding = asyncio.gather(*(system.client.invoke_rpc("p", CounterProcess.add, 0.02) for _ in range(20)))

    for _ in range(15):
        await asyncio.sleep(0.13)
        system.sql("UPDATE counter SET count = count + 1")
    await adding
    for number in range(1, 11):
        await system.client.wait_for_state_completion("p", AddState, number)

    assert count_of(system) == 10 + 20 + 15
    assert len(system.worker.calls) > 1 + 1 + 10 + 20  # some were made again


async def test_share_locks_are_held_together_and_an_exclusive_one_waits_for_them(system: System) -> None:
    await start_counters(system, "p")
    sharing = [asyncio.create_task(elapsed_s(system.client.invoke_rpc("p", CounterProcess.look, 1.0))) for _ in "123"]
    await asyncio.sleep(0.5)

    exclusive_s = await elapsed_s(system.client.invoke_rpc("p", CounterProcess.add, 1.0))

    assert await asyncio.gather(*sharing) == pytest.approx([1, 1, 1], abs=0.01)
    assert inside.most == 3
    assert exclusive_s == pytest.approx(0.5 + 1, abs=0.01)


async def test_share_lock_waits_for_an_exclusive_one_and_sees_what_it_wrote(system: System) -> None:
    await start_counters(system, "p")
    adding = asyncio.create_task(system.client.invoke_rpc("p", CounterProcess.add, 1.0))
    await asyncio.sleep(0.5)

    seen = await system.client.invoke_rpc("p", CounterProcess.look, 0.0)
    await adding

    assert seen == 1
    assert inside.most == 1


async def test_locks_of_different_attributes_do_not_wait_for_each_other(system: System) -> None:
    await start_counters(system, "p")

    both_s = await elapsed_s(
        system.client.invoke_rpc("p", CounterProcess.add, 1.0),
        system.client.invoke_rpc("p", CounterProcess.hold_other, 1.0),
    )

    assert both_s == pytest.approx(1, abs=0.01)


async def test_calls_of_states_wait_for_a_lock_without_using_attempts_or_their_timeout(system: System) -> None:
    await start_counters(system, "p")

    await asyncio.gather(*(system.client.invoke_rpc("p", CounterProcess.add_later, 0.4) for _ in range(10)))
    waiting_s = await elapsed_s(
        *(system.client.wait_for_state_completion("p", AddState, number) for number in range(1, 11))
    )
    info = await system.client.describe_process("p", include={"closed_states"})

    assert waiting_s == pytest.approx(10 * 0.4, abs=0.1)  # far beyond the timeout of one attempt
    assert {(each.status, each.attempt, each.last_failure) for each in info.states} == {("COMPLETED", 1, None)}
    assert count_of(system) == 10


@pytest.mark.parametrize("conflicts", [1, 10])
async def test_rpc_is_called_again_with_the_value_that_plain_sql_has_put_meanwhile(
    system: System, conflicts: int
) -> None:
    await start_counters(system, "p")

    before = await system.client.invoke_rpc("p", CounterProcess.add_while_others_add, conflicts)

    assert before == conflicts
    assert count_of(system) == conflicts + 1
    assert len(system.worker.calls) == conflicts + 1


async def test_share_lock_of_a_call_that_writes_another_attribute_is_compared_too(system: System) -> None:
    await start_counters(system, "p")
    looking = asyncio.create_task(system.client.invoke_rpc("p", CounterProcess.look, 1.0))
    await asyncio.sleep(0.5)

    system.sql("UPDATE counter SET count = 7")

    assert await looking == 7
    assert system.sql("SELECT other FROM counter") == [(7,)]


async def test_change_of_an_attribute_that_is_not_locked_disturbs_nobody(system: System) -> None:
    await start_counters(system, "p")
    adding = asyncio.create_task(system.client.invoke_rpc("p", CounterProcess.add, 1.0))
    await asyncio.sleep(0.5)

    system.sql("UPDATE counter SET other = 7")
    await adding

    assert system.sql("SELECT count, other FROM counter") == [(1, 7)]
    assert len(system.worker.calls) == 1


async def test_rpc_that_finds_its_lock_broken_every_time_is_refused(system: System) -> None:
    await start_counters(system, "p")

    with pytest.raises(RpcLockNotAcquiredError) as failure:
        await system.client.invoke_rpc("p", CounterProcess.add_while_others_add, 1_000)

    assert failure.value.status == 423
    assert len(system.worker.calls) == 1 + 10
    assert count_of(system) == 11  # the application's own additions, and no other


@pytest.mark.parametrize("conflicts", [1, 10])
async def test_state_is_called_again_within_its_attempt_when_plain_sql_has_put_a_value_meanwhile(
    system: System, conflicts: int
) -> None:
    system.serve(StubbornProcess)
    await system.client.start_object_process("p", StubbornProcess, "c", conflicts)
    before = await system.client.wait_for_process_completion("p", int)

    assert before == conflicts
    assert count_of(system) == conflicts + 1
    assert [call["body"]["context"]["attempt"] for call in system.worker.calls] == [1] * (conflicts + 1)


async def test_state_that_finds_its_lock_broken_every_time_has_used_an_attempt(system: System) -> None:
    system.serve(StubbornProcess)
    await system.client.start_object_process("p", StubbornProcess, "c", 1_000)
    with pytest.raises(ProcessFailed) as failure:
        await system.client.wait_for_process_completion("p", int)

    attempts = [call["body"]["context"]["attempt"] for call in system.worker.calls]
    assert attempts == [1] * 11 + [2] * 11
    assert "LOCK_NOT_ACQUIRED" in str(failure.value)
    assert count_of(system) == 22


async def test_nothing_stays_locked_when_a_locking_call_raises(system: System) -> None:
    await start_counters(system, "p")
    with pytest.raises(RpcExecutionError):
        await system.client.invoke_rpc("p", CounterProcess.fail, 1.0)

    waited_s = await elapsed_s(system.client.invoke_rpc("p", CounterProcess.add, 0.0))

    assert waited_s == pytest.approx(0, abs=0.01)
    assert count_of(system) == 1


async def test_nothing_stays_locked_when_a_locking_call_times_out(system: System) -> None:
    await start_counters(system, "p")
    with pytest.raises(RpcExecutionError):
        await system.client.invoke_rpc("p", CounterProcess.add, 3_600.0)

    waited_s = await elapsed_s(system.client.invoke_rpc("p", CounterProcess.add, 0.0))

    assert waited_s == pytest.approx(0, abs=0.01)
    assert count_of(system) == 1


async def test_nothing_stays_locked_when_the_process_of_a_locking_call_is_stopped(system: System) -> None:
    await start_counters(system, "stopped", "other")
    await system.client.invoke_rpc("stopped", CounterProcess.add_later, 0.4)
    await system.client.invoke_rpc("stopped", CounterProcess.add_later, 0.4)
    await asyncio.sleep(0.1)
    await system.client.stop_process("stopped")

    waited_s = await elapsed_s(system.client.invoke_rpc("other", CounterProcess.add, 0.0))
    await asyncio.sleep(60)

    assert waited_s == pytest.approx(0, abs=0.01)
    assert count_of(system) == 1


class OnceSlowState(AsyncState[None]):
    """Adds one: in a minute the first time it is called, at once after that."""

    async def execute(self, persistence: Persistence) -> StateDecision:
        is_first, inside.most = inside.most == 0, 1
        await asyncio.sleep(60 if is_first else 0)
        add_one(persistence)
        return StateDecision.dead_end()


@process(table_name="counter", primary_key="counter_id", primary_key_type=str)
class SlowProcess(ObjectProcess):
    count = data_attribute(int)
    starting_state = OnceSlowState


async def test_nothing_stays_locked_when_the_server_of_a_locking_call_is_gone(system: System) -> None:
    system.serve(SlowProcess)
    system.settings = ServerSettings(shutdown_grace=timedelta(milliseconds=1))
    await start_counters(system, "p")
    await system.client.start_object_process("slow", SlowProcess, "c")
    await asyncio.sleep(1)

    await system.restart_server()
    waited_s = await elapsed_s(system.client.invoke_rpc("p", CounterProcess.add, 0.0))
    await system.client.wait_for_state_completion("slow", OnceSlowState)
    await asyncio.sleep(120)

    assert waited_s < 1
    assert count_of(system) == 2


async def test_processes_that_are_mapped_to_one_row_exclude_each_other(system: System) -> None:
    process_ids = [f"p-{number}" for number in range(8)]
    await start_counters(system, *process_ids)

    for process_id in process_ids:
        await system.client.invoke_rpc(process_id, CounterProcess.add_later, 0.1)
    await asyncio.gather(*(system.client.invoke_rpc(each, CounterProcess.add, 0.1) for each in process_ids))
    for process_id in process_ids:
        await system.client.wait_for_state_completion(process_id, AddState)

    assert count_of(system) == 16
    assert inside.most == 1
    assert len(system.worker.calls) == 8 + 8 + 8


async def test_rows_of_different_objects_do_not_exclude_each_other(system: System) -> None:
    await start_counters(system, "p")
    await start_counters(system, "d", object_id="d")

    both_s = await elapsed_s(*(system.client.invoke_rpc(each, CounterProcess.add, 1.0) for each in ("p", "d")))

    assert both_s == pytest.approx(1, abs=0.01)
    assert sorted(system.sql("SELECT counter_id, count FROM counter")) == [("c", 1), ("d", 1)]
