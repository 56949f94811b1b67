"""The sign-up declared by class attributes and the one declared by schema methods are the same process."""

from typing import Any

from examples.user_signup import process, process_with_schemas
from xdb_sdk import ObjectProcess, Registry


def definition_of(process_class: type[ObjectProcess]) -> dict[str, Any]:
    """Everything that the server and a client see of a definition."""
    registry = Registry()
    registry.add_process(process_class)
    definition = registry.process_of(process_class)
    return {
        "process_type": definition.process_type,
        "starting_state": definition.starting_state and definition.starting_state.state_id,
        "states": {name: (state.input_type, state.wire_options) for name, state in definition.states.items()},
        "rpcs": {
            name: (rpc.method.input_type, rpc.method.output_type, rpc.timeout, rpc.read_only, rpc.wire_read)
            for name, rpc in definition.rpcs.items()
        },
        "attributes": dict(definition.attributes),
        "queues": dict(definition.queues),
        "table": definition.table,
    }


def test_both_forms_of_the_signup_compile_to_the_same_definition() -> None:
    with_attributes = definition_of(process.UserSignupProcess)

    with_schemas = definition_of(process_with_schemas.UserSignupProcess)

    assert with_attributes == with_schemas
    assert list(with_attributes["states"]) == ["SubmitState", "VerifyState"]
