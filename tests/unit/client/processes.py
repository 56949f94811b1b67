"""The process classes that the tests of the clients start and call, and a client that knows them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.unit.client.doubles import HandClock, Outcome, ScriptedTransport
from xdb_sdk._command import CommandRequest, TimerCommand
from xdb_sdk._communication import Communication
from xdb_sdk._decision import StateDecision
from xdb_sdk._options import RetryPolicy
from xdb_sdk._persistence import Persistence
from xdb_sdk._process import ObjectProcess, process
from xdb_sdk._registry import Registry
from xdb_sdk._rpc import rpc
from xdb_sdk._schema import data_attribute, internal_queue
from xdb_sdk._state import AsyncState, state
from xdb_sdk.client import Client, ClientOptions


@dataclass(frozen=True)
class Form:
    email: str
    age: int


@state(state_id="submit", execute_api_timeout_seconds=7, execute_api_retry_policy=RetryPolicy(maximum_attempts=3))
class SubmitState(AsyncState[int]):
    def execute(self, input: int) -> StateDecision:
        return StateDecision.graceful_complete_process(input)


class WaitState(AsyncState[None]):
    def wait_until(self) -> CommandRequest:
        return CommandRequest.for_any_command_completed(TimerCommand.by_seconds(1, command_id="t"))

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


class OtherState(AsyncState[None]):
    """In no process."""

    def execute(self) -> StateDecision:
        return StateDecision.dead_end()


@process(table_name="sign_up", primary_key="user_id", primary_key_type=int)
class SignUp(ObjectProcess):
    """Mapped to a table."""

    user_id = data_attribute(int)
    form = data_attribute(Form, column="form_json")
    status = data_attribute(str)
    verify_queue = internal_queue(None, name="verify")
    numbers = internal_queue(int)

    starting_state = SubmitState
    states = (WaitState,)

    @rpc(timeout_seconds=5)
    def verify(self, source: str, persistence: Persistence) -> Form:
        raise NotImplementedError

    @rpc(read_only=True)
    def ping(self) -> str:
        return "pong"

    @rpc
    def backlog(self, communication: Communication) -> int:
        raise NotImplementedError


class Bare(ObjectProcess):
    """Without a table and without a starting state."""

    note = data_attribute(str)
    scores = data_attribute(int, prefix="score_")


class NotRegistered(ObjectProcess):
    pass


REGISTRY = Registry()
REGISTRY.add_processes(SignUp, Bare)


class Kit:
    """A client on a scripted transport and a clock that moves by hand."""

    def __init__(self, *outcomes: Outcome | Callable[[], Outcome], **options: Any) -> None:
        self.transport = ScriptedTransport(*outcomes)
        self.clock = HandClock()
        self.client = Client(
            REGISTRY, ClientOptions(worker_url="http://worker", **options), transport=self.transport, clock=self.clock
        )

    @property
    def body(self) -> Any:
        """What was sent in the only request."""
        (body,) = self.transport.bodies
        return body
