"""Messages: published from everywhere, kept in order, given out once (semantics 3.2, 3.3)."""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.engine.mailbox import (
    BOX,
    DEADLINE,
    Mailbox,
    Want,
    all_of,
    any_of,
    ask,
    claims,
    leftovers,
    publish,
    queue_sizes,
    received,
    results,
    start_mailbox,
)
from tests.support.system import System
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    ErrorSubType,
    InternalQueue,
    InternalQueueCommand,
    InvalidArgumentError,
    ObjectProcess,
    ProcessErrorType,
    ProcessFailed,
    ProcessNotFoundError,
    ProcessNotRunningError,
    QueueCommandStatus,
    QueueMessage,
    RetryPolicy,
    StateDecision,
    internal_queue,
    process,
    rpc,
    state,
)
from xdb_sdk.protocol import SERVICE_PREFIX


class ListenState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("news"))

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process(command_results.internal_queue_commands[0].value)


class TellInExecuteState(AsyncState[None]):
    def execute(self, communication: Communication) -> StateDecision:
        communication.publish_to_internal_queue("news", "from execute")
        return StateDecision.dead_end()


class TellInWaitUntilState(AsyncState[None]):
    def wait_until(self, communication: Communication) -> CommandRequest:
        communication.publish_to_internal_queue("news", "from wait_until")
        return CommandRequest.empty()

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class HearItselfState(AsyncState[None]):
    def wait_until(self, communication: Communication) -> CommandRequest:
        communication.publish_to_internal_queue("news", "to myself")
        return CommandRequest.for_all_command_completed(InternalQueueCommand.by_name("news"))

    def execute(self, command_results: CommandResults) -> StateDecision:
        return StateDecision.graceful_complete_process(command_results.internal_queue_commands[0].value)


class ForkState(AsyncState[list[str]]):
    def execute(self, input: list[str]) -> StateDecision:
        return StateDecision.multi_next_states(*input)


class NewsProcess(ObjectProcess):
    news = internal_queue(str)

    starting_state = ForkState
    states = (ListenState, TellInExecuteState, TellInWaitUntilState, HearItselfState)


@pytest.mark.parametrize(
    ("states", "heard"),
    [
        (["ListenState", "TellInExecuteState"], "from execute"),
        (["TellInExecuteState", "ListenState"], "from execute"),
        (["ListenState", "TellInWaitUntilState"], "from wait_until"),
        (["HearItselfState"], "to myself"),
    ],
    ids=["execute tells a waiter", "execute tells a later waiter", "wait_until tells a waiter", "wait_until itself"],
)
async def test_message_of_a_state_reaches_the_state_that_waits_for_it(
    system: System, states: list[str], heard: str
) -> None:
    system.serve(NewsProcess)

    await system.client.start_process("news", NewsProcess, states)
    result = await system.client.wait_for_process_completion("news", str, timeout=DEADLINE)

    assert result == heard
    assert leftovers(system) == {}


async def test_message_published_before_anyone_waits_is_kept_for_a_later_wait(system: System) -> None:
    await start_mailbox(system)
    await publish(system, "a", "early")
    await asyncio.sleep(3_600)

    await ask(system, all_of("a"))

    assert await results(system) == [[["early"]]]


async def test_commands_on_one_queue_get_successive_messages_in_the_order_of_the_commands(system: System) -> None:
    await start_mailbox(system, all_of(*[Want("a", command_id=f"id-{i}") for i in range(4)]))

    for i in range(4):
        await publish(system, "a", i)

    assert await results(system) == [[[0], [1], [2], [3]]]
    [execute] = [call["body"] for call in system.worker.calls if call["operation"] == "execute"]
    ids = [result["commandId"] for result in execute["commandResults"]["internalQueueResults"]]
    assert ids == ["id-0", "id-1", "id-2", "id-3"]


async def test_messages_nobody_waits_for_are_counted_and_do_not_hold_up_completion(system: System) -> None:
    await start_mailbox(system, all_of("b"))
    await publish(system, "a", *range(10))

    sizes = await queue_sizes(system)
    await publish(system, "b", "go")

    assert sizes == {"a": 10}
    assert await results(system) == [[["go"]]]
    assert leftovers(system) == {}


async def test_of_two_waits_on_one_queue_the_earlier_gets_the_earlier_message(system: System) -> None:
    await start_mailbox(system)
    await ask(system, all_of("a", "b"))
    await ask(system, all_of("a", "c"))

    await publish(system, "a", "first")
    await publish(system, "a", "second")
    await publish(system, "c", "end of the later")
    await publish(system, "b", "end of the earlier")

    assert await results(system) == [[["second"], ["end of the later"]], [["first"], ["end of the earlier"]]]


async def test_command_for_two_messages_waits_for_both_and_gets_them_in_order(system: System) -> None:
    await start_mailbox(system, all_of(Want("a", 2)))

    await publish(system, "a", 1)
    after_one = (await received(system), await claims(system), await queue_sizes(system))
    await publish(system, "a", 2)

    assert after_one == ([], [[0]], {"a": 1})
    assert await results(system) == [[[1, 2]]]


async def test_younger_command_with_a_smaller_count_overtakes_an_older_one_without_enough(system: System) -> None:
    await start_mailbox(system)
    await ask(system, all_of(Want("a", 2)))
    await ask(system, all_of("a"))

    for value in (1, 2, 3):
        await publish(system, "a", value)

    assert await results(system) == [[[1]], [[2, 3]]]


@pytest.mark.parametrize("want", [Want("a"), Want("a", 0)], ids=["default", "zero"])
async def test_command_takes_one_message_unless_it_says_more(system: System, want: Want) -> None:
    await start_mailbox(system, all_of(want))

    await publish(system, "a", "one", "two")

    assert await results(system) == [[["one"]]]


async def test_one_call_publishes_to_several_queues_in_one_transaction_and_keeps_the_order(system: System) -> None:
    await start_mailbox(system, all_of(Want("a", 2), Want("b", 2)))
    transactions = system.server.committer.counters.transactions

    published = await system.client.publish_messages(
        BOX,
        Mailbox,
        [
            QueueMessage(queue=Mailbox.b, value="b1"),
            QueueMessage(queue=Mailbox.a, value="a1"),
            QueueMessage(queue=Mailbox.b, value="b2"),
            QueueMessage(queue=Mailbox.a, value="a2"),
        ],
    )
    transactions_of_publish = system.server.committer.counters.transactions - transactions

    assert published == 4
    assert transactions_of_publish == 1
    assert await results(system) == [[["a1", "a2"], ["b1", "b2"]]]


async def test_batch_with_one_unusable_message_publishes_nothing(system: System) -> None:
    await start_mailbox(system, any_of("a"))
    messages = [QueueMessage(queue="a", value=1), QueueMessage(queue="undeclared", value=2)]

    with pytest.raises(InvalidArgumentError, match="undeclared"):
        await system.client.publish_messages(BOX, Mailbox, messages)

    assert await queue_sizes(system) == {}
    assert await claims(system) == [[0]]


@dataclass
class Point:
    x: int
    y: int


seen: list[Any] = []


class MixedState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_all_command_completed(
            InternalQueueCommand.by_name(MixedProcess.mixed, 6), InternalQueueCommand.by_name(MixedProcess.bell)
        )

    def execute(self, command_results: CommandResults) -> StateDecision:
        mixed, bell = command_results.internal_queue_commands
        seen[:] = [*mixed.values, bell.status, bell.value, bell.values]
        return StateDecision.graceful_complete_process()


class MixedProcess(ObjectProcess):
    mixed: InternalQueue[Point | int | str | bool | None] = internal_queue(Point | int | str | bool | None)
    bell = internal_queue(None)

    starting_state = MixedState


async def test_values_of_all_kinds_on_one_queue_arrive_as_they_were_sent(system: System) -> None:
    system.serve(MixedProcess)
    seen.clear()

    await system.client.start_process("mixed", MixedProcess)
    for value in (None, Point(1, -2), "text", 7, "", 0):
        await system.client.publish_to_internal_queue("mixed", MixedProcess, MixedProcess.mixed, value)
    await system.client.publish_to_internal_queue("mixed", MixedProcess, MixedProcess.bell)
    await system.client.wait_for_process_completion("mixed", timeout=DEADLINE)

    assert seen == [None, Point(1, -2), "text", 7, "", 0, QueueCommandStatus.RECEIVED, None, (None,)]


async def test_message_with_a_known_dedup_id_is_delivered_once_also_after_it_was_consumed(system: System) -> None:
    await start_mailbox(system)
    client = system.client

    is_new = [
        await client.publish_to_internal_queue(BOX, Mailbox, "a", "first", "id-1"),
        await client.publish_to_internal_queue(BOX, Mailbox, "a", "again", "id-1"),
    ]
    await ask(system, all_of("a", "c"), all_of("a"))
    is_new.append(await client.publish_to_internal_queue(BOX, Mailbox, "a", "much later", "id-1"))
    await publish(system, "a", "another")
    await publish(system, "c", "end")

    assert is_new == [True, False, False]
    assert await results(system) == [[["another"]], [["first"], ["end"]]]
    assert leftovers(system) == {}


async def test_dedup_id_is_remembered_over_a_restart_of_the_server(system: System) -> None:
    await start_mailbox(system, all_of("a", "b"))
    await system.client.publish_to_internal_queue(BOX, Mailbox, "a", "first", "id-1")

    await system.restart_server()
    is_new = await system.client.publish_to_internal_queue(BOX, Mailbox, "a", "again", "id-1")

    assert not is_new
    assert await queue_sizes(system) == {}


async def test_one_dedup_id_on_two_queues_is_two_messages(system: System) -> None:
    await start_mailbox(system, all_of("a", "b"))

    for queue in (Mailbox.a, Mailbox.b):
        await system.client.publish_to_internal_queue(BOX, Mailbox, queue, queue.name, "id-1")

    assert await results(system) == [[["a"], ["b"]]]


async def test_new_execution_of_a_process_id_knows_no_dedup_ids(system: System) -> None:
    await start_mailbox(system)
    await system.client.publish_to_internal_queue(BOX, Mailbox, "a", "first", "id-1")
    await system.client.stop_process(BOX)
    await system.client.start_process(BOX, Mailbox)

    is_new = await system.client.publish_to_internal_queue(BOX, Mailbox, "a", "second", "id-1")

    assert is_new
    assert await queue_sizes(system) == {"a": 1}


class SeedState(AsyncState[list[str]]):
    def execute(self, input: list[str], communication: Communication) -> StateDecision:
        for seed in input:
            communication.publish_to_internal_queue(SeedProcess.q, seed, dedup_seed=seed)
        return StateDecision.dead_end()


class SeedProcess(ObjectProcess):
    q = internal_queue(str)

    starting_state = SeedState

    @rpc
    def publish(self, seed: str, communication: Communication) -> None:
        communication.publish_to_internal_queue(SeedProcess.q, seed, dedup_seed=seed)


async def test_equal_dedup_seeds_make_one_message_whoever_publishes_it(system: System) -> None:
    system.serve(SeedProcess)

    await system.client.start_process("seeds", SeedProcess, ["order 1", "order 2", "order 1"])
    await asyncio.sleep(1)
    await system.client.invoke_rpc("seeds", SeedProcess.publish, "order 2")
    await system.client.invoke_rpc("seeds", SeedProcess.publish, "order 3")

    payloads = system.sql("SELECT payload FROM xdb_sys_internal_queue ORDER BY sequence_id")
    assert payloads == [('"order 1"',), ('"order 2"',), ('"order 3"',)]


async def test_publish_to_a_closed_process_is_refused_and_leaves_nothing(system: System) -> None:
    await start_mailbox(system)
    await system.client.stop_process(BOX)

    with pytest.raises(ProcessNotRunningError) as refused:
        await system.client.publish_to_internal_queue(BOX, Mailbox, "a", 1)

    assert refused.value.status == 409
    assert leftovers(system) == {}


async def test_publish_to_an_unknown_process_is_not_found(system: System) -> None:
    system.serve(Mailbox)

    with pytest.raises(ProcessNotFoundError) as refused:
        await system.client.publish_to_internal_queue("nobody", Mailbox, "a", 1)

    assert refused.value.status == 404


class WrongQueueState(AsyncState[str]):
    def execute(self, input: str, communication: Communication) -> StateDecision:
        communication.publish_to_internal_queue(input, 1)
        return StateDecision.graceful_complete_process()


@state(execute_api_retry_policy=RetryPolicy(maximum_attempts=2, initial_interval_seconds=1))
class TwiceWrongQueueState(WrongQueueState):
    pass


@process(type_name="WrongQueue")
class WrongQueueProcess(ObjectProcess):
    known = internal_queue(int, prefix="p_")

    starting_state = TwiceWrongQueueState


@pytest.mark.parametrize("queue", ["known", "q_1"], ids=["not declared", "without the declared prefix"])
async def test_publishing_to_an_undeclared_queue_fails_the_state_and_in_the_end_the_process(
    system: System, queue: str
) -> None:
    system.serve(WrongQueueProcess)
    await system.client.start_process("wrong", WrongQueueProcess, queue)

    with pytest.raises(ProcessFailed, match=repr(queue)) as failed:
        await system.client.wait_for_process_completion("wrong", timeout=DEADLINE)

    assert failed.value.error_type is ProcessErrorType.STATE_API
    assert system.worker.count("TwiceWrongQueueState") == 2
    assert leftovers(system) == {}


async def test_queue_declared_by_prefix_serves_every_name_under_it(system: System) -> None:
    await start_mailbox(system, all_of("p_1", "p_2"))

    await publish(system, "p_2", "two")
    await publish(system, "p_1", "one")

    assert await results(system) == [[["one"], ["two"]]]
    with pytest.raises(InvalidArgumentError, match="q_1"):
        await publish(system, "q_1", "no such prefix")


async def test_rpc_counts_the_stored_messages_and_those_it_has_published(system: System) -> None:
    await start_mailbox(system, all_of(Want("a", 1), "b"))
    await publish(system, "a", "claimed")
    await publish(system, "a", "stored 1", "stored 2")

    size = await system.client.invoke_rpc(BOX, Mailbox.publish_and_count, ["new 1", "new 2", "new 3"])

    assert size == 5
    assert await queue_sizes(system) == {"a": 5}


async def test_publishing_no_message_is_an_invalid_request(system: System) -> None:
    await start_mailbox(system)

    with pytest.raises(InvalidArgumentError, match="at least one"):
        await system.client.publish_messages(BOX, Mailbox, [])
    transport = httpx.ASGITransport(system.server.api)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        answer = await http.post(f"{SERVICE_PREFIX}publish", json={"processId": BOX, "messages": []})

    assert answer.status_code == 400
    assert answer.json()["errorSubType"] == ErrorSubType.INVALID_REQUEST
    assert "messages" in answer.json()["details"]
