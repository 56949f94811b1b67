"""What a transaction writes to the system tables, as rows for statements; the same for every database server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.model import ProcessExecution, RequestKey
from server_stub.storage.codec import (
    Row,
    history_row,
    message_row,
    process_changing,
    process_fixed,
    request_row,
    state_changing,
    state_fixed,
)

StatementT = TypeVar("StatementT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes(Generic[StatementT]):
    """The statements that write, each over many rows; what a row holds is said by `rows_to_write`.

    Attributes:
        end_processes: Changes the two columns that have indexes, too: for executions that close, or make room.
        change_processes: Changes no indexed column.
        delete_requests: Names a row by when it expires, too: another one of the same request is not meant.
    """

    end_processes: StatementT
    change_processes: StatementT
    insert_processes: StatementT
    delete_requests: StatementT
    insert_requests: StatementT
    insert_states: StatementT
    change_states: StatementT
    insert_messages: StatementT
    delete_messages: StatementT
    remember_message_ids: StatementT
    set_timers: StatementT
    delete_timers: StatementT
    delete_messages_of_processes: StatementT
    delete_timers_of_processes: StatementT
    insert_history: StatementT
    write_local_attributes: StatementT


def rows_to_write(
    changes: Changes, changed: Sequence[ProcessExecution], to: Writes[StatementT]
) -> list[tuple[StatementT, list[Row]]]:
    """Give the rows for each statement, in an order in which they can be run; some have none.

    Args:
        changes: What to write.
        changed: Those of `changes.changed_processes` that are to be written.
        to: The statements.
    """
    claimed = changes.claimed_messages.values()
    # Sorted where two transactions may want the same: a process id of which there is no execution to lock, and the
    # requests of it.
    new = sorted(changes.new_processes.values(), key=lambda process: process.key)
    closed: list[Row] = [(process_execution_id,) for process_execution_id in changes.closed_processes]
    return [
        (to.end_processes, [ended(p) for p in changed if not _stays(p)]),
        (to.change_processes, [(*process_changing(p), p.process_execution_id) for p in changed if _stays(p)]),
        (to.insert_processes, [process_fixed(p) + process_changing(p) for p in new]),
        (to.delete_requests, dropped(changes)),
        (to.insert_requests, [request_row(record) for _, record in sorted(changes.requests.items())]),
        (to.insert_states, [state_fixed(s) + state_changing(s) for s in changes.new_states.values()]),
        (to.change_states, [(*state_changing(s), *key) for key, s in changes.changed_states.items()]),
        (to.insert_messages, [message_row(m) for m in changes.new_messages.values()]),
        (to.delete_messages, [(m.process_execution_id, m.sequence_id) for m in claimed if m.message_id is None]),
        (
            to.remember_message_ids,
            [
                (m.process_execution_id, m.queue_name, m.sequence_id, m.message_id)
                for m in claimed
                if m.message_id is not None
            ],
        ),
        (to.set_timers, [(*key, t.shard_id, t.fire_at_ms) for key, t in changes.new_timers.items()]),
        (to.delete_timers, list(changes.deleted_timers)),
        (to.delete_messages_of_processes, closed),
        (to.delete_timers_of_processes, closed),
        (to.insert_history, [history_row(event) for event in changes.history]),
        (to.write_local_attributes, _last_values(changes)),
    ]


def dropped(changes: Changes) -> list[Row]:
    """Give the rows of requests for `Writes.delete_requests`."""
    return [(*request_key(key), record.expires_at_ms) for key, record in sorted(changes.dropped_requests.items())]


def request_key(key: RequestKey) -> Row:
    """Give the values of `REQUEST_KEY`."""
    namespace, process_id, request_type, request_id = key
    return namespace, process_id, int(request_type), request_id


def ended(process: ProcessExecution) -> Row:
    """Give the row of an execution for `Writes.end_processes`."""
    is_current = 1 if process.is_current else None
    return (process.status.value, is_current, *process_changing(process), process.process_execution_id)


def _stays(process: ProcessExecution) -> bool:
    return process.is_running and process.is_current


def _last_values(changes: Changes) -> list[Row]:
    """Give the attributes to write, each once: a statement cannot write a row twice."""
    writes = {(write.process_execution_id, write.name): write.value for write in changes.local_attribute_writes}
    return [(*key, value) for key, value in writes.items()]
