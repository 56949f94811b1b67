"""What an answer of a worker changes besides its own result: attributes, messages, events (semantics 2.8, 3.2, 7.3)."""

from collections.abc import Iterable, Mapping, Sequence

from server_stub.core.changes import Changes
from server_stub.core.edit import Edit
from server_stub.core.model import (
    LocalAttributeWrite,
    QueuedMessage,
    ReadSet,
    RowKey,
    RowWrite,
    json_text,
)
from server_stub.core.ports import Loaded
from server_stub.core.refusals import InvalidAnswer
from xdb_sdk.protocol import Effects, HistoryEventType, Json, Message, TableMapping, TableWrite


def check_writes(tables: Sequence[TableMapping], writes: Iterable[TableWrite]) -> None:
    """Refuse writes to a table the execution is not mapped to, and to the key of the row.

    Raises:
        InvalidAnswer: Names the table or column.
    """
    mapped = {mapping.table_name: mapping for mapping in tables}
    for write in writes:
        mapping = mapped.get(write.table_name)
        if mapping is None:
            raise InvalidAnswer(f"the process execution is not mapped to a row of table {write.table_name!r}")
        for column in write.columns:
            if column in mapping.primary_key:
                raise InvalidAnswer(
                    f"column {column!r} is the primary key of table {write.table_name!r} and cannot be written"
                )


def write_attributes(edit: Edit, writes: Iterable[TableWrite], local_attributes: Mapping[str, Json]) -> None:
    """Write columns of the execution's own rows, and process-local attributes.

    The key of a row comes from the execution, never from the worker.
    """
    rows = {mapping.table_name: RowKey.of(mapping) for mapping in edit.process.tables}
    written: dict[str, dict[str, Json]] = {}
    for write in writes:
        if write.columns:
            edit.changes.row_writes.append(RowWrite(rows[write.table_name], write.columns))
            written.setdefault(write.table_name, {}).update(write.columns)
    write_local_attributes(edit, local_attributes)
    record_attributes(edit, written, local_attributes)


def write_local_attributes(edit: Edit, values: Mapping[str, Json]) -> None:
    """Write process-local attributes, without a trace in the history."""
    process_execution_id = edit.process.process_execution_id
    for name, value in values.items():
        edit.changes.local_attribute_writes.append(LocalAttributeWrite(process_execution_id, name, json_text(value)))


def record_attributes(
    edit: Edit, columns: Mapping[str, Mapping[str, Json]], local_attributes: Mapping[str, Json]
) -> None:
    """Record which columns of the user's tables were written, by table, and what became of local attributes.

    The values of the user's columns are the user's: they are recorded only where that is asked for.
    """
    if not columns and not local_attributes:
        return
    has_values = edit.process.namespace in edit.changes.history_rules.values_in
    edit.record(
        HistoryEventType.ATTRIBUTES_WRITTEN,
        tables={name: dict(values) if has_values else list(values) for name, values in columns.items()} or None,
        local_attributes=local_attributes or None,
    )


def publish(edit: Edit, messages: Iterable[Message]) -> list[int | None]:
    """Append messages to their queues, once for each message id, and give the number of each; None if it was known."""
    process, execution = edit.process, edit.execution
    sequence_ids: list[int | None] = []
    new: list[QueuedMessage] = []
    for message in messages:
        if message.message_id is not None:
            seen = (message.queue_name, message.message_id)
            if seen in execution.known_message_ids:
                sequence_ids.append(None)
                continue
            execution.known_message_ids.add(seen)
        queued = QueuedMessage(
            process_execution_id=process.process_execution_id,
            queue_name=message.queue_name,
            sequence_id=process.next_sequence_id,
            message_id=message.message_id,
            payload=message.payload,
        )
        sequence_ids.append(process.next_sequence_id)
        process.next_sequence_id += 1
        execution.queues.setdefault(message.queue_name, []).append(queued)
        edit.changes.add_message(queued)
        edit.touch_process()
        new.append(queued)
    if new:
        edit.record(HistoryEventType.PUBLISHED, messages=[_told(message) for message in new])
    return sequence_ids


def _told(message: QueuedMessage) -> dict[str, Json]:
    told = {"queueName": message.queue_name, "sequenceId": message.sequence_id, "payload": message.payload}
    return told if message.message_id is None else {**told, "messageId": message.message_id}


def apply_writes(edit: Edit, effects: Effects) -> None:
    """Apply everything of an answer but its messages, whose place in the order is the caller's to choose."""
    write_attributes(edit, effects.write_tables, effects.write_local_attributes)
    for event in effects.recorded_events:
        edit.record(HistoryEventType.USER_EVENT, name=event.name, values=list(event.data) or None)


def has_changed(read_set: ReadSet | None, loaded: Loaded, edit: Edit) -> bool:
    """Say whether anything a locking call was given has changed since, be it in this transaction (semantics 5.4).

    Rows are compared as they are in the database; see `may_be_changed` for what this transaction writes into them.
    """
    if read_set is None:
        return False
    for read, seen in read_set.rows:
        if loaded.rows.get(read) != seen:
            return True
    return any(
        _current_local(read_set.process_execution_id, name, loaded, edit) != seen
        for name, seen in read_set.local_attributes.items()
    )


def may_be_changed(read_set: ReadSet | None, loaded: Loaded, changes: Changes) -> bool:
    """Say whether what this transaction is to write so far may change a row that a locking call was given.

    What a write does to a row is known only once it is done: it may have generated columns, and triggers and cascades
    reach other rows. The call is then judged in the next transaction.
    """
    if read_set is None or not read_set.rows or not changes.row_writes:
        return False
    written = {write.row for write in changes.row_writes}
    tables = {read.row.table_name for read, _ in read_set.rows} | {row.table_name for row in written}
    return not tables.isdisjoint(loaded.volatile_tables) or any(read.row in written for read, _ in read_set.rows)


def _current_local(process_execution_id: str, name: str, loaded: Loaded, edit: Edit) -> str | None:
    for write in reversed(edit.changes.local_attribute_writes):
        if write.process_execution_id == process_execution_id and write.name == name:
            return write.value
    return loaded.local_attributes.get(process_execution_id, {}).get(name)
