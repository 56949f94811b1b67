"""A span for each call of user code: `execute <state id>`, `wait_until <state id>` or `rpc <name>`.

The span of an attempt is a child of what the server passes on: its own span of the call if it collects them, else that
of the client that started the process. The messaging conventions of OpenTelemetry would allow a link to it instead of a
parent, and ask for links where one span processes many messages. Here each call has a span, and parents keep a process,
however long it lives, in one trace that every tool can show.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from xdb_sdk.protocol import ExecuteCall, RpcCall, WaitUntilCall
from xdb_sdk.protocol.tracing import Kind, Trace, is_collecting, traced

_NO_SPAN: Final = nullcontext(Trace(None))


def call_span(call: WaitUntilCall | ExecuteCall | RpcCall) -> AbstractContextManager[Trace]:
    """Make the span of a call the current one, so that spans of user code hang under it."""
    return _described(call) if is_collecting() else _NO_SPAN


@contextmanager
def _described(call: WaitUntilCall | ExecuteCall | RpcCall) -> Iterator[Trace]:
    context = call.context
    with traced(_name_of(call), _kind_of(call), context.trace_context) as trace:
        trace.describe(
            {
                "xdb.namespace": context.namespace,
                "xdb.process_type": call.process_type,
                "xdb.process_id": context.process_id,
                "xdb.process_execution_id": context.process_execution_id,
                "xdb.state_execution_id": context.state_execution_id,
                "xdb.attempt": context.attempt,
            }
        )
        yield trace


def _name_of(call: WaitUntilCall | ExecuteCall | RpcCall) -> str:
    match call:
        case ExecuteCall():
            return f"execute {call.state_id}"
        case WaitUntilCall():
            return f"wait_until {call.state_id}"
        case RpcCall():
            return f"rpc {call.rpc_name}"


def _kind_of(call: WaitUntilCall | ExecuteCall | RpcCall) -> Kind:
    """An RPC is waited for by its caller; a state is called some time after what led to it."""
    return Kind.SERVER if isinstance(call, RpcCall) else Kind.CONSUMER
