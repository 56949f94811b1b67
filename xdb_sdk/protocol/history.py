"""The event history of a process execution on the wire, and going on from a point of it (semantics 6.7)."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from xdb_sdk.protocol._base import NO_ENTRIES, Json, WireModel
from xdb_sdk.protocol.enums import HistoryEventType, ResetType
from xdb_sdk.protocol.options import InstantMs, Name
from xdb_sdk.protocol.service import MAX_PAGE_SIZE, OperatorRequest, ProcessRequest, RepeatableAnswer

_EventId = Annotated[int, Field(ge=0, le=2**53 - 1)]


class GetHistoryRequest(ProcessRequest):
    """Read a page of the event history of an execution, open or closed: events with larger ids than `after_event_id`.

    A page may have fewer events than `page_size` where they are large.
    """

    after_event_id: _EventId = 0
    page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = 100


class HistoryEventInfo(WireModel):
    """One event of a history.

    `event_id` counts from 1, without gaps. `cause_id` is the first event of the same change, which this one came of;
    absent where the event is itself the first. `request_id` is that of the request that made the change. What `data`
    holds depends on the type.
    """

    event_id: int
    at_ms: int
    event_type: HistoryEventType
    cause_id: int | None = None
    request_id: str | None = None
    data: Mapping[str, Json] = NO_ENTRIES


class GetHistoryAnswer(WireModel):
    """One page. `has_more` tells that there were further events when it was read.

    `has_history` is false for an execution that started where histories are turned off: it never has an event.
    """

    process_execution_id: str
    has_history: bool
    events: tuple[HistoryEventInfo, ...] = ()
    has_more: bool = False


class ResetRequest(OperatorRequest):
    """Go on from a point of an execution's history in a new execution of the same process id (semantics 6.7).

    `reset_type` says which of the other fields names the point: none, `state_id`, `state_id` with `number`, `at_ms` or
    `event_id`. What came from outside after the point is applied again, unless `skip_messages` leaves out messages that
    clients have published, or `skip_rpcs` the changes that RPCs and clients have made. Rows of the user's tables stay
    as they are.
    """

    reset_type: ResetType
    state_id: Name | None = None
    number: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    at_ms: InstantMs | None = None
    event_id: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    skip_messages: bool = False
    skip_rpcs: bool = False


class ResetAnswer(RepeatableAnswer):
    """`process_execution_id` is the new execution; it goes on after `event_id` of `base_process_execution_id`."""

    base_process_execution_id: str
    event_id: int
