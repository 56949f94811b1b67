"""RPCs are called once, within their timeout, and committed when they change something."""

import asyncio
from typing import Any

import pytest

from server_stub.core.outcomes import CallFailure, FailureKind, RpcAnswered, RpcOutcome, Verdict
from server_stub.core.ports import StoreUnavailable
from server_stub.dispatch.dispatcher import AttributesUnavailable, DispatcherClosed, WorkerBusy
from server_stub.dispatch.jobs import RpcInvocation
from server_stub.dispatch.options import DispatchOptions
from tests.support.dispatching import (
    DONE,
    USER_ROW,
    Answer,
    World,
    dispatching,
    locking_options,
    make_call,
    make_process,
)
from xdb_sdk.protocol import RPC_PATH, Json, ReadRequest

CHANGE = {"output": "out", "publish": [{"queueName": "q"}]}
LOCK_AGE = locking_options("age").execute_read


def invocation(number: int = 1, **changes: Any) -> RpcInvocation:
    defaults: dict[str, Any] = {"input": "in", "timeout_ms": 10_000, "read": ReadRequest()}
    return RpcInvocation(make_process(number, tables=(USER_ROW,)), "verify", **(defaults | changes))


class Commits:
    """Commits every answer, after the verdicts given."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = list(verdicts)
        self.answered: list[RpcAnswered] = []

    async def __call__(self, answered: RpcAnswered) -> Verdict:
        self.answered.append(answered)
        return self.verdicts.pop(0) if self.verdicts else Verdict.APPLIED


async def change(body: Json) -> Json:
    return CHANGE


async def call(world: World, commits: Commits, **changes: Any) -> RpcOutcome:
    return await world.dispatcher.rpc(invocation(**changes), commits)


async def test_answer_that_changes_something_is_committed() -> None:
    commits = Commits()

    async with dispatching(change) as world:
        outcome = await call(world, commits)

    assert isinstance(outcome, RpcAnswered)
    assert outcome.answer.output == "out"
    assert commits.answered == [outcome]


async def test_answer_that_changes_nothing_is_not_committed() -> None:
    commits = Commits()

    async with dispatching() as world:
        outcome = await call(world, commits)

    assert isinstance(outcome, RpcAnswered)
    assert commits.answered == []


async def test_worker_is_told_who_is_called_and_for_how_long() -> None:
    async with dispatching() as world:
        world.store.queue_sizes = {"q": 3}
        await call(world, Commits(), needs_queue_sizes=True)

    [body] = world.worker.calls
    assert (body["rpcName"], body["input"], body["queueSizes"]) == ("verify", "in", {"q": 3})
    context = body["context"]
    assert (context["processExecutionId"], context["timeoutMs"]) == ("e-1", 10_000)
    assert "attempt" not in context
    assert world.worker.operations == ["rpc"]


async def test_worker_without_batch_endpoint_gets_a_single_call() -> None:
    async with dispatching(change, has_batch_endpoint=False) as world:
        outcome = await call(world, Commits())

    assert isinstance(outcome, RpcAnswered)
    assert world.worker.requests[-1][0] == RPC_PATH


async def test_slow_handler_is_a_timeout_and_nothing_is_committed() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(60)
        return CHANGE

    commits = Commits()
    async with dispatching(handler) as world:
        outcome = await call(world, commits, timeout_ms=3_000)
        at_s = asyncio.get_running_loop().time()
        await asyncio.sleep(100)

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.TIMEOUT
    assert at_s == 3
    assert commits.answered == []


@pytest.mark.parametrize("status", [400, 404, 424, 500])
async def test_handler_that_fails_is_not_called_again(status: int) -> None:
    async def handler(body: Json) -> Json:
        return Answer(status, {"errorType": "RpcNotFound", "detail": "no RPC"})

    async with dispatching(handler) as world:
        outcome = await call(world, Commits())

    assert outcome == CallFailure(FailureKind.WORKER_ERROR, "RpcNotFound", "no RPC", status)
    assert len(world.worker.calls) == 1


async def test_rpc_is_made_as_soon_as_a_busy_worker_has_room() -> None:
    async def handler(body: Json) -> Json:
        if asyncio.get_running_loop().time() < 3:
            return Answer(429, {"detail": "full"}, retry_after_s=1)
        return CHANGE

    async with dispatching(handler) as world:
        outcome = await call(world, Commits())

    assert isinstance(outcome, RpcAnswered)
    assert asyncio.get_running_loop().time() == pytest.approx(3)


async def test_worker_that_stays_busy_is_told_to_the_caller_at_the_timeout() -> None:
    async def handler(body: Json) -> Json:
        return Answer(429, {"detail": "40 calls are running"}, retry_after_s=1)

    async with dispatching(handler) as world:
        with pytest.raises(WorkerBusy, match=r"no room .* 10 s .*40 calls are running") as refused:
            await call(world, Commits())

    assert not refused.value.may_have_run
    assert asyncio.get_running_loop().time() == 10
    assert 4 < len(world.worker.calls) < 12


async def test_rpc_that_has_run_and_meets_a_busy_worker_tells_that_it_has_run() -> None:
    async def handler(body: Json) -> Json:
        return CHANGE if len(world.worker.calls) == 1 else Answer(429, None, retry_after_s=1)

    async with dispatching(handler) as world:
        world.store.rows["user"] = {"age": 7}
        with pytest.raises(WorkerBusy) as refused:
            await call(world, Commits(Verdict.READ_SET_CHANGED), read=LOCK_AGE)

    assert refused.value.may_have_run


async def test_worker_that_state_calls_keep_full_has_room_for_rpcs() -> None:
    running = 0

    async def handler(body: Json) -> Json:
        nonlocal running
        if running == 10:
            return Answer(429, {"detail": "full"}, retry_after_s=1)
        running += 1
        await asyncio.sleep(0 if "rpcName" in body else 6)
        running -= 1
        return CHANGE if "rpcName" in body else DONE

    waits_s = []
    async with dispatching(handler) as world:
        world.dispatcher.dispatch(make_call(number) for number in range(200))
        for _ in range(40):
            await asyncio.sleep(1)
            asked_s = asyncio.get_running_loop().time()
            assert isinstance(await call(world, Commits()), RpcAnswered)
            waits_s.append(asyncio.get_running_loop().time() - asked_s)

    assert max(waits_s) <= 6
    assert sum(wait_s > 0.1 for wait_s in waits_s) <= 2


async def test_attributes_that_cannot_be_read_are_no_timeout_of_the_worker() -> None:
    async with dispatching(change) as world:
        world.store.errors = [StoreUnavailable("busy")] * 50
        with pytest.raises(AttributesUnavailable, match=r"attributes .* could not be read") as refused:
            await call(world, Commits(), read=LOCK_AGE)

    assert not refused.value.may_have_run
    assert world.worker.calls == []


async def test_rpc_that_cannot_be_written_is_a_fault_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async with dispatching(change) as world:
        outcome = await call(world, Commits(), input=object())

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.INTERNAL
    assert [record.message for record in caplog.records] == ["call cannot be written", "call of worker failed"]


async def test_rpc_passes_state_calls_that_wait() -> None:
    async def handler(body: Json) -> Json:
        if "rpcName" in body:
            return CHANGE
        await asyncio.sleep(5)
        return DONE

    async with dispatching(handler, options=DispatchOptions(max_calls_in_flight=2)) as world:
        world.dispatcher.dispatch(make_call(number) for number in range(10))
        await asyncio.sleep(1)
        outcome = await call(world, Commits())

    assert isinstance(outcome, RpcAnswered)
    assert asyncio.get_running_loop().time() == 1


async def test_rpc_that_asks_for_other_data_is_called_with_it() -> None:
    async def handler(body: Json) -> Json:
        if not body.get("loaded"):
            return Answer(406, {"readRequest": {"tables": [{"tableName": "user", "columns": ["age"]}]}})
        return {"output": body["loaded"]["tables"][0]["columns"]["age"]}

    async with dispatching(handler) as world:
        world.store.rows["user"] = {"age": 7}
        outcome = await call(world, Commits())

    assert isinstance(outcome, RpcAnswered)
    assert outcome.answer.output == 7


async def test_table_that_the_execution_is_not_mapped_to_is_a_read_error() -> None:
    read = ReadRequest.model_validate({"tables": [{"table_name": "other", "columns": ["a"]}]})

    async with dispatching() as world:
        outcome = await call(world, Commits(), read=read)

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.DATABASE_READ


async def test_changed_read_set_calls_again_with_fresh_values() -> None:
    commits = Commits(Verdict.READ_SET_CHANGED)

    async with dispatching(change) as world:
        world.store.rows["user"] = {"age": 7}
        outcome = await call(world, commits, read=LOCK_AGE)

    assert isinstance(outcome, RpcAnswered)
    assert len(commits.answered) == 2
    assert world.store.reads == [1, 1]


async def test_read_set_that_keeps_changing_is_a_refused_lock() -> None:
    commits = Commits(*[Verdict.READ_SET_CHANGED] * 50)

    async with dispatching(change) as world:
        world.store.rows["user"] = {"age": 7}
        outcome = await call(world, commits, read=LOCK_AGE)

    assert isinstance(outcome, CallFailure)
    assert outcome.kind is FailureKind.READ_SET_CHANGED
    assert len(commits.answered) == 11


async def test_rpc_waits_for_a_lock_at_most_its_timeout() -> None:
    async def handler(body: Json) -> Json:
        if "rpcName" in body:
            return CHANGE
        await asyncio.sleep(20)
        return DONE

    async with dispatching(handler) as world:
        world.store.rows["user"] = {"age": 7}
        world.dispatcher.dispatch([make_call(1, options=locking_options("age"), tables=(USER_ROW,))])
        refused = await call(world, Commits(), read=LOCK_AGE, timeout_ms=5_000)
        refused_at_s = asyncio.get_running_loop().time()
        granted = await call(world, Commits(), read=LOCK_AGE, timeout_ms=60_000)

    assert isinstance(refused, CallFailure)
    assert refused.kind is FailureKind.READ_SET_CHANGED
    assert refused_at_s == 5
    assert isinstance(granted, RpcAnswered)
    assert asyncio.get_running_loop().time() == 20


@pytest.mark.parametrize("is_failing", [True, False])
async def test_rpc_holds_no_lock_after_it(is_failing: bool) -> None:
    async def handler(body: Json) -> Json:
        return Answer(500) if is_failing else CHANGE

    async with dispatching(handler) as world:
        world.store.rows["user"] = {"age": 7}
        for _ in range(3):
            await call(world, Commits(), read=LOCK_AGE)

    assert asyncio.get_running_loop().time() == 0


async def test_error_of_the_commit_is_passed_on_and_the_lock_released() -> None:
    async def refuse(answered: RpcAnswered) -> Verdict:
        raise LookupError("closed")

    async with dispatching(change) as world:
        world.store.rows["user"] = {"age": 7}
        with pytest.raises(LookupError):
            await world.dispatcher.rpc(invocation(read=LOCK_AGE), refuse)
        outcome = await call(world, Commits(), read=LOCK_AGE)

    assert isinstance(outcome, RpcAnswered)


async def test_caller_that_leaves_releases_its_lock() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(5)
        return CHANGE

    async with dispatching(handler) as world:
        world.store.rows["user"] = {"age": 7}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await call(world, Commits(), read=LOCK_AGE)
        outcome = await call(world, Commits(), read=LOCK_AGE)

    assert isinstance(outcome, RpcAnswered)
    assert asyncio.get_running_loop().time() == 6


async def test_closing_tells_the_callers() -> None:
    async def handler(body: Json) -> Json:
        await asyncio.sleep(50)
        return CHANGE

    async with dispatching(handler) as world:
        running = asyncio.create_task(call(world, Commits(), timeout_ms=60_000))
        await asyncio.sleep(1)
        await world.dispatcher.close(grace_s=2)
        with pytest.raises(DispatcherClosed) as cut_off:
            await running
        with pytest.raises(DispatcherClosed) as refused:
            await call(world, Commits())

    assert (cut_off.value.may_have_run, refused.value.may_have_run) == (True, False)
    assert asyncio.get_running_loop().time() == 3
