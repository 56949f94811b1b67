"""The client: one layer that knows what to send and what answers mean, and a sync and an async face of it."""

from xdb_sdk.client._async_calls import AsyncUnregisteredClient
from xdb_sdk.client._async_client import AsyncClient
from xdb_sdk.client._client import Client
from xdb_sdk.client._clock import ClientClock
from xdb_sdk.client._exchange import ClientClosedError
from xdb_sdk.client._explain import explain
from xdb_sdk.client._operations import QueueMessage
from xdb_sdk.client._options import ClientOptions, ClientRetryPolicy
from xdb_sdk.client._reset import ResetOptions
from xdb_sdk.client._results import (
    AttemptFailure,
    BulkResult,
    ChangeResult,
    CompleteStateResult,
    HistoryEvent,
    PauseResult,
    ProcessError,
    ProcessInfo,
    ProcessSummary,
    PublishOrStartResult,
    PublishResult,
    QueueCommandInfo,
    ResetResult,
    RpcOrStartResult,
    RpcResult,
    StartResult,
    StateCompletion,
    StateExecutionInfo,
    StateOutput,
    StopResult,
    TimerInfo,
)
from xdb_sdk.client._sync_calls import UnregisteredClient
from xdb_sdk.client._transport import AsyncTransport, LineStream, Reply, Transport, TransportError

__all__ = [
    "AsyncClient",
    "AsyncTransport",
    "AsyncUnregisteredClient",
    "AttemptFailure",
    "BulkResult",
    "ChangeResult",
    "Client",
    "ClientClock",
    "ClientClosedError",
    "ClientOptions",
    "ClientRetryPolicy",
    "CompleteStateResult",
    "HistoryEvent",
    "LineStream",
    "PauseResult",
    "ProcessError",
    "ProcessInfo",
    "ProcessSummary",
    "PublishOrStartResult",
    "PublishResult",
    "QueueCommandInfo",
    "QueueMessage",
    "Reply",
    "ResetOptions",
    "ResetResult",
    "RpcOrStartResult",
    "RpcResult",
    "StartResult",
    "StateCompletion",
    "StateExecutionInfo",
    "StateOutput",
    "StopResult",
    "TimerInfo",
    "Transport",
    "TransportError",
    "UnregisteredClient",
    "explain",
]
