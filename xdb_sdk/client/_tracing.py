"""A span for each call of a client, from its first request to its result, repetitions and long polls included."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xdb_sdk.client._exchange import Call, Pause
from xdb_sdk.protocol.tracing import Kind, Trace, traced


class CallSpan:
    """The span of one call, which gets its name from the first request."""

    __slots__ = ("_trace", "requests")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.requests = 0

    def note(self, step: Call[Any] | Pause) -> None:
        """Take note of what the call does next."""
        if self._trace.is_collected and isinstance(step, Call):
            self.requests += 1
            self._trace.describe({"xdb.requests": self.requests}, name=f"xdb {step.operation}")


@contextmanager
def call_span() -> Iterator[CallSpan]:
    """Make a span the current one while a plan is carried out. What the plan raises makes it a failure."""
    with traced("xdb call", Kind.CLIENT) as trace:
        try:
            yield CallSpan(trace)
        except Exception as error:
            trace.fail(type(error).__name__, error)
            raise
