"""Starting a process id that may have been used before (semantics 1), and operations on a running one (3.6, 5.4)."""

import pytest

from server_stub.core.call_events import CallReturned, RpcReturned
from server_stub.core.client_events import SetAttributes, StartProcess
from server_stub.core.model import ReadSet, RowKey, RowRead
from server_stub.core.operator_events import SkipTimer, UpdateConfig
from server_stub.core.outcomes import StateAnswered, Verdict
from server_stub.core.refusals import Refused
from tests.support.core_bench import CoreBench
from tests.unit.core.drive import (
    COMPLETE,
    FORCE_FAIL,
    WAITS,
    any_of,
    execute,
    executed,
    failed,
    fire_due_timers,
    next_states,
    queue,
    start_request,
    started,
    timer,
    wait,
    waiting_state,
)
from xdb_sdk.protocol import (
    ConflictMode,
    ErrorSubType,
    ExecuteAnswer,
    IdReusePolicy,
    ProcessStatus,
    RpcAnswer,
    SetAttributesRequest,
    SkipTimerRequest,
    StartAnswer,
    StateStatus,
    TableMapping,
    TableWrite,
    TimerStatus,
    UpdateConfigRequest,
)

ROW = RowKey("users", (("id", "u1"),))


@pytest.fixture
def bench() -> CoreBench:
    return CoreBench()


def mapping(**changes: object) -> TableMapping:
    base = TableMapping(table_name="users", primary_key={"id": "u1"}, initial_write={"name": "new"})
    return base.model_copy(update=changes)


PREVIOUS = ["none", "RUNNING", "COMPLETED", "FAILED", "TIMEOUT", "TERMINATED", "CANCELED"]
ALLOWED = {
    IdReusePolicy.ALLOW_IF_NO_RUNNING: {"none", "COMPLETED", "FAILED", "TIMEOUT", "TERMINATED", "CANCELED"},
    IdReusePolicy.ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY: {"none", "FAILED", "TIMEOUT", "TERMINATED", "CANCELED"},
    IdReusePolicy.DISALLOW_REUSE: {"none"},
    IdReusePolicy.TERMINATE_IF_RUNNING: set(PREVIOUS),
}


@pytest.mark.parametrize("policy", list(IdReusePolicy))
@pytest.mark.parametrize("previous", PREVIOUS)
def test_every_cell_of_the_reuse_table(bench: CoreBench, policy: IdReusePolicy, previous: str) -> None:
    if previous != "none":
        started(bench)
        process = bench.current("p")
        if previous != "RUNNING":
            execute(bench, "S-1", COMPLETE)
            bench.processes[process.process_execution_id].status = ProcessStatus(previous)
    event = StartProcess(start_request(id_reuse_policy=policy), "new")

    (result,) = bench.commit(event)

    if previous in ALLOWED[policy]:
        assert result == StartAnswer(process_execution_id="new")
        assert bench.current("p").process_execution_id == "new"
    else:
        assert isinstance(result, Refused)
        assert result.sub_type is ErrorSubType.PROCESS_ALREADY_STARTED
        assert result.process_execution_id == "e-1"
        assert bench.current("p").process_execution_id == "e-1"


def test_replacing_start_closes_the_old_execution_and_drops_its_late_answer(bench: CoreBench) -> None:
    started(bench, timeout_ms=60_000)
    late, late_failure = executed(bench, "S-1", FORCE_FAIL), failed(bench, "S-1")

    started(bench, id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)
    results = bench.commit(late, late_failure)

    assert results == [Verdict.OBSOLETE, Verdict.OBSOLETE]
    assert bench.processes["e-1"].status is ProcessStatus.TERMINATED
    assert [s.status for s in bench.states.values()] == [StateStatus.ABORTED, StateStatus.RUNNING]
    assert bench.current("p").process_execution_id == "e-2"


def test_timer_of_a_replaced_execution_does_not_close_the_new_one(bench: CoreBench) -> None:
    started(bench, timeout_ms=1_000)
    started(bench, id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)

    bench.now_ms += 2_000
    fire_due_timers(bench)

    assert bench.current("p").status is ProcessStatus.RUNNING


def test_fifty_starts_of_one_id_in_one_transaction_make_one_execution(bench: CoreBench) -> None:
    results = bench.commit(*(StartProcess(start_request(), f"e-{i}") for i in range(50)))

    assert [isinstance(result, StartAnswer) for result in results].count(True) == 1
    assert len(bench.processes) == 1


def test_ignoring_an_already_started_process_gives_the_running_execution(bench: CoreBench) -> None:
    started(bench)

    answer = bench.commit_one(StartProcess(start_request(ignore_already_started=True), "e-2"))

    assert answer == StartAnswer(process_execution_id="e-1", already_started=True)


def test_ignoring_an_already_started_process_does_not_keep_terminate_from_replacing_it(bench: CoreBench) -> None:
    started(bench)
    request = start_request(ignore_already_started=True, id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)

    answer = bench.commit_one(StartProcess(request, "e-2"))

    assert answer == StartAnswer(process_execution_id="e-2")
    assert bench.processes["e-1"].status is ProcessStatus.TERMINATED


def test_new_worker_url_goes_to_calls_that_are_due_already(bench: CoreBench) -> None:
    started(bench)

    bench.commit_one(UpdateConfig(UpdateConfigRequest(process_id="p", worker_url="http://moved")))

    (call,) = bench.due_calls()
    assert call.worker_url == "http://moved"
    assert [state.key.state_execution_id for state in bench.last_changes.changed_states.values()] == ["S-1"]


def test_skip_that_is_repeated_is_remembered_once_and_their_number_is_bounded(bench: CoreBench) -> None:
    started(bench)
    for number in [2, 2, *range(2, 1_002)]:
        bench.commit_one(SkipTimer(SkipTimerRequest(process_id="p", state_id="A", number=number, remember=True)))

    with pytest.raises(Refused, match="1000 timer skips"):
        bench.commit_one(SkipTimer(SkipTimerRequest(process_id="p", state_id="A", number=5_000, remember=True)))

    assert len(bench.current("p").remembered_skips) == 1_000


def test_refused_start_of_another_type_names_both_types(bench: CoreBench) -> None:
    started(bench, process_type="Order")

    with pytest.raises(Refused) as caught:
        bench.commit_one(StartProcess(start_request(process_type="Refund"), "e-2"))

    assert "'Order'" in caught.value.details
    assert "'Refund'" in caught.value.details


def test_namespaces_keep_process_ids_apart(bench: CoreBench) -> None:
    started(bench, namespace="one")
    started(bench, namespace="two")

    assert bench.current("p", "one").process_execution_id == "e-1"
    assert bench.current("p", "two").process_execution_id == "e-2"


def test_refused_start_writes_no_row(bench: CoreBench) -> None:
    started(bench)

    with pytest.raises(Refused):
        bench.commit_one(StartProcess(start_request(tables=(mapping(),)), "e-2"))

    assert bench.rows == {}


@pytest.mark.parametrize("mode", list(ConflictMode))
def test_start_writes_the_initial_row_in_the_mode_asked_for(bench: CoreBench, mode: ConflictMode) -> None:
    started(bench, tables=(mapping(conflict_mode=mode),))

    (write,) = bench.last_changes.row_writes
    expected = {
        ConflictMode.OVERRIDE_ON_CONFLICT: "UPDATE_OR_INSERT",
        ConflictMode.IGNORE_CONFLICT: "INSERT_IF_ABSENT",
        ConflictMode.RETURN_ERROR_ON_CONFLICT: "INSERT",
    }
    assert (write.row, write.columns, write.mode.value) == (ROW, {"name": "new"}, expected[mode])


def test_mapping_without_initial_values_writes_nothing(bench: CoreBench) -> None:
    started(bench, tables=(mapping(initial_write={}),))

    assert bench.last_changes.row_writes == []


def test_start_delay_makes_the_first_call_due_later(bench: CoreBench) -> None:
    started(bench, start_delay_ms=10_000)

    assert bench.due_calls() == []
    bench.now_ms += 10_000
    assert [call.key.state.state_execution_id for call in bench.due_calls()] == ["S-1"]


def test_start_without_a_starting_state_runs_with_nothing_due(bench: CoreBench) -> None:
    started(bench, start_state_id=None)

    assert bench.states == {}
    assert bench.current("p").status is ProcessStatus.RUNNING


def test_skip_by_command_id_completes_only_that_timer(bench: CoreBench) -> None:
    request = any_of(queue("q"), timers=(timer(5_000, "a"), timer(9_000, "b")))
    state = waiting_state(bench, "A", request)

    bench.commit_one(SkipTimer(SkipTimerRequest(process_id="p", state_id="A", command_id="b")))

    results = bench.state(state).command_results
    assert results is not None
    assert [r.status for r in results.timer_results] == [TimerStatus.SCHEDULED, TimerStatus.SKIPPED]


@pytest.mark.parametrize("which", [{"index": 3}, {"command_id": "zz"}, {"index": 0, "number": 2}], ids=str)
def test_skip_of_an_unknown_timer_is_refused(bench: CoreBench, which: dict[str, object]) -> None:
    waiting_state(bench, "A", any_of(timers=(timer(5_000),)))
    request = SkipTimerRequest.model_validate({"process_id": "p", "state_id": "A", **which})

    with pytest.raises(Refused) as caught:
        bench.commit_one(SkipTimer(request))

    assert caught.value.sub_type is ErrorSubType.TIMER_NOT_FOUND


def test_remembered_skip_applies_to_that_state_execution_only(bench: CoreBench) -> None:
    started(bench, start_state_id="A", start_state_options=WAITS)
    bench.commit_one(SkipTimer(SkipTimerRequest(process_id="p", state_id="A", index=0, remember=True)))

    wait(bench, "A-1", any_of(timers=(timer(5_000),)))
    results = bench.state("A-1").command_results
    assert results is not None
    assert results.timer_results[0].status is TimerStatus.SKIPPED
    execute(bench, "A-1", next_states("A", options=WAITS))
    wait(bench, "A-2", any_of(timers=(timer(5_000),)))

    assert bench.state("A-2").wait is not None
    assert bench.current("p").remembered_skips == ()


def test_locking_answer_is_not_applied_when_its_read_set_has_changed(bench: CoreBench) -> None:
    started(bench, tables=(mapping(initial_write={"name": "old"}),))
    read_set = ReadSet(rows=((RowRead(ROW, ("name",)), {"name": "old"}),))
    answer = ExecuteAnswer(state_decision=COMPLETE)
    bench.rows[ROW]["name"] = "changed by the application"

    verdict = bench.commit_one(CallReturned(bench.call("S-1"), StateAnswered(answer, read_set)))

    assert verdict is Verdict.READ_SET_CHANGED
    assert bench.state("S-1").attempt == 1
    assert bench.current("p").status is ProcessStatus.RUNNING


@pytest.mark.parametrize("columns", [("name",), ("generated",)], ids=["written column", "generated column"])
def test_locking_answer_is_judged_after_what_its_transaction_writes_into_the_row(
    bench: CoreBench, columns: tuple[str, ...]
) -> None:
    process_execution_id = started(bench, start_state_id=None, tables=(mapping(),))
    seen = {column: bench.rows[ROW].get(column) for column in columns}
    locking = RpcReturned(
        process_execution_id, RpcAnswer(write_local_attributes={"a": 1}), ReadSet(((RowRead(ROW, columns), seen),))
    )
    write = (TableWrite(table_name="users", columns={"name": "other"}),)
    before = bench.transactions

    results = bench.commit(RpcReturned(process_execution_id, RpcAnswer(write_tables=write)), locking)

    assert bench.transactions == before + 2
    changed = columns == ("name",)
    assert results == [Verdict.APPLIED, Verdict.READ_SET_CHANGED if changed else Verdict.APPLIED]


def test_locking_answer_waits_for_any_write_when_triggers_may_reach_its_row(bench: CoreBench) -> None:
    other = TableMapping(table_name="others", primary_key={"id": "o"}, initial_write={"name": "x"})
    first, second = started(bench, tables=(mapping(),)), started(bench, process_id="q", tables=(other,))
    read_set = ReadSet(((RowRead(ROW, ("name",)), {"name": "new"}),))
    events = (
        RpcReturned(second, RpcAnswer(write_tables=(TableWrite(table_name="others", columns={"name": "y"}),))),
        RpcReturned(first, RpcAnswer(write_local_attributes={"a": 1}), read_set),
    )

    before = bench.transactions
    bench.commit(*events)
    together = bench.transactions - before
    bench.volatile_tables = frozenset({"others"})
    bench.commit(*events)

    assert (together, bench.transactions - before - together) == (1, 2)


def test_two_locking_answers_of_one_transaction_exclude_each_other(bench: CoreBench) -> None:
    process_execution_id = started(bench, start_state_id=None)
    read_set = ReadSet(process_execution_id=process_execution_id, local_attributes={"n": None})
    increment = RpcReturned(process_execution_id, RpcAnswer(write_local_attributes={"n": 1}), read_set)

    results = bench.commit(increment, increment)

    assert results == [Verdict.APPLIED, Verdict.READ_SET_CHANGED]


def test_worker_cannot_write_a_table_or_key_that_is_not_its_own(bench: CoreBench) -> None:
    started(bench, tables=(mapping(),))

    for table, column in [("strangers", "name"), ("users", "id")]:
        writes = (TableWrite(table_name=table, columns={column: "x"}),)
        bench.commit_one(executed(bench, "S-1", COMPLETE, write_tables=writes))

    state = bench.state("S-1")
    assert state.attempt == 3
    assert bench.rows[ROW] == {"id": "u1", "name": "new"}


def test_set_from_outside_writes_row_and_local_attributes(bench: CoreBench) -> None:
    process_execution_id = started(bench, tables=(mapping(),))
    request = SetAttributesRequest(
        process_id="p",
        write_tables=(TableWrite(table_name="users", columns={"name": "set"}),),
        write_local_attributes={"local": [1]},
    )

    bench.commit_one(SetAttributes(request))

    assert bench.rows[ROW]["name"] == "set"
    assert bench.local_attributes[process_execution_id] == {"local": "[1]"}
