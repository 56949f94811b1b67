"""Names and ids that can be stored."""

from typing import Any

import pytest

from xdb_sdk import InvalidArgumentError
from xdb_sdk._names import check_name, check_optional_name


@pytest.mark.parametrize("name", ["a", "ä" * 127, "with space/and-more", "x" * 255, "😀"], ids=len)
def test_a_name_of_at_most_255_bytes_is_kept(name: str) -> None:
    assert check_name(name, "process id") == name
    assert check_optional_name(name, "process id") == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "process id is empty"),
        ("x" * 256, "process id is 256 bytes long"),
        ("ä" * 128, "process id is 256 bytes long"),
        ("a\0b", "has a NUL character"),
        ("\ud800", "has half a surrogate pair"),
        (7, "process id is a int; it must be a string"),
    ],
    ids=["empty", "long", "long in UTF-8", "NUL", "surrogate", "number"],
)
def test_a_name_that_cannot_be_stored_is_refused(name: Any, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        check_name(name, "process id")


def test_no_name_is_no_name() -> None:
    assert check_optional_name(None, "process id") is None
