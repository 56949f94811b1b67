"""How calls learn that they are not wanted any more, and how a worker stops."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.support import virtual_time
from tests.unit.worker.processes import EXECUTION_ID, Workshop, context, execute_call, registry_of
from xdb_sdk import ProcessContext
from xdb_sdk.protocol import ExecuteCall, ProcessClosedCall
from xdb_sdk.worker import WorkerOptions, WorkerResponse, WorkerService

GRACE = timedelta(seconds=30)


def acting_service(action: Callable[[ProcessContext], Any]) -> WorkerService:
    workshop = Workshop()
    workshop.action = action
    return WorkerService(registry_of(workshop), WorkerOptions(shutdown_grace=GRACE))


def begin(service: WorkerService, state_id: str = "Act", **context_changes: Any) -> asyncio.Future[WorkerResponse]:
    call = execute_call(state_id, "", context=context(**context_changes))
    return asyncio.ensure_future(service.respond(ExecuteCall, call.to_json()))


def test_deadline_counts_down_from_the_arrival_of_the_call() -> None:
    seen: list[timedelta] = []

    async def act(ctx: ProcessContext) -> None:
        seen.append(ctx.deadline)
        await asyncio.sleep(4)
        seen.append(ctx.deadline)

    async def main() -> None:
        await begin(acting_service(act), timeout_ms=10_000)

    virtual_time.run(main())

    assert seen == [timedelta(seconds=10), timedelta(seconds=6)]


def test_call_goes_on_after_its_deadline() -> None:
    async def act(ctx: ProcessContext) -> None:
        await asyncio.sleep(60)

    async def main() -> WorkerResponse:
        return await begin(acting_service(act), timeout_ms=10_000)

    assert virtual_time.run(main()).status == 200


def test_closed_notice_stops_the_calls_of_that_execution_only() -> None:
    seen: dict[str, list[bool]] = {}

    async def act(ctx: ProcessContext) -> None:
        seen[ctx.process_execution_id] = [ctx.is_stopped()]
        await asyncio.sleep(20)
        seen[ctx.process_execution_id].append(ctx.is_stopped())

    async def main() -> None:
        service = acting_service(act)
        calls = [begin(service), begin(service, process_execution_id="another")]
        await asyncio.sleep(1)
        service.handle_process_closed(ProcessClosedCall(process_execution_id=EXECUTION_ID))
        await asyncio.gather(*calls)

    virtual_time.run(main())

    assert seen == {EXECUTION_ID: [False, True], "another": [False, False]}


async def test_method_in_a_thread_sees_that_its_process_was_closed() -> None:
    began = threading.Event()

    def wait_for_stop(ctx: ProcessContext) -> None:
        began.set()
        while not ctx.is_stopped():
            pass

    service = acting_service(wait_for_stop)
    call = begin(service, "ActInThread")
    await asyncio.to_thread(began.wait, 10)

    service.handle_process_closed(ProcessClosedCall(process_execution_id=EXECUTION_ID))

    assert (await asyncio.wait_for(call, 10)).status == 200
    await service.stop()


def test_closed_notice_for_an_unknown_execution_changes_nothing() -> None:
    service = acting_service(lambda ctx: None)

    service.handle_process_closed(ProcessClosedCall(process_execution_id="unknown"))

    assert service.health()["runningCalls"] == 0


def test_stop_waits_for_running_calls_and_refuses_new_ones() -> None:
    async def act(ctx: ProcessContext) -> None:
        await asyncio.sleep(10)

    async def main() -> tuple[float, WorkerResponse, WorkerResponse, str]:
        service = acting_service(act)
        running = begin(service)
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(service.stop())
        await asyncio.sleep(1)
        status = service.health()["status"]
        refused = await begin(service)
        await stopping
        return asyncio.get_running_loop().time(), await running, refused, status

    stopped_at_s, finished, refused, status = virtual_time.run(main())

    assert round(stopped_at_s, 3) == 10
    assert (finished.status, refused.status, status) == (200, 503, "stopping")


def test_call_that_outlives_the_grace_is_cancelled_and_told_so() -> None:
    seen: list[bool] = []

    async def act(ctx: ProcessContext) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append(ctx.is_stopped())

    async def main() -> tuple[float, WorkerResponse]:
        service = acting_service(act)
        running = begin(service)
        await asyncio.sleep(1)
        await service.stop()
        return asyncio.get_running_loop().time(), await running

    stopped_at_s, response = virtual_time.run(main())

    assert round(stopped_at_s, 3) == 1 + GRACE.total_seconds()
    assert (response.status, seen) == (503, [True])
    assert response.retry_after_s is not None


def test_call_that_refuses_to_be_cancelled_does_not_hold_up_the_stop() -> None:
    async def act(ctx: ProcessContext) -> None:
        for _ in range(10):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    async def main() -> float:
        service = acting_service(act)
        running = begin(service)
        await asyncio.sleep(1)
        await service.stop()
        stopped_at_s = asyncio.get_running_loop().time()
        await running
        return stopped_at_s

    assert GRACE.total_seconds() < virtual_time.run(main()) < GRACE.total_seconds() + 3


async def test_stop_does_not_wait_for_a_thread_that_never_ends() -> None:
    began, release = threading.Event(), threading.Event()

    def hang(ctx: ProcessContext) -> None:
        began.set()
        release.wait(10)

    workshop = Workshop()
    workshop.action = hang
    service = WorkerService(registry_of(workshop), WorkerOptions(shutdown_grace=timedelta(0)))
    stuck = begin(service, "ActInThread")
    await asyncio.to_thread(began.wait, 10)

    await service.stop()

    assert (await asyncio.wait_for(stuck, 1)).status == 503
    assert [t.name for t in threading.enumerate() if t.name.startswith("xdb-worker")]
    release.set()


async def test_stopping_and_starting_leaves_no_threads_and_no_tasks_behind() -> None:
    service = acting_service(lambda ctx: None)
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()

    for _ in range(100):
        service.start()
        responses = await asyncio.gather(begin(service), begin(service, "ActInThread"))
        assert [r.status for r in responses] == [200, 200]
        await service.stop()

    assert set(threading.enumerate()) <= threads
    assert asyncio.all_tasks() <= tasks
