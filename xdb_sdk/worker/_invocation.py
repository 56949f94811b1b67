"""One call of user code: what the method is given, and the answer that is made of what it did."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from xdb_sdk._command import CommandRequest, CommandResults
from xdb_sdk._communication import Communication, CommunicationEffects
from xdb_sdk._context import ProcessContext, StateContext
from xdb_sdk._decision import decision_to_wire
from xdb_sdk._definition import MethodDefinition, ParameterRole, ProcessDefinition, RpcDefinition, StateDefinition
from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk._persistence import Persistence, PersistenceEffects, missing_read
from xdb_sdk.protocol import (
    ExecuteAnswer,
    ExecuteCall,
    Json,
    ReadRequest,
    RpcAnswer,
    RpcCall,
    StateDecisionBody,
    WaitUntilAnswer,
    WaitUntilCall,
)
from xdb_sdk.worker._calls import RunningCall

CallT = TypeVar("CallT", bound=WaitUntilCall | ExecuteCall | RpcCall)
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

_NOTHING_STORED = PersistenceEffects(write_local_attributes={}, state_locals={})
_NOTHING_SENT = CommunicationEffects(state_decision=StateDecisionBody())


class Invocation(ABC, Generic[CallT, AnswerT_co]):
    """A method about to be called for one `call`. Only what the method declares is built.

    Attributes:
        method: The method.
        instance: What it is a method of.
        call: As the server sent it.
        where: The method, for messages and logs.
    """

    context_type: type[ProcessContext] = StateContext
    read: ReadRequest
    input_where: str
    read_only = False
    queue_sizes: Mapping[str, int] | None = None

    def __init__(
        self, process: ProcessDefinition, method: MethodDefinition, instance: object, call: CallT, where: str
    ) -> None:
        self.process = process
        self.method = method
        self.instance = instance
        self.call = call
        self.where = where
        self._persistence: Persistence | None = None
        self._communication: Communication | None = None

    def missing_read(self) -> ReadRequest | None:
        """Say what the server must load before the method can be called, if it has not (semantics 7.4)."""
        return missing_read(self.read, self.call.loaded)

    def arguments(self, running: RunningCall) -> dict[str, Any]:
        """Decode what the method declares.

        Raises:
            ValueError: The call does not fit the definition, such as an input of another type.
            OverflowError: It tells of a time that no calendar has.
        """
        return self.method.arguments({role: self._argument(role, running) for role in self.method.roles})

    @abstractmethod
    def answer(self, result: Any) -> AnswerT_co:
        """Encode what the method returned, and what it did on the way.

        Raises:
            ValueError: It returned something that cannot be an answer.
        """

    def _argument(self, role: ParameterRole, running: RunningCall) -> Any:
        match role:
            case ParameterRole.CONTEXT | ParameterRole.STATE_CONTEXT:
                return self.context_type.from_wire(
                    self.call.context, self.process, remaining=running.remaining, is_stopped=running.is_stopped
                )
            case ParameterRole.INPUT:
                return self.process.encoder.decode(self.call.input, self.method.input_type, self.input_where)
            case ParameterRole.COMMAND_RESULTS:
                return self._command_results()
            case ParameterRole.PERSISTENCE:
                self._persistence = Persistence(
                    self.process,
                    self.call.loaded,
                    where=self.where,
                    state_locals=self._state_locals(),
                    read_only=self.read_only,
                )
                return self._persistence
            case ParameterRole.COMMUNICATION:
                self._communication = Communication(
                    self.process, where=self.where, queue_sizes=self.queue_sizes, read_only=self.read_only
                )
                return self._communication

    def _command_results(self) -> CommandResults:
        return CommandResults()

    def _state_locals(self) -> Mapping[str, Json] | None:
        return None

    def _stored(self) -> PersistenceEffects:
        return self._persistence.effects() if self._persistence else _NOTHING_STORED

    def _sent(self) -> CommunicationEffects:
        return self._communication.effects() if self._communication else _NOTHING_SENT


class WaitUntilInvocation(Invocation[WaitUntilCall, WaitUntilAnswer]):
    """A wait_until to be called."""

    def __init__(
        self, process: ProcessDefinition, state: StateDefinition, method: MethodDefinition, call: WaitUntilCall
    ) -> None:
        where = f"wait_until of state {state.state_id!r} of {process.process_type}"
        super().__init__(process, method, state.state, call, where)
        self.read = state.wire_options.wait_until_read
        self.input_where = f"input of state {state.state_id!r}"

    def answer(self, result: Any) -> WaitUntilAnswer:
        """Encode the commands."""
        if not isinstance(result, CommandRequest):
            raise InvalidArgumentError(
                f"{self.where} returned a {type(result).__name__}: "
                "return CommandRequest.empty() or another CommandRequest"
            )
        stored = self._stored()
        return WaitUntilAnswer(
            command_request=result.to_wire(self.process),
            state_locals=stored.state_locals,
            publish=self._sent().publish,
            write_tables=stored.write_tables,
            write_local_attributes=stored.write_local_attributes,
            recorded_events=stored.recorded_events,
        )

    def _state_locals(self) -> Mapping[str, Json]:
        return {}


class ExecuteInvocation(Invocation[ExecuteCall, ExecuteAnswer]):
    """An execute to be called."""

    def __init__(self, process: ProcessDefinition, state: StateDefinition, call: ExecuteCall) -> None:
        where = f"execute of state {state.state_id!r} of {process.process_type}"
        super().__init__(process, state.execute, state.state, call, where)
        self.read = state.wire_options.execute_read
        self.input_where = f"input of state {state.state_id!r}"

    def answer(self, result: Any) -> ExecuteAnswer:
        """Encode the decision."""
        stored = self._stored()
        return ExecuteAnswer(
            state_decision=decision_to_wire(result, self.process),
            publish=self._sent().publish,
            write_tables=stored.write_tables,
            write_local_attributes=stored.write_local_attributes,
            recorded_events=stored.recorded_events,
        )

    def _command_results(self) -> CommandResults:
        return CommandResults.from_wire(self.call.command_results, self.process)

    def _state_locals(self) -> Mapping[str, Json]:
        return self.call.state_locals


class RpcInvocation(Invocation[RpcCall, RpcAnswer]):
    """An RPC method to be called."""

    context_type = ProcessContext

    def __init__(self, process: ProcessDefinition, rpc: RpcDefinition, call: RpcCall) -> None:
        super().__init__(process, rpc.method, process.process, call, f"RPC {rpc.name!r} of {process.process_type}")
        self.read = rpc.wire_read
        self.read_only = rpc.read_only
        self.queue_sizes = call.queue_sizes
        self.input_where = f"input of RPC {rpc.name!r}"
        self._output_where = f"output of RPC {rpc.name!r}"

    def answer(self, result: Any) -> RpcAnswer:
        """Encode the return value and the decision."""
        stored, sent = self._stored(), self._sent()
        return RpcAnswer(
            output=self.process.encoder.encode(result, self.method.output_type, self._output_where),
            state_decision=sent.state_decision,
            publish=sent.publish,
            write_tables=stored.write_tables,
            write_local_attributes=stored.write_local_attributes,
            recorded_events=stored.recorded_events,
        )
