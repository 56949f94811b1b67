"""What must type-check, with exactly these types. Checked by mypy and pyright, never run."""

from typing import assert_type

from tests.typing.processes import FORM, CountState, Form, MaybeState, Signup, SubmitState
from xdb_sdk import (
    AsyncClient,
    Client,
    CommandRequest,
    CommandResults,
    Communication,
    DataAttribute,
    InternalQueue,
    Persistence,
    ProcessContext,
    RecoverFrom,
    StateContext,
    StateDecision,
    StateMovement,
    TimerCommandResult,
)
from xdb_sdk.testing import ProcessTester


def rpcs_give_what_they_return(client: Client) -> None:
    assert_type(client.invoke_rpc("s-7", Signup.verify, "email"), str)
    assert_type(client.invoke_rpc("s-7", Signup.bare), int)
    assert_type(client.invoke_rpc("s-7", Signup.bare, None), int)
    assert_type(client.invoke_rpc("s-7", Signup.reads), Form)
    assert_type(client.invoke_rpc("s-7", Signup.two), list[int])
    client.invoke_rpc("s-7", Signup.three)
    assert_type(client.invoke_rpc("s-7", Signup.input_second, 3), bool)
    assert_type(client.invoke_rpc("s-7", Signup.input_third, Form(email="a@b.c")), bytes)
    assert_type(client.invoke_rpc("s-7", Signup.input_last, [1, 2]), dict[str, int])
    assert_type(client.invoke_rpc("s-7", Signup.optional), float)
    assert_type(client.invoke_rpc("s-7", Signup.optional, "Ann"), float)
    assert_type(client.invoke_rpc("s-7", Signup.awaited, 3), str)
    assert_type(client.invoke_rpc("s-7", Signup.awaited_bare), int)
    assert_type(client.invoke_rpc("s-7", Signup.anything, 3), str)
    client.invoke_rpc("s-7", Signup.untyped, 3)


def or_start_gives_what_rpcs_return_and_takes_what_queues_carry(client: Client) -> None:
    assert_type(client.rpc_or_start("s-7", Signup, Signup.verify, "email").output, str)
    assert_type(client.rpc_or_start("s-7", Signup, Signup.bare, request_id="r-1").output, int)


def rpcs_may_be_named_by_an_instance(client: Client, signup: Signup) -> None:
    assert_type(client.invoke_rpc("s-7", signup.verify, "email"), str)
    assert_type(client.invoke_rpc("s-7", signup.bare), int)
    assert_type(client.invoke_rpc("s-7", signup.awaited, 3), str)


def a_tester_gives_what_methods_return(tester: ProcessTester) -> None:
    assert_type(tester.invoke_rpc(Signup.verify, "email").returned, str)
    assert_type(tester.invoke_rpc(Signup.bare).returned, int)
    assert_type(tester.invoke_rpc(Signup.awaited, 3).returned, str)
    assert_type(tester.execute(CountState, 3).returned, StateDecision)
    assert_type(tester.wait_until(CountState, 3).returned, CommandRequest)


async def an_async_client_gives_the_same(client: AsyncClient) -> None:
    assert_type(await client.invoke_rpc("s-7", Signup.verify, "email"), str)
    assert_type(await client.invoke_rpc("s-7", Signup.awaited, 3), str)
    assert_type(await client.invoke_rpc("s-7", Signup.bare), int)


async def an_rpc_method_can_be_called_by_its_own_test(
    signup: Signup, ctx: ProcessContext, persistence: Persistence, communication: Communication
) -> None:
    assert_type(signup.verify("email", persistence, communication), str)
    assert_type(signup.verify("email", persistence=persistence, communication=communication), str)
    assert_type(Signup.verify(signup, "email", persistence, communication), str)
    assert_type(signup.input_second(ctx, 3, persistence), bool)
    assert_type(await signup.awaited(communication, 3), str)


def a_state_is_always_told_its_attempt(ctx: StateContext) -> None:
    assert_type(ctx.attempt, int)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.recover_from, RecoverFrom | None)


def an_rpc_has_no_attempt(ctx: ProcessContext) -> None:
    assert_type(ctx.attempt, int | None)


def attributes_have_the_types_of_their_keys(persistence: Persistence) -> None:
    assert_type(Signup.form, DataAttribute[Form])
    assert_type(persistence.get_data_attribute(Signup.form), Form)
    assert_type(persistence.get_data_attribute(FORM), Form)
    assert_type(persistence.get_data_attribute(Signup.tags), list[str])
    assert_type(persistence.get_data_attribute(Signup.nickname), str | None)
    persistence.get_data_attribute(Signup.loose).whatever()
    persistence.get_data_attribute("form").whatever()
    persistence.set_data_attribute(Signup.count, 3)
    persistence.set_data_attribute(Signup.nickname, None)
    persistence.set_data_attribute("count", 3)


def queues_have_the_types_of_their_keys(client: Client, communication: Communication, results: CommandResults) -> None:
    assert_type(Signup.verified, InternalQueue[None])
    communication.publish_to_internal_queue(Signup.verified)
    communication.publish_to_internal_queue(Signup.numbers, 3, dedup_seed="three")
    communication.publish_to_internal_queue("numbers", 3)
    communication.publish_to_internal_queue(Signup.notes, {"from": "Ann"})
    client.publish_to_internal_queue("s-7", Signup, Signup.verified)
    client.publish_to_internal_queue("s-7", Signup, Signup.numbers, 3)
    client.publish_to_internal_queue("s-7", Signup, Signup.notes, 3)
    assert_type(results.values_of(Signup.numbers), tuple[int, ...])
    assert_type(results.timer_commands, tuple[TimerCommandResult, ...])


def decisions_take_the_input_of_the_state() -> None:
    StateDecision.single_next_state(SubmitState)
    StateDecision.single_next_state(CountState, 3, wait_for_key="three")
    StateDecision.single_next_state(MaybeState)
    StateDecision.single_next_state(MaybeState, "Ann")
    StateDecision.single_next_state("CountState", 3)
    StateDecision.multi_next_states(SubmitState, MaybeState, "SubmitState", StateMovement.create(CountState, 3))
