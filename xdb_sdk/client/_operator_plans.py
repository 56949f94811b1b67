"""What operators ask of the service API, as plans: to hold, mend, move and stop executions, one or many."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from xdb_sdk._names import check_name, check_optional_name
from xdb_sdk.client._checks import epoch_milliseconds, refusing_invalid
from xdb_sdk.client._exchange import Plan
from xdb_sdk.client._history_plans import HistoryPlans
from xdb_sdk.client._operations import ProcessRef
from xdb_sdk.client._request_ids import request_id_of
from xdb_sdk.client._results import BulkResult, CompleteStateResult, PauseResult, process_summary
from xdb_sdk.client._urls import base_url
from xdb_sdk.protocol import (
    BulkAnswer,
    BulkRequest,
    CompleteStateAnswer,
    CompleteStateRequest,
    DoneAnswer,
    PauseAnswer,
    PauseRequest,
    ProcessStopType,
    ReplaceWorkerUrlRequest,
    ResumeRequest,
    RetryStateRequest,
    StateDecisionBody,
    StopProcessesRequest,
)


class OperatorPlans(HistoryPlans):
    """Plans for every operation, those of operators among them."""

    def pause(self, ref: ProcessRef, reason: str | None, request_id: str | None) -> Plan[PauseResult]:
        """Call the states of an execution no more."""
        with refusing_invalid(f"pause of {ref}"):
            request = PauseRequest(**self._change_of(ref, request_id), reason=reason)
        answer = yield from self._change("pause", f"pause of {ref}", request, PauseAnswer)
        return _pause_result(answer)

    def resume(self, ref: ProcessRef, reason: str | None, request_id: str | None) -> Plan[PauseResult]:
        """Call the states of a paused execution again."""
        with refusing_invalid(f"resume of {ref}"):
            request = ResumeRequest(**self._change_of(ref, request_id), reason=reason)
        answer = yield from self._change("resume", f"resume of {ref}", request, PauseAnswer)
        return _pause_result(answer)

    def retry_state(
        self,
        ref: ProcessRef,
        state_id: str,
        number: int,
        *,
        reset_attempts: bool,
        reason: str | None,
        request_id: str | None,
    ) -> Plan[None]:
        """Make the next attempt of a state now."""
        subject = f"retry of state {state_id!r} of {ref}"
        with refusing_invalid(subject):
            request = RetryStateRequest(
                **self._change_of(ref, request_id),
                state_id=check_name(state_id, "state id"),
                number=number,
                reset_attempts=reset_attempts,
                reason=reason,
            )
        yield from self._change("retry-state", subject, request, DoneAnswer)

    def complete_state(
        self,
        ref: ProcessRef,
        state_id: str,
        number: int,
        decision: StateDecisionBody,
        reason: str | None,
        request_id: str | None,
    ) -> Plan[CompleteStateResult]:
        """End a state by a decision."""
        subject = f"completion of state {state_id!r} of {ref}"
        with refusing_invalid(subject):
            request = CompleteStateRequest(
                **self._change_of(ref, request_id),
                state_id=check_name(state_id, "state id"),
                number=number,
                decision=decision,
                reason=reason,
            )
        answer = yield from self._change("complete-state", subject, request, CompleteStateAnswer)
        return CompleteStateResult(
            process_execution_id=answer.process_execution_id,
            status=answer.status,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )

    def stop_request(self, stop_type: ProcessStopType, fields: Mapping[str, Any]) -> StopProcessesRequest:
        """Make the request for the first page of executions to stop; `fields` are those of `bulk_fields`."""
        with refusing_invalid("stop of processes"):
            return StopProcessesRequest(**fields, stop_type=stop_type)

    def replace_request(
        self, new_worker_url: str, old_worker_url: str | None, fields: Mapping[str, Any]
    ) -> ReplaceWorkerUrlRequest:
        """Make the request for the first page of executions to move; `fields` are those of `bulk_fields`."""
        with refusing_invalid("replacement of worker URLs"):
            return ReplaceWorkerUrlRequest(
                **fields,
                new_worker_url=base_url(new_worker_url, "new_worker_url"),
                old_worker_url=None if old_worker_url is None else base_url(old_worker_url, "old_worker_url"),
            )

    def bulk_fields(
        self,
        *,
        process_type: str | None,
        process_id_prefix: str | None,
        started_from: datetime | None,
        started_before: datetime | None,
        reason: str | None,
        dry_run: bool,
        page_size: int,
        request_id: str | None,
    ) -> dict[str, Any]:
        """Give the fields that requests for many executions have; one request id stands for all pages."""
        return {
            "namespace": self.options.namespace,
            "process_type": check_optional_name(process_type, "process type"),
            "process_id_prefix": check_optional_name(process_id_prefix, "process id prefix"),
            "started_from_ms": epoch_milliseconds(started_from, "started_from"),
            "started_before_ms": epoch_milliseconds(started_before, "started_before"),
            "reason": reason,
            "dry_run": dry_run,
            "page_size": page_size,
            "request_id": request_id_of(request_id),
        }

    def bulk_page(self, request: BulkRequest, so_far: BulkResult) -> Plan[tuple[BulkResult, BulkRequest | None]]:
        """Change the executions of one page; returns what was done up to here, and the request for the next page."""
        is_stop = isinstance(request, StopProcessesRequest)
        operation = "stop-processes" if is_stop else "replace-worker-url"
        subject = "stop of processes" if is_stop else "replacement of worker URLs"
        answer = yield from self._call(operation, subject, request, BulkAnswer, request_id=request.request_id)
        result = replace(
            so_far,
            examined=so_far.examined + answer.examined,
            matched=so_far.matched + answer.matched,
            changed=so_far.changed + answer.changed,
            processes=(*so_far.processes, *map(process_summary, answer.processes)),
        )
        if answer.next_page_token is None:
            return result, None
        return result, request.model_copy(update={"next_page_token": answer.next_page_token})


def _pause_result(answer: PauseAnswer) -> PauseResult:
    return PauseResult(
        process_execution_id=answer.process_execution_id,
        changed=answer.changed,
        duplicate=answer.duplicate,
        mismatch=answer.mismatch,
    )
