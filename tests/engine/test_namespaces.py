"""Namespaces stay apart: no operation finds, shows, wakes or changes what belongs to another one."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from server_stub.api.operations import OPERATIONS
from tests.engine.service_http import post, start_of
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    ErrorSubType,
    IdReusePolicy,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    rpc,
)

OURS, THEIRS = "ours", "theirs"
DAY = timedelta(days=1)


class HoldState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.timer_command_by_duration(DAY), InternalQueueCommand.by_name(HoldProcess.go)
        )

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class HoldProcess(ObjectProcess):
    """Waits for a day or a message."""

    note = data_attribute(str)
    go = internal_queue(None)
    starting_state = HoldState

    @rpc
    def set_note(self, note: str, persistence: Persistence) -> None:
        persistence.set_data_attribute(HoldProcess.note, note)


REQUESTS: dict[str, dict[str, Any]] = {
    "stop": {},
    "describe": {"include": ["queues", "closed_states"]},
    "publish": {"messages": [{"queueName": "other", "messageId": "m", "payload": 1}]},
    "rpc": {"rpcName": "set_note", "input": "x"},
    "wait-for-completion": {"timeoutMs": 1_000},
    "wait-for-state-completion": {"stateId": "HoldState", "timeoutMs": 1_000},
    "get-attributes": {"allLocalAttributes": True},
    "get-history": {},
    "reset": {"resetType": "BEGINNING"},
    "set-attributes": {"writeLocalAttributes": {"note": "y"}},
    "skip-timer": {"stateId": "HoldState", "index": 0, "remember": True},
    "complete-state": {"stateId": "HoldState", "decision": {"threadCloseDecision": {"closeType": "DEAD_END"}}},
    "pause": {},
    "resume": {},
    "update-config": {"timeoutMs": 1_000_000, "workerUrl": "http://elsewhere"},
}
"""A request of each operation on a process, that does something to one that waits."""
STARTING: dict[str, dict[str, Any]] = {
    "start": {},
    "publish-or-start": {"messages": [{"queueName": "other", "payload": 1}]},
    "rpc-or-start": {"rpcName": "set_note", "input": "x"},
}
"""What the operations that may start a process take besides."""
READING = {"describe", "wait-for-completion", "wait-for-state-completion", "get-attributes", "get-history"}
CHANGING = sorted(REQUESTS.keys() - READING - {"resume"})
OF_OTHER_PROCESSES = {"list", "retry-state", "stop-processes", "replace-worker-url"}
"""About many processes, or one that fails: see the tests below and `test_operators.py`."""


async def start(system: System, namespace: str, **fields: Any) -> str:
    """Start the process `p` of a namespace, let it come to its wait, and give its execution id."""
    answer = await post(
        system, "start", start_of("HoldProcess", startStateId="HoldState") | fields | {"namespace": namespace}
    )
    assert answer.status_code == 200, answer.text
    await asyncio.sleep(1)
    process_execution_id: str = answer.json()["processExecutionId"]
    return process_execution_id


async def ask(system: System, operation: str, namespace: str, **fields: Any) -> Any:
    """Ask for the process `p` of a namespace."""
    return await post(system, operation, REQUESTS[operation] | {"processId": "p", "namespace": namespace} | fields)


def found_by(answer: Any) -> str | None:
    """Give the execution that an operation found; a reset gives a new one besides."""
    body = answer.json()
    execution_id: str | None = body.get("baseProcessExecutionId") or body.get("processExecutionId")
    return execution_id


def rows_of(system: System, process_execution_id: str) -> dict[str, list[tuple[Any, ...]]]:
    """Give what the database has of an execution."""
    return {
        table: [row for row in rows if process_execution_id in row]
        for table, rows in system.database.everything().items()
    }


@pytest.fixture
async def served(system: System) -> System:
    system.serve(HoldProcess)
    return system


def test_each_operation_is_tried() -> None:
    assert REQUESTS.keys() | STARTING.keys() | OF_OTHER_PROCESSES == OPERATIONS.keys()


@pytest.mark.parametrize("is_closed", [False, True], ids=["running", "closed"])
@pytest.mark.parametrize("operation", REQUESTS)
async def test_operation_does_not_find_what_is_in_another_namespace(
    served: System, operation: str, is_closed: bool
) -> None:
    theirs = await start(served, THEIRS)
    if is_closed:
        assert (await ask(served, "stop", THEIRS)).status_code == 200
    before = served.database.everything()

    by_process_id = await ask(served, operation, OURS)
    by_execution_id = await ask(served, operation, OURS, processExecutionId=theirs)

    for answer in (by_process_id, by_execution_id):
        assert (answer.status_code, answer.json()["errorSubType"]) == (404, ErrorSubType.PROCESS_NOT_FOUND)
    assert served.database.everything() == before


@pytest.mark.parametrize("operation", REQUESTS)
async def test_operation_finds_its_own_and_touches_no_equal_process_id_elsewhere(
    served: System, operation: str
) -> None:
    ours, theirs = await start(served, OURS), await start(served, THEIRS)
    before, ours_before = rows_of(served, theirs), rows_of(served, ours)

    crossed = await ask(served, operation, OURS, processExecutionId=theirs)
    untouched = rows_of(served, ours)
    found = await ask(served, operation, OURS)
    exact = await ask(served, "describe", OURS, processExecutionId=ours)

    assert crossed.status_code == 404
    assert untouched == ours_before
    assert (found.status_code, found_by(found)) == (200, ours)
    assert (exact.status_code, exact.json()["namespace"]) == (200, OURS)
    assert rows_of(served, theirs) == before
    assert (rows_of(served, ours) != ours_before) == (operation in CHANGING)


@pytest.mark.parametrize("operation", REQUESTS)
async def test_operations_of_two_namespaces_at_the_same_time_each_find_their_own(
    served: System, operation: str
) -> None:
    ours, theirs = await start(served, OURS), await start(served, THEIRS)

    answers = await asyncio.gather(
        *[ask(served, operation, namespace) for namespace in (OURS, THEIRS, "nobody's")],
        ask(served, operation, OURS, processExecutionId=theirs),
    )

    assert [found_by(answer) for answer in answers] == [ours, theirs, None, None]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 404]


@pytest.mark.parametrize("operation", STARTING)
async def test_process_is_started_although_its_id_runs_in_another_namespace(served: System, operation: str) -> None:
    theirs = await start(served, THEIRS)
    before = rows_of(served, theirs)
    ours = start_of("HoldProcess", startStateId="HoldState") | {"namespace": OURS}

    body = ours if operation == "start" else STARTING[operation] | {"start": ours}
    answer = await post(served, operation, body)
    await asyncio.sleep(1)

    assert answer.status_code == 200, answer.text
    started = answer.json()["processExecutionId"]
    assert (await ask(served, "describe", OURS)).json()["processExecutionId"] == started != theirs
    assert rows_of(served, theirs) == before


@pytest.mark.parametrize("operation", CHANGING)
async def test_request_id_is_known_in_its_own_namespace_alone(served: System, operation: str) -> None:
    await start(served, OURS)
    await start(served, THEIRS)

    answers = [await ask(served, operation, namespace, requestId="r") for namespace in (OURS, THEIRS)]
    elsewhere = await ask(served, operation, "default", requestId="r")

    assert [(answer.status_code, answer.json().get("duplicate", False)) for answer in answers] == [(200, False)] * 2
    assert (elsewhere.status_code, elsewhere.json()["errorSubType"]) == (404, ErrorSubType.PROCESS_NOT_FOUND)


@pytest.mark.parametrize(
    "other", ["Theirs", "theirs ", " theirs", "théirs", "theirs\u200b", "their", "theirss", "default"], ids=ascii
)
async def test_namespace_is_meant_by_its_exact_name(served: System, other: str) -> None:
    theirs = await start(served, THEIRS)

    described = await ask(served, "describe", other)
    exact = await ask(served, "describe", other, processExecutionId=theirs)
    listed = await post(served, "list", {"namespace": other})
    started = await start(served, other)

    assert (described.status_code, exact.status_code) == (404, 404)
    assert listed.json().get("processes", []) == []
    assert (await ask(served, "describe", other)).json()["processExecutionId"] == started
    assert (await ask(served, "describe", THEIRS)).json()["processExecutionId"] == theirs


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"processId": "p"},
        {"processType": "HoldProcess"},
        {"statuses": ["RUNNING", "TERMINATED"]},
        {"startedFromMs": 0},
        {"processId": "p", "statuses": ["RUNNING"]},
    ],
    ids=str,
)
async def test_list_shows_its_own_namespace_whatever_it_is_filtered_by(served: System, filters: dict[str, Any]) -> None:
    theirs = [await start(served, THEIRS, processId=each) for each in ("p", "q")]
    ours = [await start(served, OURS, processId=each) for each in ("p", "q")]

    async def listed(namespace: str) -> set[str]:
        page = await post(served, "list", filters | {"namespace": namespace})
        return {each["processExecutionId"] for each in page.json().get("processes", [])}

    shown = {OURS: await listed(OURS), THEIRS: await listed(THEIRS), "default": await listed("default")}

    asked = slice(0, 1) if "processId" in filters else slice(None)
    assert shown == {OURS: set(ours[asked]), THEIRS: set(theirs[asked]), "default": set()}


async def test_place_in_a_list_leads_to_nothing_of_another_namespace(served: System) -> None:
    older = await start(served, OURS, processId="older")
    theirs = await start(served, THEIRS)
    await start(served, OURS, processId="newer")
    first = (await post(served, "list", {"namespace": OURS, "pageSize": 1})).json()

    rest = {
        namespace: await post(served, "list", {"namespace": namespace, "nextPageToken": first["nextPageToken"]})
        for namespace in (OURS, THEIRS, "default")
    }

    found = {
        namespace: [each["processExecutionId"] for each in page.json().get("processes", [])]
        for namespace, page in rest.items()
    }
    assert found == {OURS: [older], THEIRS: [theirs], "default": []}


async def test_message_id_is_known_in_its_own_namespace_alone(served: System) -> None:
    await start(served, OURS)
    await start(served, THEIRS)

    answers = [await ask(served, "publish", namespace) for namespace in (OURS, THEIRS, OURS, THEIRS)]

    assert [answer.json()["published"] for answer in answers] == [1, 1, 0, 0]


@pytest.mark.parametrize("policy", IdReusePolicy)
async def test_reuse_of_a_process_id_asks_for_its_own_namespace_alone(served: System, policy: IdReusePolicy) -> None:
    theirs = await start(served, THEIRS)
    await ask(served, "stop", THEIRS)
    running = await start(served, THEIRS)
    before = rows_of(served, theirs) | rows_of(served, running)

    ours = await start(served, OURS, idReusePolicy=policy.value)

    assert (await ask(served, "describe", OURS)).json()["processExecutionId"] == ours
    assert rows_of(served, theirs) | rows_of(served, running) == before


@pytest.mark.parametrize("operation", ["wait-for-completion", "wait-for-state-completion"])
async def test_wait_is_not_ended_by_what_happens_in_another_namespace(served: System, operation: str) -> None:
    ours = await start(served, OURS)
    await start(served, THEIRS)
    waiting = asyncio.create_task(ask(served, operation, OURS, timeoutMs=20_000))
    await asyncio.sleep(1)

    await ask(served, "stop", THEIRS)
    await asyncio.sleep(5)
    was_waiting = not waiting.done()
    await ask(served, "skip-timer", OURS)

    answer = (await waiting).json()
    assert was_waiting
    assert (answer["processExecutionId"], answer.get("timeout", False)) == (ours, False)
    assert "COMPLETED" in (answer.get("status"), answer.get("stateStatus"))


async def test_worker_is_told_the_namespace_of_each_call(served: System) -> None:
    executions = {await start(served, OURS): OURS, await start(served, THEIRS): THEIRS}
    for namespace in (OURS, THEIRS):
        await ask(served, "rpc", namespace)
        await ask(served, "skip-timer", namespace)
    await asyncio.sleep(1)

    told = [
        (call["operation"], call["body"]["context"]["processExecutionId"], call["body"]["context"]["namespace"])
        for call in served.worker.calls
        if "context" in call["body"]
    ]

    assert set(told) == {
        (operation, execution_id, namespace)
        for operation in ("wait-until", "rpc", "execute")
        for execution_id, namespace in executions.items()
    }
