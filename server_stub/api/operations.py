"""The operations of the service API: their names on the wire, what they take and what they give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from xdb_sdk.protocol import (
    BulkAnswer,
    CompleteStateAnswer,
    CompleteStateRequest,
    DescribeAnswer,
    DescribeRequest,
    DoneAnswer,
    GetAttributesAnswer,
    GetAttributesRequest,
    GetHistoryAnswer,
    GetHistoryRequest,
    ListAnswer,
    ListRequest,
    PauseAnswer,
    PauseRequest,
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
    ServiceRequest,
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


class ServiceOperations(Protocol):
    """The use cases behind the service API. Each raises `ServiceError` for what it refuses."""

    async def start(self, request: StartRequest) -> StartAnswer:
        """Start a process execution."""
        ...

    async def stop(self, request: StopRequest) -> StopAnswer:
        """Close a running execution."""
        ...

    async def describe(self, request: DescribeRequest) -> DescribeAnswer:
        """Tell everything about an execution."""
        ...

    async def get_history(self, request: GetHistoryRequest) -> GetHistoryAnswer:
        """Give a page of the event history of an execution."""
        ...

    async def reset(self, request: ResetRequest) -> ResetAnswer:
        """Go on from a point of an execution's history."""
        ...

    async def list_processes(self, request: ListRequest) -> ListAnswer:
        """List executions, newest first."""
        ...

    async def publish(self, request: PublishRequest) -> PublishAnswer:
        """Append messages to internal queues."""
        ...

    async def rpc(self, request: RpcRequest) -> RpcServiceAnswer:
        """Call an RPC of the process."""
        ...

    async def publish_or_start(self, request: PublishOrStartRequest) -> PublishOrStartAnswer:
        """Publish to the running execution, or to one that is started."""
        ...

    async def rpc_or_start(self, request: RpcOrStartRequest) -> RpcOrStartAnswer:
        """Call an RPC of the running execution, or of one that is started."""
        ...

    async def wait_for_completion(self, request: WaitForCompletionRequest) -> WaitForCompletionAnswer:
        """Wait until an execution closes."""
        ...

    async def wait_for_state_completion(self, request: WaitForStateRequest) -> WaitForStateAnswer:
        """Wait until a state execution ends."""
        ...

    async def get_attributes(self, request: GetAttributesRequest) -> GetAttributesAnswer:
        """Read attributes from outside."""
        ...

    async def set_attributes(self, request: SetAttributesRequest) -> DoneAnswer:
        """Write attributes from outside."""
        ...

    async def skip_timer(self, request: SkipTimerRequest) -> DoneAnswer:
        """Complete a timer command now."""
        ...

    async def retry_state(self, request: RetryStateRequest) -> DoneAnswer:
        """Make the next attempt of a state now that waits for it."""
        ...

    async def complete_state(self, request: CompleteStateRequest) -> CompleteStateAnswer:
        """End a state execution by a decision of the operator."""
        ...

    async def pause(self, request: PauseRequest) -> PauseAnswer:
        """Call the states of an execution no more until it is resumed."""
        ...

    async def resume(self, request: ResumeRequest) -> PauseAnswer:
        """Call the states of a paused execution again."""
        ...

    async def update_config(self, request: UpdateConfigRequest) -> DoneAnswer:
        """Change the worker URL or the timeout of a running execution."""
        ...

    async def stop_processes(self, request: StopProcessesRequest) -> BulkAnswer:
        """Close many running executions, some at a time."""
        ...

    async def replace_worker_url(self, request: ReplaceWorkerUrlRequest) -> BulkAnswer:
        """Give many running executions another worker URL, some at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: `name` stands in paths and batch lines, `method` is that of `ServiceOperations`."""

    name: str
    method: str
    request_type: type[ServiceRequest]
    answer_type: type[WireModel]


OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("start", "start", StartRequest, StartAnswer),
        Operation("stop", "stop", StopRequest, StopAnswer),
        Operation("describe", "describe", DescribeRequest, DescribeAnswer),
        Operation("get-history", "get_history", GetHistoryRequest, GetHistoryAnswer),
        Operation("reset", "reset", ResetRequest, ResetAnswer),
        Operation("list", "list_processes", ListRequest, ListAnswer),
        Operation("publish", "publish", PublishRequest, PublishAnswer),
        Operation("rpc", "rpc", RpcRequest, RpcServiceAnswer),
        Operation("publish-or-start", "publish_or_start", PublishOrStartRequest, PublishOrStartAnswer),
        Operation("rpc-or-start", "rpc_or_start", RpcOrStartRequest, RpcOrStartAnswer),
        Operation("wait-for-completion", "wait_for_completion", WaitForCompletionRequest, WaitForCompletionAnswer),
        Operation("wait-for-state-completion", "wait_for_state_completion", WaitForStateRequest, WaitForStateAnswer),
        Operation("get-attributes", "get_attributes", GetAttributesRequest, GetAttributesAnswer),
        Operation("set-attributes", "set_attributes", SetAttributesRequest, DoneAnswer),
        Operation("skip-timer", "skip_timer", SkipTimerRequest, DoneAnswer),
        Operation("retry-state", "retry_state", RetryStateRequest, DoneAnswer),
        Operation("complete-state", "complete_state", CompleteStateRequest, CompleteStateAnswer),
        Operation("pause", "pause", PauseRequest, PauseAnswer),
        Operation("resume", "resume", ResumeRequest, PauseAnswer),
        Operation("update-config", "update_config", UpdateConfigRequest, DoneAnswer),
        Operation("stop-processes", "stop_processes", StopProcessesRequest, BulkAnswer),
        Operation("replace-worker-url", "replace_worker_url", ReplaceWorkerUrlRequest, BulkAnswer),
    )
}
"""By name on the wire."""
