"""OpenTelemetry traces: how their context stands on the wire, and spans for those who collect them.

On the wire, and in the database, a context is one text: the `traceparent` of W3C Trace Context, and its `tracestate`
after a space if there is one.

OpenTelemetry is not imported here. It is used once the application has imported it and set a tracer provider up; else
every function costs less than a microsecond, where a span of a provider that keeps none costs ten.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, Field

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}( [ -~]{1,512})?")


def valid_trace_context(text: str | None) -> str | None:
    """Give a trace context if it has the form of one, else None: a trace is no reason to refuse a call."""
    return text if text is not None and _FORM.fullmatch(text) else None


TraceContext: TypeAlias = Annotated[
    str | None,
    AfterValidator(valid_trace_context),
    Field(description="W3C traceparent, and tracestate after a space if there is one; what is none of it is ignored"),
]


class Kind(Enum):
    """The part that a process plays in a span; the values are the names of OpenTelemetry's span kinds."""

    CLIENT = "CLIENT"
    SERVER = "SERVER"
    CONSUMER = "CONSUMER"


class Trace:
    """A span, or nothing if nobody collects spans in this process.

    Attributes:
        context: What to pass on, so that others' spans become children of this one; without a span, what was passed
            to this process.
    """

    __slots__ = ("_span", "context")

    def __init__(self, context: str | None, span: "Span | None" = None) -> None:
        self.context = context
        self._span = span

    @property
    def is_collected(self) -> bool:
        """Whether there is a span; if not, there is no need to describe it."""
        return self._span is not None

    def describe(self, attributes: Mapping[str, Any], *, name: str | None = None) -> None:
        """Add attributes, without those that are None, and give the span a better name."""
        if self._span is None:
            return
        self._span.set_attributes({key: value for key, value in attributes.items() if value is not None})
        if name is not None:
            self._span.update_name(name)

    def fail(self, reason: str, error: BaseException | None = None) -> None:
        """Note that what the span is about has failed, and the exception with its traceback if there is one."""
        if self._span is None:
            return
        from opentelemetry.trace import Status, StatusCode

        if error is not None:
            self._span.record_exception(error)
        self._span.set_status(Status(StatusCode.ERROR, reason))

    def end(self) -> None:
        """End the span."""
        if self._span is not None:
            self._span.end()


def begin_trace(name: str, kind: Kind, parent: str | None) -> Trace:
    """Begin a span beside what is current; whoever does must `end` it.

    Args:
        name: Of few values; what tells one call from another belongs into attributes.
        kind: The part that this process plays.
        parent: The context that came with the call; None begins a trace of its own.
    """
    tracer = _find_tracer()
    if tracer is None:
        return Trace(parent)
    return _begin(tracer, name, kind, _parsed(parent))


def traced(name: str, kind: Kind, parent: str | None = None) -> AbstractContextManager[Trace]:
    """Begin a span that is the current one, so that spans of other libraries become its children.

    Without parent it is a child of the one that was current. Exceptions pass through unnoted: only the caller knows
    which are failures.
    """
    tracer = _find_tracer()
    if tracer is None:
        return nullcontext(Trace(parent))
    return _as_current(_begin(tracer, name, kind, None if parent is None else _parsed(parent)))


def is_collecting() -> bool:
    """Whether spans are collected in this process: if not, there is no need to find names for them."""
    return _find_tracer() is not None


def current_trace_context() -> str | None:
    """Give the context of the current span, None if there is none or nobody collects spans."""
    if _find_tracer() is None:
        return None
    from opentelemetry.trace import get_current_span

    return _written(get_current_span())


def _find_tracer() -> "Tracer | None":
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    return _tracer_of(provider)


@lru_cache(maxsize=1)
def _tracer_of(provider: "TracerProvider") -> "Tracer":
    return provider.get_tracer("xdb")


@contextmanager
def _as_current(trace: Trace) -> Iterator[Trace]:
    from opentelemetry.trace import use_span

    assert trace._span is not None
    with use_span(trace._span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield trace


def _begin(tracer: "Tracer", name: str, kind: Kind, context: "Context | None") -> Trace:
    from opentelemetry.trace import SpanKind

    span = tracer.start_span(name, context=context, kind=SpanKind[kind.value])
    return Trace(_written(span), span)


def _parsed(text: str | None) -> "Context":
    """Give the context that a text stands for, as OpenTelemetry has it; one without a span for no text."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent, _, state = (text or "").partition(" ")
    return TraceContextTextMapPropagator().extract({"traceparent": parent, "tracestate": state}, context=Context())


def _written(span: "Span") -> str | None:
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, context=set_span_in_context(span))
    parent, state = carrier.get("traceparent"), carrier.get("tracestate")
    return valid_trace_context(f"{parent} {state}") or parent if state else parent
