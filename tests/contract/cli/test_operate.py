"""`xdb process` as operators use it: to hold, mend, move and stop processes, and to see why one does not go on."""

import json
import time

import pytest

from tests.contract.cli.conftest import Run


def start(run: Run, process_id: str, state: str = "Wait") -> str:
    """Start a greeter, and give its execution id."""
    result = run("process", "start", process_id, "Greeter", "--state", state, "--input", '"Hello"')
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def wait_for_line(run: Run, process_id: str, part: str) -> str:
    """Wait until the explanation says something, and give all that is printed."""
    ends_at_s = time.monotonic() + 20
    while part not in (shown := run("process", "describe", process_id, "--include", "all").output):
        assert time.monotonic() < ends_at_s, f"describe never said {part!r} but {shown}"
    return shown


def test_process_is_paused_and_resumed(run: Run, process_id: str) -> None:
    start(run, process_id)

    paused = [run("process", "pause", process_id, "--reason", "a look").output for _ in range(2)]
    shown = run("process", "describe", process_id, "--include", "all").output
    resumed = [run("process", "resume", process_id).output for _ in range(2)]

    assert paused == ["paused\n", "paused before\n"]
    assert "paused:     since 20" in shown
    assert "- It is paused since 20" in shown
    assert resumed == ["resumed\n", "was not paused\n"]


def test_request_id_makes_a_repetition_known(run: Run, process_id: str) -> None:
    start(run, process_id)

    answers = [
        json.loads(run("process", "pause", process_id, "--request-id", "r", "--json").output)["duplicate"]
        for _ in range(2)
    ]

    assert answers == [False, True]


def test_state_that_no_worker_knows_is_explained_and_retried(run: Run, process_id: str) -> None:
    start(run, process_id, "Misspelt")
    shown = wait_for_line(run, process_id, "knows this state")

    retried = [run("process", "retry", process_id, "Misspelt") for _ in range(2)]
    unknown = run("process", "retry", process_id, "Wait")

    assert "- State Misspelt-1 waits for attempt" in shown
    assert "retried\n" in [result.output for result in retried]
    assert (unknown.exit_code, "STATE_NOT_FOUND" in unknown.output) == (1, True)


def test_retry_of_a_paused_process_says_that_it_waits_for_the_resumption(run: Run, process_id: str) -> None:
    start(run, process_id, "Misspelt")
    wait_for_line(run, process_id, "knows this state")
    run("process", "pause", process_id)

    # The attempt in flight may have been the last thing to come back; the state waits for its next one then.
    ends_at_s = time.monotonic() + 20
    while (retried := run("process", "retry", process_id, "Misspelt")).exit_code and time.monotonic() < ends_at_s:
        pass

    assert retried.output == "to be retried once the process is resumed: it is paused\n"


def test_what_is_done_to_an_unknown_process_is_refused_under_its_own_name(run: Run) -> None:
    retried = run("process", "retry", "nobody-knows-it", "Wait")
    published = run("process", "publish", "nobody-knows-it", "names")

    assert (retried.exit_code, published.exit_code) == (1, 1)
    assert retried.output.startswith("Error: retry of state 'Wait' of process 'nobody-knows-it'")
    assert published.output.startswith("Error: publish to process 'nobody-knows-it'")


def test_an_update_that_changes_nothing_names_its_flags(run: Run, process_id: str) -> None:
    result = run("process", "update", process_id)

    assert result.exit_code == 2
    assert "give --worker-url, --timeout or both" in result.output


def test_explanation_is_in_the_json_too(run: Run, process_id: str) -> None:
    start(run, process_id)
    wait_for_line(run, process_id, "a message in queue 'names', which has 0")

    described = json.loads(run("process", "describe", process_id, "--include", "all", "--json").output)

    [sentence] = described["explanation"]
    assert sentence.startswith("State Wait-1 waits for timer number 0, which fires at 20")
    assert described["process_id"] == process_id


def test_state_is_completed_by_a_decision(run: Run, process_id: str) -> None:
    start(run, process_id)
    decision = '{"threadCloseDecision": {"closeType": "FORCE_COMPLETE_PROCESS", "closeOutput": 7}}'

    completed = run("process", "complete", process_id, "Wait", decision, "--reason", "by hand")
    again = run("process", "complete", process_id, "Wait", decision)

    assert completed.output == "completed; the process is COMPLETED\n"
    assert run("process", "wait", process_id).output == "7\n"
    assert again.exit_code == 1


def test_decision_that_is_none_is_wrong_usage(run: Run, process_id: str) -> None:
    start(run, process_id)

    refused = run("process", "complete", process_id, "Wait", '{"nextStates": [{}]}')

    assert refused.exit_code == 2
    assert "nextStates.0.stateId" in refused.output


def test_timer_that_is_not_waited_for_is_not_skipped(run: Run, process_id: str) -> None:
    start(run, process_id)

    refused = run("process", "skip-timer", process_id, "Wait", "--command-id", "none")
    remembered = run("process", "skip-timer", process_id, "Wait", "--number", "2", "--remember")

    assert (refused.exit_code, "TIMER_NOT_FOUND" in refused.output) == (1, True)
    assert remembered.output == "skipped\n"


def test_worker_url_and_timeout_are_changed(run: Run, process_id: str) -> None:
    start(run, process_id)

    updated = run("process", "update", process_id, "--worker-url", "http://127.0.0.1:9", "--timeout", "1h")

    described = json.loads(run("process", "describe", process_id, "--json").output)
    assert updated.output == "updated\n"
    assert described["worker_url"] == "http://127.0.0.1:9"
    assert described["timeout_at"] is not None


@pytest.fixture
def many(run: Run, process_id: str) -> list[str]:
    """Start a few processes whose ids begin alike."""
    ids = [f"{process_id[:150]}-many-{number}" for number in range(3)]
    for each in ids:
        start(run, each)
    return ids


def test_many_are_stopped_after_a_dry_run_and_a_question(run: Run, many: list[str]) -> None:
    filters = ("--prefix", many[0][:-1], "--process-type", "Greeter", "--started-from", "2020-01-01")

    tried = run("process", "stop-many", *filters, "--dry-run", "--json")
    refused = run("process", "stop-many", *filters, stdin="n\n")
    still_running = json.loads(run("process", "describe", many[0], "--json").output)["status"]
    stopped = run("process", "stop-many", *filters, "--type", "CANCEL", "--reason", "wrong", stdin="y\n")
    again = run("process", "stop-many", *filters, "--yes", "--json")

    assert sorted(each["process_id"] for each in json.loads(tried.stdout)) == many
    assert (refused.exit_code, still_running) == (1, "RUNNING")
    assert "stop 3 execution(s)?" in refused.output
    assert stopped.stdout.endswith("3 of 3 executions changed\n")
    assert json.loads(again.stdout)["changed"] == 0
    assert json.loads(run("process", "describe", many[0], "--json").output)["reason"] == "wrong"


def test_many_get_another_worker_url(run: Run, many: list[str]) -> None:
    filters = ("--prefix", many[0][:-1])

    none = run("process", "replace-worker-url", "http://127.0.0.1:9", "--old-url", "http://nobody", *filters, "--yes")
    replaced = run("process", "replace-worker-url", "http://127.0.0.1:9", *filters, "--yes")

    assert none.stdout == "0 of 0 executions changed\n"
    assert replaced.stdout == "3 of 3 executions changed\n"
    assert json.loads(run("process", "describe", many[0], "--json").output)["worker_url"] == "http://127.0.0.1:9"
