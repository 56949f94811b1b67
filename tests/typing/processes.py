"""A process whose RPCs declare their parameters in every way; what the typing tests are about."""

from typing import Any, ClassVar

from pydantic import BaseModel

from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    DataAttribute,
    InternalQueue,
    InternalQueueCommand,
    ObjectProcess,
    Persistence,
    PersistenceField,
    ProcessContext,
    StateContext,
    StateDecision,
    TimerCommand,
    data_attribute,
    internal_queue,
    process,
    rpc,
)


class Form(BaseModel):
    """A document."""

    email: str


class SubmitState(AsyncState[None]):
    """Takes no input, and declares few parameters."""

    def execute(self, persistence: Persistence) -> StateDecision:
        return StateDecision.single_next_state(CountState, 3)


class CountState(AsyncState[int]):
    """Takes a number, and declares all parameters, with coroutines."""

    async def wait_until(self, ctx: ProcessContext, input: int, communication: Communication) -> CommandRequest:
        return CommandRequest.for_any_command_completed(
            TimerCommand.by_seconds(input), InternalQueueCommand.by_name(Signup.numbers)
        )

    async def execute(
        self,
        ctx: StateContext,
        input: int,
        command_results: CommandResults,
        persistence: Persistence,
        communication: Communication,
    ) -> StateDecision:
        return StateDecision.graceful_complete_process(command_results.values_of(Signup.numbers))


class MaybeState(AsyncState[str | None]):
    """Its input may be left out."""

    def execute(self, input: str | None) -> StateDecision:
        return StateDecision.dead_end()


@process(table_name="user_sign_up", primary_key="user_id", primary_key_type=str)
class Signup(ObjectProcess):
    """Everything is declared by class attributes."""

    form = data_attribute(Form)
    count = data_attribute(int)
    tags = data_attribute(list[str])
    nickname: DataAttribute[str | None] = data_attribute(str | None)
    loose = data_attribute(int | str)
    verified = internal_queue(None)
    numbers = internal_queue(int)
    notes: InternalQueue[Any] = internal_queue(Any)

    starting_state = SubmitState
    states = (CountState, MaybeState)

    @rpc()
    def verify(self, source: str, persistence: Persistence, communication: Communication) -> str:
        return source

    @rpc
    def bare(self) -> int:
        return 1

    @rpc(read_only=True)
    def reads(self, persistence: Persistence) -> Form:
        return persistence.get_data_attribute(Signup.form)

    @rpc
    def two(self, communication: Communication, ctx: ProcessContext) -> list[int]:
        return []

    @rpc
    def three(self, ctx: ProcessContext, communication: Communication, persistence: Persistence) -> None: ...

    @rpc
    def input_second(self, ctx: ProcessContext, amount: int, persistence: Persistence) -> bool:
        return True

    @rpc
    def input_third(self, persistence: Persistence, communication: Communication, form: Form) -> bytes:
        return b""

    @rpc
    def input_last(
        self, persistence: Persistence, ctx: ProcessContext, communication: Communication, amounts: list[int]
    ) -> dict[str, int]:
        return {}

    @rpc
    def optional(self, name: str | None) -> float:
        return 1.0

    @rpc
    async def awaited(self, communication: Communication, amount: int) -> str:
        return ""

    @rpc
    async def awaited_bare(self, persistence: Persistence) -> int:
        return 1

    @rpc
    def anything(self, persistence: Persistence, thing: object) -> str:
        return ""

    @rpc
    def untyped(self, ctx: ProcessContext, thing: Any) -> str:
        return ""


FORM = PersistenceField.data_attribute_def("form", Form)


class Tour(ObjectProcess):
    """Has children that begin otherwise, and says so by its annotations."""

    starting_state: ClassVar[Any] = SubmitState
    states: ClassVar[Any] = (CountState,)


class ShortTour(Tour):
    """Overrides what its parent has overridden."""

    starting_state = MaybeState
    states = (CountState, SubmitState)
