"""The tables from the acceptance lists of the design to tests cannot rot."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLES = {"ACCEPTANCE.md": [*range(1, 226)], "ACCEPTANCE_SERVERS.md": [*range(1, 49), 52, 61, 62, 63]}
"""The lines of each."""
REPORTED = ["C-007", "C-008", "C-009", "C-010", "C-011", *(f"C-0{number}" for number in [*range(56, 62), 76, 77, 78])]
"""The reported failures of ACCEPTANCE.md."""
LATER = {
    "later: composite keys",
    "later: archive",
    "later: hooks",
}
_ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+?) \|")
_REPORTED_ROW = re.compile(r"^\| (C-\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)


@lru_cache
def rows(table: str) -> dict[int, str]:
    """Give the last cell of each row of a table by its number."""
    text = (ROOT / "tests" / table).read_text("utf-8")
    found = [_ROW.fullmatch(line) for line in text.splitlines() if re.match(r"\| \d", line)]
    assert all(found), "a row is not of the form | number | promise | tests |"
    numbers = [int(match[1]) for match in found if match]
    assert numbers == sorted(set(numbers)), "rows are not in order, or one is there twice"
    return {int(match[1]): match[3] for match in found if match}


@lru_cache
def reported_rows() -> dict[str, str]:
    """Give the last cell of each row of the table of reported failures by its number."""
    found: list[tuple[str, str, str]] = _REPORTED_ROW.findall((ROOT / "tests" / "ACCEPTANCE.md").read_text("utf-8"))
    return {case: proof for case, _, proof in found}


@lru_cache
def named_tests(path: str) -> frozenset[str]:
    """List the tests of a file, those of classes too."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


@pytest.mark.parametrize("table", TABLES)
def test_every_line_of_the_list_has_a_row(table: str) -> None:
    assert list(rows(table)) == TABLES[table]


@pytest.mark.parametrize(
    ("table", "number"), [(table, number) for table, numbers in TABLES.items() for number in numbers]
)
def test_row_names_tests_that_exist_or_what_it_waits_for(table: str, number: int) -> None:
    check_proof(rows(table)[number])


def test_every_reported_failure_has_a_row() -> None:
    assert list(reported_rows()) == REPORTED


@pytest.mark.parametrize("case", REPORTED)
def test_row_of_a_reported_failure_names_tests_that_exist(case: str) -> None:
    check_proof(reported_rows()[case])


def check_proof(proof: str) -> None:
    """Refuse the last cell of a row that names a test that does not exist, or waits for nothing known."""
    for cell in proof.split("<br>"):
        if cell.startswith("not built: "):
            continue
        if cell.startswith("later"):
            assert cell in LATER
            continue
        path, _, name = cell.strip().strip("`").partition("::")
        assert (ROOT / path).is_file(), f"there is no {path}"
        assert name in named_tests(path), f"{path} has no {name}"
