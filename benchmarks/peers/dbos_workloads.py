"""DBOS on SQLite, with its defaults: a library, so that client, steps and engine are one process.

Run it in an environment that has `dbos`: python -m benchmarks.peers.dbos_workloads chain 2000
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from dbos import DBOS, DBOSConfig, SetWorkflowID, WorkflowHandleAsync

from benchmarks.workloads import CHAIN_STEPS, Engine, Usage, Workload, measure

TOPIC = "go"
RECEIVE_TIMEOUT_S = 600.0

now_waiting: dict[str, asyncio.Event] = {}


@DBOS.step()
async def do_nothing() -> None:
    pass


@DBOS.workflow()
async def chain() -> None:
    for _ in range(CHAIN_STEPS):
        await do_nothing()


@DBOS.workflow()
async def one_step() -> None:
    await do_nothing()


@DBOS.workflow()
async def wait_for_message() -> None:
    now_waiting[DBOS.workflow_id].set()
    await DBOS.recv_async(TOPIC, timeout_seconds=RECEIVE_TIMEOUT_S)


@DBOS.workflow()
async def sleep_until(wake_at_s: float) -> float:
    await DBOS.sleep_async(wake_at_s - time.time())
    return time.time()


class DbosEngine:
    """DBOS in this process."""

    name = "dbos"

    def __init__(self) -> None:
        self._waiting: dict[str, WorkflowHandleAsync[None]] = {}
        self._sleeping: dict[str, WorkflowHandleAsync[float]] = {}

    async def run_chain(self, process_id: str) -> None:
        with SetWorkflowID(process_id):
            handle = await DBOS.start_workflow_async(chain)
        await handle.get_result()

    async def run_one_step(self, process_id: str) -> None:
        with SetWorkflowID(process_id):
            handle = await DBOS.start_workflow_async(one_step)
        await handle.get_result()

    async def start_waiting(self, process_id: str) -> None:
        now_waiting[process_id] = asyncio.Event()
        with SetWorkflowID(process_id):
            self._waiting[process_id] = await DBOS.start_workflow_async(wait_for_message)
        await now_waiting[process_id].wait()

    async def send_message(self, process_id: str) -> None:
        await DBOS.send_async(process_id, None, TOPIC)

    async def message_received(self, process_id: str) -> None:
        await self._waiting[process_id].get_result()

    async def start_sleeping(self, process_id: str, wake_at_s: float) -> None:
        with SetWorkflowID(process_id):
            self._sleeping[process_id] = await DBOS.start_workflow_async(sleep_until, wake_at_s)

    async def woken_at_s(self, process_id: str) -> float:
        return await self._sleeping[process_id].get_result()

    async def usage(self) -> Usage:
        return Usage(cpu_s=time.process_time(), counts={})


def main(workload: Workload, executions: int) -> None:
    """Measure one workload on a fresh database and print the measurement."""
    with tempfile.TemporaryDirectory(prefix="bench-dbos-") as directory:
        database = Path(directory) / "dbos.sqlite"
        DBOS(config=DBOSConfig(name="bench", system_database_url=f"sqlite:///{database}", log_level="WARNING"))
        DBOS.launch()
        engine: Engine = DbosEngine()
        try:
            measurement = asyncio.run(measure(engine, workload, executions))
        finally:
            DBOS.destroy()
    print(measurement.to_json())


if __name__ == "__main__":
    main(Workload(sys.argv[1]), int(sys.argv[2]))
