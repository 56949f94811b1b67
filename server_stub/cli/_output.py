"""What the `xdb process` commands print, for people and for programs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xdb_sdk import RetryPolicy
    from xdb_sdk.client import HistoryEvent, ProcessInfo, ProcessSummary, StateExecutionInfo


def print_json(value: Any) -> None:
    """Print a value as JSON: dataclasses as objects, instants in ISO 8601."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_to_json))


def compact(value: Any) -> str:
    """Write a JSON value in one line."""
    return json.dumps(value, ensure_ascii=False)


def print_process(info: "ProcessInfo", *, is_verbose: bool = False) -> None:
    """Print all about an execution; verbose with the tracebacks of failures."""
    facts = {
        "process": info.process_id,
        "execution": info.process_execution_id,
        "type": info.process_type,
        "namespace": info.namespace,
        "status": info.status + ("" if info.is_current else " (not the current execution)"),
        "reason": info.reason,
        "error": f"{info.error.error_type}: {info.error.error_message}" if info.error else None,
        "started": show_instant(info.started_at),
        "closed": show_instant(info.closed_at),
        "times out": show_instant(info.timeout_at),
        "paused": f"since {show_instant(info.paused_at)}" if info.paused_at else None,
        "worker": info.worker_url,
        "row": f"{info.table_name} {compact(info.object_id)}" if info.table_name else None,
    }
    _print_facts(facts)
    if info.error and is_verbose and info.error.details != info.error.error_message:
        _print_indented(info.error.details)
    for output in info.outputs:
        click.echo(f"output of {output.state_execution_id or 'an RPC'}: {compact(output.output)}")
    for state in info.states:
        _print_state(state, is_verbose=is_verbose)
    if info.closed_at is None and all(state.closed_at is not None for state in info.states):
        click.echo("no state is open; the process waits for an RPC, a stop or its timeout")
    if info.omitted_states:
        click.echo(f"closed states not shown: {info.omitted_states}")
    for queue, size in sorted((info.queue_sizes or {}).items()):
        click.echo(f"queue {queue}: {size} waiting")


def print_processes(processes: Iterable["ProcessSummary"]) -> None:
    """Print a table of executions, as they come."""
    row = "{:<24}  {:<10}  {:<24}  {:<30}  {}"
    click.echo(row.format("STARTED", "STATUS", "TYPE", "PROCESS", "EXECUTION"))
    for each in processes:
        click.echo(
            row.format(
                show_instant(each.started_at) or "",
                each.status,
                each.process_type,
                each.process_id,
                each.process_execution_id,
            )
        )


def print_history(events: Iterable["HistoryEvent"]) -> None:
    """Print a table of events, as they come; what came of the same change is indented."""
    row = "{:>6}  {:<24}  {:<27}  {}"
    click.echo(row.format("EVENT", "AT", "WHAT", "MORE"))
    for event in events:
        what = event.event_type if event.cause_id is None else f"  {event.event_type}"
        more = [f"{name}={value if isinstance(value, str) else compact(value)}" for name, value in event.data.items()]
        if event.request_id is not None and event.cause_id is None:
            more.append(f"(request {event.request_id})")
        click.echo(row.format(event.event_id, show_instant(event.at) or "", what, "  ".join(more)).rstrip())


def show_instant(instant: datetime | None) -> str | None:
    """Write an instant in UTC with milliseconds."""
    return None if instant is None else instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print_state(state: "StateExecutionInfo", *, is_verbose: bool) -> None:
    click.echo(f"state {state.state_id}-{state.number}: {', '.join(_state_facts(state))}")
    if state.retry_policy is not None:
        click.echo(f"  retries: {_show_policy(state.retry_policy)}")
    for index, timer in enumerate(state.timers):
        at = f", fires at {show_instant(timer.fire_at)}" if timer.status == "SCHEDULED" else ""
        click.echo(f"  timer {timer.command_id or f'#{index}'}: {timer.status}{at}")
    for command in state.queue_commands:
        wanted = _show_range(command.at_least, command.at_most)
        click.echo(f"  queue {command.queue_name}: {command.status}, {command.received_count} of {wanted} received")
    failure = state.last_failure
    if failure is not None:
        first_line = failure.error_message.partition("\n")[0]
        click.echo(f"  attempt {failure.attempt} of {failure.api} failed: {failure.error_type}: {first_line}")
        if is_verbose and failure.details != first_line:
            _print_indented(failure.details)


def _state_facts(state: "StateExecutionInfo") -> Iterator[str]:
    yield state.status
    yield f"wait_until {state.wait_until_status}"
    yield f"execute {state.execute_status}"
    if state.running_since is not None:
        yield f"attempt {state.attempt} running since {show_instant(state.running_since)}"
    if state.next_attempt_at is not None:
        most = state.retry_policy.maximum_attempts if state.retry_policy else 0
        limit = f"of {most}" if most else "no limit"
        yield f"next attempt {state.attempt} ({limit}) at {show_instant(state.next_attempt_at)}"
    if state.held_due_at is not None:
        yield f"attempt {state.attempt} held, due at {show_instant(state.held_due_at)}"


def _show_policy(policy: "RetryPolicy") -> str:
    first, longest = f"{policy.initial_interval_seconds:g} s", f"{policy.maximum_interval_seconds:g} s"
    attempts, duration_s = policy.maximum_attempts, policy.maximum_attempts_duration_seconds
    limits = [f"at most {attempts} attempts"] if attempts else []
    limits += [f"for at most {duration_s:g} s"] if duration_s else []
    times = f"each time {policy.backoff_coefficient:g} times as long, up to {longest}"
    return f"after {first}, {times}; {', '.join(limits) or 'no limit of attempts'}"


def _show_range(at_least: int, at_most: int) -> str:
    return str(at_least) if at_least == at_most else f"{at_least} to {at_most}"


def _print_indented(text: str) -> None:
    for line in text.splitlines():
        click.echo(f"    {line}".rstrip())


def _print_facts(facts: Mapping[str, str | None]) -> None:
    for name, text in facts.items():
        if text:
            click.echo(f"{name + ':':<11} {text}")


def _to_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return show_instant(value)
    return asdict(value)
