"""What a call or an answer may hold at most: one more is refused, by the name of the field."""

from typing import Any

import pytest
from pydantic import ValidationError

from xdb_sdk.protocol import (
    MAX_COLUMNS,
    MAX_COMMANDS,
    MAX_ITEMS,
    MAX_MESSAGE_LENGTH,
    MAX_TABLES,
    CommandRequestBody,
    ConditionalClose,
    DescribeRequest,
    ExecuteAnswer,
    ListRequest,
    PublishRequest,
    ReadRequest,
    SetAttributesRequest,
    StartRequest,
    StateDecisionBody,
    TableMapping,
    TableRead,
    TableWrite,
    ThreadCloseDecision,
    WaitUntilAnswer,
    WireModel,
)

PROCESS = {"processId": "p"}
START = PROCESS | {"processType": "P", "workerUrl": "http://w"}
MESSAGE = {"queueName": "q"}
STATE = {"stateId": "S"}
CLOSE = {"closeType": "FORCE_COMPLETE_PROCESS", "queueNames": ["q"], "nextStates": [STATE]}
DECIDED: dict[str, Any] = {"stateDecision": {}}
WAIT = {"waitingType": "ALL"}
WAITED: dict[str, Any] = {"commandRequest": WAIT}
TABLE = {"tableName": "t"}
WRITE: dict[str, Any] = TABLE | {"columns": {}}

BOUNDED: list[tuple[type[WireModel], dict[str, Any], str, Any, int]] = [
    (StateDecisionBody, {}, "nextStates", STATE, MAX_ITEMS),
    (ConditionalClose, CLOSE, "nextStates", STATE, MAX_ITEMS),
    (ConditionalClose, CLOSE, "queueNames", "q", MAX_COMMANDS),
    (ExecuteAnswer, DECIDED, "publish", MESSAGE, MAX_ITEMS),
    (ExecuteAnswer, DECIDED, "recordedEvents", {"name": "e"}, MAX_ITEMS),
    (ExecuteAnswer, DECIDED, "writeTables", WRITE, MAX_TABLES),
    (CommandRequestBody, WAIT, "timerCommands", {}, MAX_COMMANDS),
    (CommandRequestBody, WAIT, "internalQueueCommands", MESSAGE, MAX_COMMANDS),
    (CommandRequestBody, WAIT, "combinations", [], MAX_COMMANDS),
    (PublishRequest, PROCESS, "messages", MESSAGE, MAX_ITEMS),
    (ReadRequest, {}, "tables", TABLE, MAX_TABLES),
    (ReadRequest, {}, "localAttributes", "a", MAX_ITEMS),
    (ReadRequest, {}, "localAttributePrefixes", "a", MAX_ITEMS),
    (ReadRequest, {}, "lockLocalAttributes", "a", MAX_ITEMS),
    (TableRead, TABLE, "columns", "c", MAX_COLUMNS),
    (TableRead, TABLE, "lockColumns", "c", MAX_COLUMNS),
    (StartRequest, START, "tables", TABLE | {"primaryKey": {"id": 1}}, 1),
    (SetAttributesRequest, PROCESS, "writeTables", WRITE, MAX_TABLES),
    (ListRequest, {}, "statuses", "RUNNING", 6),
    (DescribeRequest, PROCESS, "include", "queues", 3),
]
BOUNDED_MAPPINGS: list[tuple[type[WireModel], dict[str, Any], str, int]] = [
    (ExecuteAnswer, DECIDED, "writeLocalAttributes", MAX_ITEMS),
    (WaitUntilAnswer, WAITED, "stateLocals", MAX_ITEMS),
    (StartRequest, START, "localAttributes", MAX_ITEMS),
    (SetAttributesRequest, PROCESS, "writeLocalAttributes", MAX_ITEMS),
    (TableWrite, TABLE, "columns", MAX_COLUMNS),
    (TableMapping, TABLE | {"primaryKey": {"id": 1}}, "initialWrite", MAX_COLUMNS),
    (TableMapping, TABLE, "primaryKey", 16),
]


def check_bound(model: type[WireModel], body: dict[str, Any], field: str, most: Any, too_many: Any) -> None:
    """Check that a field takes the one value and not the other."""
    model.model_validate(body | {field: most})
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(body | {field: too_many})

    [problem] = refusal.value.errors()
    assert (problem["loc"], problem["type"]) == ((field,), "too_long")


@pytest.mark.parametrize(("model", "body", "field", "item", "limit"), BOUNDED)
def test_one_item_too_many_is_refused(
    model: type[WireModel], body: dict[str, Any], field: str, item: Any, limit: int
) -> None:
    check_bound(model, body, field, [item] * limit, [item] * (limit + 1))


@pytest.mark.parametrize(("model", "body", "field", "limit"), BOUNDED_MAPPINGS)
def test_one_entry_too_many_is_refused(model: type[WireModel], body: dict[str, Any], field: str, limit: int) -> None:
    entries = {f"n{number}": 1 for number in range(limit)}

    check_bound(model, body, field, entries, entries | {"more": 1})


def test_combination_of_too_many_commands_is_refused() -> None:
    with pytest.raises(ValidationError, match="at most 1000 items"):
        CommandRequestBody.model_validate(WAIT | {"combinations": [["a"] * (MAX_COMMANDS + 1)]})


def test_message_of_a_decision_that_is_too_long_is_refused() -> None:
    longest = "é" * MAX_MESSAGE_LENGTH
    ThreadCloseDecision.model_validate({"closeType": "DEAD_END", "message": longest})

    with pytest.raises(ValidationError, match="at most 4096 characters"):
        ThreadCloseDecision.model_validate({"closeType": "DEAD_END", "message": longest + "é"})
