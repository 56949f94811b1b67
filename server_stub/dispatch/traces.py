"""A span for each time that a call is sent to a worker, where spans are collected."""

from server_stub.core.outcomes import CallFailure
from server_stub.dispatch.jobs import Job
from server_stub.dispatch.measures import outcome_of
from server_stub.dispatch.replies import Reply
from xdb_sdk.protocol.tracing import Kind, begin_trace, is_collecting


def begin_span(job: Job) -> None:
    """Begin the span of a call that is about to be written, unless it is written again within one round."""
    if job.trace is not None or not is_collecting():
        return
    job.trace = begin_trace(f"xdb call {job.operation}", Kind.CLIENT, job.trace_context)
    job.trace.describe(
        {
            "xdb.process_type": job.process_type,
            "xdb.process_id": job.process_id,
            "xdb.process_execution_id": job.process_execution_id,
            "xdb.attempt": job.attempt,
        }
    )


def end_span(job: Job, reply: Reply) -> None:
    """End the span of a call, if it has one."""
    trace, job.trace = job.trace, None
    if trace is None:
        return
    trace.describe({"xdb.outcome": outcome_of(reply)})
    if isinstance(reply, CallFailure):
        trace.fail(f"{reply.kind}: {reply.error_type}")
    trace.end()
