"""The operations of the service API: their names on the wire, what they take and what they give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from xdb_sdk.protocol import (
    DescribeAnswer,
    DescribeRequest,
    DoneAnswer,
    GetAttributesAnswer,
    GetAttributesRequest,
    ListAnswer,
    ListRequest,
    PublishAnswer,
    PublishOrStartAnswer,
    PublishOrStartRequest,
    PublishRequest,
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

    async def update_config(self, request: UpdateConfigRequest) -> DoneAnswer:
        """Change the worker URL or the timeout of a running execution."""
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
        Operation("update-config", "update_config", UpdateConfigRequest, DoneAnswer),
    )
}
"""By name on the wire."""
