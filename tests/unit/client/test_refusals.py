"""What the typed client refuses before anything is sent (semantics 1.7)."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.unit.client.processes import Bare, Kit, NotRegistered, OtherState, SignUp, WaitState
from xdb_sdk._errors import InvalidArgumentError, NotRegisteredError
from xdb_sdk._options import ProcessStartOptions
from xdb_sdk.client import Client


def upsert(values: dict[Any, Any]) -> ProcessStartOptions:
    return ProcessStartOptions(initial_upsert_data_attributes=values)


REFUSED: dict[str, tuple[Callable[[Client], Any], str]] = {
    "start of a class that is not registered": (lambda c: c.start_process("p", NotRegistered), "NotRegistered"),
    "input of the wrong type": (lambda c: c.start_object_process("p", SignUp, 1, "x"), "input of state 'submit'"),
    "input missing": (lambda c: c.start_object_process("p", SignUp, 1), "input of state 'submit'"),
    "input without a starting state": (lambda c: c.start_process("p", Bare, 5), "Bare has no starting state"),
    "object id of the wrong type": (lambda c: c.start_object_process("p", SignUp, "x", 5), "object id of SignUp"),
    "object id missing": (lambda c: c.start_object_process("p", SignUp, None, 5), "object id of SignUp is None"),
    "table without an object": (lambda c: c.start_process("p", SignUp, 5), "use start_object_process"),
    "object without a table": (lambda c: c.start_object_process("p", Bare, 1), "use start_process"),
    "unknown attribute": (lambda c: c.start_process("p", Bare, None, upsert({"nope": 1})), "'nope'"),
    "attribute of the wrong type": (lambda c: c.start_process("p", Bare, None, upsert({"note": 1})), "'note' of Bare"),
    "primary key as attribute": (
        lambda c: c.start_object_process("p", SignUp, 1, 5, upsert({"user_id": 2})),
        "primary key",
    ),
    "negative timeout": (
        lambda c: c.start_process("p", Bare, None, ProcessStartOptions(timeout=timedelta(-1))),
        "timeout of the start",
    ),
    "bare number for a wait": (
        lambda c: c.wait_for_process_completion("p", str, timeout=1),  # type: ignore[call-overload]  # the mistake
        "timeout must be a timedelta, got 1 (int); write timedelta(seconds=1)",
    ),
    "bare number for a timeout": (
        lambda c: c.update_process_config("p", timeout=5),  # type: ignore[arg-type]  # the mistake
        "timeout must be a timedelta",
    ),
    "key in the place of the class": (
        lambda c: c.publish_to_internal_queue("p", Bare.note, "x"),  # type: ignore[call-overload]  # the mistake
        "the key 'note' stands where a process class is wanted",
    ),
    "list in the place of the class": (
        lambda c: c.get_data_attributes("p", [Bare.note]),  # type: ignore[arg-type]  # the mistake
        "a value of type list stands where a process class is wanted",
    ),
    "instance in the place of the class": (
        lambda c: c.start_process("p", Bare()),  # type: ignore[arg-type]  # the mistake
        "an instance of Bare stands where a process class is wanted",
    ),
    "number in the place of a key": (
        lambda c: c.publish_to_internal_queue("p", SignUp, 5),  # type: ignore[call-overload]  # the mistake
        "a value of type int stands where a name or typed key is wanted",
    ),
    "name in the place of a list": (lambda c: c.get_data_attributes("p", SignUp, "form"), "give a list of attributes"),
    "RPC by name": (
        lambda c: c.invoke_rpc("p", "verify", "x"),  # type: ignore[call-overload]  # the mistake
        "RPC 'verify' is given by its name: give the method itself, such as SignUp.verify",
    ),
    "process id empty": (lambda c: c.start_process("", Bare), "process id is empty"),
    "process id too long": (lambda c: c.start_process("é" * 128, Bare), "process id is 256 bytes long"),
    "process id with NUL": (lambda c: c.start_process("a\0b", Bare), "NUL"),
    "process id with a lone surrogate": (lambda c: c.start_process("\ud800", Bare), "surrogate"),
    "process id not a string": (lambda c: c.start_process(7, Bare), "process id is a int"),  # type: ignore[arg-type]  # the mistake
    "execution id empty": (lambda c: c.describe_process("p", process_execution_id=""), "process execution id"),
    "unknown queue": (lambda c: c.publish_to_internal_queue("p", SignUp, "nope"), "internal queue 'nope'"),
    "message of the wrong type": (lambda c: c.publish_to_internal_queue("p", SignUp, "numbers", "x"), "'numbers'"),
    "message to a queue without values": (lambda c: c.publish_to_internal_queue("p", SignUp, "verify", 1), "'verify'"),
    "dedup id empty": (lambda c: c.publish_to_internal_queue("p", SignUp, "verify", dedup_id=""), "dedup id"),
    "no messages": (lambda c: c.publish_messages("p", SignUp, []), "no messages"),
    "RPC input of the wrong type": (lambda c: c.invoke_rpc("p", SignUp.verify, 7), "input of RPC 'verify'"),  # type: ignore[misc]  # the mistake
    "RPC without input": (lambda c: c.invoke_rpc("p", SignUp.ping, 7), "takes no input"),  # type: ignore[misc]  # the mistake
    "not an RPC": (lambda c: c.invoke_rpc("p", SignUp.get_process_type), "no RPC"),  # type: ignore[call-overload]  # the mistake
    "attribute to get": (lambda c: c.get_data_attributes("p", SignUp, ["nope"]), "'nope'"),
    "attribute to set": (lambda c: c.set_data_attributes("p", SignUp, {"nope": 1}), "'nope'"),
    "value to set": (lambda c: c.set_data_attributes("p", SignUp, {"form": 1}), "'form' of SignUp"),
    "primary key to set": (lambda c: c.set_data_attributes("p", SignUp, {"user_id": 2}), "primary key"),
    "nothing to set": (lambda c: c.set_data_attributes("p", SignUp, {}), "writes nothing"),
    "timer unnamed": (lambda c: c.skip_timer("p", WaitState), "command_id or index"),
    "timer named twice": (lambda c: c.skip_timer("p", WaitState, command_id="t", index=0), "command_id or index"),
    "timer before the first": (lambda c: c.skip_timer("p", WaitState, index=-1), "index"),
    "state number zero": (lambda c: c.wait_for_state_completion("p", WaitState, 0), "number"),
    "state unknown": (lambda c: c.wait_for_state_completion("p", OtherState), "state OtherState"),
    "negative wait": (lambda c: c.wait_for_process_completion("p", timeout=timedelta(-1)), "timeout"),
    "reason too long": (lambda c: c.stop_process("p", reason="x" * 1001), "reason"),
    "config without change": (lambda c: c.update_process_config("p"), "changes nothing"),
    "worker URL": (lambda c: c.update_process_config("p", worker_url="host:1"), "worker_url"),
    "page size": (lambda c: c.list_processes(page_size=0), "page_size"),
    "naive datetime": (lambda c: c.list_processes(started_from=datetime(2026, 1, 1)), "started_from"),  # noqa: DTZ001
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_before_anything_is_sent(name: str) -> None:
    kit = Kit()
    call, message = REFUSED[name]

    with pytest.raises((InvalidArgumentError, NotRegisteredError)) as refusal:
        call(kit.client)

    assert message in str(refusal.value)
    assert kit.transport.requests == []
