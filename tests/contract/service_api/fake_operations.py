"""Operations that keep no state: they answer what a test tells them to, and remember what they were asked."""

import asyncio
from collections import defaultdict

from server_stub.engine.errors import ServiceError
from xdb_sdk.protocol import (
    BulkAnswer,
    CompleteStateAnswer,
    CompleteStateRequest,
    DescribeAnswer,
    DescribeRequest,
    DoneAnswer,
    ErrorBody,
    ErrorSubType,
    GetAttributesAnswer,
    GetAttributesRequest,
    GetHistoryAnswer,
    GetHistoryRequest,
    HistoryEventInfo,
    HistoryEventType,
    ListAnswer,
    ListRequest,
    PauseAnswer,
    PauseRequest,
    ProcessRequest,
    ProcessStatus,
    ProcessSummary,
    PublishAnswer,
    PublishOrStartAnswer,
    PublishOrStartRequest,
    PublishRequest,
    ReplaceWorkerUrlRequest,
    ResetAnswer,
    ResetRequest,
    ResumeRequest,
    RetryStateRequest,
    RpcOrStartAnswer,
    RpcOrStartRequest,
    RpcRequest,
    RpcServiceAnswer,
    SetAttributesRequest,
    SkipTimerRequest,
    StartAnswer,
    StartRequest,
    StopAnswer,
    StopProcessesRequest,
    StopRequest,
    UpdateConfigRequest,
    WaitForCompletionAnswer,
    WaitForCompletionRequest,
    WaitForStateAnswer,
    WaitForStateRequest,
    WireModel,
)

EXECUTION_ID = "0190a8e0-0000-7000-8000-000000000001"
UNKNOWN_PROCESS = "no-such-process"
SUMMARY = ProcessSummary(
    namespace="default",
    process_id="p-1",
    process_execution_id=EXECUTION_ID,
    process_type="Signup",
    status=ProcessStatus.RUNNING,
    is_current=True,
    started_at_ms=1,
)


class FakeOperations:
    """One running process "p-1", and nothing called `UNKNOWN_PROCESS`."""

    def __init__(self) -> None:
        self.asked: list[WireModel] = []
        self.failures: dict[str, Exception] = {}
        """What to raise, by process id."""
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """What a wait for completion waits for, by process id."""

    async def start(self, request: StartRequest) -> StartAnswer:
        self._take(request, request.process_id)
        return StartAnswer(process_execution_id=EXECUTION_ID)

    async def stop(self, request: StopRequest) -> StopAnswer:
        self._find(request)
        return StopAnswer(process_execution_id=EXECUTION_ID, status=ProcessStatus.TERMINATED)

    async def describe(self, request: DescribeRequest) -> DescribeAnswer:
        self._find(request)
        return DescribeAnswer(**SUMMARY.model_dump(), worker_url="http://worker")

    async def get_history(self, request: GetHistoryRequest) -> GetHistoryAnswer:
        self._find(request)
        event = HistoryEventInfo(event_id=1, at_ms=1, event_type=HistoryEventType.STARTED)
        return GetHistoryAnswer(process_execution_id=EXECUTION_ID, has_history=True, events=(event,))

    async def reset(self, request: ResetRequest) -> ResetAnswer:
        self._find(request)
        return ResetAnswer(process_execution_id="e-2", base_process_execution_id=EXECUTION_ID, event_id=1)

    async def list_processes(self, request: ListRequest) -> ListAnswer:
        self._take(request, "")
        return ListAnswer(processes=(SUMMARY,))

    async def publish(self, request: PublishRequest) -> PublishAnswer:
        self._find(request)
        return PublishAnswer(process_execution_id=EXECUTION_ID, published=len(request.messages))

    async def publish_or_start(self, request: PublishOrStartRequest) -> PublishOrStartAnswer:
        self._take(request, request.process_id)
        return PublishOrStartAnswer(process_execution_id=EXECUTION_ID, published=len(request.messages), started=True)

    async def rpc_or_start(self, request: RpcOrStartRequest) -> RpcOrStartAnswer:
        self._take(request, request.process_id)
        return RpcOrStartAnswer(process_execution_id=EXECUTION_ID, output=request.input, started=True)

    async def rpc(self, request: RpcRequest) -> RpcServiceAnswer:
        self._find(request)
        return RpcServiceAnswer(process_execution_id=EXECUTION_ID, output=request.input)

    async def wait_for_completion(self, request: WaitForCompletionRequest) -> WaitForCompletionAnswer:
        self._find(request)
        await self.gates[request.process_id].wait()
        return WaitForCompletionAnswer(process_execution_id=EXECUTION_ID, status=ProcessStatus.COMPLETED)

    async def wait_for_state_completion(self, request: WaitForStateRequest) -> WaitForStateAnswer:
        self._find(request)
        return WaitForStateAnswer(process_execution_id=EXECUTION_ID, process_status=ProcessStatus.COMPLETED)

    async def get_attributes(self, request: GetAttributesRequest) -> GetAttributesAnswer:
        self._find(request)
        return GetAttributesAnswer(process_execution_id=EXECUTION_ID)

    async def set_attributes(self, request: SetAttributesRequest) -> DoneAnswer:
        self._find(request)
        return DoneAnswer(process_execution_id=EXECUTION_ID)

    async def skip_timer(self, request: SkipTimerRequest) -> DoneAnswer:
        self._find(request)
        return DoneAnswer(process_execution_id=EXECUTION_ID)

    async def retry_state(self, request: RetryStateRequest) -> DoneAnswer:
        self._find(request)
        return DoneAnswer(process_execution_id=EXECUTION_ID)

    async def complete_state(self, request: CompleteStateRequest) -> CompleteStateAnswer:
        self._find(request)
        return CompleteStateAnswer(process_execution_id=EXECUTION_ID, status=ProcessStatus.RUNNING)

    async def pause(self, request: PauseRequest) -> PauseAnswer:
        self._find(request)
        return PauseAnswer(process_execution_id=EXECUTION_ID)

    async def resume(self, request: ResumeRequest) -> PauseAnswer:
        self._find(request)
        return PauseAnswer(process_execution_id=EXECUTION_ID)

    async def stop_processes(self, request: StopProcessesRequest) -> BulkAnswer:
        self._take(request, "")
        return BulkAnswer(examined=1, matched=1, changed=1)

    async def replace_worker_url(self, request: ReplaceWorkerUrlRequest) -> BulkAnswer:
        self._take(request, "")
        return BulkAnswer(examined=1, matched=1, changed=1)

    async def update_config(self, request: UpdateConfigRequest) -> DoneAnswer:
        self._find(request)
        return DoneAnswer(process_execution_id=EXECUTION_ID)

    def _find(self, request: ProcessRequest) -> None:
        if request.process_id == UNKNOWN_PROCESS:
            raise ServiceError(404, ErrorBody(error_sub_type=ErrorSubType.PROCESS_NOT_FOUND, details="unknown"))
        self._take(request, request.process_id)

    def _take(self, request: WireModel, process_id: str) -> None:
        self.asked.append(request)
        if process_id in self.failures:
            raise self.failures[process_id]
