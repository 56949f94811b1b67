"""`xdb process history` and `xdb process reset`, against a real server."""

import json

from tests.contract.cli.conftest import Run
from tests.contract.cli.test_process import start


def test_history_is_a_table_of_events_or_json(run: Run, process_id: str) -> None:
    start(run, process_id)
    run("process", "publish", process_id, "names", '"Ada"', "--request-id", "r-1")
    run("process", "wait", process_id, "--timeout", "20s")

    shown = run("process", "history", process_id).output.splitlines()
    as_json = json.loads(run("process", "history", process_id, "--json").output)
    rest = run("process", "history", process_id, "--after", str(len(as_json) - 1)).output.splitlines()

    assert shown[0].split() == ["EVENT", "AT", "WHAT", "MORE"]
    assert len(shown) == len(as_json) + 1
    assert "    STATE_SCHEDULED  " in shown[2]
    assert any("PUBLISHED" in line and "(request r-1)" in line for line in shown)
    assert [event["event_id"] for event in as_json] == list(range(1, len(as_json) + 1))
    assert as_json[-1]["event_type"] == "COMPLETED"
    assert rest[1:] == shown[-1:]


def test_reset_gives_the_new_execution_which_goes_on_from_the_point(run: Run, process_id: str) -> None:
    base = start(run, process_id)
    run("process", "publish", process_id, "names", '"Ada"')
    run("process", "wait", process_id, "--timeout", "20s")

    reset = run("process", "reset", process_id, "--to-state", "Wait", "--reason", "a better name", "--skip-messages")
    run("process", "publish", process_id, "names", '"Bo"')
    waited = run("process", "wait", process_id, "--timeout", "20s")
    history = run("process", "history", process_id, "--execution-id", base).output

    assert reset.exit_code == 0, reset.output
    assert reset.output.strip() != base
    assert waited.output == '"Hello, Bo!"\n'
    assert f"successor={reset.output.strip()}  eventId=2  reason=a better name" in history


def test_reset_needs_one_point(run: Run, process_id: str) -> None:
    neither = run("process", "reset", process_id)
    both = run("process", "reset", process_id, "--to-beginning", "--to-event", "1")
    unknown = run("process", "reset", process_id, "--to-beginning")

    assert (neither.exit_code, both.exit_code, unknown.exit_code) == (2, 2, 1)
    assert "give one of --to-beginning, --to-state, --to-time and --to-event" in neither.output
    assert "PROCESS_NOT_FOUND" in unknown.output
