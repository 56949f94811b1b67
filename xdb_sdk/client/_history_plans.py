"""What is asked of the history of executions, as plans: to read it, and to go on from a point of it."""

from xdb_sdk.client._checks import refusing_invalid
from xdb_sdk.client._exchange import Plan
from xdb_sdk.client._operations import Operations, ProcessRef
from xdb_sdk.client._reset import ResetOptions
from xdb_sdk.client._results import HistoryEvent, ResetResult, history_event
from xdb_sdk.protocol import GetHistoryAnswer, GetHistoryRequest, ResetAnswer, ResetRequest


class HistoryPlans(Operations):
    """Plans of the operations that are about histories."""

    def history_request(self, ref: ProcessRef, after_event_id: int, page_size: int) -> GetHistoryRequest:
        """Make the request for the first page."""
        with refusing_invalid(f"history of {ref}"):
            return GetHistoryRequest(**self._names(ref), after_event_id=after_event_id, page_size=page_size)

    def history_page(
        self, request: GetHistoryRequest
    ) -> Plan[tuple[tuple[HistoryEvent, ...], GetHistoryRequest | None]]:
        """Read a page; returns its events and the request for the next one, of the same execution."""
        subject = f"history of process {request.process_id!r}"
        answer = yield from self._call("get-history", subject, request, GetHistoryAnswer)
        events = tuple(map(history_event, answer.events))
        if not answer.has_more:
            return events, None
        following = {"process_execution_id": answer.process_execution_id, "after_event_id": events[-1].event_id}
        return events, request.model_copy(update=following)

    def reset(
        self, ref: ProcessRef, options: ResetOptions, state_id: str | None, request_id: str | None
    ) -> Plan[ResetResult]:
        """Go on from a point in a new execution."""
        with refusing_invalid(f"reset of {ref}"):
            request = ResetRequest(**self._change_of(ref, request_id), **options.fields(state_id))
        answer = yield from self._change("reset", f"reset of {ref}", request, ResetAnswer)
        return ResetResult(
            process_execution_id=answer.process_execution_id,
            base_process_execution_id=answer.base_process_execution_id,
            event_id=answer.event_id,
            duplicate=answer.duplicate,
            mismatch=answer.mismatch,
        )
