"""Which message goes to which wait (semantics 3.3), and when a wait is over (3.1, 3.4)."""

import pytest

from server_stub.core.call_events import CallReturned
from server_stub.core.client_events import PublishMessages
from server_stub.core.outcomes import StateAnswered
from tests.support.core_bench import CoreBench
from tests.unit.core.drive import (
    COMPLETE,
    DEAD_END,
    FORCE_COMPLETE,
    WAITS,
    all_of,
    any_of,
    execute,
    executed,
    fire_due_timers,
    next_states,
    publish,
    queue,
    received,
    started,
    timer,
    wait,
    waited,
    waiting_state,
)
from xdb_sdk.protocol import (
    CommandRequestBody,
    IdReusePolicy,
    Message,
    ProcessStatus,
    PublishRequest,
    TimerStatus,
    WaitingType,
    WaitUntilAnswer,
)


@pytest.fixture
def bench() -> CoreBench:
    return CoreBench()


def two_waits(bench: CoreBench, first: CommandRequestBody, second: CommandRequestBody) -> None:
    """Let A-1 begin to wait, then B-1, in one process."""
    started(bench)
    execute(bench, "S-1", next_states("A", "B", options=WAITS))
    wait(bench, "A-1", first)
    wait(bench, "B-1", second)


def test_two_states_on_one_queue_get_messages_in_the_order_they_began_to_wait(bench: CoreBench) -> None:
    two_waits(bench, any_of(queue("q")), any_of(queue("q")))

    publish(bench, ("q", 1), ("q", 2))

    assert received(bench, "A-1") == [[1]]
    assert received(bench, "B-1") == [[2]]


def test_count_two_waits_for_both_messages_and_gets_them_in_order(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("q", 2)))

    publish(bench, ("q", "a"))
    assert bench.state(state).wait is not None
    publish(bench, ("q", "b"))

    assert received(bench, state) == [["a", "b"]]


def test_younger_command_with_smaller_count_overtakes_an_older_one_without_enough(bench: CoreBench) -> None:
    two_waits(bench, any_of(queue("q", 2)), any_of(queue("q", 1)))

    publish(bench, ("q", 1))

    assert bench.state("A-1").wait is not None
    assert received(bench, "B-1") == [[1]]


def test_four_commands_on_one_queue_get_successive_messages_in_command_order(bench: CoreBench) -> None:
    request = all_of(*(queue("q", command_id=f"c{i}") for i in range(4)))
    state = waiting_state(bench, "A", request)

    publish(bench, *(("q", i) for i in range(4)))

    results = bench.state(state).command_results
    assert results is not None
    assert [(r.command_id, r.messages[0].payload) for r in results.internal_queue_results] == [
        ("c0", 0),
        ("c1", 1),
        ("c2", 2),
        ("c3", 3),
    ]


def test_any_takes_only_the_first_command_that_can_be_filled(bench: CoreBench) -> None:
    started(bench, start_state_id="A", start_state_options=WAITS)
    publish(bench, ("x", 1), ("y", 2))

    wait(bench, "A-1", any_of(queue("x"), queue("y")))

    assert received(bench, "A-1") == [[1], []]
    assert bench.queue("p", "y") == [2]


def test_any_with_nothing_available_waits_and_takes_nothing(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("x"), queue("y", 2)))

    publish(bench, ("y", 1))

    assert bench.state(state).wait is not None
    assert bench.queue("p", "y") == [1]


def test_batch_that_could_satisfy_any_twice_leaves_the_rest_in_the_queue(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("x"), queue("y")))

    publish(bench, ("y", 1), ("x", 2), ("y", 3))

    assert received(bench, state) == [[2], []]
    assert bench.queue("p", "y") == [1, 3]


def test_all_keeps_partial_claims_until_the_last_command_completes(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", all_of(queue("a", 2), queue("b"), queue("c", 3)))

    for name, value in [("c", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5)]:
        publish(bench, (name, value))
        assert bench.state(state).wait is not None
    publish(bench, ("c", 6))

    assert received(bench, state) == [[3, 5], [2], [1, 4, 6]]


def test_partial_claims_are_invisible_to_another_wait(bench: CoreBench) -> None:
    two_waits(bench, all_of(queue("q"), queue("other")), any_of(queue("q")))

    publish(bench, ("q", 1))

    assert bench.queue("p", "q") == []
    assert bench.state("B-1").wait is not None


def test_messages_of_a_state_aborted_with_partial_claims_are_gone_without_error(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states("A", options=WAITS))
    wait(bench, "A-1", all_of(queue("q"), queue("other")))
    publish(bench, ("q", 1))

    process_execution_id = bench.current("p").process_execution_id
    started(bench, id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)

    assert bench.processes[process_execution_id].status is ProcessStatus.TERMINATED
    assert bench.messages == {}


def test_message_before_anyone_waits_is_kept_and_taken_at_registration(bench: CoreBench) -> None:
    started(bench, start_state_id="A", start_state_options=WAITS)
    publish(bench, ("q", 1), ("q", 2))

    wait(bench, "A-1", any_of(queue("q")))

    assert received(bench, "A-1") == [[1]]
    assert bench.queue("p", "q") == [2]


def test_count_zero_is_one(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("q", 0)))

    publish(bench, ("q", 1))

    assert received(bench, state) == [[1]]


def test_at_least_and_at_most_take_what_is_there(bench: CoreBench) -> None:
    command = queue("q").model_copy(update={"at_least": 2, "at_most": 3})
    started(bench, start_state_id="A", start_state_options=WAITS)
    publish(bench, *(("q", i) for i in range(5)))

    wait(bench, "A-1", any_of(command))

    assert received(bench, "A-1") == [[0, 1, 2]]
    assert bench.queue("p", "q") == [3, 4]


def test_wait_until_that_publishes_to_its_own_queue_satisfies_itself(bench: CoreBench) -> None:
    started(bench, start_state_id="A", start_state_options=WAITS)

    wait(bench, "A-1", any_of(queue("q")), publish=(Message(queue_name="q", payload="own"),))

    assert received(bench, "A-1") == [["own"]]


def test_message_published_by_execute_reaches_a_state_that_waits(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states("A", "B", options=WAITS))
    wait(bench, "A-1", any_of(queue("q")))
    wait(bench, "B-1", CommandRequestBody(waiting_type=WaitingType.EMPTY))

    execute(bench, "B-1", DEAD_END, publish=(Message(queue_name="q", payload="x"),))

    assert received(bench, "A-1") == [["x"]]


def test_publish_and_registration_in_one_transaction_take_stored_messages_first(bench: CoreBench) -> None:
    started(bench, start_state_id="A", start_state_options=WAITS)
    publish(bench, *(("q", i) for i in range(3)))
    late = PublishMessages(PublishRequest(process_id="p", messages=(Message(queue_name="q", payload="late"),)))
    registration = waited(bench, "A-1", any_of(queue("q", 2)))

    bench.commit(late, registration)

    assert received(bench, "A-1") == [[0, 1]]
    assert bench.queue("p", "q") == [2, "late"]


def test_waits_of_a_wide_process_are_looked_at_only_when_their_queue_is_fed(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states(*["A"] * 300, options=WAITS))
    for number in range(1, 301):
        wait(bench, f"A-{number}", any_of(queue(f"q-{number}")))

    publish(bench, ("q-7", "seven"), ("q-300", "last"))

    assert received(bench, "A-7") == [["seven"]]
    assert received(bench, "A-300") == [["last"]]
    assert len(bench.last_changes.changed_states) == 2


def test_same_message_id_is_delivered_once_per_queue_also_after_consumption(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("q")))

    first = publish(bench, Message(queue_name="q", message_id="m", payload=1))
    again = publish(bench, Message(queue_name="q", message_id="m", payload=2))
    other_queue = publish(bench, Message(queue_name="other", message_id="m", payload=3))

    assert (first, again, other_queue) == (1, 0, 1)
    assert received(bench, state) == [[1]]
    assert bench.queue("p", "q") == []
    assert bench.queue("p", "other") == [3]


def test_same_message_id_twice_in_one_batch_is_one_message(bench: CoreBench) -> None:
    started(bench)

    count = publish(bench, *(Message(queue_name="q", message_id="m", payload=i) for i in range(2)))

    assert count == 1
    assert bench.queue("p", "q") == [0]


@pytest.mark.parametrize("waiting_type", [WaitingType.ANY, WaitingType.ALL, WaitingType.EMPTY])
def test_wait_for_no_commands_goes_to_execute_at_once(bench: CoreBench, waiting_type: WaitingType) -> None:
    started(bench, start_state_id="A", start_state_options=WAITS)

    wait(bench, "A-1", CommandRequestBody(waiting_type=waiting_type))

    assert received(bench, "A-1") == []


def combination(*lists: tuple[str, ...], ids: tuple[str, ...] = ("a", "b", "c")) -> CommandRequestBody:
    return CommandRequestBody(
        waiting_type=WaitingType.ANY_COMBINATION,
        internal_queue_commands=tuple(queue(f"q-{command_id}", command_id=command_id) for command_id in ids),
        combinations=lists,
    )


def test_combination_completes_with_one_whole_list_and_not_with_a_part(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", combination(("a", "b"), ("c",)))

    publish(bench, ("q-a", 1))
    assert bench.state(state).wait is not None
    publish(bench, ("q-b", 2))

    assert received(bench, state) == [[1], [2], []]


def test_combination_delivers_what_commands_outside_the_winning_list_received(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", combination(("a", "b"), ("c",)))

    publish(bench, ("q-a", 1))
    publish(bench, ("q-c", 3))

    assert received(bench, state) == [[1], [], [3]]


def test_combination_with_an_id_twice_needs_two_completed_commands(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", combination(("a", "a"), ids=("a", "a")))

    publish(bench, ("q-a", 1))
    assert bench.state(state).wait is not None
    publish(bench, ("q-a", 2))

    assert received(bench, state) == [[1], [2]]


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        pytest.param(combination(("a", "zz")), "zz", id="unknown id"),
        pytest.param(combination(()), "may not be empty", id="empty list"),
        pytest.param(combination(), "at least one combination", id="no list"),
        pytest.param(combination(("a", "a")), "2 time(s)", id="id needed twice"),
        pytest.param(
            CommandRequestBody(
                waiting_type=WaitingType.ANY_COMBINATION,
                internal_queue_commands=(queue("q"),),
                combinations=(("a",),),
            ),
            "needs a command id",
            id="command without id",
        ),
    ],
)
def test_impossible_combination_is_a_failed_attempt_and_a_corrected_retry_proceeds(
    bench: CoreBench, request_body: CommandRequestBody, expected: str
) -> None:
    started(bench, start_state_id="A", start_state_options=WAITS)

    wait(bench, "A-1", request_body)

    failure = bench.state("A-1").last_failure
    assert failure is not None
    assert expected in failure.details
    wait(bench, "A-1", CommandRequestBody(waiting_type=WaitingType.EMPTY))
    assert bench.state("A-1").command_results is not None


def test_any_of_timer_and_queue_fires_the_timer_and_leaves_the_queue_waiting(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("q"), timers=(timer(1_000),)))

    bench.now_ms += 1_000
    fire_due_timers(bench)

    results = bench.state(state).command_results
    assert results is not None
    assert results.timer_results[0].status is TimerStatus.FIRED
    assert results.internal_queue_results[0].messages == ()


def test_message_leaves_the_timer_scheduled_and_its_row_is_gone(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", any_of(queue("q"), timers=(timer(20_000),)))

    publish(bench, ("q", 1))

    results = bench.state(state).command_results
    assert results is not None
    assert results.timer_results[0].status is TimerStatus.SCHEDULED
    assert bench.timers == {}


@pytest.mark.parametrize("duration_ms", [0, -5_000])
def test_timer_of_no_time_fires_at_registration_without_a_row(bench: CoreBench, duration_ms: int) -> None:
    state = waiting_state(bench, "A", any_of(queue("q"), timers=(timer(duration_ms),)))

    assert bench.state(state).command_results is not None
    assert bench.timers == {}


def test_three_timers_of_all_complete_with_the_last(bench: CoreBench) -> None:
    state = waiting_state(bench, "A", all_of(timers=(timer(3_000), timer(1_000), timer(2_000))))

    for _ in range(2):
        bench.now_ms += 1_000
        fire_due_timers(bench)
        assert bench.state(state).wait is not None
    bench.now_ms += 1_000
    fire_due_timers(bench)

    results = bench.state(state).command_results
    assert results is not None
    assert [result.status for result in results.timer_results] == [TimerStatus.FIRED] * 3


def test_firing_time_is_fixed_at_the_commit_of_wait_until(bench: CoreBench) -> None:
    waiting_state(bench, "A", any_of(timers=(timer(1_000),)))

    (fire_at_ms,) = [t.fire_at_ms for t in bench.timers.values()]

    assert fire_at_ms == bench.now_ms + 1_000


def test_late_answer_of_an_aborted_state_changes_nothing(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states("A", "B"))
    late = executed(bench, "B-1", next_states("C"), publish=(Message(queue_name="q"),))
    late_wait = CallReturned(bench.call("B-1"), StateAnswered(WaitUntilAnswer(command_request=any_of(queue("q")))))
    execute(bench, "A-1", FORCE_COMPLETE)

    results = bench.commit(late, late_wait)

    assert [str(result) for result in results] == ["OBSOLETE", "OBSOLETE"]
    assert bench.current("p").status is ProcessStatus.COMPLETED
    assert not any(key.state_id == "C" for key in bench.states)


def test_ten_messages_nobody_waits_for_stay_and_the_process_completes(bench: CoreBench) -> None:
    started(bench)
    publish(bench, *(("q", i) for i in range(10)))
    assert bench.queue("p", "q") == list(range(10))

    execute(bench, "S-1", COMPLETE)

    assert bench.current("p").status is ProcessStatus.COMPLETED
    assert bench.messages == {}


def test_numbers_of_a_state_count_up_over_loops_and_parallel_movements(bench: CoreBench) -> None:
    started(bench)
    execute(bench, "S-1", next_states("S", "X", "X"))
    execute(bench, "S-2", next_states("S"))
    execute(bench, "S-3", DEAD_END)

    assert {key.state_execution_id for key in bench.states} == {"S-1", "S-2", "S-3", "X-1", "X-2"}
