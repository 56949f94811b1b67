"""Each example runs by itself, prints what the docs show, and cleans up after itself."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIGNUP, TRIP, CLAIM = "user_signup", "trip_booking", "expense_approval"


def run(example: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"examples.{example}"],
        cwd=ROOT,
        env={"TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def shown_output(example: str) -> list[str]:
    return (ROOT / "examples" / example / "output.txt").read_text().splitlines()


@pytest.mark.parametrize("example", [SIGNUP, CLAIM])
def test_example_prints_what_the_docs_show(example: str, tmp_path: Path) -> None:
    finished = run(example, tmp_path)

    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.splitlines() == shown_output(example)
    assert list(tmp_path.iterdir()) == []


def test_tracing_prints_the_spans_of_client_and_worker_beside_what_the_example_prints(tmp_path: Path) -> None:
    finished = run("monitoring.tracing", tmp_path)

    assert (finished.returncode, finished.stderr) == (0, "")
    assert set(shown_output(SIGNUP)) <= set(finished.stdout.splitlines())
    for span in ("xdb start", "wait_until VerifyState", "execute VerifyState", "rpc verify"):
        assert f'"name": "{span}"' in finished.stdout


def test_trip_booking_prints_what_the_docs_show_though_bookings_may_overtake_one_another(tmp_path: Path) -> None:
    finished = run(TRIP, tmp_path)

    assert (finished.returncode, finished.stderr) == (0, "")
    assert sorted(finished.stdout.splitlines()) == sorted(shown_output(TRIP))
    assert list(tmp_path.iterdir()) == []
