"""What must not type-check. Checked by mypy and pyright, never run.

Each mistake carries an ignore. Both checkers report an ignore that has nothing to ignore, so that a mistake which is
no longer found is an error as well.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from tests.typing.processes import CountState, Form, Signup, SubmitState
from xdb_sdk import AsyncClient, Client, Communication, Persistence, StateDecision, StateMovement


def an_rpc_takes_its_own_input(client: Client, signup: Signup) -> None:
    client.invoke_rpc("s-7", Signup.verify, 1)  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.verify)  # type: ignore[arg-type]
    client.invoke_rpc("s-7", Signup.verify, None)  # type: ignore[arg-type]
    client.invoke_rpc("s-7", Signup.bare, 1)  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.reads, 1)  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.three, 1)  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.input_second, "3")  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.input_third, "form")  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.input_last, ["2"])  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.optional, 3)  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.awaited, "3")  # type: ignore[misc]
    client.invoke_rpc("s-7", Signup.awaited)  # type: ignore[arg-type]
    client.invoke_rpc("s-7", signup.verify, 1)  # type: ignore[misc]


def an_rpc_gives_what_it_returns(client: Client) -> None:
    number: int = client.invoke_rpc("s-7", Signup.verify, "email")  # type: ignore[assignment]
    form: Form = client.invoke_rpc("s-7", Signup.awaited, 3)  # type: ignore[assignment]
    print(number, form)


async def an_async_client_is_as_strict(client: AsyncClient) -> None:
    await client.invoke_rpc("s-7", Signup.verify, 1)  # type: ignore[misc]
    number: int = await client.invoke_rpc("s-7", Signup.verify, "email")  # type: ignore[arg-type]
    print(number)


def what_is_no_rpc_cannot_be_called(client: Client) -> None:
    client.invoke_rpc("s-7", Signup.get_process_type)  # type: ignore[call-overload]
    client.invoke_rpc("s-7", "verify", "email")  # type: ignore[call-overload]


def an_rpc_method_is_called_with_its_own_arguments(signup: Signup, persistence: Persistence) -> None:
    signup.verify(1, persistence, persistence)  # type: ignore[arg-type]
    signup.bare(1)  # type: ignore[call-arg]


def attributes_are_written_with_their_types(persistence: Persistence) -> None:
    persistence.set_data_attribute(Signup.count, "3")  # type: ignore[misc]
    persistence.set_data_attribute(Signup.form, None)  # type: ignore[misc]
    count: str = persistence.get_data_attribute(Signup.count)  # type: ignore[assignment]
    print(count)


def queues_take_messages_of_their_types(client: Client, communication: Communication) -> None:
    communication.publish_to_internal_queue(Signup.numbers, "3")  # type: ignore[misc]
    communication.publish_to_internal_queue(Signup.numbers)  # type: ignore[arg-type]
    communication.publish_to_internal_queue(Signup.verified, 3)  # type: ignore[misc]
    client.publish_to_internal_queue("s-7", Signup, Signup.numbers, "3")  # type: ignore[misc]


def decisions_take_the_input_of_the_state() -> None:
    StateDecision.single_next_state(CountState, "3")  # type: ignore[misc]
    StateDecision.single_next_state(CountState)  # type: ignore[arg-type]
    StateDecision.single_next_state(SubmitState, 3)  # type: ignore[misc]
    StateDecision.multi_next_states(CountState)  # type: ignore[arg-type]
    StateMovement.create(CountState, "3")  # type: ignore[misc]
