"""The lock queue is fair, and nobody waits for ever."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from server_stub.dispatch.lock_queue import LockQueue, LockTicket


class Queue:
    """A lock queue that writes down who was granted, in order."""

    def __init__(self) -> None:
        self.locks = LockQueue()
        self.granted: list[str] = []
        self.tickets: dict[str, LockTicket] = {}

    def enter(self, name: str, keys: str, *, is_exclusive: bool = True) -> None:
        ticket = self.locks.enter(keys, partial(self.granted.append, name), is_exclusive=is_exclusive)
        self.tickets[name] = ticket
        if ticket.is_granted:
            self.granted.append(name)

    def leave(self, name: str) -> None:
        self.locks.leave(self.tickets[name])


def test_exclusive_ones_are_served_in_order_of_arrival() -> None:
    queue = Queue()
    for name in ("a", "b", "c"):
        queue.enter(name, "k")

    queue.leave("a")
    queue.leave("b")

    assert queue.granted == ["a", "b", "c"]


def test_share_lets_share_pass_but_not_an_exclusive_one_that_waits() -> None:
    queue = Queue()
    queue.enter("s1", "k", is_exclusive=False)
    queue.enter("s2", "k", is_exclusive=False)
    queue.enter("x", "k")
    queue.enter("s3", "k", is_exclusive=False)
    assert queue.granted == ["s1", "s2"]

    queue.leave("s1")
    assert queue.granted == ["s1", "s2"]
    queue.leave("s2")
    assert queue.granted == ["s1", "s2", "x"]
    queue.leave("x")
    assert queue.granted == ["s1", "s2", "x", "s3"]


def test_one_that_gives_up_waiting_lets_those_behind_pass() -> None:
    queue = Queue()
    queue.enter("s1", "k", is_exclusive=False)
    queue.enter("x", "k")
    queue.enter("s2", "k", is_exclusive=False)

    queue.leave("x")

    assert queue.granted == ["s1", "s2"]


def test_one_with_two_keys_waits_for_both() -> None:
    queue = Queue()
    queue.enter("a", "1")
    queue.enter("b", "2")
    queue.enter("ab", "12")
    queue.enter("b2", "2")

    queue.leave("a")
    assert queue.granted == ["a", "b"]
    queue.leave("b")
    assert queue.granted == ["a", "b", "ab"]
    queue.leave("ab")
    assert queue.granted == ["a", "b", "ab", "b2"]


def test_leaving_twice_is_harmless_and_leaves_nothing_behind() -> None:
    queue = Queue()
    queue.enter("a", "12")

    queue.leave("a")
    queue.leave("a")

    assert len(queue.locks) == 0


REQUESTS = st.lists(st.tuples(st.sets(st.sampled_from("123"), min_size=1), st.booleans()), max_size=12)


@given(REQUESTS, st.randoms(use_true_random=False))
def test_no_two_hold_the_same_key_unless_both_share_and_all_are_served(requests, random) -> None:  # type: ignore[no-untyped-def]
    queue = Queue()
    kinds = {str(number): kind for number, kind in enumerate(requests)}
    holding: set[str] = set()
    for name, (keys, is_exclusive) in kinds.items():
        queue.enter(name, "".join(sorted(keys)), is_exclusive=is_exclusive)

    left: list[str] = []
    while len(left) < len(kinds):
        holding = set(queue.granted) - set(left)
        assert holding, "everybody waits"
        for one in holding:
            for other in holding - {one}:
                is_apart = not kinds[one][0] & kinds[other][0]
                assert is_apart or not (kinds[one][1] or kinds[other][1])
        leaving = random.choice(sorted(holding))
        queue.leave(leaving)
        left.append(leaving)

    assert sorted(queue.granted) == sorted(kinds)
    assert len(queue.locks) == 0


def test_any_number_of_waiters_may_leave_as_soon_as_they_are_granted() -> None:
    locks = LockQueue()
    tickets: list[LockTicket] = []

    def leave(number: int) -> None:
        locks.leave(tickets[number])

    tickets.extend(locks.enter("k", partial(leave, number), is_exclusive=True) for number in range(5_000))

    locks.leave(tickets[0])

    assert len(locks) == 0


def test_waiter_that_leaves_in_the_moment_of_its_grant_is_not_told() -> None:
    queue = Queue()
    queue.enter("x", "k")
    second = queue.locks.enter("k", lambda: queue.leave("s"), is_exclusive=False)
    queue.enter("s", "k", is_exclusive=False)

    queue.leave("x")

    assert second.is_granted
    assert queue.granted == ["x"]
