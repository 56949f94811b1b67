"""What is to be written is named before it is decided, so that it can be locked in order with what is read."""

from collections.abc import Callable
from typing import Any

import pytest

from server_stub.core.call_events import RpcReturned
from server_stub.core.client_events import SetAttributes
from server_stub.core.events import Event
from server_stub.core.model import Execution, RowKey
from server_stub.core.ports import Loaded, Needs
from tests.support.core_bench import CoreBench
from tests.unit.core.drive import COMPLETE, SKIP, WAITS, any_of, executed, queue, started, waited
from xdb_sdk.protocol import RpcAnswer, SetAttributesRequest, StateOptionsConfig, TableMapping, TableWrite

TABLES = (
    TableMapping(table_name="orders", primary_key={"id": 7}),
    TableMapping(table_name="stock", primary_key={"id": "s"}),
)
WRITES = (TableWrite(table_name="stock", columns={"n": 1}), TableWrite(table_name="not_mapped", columns={"n": 1}))


def _rpc(bench: CoreBench) -> Event[Any]:
    return RpcReturned(bench.current("p").process_execution_id, RpcAnswer(write_tables=WRITES))


def _client(_: CoreBench) -> Event[Any]:
    return SetAttributes(SetAttributesRequest(process_id="p", write_tables=WRITES))


WRITERS: dict[str, tuple[StateOptionsConfig, Callable[[CoreBench], Event[Any]]]] = {
    "execute": (SKIP, lambda bench: executed(bench, "S-1", COMPLETE, write_tables=WRITES)),
    "wait-until": (WAITS, lambda bench: waited(bench, "S-1", any_of(queue("q")), write_tables=WRITES)),
    "rpc": (SKIP, _rpc),
    "client": (SKIP, _client),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_mapped_rows_that_are_to_be_written_are_named(writer: str) -> None:
    bench = CoreBench()
    options, event_of = WRITERS[writer]
    process = bench.processes[started(bench, tables=TABLES, start_state_options=options)]
    loaded = Loaded(
        executions={process.process_execution_id: Execution(process, {})},
        current={process.key: process.process_execution_id},
    )
    needs = Needs()

    event_of(bench).add_needs(loaded, needs)

    assert needs.written_rows == [RowKey("stock", (("id", "s"),))]
