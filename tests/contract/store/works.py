"""Short ways to write through a store's port and to look at what it has, with small hand-written pieces of work."""

from collections.abc import Callable, Iterable
from typing import Any

from server_stub.core.changes import Changes
from server_stub.core.model import (
    Execution,
    HistoryEvent,
    ProcessExecution,
    ProcessKey,
    QueuedMessage,
    RequestKey,
    RowKey,
    RowWrite,
    RowWriteMode,
    StateExecution,
    Timer,
    TimerKey,
)
from server_stub.core.ports import Loaded, Needs, ProcessLookup, Selection, Store
from xdb_sdk.protocol import HistoryEventType, Json, StateOptionsConfig

NAMESPACE = "default"


class Deciding:
    """A piece of work from its parts."""

    def __init__(
        self,
        decide: Callable[[Loaded], Changes],
        *,
        execution_ids: Iterable[str] = (),
        process_keys: Iterable[ProcessKey] = (),
        request_keys: Iterable[RequestKey] = (),
        needs: Needs | None = None,
        touches_rows: bool = False,
    ) -> None:
        self._decide = decide
        self._needs = needs or Needs()
        self._selection = Selection(
            set(execution_ids),
            set(process_keys),
            set(request_keys),
            touches_rows=touches_rows or bool(self._needs.rows),
        )

    def selection(self) -> Selection:
        """Say which executions to load."""
        return self._selection

    def needs(self, loaded: Loaded) -> Needs:
        """Say what else to load."""
        return self._needs

    def decide(self, loaded: Loaded) -> Changes:
        """Say what to write."""
        return self._decide(loaded)


async def write(store: Store, changes: Changes) -> None:
    """Commit changes that depend on nothing."""
    await store.transact(Deciding(lambda _: changes))


async def find_process(store: Store, key: ProcessKey, process_execution_id: str | None) -> ProcessExecution | None:
    """Look up one execution."""
    [found] = await store.find_processes([ProcessLookup(key, process_execution_id)])
    return found


async def load(
    store: Store,
    *execution_ids: str,
    process_keys: Iterable[ProcessKey] = (),
    request_keys: Iterable[RequestKey] = (),
    needs: Needs | None = None,
    touches_rows: bool = False,
) -> Loaded:
    """Give what a transaction loads; it writes nothing."""
    seen: list[Loaded] = []

    def look(loaded: Loaded) -> Changes:
        seen.append(loaded)
        return Changes()

    work = Deciding(
        look,
        execution_ids=execution_ids,
        process_keys=process_keys,
        request_keys=request_keys,
        needs=needs,
        touches_rows=touches_rows,
    )
    await store.transact(work)
    return seen[0]


async def load_one(store: Store, execution_id: str = "e-1") -> Execution:
    """Give one execution as a transaction loads it."""
    return (await load(store, execution_id)).executions[execution_id]


def process(execution_id: str = "e-1", **fields: Any) -> ProcessExecution:
    """Give a new process execution; its process id is its own unless given."""
    defaults = {
        "namespace": NAMESPACE,
        "process_id": f"p-of-{execution_id}",
        "process_type": "Signup",
        "worker_url": "http://worker",
        "started_at_ms": 1_000,
    }
    return ProcessExecution(process_execution_id=execution_id, **{**defaults, **fields})


def state(execution_id: str = "e-1", state_id: str = "S", number: int = 1, **fields: Any) -> StateExecution:
    """Give a new state execution."""
    defaults = {"created_at_ms": 1_000, "input": "null", "options": StateOptionsConfig()}
    return StateExecution(execution_id, state_id, number, **{**defaults, **fields})


def message(
    sequence_id: int, payload: Json = None, *, queue: str = "q", message_id: str | None = None
) -> QueuedMessage:
    """Give a message of execution e-1."""
    return QueuedMessage("e-1", queue, sequence_id, message_id, payload)


def event(event_id: int, process_execution_id: str = "e-1") -> HistoryEvent:
    """Give an event of a history that says nothing more."""
    return HistoryEvent(process_execution_id, event_id, 1_000, HistoryEventType.PUBLISHED, None, None, None)


def timer(fire_at_ms: int, execution_id: str = "e-1", state_id: str = "S", number: int = 1, index: int = 0) -> Timer:
    """Give a timer."""
    return Timer(TimerKey(execution_id, state_id, number, index), fire_at_ms)


def created(*rows: ProcessExecution | StateExecution | QueuedMessage | Timer) -> Changes:
    """Give changes that insert rows."""
    changes = Changes()
    for row in rows:
        match row:
            case ProcessExecution():
                changes.new_processes[row.process_execution_id] = row
            case StateExecution():
                changes.new_states[row.key] = row
            case QueuedMessage():
                changes.add_message(row)
            case Timer():
                changes.set_timer(row)
    return changes


def row_key(table_name: str, key: Json, column: str = "id") -> RowKey:
    """Name a row by its one key column."""
    return RowKey(table_name, ((column, key),))


async def write_row(
    store: Store, row: RowKey, mode: RowWriteMode = RowWriteMode.UPDATE_OR_INSERT, **columns: Json
) -> None:
    """Write columns of one row in a transaction of its own."""
    await write(store, Changes(row_writes=[RowWrite(row, columns, mode)]))
