"""Random processes whose history tells at any point how they are, so that a reset can go on from there."""

from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from pydantic_core import from_json

from server_stub.core.call_events import CallReturned, RpcReturned
from server_stub.core.client_events import PublishMessages
from server_stub.core.model import ProcessExecution, QueuedMessage, StateExecution, Wait
from server_stub.core.outcomes import StateAnswered
from server_stub.core.past import Past, rebuild
from server_stub.core.refusals import Refused
from server_stub.core.reset import ResetProcess
from tests.support.core_bench import CoreBench
from tests.unit.core.test_properties import QUEUES, RandomProcesses, decisions, models, requests
from xdb_sdk.protocol import (
    CloseType,
    CommandRequestBody,
    ErrorSubType,
    ExecuteAnswer,
    Message,
    PublishRequest,
    ResetRequest,
    ResetType,
    RpcAnswer,
    StateApi,
    StateDecisionBody,
    ThreadCloseDecision,
    WaitUntilAnswer,
)

notes = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 9), max_size=2)
with_output = models(
    StateDecisionBody,
    thread_close_decision=models(
        ThreadCloseDecision,
        close_type=st.sampled_from([CloseType.DEAD_END, CloseType.GRACEFUL_COMPLETE_PROCESS]),
        close_output=st.none() | st.integers(0, 9),
    ),
)


def as_it_is(bench: CoreBench, process_execution_id: str) -> dict[str, Any]:
    """Give what a reset goes on with of an execution, as the tables have it."""
    states = [state for key, state in bench.states.items() if key[0] == process_execution_id]
    messages = [message for key, message in sorted(bench.messages.items()) if key[0] == process_execution_id]
    known = {key[1:] for key in bench.known_message_ids if key[0] == process_execution_id}
    local_attributes = bench.local_attributes.get(process_execution_id, {})
    values = {name: from_json(value) for name, value in local_attributes.items()}
    return _comparable(bench.processes[process_execution_id], states, messages, known, values)


def as_told(past: Past) -> dict[str, Any]:
    """Give the same, as the history has it."""
    execution = past.execution
    messages = [message for queue in execution.queues.values() for message in queue]
    messages.sort(key=lambda message: message.sequence_id)
    states = execution.states.values()
    return _comparable(execution.process, states, messages, execution.known_message_ids, past.local_attributes)


def _comparable(
    process: ProcessExecution,
    states: Iterable[StateExecution],
    messages: Iterable[QueuedMessage],
    known_message_ids: Iterable[tuple[str, ...]],
    local_attributes: dict[str, Any],
) -> dict[str, Any]:
    return {
        "process": (
            process.state_counters,
            process.outputs,
            process.graceful_complete_requested,
            process.remembered_skips,
            process.next_sequence_id,
            process.next_wait_order,
        ),
        "states": {
            state.key.state_execution_id: (
                (state.input, state.options, state.recover_from, state.status, state.output),
                (state.wait_until_status, state.execute_status, state.command_results, state.state_locals)
                if state.is_open
                else None,
                None if state.wait is None else _without_instants(state.wait),
            )
            for state in states
        },
        "messages": [(m.sequence_id, m.queue_name, m.message_id, m.payload) for m in messages],
        "known_message_ids": set(known_message_ids),
        "local_attributes": local_attributes,
    }


def _without_instants(wait: Wait) -> tuple[Any, ...]:
    """Leave out when timers fire: a reset moves that."""
    timers = [timer.command_id for timer in wait.commands.timer_commands]
    queues = wait.commands.internal_queue_commands
    return wait.order, wait.commands.waiting_type, timers, queues, wait.timer_statuses, wait.received


class RandomHistories(RandomProcesses):
    """Any events, with resets to any event among them."""

    def __init__(self) -> None:
        super().__init__()
        self.as_it_was: dict[tuple[str, int], dict[str, Any]] = {}
        """How executions were after an event."""

    @rule(data=st.data(), request=requests, decision=with_output, noted=notes)
    @precondition(lambda self: self.bench.due_calls())
    def answer_with_values(
        self, data: st.DataObject, request: CommandRequestBody, decision: StateDecisionBody, noted: dict[str, int]
    ) -> None:
        call = data.draw(st.sampled_from(self.bench.due_calls()))
        answer: WaitUntilAnswer | ExecuteAnswer
        if call.key.api is StateApi.WAIT_UNTIL:
            answer = WaitUntilAnswer(command_request=request, state_locals=noted, write_local_attributes=noted)
        else:
            answer = ExecuteAnswer(state_decision=decision, write_local_attributes=noted)
        self._submit(CallReturned(call.key, StateAnswered(answer)), now=True)

    @rule(decision=decisions | with_output, noted=notes)
    def rpc_with_values(self, decision: StateDecisionBody, noted: dict[str, int]) -> None:
        answer = RpcAnswer(state_decision=decision, write_local_attributes=noted)
        self._submit(RpcReturned(self.bench.current("p").process_execution_id, answer), now=True)

    @rule(queue_name=st.sampled_from(QUEUES), message_id=st.sampled_from("xyz"))
    def publish_with_id(self, queue_name: str, message_id: str) -> None:
        (message,) = self._messages([queue_name])
        named = Message(queue_name=queue_name, payload=message.payload, message_id=message_id)
        self._submit(PublishMessages(PublishRequest(process_id="p", messages=(named,))), now=True)

    @rule(data=st.data(), skips=st.booleans())
    def reset(self, data: st.DataObject, skips: bool) -> None:
        base_id = self.bench.current("p").process_execution_id
        event_id = data.draw(st.integers(1, len(self.bench.history[base_id])))
        request = ResetRequest(
            process_id="p", reset_type=ResetType.EVENT_ID, event_id=event_id, skip_messages=skips, skip_rpcs=skips
        )
        (answer,) = self.bench.commit(ResetProcess(request, f"e-{len(self.bench.processes) + 1}"))
        if isinstance(answer, Refused):
            assert answer.sub_type is ErrorSubType.RESET_POINT_NOT_FOUND
        elif skips and (base_id, answer.event_id) in self.as_it_was:
            assert as_it_is(self.bench, answer.process_execution_id) == self.as_it_was[base_id, answer.event_id]

    @invariant()
    def the_history_tells_how_the_execution_is(self) -> None:
        if not self.bench.processes:
            return
        process = self.bench.current("p")
        process_execution_id = process.process_execution_id
        events = self.bench.history[process_execution_id]
        rows = [state for key, state in self.bench.states.items() if key[0] == process_execution_id]
        bare = ProcessExecution(process_execution_id, "default", "p", "T", "http://worker", 0)

        past = rebuild(bare, events, rows)

        assert past.has_ended == (not process.is_running)
        if process.is_running:
            is_now = as_it_is(self.bench, process_execution_id)
            assert as_told(past) == is_now
            self.as_it_was[process_execution_id, len(events)] = is_now


TestRandomHistories = RandomHistories.TestCase
TestRandomHistories.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
