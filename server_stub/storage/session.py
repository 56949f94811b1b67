"""One transaction, the same on every database server: load under locks, ask, decide, write (architecture.md).

A database gives a `Session`: its statements, each over many rows. This module says which follow each other.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from server_stub.core.changes import Changes
from server_stub.core.model import (
    Execution,
    LocalAttributeRead,
    ProcessExecution,
    ProcessKey,
    QueuedMessage,
    RowRead,
)
from server_stub.core.ports import Loaded, Needs, ProcessLookup, Selection, Work
from server_stub.storage.codec import Row, message_of, process_of, state_of
from xdb_sdk.protocol import Json

MessageIdKey: TypeAlias = tuple[str, str, str]
"""Execution, queue and message id."""


class Session(Protocol):
    """The statements of one transaction. Rows of processes, states and messages have the columns of `codec`."""

    async def lock_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Lock and give executions by id, and current ones by process id, all in the order of their ids."""
        ...

    async def find_open_states(self, execution_ids: Sequence[str]) -> Sequence[Row]:
        """Give the open states of executions, in order of creation."""
        ...

    async def find_messages(self, limits: Mapping[tuple[str, str], int]) -> Sequence[Row]:
        """Give the oldest unclaimed messages by execution and queue, as many of each as it is mapped to."""
        ...

    async def find_message_ids(self, keys: Collection[MessageIdKey]) -> Collection[MessageIdKey]:
        """Give those message ids that are known."""
        ...

    async def find_local_attributes(self, reads: Sequence[LocalAttributeRead]) -> Sequence[tuple[str, str, str]]:
        """Give execution, name and value of the attributes that the reads ask for, some perhaps twice."""
        ...

    async def lock_rows(self, reads: Sequence[RowRead]) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read rows of the user's tables, which nobody else changes then until the transaction ends (semantics 5.4)."""
        ...

    async def volatile_among(self, table_names: Collection[str]) -> frozenset[str]:
        """See `Loaded.volatile_tables`."""
        ...

    async def write(self, changes: Changes) -> None:
        """Write rows. No message and no timer is of an execution that closes, so that nothing depends on an order."""
        ...


async def do_work(session: Session, work: Work) -> Changes:
    """Load, decide and write, in the transaction of the session."""
    loaded = await _load(session, work.selection())
    await _load_needs(session, loaded, work.needs(loaded))
    changes = work.decide(loaded)
    await session.write(_without_what_closes(changes))
    return changes


async def _load(session: Session, selection: Selection) -> Loaded:
    loaded = Loaded()
    execution_ids, keys = sorted(selection.execution_ids), sorted(selection.process_keys)
    while execution_ids or keys:
        replaced: set[ProcessKey] = set()
        for row in await session.lock_executions(execution_ids, keys):
            process = process_of(row)
            loaded.executions[process.process_execution_id] = Execution(process, {})
            if process.is_current:
                loaded.current[process.key] = process.process_execution_id
            elif process.key in selection.process_keys:
                replaced.add(process.key)
        # Whoever held the lock may have started another execution, which the statement that waited could not see.
        execution_ids, keys = [], sorted(replaced.intersection(keys).difference(loaded.current))
    running = [id_ for id_, execution in loaded.executions.items() if execution.process.is_running]
    if running:
        for row in await session.find_open_states(running):
            state = state_of(row)
            loaded.executions[state.process_execution_id].states[state.key] = state
    return loaded


async def _load_needs(session: Session, loaded: Loaded, needs: Needs) -> None:
    if needs.messages:
        for execution_id, queue_name in needs.messages:
            loaded.executions[execution_id].queues[queue_name] = []
        for message in map(message_of, await session.find_messages(needs.messages)):
            loaded.executions[message.process_execution_id].queues[message.queue_name].append(message)
    if needs.message_ids:
        for execution_id, queue_name, message_id in await session.find_message_ids(needs.message_ids):
            loaded.executions[execution_id].known_message_ids.add((queue_name, message_id))
    if needs.rows:
        loaded.rows = await session.lock_rows(needs.rows)
    loaded.local_attributes = await read_local_attributes(session, needs.local_attributes)
    table_names = {read.row.table_name for read in needs.rows}
    for execution in loaded.executions.values():
        table_names.update(mapping.table_name for mapping in execution.process.tables)
    if table_names:
        loaded.volatile_tables = await session.volatile_among(table_names)


async def read_local_attributes(session: Session, reads: Sequence[LocalAttributeRead]) -> dict[str, dict[str, str]]:
    """Read process-local attributes; several reads of one execution are united."""
    found: dict[str, dict[str, str]] = {read.process_execution_id: {} for read in reads}
    if reads:
        for execution_id, name, value in await session.find_local_attributes(reads):
            found[execution_id][name] = value
    return found


def found_by(lookups: Sequence[ProcessLookup], processes: Iterable[ProcessExecution]) -> list[ProcessExecution | None]:
    """Give for each lookup the one it asks for of the executions that were found."""
    by_id = {process.process_execution_id: process for process in processes}
    current = {process.key: process for process in by_id.values() if process.is_current}
    found = (by_id.get(id_) if id_ is not None else current.get(key) for key, id_ in lookups)
    return [
        process if process is not None and process.key == lookup.key else None
        for lookup, process in zip(lookups, found, strict=True)
    ]


def _without_what_closes(changes: Changes) -> Changes:
    """Leave out rows that the close of their execution deletes anyway."""
    closed = changes.closed_processes
    if not closed:
        return changes
    return replace(
        changes,
        new_messages=dict(_of_others(changes.new_messages, closed)),
        claimed_messages=dict(_of_others(changes.claimed_messages, closed)),
        new_timers={key: timer for key, timer in changes.new_timers.items() if key.process_execution_id not in closed},
        deleted_timers={key for key in changes.deleted_timers if key.process_execution_id not in closed},
    )


def _of_others(
    messages: Mapping[tuple[str, int], QueuedMessage], closed: Collection[str]
) -> Iterator[tuple[tuple[str, int], QueuedMessage]]:
    return ((key, message) for key, message in messages.items() if key[0] not in closed)
