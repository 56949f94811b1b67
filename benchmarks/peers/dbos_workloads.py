"""DBOS on SQLite or PostgreSQL, with its defaults: a library, so that client, steps and engine are one process.

Run it in an environment that has `dbos`:
python -m benchmarks.peers.dbos_workloads chain 2000 --database-url postgresql://postgres@127.0.0.1:5432/new
"""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from dbos import DBOS, DBOSConfig, SetWorkflowID, WorkflowHandleAsync

from benchmarks.peers.command import Arguments, main
from benchmarks.recovery import Part, interrupted_step
from benchmarks.workloads import CHAIN_STEPS, Usage, Workload

TOPIC = "go"
RECEIVE_TIMEOUT_S = 600.0
IN_A_CHILD = "in-a-child"

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


@DBOS.step()
async def be_interrupted(mark: str) -> None:
    await interrupted_step(mark)


@DBOS.workflow()
async def interrupted(mark: str) -> None:
    await be_interrupted(mark)


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


class DbosInAChild:
    """DBOS in a process of its own, which can be killed; it starts what it reads from its standard input."""

    name = "dbos"

    def __init__(self, database_url: str) -> None:
        self._arguments = [sys.executable, "-m", "benchmarks.peers.dbos_workloads", IN_A_CHILD, database_url]
        self._child: Process

    async def start(self) -> None:
        self._child = await asyncio.create_subprocess_exec(*self._arguments, stdin=PIPE)

    async def kill(self) -> None:
        self._child.kill()
        await self._child.wait()

    async def start_interrupted(self, process_id: str, mark: str) -> None:
        self._child.stdin.write(f"{process_id} {mark}\n".encode())
        await self._child.stdin.drain()

    async def kill_and_start(self, part: Part) -> float:
        await self.kill()
        started_at_s = time.time()
        await self.start()
        return started_at_s


@contextmanager
def launched(database_url: str) -> Iterator[None]:
    DBOS(config=DBOSConfig(name="bench", system_database_url=database_url, log_level="WARNING"))
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()


@asynccontextmanager
async def running_engine(arguments: Arguments) -> AsyncIterator[DbosEngine | DbosInAChild]:
    if arguments.workload not in (Workload.SERVER_KILL, Workload.WORKER_KILL):
        with launched(arguments.database_url):
            yield DbosEngine()
        return
    engine = DbosInAChild(arguments.database_url)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.kill()


async def start_what_is_asked() -> None:
    """Start an execution for each line of the standard input, until that ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        process_id, mark = line.split(maxsplit=1)
        with SetWorkflowID(process_id):
            await DBOS.start_workflow_async(interrupted, mark.rstrip())


if __name__ == "__main__":
    if sys.argv[1] == IN_A_CHILD:
        with launched(sys.argv[2]):
            asyncio.run(start_what_is_asked())
    else:
        main(running_engine)
