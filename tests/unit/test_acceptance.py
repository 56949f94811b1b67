"""The table from the acceptance list of the design to tests cannot rot."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "ACCEPTANCE.md"
LINES = range(1, 226)
LATER = {
    "later: several servers",
    "later: request ids",
    "later: history",
    "later: reset",
    "later: composite keys",
}
_ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+?) \|")


def rows() -> dict[int, str]:
    """Give the last cell of each row by its number."""
    found = [_ROW.fullmatch(line) for line in TABLE.read_text("utf-8").splitlines() if re.match(r"\| \d", line)]
    assert all(found), "a row is not of the form | number | promise | tests |"
    numbers = [int(match[1]) for match in found if match]
    assert numbers == sorted(set(numbers)), "rows are not in order, or one is there twice"
    return {int(match[1]): match[3] for match in found if match}


@lru_cache
def named_tests(path: str) -> frozenset[str]:
    """List the tests of a file, those of classes too."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def test_every_line_of_the_list_has_a_row() -> None:
    assert list(rows()) == list(LINES)


@pytest.mark.parametrize("number", LINES)
def test_row_names_tests_that_exist_or_what_it_waits_for(number: int) -> None:
    for cell in rows()[number].split("<br>"):
        if cell.startswith("later"):
            assert cell in LATER
            continue
        path, _, name = cell.strip().strip("`").partition("::")
        assert (ROOT / path).is_file(), f"there is no {path}"
        assert name in named_tests(path), f"{path} has no {name}"
