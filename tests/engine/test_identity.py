"""Who is who: process ids that are used again, executions that are replaced, and how they are found (semantics 1.3)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.engine.mailbox import leftovers
from tests.engine.service_http import post, start_of
from tests.support.asgi import AsgiTransport
from tests.support.system import SERVER_URL, WORKER_URL, InMemoryClientTransport, System
from xdb_sdk import (
    AsyncClient,
    AsyncState,
    ClientOptions,
    CommandRequest,
    IdReusePolicy,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessAlreadyStartedError,
    ProcessInfo,
    ProcessNotFoundError,
    ProcessStartOptions,
    ProcessStatus,
    ProcessStopType,
    RetryPolicy,
    StateDecision,
    StateStatus,
    data_attribute,
    internal_queue,
    state,
)


class WaitState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(OrderProcess.paid))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process("paid")


class OrderProcess(ObjectProcess):
    """Waits until it is paid."""

    paid = internal_queue(None)
    starting_state = WaitState


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=3))
class RefundState(AsyncState[None]):
    async def execute(self) -> StateDecision:
        await asyncio.sleep(10)
        raise RuntimeError("the bank is closed")


class RefundProcess(ObjectProcess):
    """Fails after three attempts of 10 s."""

    starting_state = RefundState


async def start_order(
    system: System, policy: IdReusePolicy = IdReusePolicy.ALLOW_IF_NO_RUNNING, timeout: timedelta | None = None
) -> str:
    """Start an order under the only process id of these tests."""
    options = ProcessStartOptions(id_reuse_policy=policy, timeout=timeout)
    return await system.client.start_process("p", OrderProcess, None, options)


async def executions(system: System) -> dict[str, ProcessStatus]:
    """Give the status of every execution, oldest first."""
    found = [(each.process_execution_id, each.status) async for each in system.client.list_processes()]
    return dict(reversed(found))


async def none(system: System) -> None:
    """Use the process id not at all."""


async def running(system: System) -> None:
    await start_order(system)


async def completed(system: System) -> None:
    await start_order(system)
    await system.client.publish_to_internal_queue("p", OrderProcess, OrderProcess.paid)
    await system.client.wait_for_process_completion("p")


async def timed_out(system: System) -> None:
    await start_order(system, timeout=timedelta(seconds=1))
    await asyncio.sleep(2)


async def terminated(system: System) -> None:
    await start_order(system)
    await system.client.stop_process("p")


async def failed(system: System) -> None:
    await start_order(system)
    await system.client.stop_process("p", ProcessStopType.FAIL)


async def canceled(system: System) -> None:
    await start_order(system)
    await system.client.stop_process("p", ProcessStopType.CANCEL)


EVER = (none, running, completed, failed, timed_out, terminated, canceled)
NEW_AFTER = {
    IdReusePolicy.ALLOW_IF_NO_RUNNING: {none, completed, failed, timed_out, terminated, canceled},
    IdReusePolicy.ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY: {none, failed, timed_out, terminated, canceled},
    IdReusePolicy.DISALLOW_REUSE: {none},
    IdReusePolicy.TERMINATE_IF_RUNNING: set(EVER),
}


@pytest.mark.parametrize("before", EVER, ids=lambda before: before.__name__)
@pytest.mark.parametrize("policy", NEW_AFTER, ids=str)
async def test_reuse_of_a_process_id_follows_its_policy(
    system: System, policy: IdReusePolicy, before: Callable[[System], Awaitable[None]]
) -> None:
    system.serve(OrderProcess)
    await before(system)
    old = await executions(system)
    await asyncio.sleep(1)

    response = await post(system, "start", start_of("OrderProcess", idReusePolicy=policy, startStateId="WaitState"))

    now = await executions(system)
    current = await system.client.describe_process("p")
    if before in NEW_AFTER[policy]:
        new_id = response.json()["processExecutionId"]
        replaced = {key: ProcessStatus.TERMINATED if before is running else status for key, status in old.items()}
        assert response.status_code == 200
        assert "alreadyStarted" not in response.json()
        assert now == replaced | {new_id: ProcessStatus.RUNNING}
        assert current.process_execution_id == new_id
    else:
        [old_id] = old
        assert (response.status_code, response.json()["errorSubType"]) == (409, "PROCESS_ALREADY_STARTED")
        assert response.json()["processExecutionId"] == current.process_execution_id == old_id
        assert now == old


async def test_second_start_of_a_running_id_is_refused_and_the_first_goes_on(system: System) -> None:
    system.serve(OrderProcess)
    first_id = await start_order(system)

    with pytest.raises(ProcessAlreadyStartedError) as refusal:
        await start_order(system)
    await system.client.publish_to_internal_queue("p", OrderProcess, OrderProcess.paid)
    result = await system.client.wait_for_process_completion("p", str)

    assert (refusal.value.status, refusal.value.process_execution_id) == (409, first_id)
    assert result == "paid"
    assert list(await executions(system)) == [first_id]


async def test_start_after_completion_is_a_new_execution(system: System) -> None:
    system.serve(OrderProcess)
    await completed(system)
    first = await system.client.describe_process("p")

    second_id = await start_order(system)

    assert second_id != first.process_execution_id
    assert (await system.client.describe_process("p")).process_execution_id == second_id


async def test_replacing_start_terminates_the_old_execution_and_aborts_its_states(system: System) -> None:
    system.serve(OrderProcess)
    old_id = await start_order(system)
    await asyncio.sleep(1)

    new_id = await start_order(system, IdReusePolicy.TERMINATE_IF_RUNNING)
    await asyncio.sleep(1)

    old = await system.client.describe_process("p", process_execution_id=old_id, include={"closed_states"})
    new = await system.client.describe_process("p")
    assert (old.status, old.is_current) == (ProcessStatus.TERMINATED, False)
    assert [state.status for state in old.states] == [StateStatus.ABORTED]
    assert (new.process_execution_id, new.status, new.is_current) == (new_id, ProcessStatus.RUNNING, True)
    assert [state.status for state in new.states] == [StateStatus.RUNNING]
    assert leftovers(system) == {}


class SlowState(AsyncState[str]):
    async def execute(self, input: str, persistence: Persistence) -> StateDecision:
        if input == "new":
            return StateDecision.single_next_state(QuietState)
        await asyncio.sleep(5)
        if input == "fails":
            raise RuntimeError("too late")
        persistence.set_data_attribute(SlowProcess.note, input)
        return StateDecision.single_next_state(QuietState)


class QuietState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class SlowProcess(ObjectProcess):
    note = data_attribute(str)
    starting_state = SlowState
    states = (QuietState,)


@pytest.mark.parametrize("answer", ["succeeds", "fails"])
async def test_late_answer_for_a_replaced_execution_touches_nothing(system: System, answer: str) -> None:
    system.serve(SlowProcess)
    replacing = ProcessStartOptions(id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)
    old_id = await system.client.start_process("p", SlowProcess, answer)
    await asyncio.sleep(1)

    new_id = await system.client.start_process("p", SlowProcess, "new", replacing)
    await asyncio.sleep(100)

    assert await executions(system) == {old_id: ProcessStatus.TERMINATED, new_id: ProcessStatus.RUNNING}
    assert await system.client.get_data_attributes("p", SlowProcess, process_execution_id=old_id) == {}
    assert await system.client.get_data_attributes("p", SlowProcess) == {}
    old, new = [
        await system.client.describe_process("p", process_execution_id=each, include={"closed_states"})
        for each in (old_id, new_id)
    ]
    assert [(state.state_id, state.status) for state in old.states] == [("SlowState", StateStatus.ABORTED)]
    assert [state.state_id for state in new.states] == ["SlowState", "QuietState"]
    assert system.worker.count("SlowState") == 2


async def test_one_of_many_concurrent_starts_wins_and_the_others_are_told(system: System) -> None:
    system.serve(OrderProcess)

    answers = await asyncio.gather(*[start_order(system) for _ in range(50)], return_exceptions=True)

    outcomes = Counter(type(answer) for answer in answers)
    [winner] = [answer for answer in answers if isinstance(answer, str)]
    refused = [answer for answer in answers if isinstance(answer, ProcessAlreadyStartedError)]
    assert outcomes == {str: 1, ProcessAlreadyStartedError: 49}
    assert {error.body.process_execution_id for error in refused} == {winner}
    assert list(await executions(system)) == [winner]


@pytest.mark.parametrize(
    "policy", [policy for policy in IdReusePolicy if policy is not IdReusePolicy.TERMINATE_IF_RUNNING], ids=str
)
async def test_start_that_ignores_a_running_execution_gives_its_id(system: System, policy: IdReusePolicy) -> None:
    system.serve(OrderProcess)
    first_id = await start_order(system)
    options = ProcessStartOptions(ignore_already_started=True, id_reuse_policy=policy)

    again_id = await system.client.start_process("p", OrderProcess, None, options)
    told = await post(system, "start", start_of("OrderProcess", ignoreAlreadyStarted=True))

    assert again_id == first_id
    assert told.json() == {"processExecutionId": first_id, "alreadyStarted": True}
    assert list(await executions(system)) == [first_id]


async def test_closed_execution_is_not_what_an_ignoring_start_means(system: System) -> None:
    system.serve(OrderProcess)
    await completed(system)
    options = ProcessStartOptions(ignore_already_started=True, id_reuse_policy=IdReusePolicy.DISALLOW_REUSE)

    with pytest.raises(ProcessAlreadyStartedError):
        await system.client.start_process("p", OrderProcess, None, options)
    new_id = await system.client.start_process(
        "p", OrderProcess, None, replace(options, id_reuse_policy=IdReusePolicy.ALLOW_IF_NO_RUNNING)
    )

    assert list((await executions(system)).values()) == [ProcessStatus.COMPLETED, ProcessStatus.RUNNING]
    assert (await system.client.describe_process("p")).process_execution_id == new_id


async def test_namespaces_keep_equal_process_ids_apart(system: System) -> None:
    system.serve(OrderProcess)
    options = ClientOptions(server_url=SERVER_URL, worker_url=WORKER_URL, namespace="tenant")
    async with (
        AsgiTransport({SERVER_URL: system.server.api}) as transport,
        AsyncClient(system.registry, options, transport=InMemoryClientTransport(transport)) as tenant,
    ):
        ours = await start_order(system)
        theirs = await tenant.start_process("p", OrderProcess)

        await system.client.publish_to_internal_queue("p", OrderProcess, OrderProcess.paid)
        await system.client.wait_for_process_completion("p")
        their_info = await tenant.describe_process("p")
        their_list = [each.process_execution_id async for each in tenant.list_processes()]
        with pytest.raises(ProcessNotFoundError):
            await tenant.describe_process("p", process_execution_id=ours)

    assert (their_info.process_execution_id, their_info.status) == (theirs, ProcessStatus.RUNNING)
    assert (their_info.namespace, their_list) == ("tenant", [theirs])
    assert list(await executions(system)) == [ours]


async def test_unknown_process_is_not_described(system: System) -> None:
    with pytest.raises(ProcessNotFoundError) as failure:
        await system.client.describe_process("nobody")

    assert failure.value.status == 404
    assert "nobody" in str(failure.value)


async def test_running_process_is_described(system: System) -> None:
    system.serve(OrderProcess)
    began_ms = system.clock()
    process_execution_id = await start_order(system, timeout=timedelta(hours=1))
    await asyncio.sleep(1)

    info = await system.client.describe_process("p")

    started_ms = info.started_at.timestamp() * 1_000
    assert (info.process_execution_id, info.process_id, info.namespace) == (process_execution_id, "p", "default")
    assert (info.status, info.process_type, info.worker_url) == (ProcessStatus.RUNNING, "OrderProcess", WORKER_URL)
    assert started_ms == pytest.approx(began_ms, abs=5)
    assert info.timeout_at == info.started_at + timedelta(hours=1)
    assert (info.closed_at, info.error, info.outputs) == (None, None, ())
    assert [command.queue_name for command in info.states[0].queue_commands] == ["paid"]


async def test_description_after_many_restarts_is_of_the_latest_execution(system: System) -> None:
    system.serve(OrderProcess)

    for _ in range(30):
        latest = await start_order(system, IdReusePolicy.TERMINATE_IF_RUNNING)
        described = await system.client.describe_process("p")
        assert described.process_execution_id == latest


async def test_each_execution_of_an_id_is_described_by_its_own_id(system: System) -> None:
    system.serve(OrderProcess)
    expected = {}
    for close in (failed, terminated, running):
        await close(system)
        info = await system.client.describe_process("p")
        expected[info.process_execution_id] = info.status

    found = [await system.client.describe_process("p", process_execution_id=each) for each in expected]

    assert {info.process_execution_id: info.status for info in found} == expected
    assert list(expected.values()) == [ProcessStatus.FAILED, ProcessStatus.TERMINATED, ProcessStatus.RUNNING]
    assert [info.is_current for info in found] == [False, False, True]


async def test_description_during_a_replacement_is_of_one_execution_or_the_other(system: System) -> None:
    system.serve(OrderProcess)
    ids = [await start_order(system)]
    found: list[ProcessInfo] = []

    async def look() -> None:
        found.extend([await system.client.describe_process("p") for _ in range(20)])

    async def swap() -> None:
        ids.extend([await start_order(system, IdReusePolicy.TERMINATE_IF_RUNNING) for _ in range(5)])

    await asyncio.gather(look(), look(), swap())

    order = [ids.index(info.process_execution_id) for info in found]
    assert {(info.status, info.is_current) for info in found} == {(ProcessStatus.RUNNING, True)}
    assert set(order) >= {0, 5}


async def test_start_of_another_type_under_an_id_in_use_names_both_and_harms_nothing(system: System) -> None:
    system.serve(OrderProcess, RefundProcess)
    first_id = await start_order(system)

    with pytest.raises(ProcessAlreadyStartedError, match=r"OrderProcess.*RefundProcess"):
        await system.client.start_process("p", RefundProcess)
    await system.restart_server()
    await system.client.publish_to_internal_queue("p", OrderProcess, OrderProcess.paid)
    result = await system.client.wait_for_process_completion("p", str)

    assert result == "paid"
    assert await executions(system) == {first_id: ProcessStatus.COMPLETED}
    assert system.worker.count("RefundState") == 0


async def test_starts_of_a_running_id_use_up_no_attempts(system: System) -> None:
    system.serve(RefundProcess)
    await system.client.start_process("p", RefundProcess)

    for _ in range(200):
        with pytest.raises(ProcessAlreadyStartedError):
            await system.client.start_process("p", RefundProcess)
        await asyncio.sleep(0.1)
    retried = await system.client.describe_process("p")
    calls_then = system.worker.count("RefundState")
    await asyncio.sleep(60)

    ended = await system.client.describe_process("p")
    assert (retried.status, calls_then) == (ProcessStatus.RUNNING, 2)
    assert ended.status is ProcessStatus.FAILED
    assert system.worker.by_state() == {"RefundState-1": 3}
