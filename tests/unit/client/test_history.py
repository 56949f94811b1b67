"""Histories are read page by page, and resets name their point."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.client.doubles import good
from tests.unit.client.processes import Kit, WaitState
from xdb_sdk import HistoryEventType, InvalidArgumentError, ResetOptions
from xdb_sdk.protocol import GetHistoryAnswer, HistoryEventInfo, ResetAnswer


def page(*event_ids: int, has_more: bool) -> GetHistoryAnswer:
    events = tuple(
        HistoryEventInfo(event_id=number, at_ms=number * 1_000, event_type=HistoryEventType.PUBLISHED)
        for number in event_ids
    )
    return GetHistoryAnswer(process_execution_id="e-1", has_history=True, events=events, has_more=has_more)


def test_a_history_is_read_page_by_page_about_the_execution_of_the_first_page() -> None:
    kit = Kit(good(page(1, 2, has_more=True)), good(page(3, has_more=False)))

    events = list(kit.client.get_history("p", page_size=2))

    assert [event.event_id for event in events] == [1, 2, 3]
    assert events[2].at == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    first, second = kit.transport.bodies
    assert first == {"processId": "p", "pageSize": 2}
    assert second == {"processId": "p", "processExecutionId": "e-1", "afterEventId": 2, "pageSize": 2}


def test_no_page_is_asked_for_that_nobody_reads() -> None:
    kit = Kit(good(page(1, 2, has_more=True)))

    events = kit.client.get_history("p")

    assert next(iter(events)).event_id == 1
    assert len(kit.transport.bodies) == 1


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (ResetOptions.to_beginning("why"), {"resetType": "BEGINNING", "reason": "why"}),
        (ResetOptions.to_state(WaitState), {"resetType": "STATE_ID", "stateId": "WaitState"}),
        (
            ResetOptions.to_state_execution("S", 3, skip_messages=True),
            {"resetType": "STATE_EXECUTION_ID", "stateId": "S", "number": 3, "skipMessages": True},
        ),
        (
            ResetOptions.to_time(datetime(1970, 1, 2, tzinfo=UTC), skip_rpcs=True),
            {"resetType": "TIME", "atMs": 86_400_000, "skipRpcs": True},
        ),
        (ResetOptions.to_event(7), {"resetType": "EVENT_ID", "eventId": 7}),
    ],
    ids=["beginning", "state", "state execution", "time", "event"],
)
def test_a_reset_names_its_point(options: ResetOptions, fields: dict[str, Any]) -> None:
    kit = Kit(good(ResetAnswer(process_execution_id="e-2", base_process_execution_id="e-1", event_id=4)))

    result = kit.client.reset_process("p", options, request_id="r-1")

    assert kit.transport.bodies == [{"processId": "p", **fields}]
    assert kit.transport.request_ids == ["r-1"]
    assert (result.process_execution_id, result.base_process_execution_id, result.event_id) == ("e-2", "e-1", 4)


def test_an_instant_without_a_zone_is_no_point() -> None:
    kit = Kit()

    with pytest.raises(InvalidArgumentError, match="at"):
        kit.client.reset_process("p", ResetOptions.to_time(datetime(2026, 1, 1)))  # noqa: DTZ001  # the mistake
