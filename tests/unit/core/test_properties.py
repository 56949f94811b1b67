"""Random processes and event orders against the invariants of semantics 9.6.

Whatever workers answer, in whatever order and transaction, `CoreBench` checks after each commit that the tables are
consistent; here also that no message is lost or given out twice, and that nothing is stuck.
"""

from collections import Counter
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from server_stub.core.call_events import CallReturned, RpcReturned
from server_stub.core.client_events import PublishMessages, StartProcess, StopProcess
from server_stub.core.events import Event
from server_stub.core.model import CallKey
from server_stub.core.operator_events import CompleteState, PauseProcess, ResumeProcess, RetryState, SkipTimer
from server_stub.core.outcomes import CallFailure, FailureKind, StateAnswered
from server_stub.core.timer_events import TimerFired
from tests.support.core_bench import CoreBench
from tests.unit.core.drive import start_request
from xdb_sdk.protocol import (
    CloseType,
    CommandRequestBody,
    CompleteStateRequest,
    ConditionalClose,
    ExecuteAnswer,
    IdReusePolicy,
    InternalQueueCommandRequest,
    Message,
    MovementBody,
    PauseRequest,
    ProcessStatus,
    PublishRequest,
    RecoveryConfig,
    ResumeRequest,
    RetryPolicyConfig,
    RetryStateRequest,
    RpcAnswer,
    SkipTimerRequest,
    StateApi,
    StateDecisionBody,
    StateOptionsConfig,
    StopRequest,
    ThreadCloseDecision,
    TimerCommandRequest,
    WaitingType,
    WaitUntilAnswer,
    WireModel,
)

QUEUES = ["q1", "q2"]
STATES = ["A", "B", "C"]

ModelT = TypeVar("ModelT", bound=WireModel)


def models(model: type[ModelT], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[ModelT]:
    """Draw wire models; `builds` would go by their camelCase signature."""
    return st.fixed_dictionaries(dict(fields)).map(model.model_validate)


retry_policies = st.sampled_from(
    [RetryPolicyConfig(), RetryPolicyConfig(maximum_attempts=1), RetryPolicyConfig(maximum_attempts=2)]
)
plain_options = models(
    StateOptionsConfig,
    skip_wait_until=st.booleans(),
    wait_until_api_retry_policy=retry_policies,
    execute_api_retry_policy=retry_policies,
    proceed_to_execute_when_wait_until_retry_exhausted=st.booleans(),
)
recoveries = st.none() | models(RecoveryConfig, state_id=st.sampled_from(STATES), options=plain_options)
state_options = st.builds(
    lambda options, recovery: options.model_copy(update={"execute_recovery": recovery}), plain_options, recoveries
)
movements = models(MovementBody, state_id=st.sampled_from(STATES), options=state_options)
timers = st.lists(models(TimerCommandRequest, duration_ms=st.sampled_from([0, 1_000, 60_000])), max_size=2).map(tuple)
queue_commands = st.lists(
    models(InternalQueueCommandRequest, queue_name=st.sampled_from(QUEUES), count=st.integers(0, 3)), max_size=3
).map(tuple)
requests = models(
    CommandRequestBody,
    waiting_type=st.sampled_from([WaitingType.ANY, WaitingType.ALL, WaitingType.EMPTY]),
    timer_commands=timers,
    internal_queue_commands=queue_commands,
)
decisions = st.one_of(
    models(StateDecisionBody, next_states=st.lists(movements, max_size=3).map(tuple)),
    models(
        StateDecisionBody,
        thread_close_decision=models(
            ThreadCloseDecision,
            close_type=st.sampled_from(
                [CloseType.DEAD_END, CloseType.DEAD_END, CloseType.GRACEFUL_COMPLETE_PROCESS, *CloseType]
            ),
        ),
    ),
    models(
        StateDecisionBody,
        conditional_close=models(
            ConditionalClose,
            queue_names=st.just(("q1",)),
            close_type=st.sampled_from([CloseType.FORCE_COMPLETE_PROCESS, CloseType.GRACEFUL_COMPLETE_PROCESS]),
            next_states=movements.map(lambda movement: (movement,)),
        ),
    ),
)


class RandomProcesses(RuleBasedStateMachine):
    """One process id, any events, several in one transaction, answers late and twice."""

    old_calls = Bundle("old_calls")

    def __init__(self) -> None:
        super().__init__()
        self.bench = CoreBench()
        self.published: Counter[tuple[str, int]] = Counter()
        self.delivered: dict[tuple[str, str], tuple[Any, ...]] = {}
        self.next_payload = 0
        self.pending: list[Event[Any]] = []

    @initialize(options=state_options)
    def begin(self, options: StateOptionsConfig) -> None:
        self._start(options)

    def _start(self, options: StateOptionsConfig) -> None:
        request = start_request(
            start_state_options=options, id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING, timeout_ms=3_600_000
        )
        self.bench.commit_one(StartProcess(request, f"e-{len(self.bench.processes) + 1}"))

    def _messages(self, queues: list[str]) -> tuple[Message, ...]:
        messages = []
        for queue_name in queues:
            self.next_payload += 1
            messages.append(Message(queue_name=queue_name, payload=self.next_payload))
        return tuple(messages)

    def _submit(self, event: Event[Any], *, now: bool) -> None:
        self.pending.append(event)
        if now:
            events, self.pending = self.pending, []
            self.bench.commit(*events)

    @rule(options=state_options)
    @precondition(lambda self: self.bench.current("p").status is not ProcessStatus.RUNNING)
    def start_again(self, options: StateOptionsConfig) -> None:
        self._start(options)

    @rule(
        target=old_calls,
        data=st.data(),
        request=requests,
        decision=decisions,
        queues=st.lists(st.sampled_from(QUEUES), max_size=2),
        now=st.booleans(),
    )
    @precondition(lambda self: self.bench.due_calls())
    def answer(
        self,
        data: st.DataObject,
        request: CommandRequestBody,
        decision: StateDecisionBody,
        queues: list[str],
        now: bool,
    ) -> CallKey:
        call = data.draw(st.sampled_from(self.bench.due_calls()))
        answer: WaitUntilAnswer | ExecuteAnswer
        if call.key.api is StateApi.WAIT_UNTIL:
            answer = WaitUntilAnswer(command_request=request, publish=self._messages(queues))
        else:
            answer = ExecuteAnswer(state_decision=decision, publish=self._messages(queues))
        self._submit(CallReturned(call.key, StateAnswered(answer)), now=now)
        return call.key

    @rule(data=st.data(), retryable=st.booleans(), now=st.booleans())
    @precondition(lambda self: self.bench.due_calls())
    def fail(self, data: st.DataObject, retryable: bool, now: bool) -> None:
        call = data.draw(st.sampled_from(self.bench.due_calls()))
        failure = CallFailure(FailureKind.TIMEOUT, "Timeout", "too slow", retryable=retryable)
        self._submit(CallReturned(call.key, failure), now=now)

    @rule(key=old_calls, decision=decisions)
    def answer_late(self, key: CallKey, decision: StateDecisionBody) -> None:
        if key.api is StateApi.EXECUTE:
            answer = StateAnswered(ExecuteAnswer(state_decision=decision))
            self._submit(CallReturned(key, answer), now=True)

    @rule(queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=4), now=st.booleans())
    def publish(self, queues: list[str], now: bool) -> None:
        request = PublishRequest(process_id="p", messages=self._messages(queues))
        self._submit(PublishMessages(request), now=now)

    @rule(movement=movements, queues=st.lists(st.sampled_from(QUEUES), max_size=2))
    def rpc(self, movement: MovementBody, queues: list[str]) -> None:
        decision = StateDecisionBody(next_states=(movement,))
        answer = RpcAnswer(state_decision=decision, publish=self._messages(queues))
        self._submit(RpcReturned(self.bench.current("p").process_execution_id, answer), now=True)

    @rule(seconds=st.sampled_from([1, 60, 4_000]))
    def let_time_pass(self, seconds: int) -> None:
        self.bench.now_ms += seconds * 1_000
        for key in self.bench.due_timers():
            self.bench.commit(TimerFired(key))

    @rule(state_id=st.sampled_from(STATES), number=st.integers(1, 3), remember=st.booleans())
    def skip(self, state_id: str, number: int, remember: bool) -> None:
        request = SkipTimerRequest(process_id="p", state_id=state_id, number=number, index=0, remember=remember)
        self._submit(SkipTimer(request), now=True)

    @rule(is_pause=st.booleans(), now=st.booleans())
    def pause_or_resume(self, is_pause: bool, now: bool) -> None:
        if is_pause:
            self._submit(PauseProcess(PauseRequest(process_id="p")), now=now)
        else:
            self._submit(ResumeProcess(ResumeRequest(process_id="p")), now=now)

    @rule(state_id=st.sampled_from(STATES), number=st.integers(1, 3), resets=st.booleans())
    def retry(self, state_id: str, number: int, resets: bool) -> None:
        request = RetryStateRequest(process_id="p", state_id=state_id, number=number, reset_attempts=resets)
        self._submit(RetryState(request), now=True)

    @rule(state_id=st.sampled_from(STATES), number=st.integers(1, 3), decision=decisions, now=st.booleans())
    def complete(self, state_id: str, number: int, decision: StateDecisionBody, now: bool) -> None:
        request = CompleteStateRequest(process_id="p", state_id=state_id, number=number, decision=decision)
        self._submit(CompleteState(request), now=now)

    @rule()
    def stop(self) -> None:
        self._submit(StopProcess(StopRequest(process_id="p")), now=True)

    @invariant()
    def every_message_is_in_a_queue_or_with_one_state(self) -> None:
        held: Counter[int] = Counter(message.payload for message in self.bench.messages.values())
        for state in self.bench.states.values():
            if state.wait is not None:
                held.update(m.payload for messages in state.wait.received if messages for m in messages)
            if state.command_results is not None:
                for result in state.command_results.internal_queue_results:
                    held.update(message.payload for message in result.messages)
        assert all(count == 1 for count in held.values()), f"given out twice: {held}"

    @invariant()
    def results_are_the_same_on_every_attempt(self) -> None:
        for key, state in self.bench.states.items():
            if state.command_results is None:
                continue
            results = tuple(
                tuple(message.payload for message in result.messages)
                for result in state.command_results.internal_queue_results
            )
            identity = (key.process_execution_id, key.state_execution_id)
            assert self.delivered.setdefault(identity, results) == results

    @invariant()
    def messages_of_a_queue_are_taken_in_order(self) -> None:
        for state in self.bench.states.values():
            if state.wait is None:
                continue
            for messages in state.wait.received:
                payloads = [message.payload for message in messages or ()]
                assert payloads == sorted(payloads)


TestRandomProcesses = RandomProcesses.TestCase
TestRandomProcesses.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
