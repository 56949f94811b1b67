"""What holds for every operation: what is refused and how, health, and the limits of values (semantics 1.7, 6)."""

import asyncio
import json
from typing import Any

import pytest

from server_stub.core.ports import StoreUnavailable
from tests.engine.service_http import post, request, start_of
from tests.support.system import WORKER_URL, System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    ErrorSubType,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    StateDecision,
    data_attribute,
    internal_queue,
    process,
    rpc,
)
from xdb_sdk.protocol import MAX_DESCRIBED_STATES, SERVICE_PREFIX, ErrorBody


class HoldState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(HoldProcess.go))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


@process(table_name="held", primary_key="held_id", primary_key_type=str)
class HoldProcess(ObjectProcess):
    """Waits."""

    note = data_attribute(str)
    go = internal_queue(None)
    starting_state = HoldState

    @rpc
    def set_note(self, note: str, persistence: Persistence) -> None:
        persistence.set_data_attribute(HoldProcess.note, note)


@pytest.fixture
async def held(system: System) -> System:
    """Give a system with a process that waits."""
    system.sql("CREATE TABLE held (held_id VARCHAR(255) PRIMARY KEY, note TEXT)")
    system.serve(HoldProcess)
    await system.client.start_object_process("p", HoldProcess, "h-1")
    await asyncio.sleep(1)
    return system


OPERATIONS: dict[str, dict[str, Any]] = {
    "start": start_of("HoldProcess", "q"),
    "stop": {"processId": "p"},
    "describe": {"processId": "p"},
    "list": {},
    "publish": {"processId": "p", "messages": [{"queueName": "go"}]},
    "rpc": {"processId": "p", "rpcName": "set_note", "input": "x"},
    "wait-for-completion": {"processId": "p"},
    "wait-for-state-completion": {"processId": "p", "stateId": "HoldState"},
    "get-attributes": {"processId": "p"},
    "set-attributes": {"processId": "p", "writeLocalAttributes": {"a": 1}},
    "skip-timer": {"processId": "p", "stateId": "HoldState", "index": 0},
    "complete-state": {"processId": "p", "stateId": "HoldState", "decision": {}},
    "pause": {"processId": "p"},
    "resume": {"processId": "p"},
    "update-config": {"processId": "p", "timeoutMs": 1},
}
OF_A_PROCESS = sorted(OPERATIONS.keys() - {"start", "list"})


def error_of(response: Any) -> ErrorBody:
    """Read the error that every refusal has."""
    assert response.headers["content-type"] == "application/json"
    return ErrorBody.model_validate_json(response.content)


@pytest.mark.parametrize("operation", OF_A_PROCESS)
async def test_operation_on_what_there_is_not_is_not_found(held: System, operation: str) -> None:
    other = await held.raw.start_process("other", "HoldProcess")
    before = held.database.everything()

    for names in (
        {"processId": "nobody"},
        {"namespace": "elsewhere"},
        {"processExecutionId": "never-was"},
        {"processExecutionId": other},
    ):
        response = await post(held, operation, OPERATIONS[operation] | names)

        assert response.status_code == 404, names
        assert error_of(response).error_sub_type is ErrorSubType.PROCESS_NOT_FOUND
    assert held.database.everything() == before


NO_OBJECTS = (b"", b"{", b"\xff\xfe", b"[]", b"null")
NO_NAMES = ("", "x" * 256, "a\0b", ["p"], 7)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_malformed_request_is_refused_and_does_nothing(held: System, operation: str) -> None:
    good = OPERATIONS[operation]
    misnamed = [good | {name: no_name} for name in ("processId", "namespace") for no_name in NO_NAMES]
    bodies: list[dict[str, Any] | bytes] = [*NO_OBJECTS, *misnamed]
    before = held.database.everything()

    for body in bodies:
        response = await post(held, operation, body)

        assert response.status_code == 400, body
        assert error_of(response).error_sub_type is ErrorSubType.INVALID_REQUEST
    assert held.database.everything() == before


@pytest.mark.parametrize("operation", ["start", "describe", "list", "publish"])
async def test_field_of_a_later_version_is_no_error(held: System, operation: str) -> None:
    response = await post(held, operation, OPERATIONS[operation] | {"fieldOfTheFuture": {"deep": [1]}})

    assert response.status_code == 200


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_wrong_method_is_refused_and_names_the_right_one(held: System, operation: str) -> None:
    body = json.dumps(OPERATIONS[operation]).encode()
    before = held.database.everything()

    for method in ("GET", "PUT", "DELETE", "PATCH"):
        response = await request(held, method, SERVICE_PREFIX + operation, body)

        assert response.status_code == 405, method
        assert response.headers["allow"] == "POST"
        assert error_of(response).error_sub_type is ErrorSubType.METHOD_NOT_ALLOWED
    assert held.database.everything() == before


async def test_unknown_operation_is_not_found(held: System) -> None:
    response = await post(held, "explode", {"processId": "p"})

    assert response.status_code == 404
    assert error_of(response).error_sub_type is ErrorSubType.NOT_FOUND


@pytest.mark.parametrize("operation", ["publish", "set-attributes", "skip-timer", "update-config", "rpc"])
async def test_change_of_a_closed_process_is_refused(held: System, operation: str) -> None:
    await held.client.stop_process("p")
    await asyncio.sleep(1)
    before = held.database.everything()

    response = await post(held, operation, OPERATIONS[operation])

    assert response.status_code == 409
    assert error_of(response).error_sub_type is ErrorSubType.PROCESS_NOT_RUNNING
    assert held.database.everything() == before


@pytest.mark.parametrize("operation", ["stop", "describe", "get-attributes", "wait-for-completion"])
async def test_closed_process_can_be_read_and_stopped_again(held: System, operation: str) -> None:
    await held.client.stop_process("p")
    await asyncio.sleep(1)
    before = held.database.everything()

    response = await post(held, operation, OPERATIONS[operation])

    assert response.status_code == 200
    assert held.database.everything() == before


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_needs_none_of_the_tables_of_the_application(held: System, path: str) -> None:
    held.sql("DROP TABLE held")
    held.route(WORKER_URL, None)

    response = await request(held, "GET", path)

    assert response.status_code == 200
    assert "text/html" not in response.headers["content-type"]


class LapState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        if input == 0:
            return StateDecision.single_next_state(HoldLapState)
        return StateDecision.single_next_state(LapState, input - 1)


class HoldLapState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name(LapProcess.go))

    def execute(self) -> StateDecision:
        return StateDecision.graceful_complete_process()


class LapProcess(ObjectProcess):
    """Goes through a state again and again, then waits."""

    go = internal_queue(None)
    states = (HoldLapState,)
    starting_state = LapState


async def test_description_of_a_long_life_is_of_its_latest_states_and_says_how_many_more_there_were(
    system: System,
) -> None:
    system.serve(LapProcess)
    laps = MAX_DESCRIBED_STATES + 50
    await system.client.start_process("p", LapProcess, laps - 1)
    await asyncio.sleep(600)

    short = await system.client.describe_process("p")
    long = await system.client.describe_process("p", include={"closed_states"})

    assert ([state.state_id for state in short.states], short.omitted_states) == (["HoldLapState"], laps)
    assert len(long.states) == MAX_DESCRIBED_STATES
    assert [state.number for state in long.states[:2]] == [52, 53]
    assert long.states[-1] == short.states[0]
    assert long.omitted_states == 51


async def test_server_that_no_longer_commits_is_not_ready(system: System) -> None:
    await system.server.check_ready()

    await system.server.committer.close()

    with pytest.raises(StoreUnavailable):
        await system.server.check_ready()
