"""One transaction, the same on every database server: load under locks, ask, decide, write (architecture.md).

A database gives a `Session`: its statements, each over many rows. This module says which follow each other.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

from server_stub.core.changes import Changes
from server_stub.core.model import (
    Execution,
    LocalAttributeRead,
    ProcessExecution,
    ProcessKey,
    QueuedMessage,
    RequestKey,
    RowKey,
    RowRead,
)
from server_stub.core.ports import Loaded, Needs, ProcessLookup, Selection, StoreError, Work
from server_stub.storage.codec import Row, event_of, message_of, process_of, request_of, state_of
from server_stub.storage.recent import RecentExecutions
from xdb_sdk.protocol import Json

MessageIdKey: TypeAlias = tuple[str, str, str]
"""Execution, queue and message id."""


NO_LIMIT: Final = 2**31 - 1
"""More rows than there can be of one execution."""


class Session(Protocol):
    """The statements of one transaction. Rows of processes, states and messages have the columns of `codec`."""

    async def lock_executions(self, execution_ids: Sequence[str], keys: Sequence[ProcessKey]) -> Sequence[Row]:
        """Lock and give executions by id, and current ones by process id, all in the order of their ids."""
        ...

    async def find_requests(self, keys: Sequence[RequestKey]) -> Sequence[Row]:
        """Give those requests that are remembered."""
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

    async def find_history(self, process_execution_id: str, after: int, limit: int) -> Sequence[Row]:
        """Give events of a history with larger ids than `after`, in order."""
        ...

    async def find_states(self, process_execution_id: str, latest: int) -> Sequence[Row]:
        """Give open states and the latest ones, in order of creation."""
        ...

    async def lock_rows(
        self, reads: Sequence[RowRead], written: Collection[RowKey]
    ) -> dict[RowRead, Mapping[str, Json] | None]:
        """Read rows of the user's tables, which nobody else changes then until the transaction ends (semantics 5.4).

        Those that are to be written are locked as well where the one order of locks wants it.
        """
        ...

    async def volatile_among(self, table_names: Collection[str]) -> frozenset[str]:
        """See `Loaded.volatile_tables`."""
        ...

    async def write(self, changes: Changes) -> None:
        """Write rows. No message and no timer is of an execution that closes, so that nothing depends on an order."""
        ...


class UnlockedSession(Session, Protocol):
    """A `Session` that can also do without a transaction: it reads, and then writes if all is as it was read."""

    async def read_executions(
        self, execution_ids: Sequence[str], keys: Sequence[ProcessKey], request_keys: Sequence[RequestKey]
    ) -> tuple[Sequence[Row], Sequence[Row], Sequence[Row]]:
        """Give executions by id and current ones by process id, their open states in order of creation, and requests.

        All of it is as it was at one instant.
        """
        ...

    async def write_if_unchanged(self, changes: Changes, versions: Mapping[str, int]) -> None:
        """Write rows if executions still have the versions they were read with, all at once.

        Raises:
            Overtaken: They have not; nothing was written.
            CommitOutcomeUnknown: The connection broke.
        """
        ...


class Overtaken(StoreError):
    """Another transaction has changed an execution since it was read; nothing was written."""


async def do_work(session: Session, work: Work) -> Changes:
    """Load, decide and write, in the transaction of the session."""
    selection = work.selection()
    loaded = await _load(session, selection)
    # Under the locks: whoever had them before may have carried the same request out.
    await _load_requests(session, loaded, selection)
    await _load_needs(session, loaded, work.needs(loaded), touches_rows=selection.touches_rows)
    changes = work.decide(loaded)
    _renew(changes, loaded)
    await session.write(_without_what_closes(changes))
    return changes


async def do_work_unlocked(session: UnlockedSession, work: Work, recent: RecentExecutions) -> Changes | None:
    """Load, decide and write without a transaction around it: two statements for most work, one if all is in `recent`.

    Whatever changes an execution gives it a new version, so that what was read is known to hold if its version does.
    What is refused changes nothing, and so no version is compared: a refusal has to follow from what one statement
    read.

    Returns:
        What was committed; None when the work needs the locks of a transaction, and nothing was done.

    Raises:
        Overtaken: See `UnlockedSession.write_if_unchanged`.
    """
    selection = work.selection()
    if selection.touches_rows:
        return None
    recalled = recent.take(selection.execution_ids)
    loaded = await _read(session, selection, recalled)
    versions = {id_: execution.process.version for id_, execution in loaded.executions.items()}
    needs = work.needs(loaded)
    if needs.histories:
        return None  # they are refused if they do not fit the execution, and make room for another one
    await _load_needs(session, loaded, needs, touches_rows=False)
    changes = work.decide(loaded)
    _renew(changes, loaded)
    if (
        changes.row_writes
        or changes.dropped_requests
        or not _concerned(changes) <= loaded.executions.keys() | changes.new_processes.keys()
    ):
        return None
    if changes.new_processes and any(not process.is_current for process in changes.changed_processes.values()):
        return None  # one makes room for the other, which takes two statements
    if not recalled.keys() <= changes.changed_processes.keys():
        # What was decided of one that stays as it is would hold by nothing.
        return await do_work_unlocked(session, work, RecentExecutions())
    seen = {id_: versions[id_] for id_ in sorted(changes.changed_processes)}
    await session.write_if_unchanged(_without_what_closes(changes), seen)
    recent.keep(loaded, changes)
    return changes


async def _read(session: UnlockedSession, selection: Selection, recalled: Mapping[str, Execution]) -> Loaded:
    loaded = Loaded(executions=dict(recalled))
    execution_ids = selection.execution_ids.difference(recalled)
    if not execution_ids and not selection.process_keys and not selection.request_keys:
        return loaded
    rows, states, requests = await session.read_executions(
        sorted(execution_ids), sorted(selection.process_keys), sorted(selection.request_keys)
    )
    for process in map(process_of, rows):
        loaded.executions[process.process_execution_id] = Execution(process, {})
        if process.is_current:
            loaded.current[process.key] = process.process_execution_id
    for state in map(state_of, states):
        loaded.executions[state.process_execution_id].states[state.key] = state
    loaded.requests = {record.key: record for record in map(request_of, requests)}
    return loaded


def _concerned(changes: Changes) -> set[str]:
    """Give the executions of which anything changes."""
    concerned = {*changes.changed_processes, *changes.new_processes, *changes.closed_processes}
    concerned.update(key.process_execution_id for key in (*changes.new_states, *changes.changed_states))
    concerned.update(key.process_execution_id for key in (*changes.new_timers, *changes.deleted_timers))
    concerned.update(execution_id for execution_id, _ in (*changes.new_messages, *changes.claimed_messages))
    concerned.update(write.process_execution_id for write in changes.local_attribute_writes)
    concerned.update(event.process_execution_id for event in changes.history)
    return concerned


def _renew(changes: Changes, loaded: Loaded) -> None:
    """Give every execution of which anything changes a new version."""
    for execution_id in sorted(_concerned(changes).difference(changes.changed_processes)):
        execution = loaded.executions.get(execution_id)
        if execution is not None:
            changes.touch_process(execution.process)


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


async def _load_requests(session: Session, loaded: Loaded, selection: Selection) -> None:
    if selection.request_keys:
        found = map(request_of, await session.find_requests(sorted(selection.request_keys)))
        loaded.requests = {record.key: record for record in found}


async def _load_needs(session: Session, loaded: Loaded, needs: Needs, *, touches_rows: bool) -> None:
    if needs.messages:
        for execution_id, queue_name in needs.messages:
            loaded.executions[execution_id].queues[queue_name] = []
        for message in map(message_of, await session.find_messages(needs.messages)):
            loaded.executions[message.process_execution_id].queues[message.queue_name].append(message)
    if needs.message_ids:
        for execution_id, queue_name, message_id in await session.find_message_ids(needs.message_ids):
            loaded.executions[execution_id].known_message_ids.add((queue_name, message_id))
    if needs.rows:
        loaded.rows = await session.lock_rows(needs.rows, needs.written_rows)
    loaded.local_attributes = await read_local_attributes(session, needs.local_attributes)
    for execution_id in needs.histories:
        events = await session.find_history(execution_id, 0, NO_LIMIT)
        loaded.histories[execution_id] = list(map(event_of, events))
        states = await session.find_states(execution_id, NO_LIMIT)
        loaded.past_states[execution_id] = list(map(state_of, states))
    if not touches_rows:
        return
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
