"""One trace from the client through the stored execution to user code."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.system import SERVER_URL, WORKER_URL, System
from tests.unit.observability.processes import Walk
from xdb_sdk import AsyncState, ObjectProcess, ProcessNotFoundError, StateDecision
from xdb_sdk.protocol import SERVICE_PREFIX, StartRequest
from xdb_sdk.protocol.tracing import Kind, begin_trace, valid_trace_context

ROOT = Path(__file__).parents[3]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Collect the spans of this process, as an application does that sets a tracer provider up."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # `set_tracer_provider` works once in a process
    yield exporter
    provider.shutdown()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Callable[[str], list[ReadableSpan]]:
    """Give a function that finds the ended spans of a name, in the order in which they began."""

    def named(name: str) -> list[ReadableSpan]:
        found = [span for span in exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    return named


Spans = Callable[[str], list[ReadableSpan]]


class Sign(AsyncState[str]):
    """Makes a span of its own in a thread."""

    def execute(self, input: str) -> StateDecision:
        with trace.get_tracer("application").start_as_current_span("sign"):
            return StateDecision.single_next_state(Send, input)


class Send(AsyncState[str]):
    """Makes a span of its own on the event loop."""

    async def execute(self, input: str) -> StateDecision:
        with trace.get_tracer("application").start_as_current_span("send"):
            return StateDecision.graceful_complete_process()


class Letter(ObjectProcess):
    starting_state = Sign
    states = (Send,)


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    span_id: int = span.parent.span_id
    return span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    span_id: int = span.context.span_id
    return span_id


def traces_of(exporter: InMemorySpanExporter) -> set[int]:
    return {span.context.trace_id for span in exporter.get_finished_spans() if span.context is not None}


async def test_every_call_of_a_process_belongs_to_the_trace_of_its_start(
    system: System, exporter: InMemorySpanExporter, spans: Spans
) -> None:
    system.serve(Letter)
    with trace.get_tracer("application").start_as_current_span("order"):
        await system.client.start_process("p", Letter, "dear")
        await system.client.wait_for_process_completion("p")

    assert len(traces_of(exporter)) == 1
    [order], [client, server] = spans("order"), spans("xdb start")
    assert parent_of(client) == id_of(order)
    assert parent_of(server) == id_of(client)
    for call, state_id in zip(spans("xdb call execute"), ("Sign", "Send"), strict=True):
        [state] = spans(f"execute {state_id}")
        assert parent_of(call) == id_of(server)
        assert parent_of(state) == id_of(call)
        assert state.kind is SpanKind.CONSUMER


async def test_spans_of_user_code_hang_under_its_state(system: System, spans: Spans) -> None:
    system.serve(Letter)
    await system.client.start_process("p", Letter, "dear")
    await system.client.wait_for_process_completion("p")

    for own, state in (("sign", "execute Sign"), ("send", "execute Send")):
        assert parent_of(spans(own)[0]) == id_of(spans(state)[0])


async def test_trace_goes_on_after_the_server_was_restarted(
    system: System, exporter: InMemorySpanExporter, spans: Spans
) -> None:
    system.serve(Walk)
    with trace.get_tracer("application").start_as_current_span("order"):
        await system.client.start_process("p", Walk)
    await system.client.wait_for_state_completion("p", "Stumble")

    await system.restart_server(down_s=100)
    await system.client.wait_for_process_completion("p")

    [order], [sleep] = spans("order"), spans("execute Sleep")
    assert sleep.context is not None
    assert order.context is not None
    assert sleep.context.trace_id == order.context.trace_id


async def test_each_attempt_has_a_span_and_a_failed_one_says_why(system: System, spans: Spans) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    await system.client.wait_for_process_completion("p")

    first, second = spans("execute Stumble")
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert first.status.description == "RuntimeError: not yet"
    assert [event.name for event in first.events] == ["exception"]
    assert [span.attributes and span.attributes["xdb.attempt"] for span in (first, second)] == [1, 2]
    calls = spans("xdb call execute")
    assert [span.status.status_code for span in calls] == [StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET]


async def test_rpc_is_one_chain_from_the_caller_to_its_method(system: System, spans: Spans) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)

    await system.client.invoke_rpc("p", Walk.peek)

    [client, server], [call], [method] = spans("xdb rpc"), spans("xdb call rpc"), spans("rpc peek")
    assert [parent_of(each) for each in (server, call, method)] == [id_of(each) for each in (client, server, call)]
    assert [each.kind for each in (client, server, method)] == [SpanKind.CLIENT, SpanKind.SERVER, SpanKind.SERVER]


def test_call_without_a_trace_begins_one_whatever_span_is_current(exporter: object, spans: Spans) -> None:
    with trace.get_tracer("application").start_as_current_span("something else"):
        begin_trace("call", Kind.CLIENT, None).end()

    assert spans("call")[0].parent is None


async def test_request_to_a_worker_belongs_to_no_trace_since_it_carries_calls_of_many(
    system: System, exporter: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    post, current = system.worker.post, []

    def observed(*arguments: Any) -> Any:
        current.append(trace.get_current_span().get_span_context().is_valid)
        return post(*arguments)

    monkeypatch.setattr(system.worker, "post", observed)
    await system.client.invoke_rpc("p", Walk.peek)

    assert current
    assert not any(current)


async def test_refused_call_is_a_failure_of_the_client_and_not_of_the_server(system: System, spans: Spans) -> None:
    with pytest.raises(ProcessNotFoundError):
        await system.client.describe_process("nobody")

    client, server = spans("xdb describe")
    assert client.status.status_code is StatusCode.ERROR
    assert client.status.description == "ProcessNotFoundError"
    assert server.status.status_code is StatusCode.UNSET


def stored_contexts(system: System) -> list[str | None]:
    return [context for (context,) in system.sql("SELECT trace_context FROM xdb_sys_process_execution")]


async def start_raw(system: System, headers: dict[str, str], **fields: str) -> None:
    """Start a process as a client in another language does."""
    request = StartRequest(process_id="p", process_type="T", worker_url=WORKER_URL)
    body = request.to_json()[:-1] + b"".join(b',"%b":"%b"' % (k.encode(), v.encode()) for k, v in fields.items()) + b"}"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(system.server.api), base_url=SERVER_URL) as client:
        response = await client.post(SERVICE_PREFIX + "start", content=body, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("headers", "fields", "stored"),
    [
        ({"traceparent": PARENT}, {}, PARENT),
        ({"traceparent": PARENT, "tracestate": "vendor=1"}, {}, f"{PARENT} vendor=1"),
        ({}, {"traceContext": f"{PARENT} vendor=1"}, f"{PARENT} vendor=1"),
        ({"traceparent": PARENT.replace("1", "2")}, {"traceContext": PARENT}, PARENT),
        ({"traceparent": "nonsense"}, {}, None),
        ({}, {"traceContext": "nonsense"}, None),
        ({}, {}, None),
    ],
    ids=["header", "two headers", "field", "field before header", "wrong header", "wrong field", "nothing"],
)
async def test_trace_of_a_start_is_kept_by_a_server_that_collects_none(
    system: System, headers: dict[str, str], fields: dict[str, str], stored: str | None
) -> None:
    await start_raw(system, headers, **fields)

    assert stored_contexts(system) == [stored]


async def test_without_a_provider_no_trace_travels(system: System) -> None:
    system.serve(Letter)
    await system.client.start_process("p", Letter, "dear")
    await system.client.wait_for_process_completion("p")

    assert stored_contexts(system) == [None]
    assert all("traceContext" not in call["body"]["context"] for call in system.worker.calls)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT} ",
        f"{PARENT} {'v' * 513}",
        f"{PARENT}\n",
        PARENT.replace("00-", "ff-"),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
    ],
    ids=["empty", "upper case", "short", "no state", "long state", "newline", "version ff", "no trace", "no span"],
)
def test_what_is_no_trace_context_is_ignored(text: str) -> None:
    assert valid_trace_context(text) is None


def test_nothing_of_opentelemetry_is_imported_unless_the_application_does() -> None:
    code = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise SystemExit(f"{name} is imported")

sys.meta_path.insert(0, Absent())
runpy.run_module("examples.user_signup", run_name="__main__")
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )

    assert (finished.returncode, finished.stderr) == (0, "")
