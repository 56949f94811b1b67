"""Whatever comes in, the worker answers by the protocol, blames itself for nothing, and goes on."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.worker.asgi import request
from tests.unit.worker.processes import FRAGILE, Workshop, execute_call, registry_of, rpc_call, wait_until_call
from xdb_sdk import Worker
from xdb_sdk.protocol import (
    WORKER_BATCH_PATH,
    AnswerLine,
    CommandResultsBody,
    ExecuteLine,
    InternalQueueResult,
    LoadedData,
    LoadedTable,
    QueueCommandStatus,
    ReceivedMessage,
    RpcLine,
    WaitUntilLine,
)

worker = Worker(registry_of(Workshop()))

RECEIVED = InternalQueueResult(
    queue_name="orders", status=QueueCommandStatus.RECEIVED, messages=(ReceivedMessage(payload="two"),)
)
SHELF = LoadedData(tables=(LoadedTable(table_name="shelf", columns={"books": 1}),))
LINES = [
    ExecuteLine(operation="execute", call_id=1, body=execute_call("Echo", "hi")),
    ExecuteLine(
        operation="execute",
        call_id=2,
        body=execute_call(
            "Trade",
            "apple",
            state_locals={"asked": "apple"},
            command_results=CommandResultsBody(internal_queue_results=(RECEIVED,)),
        ),
    ),
    ExecuteLine(operation="execute", call_id=3, body=execute_call("Restock", 2, process_type="Shelf", loaded=SHELF)),
    WaitUntilLine(operation="wait-until", call_id=4, body=wait_until_call("Trade", "apple")),
    RpcLine(
        operation="rpc",
        call_id=5,
        body=rpc_call("read_note", loaded=FRAGILE),
    ),
    RpcLine(operation="rpc", call_id=6, body=rpc_call("count_orders", queue_sizes={"orders": 4})),
]
SERVED = {200, 400, 404, 406, 424, 503}
"""503 is for a call that has no time left."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def answers_to(body: bytes) -> list[AnswerLine]:
    async def exchange() -> bytes:
        return await (await request(worker, "POST", WORKER_BATCH_PATH, body)).read()

    return [AnswerLine.model_validate_json(line) for line in asyncio.run(exchange()).splitlines()]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the paths of everything inside a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places_in(child, (*path, key))


@settings(deadline=None)
@given(body=st.binary(max_size=200).filter(lambda body: b"\n" not in body and body.strip()))
def test_any_bytes_as_a_line_are_answered_400(body: bytes) -> None:
    assert [answer.status for answer in answers_to(body)] == [400]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_call_with_any_value_anywhere_is_never_the_fault_of_the_worker(data: st.DataObject) -> None:
    line = json.loads(data.draw(st.sampled_from(LINES)).model_dump_json(by_alias=True))
    *parents, last = data.draw(st.sampled_from(list(places_in(line))))
    target = line
    for key in parents:
        target = target[key]
    target[last] = data.draw(json_values)

    [answer] = answers_to(json.dumps(line).encode())

    assert answer.status in SERVED, answer
    assert (answer.retry_after_s is not None) == (answer.status == 503)


@settings(deadline=None)
@given(data=st.data())
def test_call_with_any_field_left_out_is_never_the_fault_of_the_worker(data: st.DataObject) -> None:
    line = json.loads(data.draw(st.sampled_from(LINES)).model_dump_json(by_alias=True))
    *parents, last = data.draw(st.sampled_from(list(places_in(line))))
    target = line
    for key in parents:
        target = target[key]
    del target[last]

    [answer] = answers_to(json.dumps(line).encode())

    assert answer.status in SERVED, answer
    assert (answer.retry_after_s is not None) == (answer.status == 503)
