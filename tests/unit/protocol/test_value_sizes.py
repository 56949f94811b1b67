"""The one walk over the values of users in a wire model: each is found, and named by its place in the JSON."""

from typing import Any

import pytest

from xdb_sdk.protocol import ExecuteAnswer, StartRequest, WaitUntilAnswer, WireModel, find_large_value

LARGE = "x" * 98
CLOSE = {"closeType": "FORCE_COMPLETE_PROCESS"}
NEXT = {"stateId": "S"}
DECIDED: dict[str, Any] = {"stateDecision": {}}
WAITED: dict[str, Any] = {"commandRequest": {"waitingType": "EMPTY"}}
START = {"processId": LARGE, "processType": "P", "workerUrl": "http://w"}


@pytest.mark.parametrize(
    ("model", "body", "path"),
    [
        (ExecuteAnswer, DECIDED | {"publish": [{"queueName": "q"}, {"queueName": "q", "payload": LARGE}]},
         "publish.1.payload"),
        (ExecuteAnswer, DECIDED | {"writeTables": [{"tableName": "t", "columns": {"a": 1, "b": LARGE}}]},
         "writeTables.0.columns.b"),
        (ExecuteAnswer, DECIDED | {"writeLocalAttributes": {"a": [LARGE]}}, "writeLocalAttributes.a"),
        (ExecuteAnswer, DECIDED | {"recordedEvents": [{"name": "e", "data": [LARGE]}]}, "recordedEvents.0.data"),
        (ExecuteAnswer, {"stateDecision": {"nextStates": [NEXT | {"input": LARGE}]}},
         "stateDecision.nextStates.0.input"),
        (ExecuteAnswer, {"stateDecision": {"threadCloseDecision": CLOSE | {"closeOutput": LARGE}}},
         "stateDecision.threadCloseDecision.closeOutput"),
        (ExecuteAnswer, {"stateDecision": {"conditionalClose": CLOSE | {"queueNames": ["q"], "nextStates": [
            NEXT | {"input": LARGE}]}}}, "stateDecision.conditionalClose.nextStates.0.input"),
        (WaitUntilAnswer, WAITED | {"stateLocals": {"a": LARGE}}, "stateLocals.a"),
        (StartRequest, START | {"startStateInput": LARGE}, "startStateInput"),
        (StartRequest, START | {"objectId": LARGE}, "objectId"),
        (StartRequest, START | {"tables": [{"tableName": "t", "primaryKey": {"id": LARGE}}]}, "tables.0.primaryKey.id"),
    ],
)  # fmt: skip
def test_large_value_is_named_by_its_place(model: type[WireModel], body: dict[str, Any], path: str) -> None:
    parsed = model.model_validate(body)

    found = find_large_value(parsed, 99)

    assert found is not None
    assert found.startswith(f"{path} is 10")
    assert found.endswith(" bytes of JSON")
    assert find_large_value(parsed, 104) is None
