"""Short ways to say what the tests of the core do again and again."""

from typing import Any

from server_stub.core.call_events import CallReturned
from server_stub.core.client_events import PublishMessages, StartProcess
from server_stub.core.outcomes import CallFailure, FailureKind, StateAnswered, Verdict
from server_stub.core.timer_events import TimerFired
from tests.support.core_bench import CoreBench
from xdb_sdk.protocol import (
    CloseType,
    CommandRequestBody,
    ExecuteAnswer,
    InternalQueueCommandRequest,
    Message,
    MovementBody,
    PublishRequest,
    StartRequest,
    StateDecisionBody,
    StateOptionsConfig,
    ThreadCloseDecision,
    TimerCommandRequest,
    WaitingType,
    WaitUntilAnswer,
)

SKIP = StateOptionsConfig(skip_wait_until=True)
WAITS = StateOptionsConfig()


def start_request(process_id: str = "p", **changes: Any) -> StartRequest:
    """Give a start of a process whose starting state S skips wait_until."""
    request = StartRequest(
        process_id=process_id,
        process_type="T",
        worker_url="http://worker",
        start_state_id="S",
        start_state_options=SKIP,
    )
    return request.model_copy(update=changes)


def started(bench: CoreBench, **changes: Any) -> str:
    """Start a process and give its execution id."""
    process_execution_id = f"e-{len(bench.processes) + 1}"
    bench.commit_one(StartProcess(start_request(**changes), process_execution_id))
    return process_execution_id


def next_states(*state_ids: str, options: StateOptionsConfig = SKIP) -> StateDecisionBody:
    """Give a decision to go to states."""
    return StateDecisionBody(next_states=tuple(MovementBody(state_id=s, options=options) for s in state_ids))


def ending(close_type: CloseType, output: Any = None) -> StateDecisionBody:
    """Give a closing decision."""
    return StateDecisionBody(thread_close_decision=ThreadCloseDecision(close_type=close_type, close_output=output))


COMPLETE = ending(CloseType.GRACEFUL_COMPLETE_PROCESS)
FORCE_COMPLETE = ending(CloseType.FORCE_COMPLETE_PROCESS)
FORCE_FAIL = ending(CloseType.FORCE_FAIL_PROCESS)
DEAD_END = ending(CloseType.DEAD_END)


def executed(bench: CoreBench, state: str, decision: StateDecisionBody, **effects: Any) -> CallReturned:
    """Give the event that a state's execute has returned."""
    answer = ExecuteAnswer(state_decision=decision, **effects)
    return CallReturned(bench.call(state), StateAnswered(answer))


def waited(bench: CoreBench, state: str, request: CommandRequestBody, **effects: Any) -> CallReturned:
    """Give the event that a state's wait_until has returned."""
    answer = WaitUntilAnswer(command_request=request, **effects)
    return CallReturned(bench.call(state), StateAnswered(answer))


def failed(
    bench: CoreBench, state: str, *, retryable: bool = True, first_attempt_at_ms: int | None = None
) -> CallReturned:
    """Give the event that the attempt of a state has failed."""
    failure = CallFailure(
        FailureKind.WORKER_ERROR, "ValueError", "boom", 424, retryable, first_attempt_at_ms=first_attempt_at_ms
    )
    return CallReturned(bench.call(state), failure)


def execute(bench: CoreBench, state: str, decision: StateDecisionBody, **effects: Any) -> None:
    """Let a state's execute return."""
    assert bench.commit_one(executed(bench, state, decision, **effects)) is Verdict.APPLIED


def wait(bench: CoreBench, state: str, request: CommandRequestBody, **effects: Any) -> None:
    """Let a state's wait_until return."""
    assert bench.commit_one(waited(bench, state, request, **effects)) is Verdict.APPLIED


def queue(name: str, count: int = 1, command_id: str | None = None) -> InternalQueueCommandRequest:
    """Give a queue command."""
    return InternalQueueCommandRequest(queue_name=name, count=count, command_id=command_id)


def timer(duration_ms: int, command_id: str | None = None) -> TimerCommandRequest:
    """Give a timer command."""
    return TimerCommandRequest(duration_ms=duration_ms, command_id=command_id)


def any_of(*queues: InternalQueueCommandRequest, timers: tuple[TimerCommandRequest, ...] = ()) -> CommandRequestBody:
    """Give a request that one command satisfies."""
    return CommandRequestBody(waiting_type=WaitingType.ANY, internal_queue_commands=queues, timer_commands=timers)


def all_of(*queues: InternalQueueCommandRequest, timers: tuple[TimerCommandRequest, ...] = ()) -> CommandRequestBody:
    """Give a request that needs all its commands."""
    return CommandRequestBody(waiting_type=WaitingType.ALL, internal_queue_commands=queues, timer_commands=timers)


def publish(bench: CoreBench, *messages: tuple[str, Any] | Message, process_id: str = "p") -> int:
    """Publish messages from outside and say how many were new."""
    wire = tuple(m if isinstance(m, Message) else Message(queue_name=m[0], payload=m[1]) for m in messages)
    answer = bench.commit_one(PublishMessages(PublishRequest(process_id=process_id, messages=wire)))
    return int(answer.published)


def fire_due_timers(bench: CoreBench) -> None:
    """Fire every timer that has reached its instant, in one transaction."""
    bench.commit(*(TimerFired(key) for key in bench.due_timers()))


def waiting_state(bench: CoreBench, state_id: str, request: CommandRequestBody) -> str:
    """Start a process on its own whose state waits for `request`, and give the state execution's id."""
    started(bench, start_state_id=state_id, start_state_options=WAITS)
    wait(bench, f"{state_id}-1", request)
    return f"{state_id}-1"


def received(bench: CoreBench, state: str) -> list[list[Any]]:
    """Give the payloads of each queue command that execute is given."""
    results = bench.state(state).command_results
    assert results is not None, f"{state} has not been triggered"
    return [[message.payload for message in result.messages] for result in results.internal_queue_results]
