"""A process that waits to be paid, and the requests about it as a stranger without the SDK sends them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from server_stub.config import ServerSettings
from tests.engine.service_http import post, start_of
from tests.support.databases import Database
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    StateDecision,
    data_attribute,
    internal_queue,
    rpc,
)

Body = dict[str, Any]

TTL = timedelta(hours=1)
REMEMBERED_FOR_S = TTL.total_seconds()

runs: Counter[str] = Counter()
"""How often each method of an RPC was run."""


class WaitState(AsyncState[None]):
    """Waits to be paid."""

    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(OrderProcess.paid))

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process("paid")


class OrderProcess(ObjectProcess):
    """Is over once it is paid; what else it is told it leaves in a queue."""

    paid = internal_queue(None)
    notes = internal_queue(str)
    total = data_attribute(int)
    starting_state = WaitState

    @rpc
    async def add(self, persistence: Persistence, amount: int) -> int:
        runs["add"] += 1
        await asyncio.sleep(2)
        total = (persistence.get_data_attribute(OrderProcess.total) or 0) + amount
        persistence.set_data_attribute(OrderProcess.total, total)
        return total

    @rpc
    def fail(self, persistence: Persistence) -> None:
        runs["fail"] += 1
        persistence.set_data_attribute(OrderProcess.total, 1)
        if runs["fail"] == 1:
            raise RuntimeError("down")

    @rpc
    def look(self) -> int:
        runs["look"] += 1
        return runs["look"]


@asynccontextmanager
async def running(database: Database, **settings: Any) -> AsyncIterator[System]:
    """Run a system that remembers requests for an hour."""
    runs.clear()
    async with System(database, ServerSettings(request_ttl=TTL, **settings)) as system:
        system.serve(OrderProcess)
        yield system


async def call(system: System, operation: str, body: Body) -> Body:
    """Do what has to succeed, and give the answer."""
    response = await post(system, operation, body)
    assert response.status_code == 200, response.text
    answer: Body = response.json()
    return answer


async def refused(system: System, operation: str, body: Body) -> tuple[int, str]:
    """Do what is refused, and give status and sub-type."""
    response = await post(system, operation, body)
    return response.status_code, response.json()["errorSubType"]


def start(request_id: str | None = "X", process_id: str = "p", **fields: Any) -> Body:
    """Give a start."""
    of_id = {} if request_id is None else {"requestId": request_id}
    return start_of("OrderProcess", process_id, startStateId="WaitState", **of_id, **fields)


def notes(request_id: str | None = "X", *texts: str, **fields: Any) -> Body:
    """Give a publish that lets the process wait on; its messages have no ids."""
    of_id = {} if request_id is None else {"requestId": request_id}
    messages = [{"queueName": "notes", "payload": text} for text in texts or ("hello",)]
    return {"processId": "p", "messages": messages, **of_id, **fields}


def invoke(name: str, request_id: str | None = "X", **fields: Any) -> Body:
    """Give an RPC."""
    of_id = {} if request_id is None else {"requestId": request_id}
    return {"processId": "p", "rpcName": name, **of_id, **fields}


def stop(request_id: str | None = "X", **fields: Any) -> Body:
    """Give a stop."""
    return {"processId": "p", "requestId": request_id, **fields}


def or_start(body: Body, **fields: Any) -> Body:
    """Give a request that starts what is not running: another one, of no process id, and the start of `p`."""
    rest = {name: value for name, value in body.items() if name != "processId"}
    return {**rest, "start": start(None, **fields)}


async def complete(system: System) -> None:
    """Let the current execution complete."""
    await call(system, "publish", {"processId": "p", "messages": [{"queueName": "paid"}]})
    await system.client.wait_for_process_completion("p")


async def describe(system: System, **fields: Any) -> Body:
    """Describe an execution."""
    return await call(system, "describe", {"processId": "p", "include": ["queues"], **fields})


def executions(system: System) -> list[str]:
    """Give the ids of all executions, oldest first."""
    return [id_ for (id_,) in system.sql("SELECT process_execution_id FROM xdb_sys_process_execution ORDER BY 1")]


def remembered(system: System) -> list[tuple[int, str]]:
    """Give type and id of the requests that are remembered."""
    return system.sql("SELECT request_type, request_id FROM xdb_sys_request ORDER BY 1, 2")


def repeated(answer: Body, **more: Any) -> Body:
    """Give what a repetition is answered."""
    return {**answer, "duplicate": True, **more}
