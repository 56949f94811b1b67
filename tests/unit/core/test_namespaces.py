"""Namespaces as settings name them."""

import pytest

from server_stub.core.namespaces import Namespaces


def test_names_are_separated_by_commas_and_may_have_blanks_around() -> None:
    assert Namespaces.parse("tests, eu-west/1.load") == Namespaces(frozenset({"tests", "eu-west/1.load"}))
    assert Namespaces.parse("") == Namespaces()
    assert "anything" in Namespaces.parse("*")


@pytest.mark.parametrize("text", ['["tests"]', "'tests'", '"tests"', "a b", "a;b", "{a}", "test-*"])
def test_what_cannot_be_meant_as_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no name of a namespace; write names separated by commas"):
        Namespaces.parse(text)


def test_a_star_stands_alone() -> None:
    with pytest.raises(ValueError, match="names besides"):
        Namespaces.parse("*,tests")
