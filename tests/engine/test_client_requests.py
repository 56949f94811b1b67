"""What a client changes is changed once, however often it has to say so (idempotency-and-shards D.2, D.4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.service_http import post, start_of
from tests.support.asgi import AsgiTransport
from tests.support.system import SERVER_URL, WORKER_URL, InMemoryClientTransport, System
from xdb_sdk import (
    AsyncClient,
    AsyncState,
    ClientOptions,
    ClientRetryPolicy,
    CommandRequest,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    ProcessContext,
    ProcessNotRunningError,
    ProcessStatus,
    RetryPolicy,
    StateContext,
    StateDecision,
    UnavailableError,
    data_attribute,
    internal_queue,
    rpc,
    state,
)
from xdb_sdk.client import Reply, TransportError

calls: list[str] = []
"""What the methods of the processes have seen, in order."""


class CollectState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(BasketProcess.items, 2))

    def execute(self, ctx: StateContext) -> StateDecision:
        return StateDecision.graceful_complete_process(ctx.process_execution_id)


class BasketProcess(ObjectProcess):
    """Is full with two items."""

    items = internal_queue(str)
    total = data_attribute(int)
    starting_state = CollectState

    @rpc(timeout_seconds=30)
    async def add(self, ctx: ProcessContext, amount: int, persistence: Persistence) -> int:
        calls.append(ctx.request_id_for("charge"))
        await asyncio.sleep(5)
        total = (persistence.get_data_attribute(BasketProcess.total) or 0) + amount
        persistence.set_data_attribute(BasketProcess.total, total)
        return total

    @rpc(timeout_seconds=30, exclusive=True)
    async def add_alone(self, ctx: ProcessContext, amount: int, persistence: Persistence) -> int:
        return await self.add(ctx, amount, persistence)


class InvoiceState(AsyncState[None]):
    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class InvoiceProcess(ObjectProcess):
    """Is done at once, so that its process id can be used again."""

    starting_state = InvoiceState


class LossyTransport(InMemoryClientTransport):
    """Carries single calls to the server, and loses the first answers on the way back."""

    def __init__(self, inner: AsgiTransport, *, lost: int) -> None:
        super().__init__(inner)
        self.lost = lost
        self.sent: list[bytes] = []

    async def send(self, path: str, body: bytes, timeout_s: float) -> Reply:
        self.sent.append(body)
        reply = await super().send(path, body, timeout_s)
        if len(self.sent) <= self.lost:
            raise TransportError("connection reset", was_sent=True)
        return reply


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    calls.clear()


@asynccontextmanager
async def lossy_client(
    system: System, *, lost: int = 2, retry: ClientRetryPolicy | None = None
) -> AsyncIterator[tuple[AsyncClient, LossyTransport]]:
    """Make a client that hears nothing of its first attempts."""
    options = ClientOptions(server_url=SERVER_URL, worker_url=WORKER_URL, retry=retry or ClientRetryPolicy())
    async with AsgiTransport({SERVER_URL: system.server.api}) as asgi:
        transport = LossyTransport(asgi, lost=lost)
        async with AsyncClient(system.registry, options, transport=transport) as client:
            yield client, transport


async def executions(system: System, process_id: str = "p") -> list[ProcessStatus]:
    return [each.status async for each in system.client.list_processes(process_id=process_id)]


async def messages(system: System) -> int:
    """Count the messages in the queue of the current basket."""
    info = await system.client.describe_process("p", include={"queues"})
    received = sum(command.received_count for state in info.states for command in state.queue_commands)
    return received + sum((info.queue_sizes or {}).values())


def requests(system: System) -> list[tuple[Any, ...]]:
    """Give the requests that the server remembers: type and id."""
    return system.sql("SELECT request_type, request_id FROM xdb_sys_request")


async def test_change_whose_first_two_answers_are_lost_is_made_once(system: System) -> None:
    system.serve(BasketProcess, InvoiceProcess)

    async with lossy_client(system) as (client, transport):
        execution_id = await client.start_process("p", InvoiceProcess)
    await system.client.wait_for_process_completion("p", process_execution_id=execution_id)

    assert transport.sent == [transport.sent[0]] * 3
    assert await executions(system) == [ProcessStatus.COMPLETED]
    assert len(requests(system)) == 1


async def test_each_kind_of_change_is_remembered_by_one_row(system: System) -> None:
    system.serve(BasketProcess)

    async with lossy_client(system) as (client, _):
        await client.start_process("p", BasketProcess)
    async with lossy_client(system) as (client, _):
        assert await client.publish_to_internal_queue("p", BasketProcess, BasketProcess.items, "a")
    async with lossy_client(system) as (client, _):
        await client.set_data_attributes("p", BasketProcess, {"total": 7})
    async with lossy_client(system) as (client, _):
        stopped = await client.stop_process("p")

    assert (stopped.status, stopped.changed, stopped.duplicate) == (ProcessStatus.TERMINATED, True, True)
    assert len(requests(system)) == len({request_id for _, request_id in requests(system)}) == 4


async def test_request_without_an_id_leaves_no_row(system: System) -> None:
    system.serve(BasketProcess)

    response = await post(system, "start", start_of("BasketProcess"))

    assert response.status_code == 200
    assert requests(system) == []


async def test_start_that_is_made_again_tells_so_and_gives_the_first_execution(system: System) -> None:
    system.serve(InvoiceProcess)
    first = await system.client.start("p", InvoiceProcess, request_id="invoice-7")
    await system.client.wait_for_process_completion("p")

    again = await system.client.start("p", InvoiceProcess, request_id="invoice-7")

    assert again.process_execution_id == first.process_execution_id
    assert (first.already_started, first.duplicate) == (False, False)
    assert (again.already_started, again.duplicate, again.mismatch) == (True, True, False)


async def test_change_that_a_client_gave_up_is_made_once_when_it_is_made_again(system: System) -> None:
    system.serve(InvoiceProcess)
    async with lossy_client(system, lost=1, retry=ClientRetryPolicy.none()) as (client, _):
        with pytest.raises(UnavailableError) as failure:
            await client.start_process("p", InvoiceProcess)
        await asyncio.sleep(600)

        await client.start_process("p", InvoiceProcess, request_id=failure.value.request_id)

    assert await executions(system) == [ProcessStatus.COMPLETED]


async def test_publish_or_start_made_twice_starts_once_and_publishes_once(system: System) -> None:
    system.serve(BasketProcess)

    async with lossy_client(system) as (client, _):
        result, again = [
            await client.publish_or_start("p", BasketProcess, BasketProcess.items, "a", request_id="X")
            for _ in range(2)
        ]
        start = await client.start("p", BasketProcess, request_id="X")
        await client.publish_to_internal_queue("p", BasketProcess, BasketProcess.items, "a", request_id="X")

    assert (result.started, result.is_new, result.duplicate) == (True, True, True)
    assert again == result
    assert (start.process_execution_id, start.already_started) == (result.process_execution_id, True)
    assert await executions(system) == [ProcessStatus.RUNNING]
    assert await messages(system) == 1


async def test_publish_or_start_publishes_to_the_execution_that_runs(system: System) -> None:
    system.serve(BasketProcess)

    first = await system.client.publish_or_start("p", BasketProcess, BasketProcess.items, "a")
    second = await system.client.publish_or_start("p", BasketProcess, BasketProcess.items, "b")

    assert (first.started, second.started) == (True, False)
    assert await system.client.wait_for_process_completion("p", str) == first.process_execution_id
    assert second.process_execution_id == first.process_execution_id


async def test_publish_or_start_after_a_start_with_its_id_only_publishes(system: System) -> None:
    system.serve(BasketProcess)
    execution_id = await system.client.start_process("p", BasketProcess, request_id="X")

    async with lossy_client(system) as (client, _):
        result = await client.publish_or_start("p", BasketProcess, BasketProcess.items, "a", request_id="X")

    assert result.process_execution_id == execution_id
    assert await executions(system) == [ProcessStatus.RUNNING]
    assert await messages(system) == 1


async def test_publish_or_start_after_its_execution_has_closed_loses_nothing_silently(system: System) -> None:
    system.serve(BasketProcess)
    execution_id = await system.client.start_process("p", BasketProcess, request_id="X")
    await system.client.stop_process("p")

    with pytest.raises(ProcessNotRunningError) as refusal:
        await system.client.publish_or_start("p", BasketProcess, BasketProcess.items, "a", request_id="X")
    fresh = await system.client.publish_or_start("p", BasketProcess, BasketProcess.items, "a")

    assert refusal.value.body.process_execution_id == execution_id
    assert fresh.started
    assert await executions(system) == [ProcessStatus.RUNNING, ProcessStatus.TERMINATED]


async def test_rpc_or_start_calls_the_execution_that_it_started(system: System) -> None:
    system.serve(BasketProcess)

    async with lossy_client(system) as (client, _):
        first = await client.rpc_or_start("p", BasketProcess, BasketProcess.add, 3)
        second = await client.rpc_or_start("p", BasketProcess, BasketProcess.add, 4)

    assert (first.output, first.started) == (3, True)
    assert (second.output, second.started) == (7, False)
    assert second.process_execution_id == first.process_execution_id
    assert len(calls) == 2
    assert await executions(system) == [ProcessStatus.RUNNING]


async def test_rpc_whose_answer_is_lost_is_applied_once_and_its_method_called_once(system: System) -> None:
    system.serve(BasketProcess)
    await system.client.start_process("p", BasketProcess)

    async with lossy_client(system) as (client, _):
        total = await client.invoke_rpc("p", BasketProcess.add, 3)

    assert total == 3
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("method", "called"), [(BasketProcess.add, 2), (BasketProcess.add_alone, 1)], ids=["shared", "exclusive"]
)
async def test_only_an_exclusive_rpc_never_runs_beside_its_repetition(system: System, method: Any, called: int) -> None:
    system.serve(BasketProcess)
    await system.client.start_process("p", BasketProcess)

    totals = await asyncio.gather(
        *(system.client.invoke_rpc("p", method, 3, request_id="X") for _ in range(2)),
    )

    assert totals == [3, 3]
    assert len(calls) == called


async def test_rpc_makes_the_same_request_ids_for_each_repetition(system: System) -> None:
    system.serve(BasketProcess)
    await system.client.start_process("p", BasketProcess)

    await asyncio.gather(*(system.client.invoke_rpc("p", BasketProcess.add, 3, request_id="X") for _ in range(2)))
    await system.client.invoke_rpc("p", BasketProcess.add, 3)

    first, second, other = calls
    assert first == second != other


async def test_state_that_is_attempted_again_starts_another_process_once(system: System) -> None:
    @state(
        wait_until_api_retry_policy=RetryPolicy(maximum_attempts=3),
        execute_api_retry_policy=RetryPolicy(maximum_attempts=3),
    )
    class BillState(AsyncState[None]):
        def wait_until(self, ctx: StateContext) -> CommandRequest:
            waited.append(ctx.request_id_for("invoice"))
            if ctx.attempt < 3:
                raise RuntimeError("not yet")
            return CommandRequest.empty()

        async def execute(self, ctx: StateContext, communication: Communication) -> StateDecision:
            request_id = ctx.request_id_for("invoice")
            executed.append(request_id)
            await system.client.start_process("invoice", InvoiceProcess, request_id=request_id)
            await system.client.wait_for_process_completion("invoice")
            if ctx.attempt < 3:
                raise RuntimeError("crashed after the start")
            return StateDecision.graceful_complete_process()

    class BillProcess(ObjectProcess):
        starting_state = BillState

    waited: list[str] = []
    executed: list[str] = []
    system.serve(InvoiceProcess, BillProcess)

    for process_id in ("p", "q"):
        await system.client.start_process(process_id, BillProcess)
        await system.client.wait_for_process_completion(process_id)

    assert await executions(system, "invoice") == [ProcessStatus.COMPLETED] * 2
    assert [executed.count(each) for each in executed] == [3] * 6
    assert [waited.count(each) for each in waited] == [3] * 6
    assert set(waited).isdisjoint(executed)
