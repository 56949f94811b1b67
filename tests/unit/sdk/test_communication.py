"""Publishing, triggering states and deciding inside a call."""

from collections.abc import Mapping

import pytest

from tests.unit.sdk.compiling import DoneState, definition_of
from tests.unit.sdk.test_decision import COUNTING, Counting, CountState
from xdb_sdk import Communication, EncodeError, InvalidArgumentError, ObjectProcess, StateDecision, internal_queue
from xdb_sdk.protocol import CloseType, Message, StateDecisionBody


class Queues(ObjectProcess):
    """Declares queues."""

    plain = internal_queue(None)
    numbers = internal_queue(int)
    people = internal_queue(str, prefix="p_")
    bosses = internal_queue(int, prefix="p_boss_")


QUEUES = definition_of(Queues)


def in_state() -> Communication:
    return Communication(QUEUES, where="Step.execute")


def in_rpc(sizes: Mapping[str, int] | None = None, *, read_only: bool = False) -> Communication:
    return Communication(COUNTING, where="Counting.call", queue_sizes=sizes or {}, read_only=read_only)


def test_messages_are_collected_in_order() -> None:
    communication = in_state()

    communication.publish_to_internal_queue(Queues.numbers, 1)
    communication.publish_to_internal_queue("plain")
    communication.publish_to_internal_queue("numbers", 2, dedup_id="two")

    assert communication.effects().publish == (
        Message(queue_name="numbers", payload=1),
        Message(queue_name="plain"),
        Message(queue_name="numbers", payload=2, message_id="two"),
    )
    assert communication.effects().state_decision == StateDecisionBody()


def test_equal_seeds_give_equal_ids_for_ever() -> None:
    communication = in_state()

    for seed in ("a", "a", "b"):
        communication.publish_to_internal_queue(Queues.plain, dedup_seed=seed)

    first, again, other = (message.message_id for message in communication.effects().publish)
    assert first == again == "b20def60-8c47-5b1d-8bc6-2b738621d453"
    assert other != first


def test_an_id_and_a_seed_are_too_much_and_an_id_has_a_length() -> None:
    communication = in_state()

    with pytest.raises(InvalidArgumentError, match="give one of them"):
        communication.publish_to_internal_queue("plain", dedup_id="a", dedup_seed="b")
    for dedup_id in ("", "ä" * 128):
        with pytest.raises(InvalidArgumentError, match="dedup id"):
            communication.publish_to_internal_queue("plain", dedup_id=dedup_id)


def test_a_queue_declared_by_prefix_serves_every_name_under_it() -> None:
    communication = in_state()

    communication.publish_to_internal_queue("p_1", "x")
    communication.publish_to_internal_queue(Queues.people.named("2"), "y")
    communication.publish_to_internal_queue("p_boss_1", 3)

    assert [message.queue_name for message in communication.effects().publish] == ["p_1", "p_2", "p_boss_1"]
    with pytest.raises(InvalidArgumentError, match="Queues declares no internal queue '1'"):
        communication.publish_to_internal_queue("1", "x")
    with pytest.raises(EncodeError, match="message of queue 'p_boss_1'"):
        communication.publish_to_internal_queue("p_boss_1", "the longest prefix says int")


def test_an_undeclared_queue_or_a_wrong_message_is_refused() -> None:
    communication = in_state()

    with pytest.raises(InvalidArgumentError, match="no internal queue 'plan'; did you mean 'plain'"):
        communication.publish_to_internal_queue("plan")
    with pytest.raises(EncodeError, match="message of queue 'numbers'"):
        communication.publish_to_internal_queue("numbers", "one")
    with pytest.raises(EncodeError, match="message of queue 'plain'"):
        communication.publish_to_internal_queue("plain", 1)
    assert communication.effects().publish == ()


def test_an_rpc_sees_what_is_stored_and_what_it_published() -> None:
    communication = in_rpc({"more": 3})

    communication.publish_to_internal_queue(Counting.more, 1)
    communication.publish_to_internal_queue(Counting.others, "x")

    assert communication.get_internal_queue_size(Counting.more) == 4
    assert communication.get_internal_queue_size("others") == 1
    with pytest.raises(InvalidArgumentError, match="no internal queue 'mor'"):
        communication.get_internal_queue_size("mor")


def test_an_rpc_starts_states() -> None:
    communication = in_rpc()

    communication.trigger_state_execution(CountState, 1)
    communication.trigger_state_execution("DoneState", wait_for_key="k")

    next_states = communication.effects().state_decision.next_states
    assert [(m.state_id, m.input, m.wait_for_key) for m in next_states] == [
        ("count", 1, None),
        ("DoneState", None, "k"),
    ]
    with pytest.raises(EncodeError):
        communication.trigger_state_execution("count", "one")


def test_an_rpc_may_close_the_process() -> None:
    communication = in_rpc()

    communication.decide(StateDecision.graceful_complete_process("done"))

    close = communication.effects().state_decision.thread_close_decision
    assert close is not None
    assert (close.close_type, close.close_output) == (CloseType.GRACEFUL_COMPLETE_PROCESS, "done")


def test_an_rpc_makes_one_decision() -> None:
    triggered, decided = in_rpc(), in_rpc()
    triggered.trigger_state_execution(DoneState)
    decided.decide(StateDecision.dead_end())

    with pytest.raises(InvalidArgumentError, match="make one decision in a call"):
        triggered.decide(StateDecision.dead_end())
    with pytest.raises(InvalidArgumentError, match="make one decision in a call"):
        decided.decide(StateDecision.dead_end())
    with pytest.raises(InvalidArgumentError, match="cannot start another state as well"):
        decided.trigger_state_execution(DoneState)


def test_a_state_decides_by_what_it_returns() -> None:
    communication = Communication(COUNTING, where="CountState.execute")

    with pytest.raises(InvalidArgumentError, match=r"CountState\.execute is no RPC and cannot start a state this way"):
        communication.trigger_state_execution(DoneState)
    with pytest.raises(InvalidArgumentError, match="cannot decide this way: return the StateDecision"):
        communication.decide(StateDecision.dead_end())
    with pytest.raises(InvalidArgumentError, match="only RPCs are told the sizes of queues"):
        communication.get_internal_queue_size("more")


def test_a_read_only_rpc_changes_nothing() -> None:
    communication = in_rpc({"more": 1}, read_only=True)

    assert communication.get_internal_queue_size("more") == 1
    with pytest.raises(InvalidArgumentError, match="is declared read_only and cannot publish to queue 'more'"):
        communication.publish_to_internal_queue("more", 1)
    with pytest.raises(InvalidArgumentError, match="is declared read_only and cannot start a state"):
        communication.trigger_state_execution(DoneState)
    with pytest.raises(InvalidArgumentError, match="is declared read_only and cannot decide"):
        communication.decide(StateDecision.dead_end())
