"""Async states, and the list of them that a process gives."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xdb_sdk._options import AsyncStateOptions, PersistenceLoadingPolicy, RetryPolicy, StateRecovery, StateReference

if TYPE_CHECKING:
    from xdb_sdk._command import CommandRequest
    from xdb_sdk._decision import StateDecision

InputT_contra = TypeVar("InputT_contra", contravariant=True)
StateT = TypeVar("StateT", bound="type[AsyncState[Any]]")

DECORATED_OPTIONS = "__xdb_state_options__"


class AsyncState(Generic[InputT_contra]):
    """One step of a process; `AsyncState[T]` takes an input of type T.

    Define `execute`, and `wait_until` if the step is to wait for something first. Either declares the parameters it
    wants, by these names: `ctx`, `input`, `command_results` (execute only), `persistence`, `communication`; `def` or
    `async def`.

    A state is made once, when its process is registered, and serves all executions: keep nothing of a single one in
    `self`.

    Example:
        class SubmitState(AsyncState[None]):
            def execute(self, persistence: Persistence) -> StateDecision:
                send_email(persistence.get_data_attribute(UserSignupProcess.form).email, "verify")
                return StateDecision.single_next_state(VerifyState)
    """

    def wait_until(self, *args: Any, **kwargs: Any) -> "CommandRequest | Coroutine[Any, Any, CommandRequest]":
        """Say what to wait for before execute is called. A state that does not define it waits for nothing."""
        raise NotImplementedError

    def execute(self, *args: Any, **kwargs: Any) -> "StateDecision | Coroutine[Any, Any, StateDecision]":
        """Do the step's work and say what is next. It may be called more than once for one state execution."""
        raise NotImplementedError

    def get_state_options(self) -> AsyncStateOptions | None:
        """Give the options of this state at run time; `@state` does the same on the class."""
        return decorated_options(type(self))


def state(
    *,
    state_id: str | None = None,
    data_attributes_loading_policy: PersistenceLoadingPolicy | None = None,
    wait_until_api_timeout_seconds: float | None = None,
    wait_until_api_retry_policy: RetryPolicy | None = None,
    wait_until_api_data_attributes_loading_policy: PersistenceLoadingPolicy | None = None,
    proceed_to_execute_when_wait_until_retry_exhausted: bool | None = None,
    proceed_to_state_when_wait_until_retry_exhausted: StateReference | StateRecovery | None = None,
    execute_api_timeout_seconds: float | None = None,
    execute_api_retry_policy: RetryPolicy | None = None,
    execute_api_data_attributes_loading_policy: PersistenceLoadingPolicy | None = None,
    proceed_to_state_when_execute_retry_exhausted: StateReference | StateRecovery | None = None,
) -> Callable[[StateT], StateT]:
    """Give a state class its options; the arguments are the fields of AsyncStateOptions.

    A class inherits the options of its base class, except the state id, and its own win over them field by field.

    Example:
        @state(execute_api_retry_policy=RetryPolicy(maximum_attempts=3))
    """
    options = AsyncStateOptions(
        state_id=state_id,
        data_attributes_loading_policy=data_attributes_loading_policy,
        wait_until_api_timeout_seconds=wait_until_api_timeout_seconds,
        wait_until_api_retry_policy=wait_until_api_retry_policy,
        wait_until_api_data_attributes_loading_policy=wait_until_api_data_attributes_loading_policy,
        proceed_to_execute_when_wait_until_retry_exhausted=proceed_to_execute_when_wait_until_retry_exhausted,
        proceed_to_state_when_wait_until_retry_exhausted=proceed_to_state_when_wait_until_retry_exhausted,
        execute_api_timeout_seconds=execute_api_timeout_seconds,
        execute_api_retry_policy=execute_api_retry_policy,
        execute_api_data_attributes_loading_policy=execute_api_data_attributes_loading_policy,
        proceed_to_state_when_execute_retry_exhausted=proceed_to_state_when_execute_retry_exhausted,
    )

    def decorate(state_class: StateT) -> StateT:
        setattr(state_class, DECORATED_OPTIONS, options)
        return state_class

    return decorate


def decorated_options(state_class: type[AsyncState[Any]]) -> AsyncStateOptions | None:
    """Merge what @state says of a class and of its base classes; None if it says nothing anywhere."""
    merged: AsyncStateOptions | None = None
    for base in reversed(state_class.__mro__):
        options: AsyncStateOptions | None = vars(base).get(DECORATED_OPTIONS)
        if options is not None:
            merged = options.over(merged) if merged else options
    own: AsyncStateOptions | None = vars(state_class).get(DECORATED_OPTIONS)
    return merged and replace(merged, state_id=own.state_id if own else None)


@dataclass(frozen=True, slots=True)
class StateDef:
    """A state of a process, and whether executions begin with it."""

    state: AsyncState[Any]
    is_starting_state: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The states of a process."""

    states: tuple[StateDef, ...] = ()

    @staticmethod
    def create(*states: StateDef) -> "StateSchema":
        """List the states, at most one of which is the starting state."""
        return StateSchema(states)

    @staticmethod
    def with_starting_state(starting_state: AsyncState[Any], *others: AsyncState[Any]) -> "StateSchema":
        """List the states of a process whose executions begin with the first one."""
        return StateSchema((StateDef(starting_state, is_starting_state=True), *map(StateDef, others)))

    @staticmethod
    def no_starting_state(*states: AsyncState[Any]) -> "StateSchema":
        """List the states of a process whose executions only begin to move when an RPC triggers a state."""
        return StateSchema(tuple(map(StateDef, states)))
