"""The types that users see, as mypy and pyright see them: what must type-check, and what must not.

In `refused.py` every mistake carries an ignore, and an ignore without a mistake is an error to both checkers: so a run
without errors proves both directions.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ["tests/typing/accepted.py", "tests/typing/refused.py"]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
@pytest.mark.timeout(600)
def test_type_checkers_accept_what_is_right_and_refuse_what_is_wrong(checker: str) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", checker, *FILES], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
