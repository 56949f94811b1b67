"""`xdb process` speaks to a real server about a real process."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from server_stub.cli import main
from tests.contract.cli.conftest import Run
from tests.support.real_processes import free_port


def start(run: Run, process_id: str) -> str:
    """Start a greeter, and give its execution id."""
    result = run("process", "start", process_id, "Greeter", "--state", "Wait", "--input", '"Hello"')
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def wait_for_line(run: Run, process_id: str, part: str) -> None:
    """Wait until `describe` prints something."""
    ends_at_s = time.monotonic() + 20
    while part not in run("process", "describe", process_id).output:
        assert time.monotonic() < ends_at_s, f"describe never said {part!r}"


def test_process_is_started_messaged_and_waited_for(run: Run, process_id: str) -> None:
    start(run, process_id)

    published = run("process", "publish", process_id, "names", '"Ada"')
    waited = run("process", "wait", process_id, "--timeout", "20s")

    assert published.output == "published\n"
    assert (waited.exit_code, waited.output) == (0, '"Hello, Ada!"\n')


def test_describe_tells_what_a_process_waits_for(run: Run, process_id: str) -> None:
    process_execution_id = start(run, process_id)
    run("process", "publish", process_id, "others", "1")

    shown = run("process", "describe", process_id, "--include", "queues").output
    as_json = json.loads(run("process", "describe", process_id, "--json").output)

    assert f"execution:  {process_execution_id}" in shown
    assert "status:     RUNNING" in shown
    assert "state Wait-1: RUNNING" in shown
    assert "queue others: 1 waiting" in shown
    assert as_json["process_execution_id"] == process_execution_id
    assert as_json["started_at"].endswith("Z")


def test_describe_says_how_many_states_it_leaves_out(run: Run, process_id: str) -> None:
    start(run, process_id)
    run("process", "publish", process_id, "names", '"Ada"')
    run("process", "wait", process_id, "--timeout", "20s")

    shown = run("process", "describe", process_id).output
    with_closed = run("process", "describe", process_id, "--include", "closed_states").output

    assert "closed states not shown: 1\n" in shown
    assert "state Wait-1: COMPLETED" in with_closed
    assert "not shown" not in with_closed


def test_publish_to_a_queue_that_nobody_waits_for_names_those_that_are_waited_for(run: Run, process_id: str) -> None:
    start(run, process_id)
    wait_for_line(run, process_id, "queue names: WAITING")

    misspelt = run("process", "publish", process_id, "nams", '"Ada"')
    right = run("process", "publish", process_id, "names", '"Ada"')

    assert (misspelt.exit_code, misspelt.stdout) == (0, "published\n")
    assert misspelt.stderr == "note: no state waits for queue 'nams' now; the process waits for 'names'\n"
    assert (right.stdout, right.stderr) == ("published\n", "")


def test_describe_finds_an_execution_that_is_not_the_current_one(run: Run, process_id: str) -> None:
    first = start(run, process_id)
    run("process", "stop", process_id)
    start(run, process_id)

    shown = run("process", "describe", process_id, "--execution-id", first).output

    assert f"execution:  {first}" in shown
    assert "TERMINATED (not the current execution)" in shown


def test_list_shows_executions_newest_first(run: Run, process_id: str) -> None:
    first = start(run, process_id)
    run("process", "stop", process_id)
    second = start(run, process_id)

    shown = run("process", "list", "--process-id", process_id).output
    as_json = json.loads(run("process", "list", "--process-id", process_id, "--limit", "1", "--json").output)
    running = run("process", "list", "--process-id", process_id, "--status", "RUNNING").output

    assert shown.index(second) < shown.index(first)
    assert [each["process_execution_id"] for each in as_json] == [second]
    assert first not in running


def test_rpc_prints_what_the_method_returns(run: Run, process_id: str) -> None:
    start(run, process_id)

    assert run("process", "rpc", process_id, "echo", '"hi"', "--read-only").output == '"hi"\n'


def test_a_request_that_comes_again_is_told(run: Run, process_id: str) -> None:
    start(run, process_id)
    ids = ("--request-id", "order-7")
    calls = {"publish": (process_id, "others", "1"), "rpc": (process_id, "keep", '"hi"')}

    for name, arguments in calls.items():
        first = json.loads(run("process", name, *arguments, *ids, "--json").stdout)
        again = run("process", name, *arguments, *ids)
        other = json.loads(run("process", name, *arguments[:2], '"other"', *ids, "--json").stdout)

        assert (first["duplicate"], first["mismatch"]) == (False, False)
        assert (other["duplicate"], other["mismatch"]) == (True, True)
        assert again.stdout == {"publish": "published\n", "rpc": '"hi"\n'}[name]
        assert "note: the request was carried out before; this is its answer of then\n" in again.stderr


def test_failed_rpc_is_one_line_without_the_workers_traceback(run: Run, process_id: str) -> None:
    start(run, process_id)

    result = run("process", "rpc", process_id, "echo", '"fail"')

    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert result.output.endswith(": LookupError: there is no echo\n")


def test_stop_tells_the_status_and_whether_it_was_closed_before(run: Run, process_id: str) -> None:
    start(run, process_id)

    first = run("process", "stop", process_id, "--type", "CANCEL", "--reason", "no need")
    second = run("process", "stop", process_id)

    assert (first.output, second.output) == ("CANCELED\n", "CANCELED before\n")
    assert "reason:     no need" in run("process", "describe", process_id).output


def test_wait_says_by_its_exit_status_how_the_process_ended(run: Run, process_id: str) -> None:
    start(run, process_id)

    running = run("process", "wait", process_id, "--timeout", "1ms")
    run("process", "publish", process_id, "names", '"nobody"')
    failed = run("process", "wait", process_id, "--timeout", "20s")

    assert (running.exit_code, failed.exit_code) == (4, 3)
    assert "still running" in running.output
    assert "FAILED (STATE_DECISION): there is nobody" in failed.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe",),
        ("stop",),
        ("wait",),
        ("publish", "names"),
        ("rpc", "echo"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_unknown_process_is_a_clear_line(run: Run, process_id: str, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments

    result = run("process", command, process_id, *rest)

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert process_id in result.output
    assert len(result.output.splitlines()) == 1


def test_process_that_runs_already_is_refused_unless_that_is_fine(run: Run, process_id: str) -> None:
    process_execution_id = start(run, process_id)

    again = run("process", "start", process_id, "Greeter", "--state", "Wait", "--input", '"Hi"')
    ignored = run("process", "start", process_id, "Greeter", "--state", "Wait", "--ignore-already-started")

    assert again.exit_code == 1
    assert "another policy, or ignore_already_started" in again.output
    assert ignored.stdout.strip() == process_execution_id


def test_value_comes_from_a_file_or_standard_input(run: Run, process_id: str, tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    file.write_text('"from the file: é"', "utf-8")
    start(run, process_id)

    from_file = run("process", "rpc", process_id, "echo", f"@{file}")
    from_stdin = run("process", "rpc", process_id, "echo", "@-", stdin='"from stdin"')

    assert from_file.output == '"from the file: é"\n'
    assert from_stdin.output == '"from stdin"\n'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rpc", "p", "echo", "hi"), "a text needs its quotes"),
        (("rpc", "p", "echo", "@/nowhere.json"), "cannot read /nowhere.json"),
        (("start", "p", "Greeter", "--attribute", "name"), "no form NAME=JSON"),
        (("start", "p", "Greeter", "--table", "t"), "--table and --key go together"),
        (("start", "p", "Greeter", "--timeout", "soon"), "is no duration"),
        (("list", "--limit", "0"), "--limit"),
    ],
)
def test_wrong_usage_is_explained(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["process", *arguments])

    assert result.exit_code == 2
    assert message in result.output


def test_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    result = CliRunner().invoke(main, ["process", "list", "--server-url", url])

    assert result.exit_code == 1
    assert url in result.output
    assert len(result.output.splitlines()) == 1


def test_change_that_is_made_again_with_its_request_id_is_made_once(run: Run, process_id: str) -> None:
    start = ("process", "start", process_id, "Greeter", "--state", "Wait", "--input", '"Hello"', "--request-id", "r-1")
    publish = ("process", "publish", process_id, "others", "1", "--request-id", "r-1")
    stop = ("process", "stop", process_id, "--request-id", "r-1")

    first, again, *_ = [json.loads(run(*each, "--json").stdout) for each in (start, start, publish, publish)]
    shown = json.loads(run("process", "describe", process_id, "--include", "queues", "--json").output)
    stopped, stopped_again = [json.loads(run(*stop, "--json").stdout) for _ in range(2)]

    assert again == first | {"already_started": True, "duplicate": True}
    assert shown["queue_sizes"] == {"others": 1}
    assert (stopped["duplicate"], stopped_again["duplicate"]) == (False, True)


def test_request_id_that_no_server_takes_is_refused(run: Run, process_id: str) -> None:
    result = run("process", "rpc", process_id, "echo", '"a"', "--request-id", "x" * 129)

    assert result.exit_code == 1
    assert "request id is 129 characters long" in result.stderr
