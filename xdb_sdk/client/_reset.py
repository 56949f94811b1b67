"""From which point a reset goes on, and with what of that which came afterwards."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from xdb_sdk._options import StateReference
from xdb_sdk.client._checks import epoch_milliseconds
from xdb_sdk.protocol import ResetType


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOptions:
    """From which point a reset goes on. Make one with `to_beginning` and the like.

    Attributes:
        reset_type: What kind of point it is.
        reason: Why, for the history; at most 1000 characters.
        state: The state, for a point that is named by one.
        number: Which of its executions.
        at: The instant, an aware datetime.
        event_id: The event.
        skip_messages: Leave out the messages that clients have published after the point.
        skip_rpcs: Leave out what RPCs and clients have changed after the point.
    """

    reset_type: ResetType
    reason: str | None = None
    state: StateReference | None = None
    number: int | None = None
    at: datetime | None = None
    event_id: int | None = None
    skip_messages: bool = False
    skip_rpcs: bool = False

    @classmethod
    def to_beginning(
        cls, reason: str | None = None, *, skip_messages: bool = False, skip_rpcs: bool = False
    ) -> "ResetOptions":
        """Go on from the start, with its initial attributes and its starting state."""
        return cls(reset_type=ResetType.BEGINNING, reason=reason, skip_messages=skip_messages, skip_rpcs=skip_rpcs)

    @classmethod
    def to_state(
        cls,
        state: StateReference,
        reason: str | None = None,
        *,
        skip_messages: bool = False,
        skip_rpcs: bool = False,
    ) -> "ResetOptions":
        """Go on from where a state was first scheduled: it is called again."""
        return cls(
            reset_type=ResetType.STATE_ID,
            reason=reason,
            state=state,
            skip_messages=skip_messages,
            skip_rpcs=skip_rpcs,
        )

    @classmethod
    def to_state_execution(
        cls,
        state: StateReference,
        number: int,
        reason: str | None = None,
        *,
        skip_messages: bool = False,
        skip_rpcs: bool = False,
    ) -> "ResetOptions":
        """Go on from where the `number`-th execution of a state was scheduled: it is called again."""
        return cls(
            reset_type=ResetType.STATE_EXECUTION_ID,
            reason=reason,
            state=state,
            number=number,
            skip_messages=skip_messages,
            skip_rpcs=skip_rpcs,
        )

    @classmethod
    def to_time(
        cls, at: datetime, reason: str | None = None, *, skip_messages: bool = False, skip_rpcs: bool = False
    ) -> "ResetOptions":
        """Go on from how the execution was at an instant, an aware datetime."""
        return cls(reset_type=ResetType.TIME, reason=reason, at=at, skip_messages=skip_messages, skip_rpcs=skip_rpcs)

    @classmethod
    def to_event(
        cls, event_id: int, reason: str | None = None, *, skip_messages: bool = False, skip_rpcs: bool = False
    ) -> "ResetOptions":
        """Go on from after an event of the history, and what came of the same change."""
        return cls(
            reset_type=ResetType.EVENT_ID,
            reason=reason,
            event_id=event_id,
            skip_messages=skip_messages,
            skip_rpcs=skip_rpcs,
        )

    def fields(self, state_id: str | None) -> dict[str, Any]:
        """Give the fields of the request; `state_id` is that of `state`."""
        return {
            "reset_type": self.reset_type,
            "reason": self.reason,
            "state_id": state_id,
            "number": self.number,
            "at_ms": epoch_milliseconds(self.at, "at"),
            "event_id": self.event_id,
            "skip_messages": self.skip_messages,
            "skip_rpcs": self.skip_rpcs,
        }
