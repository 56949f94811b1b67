"""Clients start, stop and change processes (semantics 1, 6)."""

from dataclasses import dataclass

from server_stub.core.changes import Changes
from server_stub.core.closing import close
from server_stub.core.edit import Edit
from server_stub.core.effects import (
    check_writes,
    publish,
    write_attributes,
)
from server_stub.core.events import (
    Event,
    client_edit,
    find_target,
    need_published,
    need_written,
    select_target,
    target_of,
)
from server_stub.core.model import (
    ProcessKey,
)
from server_stub.core.ports import Loaded, Needs, Selection
from server_stub.core.refusals import InvalidAnswer, Refused
from server_stub.core.starting import begin, check_reuse, new_execution, replace
from server_stub.core.states import settle_waits
from xdb_sdk.protocol import (
    DoneAnswer,
    ErrorSubType,
    HistoryEventType,
    ProcessErrorInfo,
    ProcessErrorType,
    ProcessStatus,
    ProcessStopType,
    PublishAnswer,
    PublishRequest,
    SetAttributesRequest,
    StartAnswer,
    StartRequest,
    StopAnswer,
    StopRequest,
)


@dataclass(frozen=True, slots=True)
class StartProcess(Event[StartAnswer]):
    """A client starts a process; `process_execution_id` is new and made by the caller."""

    request: StartRequest
    process_execution_id: str
    shard_id: int = 0

    @property
    def key(self) -> ProcessKey:
        """The process id to start."""
        return ProcessKey(self.request.namespace, self.request.process_id)

    def select(self, selection: Selection) -> None:
        selection.process_keys.add(self.key)
        if any(table.initial_write for table in self.request.tables):
            selection.touches_rows = True

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> StartAnswer:
        previous_id = loaded.current.get(self.key)
        previous = loaded.executions[previous_id] if previous_id is not None else None
        request_id = self.request.request_id
        if request_id is not None and previous is not None and previous.process.create_request_id == request_id:
            # The request is forgotten, and what it started is still there.
            return StartAnswer(process_execution_id=previous.process.process_execution_id, already_started=True)
        try:
            check_reuse(self.request, previous.process if previous else None)
        except Refused:
            if previous is None or not previous.process.is_running or not self.request.ignore_already_started:
                raise
            return StartAnswer(process_execution_id=previous.process.process_execution_id, already_started=True)
        if previous is not None:
            replace(Edit(previous, changes, now_ms, request_id))
        execution = new_execution(self.request, self.process_execution_id, now_ms, shard_id=self.shard_id)
        loaded.executions[self.process_execution_id] = execution
        loaded.current[self.key] = self.process_execution_id
        begin(Edit(execution, changes, now_ms, request_id), self.request)
        return StartAnswer(process_execution_id=self.process_execution_id)


@dataclass(frozen=True, slots=True)
class PublishMessages(Event[PublishAnswer]):
    """A client publishes messages (semantics 6.3)."""

    request: PublishRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        execution = find_target(loaded, self.request)
        if execution is not None:
            need_published(needs, execution, self.request.messages)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> PublishAnswer:
        return self.publish_into(client_edit(loaded, changes, now_ms, self.request, self.request.request_id))

    def publish_into(self, edit: Edit) -> PublishAnswer:
        """Publish to an execution that takes it."""
        sequence_ids = publish(edit, self.request.messages)
        settle_waits(edit, fed={message.queue_name for message in self.request.messages})
        return PublishAnswer(
            process_execution_id=edit.process.process_execution_id,
            published=len(sequence_ids) - sequence_ids.count(None),
            sequence_ids=tuple(sequence_ids),
        )


_STOP_STATUS = {
    ProcessStopType.TERMINATE: ProcessStatus.TERMINATED,
    ProcessStopType.FAIL: ProcessStatus.FAILED,
    ProcessStopType.CANCEL: ProcessStatus.CANCELED,
}


@dataclass(frozen=True, slots=True)
class StopProcess(Event[StopAnswer]):
    """A client stops a process; one that has closed stays as it is (semantics 6.1)."""

    request: StopRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> StopAnswer:
        process = target_of(loaded, self.request).process
        if not process.is_running:
            return StopAnswer(process_execution_id=process.process_execution_id, status=process.status, changed=False)
        status = _STOP_STATUS[self.request.stop_type]
        error = ProcessErrorInfo(
            error_type=ProcessErrorType.CLIENT_STOP, message=self.request.reason or "stopped by a client"
        )
        execution = loaded.executions[process.process_execution_id]
        edit = Edit(execution, changes, now_ms, self.request.request_id)
        edit.record(HistoryEventType.STOP_REQUESTED, stop_type=self.request.stop_type, reason=self.request.reason)
        close(edit, status, reason=self.request.reason, error=error)
        return StopAnswer(process_execution_id=process.process_execution_id, status=status)


@dataclass(frozen=True, slots=True)
class SetAttributes(Event[DoneAnswer]):
    """A client writes attributes of a running execution (semantics 6.5)."""

    request: SetAttributesRequest

    def select(self, selection: Selection) -> None:
        select_target(selection, self.request)
        if self.request.write_tables:
            selection.touches_rows = True

    def add_needs(self, loaded: Loaded, needs: Needs) -> None:
        execution = find_target(loaded, self.request)
        if execution is not None:
            need_written(needs, execution, self.request.write_tables)

    def apply(self, loaded: Loaded, changes: Changes, now_ms: int) -> DoneAnswer:
        edit = client_edit(loaded, changes, now_ms, self.request, self.request.request_id)
        process_execution_id = edit.process.process_execution_id
        try:
            check_writes(edit.process.tables, self.request.write_tables)
        except InvalidAnswer as error:
            raise Refused(ErrorSubType.INVALID_REQUEST, str(error), process_execution_id) from error
        write_attributes(edit, self.request.write_tables, self.request.write_local_attributes)
        return DoneAnswer(process_execution_id=process_execution_id)
