"""What /metrics of the worker shows."""

import asyncio
import subprocess
import sys
import threading

import pytest

from tests.support.scraping import OPENMETRICS, get, of, openmetrics_names, scrape
from tests.unit.worker.processes import PROCESS_TYPE, Workshop, execute_call, registry_of, rpc_call
from xdb_sdk import ProcessContext
from xdb_sdk.protocol import ExecuteCall, RpcCall
from xdb_sdk.worker import Worker, WorkerOptions


async def call(worker: Worker, call: ExecuteCall | RpcCall) -> int:
    """Have a call answered; give the status."""
    return (await worker.service.respond(type(call), call.to_json())).status


def fail(ctx: ProcessContext) -> None:
    raise RuntimeError("no")


async def test_calls_are_counted_by_method_and_outcome() -> None:
    workshop = Workshop()
    worker = Worker(registry_of(workshop))
    workshop.action = fail
    for state_id in ("Echo", "Echo", "Act"):
        await call(worker, execute_call(state_id, "hello"))

    samples = await scrape(worker)

    echo = {"operation": "execute", "process_type": PROCESS_TYPE, "name": "Echo"}
    act = echo | {"name": "Act"}
    assert samples[of("xdb_worker_calls_total", outcome="answered", **echo)] == 2
    assert samples[of("xdb_worker_call_duration_seconds_count", **echo)] == 2
    assert samples[of("xdb_worker_calls_total", outcome="failed", **act)] == 1
    assert of("xdb_worker_calls_total", outcome="answered", **act) not in samples


@pytest.mark.parametrize(
    ("unknown", "labels"),
    [
        (
            [execute_call("Echo", process_type=f"Stranger{n}") for n in range(3)],
            {"operation": "execute", "process_type": "unknown", "name": "unknown"},
        ),
        (
            [execute_call(f"Stranger{n}") for n in range(3)],
            {"operation": "execute", "process_type": PROCESS_TYPE, "name": "unknown"},
        ),
        (
            [rpc_call(f"stranger_{n}") for n in range(3)],
            {"operation": "rpc", "process_type": PROCESS_TYPE, "name": "unknown"},
        ),
    ],
    ids=["process type", "state", "rpc"],
)
async def test_what_is_not_registered_has_one_label_for_all(
    unknown: list[ExecuteCall | RpcCall], labels: dict[str, str]
) -> None:
    worker = Worker(registry_of(Workshop()))
    for each in unknown:
        await call(worker, each)

    samples = await scrape(worker)

    assert samples[of("xdb_worker_calls_total", outcome="refused", **labels)] == 3
    assert not any("tranger" in value for _, found in samples for _, value in found)


async def test_calls_that_run_and_that_wait_for_a_thread_are_told_apart() -> None:
    workshop, begun, end = Workshop(), threading.Event(), threading.Event()
    worker = Worker(registry_of(workshop), WorkerOptions(max_threads=1))

    def hold(ctx: ProcessContext) -> None:
        begun.set()
        assert end.wait(10)

    workshop.action = hold
    calls = [asyncio.create_task(call(worker, execute_call("ActInThread", "wait"))) for _ in range(3)]
    assert await asyncio.to_thread(begun.wait, 10)

    samples = await scrape(worker)
    end.set()
    statuses = await asyncio.gather(*calls)

    assert statuses == [200] * 3
    assert samples[of("xdb_worker_calls_in_flight")] == 3
    assert samples[of("xdb_worker_threads_busy")] == 1
    assert samples[of("xdb_worker_calls_waiting_for_thread")] == 2
    assert (await scrape(worker))[of("xdb_worker_calls_in_flight")] == 0


async def test_refused_call_of_a_full_worker_is_busy() -> None:
    workshop, begun, gate = Workshop(), asyncio.Event(), asyncio.Event()
    worker = Worker(registry_of(workshop), WorkerOptions(max_concurrent_calls=1))

    async def hold(ctx: ProcessContext) -> None:
        begun.set()
        await gate.wait()

    workshop.action = hold
    first = asyncio.create_task(call(worker, execute_call("Act", "wait")))
    await begun.wait()
    await call(worker, execute_call("Echo", "hello"))
    gate.set()
    await first

    samples = await scrape(worker)

    echo = {"operation": "execute", "process_type": PROCESS_TYPE, "name": "Echo"}
    assert samples[of("xdb_worker_calls_total", outcome="busy", **echo)] == 1


async def test_openmetrics_are_given_to_who_asks_for_them() -> None:
    worker = Worker(registry_of(Workshop()))
    await call(worker, execute_call("Echo", "hello"))

    text, content_type = await get(worker, OPENMETRICS)

    assert content_type.startswith("application/openmetrics-text")
    assert "xdb_worker_calls" in openmetrics_names(text)


async def test_metrics_of_the_process_are_shown_beside_those_of_the_worker() -> None:
    samples = await scrape(Worker(registry_of(Workshop())))

    assert samples[of("process_cpu_seconds_total")] > 0


def test_metrics_library_is_imported_only_by_a_scrape() -> None:
    code = "import sys, xdb_sdk; xdb_sdk.Worker(xdb_sdk.Registry()); print('prometheus_client' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "False"
