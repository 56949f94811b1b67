"""What /metrics of the server shows after real work."""

import asyncio

import httpx
import pytest

from server_stub.app import Server
from server_stub.config import ServerSettings
from server_stub.core.changes import Changes
from server_stub.core.ports import StoreUnavailable, Work
from server_stub.metrics import SERVER_METRICS
from tests.support.scraping import OPENMETRICS, get, of, openmetrics_names, scrape
from tests.support.system import SERVER_URL, WORKER_URL, System
from tests.unit.observability.processes import Sleep, Walk
from xdb_sdk import ProcessAlreadyStartedError, ProcessStopType, UnavailableError, Worker, WorkerOptions


async def walk(system: System) -> None:
    """Let one process live from its start to its end."""
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    await system.client.wait_for_process_completion("p")


async def test_calls_of_clients_are_counted_by_operation_and_class_of_status(system: System) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    with pytest.raises(ProcessAlreadyStartedError):
        await system.client.start_process("p", Walk)

    samples = await scrape(system.server.api)

    assert samples[of("xdb_server_requests_total", operation="start", status="2xx")] == 1
    assert samples[of("xdb_server_requests_total", operation="start", status="4xx")] == 1
    assert samples[of("xdb_server_request_duration_seconds_count", operation="start")] == 2


async def test_calls_that_travel_together_are_counted_one_by_one(system: System) -> None:
    system.serve(Walk)
    await asyncio.gather(*(system.client.start_process(f"p-{n}", Walk) for n in range(5)))

    samples = await scrape(system.server.api)

    assert samples[of("xdb_server_requests_total", operation="start", status="2xx")] == 5
    assert samples[of("xdb_server_request_calls_sum")] == 5
    assert samples[of("xdb_server_request_calls_bucket", le="4.0")] == 0
    assert samples[of("xdb_server_request_calls_bucket", le="8.0")] == 1


async def test_calls_that_come_again_are_counted_by_type_and_told_from_others_with_their_id(system: System) -> None:
    system.serve(Walk)
    for _ in range(3):
        await system.client.start_process("p", Walk, request_id="X")
    for stop_type in (ProcessStopType.CANCEL, ProcessStopType.FAIL):
        await system.client.stop_process("p", stop_type, request_id="X")

    samples = await scrape(system.server.api)

    assert samples[of("xdb_server_request_duplicates_total", type="start")] == 2
    assert samples[of("xdb_server_request_mismatches_total", type="start")] == 0
    assert samples[of("xdb_server_request_duplicates_total", type="stop")] == 1
    assert samples[of("xdb_server_request_mismatches_total", type="stop")] == 1


async def test_request_ids_that_are_forgotten_are_counted(system: System) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    before = await scrape(system.server.api)

    await asyncio.sleep(system.settings.request_ttl.total_seconds() + 120)

    assert before[of("xdb_server_requests_forgotten_total")] == 0
    assert (await scrape(system.server.api))[of("xdb_server_requests_forgotten_total")] == 1


async def test_paths_that_nobody_serves_make_no_label(system: System) -> None:
    before = await scrape(system.server.api)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(system.server.api), base_url=SERVER_URL) as client:
        await client.post("/api/v1/xdb/service/process-execution/no-such-operation")
        await client.post("/elsewhere")

    assert (await scrape(system.server.api)).keys() == before.keys()


async def test_number_of_series_does_not_grow_with_the_processes(system: System) -> None:
    await walk(system)
    before = await scrape(system.server.api)

    await asyncio.gather(*(system.client.start_process(f"other-{n}", Walk) for n in range(200)))
    await asyncio.gather(*(system.client.wait_for_process_completion(f"other-{n}") for n in range(200)))

    after = await scrape(system.server.api)
    assert after[of("xdb_server_requests_total", operation="start", status="2xx")] == 201
    assert after.keys() == before.keys()


async def test_attempts_are_counted_by_outcome(system: System) -> None:
    await walk(system)

    samples = await scrape(system.server.api)

    def calls(operation: str, attempt: str, outcome: str) -> float:
        return samples[of("xdb_server_worker_calls_total", operation=operation, attempt=attempt, outcome=outcome)]

    assert calls("execute", "first", "worker_error") == 1
    assert calls("execute", "repeated", "answered") == 1
    assert calls("execute", "first", "answered") == 1
    assert calls("wait-until", "first", "answered") == 1
    assert samples[of("xdb_server_worker_call_duration_seconds_count", operation="execute")] == 3
    assert samples[of("xdb_server_verdicts_total", verdict="applied")] == 4


async def test_commits_are_measured(system: System) -> None:
    await walk(system)

    samples = await scrape(system.server.api)

    transactions = system.server.committer.counters.transactions
    assert transactions > 0
    assert samples[of("xdb_server_commit_duration_seconds_count")] == transactions
    assert samples[of("xdb_server_commit_events_sum")] == system.server.committer.counters.events
    assert samples[of("xdb_server_statements_total")] == system.store.counters.statements


async def test_database_that_is_away_shows_until_it_is_back(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.serve(Walk)

    async def fail(work: Work) -> Changes:
        raise StoreUnavailable("connection refused")

    with monkeypatch.context() as away:
        away.setattr(system.store, "transact", fail)
        with pytest.raises(UnavailableError):
            await system.client.start_process("p", Walk)
        while_away = await scrape(system.server.api)
    await system.client.start_process("p", Walk)
    afterwards = await scrape(system.server.api)

    failures = while_away[of("xdb_server_commit_failures_total", error="StoreUnavailable")]
    assert failures == while_away[of("xdb_server_requests_total", operation="start", status="5xx")] > 0
    assert (while_away[of("xdb_server_database_up")], afterwards[of("xdb_server_database_up")]) == (0, 1)


async def test_timer_that_fires_late_shows_its_lag(system: System) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    await asyncio.sleep(30)

    await system.restart_server(down_s=100)
    await system.client.wait_for_process_completion("p")

    samples = await scrape(system.server.api)
    assert samples[of("xdb_server_timer_lag_seconds_count")] == 1
    assert 65 < samples[of("xdb_server_timer_lag_seconds_sum")] < 75


async def test_timer_that_is_waited_for_is_planned(system: System) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    await asyncio.sleep(45)

    samples = await scrape(system.server.api)

    assert samples[of("xdb_server_planned_timers")] == 1
    assert samples[of("xdb_server_oldest_due_task_seconds", shard="0")] == 0


async def test_call_that_a_busy_worker_does_not_take_is_the_oldest_due_task(system: System) -> None:
    system.serve(Walk)
    system.route(WORKER_URL, Worker(system.registry, WorkerOptions(max_concurrent_calls=1)))
    await system.client.start_process("p-1", Walk)
    await asyncio.sleep(61.5)  # it stumbles, sleeps for a minute, and holds the worker's only place for a second
    await system.client.start_process("p-2", Walk)
    await asyncio.sleep(0.4)

    samples = await scrape(system.server.api)

    assert samples[of("xdb_server_worker_calls_waiting")] == 1
    assert samples[of("xdb_server_workers_held_back")] == 1
    assert samples[of("xdb_server_oldest_due_task_seconds", shard="0")] == pytest.approx(0.4, abs=0.01)


async def test_waiting_client_is_a_long_poll(system: System) -> None:
    system.serve(Walk)
    await system.client.start_process("p", Walk)
    waiting = asyncio.create_task(system.client.wait_for_state_completion("p", Sleep))
    await asyncio.sleep(1)

    samples = await scrape(system.server.api)
    await waiting

    assert samples[of("xdb_server_long_polls")] == 1
    assert (await scrape(system.server.api))[of("xdb_server_long_polls")] == 0


async def test_two_servers_of_one_process_count_for_themselves(system: System) -> None:
    await walk(system)

    async with await Server.open(ServerSettings(database_url="sqlite://")) as other:
        samples = await scrape(other.api)

    assert samples[of("xdb_server_commit_duration_seconds_count")] == 0


async def test_metrics_of_the_process_are_shown_beside_those_of_the_server(system: System) -> None:
    samples = await scrape(system.server.api)

    assert samples[of("process_cpu_seconds_total")] > 0


async def test_openmetrics_are_given_to_who_asks_for_them(system: System) -> None:
    await walk(system)

    text, content_type = await get(system.server.api, OPENMETRICS)

    assert content_type.startswith("application/openmetrics-text")
    assert {metric.name.removesuffix("_total") for metric in SERVER_METRICS} <= openmetrics_names(text)
