"""What a store tells of its own work."""

from server_stub.core.model import ProcessKey
from server_stub.core.ports import Store
from tests.contract.store.works import created, find_process, process, write


async def test_writing_many_executions_takes_as_many_statements_as_writing_one(store: Store) -> None:
    before = store.counters.statements
    await write(store, created(process("e-1", process_id="p-1")))
    for_one = store.counters.statements - before

    await write(store, created(*(process(f"e-{n}", process_id=f"p-{n}") for n in range(2, 50))))

    assert store.counters.statements - before - for_one == for_one


async def test_reading_counts_as_statements(store: Store) -> None:
    before = store.counters.statements

    await find_process(store, ProcessKey("default", "p"), None)

    assert store.counters.statements > before
