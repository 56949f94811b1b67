"""What a call is told about itself."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.sdk.compiling import definition_of
from tests.unit.sdk.signup import DecoratedSignup
from xdb_sdk import (
    DecodeError,
    InvalidArgumentError,
    ObjectProcess,
    ProcessContext,
    RecoverFrom,
    StateApi,
    StateContext,
    process,
)
from xdb_sdk._definition import ProcessDefinition
from xdb_sdk.client._request_ids import check_request_id
from xdb_sdk.protocol import CallContext, Json


@process(table_name="t", primary_key="id", primary_key_type=int)
class Numbered(ObjectProcess):
    """Its object id is a number."""


def context(
    definition: ProcessDefinition,
    object_id: Json = None,
    *,
    is_rpc: bool = False,
    left: timedelta = timedelta(0),
    attempt: int = 3,
    key: str | None = "e-1/VerifyState-2/EXECUTE",
) -> ProcessContext:
    call = CallContext(
        namespace="default",
        process_id="p-1",
        process_execution_id="e-1",
        process_type=definition.process_type,
        object_id=object_id,
        process_started_at_ms=1_000,
        state_execution_id=None if is_rpc else "VerifyState-2",
        attempt=None if is_rpc else attempt,
        first_attempt_at_ms=None if is_rpc else 2_500,
        recover_from=RecoverFrom(state_execution_id="Other-1", api=StateApi.EXECUTE, attempts=5),
        idempotency_key=key,
        timeout_ms=30_000,
    )
    context_type = ProcessContext if is_rpc else StateContext
    return context_type.from_wire(call, definition, remaining=lambda: left, is_stopped=lambda: left < timedelta(0))


def test_instants_are_aware_and_ids_are_whole() -> None:
    ctx = context(definition_of(DecoratedSignup), "user-7")

    assert ctx.process_started_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert ctx.first_attempt_at == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    assert (ctx.process_id, ctx.process_execution_id, ctx.process_type) == ("p-1", "e-1", "Signup")
    assert (ctx.state_execution_id, ctx.attempt) == ("VerifyState-2", 3)
    assert ctx.object_id == "user-7"
    assert ctx.idempotency_key == "e-1/VerifyState-2/EXECUTE"
    assert ctx.recover_from is not None
    assert ctx.recover_from.state_execution_id == "Other-1"


def test_an_rpc_has_no_attempt() -> None:
    ctx = context(definition_of(DecoratedSignup), is_rpc=True, key=None)

    assert (ctx.state_execution_id, ctx.attempt, ctx.first_attempt_at) == (None, None, None)
    assert ctx.idempotency_key is None


@pytest.mark.parametrize("missing", ["state_execution_id", "attempt", "first_attempt_at", "idempotency_key"])
def test_a_state_is_always_told_its_attempt(missing: str) -> None:
    known = vars(context(definition_of(DecoratedSignup)))

    with pytest.raises(DecodeError, match=f"{missing}: is missing, though a state is called"):
        StateContext(**{**known, missing: None})


def test_the_object_id_has_the_type_of_the_primary_key() -> None:
    assert context(definition_of(Numbered), 7).object_id == 7
    with pytest.raises(DecodeError, match="object id of Numbered"):
        context(definition_of(Numbered), "seven")


def test_the_deadline_and_the_stop_are_asked_for_each_time() -> None:
    in_time = context(definition_of(DecoratedSignup), left=timedelta(seconds=3))
    too_late = context(definition_of(DecoratedSignup), left=timedelta(seconds=-1))

    assert (in_time.deadline, in_time.is_stopped()) == (timedelta(seconds=3), False)
    assert (too_late.deadline, too_late.is_stopped()) == (timedelta(seconds=-1), True)


def test_the_request_id_for_a_label_is_the_same_in_every_attempt() -> None:
    first, third = (context(definition_of(DecoratedSignup), attempt=attempt) for attempt in (1, 3))

    assert first.request_id_for("charge") == third.request_id_for("charge")
    assert check_request_id(first.request_id_for("charge"))


def test_request_ids_differ_by_label_and_by_what_is_called() -> None:
    keys = ("e-1/S-1/EXECUTE", "e-1/S-1/WAIT_UNTIL", "e-1/S-2/EXECUTE", "e-2/S-1/EXECUTE", "e-1/RPC/r-1", "e-1/RPC/r-2")

    ids = {
        context(definition_of(DecoratedSignup), key=key, is_rpc="RPC" in key).request_id_for(label)
        for key in keys
        for label in ("charge", "Charge", "größer")
    }

    assert len(ids) == 18


@pytest.mark.parametrize("label", ["", None, 7, "\ud800"], ids=["empty", "none", "number", "surrogate"])
def test_a_label_that_names_nothing_is_refused(label: Any) -> None:
    ctx = context(definition_of(DecoratedSignup))

    with pytest.raises(InvalidArgumentError, match="label of a request id"):
        ctx.request_id_for(label)


def test_an_rpc_that_nobody_knows_again_has_no_request_ids() -> None:
    ctx = context(definition_of(DecoratedSignup), is_rpc=True, key=None)

    with pytest.raises(InvalidArgumentError, match="called without a request id"):
        ctx.request_id_for("charge")
