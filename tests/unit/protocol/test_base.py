"""What every wire model shares."""

import copy

from xdb_sdk.protocol import ExecuteCall, ReadRequest, StateOptionsConfig


def test_defaults_are_shared_since_nobody_changes_a_model() -> None:
    first, second = StateOptionsConfig(), StateOptionsConfig.model_validate_json("{}")

    assert first.execute_read is second.execute_read
    assert ExecuteCall.model_fields["loaded"].get_default() is ExecuteCall.model_fields["loaded"].default


def test_changed_copy_leaves_the_original_alone() -> None:
    original = ReadRequest(local_attributes=("a",))

    changed = copy.deepcopy(original).model_copy(update={"local_attributes": ("b",)})

    assert (original.local_attributes, changed.local_attributes) == (("a",), ("b",))
