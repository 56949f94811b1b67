"""The events of a process execution: the frame that all of them share (semantics 9.6).

An event says which execution it concerns (`select`), what else must be loaded to judge it (`add_needs`), and changes
the loaded rows (`apply`), noting every change. `apply` first tests that the execution and the state are still what the
event was made for; an event that comes too late does nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

from server_stub.core.changes import Changes
from server_stub.core.edit import Edit
from server_stub.core.model import (
    Execution,
    LocalAttributeRead,
    ProcessExecution,
    ProcessKey,
    ReadSet,
    RowKey,
    Wait,
)
from server_stub.core.ports import Loaded, Needs, Selection
from server_stub.core.refusals import Refused, process_not_found
from xdb_sdk.protocol import (
    ErrorSubType,
    Message,
    ProcessRequest,
    StateDecisionBody,
    TableWrite,
)

ResultT = TypeVar("ResultT")


class Event(ABC, Generic[ResultT]):
    """Something that happened to one process execution.

    `is_repeatable` says that applying it twice is the same as once, so that it may be committed again when it is not
    known whether it was.
    """

    is_repeatable: ClassVar[bool] = False

    @abstractmethod
    def select(self, selection: Selection) -> None:
        """Name the execution to load."""

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        """Name what else to load. The messages that waits can take are asked for by `add_wait_needs`."""
        return

    def must_wait(self, loaded: Loaded, changes: Changes) -> bool:
        """Say whether it can be judged only once what this transaction has to write so far is in the database."""
        return False

    def on_store_error(self, error: Exception) -> "Event[ResultT] | None":
        """Give the event to apply instead when this one cannot be committed; None to tell the caller."""
        return None

    @abstractmethod
    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> ResultT:
        """Change the loaded execution.

        Raises:
            Refused: The event is the caller's mistake; nothing was changed.
        """


def add_wait_needs(loaded: Loaded, needs: Needs) -> None:
    """Ask for the messages that waits can take of the queues that the events feed. Call it after their `add_needs`."""
    for process_execution_id, queue_name in needs.fed_queues:
        execution = loaded.executions[process_execution_id]
        for state in execution.waiting_on((queue_name,)):
            need_messages(needs, execution, queue_name, _most_messages(state.wait, queue_name))


def _most_messages(wait: Wait | None, queue_name: str) -> int:
    if wait is None:
        return 0
    commands = zip(wait.commands.internal_queue_commands, wait.received, strict=True)
    return sum(
        command.at_most or 1 for command, messages in commands if command.queue_name == queue_name and messages is None
    )


def need_messages(needs: Needs, execution: Execution, queue_name: str, count: int) -> None:
    """Ask for the oldest messages of a queue, besides those asked for before."""
    key = (execution.process.process_execution_id, queue_name)
    needs.messages[key] = needs.messages.get(key, 0) + count


def need_queues_of_decision(needs: Needs, execution: Execution, decision: StateDecisionBody) -> None:
    """Ask for what tells whether the queues of a conditional close are empty."""
    if decision.conditional_close is not None:
        for queue_name in decision.conditional_close.queue_names:
            need_messages(needs, execution, queue_name, 1)


def need_published(needs: Needs, execution: Execution, messages: Iterable[Message]) -> None:
    """Ask for what publishing needs: which message ids were seen before, and what waits on the queues can take."""
    process_execution_id = execution.process.process_execution_id
    for message in messages:
        needs.fed_queues.add((process_execution_id, message.queue_name))
        if message.message_id is not None:
            needs.message_ids.add((process_execution_id, message.queue_name, message.message_id))


def need_read_set(needs: Needs, read_set: ReadSet | None) -> None:
    """Ask for what a locking call was given to be read again."""
    if read_set is None:
        return
    needs.rows.extend(read for read, _ in read_set.rows)
    if read_set.local_attributes:
        names = tuple(read_set.local_attributes)
        needs.local_attributes.append(LocalAttributeRead(read_set.process_execution_id, names))


def need_written(needs: Needs, execution: Execution, writes: Iterable[TableWrite]) -> None:
    """Name the rows that an answer or a client writes, to be locked along with those that are read again."""
    names = {write.table_name for write in writes}
    needs.written_rows.extend(RowKey.of(table) for table in execution.process.tables if table.table_name in names)


def select_target(selection: Selection, request: ProcessRequest) -> None:
    """Name the execution that a request is about."""
    if request.process_execution_id is not None:
        selection.execution_ids.add(request.process_execution_id)
    else:
        selection.process_keys.add(ProcessKey(request.namespace, request.process_id))


def find_target(loaded: Loaded, request: ProcessRequest) -> Execution | None:
    """Give the execution that a request is about, None when there is none."""
    key = ProcessKey(request.namespace, request.process_id)
    process_execution_id = request.process_execution_id or loaded.current.get(key)
    execution = loaded.executions.get(process_execution_id) if process_execution_id else None
    if execution is None or execution.process.key != key:
        return None
    return execution


def target_of(loaded: Loaded, request: ProcessRequest) -> Execution:
    """Give the execution that a request is about.

    Raises:
        Refused: PROCESS_NOT_FOUND.
    """
    execution = find_target(loaded, request)
    if execution is None:
        raise process_not_found(request)
    return execution


def running_target(loaded: Loaded, request: ProcessRequest) -> Execution:
    """Give the running execution that a request is about.

    Raises:
        Refused: PROCESS_NOT_FOUND, or PROCESS_NOT_RUNNING.
    """
    execution = target_of(loaded, request)
    require_running(execution.process)
    return execution


def client_edit(loaded: Loaded, changes: Changes, now_ms: int, request: ProcessRequest, request_id: str | None) -> Edit:
    """Begin a change that a client asks for, to an execution that runs.

    Raises:
        Refused: PROCESS_NOT_FOUND, PROCESS_NOT_RUNNING, or HISTORY_LIMIT.
    """
    execution = running_target(loaded, request)
    changes.history_rules.require_room(execution.process)
    return Edit(execution, changes, now_ms, request_id)


def require_running(process: ProcessExecution) -> None:
    """Refuse a change to a closed execution.

    Raises:
        Refused: PROCESS_NOT_RUNNING.
    """
    if process.is_running:
        return
    raise Refused(
        ErrorSubType.PROCESS_NOT_RUNNING,
        f"process {process.process_id!r} ({process.process_execution_id}) has closed as {process.status}; "
        "nothing was changed",
        process.process_execution_id,
    )
